//! Programs that a process has left behind which ended before it took the node over: the owner of the node puts its own
//! state back, in its own mode and on its own interfaces. The facts are the kernel's: pinned links, XDP programs as `ip`
//! lists them, filters as `tc` does.

use std::{fs, os::fd::AsRawFd as _, process::Command};

use ingress_datapath::{Claim, Datapath, Hook, LinkState, Options, Pinned, PinnedLink, TcHook, XdpMode, unload};

use crate::nics::{nics, pins, program_id, veth};
use crate::sandbox::{Sandbox, detach, ip, named, open_link, sandboxed};

/// A choice of programs: `--xdp-mode`, and the hook of tc.
type Mode = (XdpMode, Option<TcHook>);

const NATIVE: Mode = (XdpMode::Native, None);
const GENERIC: Mode = (XdpMode::Generic, None);
const TCX: Mode = (XdpMode::Tcx, None);
/// As before Linux 6.6.
const CLSACT: Mode = (XdpMode::Tcx, Some(TcHook::Clsact));
const NATIVE_CLSACT: Mode = (XdpMode::Native, Some(TcHook::Clsact));
const OFF: Mode = (XdpMode::Off, None);

const MODES: [Mode; 6] = [NATIVE, GENERIC, TCX, CLSACT, NATIVE_CLSACT, OFF];

fn options(sandbox: &Sandbox, (xdp_mode, tc_hook): Mode, interfaces: &[&str]) -> Options {
    Options { xdp_mode, tc_hook, ..sandbox.options(interfaces) }
}

fn open(sandbox: &Sandbox, mode: Mode, interfaces: &[&str]) -> Datapath {
    // As the daemon does, which chooses no interfaces with `off`.
    let interfaces = if mode == OFF { &[] } else { interfaces };
    Datapath::open(&options(sandbox, mode, interfaces)).expect("opens")
}

fn keep(owner: &Datapath, interfaces: &[&str]) -> bool {
    owner.keep_programs(&named(interfaces)).expect("the kernel lets it")
}

/// Has `successor` take the node over, as the daemon does, and end.
fn succeed(successor: Datapath, interfaces: &[&str]) {
    let equip = || successor.renew_programs(&named(interfaces)).map(drop);
    assert!(successor.take_over_with(Claim::Any, equip).expect("takes over"));
}

fn output(program: &str, arguments: &str) -> String {
    let output = Command::new(program).args(arguments.split(' ')).output().expect("iproute2 runs");
    String::from_utf8(output.stdout).expect("text")
}

/// Returns everything that processes have attached: the pins with their programs, and the programs of these interfaces.
fn attached(sandbox: &Sandbox, datapath: &Datapath, interfaces: &[&str]) -> Vec<String> {
    let links = fs::read_dir(sandbox.bpffs().join("v1/links")).expect("links");
    let names = links.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"));
    let mut facts: Vec<_> = names.map(|name| format!("{name} {}", program_id(sandbox, &name))).collect();
    facts.sort();
    for name in interfaces {
        let link = output("ip", &format!("link show dev {name}"));
        facts.extend(link.split(' ').filter(|word| word.starts_with("xdp")).map(|word| format!("{name} {word}")));
        for direction in ["ingress", "egress"] {
            let filters = output("tc", &format!("filter show dev {name} {direction}"));
            facts.extend(filters.lines().filter(|line| line.contains(" id ")).map(|line| format!("{name} {line}")));
        }
    }
    facts.push(format!("{:?}", nics(datapath)));
    facts
}

#[test]
fn the_owner_restores_its_mode_and_its_programs() {
    let modes = MODES.into_iter().filter(|mode| *mode != OFF).chain([(XdpMode::Auto, None)]);
    for own in modes {
        sandboxed(move |sandbox| {
            veth("xk-a", "xk-b");
            let owner = open(sandbox, own, &["xk-a"]);
            owner.take_over().expect("takes over");
            let before = attached(sandbox, &owner, &["xk-a", "xk-b"]);
            assert!(!keep(&owner, &["xk-a"]), "{own:?}: nothing has changed");
            for other in MODES {
                drop(open(sandbox, other, &["xk-a"]));
                // One without programs on interfaces has replaced that of sk_lookup.
                assert!(keep(&owner, &["xk-a"]), "{own:?} after {other:?}");
                assert_eq!(attached(sandbox, &owner, &["xk-a", "xk-b"]), before, "{own:?} after {other:?}");
                assert!(!keep(&owner, &["xk-a"]), "{own:?} after {other:?}: once is enough");
            }
        });
    }
}

#[test]
fn the_owner_restores_its_interfaces() {
    sandboxed(|sandbox| {
        veth("xk-a", "xk-b");
        veth("xk-c", "xk-d");
        let owner = open(sandbox, NATIVE, &["xk-a", "xk-b"]);
        owner.take_over().expect("takes over");
        let all = ["xk-a", "xk-b", "xk-c", "xk-d"];
        let before = attached(sandbox, &owner, &all);
        for (mode, theirs) in [
            (NATIVE, &["xk-a"][..]),
            (NATIVE, &all),
            (TCX, &["xk-c"]),
            (CLSACT, &["xk-d", "xk-a"]),
            (GENERIC, &["xk-b", "xk-c"]),
        ] {
            drop(open(sandbox, mode, theirs));
            assert!(keep(&owner, &["xk-a", "xk-b"]), "{mode:?} on {theirs:?}");
            assert_eq!(attached(sandbox, &owner, &all), before, "{mode:?} on {theirs:?}");
            assert!(!keep(&owner, &["xk-a", "xk-b"]), "{mode:?} on {theirs:?}: once is enough");
        }
    });
}

#[test]
fn the_owner_restores_the_delivery_of_connections() {
    for lookup in [true, false] {
        sandboxed(move |sandbox| {
            let owner = Datapath::open(&Options { lookup, ..sandbox.options(&[]) }).expect("opens");
            owner.take_over().expect("takes over");
            let before = attached(sandbox, &owner, &[]);
            for other in [!lookup, lookup] {
                drop(Datapath::open(&Options { lookup: other, ..sandbox.options(&[]) }).expect("opens"));
                assert_eq!(keep(&owner, &[]), other, "lookup {lookup} after {other}");
                assert_eq!(attached(sandbox, &owner, &[]), before, "lookup {lookup} after {other}");
            }
        });
    }
}

#[test]
fn a_starting_process_detaches_nothing_of_the_owner() {
    for (mode, theirs, lookup) in
        [(OFF, &[][..], false), (OFF, &[], true), (NATIVE, &["xk-a"], false), (NATIVE, &["xk-c"], true)]
    {
        sandboxed(move |sandbox| {
            veth("xk-a", "xk-b");
            veth("xk-c", "xk-d");
            let owner = open(sandbox, NATIVE, &["xk-a"]);
            owner.take_over().expect("takes over");
            // Programs may be replaced by theirs, in the same links.
            let links = || {
                let links = Pinned::open(&sandbox.bpffs()).expect("pins").links().expect("links");
                let is_owners = |hook: &Hook| match hook {
                    Hook::Lookup => true,
                    Hook::Xdp { interface, .. } | Hook::TcIn { interface } | Hook::TcOut { interface } => {
                        interface == "xk-a"
                    }
                };
                let owners = links.into_iter().filter(|link| is_owners(&link.hook));
                owners.map(|PinnedLink { hook, state, link_id, .. }| (hook, state, link_id)).collect::<Vec<_>>()
            };
            let (before, entries, facts) = (links(), nics(&owner), attached(sandbox, &owner, &["xk-a", "xk-c"]));
            let what = format!("{mode:?} on {theirs:?}, lookup {lookup}");
            let start = || {
                let newer = Datapath::open(&Options { lookup, ..options(sandbox, mode, theirs) }).expect("opens");
                assert_eq!(links(), before, "{what}: nothing is detached");
                assert!(entries.iter().all(|entry| nics(&owner).contains(entry)), "{what}: nor do lookups miss it");
                newer
            };
            drop(start());
            assert_eq!(links(), before, "{what}: it has died");
            keep(&owner, &["xk-a"]);
            assert_eq!(attached(sandbox, &owner, &["xk-a", "xk-c"]), facts, "{what}");

            let newer = start();
            let equip = || newer.renew_programs(&named(theirs)).map(drop);
            newer.take_over_with(Claim::Any, equip).expect("takes over");
            let delivers = links().iter().any(|(hook, ..)| *hook == Hook::Lookup);
            assert_eq!(delivers, lookup, "{what}: it owns the node");
            let names = pins(sandbox);
            let is_theirs = |name: &String| theirs.iter().any(|interface| name.ends_with(interface));
            assert!(names.len() == 2 * theirs.len() && names.iter().all(is_theirs), "{what}: {names:?}");
            assert_eq!(nics(&owner).len(), theirs.len(), "{what}");
        });
    }
}

#[test]
fn nothing_is_restored_while_a_newer_process_is_alive() {
    for other in [GENERIC, TCX, CLSACT, OFF] {
        sandboxed(move |sandbox| {
            veth("xk-a", "xk-b");
            let owner = open(sandbox, NATIVE, &["xk-a"]);
            owner.take_over().expect("takes over");
            let newer = open(sandbox, other, &["xk-a"]);
            let theirs = attached(sandbox, &owner, &["xk-a"]);
            assert!(!keep(&owner, &["xk-a"]));
            assert_eq!(attached(sandbox, &owner, &["xk-a"]), theirs, "{other:?} may take the node over");
            drop(newer);
            assert!(keep(&owner, &["xk-a"]));
        });
    }
}

#[test]
fn a_process_that_takes_the_node_back_restores_its_mode_at_once() {
    for own in [NATIVE, GENERIC, TCX] {
        for other in [NATIVE, GENERIC, TCX, OFF] {
            sandboxed(move |sandbox| {
                veth("xk-a", "xk-b");
                let first = open(sandbox, own, &["xk-a"]);
                first.take_over().expect("takes over");
                let before = attached(sandbox, &first, &["xk-a"]);
                succeed(open(sandbox, other, &["xk-a"]), if other == OFF { &[] } else { &["xk-a"] });
                let equip = || first.renew_programs(&named(&["xk-a"])).map(drop);
                assert!(first.take_over_with(Claim::Ownerless, equip).expect("takes it back"));
                assert_eq!(attached(sandbox, &first, &["xk-a"]), before, "{own:?} after {other:?}");
            });
        }
    }
}

#[test]
fn a_change_of_interfaces_restores_the_mode() {
    for (own, other) in [(NATIVE, GENERIC), (GENERIC, NATIVE), (NATIVE, TCX), (TCX, NATIVE), (CLSACT, NATIVE_CLSACT)] {
        sandboxed(move |sandbox| {
            veth("xk-a", "xk-b");
            let owner = open(sandbox, own, &["xk-a"]);
            owner.take_over().expect("takes over");
            let of_interfaces = || {
                let mut facts = attached(sandbox, &owner, &["xk-a"]);
                facts.retain(|fact| !fact.starts_with("lookup"));
                facts
            };
            let before = of_interfaces();
            drop(open(sandbox, other, &["xk-a"]));
            owner.reconcile(&named(&["xk-a"])).expect("follows");
            assert_eq!(of_interfaces(), before, "{own:?} after {other:?}");
        });
    }
}

#[test]
fn half_of_a_change_of_mode_is_undone() {
    sandboxed(|sandbox| {
        veth("xk-a", "xk-b");
        let owner = open(sandbox, NATIVE, &["xk-a"]);
        owner.take_over().expect("takes over");
        let before = attached(sandbox, &owner, &["xk-a"]);
        // A process that is killed in between leaves the programs of both modes.
        let links = sandbox.bpffs().join("v1/links");
        drop(open(sandbox, TCX, &["xk-a"]));
        fs::rename(links.join("tc-in-xk-a"), links.join("spare")).expect("renamed");
        assert!(keep(&owner, &["xk-a"]));
        fs::rename(links.join("spare"), links.join("tc-in-xk-a")).expect("renamed");
        assert_eq!(pins(sandbox), ["tc-in-xk-a", "tc-out-xk-a", "xdp-xk-a"]);
        assert!(keep(&owner, &["xk-a"]));
        assert_eq!(attached(sandbox, &owner, &["xk-a"]), before);
    });
}

#[test]
fn a_foreign_program_in_the_place_of_ours_stays() {
    sandboxed(|sandbox| {
        veth("xk-a", "xk-b");
        let owner = open(sandbox, (XdpMode::Auto, None), &["xk-a"]);
        owner.take_over().expect("takes over");
        succeed(open(sandbox, OFF, &["xk-a"]), &[]);
        let foreign = Options { bpffs: sandbox.bpffs().join("other"), ..sandbox.options(&["xk-a"]) };
        let _foreign = Datapath::open(&foreign).expect("opens");
        let theirs = output("ip", "link show dev xk-a");
        let equip = || owner.renew_programs(&named(&["xk-a"])).map(drop);
        assert!(owner.take_over_with(Claim::Ownerless, equip).expect("takes it back"));
        assert_eq!(output("ip", "link show dev xk-a"), theirs);
        assert_eq!(owner.interfaces()[0].state.as_str(), "tcx");
        assert!(!keep(&owner, &["xk-a"]), "it does not try each second");
    });
}

#[test]
fn links_that_somebody_has_detached_are_attached_again() {
    sandboxed(|sandbox| {
        veth("xk-a", "xk-b");
        let owner = open(sandbox, NATIVE, &["xk-a"]);
        owner.take_over().expect("takes over");
        let before = attached(sandbox, &owner, &["xk-a"]);
        let detached = || {
            let links = Pinned::open(&sandbox.bpffs()).expect("pins").links().expect("links");
            links.iter().filter(|link| link.state == LinkState::Detached).count()
        };
        for name in ["lookup", "xdp-xk-a", "tc-out-xk-a"] {
            detach(sandbox, name);
            assert_eq!(detached(), 1, "{name}: the pin stays");
            assert!(keep(&owner, &["xk-a"]), "{name}");
            assert_eq!((attached(sandbox, &owner, &["xk-a"]), detached()), (before.clone(), 0), "{name}");
            assert!(!keep(&owner, &["xk-a"]), "{name}: once is enough");
        }
    });
}

#[test]
fn a_process_without_pins_leaves_those_of_a_new_one_alone() {
    for other in [NATIVE, GENERIC, TCX] {
        sandboxed(move |sandbox| {
            veth("xk-a", "xk-b");
            let old = open(sandbox, NATIVE, &["xk-a"]);
            old.take_over().expect("takes over");
            unload(&sandbox.bpffs()).expect("unloads");
            assert!(!keep(&old, &["xk-a"]), "unloaded for good");
            let new = open(sandbox, other, &["xk-a"]);
            new.take_over().expect("takes over");
            let theirs = attached(sandbox, &new, &["xk-a"]);
            assert!(!keep(&old, &["xk-a"]));
            old.reconcile(&named(&["xk-a"])).expect("looks");
            assert_eq!(attached(sandbox, &new, &["xk-a"]), theirs, "{other:?}");
        });
    }
}

#[test]
fn unloaded_programs_are_detached_even_if_a_reader_has_their_links_open() {
    sandboxed(|sandbox| {
        veth("xk-a", "xk-b");
        let owner = open(sandbox, NATIVE, &["xk-a"]);
        owner.take_over().expect("takes over");
        let links = ["lookup", "xdp-xk-a"].map(|name| open_link(sandbox, name));
        let targets = || {
            links.each_ref().map(|link| {
                let info = fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", link.as_raw_fd())).expect("shown");
                let target = info
                    .lines()
                    .find_map(|line| line.strip_prefix("netns_ino:").or_else(|| line.strip_prefix("ifindex:")));
                target.expect("a target").trim().parse::<u32>().expect("a number")
            })
        };
        assert!(!targets().contains(&0), "{:?}", targets());
        unload(&sandbox.bpffs()).expect("unloads");
        assert_eq!(targets(), [0, 0]);
    });
}

#[test]
fn a_link_of_another_kind_gives_way() {
    sandboxed(|sandbox| {
        veth("xk-a", "xk-b");
        let owner = open(sandbox, NATIVE, &["xk-a", "xk-b"]);
        owner.take_over().expect("takes over");
        let before = attached(sandbox, &owner, &["xk-a", "xk-b"]);
        drop(open(sandbox, NATIVE, &["xk-a", "xk-b"]));
        let links = sandbox.bpffs().join("v1/links");
        fs::rename(links.join("tc-out-xk-a"), links.join("xdp-xk-a")).expect("renamed");
        assert!(keep(&owner, &["xk-a", "xk-b"]));
        assert_eq!(attached(sandbox, &owner, &["xk-a", "xk-b"]), before);
        ip("link del xk-a");
        assert!(!keep(&owner, &["xk-a", "xk-b"]), "no process has left anything");
    });
}
