//! Paths of the work tree, its target directories and the user's cache. Creates nothing.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Returns the root of the work tree from which this xtask was built.
pub fn root() -> &'static Path {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).unwrap_or(manifest)
}

/// Returns cargo's output directory for this machine: `CARGO_TARGET_DIR`, else `target/`.
pub fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Returns the path of the object with the kernel programs, from which `ingress-userspace` embeds it.
///
/// The path is below the work tree even when `CARGO_TARGET_DIR` points elsewhere, because a build script cannot know
/// that directory.
pub fn ebpf_object() -> PathBuf {
    root().join("target/ebpf/ingress-ebpf.o")
}

/// Returns the target directory of the kernel programs. It is separate from that of userspace: the flags differ, and in
/// one directory each build would undo the other.
pub fn ebpf_target_dir() -> PathBuf {
    root().join("target/ebpf-build")
}

/// Returns the per-user cache of tools: `$XDG_CACHE_HOME/xdp-ingress`, else `~/.cache/xdp-ingress`.
///
/// # Errors
/// Fails if neither variable is an absolute path.
pub fn cache_dir() -> Result<PathBuf> {
    cache_from(env::var_os("XDG_CACHE_HOME").map(PathBuf::from), env::home_dir())
        .context("neither `XDG_CACHE_HOME` nor `HOME` is an absolute path; set one of them")
}

fn cache_from(xdg: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    // The XDG base directory specification requires that a relative path is ignored.
    let base = xdg.filter(|dir| dir.is_absolute()).or_else(|| home.map(|dir| dir.join(".cache")))?;
    base.is_absolute().then(|| base.join("xdp-ingress"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_prefers_xdg_and_ignores_relative_paths() {
        let check = |xdg: Option<&str>, home: Option<&str>, expect: Option<&str>| {
            assert_eq!(cache_from(xdg.map(PathBuf::from), home.map(PathBuf::from)), expect.map(PathBuf::from));
        };
        check(Some("/c"), Some("/h"), Some("/c/xdp-ingress"));
        check(Some("c"), Some("/h"), Some("/h/.cache/xdp-ingress"));
        check(None, Some("/h"), Some("/h/.cache/xdp-ingress"));
        check(None, Some("h"), None);
        check(None, None, None);
    }
}
