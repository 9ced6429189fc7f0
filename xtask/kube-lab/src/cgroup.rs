//! The control groups of the nodes, on separate hierarchies (v1) and the unified one (v2): one subtree, and its certain
//! removal. On v2, controllers that the root has not enabled for its children yet are enabled for the lifetime of the
//! cluster.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::plan::Plan;
use super::state::{Item, State};
use ingress_lab::until_within;

/// The only directory below the root of each hierarchy.
pub(super) const TOP: &str = "xdp-ingress-cluster";
const MOUNT: &str = "/sys/fs/cgroup";
/// Controllers that a kubelet uses on a unified hierarchy, as far as the machine has them.
const WANTED: [&str; 7] = ["cpuset", "cpu", "io", "memory", "hugetlb", "pids", "misc"];
/// Processes leave their groups a moment after they have ended.
const REMOVAL_LIMIT: Duration = Duration::from_secs(10);

/// Creates the groups of all nodes.
///
/// # Errors
/// Fails if the machine's hierarchies cannot be written.
pub(super) fn make(state: &State, plan: Plan) -> Result<()> {
    let root = Path::new(MOUNT);
    if root.join("cgroup.controllers").is_file() {
        return make_unified(state, root, plan);
    }
    for hierarchy in hierarchies(root)? {
        let top = hierarchy.join(TOP);
        state.record(&Item::Cgroup(top.clone()))?;
        make_group(&hierarchy, &top)?;
        for node in plan.nodes() {
            make_group(&top, &hierarchy.join(node.cgroup().trim_start_matches('/')))?;
        }
    }
    Ok(())
}

/// Removes a group and all groups below it; none may contain a process.
///
/// # Errors
/// Fails if a group is still in use after ten seconds.
pub(super) fn remove(top: &Path) -> Result<()> {
    until_within(REMOVAL_LIMIT, "control groups to become empty", || remove_tree(top).is_ok().then_some(()))
        .or_else(|_| remove_tree(top))
        .with_context(|| format!("cannot remove the control group `{}`", top.display()))
}

/// Disables `controller` again for the children of the unified hierarchy's root. It stays enabled if another child has
/// begun to use it.
///
/// # Errors
/// Fails if the kernel refuses for another reason.
pub(super) fn withdraw(controller: &str) -> Result<()> {
    let path = Path::new(MOUNT).join("cgroup.subtree_control");
    match fs::write(&path, format!("-{controller}")) {
        Err(error) if error.kind() != ErrorKind::ResourceBusy => {
            Err(error).with_context(|| format!("cannot write `{}`", path.display()))
        }
        _ => Ok(()),
    }
}

fn make_unified(state: &State, root: &Path, plan: Plan) -> Result<()> {
    let available = words(&root.join("cgroup.controllers"))?;
    let wanted: Vec<&str> = WANTED.into_iter().filter(|name| available.iter().any(|word| word == name)).collect();
    let handed_down = words(&root.join("cgroup.subtree_control"))?;
    for controller in wanted.iter().filter(|name| !handed_down.iter().any(|word| word == *name)) {
        state.record(&Item::Controller((*controller).to_owned()))?;
        hand_down(root, controller)?;
    }
    let top = root.join(TOP);
    state.record(&Item::Cgroup(top.clone()))?;
    make_dir(&top)?;
    for controller in &wanted {
        hand_down(&top, controller)?;
    }
    for node in plan.nodes() {
        make_dir(&root.join(node.cgroup().trim_start_matches('/')))?;
    }
    Ok(())
}

fn hand_down(group: &Path, controller: &str) -> Result<()> {
    let path = group.join("cgroup.subtree_control");
    fs::write(&path, format!("+{controller}"))
        .with_context(|| format!("cannot hand the controller `{controller}` down through `{}`", path.display()))
}

/// Returns the separate hierarchies. Names such as `cpu` may be links to `cpu,cpuacct`. A unified hierarchy without
/// controllers may be among them, and the runtime creates groups in it, too.
fn hierarchies(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).with_context(|| format!("cannot read `{}`", root.display()))? {
        let entry = entry?;
        if entry.path().join("cgroup.procs").is_file() && entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    anyhow::ensure!(!found.is_empty(), "`{}` has no control groups; mount them", root.display());
    Ok(found)
}

fn make_group(parent: &Path, group: &Path) -> Result<()> {
    make_dir(group)?;
    // A new group of this controller has no processors, and accepts no process until it gets some.
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if let Ok(inherited) = fs::read_to_string(parent.join(file)) {
            let path = group.join(file);
            fs::write(&path, inherited.trim()).with_context(|| format!("cannot write `{}`", path.display()))?;
        }
    }
    Ok(())
}

fn make_dir(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("cannot make the control group `{}`", path.display()))
        }
        _ => Ok(()),
    }
}

/// Removes children first; the files in a group belong to the kernel and disappear with it.
fn remove_tree(group: &Path) -> std::io::Result<()> {
    let entries = match fs::read_dir(group) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(group)
}

fn words(path: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_real_hierarchies_are_used() {
        let root = std::env::temp_dir().join(format!("xdp-ingress-cgroup-{}", std::process::id()));
        for name in ["memory", "cpu,cpuacct", "other"] {
            fs::create_dir_all(root.join(name)).unwrap();
            if name != "other" {
                fs::write(root.join(name).join("cgroup.procs"), "").unwrap();
            }
        }
        std::os::unix::fs::symlink("cpu,cpuacct", root.join("cpu")).unwrap();
        let mut found = hierarchies(&root).unwrap();
        found.sort();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, [root.join("cpu,cpuacct"), root.join("memory")]);
    }

    #[test]
    fn a_missing_cgroup_counts_as_removed() {
        assert!(remove_tree(Path::new("/sys/fs/cgroup/no/such/group")).is_ok());
    }
}
