//! A process that sees one directory of the BPF file system, as its pod does in Kubernetes, and its predecessors that
//! saw all of it.

use std::{
    collections::BTreeMap, ffi::OsString, fs, os::unix::fs::MetadataExt as _, path::Path, process::Command,
    time::Duration,
};

use ingress_common::map::LAYOUT;
use ingress_lab::{Process, client::Ask, topology::Family, until};

use crate::{
    generation::{Generation, under},
    net::{Net, http},
};

/// Longest wait for the end of a process that has no work left.
const END: Duration = Duration::from_secs(30);

/// Returns the pinned maps, each with its inode number. A map that is created anew has another number.
fn pinned(net: &Net) -> BTreeMap<OsString, u64> {
    let entries = fs::read_dir(net.bpffs.join(LAYOUT).join("maps")).expect("pinned maps");
    let entries = entries.map(|entry| entry.expect("an entry"));
    entries.map(|entry| (entry.file_name(), entry.metadata().expect("a number").ino())).collect()
}

/// Restricts a command's view of the BPF file system to `--bpffs`, by a mount of its own like the one that runtimes
/// create for a pod's hostPath.
fn narrow(net: &Net, place: &Path, command: &Command) -> Command {
    let script = "set -e; mount --bind \"$1\" \"$2\"; mount -t tmpfs none \"$3\"; mkdir \"$1\"; mount --move \"$2\" \"$1\"; \
                  shift 3; exec \"$@\"";
    let mut args: Vec<OsString> =
        ["--mount", "--propagation=private", "sh", "-c", script, "sh"].map(OsString::from).into();
    args.extend([net.bpffs.clone(), place.to_owned()].map(OsString::from));
    args.push(net.bpffs.parent().expect("the file system").into());
    under("unshare", &args, command)
}

/// Returns whether the path exists for a process.
fn sees(process: &Process, path: &Path) -> bool {
    let path = path.strip_prefix("/").expect("absolute");
    Path::new(&format!("/proc/{}/root", process.pid())).join(path).exists()
}

#[test]
fn one_bpffs_directory_suffices_and_updates_keep_the_pins() {
    let Some(net) = Net::build("pins") else { return };
    net.write("web.yaml", &net.site("web", &[0, 1]));
    let foreign = net.bpffs.with_file_name("somebody-else");
    fs::create_dir(&foreign).expect("the pins of others");
    // The kubelet does the same for `type: DirectoryOrCreate`.
    fs::create_dir(&net.bpffs).expect("a directory of a BPF file system is made as any other");
    let (mut before, mut maps) = (None::<Generation>, None);
    for (number, (name, is_narrow)) in
        [("maker", true), ("old-layout", false), ("new-layout", true)].into_iter().enumerate()
    {
        let place = net.lab.home().join(format!("{name}-pins"));
        fs::create_dir(&place).expect("a place to mount at");
        let wrap = |command: Command| if is_narrow { narrow(&net, &place, &command) } else { command };
        let process = Generation::spawn_in(&net, name, &[], wrap);
        until("readiness", || process.probe("ready").ok()).expect("it becomes ready");
        assert_eq!(sees(&process.process, &foreign), !is_narrow, "{name}");
        assert!(sees(&process.process, &net.bpffs.join(LAYOUT)), "{name}");
        if let Some(mut before) = before.replace(process) {
            assert!(before.process.terminate(END).expect("it ends").success(), "the one before {name}");
        }
        for _ in 0..10 {
            assert_eq!(net.ask(&net.topology.client, http(Family::V4), &Ask::get("web.test", "/")).0.status, 200);
        }
        assert_eq!(net.settled().hosts["web.test"].l7.requests.success, 10 * (number as u64 + 1), "{name}");
        assert_eq!(*maps.get_or_insert_with(|| pinned(&net)), pinned(&net), "{name}");
    }
}
