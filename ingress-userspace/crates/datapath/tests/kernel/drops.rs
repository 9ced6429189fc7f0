//! Cost of dropping packets from ten thousand networks: `ingress_xdp` beside nft, on the same frames in the same
//! rounds.
//!
//! The frames run live: a packet that the program passes continues into the stack, in the same call and on the same
//! CPU. So the kernel's own clock measures each packet's whole cost, without the sender and without other work on the
//! machine.

use std::{process::Command, time::Duration};

use ingress_common::Total;
use ingress_datapath::{RunOptions, TestProgram};
use ingress_lab::{Namespace, denied, nft, packet};
use xtask_tools::process::capture;

use crate::{
    figures::print_rounds,
    measure::{REPEAT, ROUNDS, deny, serving},
    packets::{Packet, SYN},
    sandbox::{ip, sandboxed},
};

/// Separate interfaces: packets of one meet the chain of `netdev`, those of the other the chain of `input`.
const NETDEV: &str = "netdev0";
const INPUT: &str = "input0";

/// Creates an interface that accepts the frames of these tests. Returns its index.
pub(crate) fn interface(name: &str) -> u32 {
    ip(&format!("link add {name} address 02:02:02:02:02:02 type veth peer name {name}p"));
    ip(&format!("link set {name} up"));
    ip(&format!("link set {name}p up"));
    let shown = capture(Command::new("ip").args(["-o", "link", "show", name])).expect("it is there");
    shown.split_once(':').expect("an index").0.parse().expect("a number")
}

/// Returns the frame with valid checksums, so that the stack does all the work of a real packet.
fn with_checksums(packet: &Packet) -> Vec<u8> {
    let mut frame = packet.frame();
    let (header, segment) = frame[14..].split_at_mut(20);
    let checksum = packet::checksum(&[&*header]);
    header[10..12].copy_from_slice(&checksum);
    let pseudo_header = [0, 6, 0, u8::try_from(segment.len()).expect("a short one")];
    let checksum = packet::checksum(&[&header[12..], &pseudo_header, &*segment]);
    segment[16..18].copy_from_slice(&checksum);
    frame
}

fn apply_rules() {
    let set = denied::nft_set();
    let rules = format!(
        "table netdev filter {{\n{set}\nchain ingress {{\ntype filter hook ingress device \"{NETDEV}\" priority 0;\n\
         ip saddr @denied counter drop\n}}\n}}\n\
         table ip filter {{\n{set}\nchain input {{\ntype filter hook input priority 0;\n\
         ct state established,related accept\nip saddr @denied counter drop\n}}\n}}\n"
    );
    let file = tempfile::NamedTempFile::new().expect("a file");
    nft::apply(&Namespace::current(), file.path(), &rules).expect("the rules are taken");
}

/// Returns the packets dropped by the chain.
fn dropped(chain: [&str; 3]) -> u64 {
    let shown = capture(Command::new("nft").args(["list", "chain"]).args(chain)).expect("it is there");
    let packets = shown.split_once("counter packets ").expect("a counter").1;
    packets.split(' ').next().expect("a word").parse().expect("a number")
}

#[test]
fn every_kind_of_rule_drops_all_packets_and_its_cost_is_printed() {
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        deny(&datapath);
        let (netdev, input) = (interface(NETDEV), interface(INPUT));
        ip(&format!("addr add 198.51.100.7/24 dev {INPUT}"));
        ip(&format!("route add default dev {INPUT}"));
        apply_rules();
        let ways = [
            ("drop, XDP", (TestProgram::Ingress, input)),
            ("drop, nft netdev ingress", (TestProgram::Bare, netdev)),
            ("drop, nft input and conntrack", (TestProgram::Bare, input)),
        ];
        let remote = format!("{}:40000", denied::address(7));
        let frame = with_checksums(&Packet::tcp(&remote, "198.51.100.7:80", SYN));
        let run = |(program, interface): &(TestProgram, u32)| -> Duration {
            datapath.heartbeat().expect("beats");
            let options = RunOptions { frame: &frame, repeat: REPEAT, live: Some(*interface) };
            datapath.test_run(*program, options).expect("runs").each
        };
        print_rounds(ROUNDS, &ways, run);
        let all = ROUNDS as u64 * u64::from(REPEAT);
        assert_eq!(datapath.totals().expect("totals").get(Total::Denied).packets, all);
        assert_eq!(dropped(["netdev", "filter", "ingress"]), all);
        assert_eq!(dropped(["ip", "filter", "input"]), all);
    });
}
