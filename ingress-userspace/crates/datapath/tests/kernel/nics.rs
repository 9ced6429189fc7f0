//! Interfaces that appear, disappear, return and change names while a process runs, and interfaces with a foreign XDP
//! program: the attached programs, the pins, and that received packets are counted and judged.

use std::{
    fs,
    net::{SocketAddr, UdpSocket},
    os::fd::{AsFd as _, AsRawFd as _},
    time::Duration,
};

use aya::programs::links::{FdLink, PinnedLink};
use ingress_common::{
    Total,
    flow::{PROTO_TCP, PROTO_UDP},
    map::{NIC_GONE, NIC_OTHER},
    steer::{NIC_ABOVE, NIC_NATIVE, PORT_COUNT_ONLY},
};
use ingress_datapath::{
    Datapath, DenyConfig, Error, Hook, Interfaces, LinkState, NicReport, Options, Pinned, SteeredPort, XdpMode, unload,
};
use ingress_lab::until;
use nix::sched::{CloneFlags, setns, unshare};

use crate::{
    frames::serving_with,
    sandbox::{Sandbox, ip, named, sandboxed},
};

/// Creates an interface of this name, and its other end.
pub(crate) fn veth(name: &str, peer: &str) {
    ip(&format!("link add {name} type veth peer name {peer}"));
}

/// Makes `names` the interfaces with programs.
fn reconcile(datapath: &Datapath, names: &[&str]) {
    datapath.reconcile(&named(names)).expect("follows");
}

/// Returns each interface with its receive and transmit state.
fn states(datapath: &Datapath) -> Vec<(String, &'static str, &'static str)> {
    let state = |NicReport { name, state, transmit, .. }: NicReport| (name, state.as_str(), transmit.as_str());
    datapath.interfaces().into_iter().map(state).collect()
}

fn is(name: &str, receives: &'static str, transmits: &'static str) -> (String, &'static str, &'static str) {
    (name.to_owned(), receives, transmits)
}

/// Returns the names of the interfaces' pinned links.
pub(crate) fn pins(sandbox: &Sandbox) -> Vec<String> {
    let entries = fs::read_dir(sandbox.bpffs().join("v1/links")).expect("links");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"));
    let mut names: Vec<_> = names.filter(|name| name != "lookup").collect();
    names.sort();
    names
}

/// Returns the kernel's id of a pinned link's program.
pub(crate) fn program_id(sandbox: &Sandbox, name: &str) -> u32 {
    let link = PinnedLink::from_pin(sandbox.bpffs().join("v1/links").join(name)).expect("pinned");
    FdLink::from(link).info().expect("info").program_id()
}

/// Returns the kernel's id of a pinned link.
fn link_id(sandbox: &Sandbox, name: &str) -> u32 {
    let link = PinnedLink::from_pin(sandbox.bpffs().join("v1/links").join(name)).expect("pinned");
    FdLink::from(link).info().expect("info").id()
}

/// Returns the map `nics`, sorted.
pub(crate) fn nics(datapath: &Datapath) -> Vec<(u32, u32)> {
    let mut nics: Vec<_> =
        datapath.maps().nics().expect("nics").into_iter().map(|(index, nic)| (index, nic.mode)).collect();
    nics.sort_unstable();
    nics
}

fn index(datapath: &Datapath, name: &str) -> u32 {
    datapath.interfaces().iter().find(|nic| nic.name == name).expect("reported").index
}

#[test]
fn programs_attach_to_added_and_recreated_interfaces() {
    sandboxed(|sandbox| {
        veth("xk-a", "xk-b");
        let both = ["xk-a", "xk-c"];
        let datapath = Datapath::open(&sandbox.options(&both)).expect("one of them is enough");
        assert_eq!(states(&datapath), [is("xk-a", "native", "tcx"), is("xk-c", "absent", "off")]);
        let first = index(&datapath, "xk-a");
        let kept = link_id(sandbox, "xdp-xk-a");

        veth("xk-c", "xk-d");
        reconcile(&datapath, &both);
        assert_eq!(states(&datapath), [is("xk-a", "native", "tcx"), is("xk-c", "native", "tcx")]);
        assert_eq!(link_id(sandbox, "xdp-xk-a"), kept, "what is there is left alone");
        let second = index(&datapath, "xk-c");
        assert_eq!(nics(&datapath), [(first, NIC_NATIVE), (second, NIC_NATIVE)]);

        ip("link del xk-a");
        let detached = Pinned::open(&sandbox.bpffs()).expect("pins").links().expect("links");
        assert!(detached.iter().any(|link| matches!(link.hook, Hook::Xdp { .. }) && link.state == LinkState::Detached));
        reconcile(&datapath, &both);
        assert_eq!(states(&datapath), [is("xk-a", "absent", "off"), is("xk-c", "native", "tcx")]);
        assert_eq!(pins(sandbox), ["tc-out-xk-c", "xdp-xk-c"]);
        assert_eq!(nics(&datapath), [(second, NIC_NATIVE)]);

        veth("xk-a", "xk-b");
        reconcile(&datapath, &both);
        assert_eq!(states(&datapath), [is("xk-a", "native", "tcx"), is("xk-c", "native", "tcx")]);
        assert_ne!(index(&datapath, "xk-a"), first);

        reconcile(&datapath, &["xk-c"]);
        assert_eq!(pins(sandbox), ["tc-out-xk-c", "xdp-xk-c"], "one that is not meant any more");
        reconcile(&datapath, &[]);
        assert!(pins(sandbox).is_empty() && nics(&datapath).is_empty() && states(&datapath).is_empty());
    });
}

#[test]
fn an_interface_recreated_between_checks_gets_new_links() {
    sandboxed(|sandbox| {
        veth("xk-a", "xk-b");
        let datapath = Datapath::open(&sandbox.options(&["xk-a"])).expect("opens");
        let old = index(&datapath, "xk-a");
        ip("link del xk-a");
        veth("xk-a", "xk-b");
        reconcile(&datapath, &["xk-a"]);
        assert_eq!(states(&datapath), [is("xk-a", "native", "tcx")]);
        let new = index(&datapath, "xk-a");
        assert_ne!(new, old);
        let counted = datapath.maps().nic_net().expect("nic_net");
        assert_eq!(counted.keys().copied().collect::<Vec<_>>(), [NIC_OTHER, new, NIC_GONE]);
        let links = Pinned::open(&sandbox.bpffs()).expect("pins").links().expect("links");
        assert!(links.iter().all(|link| link.state == LinkState::Attached), "{links:?}");
    });
}

#[test]
fn links_survive_a_rename_of_their_interface() {
    sandboxed(|sandbox| {
        veth("xk-a", "xk-b");
        veth("xk-c", "xk-d");
        let datapath = Datapath::open(&sandbox.options(&["xk-a", "xk-c"])).expect("opens");
        let (a, c) = (link_id(sandbox, "xdp-xk-a"), link_id(sandbox, "tc-out-xk-c"));

        // A name with a dot, which no pin can have.
        ip("link set xk-a name xk.7");
        reconcile(&datapath, &["xk.7", "xk-c"]);
        assert_eq!(states(&datapath), [is("xk.7", "native", "tcx"), is("xk-c", "native", "tcx")]);
        assert_eq!(pins(sandbox), ["tc-out-xk-c", "tc-out-xk:7", "xdp-xk-c", "xdp-xk:7"]);
        assert_eq!(link_id(sandbox, "xdp-xk:7"), a, "the same link all the time");

        // The interfaces exchange their names.
        for command in ["set xk.7 name xk-e", "set xk-c name xk.7", "set xk-e name xk-c"] {
            ip(&format!("link {command}"));
        }
        reconcile(&datapath, &["xk.7", "xk-c"]);
        assert_eq!((link_id(sandbox, "xdp-xk-c"), link_id(sandbox, "tc-out-xk:7")), (a, c));
        assert_eq!(pins(sandbox).len(), 4);

        // The configured name no longer exists.
        ip("link set xk-c name xk-f");
        reconcile(&datapath, &["xk.7", "xk-c"]);
        assert_eq!(states(&datapath), [is("xk.7", "native", "tcx"), is("xk-c", "absent", "off")]);
        assert_eq!(pins(sandbox), ["tc-out-xk:7", "xdp-xk:7"]);
    });
}

#[test]
fn an_upper_interface_is_recorded_without_a_program() {
    sandboxed(|sandbox| {
        veth("xk-a", "xk-b");
        // A bridge stands in for a bond, which not every kernel has; the maps treat them alike.
        ip("link add xk-br type bridge");
        ip("link set xk-a master xk-br");
        let above = vec![nix::net::if_::if_nametoindex("xk-br").expect("an index")];
        let interfaces = Interfaces { above: above.clone(), ..named(&["xk-a"]) };
        let datapath = Datapath::open(&Options { interfaces, ..sandbox.options(&[]) }).expect("opens");
        let port = index(&datapath, "xk-a");
        assert_eq!(states(&datapath), [is("xk-a", "native", "tcx")]);
        assert_eq!(nics(&datapath), [(port, NIC_NATIVE), (above[0], NIC_ABOVE)]);
        assert_eq!(pins(sandbox), ["tc-out-xk-a", "xdp-xk-a"]);

        datapath.reconcile(&Interfaces { above, ..named(&[]) }).expect("follows");
        assert!(pins(sandbox).is_empty(), "its port has left");
        drop(datapath);
        let second = Datapath::open(&sandbox.options(&["xk-a"])).expect("opens");
        assert_eq!(nics(&second), [(port, NIC_NATIVE)]);
    });
}

#[test]
fn tcx_is_used_while_a_foreign_xdp_program_is_attached() {
    sandboxed(|sandbox| {
        veth("xk-a", "xk-b");
        let foreign = Options { bpffs: sandbox.bpffs().join("other"), ..sandbox.options(&["xk-a"]) };
        drop(Datapath::open(&foreign).expect("opens"));
        let datapath = Datapath::open(&sandbox.options(&["xk-a"])).expect("opens");
        assert_eq!(states(&datapath), [is("xk-a", "tcx", "tcx")]);
        assert_eq!(pins(sandbox), ["tc-in-xk-a", "tc-out-xk-a"]);
        let refusals = datapath.interfaces()[0].refusals.clone();
        assert!(matches!(refusals[..], [ref error] if matches!(**error, Error::Busy { .. })), "{refusals:?}");
        let kept = link_id(sandbox, "tc-in-xk-a");
        reconcile(&datapath, &["xk-a"]);
        assert_eq!(link_id(sandbox, "tc-in-xk-a"), kept);
        let seen = Pinned::open(&sandbox.bpffs()).expect("pins").links().expect("links");
        assert!(seen.iter().any(|link| link.hook == Hook::TcIn { interface: "xk-a".into() }), "{seen:?}");

        unload(&foreign.bpffs).expect("the other one goes");
        // The program may disappear a little later than its pins.
        let native = until("XDP to be free", || {
            reconcile(&datapath, &["xk-a"]);
            (states(&datapath) == [is("xk-a", "native", "tcx")]).then_some(())
        });
        native.expect("the better mode");
        assert_eq!(pins(sandbox), ["tc-out-xk-a", "xdp-xk-a"]);
        assert!(datapath.interfaces()[0].refusals.is_empty());
    });
}

/// Receives datagrams for port 443 on an interface that leads to another namespace.
fn receives_exactly(mode: XdpMode, how: &'static str, mtu: u32) {
    sandboxed(move |sandbox| {
        let node = fs::File::open("/proc/thread-self/ns/net").expect("opens");
        unshare(CloneFlags::CLONE_NEWNET).expect("another namespace");
        let client = fs::File::open("/proc/thread-self/ns/net").expect("opens");
        setns(node.as_fd(), CloneFlags::CLONE_NEWNET).expect("back");
        veth("xk-a", "xk-b");
        for command in ["addr add 198.51.100.7/24 dev xk-a", &format!("link set xk-a mtu {mtu} up")] {
            ip(command);
        }
        // The path goes through this process, because the namespace has no name.
        ip(&format!("link set xk-b netns /proc/{}/fd/{}", std::process::id(), client.as_raw_fd()));
        setns(client.as_fd(), CloneFlags::CLONE_NEWNET).expect("the client");
        for command in ["addr add 198.51.100.8/24 dev xk-b", &format!("link set xk-b mtu {mtu} up")] {
            ip(command);
        }
        let socket = UdpSocket::bind("198.51.100.8:40000").expect("bound");
        setns(node.as_fd(), CloneFlags::CLONE_NEWNET).expect("back");

        let datapath = Datapath::open(&Options { xdp_mode: mode, ..sandbox.options(&["xk-a"]) }).expect("opens");
        assert_eq!(states(&datapath), [is("xk-a", how, "tcx")]);
        datapath.take_over().expect("takes over");
        let port = |port, proto| SteeredPort {
            port,
            proto,
            first_slot: 0,
            workers: 0,
            flags: PORT_COUNT_ONLY,
            rewritten: None,
        };
        datapath.set_ports(&[port(443, PROTO_UDP), port(80, PROTO_TCP)]).expect("ports");
        datapath.set_node_addrs(&[("198.51.100.7".parse().expect("an address"), 1)]).expect("addresses");
        let server = UdpSocket::bind("198.51.100.7:443").expect("bound");
        server.set_read_timeout(Some(Duration::from_secs(20))).expect("set");

        let to: SocketAddr = "198.51.100.7:443".parse().expect("an address");
        let longest = usize::try_from(mtu).expect("small") - 28;
        let lengths = [1, 100, 1000, longest];
        let mut buffer = vec![0; 1 << 16];
        for length in lengths {
            socket.send_to(&vec![b'x'; length], to).expect("sent");
            assert_eq!(server.recv(&mut buffer).expect("arrives"), length);
        }
        let accepted = datapath.totals().expect("totals").get(Total::Accepted);
        let bytes = lengths.iter().map(|length| *length as u64 + 14 + 28).sum::<u64>();
        assert_eq!((accepted.packets, accepted.bytes), (4, bytes));
        let nic = datapath.maps().nic_net().expect("nic_net")[&index(&datapath, "xk-a")];
        assert_eq!((nic.rx_packets, nic.rx_bytes), (4, bytes));

        let denied = ["198.51.100.8/32".parse().expect("a network")];
        datapath.deny_list().set(&DenyConfig::new(denied, [])).expect("the list is taken");
        for _ in 0..3 {
            socket.send_to(b"no", to).expect("sent");
        }
        until("them to be dropped", || {
            (datapath.totals().expect("totals").get(Total::Denied).packets == 3).then_some(())
        })
        .expect("they are");
        datapath.deny_list().set(&DenyConfig::new([], [])).expect("the list is taken");
        socket.send_to(b"yes", to).expect("sent");
        assert_eq!(server.recv(&mut buffer).expect("arrives"), 3, "and nothing of what was denied");
    });
}

#[test]
fn received_packets_are_counted_and_filtered_by_tcx() {
    receives_exactly(XdpMode::Tcx, "tcx", 1500);
}

#[test]
fn received_packets_are_counted_and_filtered_in_the_driver() {
    receives_exactly(XdpMode::Native, "native", 1500);
}

#[test]
fn jumbo_frames_are_counted_in_full_in_the_driver() {
    receives_exactly(XdpMode::Native, "native", 9000);
}

#[test]
fn jumbo_frames_are_counted_in_full_by_tcx() {
    receives_exactly(XdpMode::Tcx, "tcx", 9000);
}

#[test]
fn a_bridge_falls_back_to_generic_xdp() {
    sandboxed(|sandbox| {
        ip("link add xk.1 type bridge");
        let datapath = serving_with(&sandbox.options(&["xk.1"]));
        assert_eq!(states(&datapath), [is("xk.1", "generic", "tcx")]);
        let refusals = datapath.interfaces()[0].refusals.clone();
        assert!(refusals.len() == 1 && !datapath.interfaces()[0].is_busy(), "{refusals:?}");
        assert_eq!(pins(sandbox), ["tc-out-xk:1", "xdp-xk:1"]);
        let again = Datapath::open(&sandbox.options(&["xk.1"])).expect("opens");
        assert_eq!(states(&again), [is("xk.1", "generic", "tcx")]);
        let removed = unload(&sandbox.bpffs()).expect("unloads");
        assert!(removed.iter().any(|path| path.ends_with("links/xdp-xk:1")), "{removed:?}");
    });
}
