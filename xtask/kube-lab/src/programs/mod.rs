//! The programs of a real Kubernetes, for `cargo xtask cluster`: from Debian's packages where they exist, else built
//! from source, all kept in the user's cache. It starts none of them.

mod debian;
mod export;
mod golang;
mod pause;
mod versions;

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};

pub use self::export::export;
use self::golang::Module;
use self::versions::{BUILT, CNI, CONTAINERD, ETCD, KUBECTL, Package, REGISTRY, RUNC, UNPACKED};
use xtask_setup::cache::Cache;
use xtask_setup::system;
use xtask_tools::{process, progress};

/// Packages for the namespaces, mounts and control groups of a cluster.
const PACKAGES: [&str; 2] = ["iproute2", "util-linux"];
/// kube-proxy uses this to program nftables.
const PROXY_PACKAGES: [&str; 1] = ["nftables"];

/// Paths of the programs of a cluster.
#[derive(Debug, Clone)]
pub struct Binaries {
    pub etcd: PathBuf,
    pub kube_apiserver: PathBuf,
    pub kube_controller_manager: PathBuf,
    pub kube_scheduler: PathBuf,
    pub kubelet: PathBuf,
    pub kube_proxy: PathBuf,
    pub kubectl: PathBuf,
    /// Its directory also contains the shim, which containerd finds relative to its own path.
    pub containerd: PathBuf,
    pub ctr: PathBuf,
    pub runc: PathBuf,
    /// The directory with the CNI plugins.
    pub cni: PathBuf,
    /// An image archive with the container that holds a pod's namespaces, named [`PAUSE`].
    pub pause: PathBuf,
}

/// The name of the image in [`Binaries::pause`].
pub const PAUSE: &str = pause::NAME;

/// Ensures that all programs are present; fetches and builds missing ones.
///
/// # Errors
/// Fails if a program is missing and cannot be obtained here; the error names a remedy.
pub fn ensure() -> Result<Binaries> {
    system::ensure(&PACKAGES, "cluster")?;
    let module = Module::read()?;
    let (assets, ready) = (Assets::from_env()?, is_ready(&module)?);
    if !ready {
        let cache = Cache::lock()?;
        install(&cache, &module, &assets)?;
    }
    locate(&module, &assets)
}

/// Ensures that the requirements of kube-proxy, besides its own program, are installed.
///
/// # Errors
/// Fails if one is missing and cannot be installed here.
pub fn ensure_proxy() -> Result<()> {
    system::ensure(&PROXY_PACKAGES, "cluster")
}

/// Returns the program of a registry for OCI images; fetches it if it is missing.
///
/// # Errors
/// Fails if it is missing and cannot be obtained here.
pub fn registry() -> Result<PathBuf> {
    if !debian::is_there(&REGISTRY)? {
        debian::install(&Cache::lock()?, &[&REGISTRY]).context("cannot get a registry, which Debian packages")?;
    }
    Ok(debian::place(&REGISTRY)?.join("usr/bin/docker-registry"))
}

/// Wraps [`ensure`] for tests: returns `false`, with a loud line, if Kubernetes is unavailable or this is not root.
///
/// # Errors
/// With `REQUIRE_KUBE=1` fails like [`ensure`], instead of returning `false`.
pub fn required_or_skip(what: &str) -> Result<bool> {
    let result = if process::is_root() { ensure() } else { Err(anyhow!("only root may make namespaces")) };
    match result {
        Ok(_) => Ok(true),
        Err(error) if process::is_required("REQUIRE_KUBE") => {
            Err(error.context(format!("`{what}` must run because `REQUIRE_KUBE=1` is set")))
        }
        Err(error) => {
            progress::warn(&format!("SKIPPED: `{what}` needs a real Kubernetes, which cannot be had here: {error:#}"));
            Ok(false)
        }
    }
}

/// Programs that the user supplies, by the convention of Kubernetes' envtest.
#[derive(Debug, Default)]
struct Assets(Option<PathBuf>);

impl Assets {
    fn from_env() -> Result<Self> {
        let Some(dir) = env::var_os("KUBEBUILDER_ASSETS").filter(|dir| !dir.is_empty()).map(PathBuf::from) else {
            return Ok(Self::default());
        };
        if !dir.is_dir() {
            bail!("`KUBEBUILDER_ASSETS` names `{}`, which is no directory; unset it or correct it", dir.display());
        }
        Ok(Self(Some(dir)))
    }

    fn find(&self, program: &str) -> Option<PathBuf> {
        self.0.as_deref().map(|dir| dir.join(program)).filter(|path| path.is_file())
    }
}

/// Returns `true` if all programs that this project fetches or builds are in the cache, judged by their files.
fn is_ready(module: &Module) -> Result<bool> {
    for package in UNPACKED {
        if !debian::is_there(package)? {
            return Ok(false);
        }
    }
    for program in BUILT {
        if !module.place(program)?.is_file() {
            return Ok(false);
        }
    }
    pause::is_there()
}

fn install(cache: &Cache, module: &Module, assets: &Assets) -> Result<()> {
    let mut missing: BTreeMap<&str, Vec<&Package>> = BTreeMap::new();
    for package in UNPACKED {
        if package.asset.and_then(|asset| assets.find(asset)).is_none() && !debian::is_there(package)? {
            missing.entry(package.suite).or_default().push(package);
        }
    }
    for of_suite in missing.values() {
        debian::install(cache, of_suite).context("cannot get a part of Kubernetes that Debian packages")?;
    }
    let mut unbuilt = Vec::new();
    for program in BUILT {
        if assets.find(program).is_none() && !module.place(program)?.is_file() {
            unbuilt.push(program);
        }
    }
    if !unbuilt.is_empty() {
        golang::announce(&unbuilt);
    }
    for program in unbuilt {
        module.build(cache, program)?;
    }
    if !pause::is_there()? {
        pause::install(cache)?;
    }
    Ok(())
}

fn locate(module: &Module, assets: &Assets) -> Result<Binaries> {
    let unpacked = |package: &Package, path: &str| -> Result<PathBuf> { Ok(debian::place(package)?.join(path)) };
    let or = |program: &str, own: Result<PathBuf>| assets.find(program).map_or(own, Ok);
    let binaries = Binaries {
        etcd: or("etcd", unpacked(&ETCD, "usr/bin/etcd"))?,
        kube_apiserver: or("kube-apiserver", module.place("kube-apiserver"))?,
        kube_controller_manager: or("kube-controller-manager", module.place("kube-controller-manager"))?,
        kube_scheduler: or("kube-scheduler", module.place("kube-scheduler"))?,
        kubelet: or("kubelet", module.place("kubelet"))?,
        kube_proxy: or("kube-proxy", module.place("kube-proxy"))?,
        kubectl: or("kubectl", unpacked(&KUBECTL, "usr/bin/kubectl"))?,
        containerd: unpacked(&CONTAINERD, "usr/bin/containerd")?,
        ctr: unpacked(&CONTAINERD, "usr/bin/ctr")?,
        runc: unpacked(&RUNC, "usr/sbin/runc")?,
        cni: unpacked(&CNI, "usr/lib/cni")?,
        pause: pause::place()?,
    };
    binaries.verify()?;
    Ok(binaries)
}

// === impl Binaries ===

impl Binaries {
    /// Returns the programs with their usual names.
    fn programs(&self) -> [(&'static str, &Path); 10] {
        let Self {
            etcd,
            kube_apiserver,
            kube_controller_manager,
            kube_scheduler,
            kubelet,
            kube_proxy,
            kubectl,
            containerd,
            ctr,
            runc,
            cni: _,
            pause: _,
        } = self;
        [
            ("etcd", etcd),
            ("kube-apiserver", kube_apiserver),
            ("kube-controller-manager", kube_controller_manager),
            ("kube-scheduler", kube_scheduler),
            ("kubelet", kubelet),
            ("kube-proxy", kube_proxy),
            ("kubectl", kubectl),
            ("containerd", containerd),
            ("ctr", ctr),
            ("runc", runc),
        ]
    }

    /// Returns all files and directories with names for messages.
    fn named(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let others: [(&'static str, &Path); 2] = [("CNI plugins", &self.cni), ("pause image", &self.pause)];
        self.programs().into_iter().chain(others)
    }

    fn verify(&self) -> Result<()> {
        match self.named().find(|(_, path)| !path.exists()) {
            Some((name, path)) => bail!("{name} is missing although it was installed; remove `{}`", path.display()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assets_of_the_user_are_found_by_name() {
        assert_eq!(Assets(Some("/bin".into())).find("sh"), Some("/bin/sh".into()));
        assert_eq!(Assets(Some("/bin".into())).find("no-such-program"), None);
        assert_eq!(Assets::default().find("sh"), None);
    }
}
