//! The share of the clients: real connections over loopback, to our listener or to a plain one on the public port, which
//! stands for that of nginx.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd as _,
    thread,
    time::{Duration, Instant},
};

use aya::maps::{Array, Map};
use ingress_common::{
    Handoff, Share, Total,
    flow::{PROTO_TCP, v4_mapped},
    map::{SHARE, SHARE_ONLY},
    share::{SHARE_KEPT, SHARE_WATCHED, place},
    steer::{LEFT_BY_SHARE, NO_SLOT},
};
use ingress_datapath::{ClientShare, Datapath, Error, NodeShare, Options, Renewal, SteeredPort, flow_key};
use nix::time::{ClockId, clock_gettime};

use crate::{
    handoffs::Handoffs,
    sandbox::{Sandbox, ip, sandboxed},
};

mod renewal;

const NODE4: &str = "198.51.100.7:80";
const NODE6: &str = "[2001:db8::7]:80";
/// What each listener answers.
const OURS: u8 = b'o';
const NGINX: u8 = b'n';
const PATIENCE: Duration = Duration::from_secs(20);

/// A node with a plain listener on the public port, and no process of ours.
fn beside_nginx() {
    ip("addr add 198.51.100.7/32 dev lo");
    ip("addr add 2001:db8::7/128 dev lo nodad");
    // So that a client may have any of these addresses.
    ip("-6 route add local 2001:db8:1000::/36 dev lo");
    answer(TcpListener::bind("[::]:80").expect("listens on the public port"), NGINX);
}

/// Takes the node over with one listener, which is returned with the datapath.
fn taken_over(options: &Options) -> (Datapath, TcpListener) {
    let datapath = Datapath::open(options).expect("opens");
    datapath.take_over().expect("takes over");
    let listener = TcpListener::bind("[::]:0").expect("listens");
    datapath.register_listener(4, listener.as_fd()).expect("registered");
    datapath.set_ports(&[port(None)]).expect("ports");
    let addrs = [NODE4, NODE6].map(|addr| (address(addr).ip(), 1));
    datapath.set_node_addrs(&addrs).expect("addresses");
    (datapath, listener)
}

fn serving(options: &Options) -> Datapath {
    let (datapath, listener) = taken_over(options);
    answer(listener, OURS);
    datapath
}

fn port(rewritten: Option<u16>) -> SteeredPort {
    SteeredPort { port: 80, proto: PROTO_TCP, first_slot: 4, workers: 1, flags: 0, rewritten }
}

/// Accepts connections, and answers each byte with `name`. Ends with the test.
fn answer(listener: TcpListener, name: u8) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                while let Ok(1) = stream.read(&mut [0]) {
                    if stream.write_all(&[name]).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn clients() -> Vec<IpAddr> {
    let v4 = (0..150_u8).map(|n| IpAddr::from([127, 7, n % 3, n + 1]));
    let v6 = (0..60_u128).map(|n| Ipv6Addr::from((0x2001_0db8_1000_u128 << 80) + (n << 64) + n + 1).into());
    v4.chain(v6).collect()
}

fn connect(client: IpAddr) -> TcpStream {
    connect_then(client, |_| ())
}

/// Connects to the node from a socket that is bound to `client`, after `before` has seen the address of the socket.
fn connect_then(client: IpAddr, before: impl FnOnce(SocketAddr)) -> TcpStream {
    let node = address(if client.is_ipv4() { NODE4 } else { NODE6 });
    let socket = socket2::Socket::new(socket2::Domain::for_address(node), socket2::Type::STREAM, None).expect("one");
    if client.is_ipv6() {
        socket.set_freebind_v6(true).expect("any local address");
    }
    socket.bind(&SocketAddr::new(client, 0).into()).expect("bound");
    before(socket.local_addr().expect("an address").as_socket().expect("of IP"));
    socket.connect_timeout(&node.into(), PATIENCE).expect("connects");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream
}

/// Returns the listener behind a connection.
fn side(mut stream: &TcpStream) -> u8 {
    let mut answer = [0];
    stream.write_all(b"?").and_then(|()| stream.read_exact(&mut answer)).expect("answered");
    answer[0]
}

fn side_of(client: IpAddr) -> u8 {
    side(&connect(client))
}

fn expected(client: IpAddr, share: ClientShare) -> u8 {
    let octets = match client {
        IpAddr::V4(v4) => v4_mapped(v4.octets()),
        IpAddr::V6(v6) => v6.octets(),
    };
    if f64::from(place(&octets)) < share.fraction() * 32_768.0 { OURS } else { NGINX }
}

fn percent(percent: u8) -> ClientShare {
    ClientShare::of_fraction(f64::from(percent) / 100.0).expect("a fraction")
}

fn set(sandbox: &Sandbox, share: ClientShare) {
    NodeShare::open(&sandbox.bpffs()).expect("opens").set(share, Renewal::Process);
}

fn packets<const N: usize>(datapath: &Datapath, totals: [Total; N]) -> [u64; N] {
    let read = datapath.totals().expect("totals");
    totals.map(|total| read.get(total).packets)
}

fn now_s() -> u32 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a time").tv_sec();
    u32::try_from(now).expect("a machine younger than 136 years")
}

/// Puts an entry into the map, like a process that did so in the past.
fn lay(sandbox: &Sandbox, share: Share) {
    let mut map: Array<_, Share> = Map::Array(sandbox.map(SHARE)).try_into().expect("an array");
    map.set(SHARE_ONLY, share, 0).expect("laid");
}

fn laid(sandbox: &Sandbox) -> Share {
    let map: Array<_, Share> = Map::Array(sandbox.map(SHARE)).try_into().expect("an array");
    map.get(&SHARE_ONLY, 0).expect("read")
}

fn by_host(datapath: &Datapath) -> u64 {
    datapath.host_net().expect("read").iter().map(|host| host.rx_packets).sum()
}

/// With the program on loopback and without it, each client goes to its side, twice, and the counters add up.
fn each_client_goes_to_its_side(interfaces: &'static [&str]) {
    sandboxed(move |sandbox| {
        beside_nginx();
        let datapath = serving(&sandbox.options(interfaces));
        let clients = clients();
        assert!(clients.iter().all(|client| side_of(*client) == OURS), "without a share all are taken");
        let mut served_before = 0;
        for share in [0, 10, 50, 100] {
            set(sandbox, percent(share));
            let events = [
                Total::Decided,
                Total::Left,
                Total::LookupDecided,
                Total::LookupDefault,
                Total::LookupLeft,
                Total::SlotEmpty,
            ];
            let before = packets(&datapath, events);
            let mut served = 0;
            for client in &clients {
                for _ in 0..2 {
                    datapath.heartbeat().expect("beats");
                    let found = side_of(*client);
                    assert_eq!(char::from(found), char::from(expected(*client, percent(share))), "{share} % {client}");
                    served += u64::from(found == OURS);
                }
            }
            assert!(served >= served_before, "a larger share takes the clients of a smaller one");
            served_before = served;
            let after = packets(&datapath, events);
            let [decided, left, lookup_decided, default, lookup_left, empty] =
                std::array::from_fn(|event| after[event] - before[event]);
            let all = 2 * clients.len() as u64;
            if interfaces.is_empty() {
                assert_eq!([decided, left, lookup_decided, empty], [0; 4]);
                assert_eq!((default, lookup_left), (served, all - served), "{share} %");
            } else {
                assert_eq!(decided + left, all, "{share} %");
                assert_eq!((decided, left), (served, all - served), "{share} %");
                assert_eq!(lookup_decided + default + lookup_left, all);
            }
        }
        assert_eq!(served_before, 2 * clients.len() as u64, "100 % are all");
        // The last packets may arrive between the two reads.
        let deadline = Instant::now() + PATIENCE;
        while by_host(&datapath) != packets(&datapath, [Total::Accepted])[0] {
            assert!(Instant::now() < deadline, "each packet counts for one host, those for nginx for host 0");
            thread::sleep(Duration::from_millis(20));
        }
    });
}

#[test]
fn each_client_goes_to_its_side_by_xdp() {
    each_client_goes_to_its_side(&["lo"]);
}

#[test]
fn each_client_goes_to_its_side_by_lookup() {
    each_client_goes_to_its_side(&[]);
}

#[test]
fn addresses_of_one_customer_are_one_client() {
    sandboxed(|sandbox| {
        beside_nginx();
        let _datapath = serving(&sandbox.options(&["lo"]));
        set(sandbox, percent(50));
        for network in 0..8_u128 {
            let base = (0x2001_0db8_1000_u128 << 80) + (network << 64);
            let sides: Vec<u8> = (1..5_u128).map(|n| side_of(Ipv6Addr::from(base + (n << 40) + n).into())).collect();
            assert!(sides.iter().all(|side| *side == sides[0]), "{network}: {sides:?}");
        }
    });
}

#[test]
fn open_connections_survive_any_change_of_the_share() {
    sandboxed(|sandbox| {
        beside_nginx();
        let _datapath = serving(&sandbox.options(&["lo"]));
        let mut open = Vec::new();
        for share in [100, 0, 10, 100, 50, 0] {
            set(sandbox, percent(share));
            for (stream, is_on) in &open {
                assert_eq!(side(stream), *is_on, "stays where it is at {share} %");
            }
            for client in clients().into_iter().step_by(20) {
                let stream = connect(client);
                let is_on = side(&stream);
                assert_eq!(is_on, expected(client, percent(share)));
                open.push((stream, is_on));
            }
        }
    });
}

/// The process died without a trace of it in the maps: its socket may still be in its slot, or no longer.
#[test]
fn clients_go_back_without_any_process() {
    sandboxed(|sandbox| {
        beside_nginx();
        let (datapath, listener) = taken_over(&sandbox.options(&["lo"]));
        set(sandbox, ClientShare::ALL);
        drop(datapath);
        let client = [127, 7, 0, 1].into();
        let hanging = connect(client);
        hanging.set_read_timeout(Some(Duration::from_millis(50))).expect("set");
        let mut read = &hanging;
        read.write_all(b"?").expect("sent");
        assert!(read.read(&mut [0]).is_err(), "a hung process takes the connection, and does not answer");
        set(sandbox, ClientShare::NONE);
        assert!(clients().into_iter().all(|client| side_of(client) == NGINX));
        set(sandbox, ClientShare::ALL);
        drop(listener);
        assert!(clients().into_iter().all(|client| side_of(client) == NGINX), "an empty slot leaves all");
    });
}

#[test]
fn a_handshake_ends_on_the_side_where_it_began() {
    sandboxed(|sandbox| {
        beside_nginx();
        let datapath = serving(&sandbox.options(&[]));
        let mut handoffs = Handoffs::pinned(sandbox);
        set(sandbox, ClientShare::ALL);
        let fresh = datapath.maps().alive(0).expect("alive").heartbeat_ns;
        for (time_ns, expect) in [(fresh, NGINX), (1, OURS)] {
            let stream = connect_then([127, 7, 0, 1].into(), |from| {
                let left = Handoff { slot: NO_SLOT, chosen_by: LEFT_BY_SHARE, time_ns };
                handoffs.lay(flow_key(from, address(NODE4)), left);
            });
            assert_eq!(side(&stream), expect, "{time_ns}");
        }
    });
}

#[test]
fn the_first_share_of_a_node_is_an_option() {
    sandboxed(|sandbox| {
        beside_nginx();
        let client = [127, 7, 0, 1].into();
        let options = Options { initial_share: ClientShare::NONE, ..sandbox.options(&["lo"]) };
        let first = serving(&options);
        assert_eq!(side_of(client), NGINX);
        set(sandbox, ClientShare::ALL);
        drop(first);
        let second = serving(&options);
        assert_eq!(side_of(client), OURS, "a share that was set outlives processes");
        // A roll-back to a version without a share, and the update after it.
        drop(second);
        std::fs::remove_file(sandbox.bpffs().join("v1/maps").join(SHARE)).expect("removed");
        let error = NodeShare::open(&sandbox.bpffs()).expect_err("no share");
        assert!(matches!(error, Error::NoShare), "{error}");
        let _third = serving(&sandbox.options(&["lo"]));
        assert_eq!(side_of(client), OURS, "no share means all clients");
        let share = NodeShare::open(&sandbox.bpffs()).expect("opens").get();
        assert_eq!((share.effective(), share.is_set), (ClientShare::ALL, true));
    });
}

/// A process opens the node long before it can serve, such as while it waits for the cluster.
#[test]
fn the_first_share_begins_with_the_owner() {
    sandboxed(|sandbox| {
        let options = Options { initial_share: percent(10), ..sandbox.options(&["lo"]) };
        let datapath = Datapath::open(&options).expect("opens");
        let share = NodeShare::open(&sandbox.bpffs()).expect("opens");
        assert!(!share.get().is_set, "the end of a share would not wait");
        let now = now_s();
        datapath.take_over().expect("takes over");
        assert_eq!(share.get().share, percent(10));
        assert!(laid(sandbox).expires_s >= now + 300, "{:?}", laid(sandbox));
        lay(sandbox, Share { expires_s: now, ..laid(sandbox) });
        datapath.take_over().expect("takes over");
        assert_eq!(share.get().effective(), ClientShare::NONE, "an ended share is not begun anew");
    });
}

#[test]
fn rewritten_ports_take_all_clients() {
    sandboxed(|sandbox| {
        beside_nginx();
        let datapath = serving(&sandbox.options(&[]));
        set(sandbox, ClientShare::NONE);
        let client = IpAddr::from(Ipv4Addr::new(127, 7, 0, 1));
        assert_eq!(side_of(client), NGINX);
        datapath.set_ports(&[port(Some(10_080))]).expect("ports");
        assert_eq!(side_of(client), OURS);
    });
}
