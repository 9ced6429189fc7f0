//! Cost of packets that the pool of addresses does not concern, on the same program and maps: without a pool, while the node
//! announces addresses, and while it forwards packets of these. `cargo xtask bench kernel` judges the differences.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ingress_datapath::{Datapath, HeldAddress, MovedAddress, RunOptions, TestProgram, monotonic_ns};

use crate::{
    announce::{LOOPBACK, OURS, question},
    figures::print_rounds,
    measure::serving,
    packets::{ACK, Packet, SYN},
    sandbox::sandboxed,
};

/// Addresses of the pool in each family.
const ADDRESSES: u8 = 32;
/// Short turns, so that other load on the machine affects all states alike.
const ROUNDS: usize = 40;
const REPEAT: u32 = 50_000;
const HOUR_NS: u64 = 3_600_000_000_000;

/// State of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pool {
    Absent,
    Announced,
    Moved,
}

impl Pool {
    const ALL: [(Self, &str); 3] =
        [(Self::Absent, "without a pool"), (Self::Announced, "announcing"), (Self::Moved, "forwarding")];

    fn set(self, datapath: &Datapath) {
        let own = ["198.51.100.7", "2001:db8::7"].map(|address| (address.parse().expect("an address"), LOOPBACK));
        let addresses: Vec<IpAddr> = (0..ADDRESSES)
            .flat_map(|number| {
                let v6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 1, number.into());
                [Ipv4Addr::new(198, 51, 100, 100 + number).into(), v6.into()]
            })
            .filter(|_| self != Self::Absent)
            .collect();
        let is_moved = self == Self::Moved;
        let held = |address: &IpAddr| HeldAddress { address: *address, is_announced: true, is_moved };
        datapath.set_addresses(&own, &addresses.iter().map(held).collect::<Vec<_>>()).expect("addresses");
        let until_ns = monotonic_ns() + HOUR_NS;
        let moved = |address: &IpAddr| MovedAddress {
            address: *address,
            interface: LOOPBACK,
            mac: [2, 0, 0, 0, 0, 8],
            until_ns,
        };
        let moves: Vec<_> = addresses.iter().filter(|_| is_moved).map(moved).collect();
        datapath.set_moves(&moves).expect("moves");
    }
}

#[test]
fn the_cost_of_other_packets_is_printed_for_each_state_of_the_pool() {
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        datapath.set_macs(&[(LOOPBACK, OURS)]).expect("an Ethernet address");
        let tcp = |to: &str, flags| Packet::tcp("192.0.2.1:40000", to, flags);
        let v6 = Packet::tcp("[2001:db8::1]:40000", "[2001:db8::7]:80", ACK);
        for packet in [&tcp("198.51.100.7:80", ACK), &v6] {
            datapath.flows().insert(packet.remote, packet.local, 1);
        }
        let frames = [
            ("TCP for another port", tcp("198.51.100.7:22", ACK).frame()),
            ("TCP for another machine", tcp("203.0.113.9:80", ACK).frame()),
            ("v4 with flow", tcp("198.51.100.7:80", ACK).frame()),
            ("v6 with flow", v6.frame()),
            ("v4 SYN", tcp("198.51.100.7:80", SYN).frame()),
            ("ARP for another", question("198.51.100.9", 0)),
            ("NDP for another", question("2001:db8::9", 0)),
        ];
        for (frame, bytes) in &frames {
            let ways = Pool::ALL.map(|(pool, state)| (format!("pool, {frame}, {state}"), pool));
            let ways: Vec<_> = ways.iter().map(|(name, pool)| (name.as_str(), *pool)).collect();
            print_rounds(ROUNDS, &ways, |pool| {
                pool.set(&datapath);
                datapath.heartbeat().expect("beats");
                let options = RunOptions { frame: bytes, repeat: REPEAT, live: None };
                datapath.test_run(TestProgram::Ingress, options).expect("runs").each
            });
        }
    });
}
