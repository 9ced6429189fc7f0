//! Packets for addresses that moved to this node: those of connections that the previous holder has are sent to it, all
//! others stay.

use std::{
    io::Read as _,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd as _, AsRawFd as _},
};

use aya::maps::{Array, Map};
use ingress_common::{
    Alive, Total,
    map::{ALIVE, ALIVE_CURRENT},
    steer::MOVE_NS,
};
use ingress_datapath::{Datapath, HeldAddress, MovedAddress, RunOptions, TestProgram, monotonic_ns};
use ingress_lab::until;
use nix::libc;

use crate::{
    figures::print_rounds,
    measure::{REPEAT, ROUNDS, serving},
    packets::{ACK, FIN, Packet, RST, SYN},
    sandbox::{Sandbox, ip, sandboxed},
    verdicts::{TCX_NEXT, TCX_REDIRECT, XDP_PASS, XDP_TX},
};

/// Destination and source of the frames of [`Packet`].
const OURS: [u8; 6] = [2; 6];
const PREVIOUS: [u8; 6] = [2, 0, 0, 0, 0, 8];
const LOOPBACK: u32 = 1;
const NODE: [&str; 2] = ["198.51.100.7", "2001:db8::7"];
const MOVED: [&str; 2] = ["198.51.100.80", "2001:db8::80"];
const ANNOUNCED: [&str; 2] = ["198.51.100.81", "2001:db8::81"];
const CLIENT: [&str; 2] = ["192.0.2.1:40000", "[2001:db8::1]:40000"];
const PROGRAMS: [TestProgram; 3] = [TestProgram::Ingress, TestProgram::Linear, TestProgram::Stack];
const MINUTE_NS: u64 = 60_000_000_000;

fn at(address: &str) -> String {
    SocketAddr::new(address.parse().expect("an address"), 80).to_string()
}

fn moved(until_ns: u64, mac: [u8; 6], interface: u32) -> Vec<MovedAddress> {
    let moved = |address: &str| {
        let address = address.parse().expect("an address");
        MovedAddress { address, interface, mac, until_ns }
    };
    MOVED.map(moved).into()
}

fn hold(datapath: &Datapath, is_announced: bool, is_moved: bool) {
    let own = NODE.map(|address| (address.parse().expect("an address"), LOOPBACK));
    let held = |address: &str, is_announced, is_moved| {
        let address = address.parse().expect("an address");
        HeldAddress { address, is_announced, is_moved }
    };
    let held: Vec<_> = MOVED
        .iter()
        .map(|address| held(address, is_announced, is_moved))
        .chain(ANNOUNCED.iter().map(|address| held(address, true, false)))
        .collect();
    datapath.set_addresses(&own, &held).expect("addresses");
}

/// A node to which addresses have moved.
fn taking_over(sandbox: &Sandbox) -> Datapath {
    let datapath = serving(sandbox);
    hold(&datapath, true, true);
    datapath.set_macs(&[(LOOPBACK, OURS)]).expect("an Ethernet address");
    datapath.set_moves(&moved(monotonic_ns() + MOVE_NS, PREVIOUS, LOOPBACK)).expect("moves");
    datapath
}

/// Returns the offset of the TTL or hop limit, and whether the frame is of IPv4.
fn hops(frame: &[u8]) -> (usize, bool) {
    let mut at = 12;
    while matches!(frame[at..at + 2], [0x81, 0] | [0x88, 0xa8]) {
        at += 4;
    }
    let is_v4 = frame[at..at + 2] == [8, 0];
    (at + 2 + if is_v4 { 8 } else { 7 }, is_v4)
}

/// Runs a program on a frame. Returns whether the frame was forwarded, and checks that exactly one verdict and no lookup
/// counts it.
#[track_caller]
fn run(datapath: &Datapath, program: TestProgram, frame: &[u8]) -> bool {
    let before = datapath.totals().expect("totals");
    let result = datapath.test_run(program, RunOptions { frame, repeat: 1, live: None }).expect("runs");
    let after = datapath.totals().expect("totals");
    let (passed, sent) = if program == TestProgram::Stack { (TCX_NEXT, TCX_REDIRECT) } else { (XDP_PASS, XDP_TX) };
    let is_forwarded = result.verdict == sent;
    assert!(is_forwarded || result.verdict == passed, "{program:?}: {}", result.verdict);
    let mut left = frame.to_vec();
    if is_forwarded {
        left[..12].copy_from_slice(&[PREVIOUS, OURS].concat());
        let (at, is_v4) = hops(&left);
        left[at] -= 1;
        if is_v4 {
            // RFC 1141: one from the TTL is 0x100 more in the checksum, which is 0 in these frames.
            assert_eq!(left[at + 2..at + 4], [0, 0]);
            left[at + 2] = 1;
        }
    }
    assert_eq!(result.frame, left, "{program:?}");
    for ((total, name, before), (_, _, after)) in before.iter().zip(after.iter()) {
        let packets = after.packets - before.packets;
        let is_counted = if total.is_verdict() {
            packets
                == u64::from(is_forwarded == (total == Total::Forwarded) && (is_forwarded || total == Total::Accepted))
        } else {
            packets == 0 || matches!(total, Total::Decided | Total::HeartbeatStale)
        };
        assert!(is_counted, "{program:?}: {packets} of {name}, forwarded: {is_forwarded}");
    }
    is_forwarded
}

#[track_caller]
fn check(datapath: &Datapath, frame: &[u8], is_forwarded: bool, name: &str) {
    for program in PROGRAMS {
        assert_eq!(run(datapath, program, frame), is_forwarded, "{program:?}: {name}");
    }
}

#[track_caller]
fn check_both(datapath: &Datapath, addresses: [&str; 2], flags: u8, is_forwarded: bool, name: &str) {
    for (client, address) in CLIENT.iter().zip(addresses) {
        for tags in [&[][..], &[0x8100], &[0x88a8, 0x8100]] {
            let packet = Packet { tags: tags.to_vec(), ..Packet::tcp(client, &at(address), flags) };
            check(datapath, &packet.frame(), is_forwarded, name);
        }
    }
}

#[test]
fn only_segments_of_unknown_connections_to_moved_addresses_are_forwarded() {
    sandboxed(|sandbox| {
        let datapath = taking_over(sandbox);
        for flags in [ACK, RST, ACK | FIN, ACK | SYN] {
            check_both(&datapath, MOVED, flags, true, "unknown");
        }
        check_both(&datapath, MOVED, SYN, false, "a request");
        check_both(&datapath, ANNOUNCED, ACK, false, "announced all along");
        check_both(&datapath, NODE, ACK, false, "an address of an interface");
        let mut frame = Packet::tcp(CLIENT[0], &at(MOVED[0]), ACK).frame();
        frame[..6].copy_from_slice(&PREVIOUS);
        check(&datapath, &frame, false, "for another machine");
        frame[..12].copy_from_slice(&[OURS, PREVIOUS].concat());
        check(&datapath, &frame, false, "from the previous holder");
    });
}

#[test]
fn a_segment_without_hops_stays() {
    sandboxed(|sandbox| {
        let datapath = taking_over(sandbox);
        for (client, address) in CLIENT.iter().zip(MOVED) {
            let mut frame = Packet::tcp(client, &at(address), ACK).frame();
            let (hops, _) = hops(&frame);
            for (left, is_forwarded) in [(0, false), (1, false), (2, true), (255, true)] {
                frame[hops] = left;
                check(&datapath, &frame, is_forwarded, &format!("{left} hops"));
            }
        }
    });
}

#[test]
fn nothing_is_forwarded_after_the_end_of_the_move() {
    sandboxed(|sandbox| {
        let datapath = taking_over(sandbox);
        let stays = |name| check_both(&datapath, MOVED, ACK, false, name);
        let later = monotonic_ns() + MOVE_NS;
        datapath.set_moves(&moved(monotonic_ns(), PREVIOUS, LOOPBACK)).expect("moves");
        stays("the time is over");
        datapath.set_moves(&moved(later, PREVIOUS, LOOPBACK + 1)).expect("moves");
        stays("another interface");
        datapath.set_moves(&[]).expect("no moves");
        stays("no entry");
        datapath.set_moves(&moved(later, PREVIOUS, LOOPBACK)).expect("moves");
        assert_eq!(datapath.moves().expect("readable"), moved(later, PREVIOUS, LOOPBACK));
        hold(&datapath, true, false);
        stays("no flag");
        hold(&datapath, false, true);
        stays("not announced");
        hold(&datapath, true, true);
        check_both(&datapath, MOVED, ACK, true, "again");
        datapath.set_macs(&[]).expect("no addresses");
        stays("no Ethernet address");
        datapath.set_macs(&[(LOOPBACK, OURS)]).expect("an Ethernet address");
        let mut alive: Array<_, Alive> = Map::Array(sandbox.map(ALIVE)).try_into().expect("an array");
        let now = alive.get(&ALIVE_CURRENT, 0).expect("an entry");
        alive.set(ALIVE_CURRENT, Alive { heartbeat_ns: 1, ..now }, 0).expect("aged");
        stays("a process that hangs");
    });
}

/// Opens a connection to a moved address on this node. Returns both ends.
fn connection(listener: &TcpListener, address: &str) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(at(address)).expect("connects");
    let (server, _) = listener.accept().expect("accepts");
    (client, server)
}

/// Makes this node a server of its moved addresses, with one listener in all slots.
fn serving_connections(sandbox: &Sandbox) -> (Datapath, TcpListener) {
    for address in MOVED {
        ip(&format!("route add local {address} dev lo"));
    }
    let datapath = taking_over(sandbox);
    let listener = TcpListener::bind("[::]:0").expect("listens");
    (0..2).for_each(|slot| datapath.register_listener(slot, listener.as_fd()).expect("registered"));
    (datapath, listener)
}

fn of(client: &TcpStream, flags: u8) -> Packet {
    let [from, to] = [client.local_addr(), client.peer_addr()].map(|address| address.expect("an address").to_string());
    Packet::tcp(&from, &to, flags)
}

#[test]
fn connections_of_this_node_stay() {
    sandboxed(|sandbox| {
        let (datapath, listener) = serving_connections(sandbox);
        for address in MOVED {
            let (client, server) = connection(&listener, address);
            for flags in [ACK, ACK | FIN, RST] {
                check(&datapath, &of(&client, flags).frame(), false, "open here");
            }
            let packet = of(&client, ACK);
            // Without a wait for further segments.
            for end in [&client, &server] {
                socket2::SockRef::from(end).set_linger(Some(std::time::Duration::ZERO)).expect("set");
            }
            drop((client, server));
            check(&datapath, &packet.frame(), true, "aborted here");
        }
    });
}

/// Returns `true` if a connection of this client's port, of which the test has no other, is in the state TIME_WAIT.
fn is_in_time_wait(client: u16) -> bool {
    // Those of the sandbox: `/proc/net` has those of the main thread.
    ["tcp", "tcp6"].into_iter().any(|name| {
        let table = std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).expect("readable");
        table.lines().skip(1).any(|row| {
            let mut fields = row.split_whitespace().skip(2);
            let (remote, state) = (fields.next().expect("a remote address"), fields.next().expect("a state"));
            remote.ends_with(&format!(":{client:04X}")) && state == "06"
        })
    })
}

#[test]
fn only_connections_that_ended_since_the_move_stay() {
    sandboxed(|sandbox| {
        let (datapath, listener) = serving_connections(sandbox);
        for address in MOVED {
            let (mut client, server) = connection(&listener, address);
            let [packet, reset] = [ACK, RST].map(|flags| of(&client, flags).frame());
            let port = client.local_addr().expect("an address").port();
            assert!(!is_in_time_wait(port), "of the connection before");
            // The server ends first, so it keeps the tuple and the client may use it again.
            drop(server);
            assert_eq!(client.read(&mut [0]).expect("its end"), 0);
            drop(client);
            until("TIME_WAIT", || is_in_time_wait(port).then_some(())).expect("it ends");
            check(&datapath, &packet, true, "perhaps a connection of the previous holder with the same port");
            check(&datapath, &reset, false, "it may end TIME_WAIT");
            datapath.set_moves(&moved(monotonic_ns() + MOVE_NS - 2 * MINUTE_NS, PREVIOUS, LOOPBACK)).expect("moves");
            check(&datapath, &packet, false, "ended here after the move");
            datapath.set_moves(&moved(monotonic_ns() + MOVE_NS, PREVIOUS, LOOPBACK)).expect("moves");
        }
    });
}

/// Returns the numbers that the next segment of a client has: its own, and the one that it confirms.
fn numbers(client: &TcpStream) -> [u32; 2] {
    let set = |option: libc::c_int, value: libc::c_int| {
        let size = libc::socklen_t::try_from(size_of_val(&value)).expect("small");
        // SAFETY: the descriptor is open, and the value has as many bytes.
        let result =
            unsafe { libc::setsockopt(client.as_raw_fd(), libc::IPPROTO_TCP, option, (&raw const value).cast(), size) };
        assert_eq!(result, 0, "option {option}: {}", std::io::Error::last_os_error());
    };
    set(libc::TCP_REPAIR, 1);
    // The queues of sent and of received bytes (`include/uapi/linux/tcp.h`).
    let numbers = [2, 1].map(|queue| {
        set(libc::TCP_REPAIR_QUEUE, queue);
        let mut number = 0_u32;
        let mut size = libc::socklen_t::try_from(size_of_val(&number)).expect("small");
        // SAFETY: as above.
        let result = unsafe {
            libc::getsockopt(
                client.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_QUEUE_SEQ,
                (&raw mut number).cast(),
                &raw mut size,
            )
        };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        number
    });
    set(libc::TCP_REPAIR, 0);
    numbers
}

/// A handshake by cookie leaves no socket before its last segment. Kernels before Linux 5.18 cannot check it.
#[test]
fn the_confirmation_of_a_syn_cookie_stays() {
    sandboxed(|sandbox| {
        std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2").expect("cookies for all");
        let (datapath, listener) = serving_connections(sandbox);
        for address in MOVED {
            let (client, server) = connection(&listener, address);
            let [number, confirmed] = numbers(&client);
            let frame = of(&client, ACK).frame();
            for end in [&client, &server] {
                socket2::SockRef::from(end).set_linger(Some(std::time::Duration::ZERO)).expect("set");
            }
            drop((client, server));
            let with = |confirmed: u32| {
                let mut frame = frame.clone();
                let transport = frame.len() - 20;
                frame[transport + 4..transport + 8].copy_from_slice(&number.to_be_bytes());
                frame[transport + 8..transport + 12].copy_from_slice(&confirmed.to_be_bytes());
                frame
            };
            for program in [TestProgram::Ingress, TestProgram::Stack] {
                assert!(!run(&datapath, program, &with(confirmed)), "{program:?}: {address}");
                assert!(run(&datapath, program, &with(confirmed.wrapping_add(1 << 8))), "{program:?}: {address}");
            }
        }
    });
}

#[test]
fn the_cost_of_moved_addresses_is_printed() {
    sandboxed(|sandbox| {
        let (datapath, listener) = serving_connections(sandbox);
        let (client, _server) = connection(&listener, MOVED[0]);
        let (client6, _server6) = connection(&listener, MOVED[1]);
        let ways = [
            ("moves, bare pass", (TestProgram::Bare, Packet::tcp(CLIENT[0], &at(NODE[0]), ACK))),
            ("moves, v4 of another address", (TestProgram::Ingress, Packet::tcp(CLIENT[0], &at(NODE[0]), ACK))),
            (
                "moves, v4 of an announced address",
                (TestProgram::Ingress, Packet::tcp(CLIENT[0], &at(ANNOUNCED[0]), ACK)),
            ),
            ("moves, v4 SYN", (TestProgram::Ingress, Packet::tcp(CLIENT[0], &at(MOVED[0]), SYN))),
            ("moves, v4 of this node", (TestProgram::Ingress, of(&client, ACK))),
            ("moves, v6 of this node", (TestProgram::Ingress, of(&client6, ACK))),
        ];
        let each = |program: TestProgram, packet: &Packet, repeat| {
            let frame = packet.frame();
            datapath.test_run(program, RunOptions { frame: &frame, repeat, live: None }).expect("runs").each
        };
        print_rounds(ROUNDS, &ways, |(program, packet)| {
            datapath.heartbeat().expect("beats");
            each(*program, packet, REPEAT)
        });
        // A forwarded frame is for another machine, so each run gets a new one; the clock is then part of the time.
        let ways = [
            ("moves, bare pass, single", (TestProgram::Bare, Packet::tcp(CLIENT[0], &at(NODE[0]), ACK))),
            ("moves, v4 forwarded, single", (TestProgram::Ingress, Packet::tcp(CLIENT[0], &at(MOVED[0]), ACK))),
            ("moves, v6 forwarded, single", (TestProgram::Ingress, Packet::tcp(CLIENT[1], &at(MOVED[1]), ACK))),
        ];
        datapath.heartbeat().expect("beats");
        print_rounds(5000, &ways, |(program, packet)| each(*program, packet, 1));
    });
}
