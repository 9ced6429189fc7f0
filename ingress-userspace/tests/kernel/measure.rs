//! What the programs cost: instructions the verifier walks, and nanoseconds per packet beside a program that does nothing.

use std::time::{Duration, Instant};

use ingress_common::{flow::PROTO_TCP, map::HOSTS_DEFAULT};
use ingress_userspace::datapath::{
    Datapath, DenyEntries, Options, RunOptions, SteeredPort, TestProgram, TransmitOptions,
};
use ipnet::{IpNet, Ipv4Net};

use crate::{
    packets::{ACK, Packet, SYN},
    sandbox::sandboxed,
};

const ROUNDS: usize = 8;
const REPEAT: u32 = 200_000;
/// Networks in the deny list.
const DENIED: u32 = 10_000;
/// Of the million that the kernel allows; far below, so that growth is noticed. `ingress_tc_out` has the parser twice.
const INSTRUCTIONS_MAX: u32 = 60_000;

#[test]
fn programs_stay_small_and_their_cost_is_printed() {
    sandboxed(|sandbox| {
        let options = Options { host_capacity: HOSTS_DEFAULT, measure: true, ..sandbox.options(&[]) };
        let datapath = Datapath::open(&options).expect("opens");
        datapath.take_over().expect("takes over");
        for program in &datapath.report().programs {
            let instructions = program.verified_instructions.expect("a kernel from 5.16 on says");
            println!("{:<24} {instructions:>7} instructions verified", program.name);
            assert!(instructions < INSTRUCTIONS_MAX, "{}: {instructions}", program.name);
        }
        datapath
            .set_ports(&[SteeredPort { port: 80, proto: PROTO_TCP, first_slot: 0, workers: 2, flags: 0 }])
            .expect("ports");
        let addrs = ["198.51.100.7", "2001:db8::7"].map(|addr| (addr.parse().expect("an address"), 1));
        datapath.set_node_addrs(&addrs).expect("addresses");
        let v4 = |flags| Packet::tcp("192.0.2.1:40000", "198.51.100.7:80", flags);
        let v6 = |flags| Packet::tcp("[2001:db8::1]:40000", "[2001:db8::7]:80", flags);
        for packet in [v4(ACK), v6(ACK)] {
            datapath.flows().insert(packet.remote, packet.local, 1);
        }
        let other = Packet::tcp("192.0.2.1:40000", "198.51.100.7:22", ACK);
        let cases = [
            ("bare pass", TestProgram::Bare, v4(ACK)),
            ("other port", TestProgram::Ingress, other),
            ("v4 with flow", TestProgram::Ingress, v4(ACK)),
            ("v6 with flow", TestProgram::Ingress, v6(ACK)),
            ("v4 SYN, worker chosen", TestProgram::Ingress, v4(SYN)),
            ("v6 SYN, worker chosen", TestProgram::Ingress, v6(SYN)),
        ];
        let mut best = [Duration::MAX; 6];
        for _ in 0..ROUNDS {
            for (best, (_, program, packet)) in best.iter_mut().zip(&cases) {
                datapath.heartbeat().expect("beats");
                let frame = packet.frame();
                let result = datapath.test_run(*program, RunOptions { frame: &frame, repeat: REPEAT }).expect("runs");
                *best = result.each.min(*best);
            }
        }
        for (best, (name, ..)) in best.iter().zip(&cases) {
            println!("{name:<24} {:>7} ns per packet", best.as_nanos());
        }
        let sent = |from: &str, to: &str| {
            let frame = Packet::tcp(from, to, ACK).frame();
            let options = TransmitOptions { frame: &frame, repeat: REPEAT, interface: 0, segments: 0, wire_bytes: 0 };
            (0..ROUNDS).map(|_| datapath.test_transmit(options).expect("runs").each).min().unwrap_or_default()
        };
        for (name, from, to) in [
            ("sent, other port", "198.51.100.7:22", "192.0.2.1:40000"),
            ("v4 sent, with flow", "198.51.100.7:80", "192.0.2.1:40000"),
            ("v6 sent, with flow", "[2001:db8::7]:80", "[2001:db8::1]:40000"),
        ] {
            println!("{name:<24} {:>7} ns per packet", sent(from, to).as_nanos());
        }
        let net = |n: u32| IpNet::V4(Ipv4Net::new((0x0a00_0000 + (n << 8)).into(), 24).expect("a length"));
        let start = Instant::now();
        datapath.deny_list().set(&DenyEntries::new((0..DENIED).map(net), [])).expect("the list is taken");
        println!("{:<24} {:>7} ms for {DENIED} networks", "deny list", start.elapsed().as_millis());
        let denied = Packet::tcp("10.1.2.3:40000", "198.51.100.7:80", ACK);
        for (name, packet) in [("v4 denied", denied), ("v4 with flow, not denied", v4(ACK))] {
            let frame = packet.frame();
            let run = || {
                datapath.heartbeat().expect("beats");
                datapath.test_run(TestProgram::Ingress, RunOptions { frame: &frame, repeat: REPEAT }).expect("runs")
            };
            let best = (0..ROUNDS).map(|_| run().each).min().unwrap_or_default();
            println!("{name:<24} {:>7} ns per packet", best.as_nanos());
        }
        let flows = datapath.flows();
        let start = Instant::now();
        for port in 1..=u16::MAX {
            flows.insert(([192, 0, 2, 2], port).into(), ([198, 51, 100, 7], 80).into(), 1);
        }
        println!("{:<24} {:>7} ns", "flow insert", start.elapsed().as_nanos() / u128::from(u16::MAX));
        let start = Instant::now();
        let hosts = datapath.host_net().expect("host_net").len();
        println!("{:<24} {:>7} µs for {hosts} hosts", "host_net", start.elapsed().as_micros());
    });
}
