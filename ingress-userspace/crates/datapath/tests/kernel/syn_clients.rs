//! A real client through a SYN cookie of XDP: the stack accepts it, with the options that the client offered.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::fd::{AsFd as _, AsRawFd as _},
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use aya::maps::{Array, Map};
use ingress_common::{
    SynCookies, SynStamp, Total,
    flow::PROTO_TCP,
    map::{SYN_COOKIES, SYN_COOKIES_ONLY, SYN_STAMPS},
};
use ingress_datapath::{Datapath, Options, SteeredPort, XdpMode};
use nix::{
    libc,
    sched::{CloneFlags, unshare},
};

use crate::{
    sandbox::{Sandbox, ip, sandboxed},
    syn_cookies::{ALWAYS, sysctl},
};

const SIZE: usize = 10 << 20;
/// Bits of `tcpi_options` (`include/uapi/linux/tcp.h`).
const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const SCALE: u8 = 4;

/// Options of a connection, and the window scale of both sides: that of the peer, and the own one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Agreed {
    options: u8,
    scales: [u8; 2],
}

fn agreed(stream: &TcpStream) -> Agreed {
    let mut info = [0_u8; 8];
    let mut size = libc::socklen_t::try_from(info.len()).expect("small");
    // SAFETY: the descriptor is open, and the kernel writes at most so many bytes.
    let result = unsafe {
        libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut size)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    let [.., options, scales, _] = info;
    Agreed { options: options & (TIMESTAMPS | SACK | SCALE), scales: [scales & 0x0f, scales >> 4] }
}

/// Reads and sends as many bytes, and returns what was agreed. Each side does both.
fn exchange(mut stream: TcpStream) -> Agreed {
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
    let found = agreed(&stream);
    let mut other = stream.try_clone().expect("cloned");
    let sender = thread::spawn(move || {
        other.write_all(&vec![b'x'; SIZE]).expect("sent");
        other.shutdown(std::net::Shutdown::Write).expect("ended");
    });
    let mut received = Vec::new();
    stream.read_to_end(&mut received).expect("received");
    assert_eq!(received.len(), SIZE);
    sender.join().expect("sent");
    found
}

/// A node with one interface that answers every SYN, and its listener.
fn node(sandbox: &Sandbox) -> (Datapath, TcpListener) {
    ip("link add xk-a type veth peer name xk-b");
    ip("address add 198.51.100.7/24 dev xk-a");
    ip("address add 2001:db8::7/64 dev xk-a nodad");
    ip("link set xk-a up");
    ip("link set xk-b up");
    // The driver sends to an end with a program.
    let options =
        Options { syn_cookies: Some(ALWAYS), xdp_mode: XdpMode::Native, ..sandbox.options(&["xk-a", "xk-b"]) };
    let datapath = Datapath::open(&options).expect("opens");
    datapath.take_over().expect("takes over");
    let port = SteeredPort { port: 80, proto: PROTO_TCP, first_slot: 0, workers: 2, flags: 0, rewritten: None };
    datapath.set_ports(&[port]).expect("ports");
    let index = nix::net::if_::if_nametoindex("xk-a").expect("there");
    let addresses = ["198.51.100.7", "2001:db8::7"].map(|addr| (addr.parse().expect("an address"), index));
    datapath.set_node_addrs(&addresses).expect("addresses");
    let listener = TcpListener::bind("[::]:0").expect("listens");
    (0..2).for_each(|slot| datapath.register_listener(slot, listener.as_fd()).expect("registered"));
    datapath.syn_cookies().apply().expect("switched");
    (datapath, listener)
}

/// Runs a client in another namespace, and the server meanwhile. Returns the results of both.
fn serve<C: Send + 'static, S>(
    datapath: &Datapath,
    client: impl FnOnce() -> C + Send + 'static,
    server: impl FnOnce() -> S,
) -> (C, S) {
    let (asks, asked) = mpsc::channel();
    let (moves, moved) = mpsc::channel();
    let client = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("own namespace");
        asks.send(nix::unistd::gettid()).expect("asked");
        moved.recv().expect("moved");
        ip("link set lo up");
        ip("address add 198.51.100.9/24 dev xk-b");
        ip("address add 2001:db8::9/64 dev xk-b nodad");
        ip("link set xk-b up");
        client()
    });
    ip(&format!("link set xk-b netns {}", asked.recv().expect("asked")));
    datapath.heartbeat().expect("beats");
    moves.send(()).expect("moved");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                datapath.heartbeat().expect("beats");
                thread::sleep(Duration::from_millis(200));
            }
        });
        let served = server();
        let client = client.join();
        is_over.store(true, Relaxed);
        (client.expect("served"), served)
    })
}

/// Connects a client. Returns what client and server agreed on.
fn connect(datapath: &Datapath, listener: &TcpListener, address: &'static str) -> [Agreed; 2] {
    let client = move || exchange(TcpStream::connect(address).expect("connects"));
    let (client, server) = serve(datapath, client, || exchange(listener.accept().expect("accepts").0));
    [client, server]
}

#[track_caller]
fn check(datapath: &Datapath) {
    let totals = datapath.totals().expect("totals");
    let packets = |total| totals.get(total).packets;
    assert_eq!((packets(Total::SynCookieSent), packets(Total::SynCookieValid)), (1, 1));
    assert_eq!(packets(Total::SynCookieInvalid), 0, "no segment of the client is taken for one of the flood");
    assert_eq!((packets(Total::LookupDecided), packets(Total::Undecided)), (1, 0), "the chosen worker has it");
}

#[test]
fn a_client_with_a_cookie_gets_window_scaling_and_sack() {
    for address in ["198.51.100.7:80", "[2001:db8::7]:80"] {
        sandboxed(move |sandbox| {
            sysctl("tcp_syncookies", 2);
            sysctl("tcp_timestamps", 2);
            let (datapath, listener) = node(sandbox);
            let [client, server] = connect(&datapath, &listener, address);
            assert_eq!(client.options, TIMESTAMPS | SACK | SCALE, "{client:?}");
            assert_eq!(server.options, client.options);
            assert_eq!(client.scales, [server.scales[1], server.scales[0]], "both sides agree");
            check(&datapath);
        });
    }
}

#[test]
fn a_client_with_a_cookie_is_served_without_options_if_timestamps_are_random() {
    for address in ["198.51.100.7:80", "[2001:db8::7]:80"] {
        sandboxed(move |sandbox| {
            sysctl("tcp_syncookies", 2);
            sysctl("tcp_timestamps", 1);
            let (datapath, listener) = node(sandbox);
            let [client, server] = connect(&datapath, &listener, address);
            assert_eq!((client.options, server.options), (0, 0));
            check(&datapath);
        });
    }
}

/// The program takes the listeners for noted, and does not ask the kernel.
#[test]
fn a_listener_without_a_note_of_the_kernel_refuses_cookies() {
    sandboxed(|sandbox| {
        sysctl("tcp_syncookies", 2);
        let (datapath, _listener) = node(sandbox);
        let mut stamps: Array<_, SynStamp> = Map::Array(sandbox.map(SYN_STAMPS)).try_into().expect("an array");
        for slot in 0..2 {
            let listener = stamps.get(&slot, 0).expect("read").listener;
            let stamp = SynStamp { time_ns: ingress_datapath::monotonic_ns(), noted: listener, listener };
            stamps.set(slot, stamp, 0).expect("written");
        }
        let client = || {
            let mut stream = TcpStream::connect("198.51.100.7:80")?;
            stream.set_read_timeout(Some(Duration::from_secs(30)))?;
            stream.read(&mut [0])
        };
        let (found, ()) = serve(&datapath, client, || ());
        let error = found.expect_err("refused");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        let totals = datapath.totals().expect("totals");
        assert_eq!(totals.get(Total::SynCookieSent).packets, 1);
        assert_eq!(totals.get(Total::SynCookieValid).packets, 1);
    });
}

#[test]
fn the_stack_does_not_remember_the_window_scale_of_a_cookie() {
    sandboxed(|sandbox| {
        sysctl("tcp_syncookies", 2);
        sysctl("tcp_timestamps", 2);
        let (datapath, listener) = node(sandbox);
        let mut settings: Array<_, SynCookies> = Map::Array(sandbox.map(SYN_COOKIES)).try_into().expect("an array");
        let found = settings.get(&SYN_COOKIES_ONLY, 0).expect("an entry");
        let window_scale = found.window_scale - 1;
        settings.set(SYN_COOKIES_ONLY, SynCookies { window_scale, ..found }, 0).expect("written");
        let [client, server] = connect(&datapath, &listener, "198.51.100.7:80");
        let scales = [client.scales[0], server.scales[1]].map(u32::from);
        assert_eq!(scales, [window_scale, found.window_scale], "the client takes the offer, the stack its own");
    });
}
