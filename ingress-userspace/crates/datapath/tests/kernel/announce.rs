//! Questions for the link-layer addresses of held addresses: answered by the announcer, dropped by other nodes, and left
//! to the stack for all other addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use aya::maps::{Array, Map};
use ingress_common::{
    Alive, Total,
    map::{ALIVE, ALIVE_CURRENT},
};
use ingress_datapath::{Datapath, HeldAddress, RunOptions, TestProgram};

use crate::{
    figures::print_rounds,
    measure::{REPEAT, ROUNDS, serving},
    packets::{ACK, Packet},
    sandbox::{Sandbox, ip, named, sandboxed},
    verdicts::{TCX_DROP, TCX_NEXT, TCX_REDIRECT, XDP_DROP, XDP_PASS, XDP_TX},
};

const ASKER: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// The address of loopback, on which test runs receive.
pub(crate) const OURS: [u8; 6] = [2, 0, 0, 0, 0, 7];
pub(crate) const LOOPBACK: u32 = 1;
/// Runs with a frame each, done within the time that a heartbeat counts for.
const SINGLE_RUNS: usize = 5000;
const SENDER4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const SENDER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const NODE: [&str; 2] = ["198.51.100.7", "2001:db8::7"];
const ANNOUNCED: [&str; 2] = ["198.51.100.80", "2001:db8::80"];
const HELD: [&str; 2] = ["198.51.100.81", "2001:db8::81"];
const FOREIGN: [&str; 2] = ["198.51.100.9", "2001:db8::9"];

/// Makes the addresses known, and returns the node.
fn announcing(sandbox: &Sandbox) -> Datapath {
    let datapath = serving(sandbox);
    let own = NODE.map(|addr| (addr.parse().expect("an address"), LOOPBACK));
    let held = |addr: &&str, is_announced| {
        let address = addr.parse().expect("an address");
        HeldAddress { address, is_announced, is_moved: false }
    };
    let held: Vec<_> =
        ANNOUNCED.iter().map(|addr| held(addr, true)).chain(HELD.iter().map(|addr| held(addr, false))).collect();
    datapath.set_addresses(&own, &held).expect("addresses");
    datapath.set_macs(&[(LOOPBACK, OURS)]).expect("an Ethernet address");
    datapath
}

/// The question for an address, behind VLAN tags.
pub(crate) fn question(target: &str, tags: usize) -> Vec<u8> {
    let mut frame = [[0xff; 6], ASKER].concat();
    (0..tags).for_each(|_| frame.extend([0x81, 0, 0, 7]));
    match target.parse().expect("an address") {
        IpAddr::V4(target) => {
            frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
            frame.extend(ASKER);
            frame.extend(SENDER4.octets());
            frame.extend([0; 6]);
            frame.extend(target.octets());
            // Ethernet's smallest frame.
            frame.resize(frame.len().max(60), 0);
        }
        IpAddr::V6(target) => {
            let group: Ipv6Addr = "ff02::1:ff00:0".parse().expect("an address");
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 58, 255]);
            frame.extend(SENDER6.octets());
            frame.extend((group.to_bits() | target.to_bits() & 0x00ff_ffff).to_be_bytes());
            frame.extend([135, 0, 0, 0, 0, 0, 0, 0]);
            frame.extend(target.octets());
            frame.extend([1, 1]);
            frame.extend(ASKER);
        }
    }
    frame
}

/// The answer to [`question`].
fn answer(target: &str, tags: usize) -> Vec<u8> {
    let mut frame = [ASKER, OURS].concat();
    (0..tags).for_each(|_| frame.extend([0x81, 0, 0, 7]));
    match target.parse().expect("an address") {
        IpAddr::V4(target) => {
            frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
            frame.extend(OURS);
            frame.extend(target.octets());
            frame.extend(ASKER);
            frame.extend(SENDER4.octets());
            frame.resize(frame.len().max(60), 0);
        }
        IpAddr::V6(target) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 58, 255]);
            frame.extend(target.octets());
            frame.extend(SENDER6.octets());
            let message = frame.len();
            frame.extend([136, 0, 0, 0, 0x60, 0, 0, 0]);
            frame.extend(target.octets());
            frame.extend([2, 1]);
            frame.extend(OURS);
            let pseudo =
                [&target.octets()[..], &SENDER6.octets(), &[0, 0, 0, 32, 0, 0, 0, 58], &frame[message..]].concat();
            let sum: u32 = pseudo.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).expect("folded");
            frame[message + 2..message + 4].copy_from_slice(&sum.to_be_bytes());
        }
    }
    frame
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Passed,
    Dropped,
    Answered,
}

const PROGRAMS: [TestProgram; 3] = [TestProgram::Ingress, TestProgram::Linear, TestProgram::Stack];

#[track_caller]
fn check(datapath: &Datapath, frame: &[u8], fate: Fate, counter: Total, left: &[u8]) {
    for program in PROGRAMS {
        let before = datapath.totals().expect("totals");
        let result = datapath.test_run(program, RunOptions { frame, repeat: 1, live: None }).expect("runs");
        let after = datapath.totals().expect("totals");
        let verdicts = if program == TestProgram::Stack {
            [(TCX_NEXT, Fate::Passed), (TCX_DROP, Fate::Dropped), (TCX_REDIRECT, Fate::Answered)]
        } else {
            [(XDP_PASS, Fate::Passed), (XDP_DROP, Fate::Dropped), (XDP_TX, Fate::Answered)]
        };
        let found = verdicts.iter().find(|(verdict, _)| *verdict == result.verdict).map(|(_, fate)| *fate);
        assert_eq!(found, Some(fate), "{program:?}: verdict {}", result.verdict);
        assert_eq!(result.frame, left, "{program:?}");
        for ((total, name, before), (_, _, after)) in before.iter().zip(after.iter()) {
            let packets = u64::from(total == counter);
            assert_eq!(after.packets - before.packets, packets, "{program:?}: {name}");
            assert_eq!(after.bytes - before.bytes, packets * frame.len() as u64, "{program:?}: bytes of {name}");
        }
    }
}

#[test]
fn only_the_announcer_answers_and_other_addresses_are_left_to_the_stack() {
    sandboxed(|sandbox| {
        let datapath = announcing(sandbox);
        for tags in 0..=2 {
            for address in ANNOUNCED {
                let asked = question(address, tags);
                check(&datapath, &asked, Fate::Answered, Total::Announced, &answer(address, tags));
            }
            for address in HELD {
                let asked = question(address, tags);
                check(&datapath, &asked, Fate::Dropped, Total::Unannounced, &asked);
            }
            for address in [NODE, FOREIGN].concat() {
                let asked = question(address, tags);
                let counter = if address.contains(':') { Total::OtherProtocol } else { Total::NotIp };
                check(&datapath, &asked, Fate::Passed, counter, &asked);
            }
        }
        let mut announcement = question(ANNOUNCED[0], 0);
        announcement.copy_within(38..42, 28);
        check(&datapath, &announcement, Fate::Passed, Total::NotIp, &announcement);
    });
}

#[test]
fn a_node_that_hangs_or_has_no_ethernet_address_keeps_quiet() {
    sandboxed(|sandbox| {
        let datapath = announcing(sandbox);
        let quiet = |datapath: &Datapath| {
            for address in ANNOUNCED {
                let asked = question(address, 0);
                check(datapath, &asked, Fate::Dropped, Total::Unannounced, &asked);
            }
        };
        let mut alive: Array<_, Alive> = Map::Array(sandbox.map(ALIVE)).try_into().expect("an array");
        let now = alive.get(&ALIVE_CURRENT, 0).expect("an entry");
        alive.set(ALIVE_CURRENT, Alive { heartbeat_ns: 1, ..now }, 0).expect("aged");
        quiet(&datapath);
        datapath.heartbeat().expect("beats");
        check(&datapath, &question(ANNOUNCED[0], 0), Fate::Answered, Total::Announced, &answer(ANNOUNCED[0], 0));
        datapath.set_macs(&[]).expect("no addresses");
        quiet(&datapath);
    });
}

#[test]
fn addresses_of_interfaces_are_not_held() {
    sandboxed(|sandbox| {
        let datapath = announcing(sandbox);
        let address: IpAddr = ANNOUNCED[0].parse().expect("an address");
        let held = |address| HeldAddress { address, is_announced: true, is_moved: false };
        let other: IpAddr = ANNOUNCED[1].parse().expect("an address");
        datapath.set_addresses(&[(address, LOOPBACK)], &[held(address), held(other)]).expect("addresses");
        assert_eq!(datapath.maps().held_addresses().expect("readable"), [held(other)]);
        let asked = question(ANNOUNCED[0], 0);
        check(&datapath, &asked, Fate::Passed, Total::NotIp, &asked);
        datapath.set_node_addrs(&[]).expect("no addresses");
        assert!(datapath.maps().held_addresses().expect("readable").is_empty());
    });
}

#[test]
fn neighbours_are_told_only_of_announced_addresses() {
    sandboxed(|sandbox| {
        ip("link add xk-a type veth peer name xk-b");
        ip("link set xk-a up");
        ip("link set xk-b up");
        let datapath = announcing(sandbox);
        // Its driver sends to an end with a program.
        datapath.reconcile(&named(&["xk-a", "xk-b"])).expect("attached");
        let index = nix::net::if_::if_nametoindex("xk-a").expect("there");
        datapath.set_macs(&[(index, OURS)]).expect("an Ethernet address");
        let announced = || datapath.totals().expect("totals").get(Total::Announced).packets;
        for (count, address) in (1..).zip(ANNOUNCED) {
            datapath.tell_neighbours(address.parse().expect("an address"), index).expect("sent");
            assert_eq!(announced(), count);
        }
        for address in HELD {
            datapath.tell_neighbours(address.parse().expect("an address"), index).expect("run");
        }
        assert_eq!(announced(), 2, "another node announces these");
    });
}

#[test]
fn the_cost_of_questions_is_printed() {
    sandboxed(|sandbox| {
        let datapath = announcing(sandbox);
        let tcp = Packet::tcp("192.0.2.1:40000", "198.51.100.7:22", ACK).frame();
        let ways = [
            ("announce, bare pass", (TestProgram::Bare, tcp.clone())),
            ("announce, other port", (TestProgram::Ingress, tcp)),
            ("announce, ARP for another", (TestProgram::Ingress, question(FOREIGN[0], 0))),
            ("announce, ARP dropped", (TestProgram::Ingress, question(HELD[0], 0))),
            ("announce, NDP for another", (TestProgram::Ingress, question(FOREIGN[1], 0))),
            ("announce, NDP dropped", (TestProgram::Ingress, question(HELD[1], 0))),
        ];
        print_rounds(ROUNDS, &ways, |(program, frame)| {
            datapath.heartbeat().expect("beats");
            datapath.test_run(*program, RunOptions { frame, repeat: REPEAT, live: None }).expect("runs").each
        });
        // An answer is no question, so each run gets a new frame; the clock is then part of the time.
        let ways = [
            ("announce, bare pass, single", (TestProgram::Bare, question(FOREIGN[0], 0))),
            ("announce, ARP for another, single", (TestProgram::Ingress, question(FOREIGN[0], 0))),
            ("announce, ARP answered, single", (TestProgram::Ingress, question(ANNOUNCED[0], 0))),
            ("announce, NDP answered, single", (TestProgram::Ingress, question(ANNOUNCED[1], 0))),
        ];
        datapath.heartbeat().expect("beats");
        print_rounds(SINGLE_RUNS, &ways, |(program, frame)| {
            datapath.test_run(*program, RunOptions { frame, repeat: 1, live: None }).expect("runs").each
        });
    });
}
