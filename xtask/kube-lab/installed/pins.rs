//! A pod sees only its own directory of the node's BPF file system. Other programs pin theirs beside it.

use std::{collections::BTreeMap, fs, io::ErrorKind, os::unix::fs::MetadataExt as _, path::Path};

use anyhow::Context as _;
use serde_json::json;
use xtask_kube_lab::NodePlan;

use crate::{
    faults::process_on,
    objects::{pods, site},
    stage::{Stage, demand_no_failure, mended, stage},
};

/// The directory on the node, and its mount point in the pod.
const NODE: &str = "/sys/fs/bpf/xdp-ingress";
const POD: &str = "/bpf/xdp-ingress";

/// A foreign directory of pins on every node.
struct Foreign<'s>(&'s Stage);

impl<'s> Foreign<'s> {
    const PATH: &'static str = "/sys/fs/bpf/somebody-else";

    fn make(stage: &'s Stage) -> Self {
        // Before the first is made: where making another fails, those that were made are removed.
        let foreign = Self(stage);
        for node in stage.nodes() {
            let made = stage.cluster.inside(node, || fs::create_dir(Self::PATH).context("cannot make a directory"));
            made.unwrap_or_else(|error| panic!("{}: {error:#}", node.name()));
        }
        foreign
    }
}

impl Drop for Foreign<'_> {
    fn drop(&mut self) {
        let Self(stage) = self;
        for node in stage.nodes() {
            let remove = || match fs::remove_dir(Self::PATH) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error).context("cannot remove it"),
                _ => Ok(()),
            };
            mended("somebody else's pins", stage.cluster.inside(node, remove));
        }
    }
}

/// Makes the DaemonSet mount the whole file system, as the manifests up to this version did, for as long as it lives.
struct Whole<'s>(&'s Stage);

impl<'s> Whole<'s> {
    fn begin(stage: &'s Stage) -> Self {
        let whole = Self(stage);
        mount(stage, "/sys/fs/bpf", "Directory", "/bpf").expect("the DaemonSet is changed");
        whole
    }
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        let Self(stage) = self;
        mended("our directory alone", mount(stage, NODE, "DirectoryOrCreate", POD));
    }
}

/// Makes the DaemonSet mount `path` of the node at `at`, and waits until all its pods do.
fn mount(stage: &Stage, path: &str, kind: &str, at: &str) -> anyhow::Result<()> {
    let spec = "/spec/template/spec";
    let patch = json!([
        { "op": "test", "path": format!("{spec}/volumes/0/name"), "value": "bpffs" },
        { "op": "replace", "path": format!("{spec}/volumes/0/hostPath"), "value": { "path": path, "type": kind } },
        { "op": "test", "path": format!("{spec}/containers/0/volumeMounts/0/name"), "value": "bpffs" },
        { "op": "replace", "path": format!("{spec}/containers/0/volumeMounts/0/mountPath"), "value": at },
    ]);
    let ours = "--namespace=xdp-ingress";
    let patch = ["patch", "daemonset/xdp-ingress", "--type=json", "--patch", &patch.to_string()];
    stage.cluster.kubectl(&[&[ours], patch.as_slice()].concat())?;
    stage.cluster.kubectl(&[ours, "rollout", "status", "daemonset/xdp-ingress", "--timeout=600s"])?;
    Ok(())
}

/// Returns the BPF mounts of the product's process on a node: the directory of the file system, and its mount point.
fn mounts(stage: &Stage, node: NodePlan) -> Vec<(String, String)> {
    let pid = process_on(stage, node).expect("our process runs on the node");
    let read = || fs::read_to_string(format!("/proc/{pid}/mountinfo")).context("cannot read its mounts");
    let mounts = stage.cluster.inside(node, read).expect("the node can be looked at");
    // proc_pid_mountinfo(5): root and mount point are the fourth and fifth field, the type is the first behind the
    // dash.
    let of_bpf = mounts.lines().filter(|line| line.contains(" - bpf "));
    let fields = of_bpf.map(|line| line.split(' ').collect::<Vec<_>>());
    fields.map(|fields| (fields[3].to_owned(), fields[4].to_owned())).collect()
}

/// Returns the maps pinned on a node, each with its inode number. A map that is created anew has another number.
fn pinned(stage: &Stage, node: NodePlan) -> BTreeMap<String, u64> {
    let read = || {
        let directory = Path::new(NODE).join("v1/maps");
        let entries = fs::read_dir(&directory).with_context(|| format!("cannot list {}", directory.display()))?;
        entries
            .map(|entry| {
                let entry = entry?;
                Ok((entry.file_name().to_string_lossy().into_owned(), entry.metadata()?.ino()))
            })
            .collect()
    };
    stage.cluster.inside(node, read).expect("the node's pins can be listed")
}

#[test]
fn a_pod_sees_no_pins_but_its_own() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let _foreign = Foreign::make(stage);
    for node in stage.nodes() {
        assert_eq!(mounts(stage, node), [("/xdp-ingress".to_owned(), POD.to_owned())], "{}", node.name());
        let pid = process_on(stage, node).expect("our process runs on the node");
        let look = || {
            let root = format!("/proc/{pid}/root");
            let ours = Path::new(&format!("{root}{POD}/v1/maps/totals")).exists();
            let theirs = ["/bpf/somebody-else", Foreign::PATH].map(|path| Path::new(&format!("{root}{path}")).exists());
            Ok((ours, theirs))
        };
        let seen = stage.cluster.inside(node, look).expect("the node can be looked at");
        assert_eq!(seen, (true, [false, false]), "{}", node.name());
    }
}

#[test]
fn an_update_from_the_whole_file_system_keeps_pins_and_requests() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let scope = stage.scope("whole-bpffs");
    scope.apply(&(pods("web", 2) + &site("web", "whole-bpffs.test", "web")));
    scope.await_pods(&["web"]);
    stage.await_status("whole-bpffs.test", "/", 200);
    let nodes = stage.nodes();
    let before: Vec<_> = nodes.iter().map(|node| pinned(stage, *node)).collect();
    let loads: Vec<_> = nodes.iter().flat_map(|node| stage.loads(*node, "whole-bpffs.test", None)).collect();
    let whole = Whole::begin(stage);
    stage.await_drained();
    for node in &nodes {
        assert_eq!(mounts(stage, *node), [("/".to_owned(), "/bpf".to_owned())], "{}", node.name());
    }
    drop(whole);
    stage.await_drained();
    for (node, before) in nodes.iter().zip(before) {
        assert_eq!(mounts(stage, *node), [("/xdp-ingress".to_owned(), POD.to_owned())], "{}", node.name());
        assert_eq!(pinned(stage, *node), before, "{}", node.name());
    }
    demand_no_failure("an update from the whole BPF file system, and one to it", loads);
}
