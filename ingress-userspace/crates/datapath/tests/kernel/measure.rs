//! Cost of the programs: instructions, and nanoseconds per packet beside an empty program.

use std::{num::NonZeroU32, sync::atomic::Ordering::Relaxed, time::Instant};

use aya::maps::{Array, Map};
use ingress_common::{
    flow::PROTO_TCP,
    map::{DENY_CHANGED, DENY_CHANGED_ALL, HOSTS_DEFAULT},
    steer::SLOTS_PER_PORT,
};
use ingress_datapath::{
    ClientLimits, ClientShare, Datapath, DenyConfig, NodeShare, Options, PacketRate, Renewal, RunOptions, SteeredPort,
    TestProgram, TransmitOptions,
};
use ingress_lab::denied;
use ipnet::{IpNet, Ipv6Net};

use crate::{
    figures::{print, print_rounds},
    packets::{ACK, Packet, SYN},
    sandbox::{Sandbox, sandboxed},
};

pub(crate) const ROUNDS: usize = 8;
pub(crate) const REPEAT: u32 = 200_000;
/// Limit on verified instructions, far below the kernel's million, so that growth is noticed. Most come from the
/// verifier's walks through the loop over workers, from each state that a packet may have by then. `ingress_tc_in` has
/// more, because it may have to fetch headers first. The same sources gave 152,192 and 193,918 in two directories, since
/// the compiler inlines otherwise where names have other hashes.
const INSTRUCTIONS_MAX: u32 = 250_000;

/// A node that steers port 80 of two addresses.
pub(crate) fn serving(sandbox: &Sandbox) -> Datapath {
    let options = Options { host_capacity: HOSTS_DEFAULT, measure: true, ..sandbox.options(&[]) };
    let datapath = Datapath::open(&options).expect("opens");
    datapath.take_over().expect("takes over");
    datapath
        .set_ports(&[SteeredPort { port: 80, proto: PROTO_TCP, first_slot: 0, workers: 2, flags: 0, rewritten: None }])
        .expect("ports");
    let addrs = ["198.51.100.7", "2001:db8::7"].map(|addr| (addr.parse().expect("an address"), 1));
    datapath.set_node_addrs(&addrs).expect("addresses");
    datapath
}

/// Denies the networks of the lab, and as many of IPv6.
pub(crate) fn deny(datapath: &Datapath) {
    let v6 = (0..denied::COUNT).map(|n| Ipv6Net::new((0xfc00_u128 << 112 | u128::from(n) << 64).into(), 64));
    let v6 = v6.map(|net| IpNet::V6(net.expect("a length")));
    let v4 = denied::networks().map(|net| net.parse::<IpNet>().expect("a network"));
    datapath.deny_list().set(&DenyConfig::new(v4.chain(v6), [])).expect("the list is taken");
}

#[test]
fn programs_stay_small_and_their_cost_is_printed() {
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        for program in &datapath.report().programs {
            let verified = program.verified_instructions.expect("a kernel from 5.16 on says");
            let translated = program.translated_instructions.expect("root may read it");
            print(&format!("{}, verified", program.name), [verified.into()], "instructions");
            print(&format!("{}, translated", program.name), [translated.into()], "instructions");
            assert!(verified < INSTRUCTIONS_MAX && translated < INSTRUCTIONS_MAX, "{program:?}");
        }
        let v4 = |flags| Packet::tcp("192.0.2.1:40000", "198.51.100.7:80", flags);
        let v6 = |flags| Packet::tcp("[2001:db8::1]:40000", "[2001:db8::7]:80", flags);
        for packet in [v4(ACK), v6(ACK)] {
            datapath.flows().insert(packet.remote, packet.local, 1);
        }
        let receive = |(program, packet): &(TestProgram, Packet)| {
            datapath.heartbeat().expect("beats");
            let frame = packet.frame();
            let options = RunOptions { frame: &frame, repeat: REPEAT, live: None };
            datapath.test_run(*program, options).expect("runs").each
        };
        let ingress = |packet| (TestProgram::Ingress, packet);
        let elsewhere = Packet::tcp("192.0.2.1:40000", "198.51.100.7:22", ACK);
        let ways = [
            ("received, bare pass", (TestProgram::Bare, v4(ACK))),
            ("received, other port", ingress(elsewhere)),
            ("received, v4 with flow", ingress(v4(ACK))),
            ("received, v6 with flow", ingress(v6(ACK))),
            ("received, v4 SYN", ingress(v4(SYN))),
            ("received, v6 SYN", ingress(v6(SYN))),
        ];
        print_rounds(ROUNDS, &ways, receive);
        let share = NodeShare::open(&sandbox.bpffs()).expect("opens");
        // All clients would be taken without a hash.
        let most = ClientShare::of_fraction(1.0 - 1e-9).expect("a fraction");
        for (side, clients) in [("taken", most), ("left", ClientShare::NONE)] {
            // Also compares the time, unlike a share that does not expire.
            share.set(clients, Renewal::Caller);
            let [v4_syn, v6_syn] = ["v4", "v6"].map(|family| format!("share, {family} SYN {side}"));
            let flow = format!("share, v4 with flow, SYNs {side}");
            let ways = [
                (v4_syn.as_str(), ingress(v4(SYN))),
                (v6_syn.as_str(), ingress(v6(SYN))),
                (flow.as_str(), ingress(v4(ACK))),
            ];
            print_rounds(ROUNDS, &ways, receive);
        }
        share.set(ClientShare::ALL, Renewal::Process);
        let send = |packet: &Packet| {
            let frame = packet.frame();
            let options = TransmitOptions { frame: &frame, repeat: REPEAT, interface: 0, segments: 0, wire_bytes: 0 };
            datapath.test_transmit(options).expect("runs").each
        };
        let ways = [
            ("sent, other port", Packet::tcp("198.51.100.7:22", "192.0.2.1:40000", ACK)),
            ("sent, v4 with flow", Packet::tcp("198.51.100.7:80", "192.0.2.1:40000", ACK)),
            ("sent, v6 with flow", Packet::tcp("[2001:db8::7]:80", "[2001:db8::1]:40000", ACK)),
        ];
        print_rounds(ROUNDS, &ways, send);

        let start = Instant::now();
        deny(&datapath);
        print("deny list, 20,000 networks set", [start.elapsed().as_millis()], "ms");
        let denied = Packet::tcp(&format!("{}:40000", denied::address(7)), "198.51.100.7:80", ACK);
        let ways = [
            ("deny list, bare pass", (TestProgram::Bare, v4(ACK))),
            ("deny list, v4 denied", ingress(denied.clone())),
            ("deny list, v4 with flow", ingress(v4(ACK))),
            ("deny list, v6 with flow", ingress(v6(ACK))),
            ("deny list, v4 SYN", ingress(v4(SYN))),
            ("deny list, v6 SYN", ingress(v6(SYN))),
        ];
        print_rounds(ROUNDS, &ways, receive);
        // Treat every packet as the first of its sender.
        let mut changed: Array<_, u64> = Map::Array(sandbox.map(DENY_CHANGED)).try_into().expect("an array");
        let changed_ns = changed.get(&DENY_CHANGED_ALL, 0).expect("read");
        changed.set(DENY_CHANGED_ALL, 0, 0).expect("written");
        let ways = [
            ("deny list, v4 denied, not remembered", ingress(denied)),
            ("deny list, v4 with flow, not remembered", ingress(v4(ACK))),
        ];
        print_rounds(ROUNDS, &ways, receive);
        changed.set(DENY_CHANGED_ALL, changed_ns, 0).expect("written");

        // Far above any sender's rate, so that all packets pass.
        let endless = Some(PacketRate { per_second: NonZeroU32::MAX, burst: NonZeroU32::MAX });
        let limits = ClientLimits { syns: endless, packets: endless, is_dry_run: false };
        datapath.client_limits().set(limits).expect("limits");
        let ways = [
            ("full path, bare pass", (TestProgram::Bare, v4(ACK))),
            ("full path, v4 SYN", ingress(v4(SYN))),
            ("full path, v6 SYN", ingress(v6(SYN))),
        ];
        print_rounds(ROUNDS, &ways, receive);

        datapath.deny_list().set(&DenyConfig::default()).expect("the list is taken");
        datapath.client_limits().set(ClientLimits { syns: None, ..limits }).expect("limits");
        let ways = [
            ("limits, bare pass", (TestProgram::Bare, v4(ACK))),
            ("limits, v4 with flow", ingress(v4(ACK))),
            ("limits, v6 with flow", ingress(v6(ACK))),
        ];
        print_rounds(ROUNDS, &ways, receive);

        datapath.client_limits().set(ClientLimits::default()).expect("no limits");
        for workers in [2, 16, SLOTS_PER_PORT] {
            let port = SteeredPort { port: 80, proto: PROTO_TCP, first_slot: 0, workers, flags: 0, rewritten: None };
            datapath.set_ports(&[port]).expect("ports");
            datapath.worker_cells().iter().for_each(|cell| cell.open.store(5, Relaxed));
            let name = format!("received, v4 SYN, {workers} busy workers");
            print_rounds(ROUNDS, &[(name.as_str(), ingress(v4(SYN)))], receive);
        }

        let flows = datapath.flows();
        let start = Instant::now();
        for port in 1..=u16::MAX {
            flows.insert(([192, 0, 2, 2], port).into(), ([198, 51, 100, 7], 80).into(), 1);
        }
        print("flow insert", [start.elapsed().as_nanos() / u128::from(u16::MAX)], "ns");
        let start = Instant::now();
        let hosts = datapath.host_net().expect("host_net").len();
        print(&format!("host_net of {hosts} hosts"), [start.elapsed().as_micros()], "µs");
    });
}
