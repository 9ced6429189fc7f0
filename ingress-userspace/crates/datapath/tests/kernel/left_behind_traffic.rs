//! Packets while processes with other modes start and end beside the owner: no datagram of a client is lost, and none of a
//! denied one arrives.

use std::{
    fs,
    net::UdpSocket,
    os::fd::{AsFd as _, AsRawFd as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use ingress_common::{flow::PROTO_UDP, steer::PORT_COUNT_ONLY};
use ingress_datapath::{Datapath, DenyConfig, Options, SteeredPort, XdpMode};
use nix::{
    sched::{CloneFlags, setns, unshare},
    sys::socket::{setsockopt, sockopt::RcvBufForce},
};

use crate::{
    nics::veth,
    sandbox::{Sandbox, ip, named, sandboxed},
};

const NODE: &str = "198.51.100.7:443";
const CLIENT: &str = "198.51.100.8:40000";
const DENIED: &str = "198.51.100.9:40000";
/// Time between two datagrams of a client.
const PACE: Duration = Duration::from_micros(50);
/// Room for all datagrams of a test, in bytes.
const ROOM: usize = 64 << 20;

/// Connects `xk-a` with an interface of another namespace. Returns the sockets of the node, a client and a denied client.
fn network() -> [UdpSocket; 3] {
    let netns = || fs::File::open("/proc/thread-self/ns/net").expect("opens");
    let enter = |namespace: &fs::File| setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET).expect("entered");
    let node = netns();
    unshare(CloneFlags::CLONE_NEWNET).expect("another namespace");
    let clients = netns();
    enter(&node);
    veth("xk-a", "xk-b");
    // The path goes through this process, because the namespace has no name.
    ip(&format!("link set xk-b netns /proc/{}/fd/{}", std::process::id(), clients.as_raw_fd()));
    ip("addr add 198.51.100.7/24 dev xk-a");
    ip("link set xk-a up");
    let server = UdpSocket::bind(NODE).expect("bound");
    setsockopt(&server, RcvBufForce, &ROOM).expect("set");
    enter(&clients);
    for address in ["198.51.100.8/24", "198.51.100.9/24"] {
        ip(&format!("addr add {address} dev xk-b"));
    }
    ip("link set xk-b up");
    let client = |address| {
        let socket = UdpSocket::bind(address).expect("bound");
        socket.connect(NODE).expect("connected");
        socket
    };
    let sockets = [server, client(CLIENT), client(DENIED)];
    enter(&node);
    sockets
}

fn options(sandbox: &Sandbox, xdp_mode: XdpMode) -> Options {
    Options { xdp_mode, ..sandbox.options(&["xk-a"]) }
}

/// Returns an owner that counts the packets for port 443 and denies one client.
fn owner(sandbox: &Sandbox, mode: XdpMode) -> Datapath {
    let datapath = Datapath::open(&options(sandbox, mode)).expect("opens");
    datapath.take_over().expect("takes over");
    let port =
        SteeredPort { port: 443, proto: PROTO_UDP, first_slot: 0, workers: 0, flags: PORT_COUNT_ONLY, rewritten: None };
    datapath.set_ports(&[port]).expect("ports");
    datapath.set_node_addrs(&[("198.51.100.7".parse().expect("an address"), 1)]).expect("addresses");
    let denied = ["198.51.100.9/32".parse().expect("a network")];
    datapath.deny_list().set(&DenyConfig::new(denied, [])).expect("the list is taken");
    datapath
}

#[test]
fn a_change_of_mode_loses_no_datagram_and_admits_no_denied_one() {
    use XdpMode::{Generic, Native, Off, Tcx};
    for (own, other) in [
        (Native, Native),
        (Native, Generic),
        (Generic, Native),
        (Native, Tcx),
        (Tcx, Native),
        (Tcx, Generic),
        (Tcx, Tcx),
        (Native, Off),
        (Tcx, Off),
    ] {
        sandboxed(move |sandbox| {
            let [server, client, denied] = network();
            let owner = owner(sandbox, own);
            let is_over = Arc::new(AtomicBool::new(false));
            let stop = Arc::clone(&is_over);
            let clients = thread::spawn(move || {
                let mut sent = 0_u64;
                while !stop.load(Relaxed) {
                    client.send(b"yes").expect("sent");
                    denied.send(b"no").expect("sent");
                    sent += 1;
                    thread::sleep(PACE);
                }
                client.send(b"last").expect("sent");
                sent
            });
            for _ in 0..2 {
                drop(Datapath::open(&options(sandbox, other)).expect("opens"));
                // Every process replaces the program of sk_lookup.
                assert!(owner.keep_programs(&named(&["xk-a"])).expect("the kernel lets it"));
            }
            is_over.store(true, Relaxed);
            let sent = clients.join().expect("they end");
            server.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
            let (mut buffer, mut arrived, mut leaked) = ([0; 8], 0_u64, 0_u64);
            loop {
                let length = server.recv(&mut buffer).expect("the last one arrives");
                match &buffer[..length] {
                    b"yes" => arrived += 1,
                    b"no" => leaked += 1,
                    _ => break,
                }
            }
            assert_eq!((arrived, leaked), (sent, 0), "{own:?} after {other:?}");
        });
    }
}
