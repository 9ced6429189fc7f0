//! Versions and checksums of the tests' real Kubernetes, except those in `kubernetes/go.mod`, which pins the
//! programs that are built. This file contains data and the parser of that `go.mod`; it fetches nothing.
//!
//! This combination was tested. etcd 3.4 and 3.5.1 refuse the streaming lists of Kubernetes 1.36. runc from Debian's
//! newer releases needs a newer C library than Debian 12 has, but the one from Debian 12 runs on all of them.

use anyhow::{Context, Result};

/// The module that builds the programs of Kubernetes itself, below the work tree.
pub(super) const MODULE: &str = "xtask/kube-lab/kubernetes";

/// Programs built by `MODULE`, in the order in which a cluster needs them.
pub(super) const BUILT: [&str; 5] =
    ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"];

/// A package of Debian's, unpacked into the cache without being installed.
#[derive(Debug)]
pub(super) struct Package {
    pub(super) name: &'static str,
    pub(super) suite: &'static str,
    pub(super) version: &'static str,
    /// SHA-256 of the package for each architecture, by Debian's name for it.
    pub(super) sha256: [(&'static str, &'static str); 2],
    /// Programs that the package must contain, and that must run.
    pub(super) programs: &'static [&'static str],
    /// The name of the program if the user supplies it instead.
    pub(super) asset: Option<&'static str>,
}

/// All packages that are unpacked.
pub(super) const UNPACKED: [&Package; 5] = [&ETCD, &KUBECTL, &CONTAINERD, &CNI, &RUNC];

pub(super) const ETCD: Package = Package {
    name: "etcd-server",
    suite: "sid",
    version: "3.5.30-2",
    sha256: [
        ("amd64", "11a4f7e350c5020b83edff5160a6063d4e56ac9cd014d21ce8916378bf96de79"),
        ("arm64", "c9f0208925c51d44ba026367930c67a1fd2bef12d162e8b99d249f42242f7100"),
    ],
    programs: &["usr/bin/etcd"],
    asset: Some("etcd"),
};

pub(super) const KUBECTL: Package = Package {
    name: "kubectl",
    suite: "sid",
    version: "1.36.4+ds-1",
    sha256: [
        ("amd64", "407dad9ec755a64ef8c96dd2f5c0c093f9d334193c91cc0ce8424928cd5734d3"),
        ("arm64", "5710b3f09f454702b7342852021612d0215bbcaa2520cb539ff0105b1e349e2c"),
    ],
    programs: &["usr/bin/kubectl"],
    asset: Some("kubectl"),
};

pub(super) const CONTAINERD: Package = Package {
    name: "containerd",
    suite: "sid",
    version: "2.1.9+ds1-5",
    sha256: [
        ("amd64", "2dda86ce7033fd612fc50e136679d8174ccad680eb29cd4611e0d2a1b84cf591"),
        ("arm64", "43426c2af51f051e86374143d34031830ee5d0ff16bc23f35c6f498f27f8389d"),
    ],
    programs: &["usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/bin/ctr"],
    asset: None,
};

pub(super) const CNI: Package = Package {
    name: "containernetworking-plugins",
    suite: "sid",
    version: "1.9.1+ds1-1",
    sha256: [
        ("amd64", "12857dd3136d61e00bffcc2c8823d14df586e94406098326e02846cfa46a058e"),
        ("arm64", "f3da010c16eb52e1fe2cbb35ba3c724f2bd2c647b57ffe215d8fad4336d08a53"),
    ],
    programs: &["usr/lib/cni/bridge", "usr/lib/cni/host-local", "usr/lib/cni/loopback"],
    asset: None,
};

pub(super) const RUNC: Package = Package {
    name: "runc",
    suite: "bookworm",
    version: "1.1.5+ds1-1+deb12u1",
    sha256: [
        ("amd64", "a00351f8c0318de0b424ecf5cd0fdb69880a89f3511cae4f6fff7de3e57881c5"),
        ("arm64", "9cd43580a5e01bbcb57b662aa94df63914ffde088e9f739324cf0d6fb87c38c0"),
    ],
    programs: &["usr/sbin/runc"],
    asset: None,
};

/// Not part of a cluster: fetched when a test first needs it.
pub(super) const REGISTRY: Package = Package {
    name: "docker-registry",
    suite: "bookworm",
    version: "2.8.2+ds1-1",
    sha256: [
        ("amd64", "a9bd06c0e006854608f8469b4371743f40604ad90975532bb3b7ceeb72fe2913"),
        ("arm64", "652d4e3fe828ccf9b80962dce13f813fb969f1d5e1dae7d7ceff79ec9a5ed651"),
    ],
    programs: &["usr/bin/docker-registry"],
    asset: None,
};

/// Returns the version of Kubernetes that `go_mod` requires, such as `v1.36.4`.
///
/// # Errors
/// Fails if `go_mod` requires none.
pub(super) fn kubernetes(go_mod: &str) -> Result<&str> {
    go_mod
        .lines()
        .find_map(|line| line.trim().strip_prefix("require ").unwrap_or(line.trim()).strip_prefix("k8s.io/kubernetes "))
        .and_then(|rest| rest.split_whitespace().next())
        .with_context(|| format!("`{MODULE}/go.mod` requires no version of `k8s.io/kubernetes`"))
}

/// Returns the first two numbers of a version such as `v1.36.4` or `Kubernetes v1.36.4`.
pub(super) fn minor(version: &str) -> Option<(&str, &str)> {
    let mut numbers = version.rsplit_once('v')?.1.split('.');
    let (major, minor) = (numbers.next()?, numbers.next()?);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(major) && is_number(minor)).then_some((major, minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubernetes_version_is_that_of_go_mod() {
        let check = |text: &str, expect: Option<&str>| assert_eq!(kubernetes(text).ok(), expect, "{text}");
        check("module m\nrequire k8s.io/kubernetes v1.36.2\n", Some("v1.36.2"));
        check("require (\n\tk8s.io/kubernetes v1.36.4 // indirect\n)\n", Some("v1.36.4"));
        check("tool (\n\tk8s.io/kubernetes/cmd/kubelet\n)\nreplace (\n\tk8s.io/api => k8s.io/api v0.36.4\n)\n", None);
        let committed = std::fs::read_to_string(xtask_tools::workspace::root().join(MODULE).join("go.mod")).unwrap();
        let version = kubernetes(&committed).unwrap();
        assert!(minor(version).is_some(), "{version}");
        for program in BUILT {
            assert!(committed.contains(&format!("\tk8s.io/kubernetes/cmd/{program}\n")), "{program}");
        }
        // Staging modules are published from the same tag; one of another release would not fit.
        let staging = format!(" {}", version.replacen("v1.", "v0.", 1));
        for line in committed.lines().filter(|line| line.contains(" => k8s.io/")) {
            assert!(line.ends_with(&staging), "{line}");
        }
    }

    #[test]
    fn only_complete_versions_have_a_minor() {
        let check = |text: &str, expect: Option<(&str, &str)>| assert_eq!(minor(text), expect, "{text}");
        check("v1.36.4", Some(("1", "36")));
        check("Kubernetes v1.30.0-beta.1", Some(("1", "30")));
        check("v1", None);
        check("v1.x", None);
        check("", None);
    }

    #[test]
    fn checksums_are_sha256_in_lowercase() {
        for package in UNPACKED.into_iter().chain([&REGISTRY]) {
            for (architecture, sum) in package.sha256 {
                let is_hex = sum.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
                assert!(sum.len() == 64 && is_hex, "{} {architecture}", package.name);
            }
        }
    }
}
