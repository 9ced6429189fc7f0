//! `ingress_lookup` over loopback: real connections, and the counter of each possible path.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd as _,
};

use aya::maps::{HashMap, Map};
use ingress_common::{Handoff, Nic, Total, flow::PROTO_TCP, map::NICS, steer::CHOSEN_BY_XDP};
use ingress_datapath::{Claim, Datapath, Options, SteeredPort, flow_key};

use crate::{
    deny::deny,
    handoffs::Handoffs,
    sandbox::{detach, ip, named, open_link, sandboxed},
};

const NODE4: &str = "198.51.100.7:80";
const NODE6: &str = "[2001:db8::7]:80";

fn serving(options: &Options) -> Datapath {
    ip("addr add 198.51.100.7/32 dev lo");
    ip("addr add 2001:db8::7/128 dev lo nodad");
    let datapath = Datapath::open(options).expect("opens");
    datapath.take_over().expect("takes over");
    let port = SteeredPort { port: 80, proto: PROTO_TCP, first_slot: 4, workers: 2, flags: 0, rewritten: None };
    datapath.set_ports(&[port]).expect("ports");
    let addrs = [NODE4, NODE6].map(|addr| (addr.parse::<SocketAddr>().expect("an address").ip(), 1));
    datapath.set_node_addrs(&addrs).expect("addresses");
    datapath
}

fn lookups(datapath: &Datapath) -> [u64; 5] {
    let totals = datapath.totals().expect("totals");
    let events = [Total::LookupDecided, Total::LookupDefault, Total::Undecided, Total::SlotEmpty, Total::AssignFailed];
    events.map(|event| totals.get(event).packets)
}

/// Connects to `to` from a socket bound beforehand, so that its choice can be stored before the lookup.
fn connect(to: &str, before: impl FnOnce(SocketAddr)) -> std::io::Result<TcpStream> {
    let to: SocketAddr = to.parse().expect("an address");
    connect_from(to.ip(), to, before)
}

fn connect_from(from: IpAddr, to: SocketAddr, before: impl FnOnce(SocketAddr)) -> std::io::Result<TcpStream> {
    let domain = socket2::Domain::for_address(to);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    before(socket.local_addr()?.as_socket().expect("an address"));
    socket.connect(&to.into())?;
    Ok(socket.into())
}

#[test]
fn connections_reach_the_chosen_or_the_default_slot() {
    sandboxed(|sandbox| {
        let datapath = serving(&sandbox.options(&[]));
        let listeners = [(); 2].map(|()| TcpListener::bind("[::]:0").expect("listens"));
        for (slot, listener) in (4..).zip(&listeners) {
            datapath.register_listener(slot, listener.as_fd()).expect("registered");
        }
        let accepted_by = |listener: &TcpListener, from: &TcpStream| {
            let (stream, peer) = listener.accept().expect("accepts");
            assert_eq!(peer.port(), from.local_addr().expect("an address").port());
            assert_eq!(stream.local_addr().expect("an address").port(), 80, "the port the client asked for");
        };
        let mut handoffs = Handoffs::pinned(sandbox);
        for node in [NODE4, NODE6] {
            for slot in [4, 5] {
                let time_ns = datapath.maps().alive(0).expect("alive").heartbeat_ns;
                let choice = Handoff { slot, chosen_by: CHOSEN_BY_XDP, time_ns };
                let stream = connect(node, |from| {
                    let key = flow_key(from, node.parse().expect("an address"));
                    handoffs.lay(key, choice);
                });
                accepted_by(&listeners[slot as usize - 4], &stream.expect("connects"));
            }
        }
        assert_eq!(lookups(&datapath), [4, 0, 0, 0, 0]);
        // One listener in both slots: wherever the default rule goes.
        datapath.register_listener(5, listeners[0].as_fd()).expect("registered");
        for node in [NODE4, NODE6] {
            accepted_by(&listeners[0], &connect(node, |_| ()).expect("connects"));
        }
        assert_eq!(lookups(&datapath), [4, 2, 0, 0, 0]);
        let mut nics: HashMap<_, u32, Nic> = Map::HashMap(sandbox.map(NICS)).try_into().expect("a hash");
        nics.insert(1, Nic { mode: 1, flags: 0 }, 0).expect("loopback has the program, as it seems");
        // The node itself is no client of an interface, whatever interface its route names …
        accepted_by(&listeners[0], &connect(NODE4, |_| ()).expect("connects"));
        assert_eq!(lookups(&datapath), [4, 3, 0, 0, 0]);
        // … but the packets of any other client there should have been seen.
        let stranger = connect_from([127, 0, 0, 9].into(), NODE4.parse().expect("an address"), |_| ());
        accepted_by(&listeners[0], &stranger.expect("connects"));
        assert_eq!(lookups(&datapath), [4, 3, 1, 0, 0]);
        // An expired choice is not followed, and does not mean that XDP missed the packet.
        let node: SocketAddr = NODE4.parse().expect("an address");
        let late = connect_from([127, 0, 0, 9].into(), node, |from| {
            let choice = Handoff { slot: 5, chosen_by: CHOSEN_BY_XDP, time_ns: 1 };
            handoffs.lay(flow_key(from, node), choice);
        });
        accepted_by(&listeners[0], &late.expect("connects"));
        assert_eq!(lookups(&datapath), [4, 3, 1, 0, 0]);
        assert_eq!(datapath.totals().expect("totals").get(Total::LookupLate).packets, 1);
    });
}

#[test]
fn empty_slot_refuses_at_once_and_wrong_family_is_counted() {
    sandboxed(|sandbox| {
        let datapath = serving(&sandbox.options(&[]));
        let refused = |node| connect(node, |_| ()).expect_err("refused").kind() == ErrorKind::ConnectionRefused;
        assert!(refused(NODE4) && refused(NODE6));
        assert_eq!(lookups(&datapath), [0, 0, 0, 2, 0]);
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        for slot in [4, 5] {
            datapath.register_listener(slot, listener.as_fd()).expect("registered");
        }
        assert!(connect(NODE4, |_| ()).is_ok());
        assert!(refused(NODE6), "a socket of IPv4 cannot take it");
        assert_eq!(lookups(&datapath), [0, 1, 0, 2, 1]);
        drop(listener);
        assert!(refused(NODE4), "slots empty themselves");
        assert_eq!(lookups(&datapath), [0, 1, 0, 3, 1]);
    });
}

#[test]
fn the_owner_answers_while_a_process_without_sk_lookup_starts_and_dies() {
    sandboxed(|sandbox| {
        let owner = serving(&sandbox.options(&[]));
        let listener = TcpListener::bind("[::]:0").expect("listens");
        for slot in [4, 5] {
            owner.register_listener(slot, listener.as_fd()).expect("registered");
        }
        let bound = || Datapath::open(&Options { lookup: false, ..sandbox.options(&[]) }).expect("opens");
        let starting = bound();
        assert!(connect(NODE4, |_| ()).is_ok(), "it has not taken the node over");
        drop(starting);
        assert!(connect(NODE4, |_| ()).is_ok(), "it has died");
        let successor = bound();
        let _reader = open_link(sandbox, "lookup");
        let equip = || successor.renew_programs(&named(&[])).map(drop);
        successor.take_over_with(Claim::Any, equip).expect("takes over");
        let refused = connect(NODE4, |_| ()).expect_err("no socket is bound to the port").kind();
        assert_eq!(refused, ErrorKind::ConnectionRefused);
        assert_eq!(lookups(&owner), [0, 2, 0, 0, 0]);
    });
}

#[test]
fn connections_arrive_again_after_the_link_was_detached() {
    sandboxed(|sandbox| {
        let owner = serving(&sandbox.options(&[]));
        let listener = TcpListener::bind("[::]:0").expect("listens");
        for slot in [4, 5] {
            owner.register_listener(slot, listener.as_fd()).expect("registered");
        }
        detach(sandbox, "lookup");
        assert_eq!(connect(NODE4, |_| ()).expect_err("no program").kind(), ErrorKind::ConnectionRefused);
        assert!(owner.keep_programs(&named(&[])).expect("the kernel lets it"));
        assert!(connect(NODE4, |_| ()).is_ok());
    });
}

/// No program sees packets received on loopback here, just as none sees through a hidden port.
#[test]
fn denied_clients_are_also_dropped_by_sk_lookup() {
    sandboxed(|sandbox| {
        let datapath = serving(&sandbox.options(&[]));
        let listener = TcpListener::bind("[::]:0").expect("listens");
        for slot in [4, 5] {
            datapath.register_listener(slot, listener.as_fd()).expect("registered");
        }
        let from = |addr: [u8; 4]| connect_from(addr.into(), NODE4.parse().expect("an address"), |_| ());
        assert!(from([127, 0, 0, 9]).is_ok());
        deny(&datapath, "127.0.0.8/29", "127.0.0.10/32");
        let refused = from([127, 0, 0, 9]).expect_err("denied").kind();
        assert_eq!(refused, ErrorKind::ConnectionRefused);
        assert!(from([127, 0, 0, 10]).is_ok(), "a hop");
        assert!(from([127, 0, 0, 1]).is_ok(), "nobody who is listed");
        assert_eq!(lookups(&datapath), [0, 3, 0, 0, 0]);
        assert_eq!(datapath.totals().expect("totals").get(Total::LookupDenied).packets, 1);
    });
}

#[test]
fn other_ports_and_addresses_are_left_to_the_stack() {
    sandboxed(|sandbox| {
        let datapath = serving(&sandbox.options(&[]));
        let listener = TcpListener::bind("0.0.0.0:0").expect("listens");
        for slot in [4, 5] {
            datapath.register_listener(slot, listener.as_fd()).expect("registered");
        }
        let elsewhere = connect("127.0.0.1:80", |_| ()).expect_err("not an address of the node");
        assert_eq!(elsewhere.kind(), ErrorKind::ConnectionRefused);
        assert!(connect("198.51.100.7:81", |_| ()).is_err(), "not a steered port");
        assert_eq!(lookups(&datapath), [0; 5]);
    });
}

#[test]
fn the_debug_log_shows_decisions_and_is_off_by_default() {
    sandboxed(|sandbox| {
        let mut datapath = serving(&Options { debug_log: true, ..sandbox.options(&[]) });
        let mut log = datapath.debug_log().expect("asked for");
        assert!(connect(NODE4, |_| ()).is_err());
        let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_writer(Lines::default);
        tracing::subscriber::with_default(subscriber.with_ansi(false).finish(), || log.drain());
        assert!(LINES.with_borrow(|lines| lines.contains("lookup: [::ffff:198.51.100.7]:")));
        let mut quiet = Datapath::open(&sandbox.options(&[])).expect("opens");
        assert!(quiet.debug_log().is_none());
    });
}

thread_local! {
    static LINES: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
}

/// Collects the log of this thread.
#[derive(Default)]
struct Lines;

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LINES.with_borrow_mut(|lines| lines.push_str(&String::from_utf8_lossy(bytes)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
