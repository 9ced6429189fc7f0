//! A second process on the node: state that it adopts, keeps and refuses, and the rest after `unload`.

use std::{
    collections::BTreeMap, fs, net::TcpListener, os::fd::AsFd as _, path::Path, sync::atomic::Ordering::Relaxed,
};

use aya::programs::links::{FdLink, PinnedLink};
use ingress_common::{
    Total,
    flow::PROTO_TCP,
    map::{ALIVE_CURRENT, ALIVE_DRAINING},
    steer::{ALIVE_DRAINING as DRAINING, ALIVE_SERVING as SERVING, NIC_NATIVE},
};
use ingress_datapath::{
    Attachment, Claim, Datapath, Error, NicMode, NicState, Options, Owner, Pinned, RunOptions, SteeredPort,
    TestProgram, XdpMode, unload,
};

use crate::{
    packets::{ACK, Packet},
    sandbox::{Sandbox, ip, sandboxed},
};

const VETH: &str = "xk-a";

fn veth() {
    ip("link add xk-a type veth peer name xk-b");
}

fn open(options: &Options) -> Datapath {
    Datapath::open(options).unwrap_or_else(|error| panic!("{}", chain(&error)))
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

fn state(datapath: &Datapath) -> NicState {
    datapath.report().interfaces[0].state
}

/// Returns the ids of a pinned link and of its program.
fn link(sandbox: &Sandbox, name: &str) -> (u32, u32) {
    let link = PinnedLink::from_pin(sandbox.bpffs().join("v1/links").join(name)).expect("pinned");
    let info = FdLink::from(link).info().expect("info");
    (info.id(), info.program_id())
}

fn map_ids(sandbox: &Sandbox) -> BTreeMap<String, u32> {
    let entries = fs::read_dir(sandbox.bpffs().join("v1/maps")).expect("maps");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"));
    names
        .map(|name| {
            let path = sandbox.bpffs().join("v1/maps").join(&name);
            (name, aya::maps::MapInfo::from_pin(path).expect("info").id())
        })
        .collect()
}

const CREATED: NicState = NicState::Attached { mode: NicMode::Native, attachment: Attachment::Created };
const ADOPTED: NicState = NicState::Attached { mode: NicMode::Native, attachment: Attachment::Adopted };

#[test]
fn second_open_adopts_maps_and_links_and_keeps_counters() {
    sandboxed(|sandbox| {
        veth();
        let options = sandbox.options(&[VETH]);
        let first = open(&options);
        assert_eq!((state(&first), first.report().lookup), (CREATED, Some(Attachment::Created)));
        assert_eq!((first.report().epoch, first.report().has_predecessor), (1, false));
        first
            .set_ports(&[SteeredPort {
                port: 80,
                proto: PROTO_TCP,
                first_slot: 0,
                workers: 1,
                flags: 0,
                rewritten: None,
            }])
            .expect("ports");
        first.set_node_addrs(&[("198.51.100.7".parse().expect("an address"), 1)]).expect("addresses");
        let frame = Packet::tcp("192.0.2.1:40000", "198.51.100.7:80", ACK).frame();
        let count = |datapath: &Datapath| {
            datapath.test_run(TestProgram::Ingress, RunOptions { frame: &frame, repeat: 3, live: None }).expect("runs");
            datapath.totals().expect("totals").get(Total::Accepted).packets
        };
        assert_eq!(count(&first), 3);
        first.host_cells()[3].bytes_in.fetch_add(70, Relaxed);
        first.host_cells()[3].active.fetch_add(2, Relaxed);
        let [xdp, tc_out, lookup] = ["xdp-xk-a", "tc-out-xk-a", "lookup"].map(|name| link(sandbox, name));
        let maps = map_ids(sandbox);

        let second = open(&options);
        assert_eq!((state(&second), second.report().lookup), (ADOPTED, Some(Attachment::Adopted)));
        assert_eq!((second.report().epoch, second.report().has_predecessor), (2, true));
        assert_eq!(map_ids(sandbox), maps, "the same maps");
        for (name, (before_link, before_program)) in [("xdp-xk-a", xdp), ("tc-out-xk-a", tc_out), ("lookup", lookup)] {
            let (link, program) = link(sandbox, name);
            assert_eq!(link, before_link, "{name}: the same link");
            assert_ne!(program, before_program, "{name}: with the new program");
        }
        assert_eq!(count(&second), 6, "counted on, by the ports of the first process");
        assert_eq!(second.host_cells()[3].bytes_in.load(Relaxed), 70);
        assert_eq!(second.host_cells()[3].active.load(Relaxed), 2, "the first process is still serving them");
        assert_eq!(Pinned::open(&options.bpffs).expect("pins").maps().nics().expect("nics")[0].1.mode, NIC_NATIVE);
    });
}

#[test]
fn the_owner_attaches_its_program_again_after_a_process_that_did_not_take_over() {
    sandboxed(|sandbox| {
        veth();
        let options = sandbox.options(&[VETH]);
        let owner = open(&options);
        owner.take_over().expect("takes over");
        let (own_link, own_program) = link(sandbox, "xdp-xk-a");
        assert!(!owner.keep_programs(&options.interfaces).expect("readable"), "nothing has changed");
        let newer = open(&options);
        assert_ne!(link(sandbox, "xdp-xk-a").1, own_program);
        assert!(!owner.keep_programs(&options.interfaces).expect("readable"), "the newer one may take the node over");
        drop(newer);
        assert!(owner.keep_programs(&options.interfaces).expect("readable"));
        assert_eq!(link(sandbox, "xdp-xk-a"), (own_link, own_program), "the link was never detached");

        let successor = open(&options);
        successor.take_over().expect("takes over");
        let theirs = link(sandbox, "xdp-xk-a");
        drop(successor);
        assert!(!owner.keep_programs(&options.interfaces).expect("readable"), "the node has no owner");
        assert_eq!(link(sandbox, "xdp-xk-a"), theirs);
    });
}

#[test]
fn the_newer_process_owns_the_node_and_both_send_heartbeats() {
    sandboxed(|sandbox| {
        let options = sandbox.options(&[]);
        let first = open(&options);
        assert_eq!(first.owner(), Owner::Unassigned, "opening takes nothing over");
        first.take_over().expect("takes over");
        assert_eq!(first.owner(), Owner::This);
        let second = open(&options);
        assert_eq!((first.owner(), second.owner()), (Owner::This, Owner::Other), "not before it is asked to");
        second.take_over().expect("takes over");
        assert_eq!((first.owner(), second.owner()), (Owner::Other, Owner::This));
        let alive = |index| second.maps().alive(index).expect("alive");
        assert_eq!((alive(ALIVE_CURRENT).epoch, alive(ALIVE_CURRENT).state), (2, SERVING));
        assert_eq!((alive(ALIVE_DRAINING).epoch, alive(ALIVE_DRAINING).state), (1, DRAINING));
        let before = (alive(ALIVE_CURRENT), alive(ALIVE_DRAINING));
        first.heartbeat().expect("beats");
        assert!(alive(ALIVE_DRAINING).heartbeat_ns > before.1.heartbeat_ns);
        assert_eq!(alive(ALIVE_CURRENT), before.0, "the first no longer speaks for the node");
        second.heartbeat().expect("beats");
        assert!(alive(ALIVE_CURRENT).heartbeat_ns > before.0.heartbeat_ns);
        drop(second);
        assert_eq!(first.owner(), Owner::Unassigned, "the owner has died");
        first.take_over().expect("takes it back");
        assert_eq!((first.owner(), alive_epoch(&first)), (Owner::This, 1));
        drop(first);
        let third = open(&options);
        assert_eq!(third.report().epoch, 3, "an epoch is not used twice while its flows may be there");
        assert!(!third.report().has_predecessor);
    });
}

#[test]
fn an_ownerless_node_goes_to_the_first_claimant() {
    sandboxed(|sandbox| {
        let options = sandbox.options(&[]);
        let [first, second, third] = [(); 3].map(|()| open(&options));
        for datapath in [&first, &second, &third] {
            datapath.take_over().expect("takes over");
        }
        let never = || -> Result<(), Error> { panic!("the slots of a node that is another's stay") };
        assert!(
            !first.take_over_with(Claim::Ownerless, never).expect("asks"),
            "the third lives and has not given it up"
        );
        second.give_up().expect("has nothing to give up");
        assert_eq!(first.owner(), Owner::Other);
        assert!(third.has_company().expect("readable"));

        third.give_up().expect("gives it up");
        assert_eq!((first.owner(), second.owner(), third.owner()), (Owner::Unassigned, Owner::Unassigned, Owner::This));
        let mut equipped = false;
        let equip = || {
            equipped = true;
            Ok(())
        };
        assert!(first.take_over_with(Claim::Ownerless, equip).expect("takes it"));
        assert!(equipped, "its listeners go into the slots");
        assert!(!second.take_over_with(Claim::Ownerless, never).expect("asks"), "the first was faster");
        assert_eq!((first.owner(), second.owner(), third.owner()), (Owner::This, Owner::Other, Owner::Other));
        drop((second, third));
        assert!(!first.has_company().expect("readable"));
    });
}

fn alive_epoch(datapath: &Datapath) -> u32 {
    datapath.maps().alive(ALIVE_CURRENT).expect("alive").epoch
}

#[test]
fn restart_after_a_crash_resets_gauges_and_keeps_counters() {
    sandboxed(|sandbox| {
        let first = open(&sandbox.options(&[]));
        first.host_cells()[1].active.fetch_add(5, Relaxed);
        first.host_cells()[1].requests[0].fetch_add(9, Relaxed);
        drop(first);
        let second = open(&sandbox.options(&[]));
        let cell = second.maps().host_l7().expect("host_l7")[1];
        assert_eq!((cell.active, cell.requests.success), (0, 9));
    });
}

#[test]
fn only_entries_of_dead_processes_are_evicted() {
    sandboxed(|sandbox| {
        let options = sandbox.options(&[]);
        let address = |text: &str| text.parse().expect("an address");
        let insert = |datapath: &Datapath, remote: &str| {
            datapath.take_over().expect("takes over");
            datapath.flows().insert(address(remote), address("198.51.100.7:80"), 1);
        };
        let dead = open(&options);
        insert(&dead, "192.0.2.1:1");
        insert(&dead, "192.0.2.1:2");
        drop(dead);
        let draining = open(&options);
        insert(&draining, "192.0.2.1:3");
        let serving = open(&options);
        insert(&serving, "192.0.2.1:4");
        assert_eq!(serving.maps().flows().expect("flows").len(), 4);
        assert_eq!(serving.evict_dead().expect("sweeps"), 2);
        drop(draining);
        assert_eq!(serving.evict_dead().expect("sweeps"), 1);
        assert_eq!(serving.maps().flows().expect("flows").len(), 1);
        assert_eq!(serving.evict_dead().expect("sweeps"), 0);
    });
}

#[test]
fn host_ids_outlast_processes_and_are_assigned_by_any() {
    sandboxed(|sandbox| {
        let options = Options { host_capacity: 4, ..sandbox.options(&[]) };
        let first = open(&options);
        let assign = |datapath: &Datapath, name: &str| datapath.host_ids().assign(name);
        assert_eq!(assign(&first, "a.example").expect("an id"), 1);
        assert_eq!(assign(&first, "*.example").expect("an id"), 2);
        assert_eq!(assign(&first, "a.example").expect("an id"), 1);
        let second = open(&options);
        assert_eq!(assign(&second, "b.example").expect("an id"), 3);
        assert_eq!(assign(&first, "b.example").expect("an id"), 3, "what another process handed out");
        assert_eq!(assign(&second, "*.example").expect("an id"), 2);
        assert!(matches!(assign(&second, "c.example"), Err(Error::HostsFull { capacity: 4 })));
        assert!(matches!(assign(&open(&sandbox.options(&[])), "d"), Err(Error::HostsFull { capacity: 4 })));
        let ids = Pinned::open(&options.bpffs).expect("pins").maps().host_ids().expect("ids");
        let names: Vec<_> = ids.iter().map(|(name, id)| (name.as_str(), *id)).collect();
        assert_eq!(names, [("*.example", 2), ("a.example", 1), ("b.example", 3)]);
    });
}

#[test]
fn pinned_capacity_wins_and_is_reported() {
    sandboxed(|sandbox| {
        let capacity = |host_capacity| open(&Options { host_capacity, ..sandbox.options(&[]) }).report().host_capacity;
        assert_eq!(capacity(100), 100);
        assert_eq!(capacity(200), 100);
        unload(&sandbox.bpffs()).expect("unloads");
        assert_eq!(capacity(200), 200);
    });
}

#[test]
fn map_of_another_layout_is_refused_by_name() {
    sandboxed(|sandbox| {
        drop(open(&sandbox.options(&[])));
        let map = |name: &str| sandbox.bpffs().join("v1/maps").join(name);
        fs::remove_file(map("ports")).expect("removed");
        fs::rename(map("flows"), map("ports")).expect("renamed");
        let error = Datapath::open(&sandbox.options(&[])).expect_err("refused");
        let text = chain(&error);
        assert!(matches!(error, Error::Layout { .. }), "{text}");
        assert!(text.contains("v1/maps/ports") && text.contains("xdp-ingress unload"), "{text}");
    });
}

#[test]
fn a_recreated_device_gets_a_new_link() {
    sandboxed(|sandbox| {
        veth();
        drop(open(&sandbox.options(&[VETH])));
        ip("link del xk-a");
        veth();
        assert_eq!(state(&open(&sandbox.options(&[VETH]))), CREATED);
        assert_eq!(state(&open(&sandbox.options(&[VETH]))), ADOPTED);
    });
}

#[test]
fn the_xdp_mode_is_the_requested_or_the_best_available() {
    sandboxed(|sandbox| {
        veth();
        let mode = |interface, xdp_mode| {
            let options = Options { xdp_mode, ..sandbox.options(&[interface]) };
            Datapath::open(&options).map(|datapath| state(&datapath)).ok()
        };
        let generic = |attachment| Some(NicState::Attached { mode: NicMode::Generic, attachment });
        assert_eq!(mode("lo", XdpMode::Auto), generic(Attachment::Created), "loopback has no native XDP");
        assert_eq!(mode("lo", XdpMode::Auto), generic(Attachment::Adopted));
        assert_eq!(mode("lo", XdpMode::Native), None);
        assert_eq!(mode(VETH, XdpMode::Generic), generic(Attachment::Created));
        assert_eq!(mode(VETH, XdpMode::Native), Some(CREATED));
        assert_eq!(mode(VETH, XdpMode::Auto), Some(ADOPTED));
        let tcx = |attachment| Some(NicState::Attached { mode: NicMode::Tcx, attachment });
        assert_eq!(mode(VETH, XdpMode::Tcx), tcx(Attachment::Created));
        assert_eq!(mode(VETH, XdpMode::Tcx), tcx(Attachment::Adopted));
        assert_eq!(mode(VETH, XdpMode::Auto), Some(CREATED), "the best there is again");
        assert!(!sandbox.bpffs().join("v1/links/tc-in-xk-a").exists());
        assert_eq!(mode(VETH, XdpMode::Off), Some(NicState::Off));
        for link in ["xdp-xk-a", "tc-in-xk-a", "tc-out-xk-a"] {
            assert!(!sandbox.bpffs().join("v1/links").join(link).exists(), "{link}");
        }
        assert!(matches!(Datapath::open(&sandbox.options(&["xk-none"])), Err(Error::NoInterface(_))));
    });
}

#[test]
fn a_foreign_program_is_not_replaced() {
    sandboxed(|sandbox| {
        veth();
        let owner = Options { bpffs: sandbox.bpffs().join("other"), ..sandbox.options(&[VETH]) };
        let _owner = open(&owner);
        let beside = open(&sandbox.options(&[VETH]));
        assert_eq!(state(&beside), NicState::Attached { mode: NicMode::Tcx, attachment: Attachment::Created });
        assert!(beside.report().interfaces[0].is_busy(), "{:?}", beside.report());
        for xdp_mode in [XdpMode::Native, XdpMode::Generic] {
            let error = Datapath::open(&Options { xdp_mode, ..sandbox.options(&[VETH]) }).expect_err("busy");
            assert!(matches!(&error, Error::Busy { interface } if interface == VETH), "{}", chain(&error));
        }
    });
}

#[test]
fn only_a_listening_socket_takes_a_slot() {
    sandboxed(|sandbox| {
        let datapath = open(&sandbox.options(&[]));
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        datapath.register_listener(7, listener.as_fd()).expect("registered");
        let next = TcpListener::bind("[::1]:0").expect("listens");
        datapath.register_listener(7, next.as_fd()).expect("replaced");
        assert!(matches!(datapath.register_listener(256, next.as_fd()), Err(Error::Slot { slot: 256, .. })));
        let file = fs::File::open("/").expect("opens");
        assert!(matches!(datapath.register_listener(7, file.as_fd()), Err(Error::Kernel { .. })));
    });
}

#[test]
fn unload_removes_everything_interfaces_first_and_lookup_last_of_the_links() {
    sandboxed(|sandbox| {
        veth();
        drop(open(&sandbox.options(&[VETH])));
        let removed = unload(&sandbox.bpffs()).expect("unloads");
        let position = |name: &str| removed.iter().position(|path| path.ends_with(name)).expect("removed");
        assert!(position("links/xdp-xk-a") < position("links/lookup"));
        assert!(position("links/tc-out-xk-a") < position("links/lookup"));
        assert!(position("links/lookup") < position("maps/totals"));
        assert!(!sandbox.bpffs().exists());
        assert_eq!(unload(&sandbox.bpffs()).expect("unloads"), Vec::<String>::new());
        assert_eq!(state(&open(&sandbox.options(&[VETH]))), CREATED);
    });
}

#[test]
fn plain_directory_is_refused_with_the_command_to_run() {
    sandboxed(|_| {
        let directory = tempfile::tempdir().expect("a directory");
        let options = Options { bpffs: directory.path().join("pins"), ..Options::default() };
        let error = Datapath::open(&options).expect_err("refused").to_string();
        assert!(error.contains("mount -t bpf"), "{error}");
        assert!(!Path::new(&options.bpffs).exists(), "nothing was made");
    });
}
