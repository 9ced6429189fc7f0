//! Debian's kernels for `cargo xtask kernels`: the files that a machine boots from, kept in the user's cache. The
//! module installs nothing and boots none of them.

mod modules;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use self::modules::Tree;
use xtask_setup::apt::PrivateApt;
use xtask_setup::cache::{self, Cache};
use xtask_setup::system;
use xtask_tools::{process, workspace};

/// The package that depends on the newest kernel of a suite.
const KERNEL: &str = "linux-image-amd64";
/// The only userspace of a machine besides the product.
const BUSYBOX: &str = "busybox-static";
/// Modules that a machine needs before it has a network and hooks for the programs: drivers, and the classifier that
/// counts packets that leave before Linux 6.6.
const MODULES: [&str; 5] = ["virtio_pci", "virtio_net", "e1000", "sch_ingress", "cls_bpf"];
const UNPACK_LIMIT: Duration = Duration::from_secs(600);

/// A kernel with its modules and userspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kernel {
    /// Output of `uname -r` on this kernel, such as `6.1.0-56-amd64`.
    pub release: String,
    /// The file that a boot loader loads.
    pub image: PathBuf,
    /// Modules in load order: each follows its dependencies.
    pub modules: Vec<PathBuf>,
    /// A static program with a shell, insmod, ip and mount.
    pub busybox: PathBuf,
}

/// Returns `true` if programs built on this machine run in the emulated machines, which are x86-64.
#[must_use]
pub const fn can_boot() -> bool {
    cfg!(target_arch = "x86_64")
}

/// Returns the newest kernel of Debian's `suite`, from the cache if one was fetched under this `name` before.
///
/// # Errors
/// Fails if the kernel is not in the cache and cannot be fetched, or this machine lacks a required program.
pub(super) fn ensure(name: &str, suite: &str) -> Result<Kernel> {
    ensure!(can_boot(), "machines are x86-64, and so must this one be, which builds what runs there");
    system::ensure(&system::KERNELS, "kernels")?;
    let find = || find_below(&workspace::cache_dir()?, name);
    cache::kept(&format!("Linux {name}"), find, |cache| install(cache, name, suite)).with_context(|| {
        format!(
            "cannot get Linux {name}: it comes from Debian `{suite}`, by the mirror that `/etc/apt` names, and once it \
             was fetched from the cache; where no mirror can be reached, copy `kernel-{name}-*` from the cache of a \
             machine that has it"
        )
    })
}

fn find_below(dir: &Path, name: &str) -> Result<Option<Kernel>> {
    let prefix = format!("kernel-{name}-");
    let Ok(entries) = fs::read_dir(dir) else { return Ok(None) };
    let mut places: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix)))
        .collect();
    places.sort();
    places.iter().rev().find_map(|place| open(place).transpose()).transpose()
}

/// Reads the kernel that [`fill`] has left in `place`; `None` if it was for another list of modules.
fn open(place: &Path) -> Result<Option<Kernel>> {
    let read = |name: &str| {
        let path = place.join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))
    };
    if read("wanted")? != MODULES.join(" ") {
        return Ok(None);
    }
    Ok(Some(Kernel {
        release: read("release")?,
        image: place.join("vmlinuz"),
        modules: read("order")?.lines().map(|module| place.join(module)).collect(),
        busybox: place.join("busybox"),
    }))
}

fn install(cache: &Cache, name: &str, suite: &str) -> Result<()> {
    // The index and the packages are kept only during the download.
    let work = cache.install(&format!("index-{name}"), |work| {
        let apt = PrivateApt::open(work, suite)?;
        let version = newest(&apt, KERNEL, suite)?;
        cache.install(&format!("kernel-{name}-{version}"), |staging| {
            let parts = parts(|package| apt.dependencies(package))?;
            let unpacked = work.join("unpacked");
            for package in parts.iter().map(String::as_str).chain([BUSYBOX]) {
                let file = apt.download(package, &newest(&apt, package, suite)?)?;
                let mut unpack = Command::new("dpkg-deb");
                unpack.arg("-x").arg(&file).arg(&unpacked);
                process::run_shown(&format!("unpacking {package}"), &mut unpack, UNPACK_LIMIT)?;
                fs::remove_file(&file).with_context(|| format!("cannot remove `{}`", file.display()))?;
            }
            fill(&unpacked, &parts, staging)
        })?;
        Ok(())
    })?;
    fs::remove_dir_all(&work).with_context(|| format!("cannot remove `{}`", work.display()))
}

fn newest(apt: &PrivateApt, package: &str, suite: &str) -> Result<String> {
    let versions = apt.versions(package)?;
    versions.into_iter().next().with_context(|| format!("Debian `{suite}` carries no `{package}`"))
}

/// Returns the packages that contain files of the kernel. Up to Debian 13 that is one; in later releases the image, the
/// modules and their lists have a package each, on which the first depends.
fn parts(dependencies: impl Fn(&str) -> Result<Vec<String>>) -> Result<Vec<String>> {
    let mut parts: Vec<String> = Vec::new();
    let mut open = vec![KERNEL.to_owned()];
    while let Some(package) = open.pop() {
        for part in dependencies(&package)? {
            if part.starts_with("linux-") && part.ends_with("-amd64") && !parts.contains(&part) {
                open.push(part.clone());
                parts.push(part);
            }
        }
    }
    ensure!(!parts.is_empty(), "Debian's `{KERNEL}` depends on no kernel");
    Ok(parts)
}

/// Copies the required files out of the unpacked packages.
fn fill(unpacked: &Path, parts: &[String], place: &Path) -> Result<()> {
    let release = parts.iter().find_map(|part| part.strip_prefix("linux-image-"));
    let release = release.with_context(|| format!("none of {parts:?} names the kernel's release"))?;
    let tree = ["usr/lib", "lib"].map(|lib| unpacked.join(lib).join("modules").join(release));
    let tree = tree.iter().find(|tree| tree.is_dir()).context("the packages have no modules")?;
    let images = [unpacked.join(format!("boot/vmlinuz-{release}")), tree.join("vmlinuz")];
    copy_first(&images, &place.join("vmlinuz"))?;
    copy_first(&["bin/busybox", "usr/bin/busybox"].map(|path| unpacked.join(path)), &place.join("busybox"))?;
    let tree = Tree::read(tree)?;
    let modules = modules::in_order(&MODULES, |name| tree.module(name))?;
    let mut order = String::new();
    for (name, content) in modules {
        let file = format!("{name}.ko");
        fs::write(place.join(&file), content).with_context(|| format!("cannot write `{file}`"))?;
        order.push_str(&file);
        order.push('\n');
    }
    for (file, text) in [("order", order.as_str()), ("release", release), ("wanted", &MODULES.join(" "))] {
        fs::write(place.join(file), text).with_context(|| format!("cannot write `{file}`"))?;
    }
    Ok(())
}

fn copy_first(from: &[PathBuf; 2], to: &Path) -> Result<()> {
    let there = from.iter().find(|path| path.is_file());
    let there = there.with_context(|| format!("the packages have none of {from:?}"))?;
    fs::copy(there, to).map(drop).with_context(|| format!("cannot copy `{}`", there.display()))
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    #[test]
    fn kernels_in_one_or_several_packages_are_found() {
        let check = |all: &[(&str, &[&str])], expect: &[&str]| {
            let dependencies = |package: &str| {
                let of = all.iter().find(|(name, _)| *name == package).map_or(&[][..], |(_, names)| *names);
                Ok(of.iter().map(|name| (*name).to_owned()).collect())
            };
            assert_eq!(parts(dependencies).unwrap_or_default(), expect);
        };
        check(
            &[(KERNEL, &["linux-image-6.1.0-1-amd64"]), ("linux-image-6.1.0-1-amd64", &["kmod"])],
            &["linux-image-6.1.0-1-amd64"],
        );
        check(
            &[
                (KERNEL, &["linux-base-amd64", "linux-image-7-amd64"]),
                ("linux-image-7-amd64", &["linux-base-7-amd64", "linux-modules-7-amd64"]),
                ("linux-modules-7-amd64", &["linux-base-7-amd64"]),
            ],
            &["linux-base-amd64", "linux-image-7-amd64", "linux-base-7-amd64", "linux-modules-7-amd64"],
        );
        check(&[(KERNEL, &["kmod"])], &[]);
    }

    #[test]
    fn the_newest_kernel_with_these_modules_is_found() {
        let dir = env::temp_dir().join(format!("xdp-ingress-kernels-{}", std::process::id()));
        let put = |place: &str, wanted: &str| {
            fs::create_dir_all(dir.join(place)).unwrap();
            for (file, text) in [("wanted", wanted), ("release", place), ("order", "b.ko\na.ko\n")] {
                fs::write(dir.join(place).join(file), text).unwrap();
            }
        };
        let today = MODULES.join(" ");
        put("kernel-6.1-6.1.1", &today);
        put("kernel-6.1-6.1.2", &today);
        put("kernel-6.1-6.1.3", "others");
        put("kernel-6.12-6.12.9", &today);
        let found = find_below(&dir, "6.1").unwrap().unwrap();
        let place = dir.join("kernel-6.1-6.1.2");
        assert_eq!(found.release, "kernel-6.1-6.1.2");
        assert_eq!(found.modules, [place.join("b.ko"), place.join("a.ko")]);
        assert_eq!(find_below(&dir, "5.10").unwrap(), None);
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(find_below(&dir, "6.1").unwrap(), None);
    }
}
