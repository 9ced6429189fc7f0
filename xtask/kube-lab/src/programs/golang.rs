//! The programs of Kubernetes without a Debian package, built by Go from the pinned module. Each is built and kept
//! separately, so that an interrupted build resumes.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::versions::{self, MODULE};
use xtask_setup::{cache::Cache, go};
use xtask_tools::{process, progress, workspace};

/// The first program compiles nearly everything, which took five minutes on two cores; a slow machine needs many times
/// that.
const BUILD_LIMIT: Duration = Duration::from_secs(5400);

/// The pinned module in the work tree.
#[derive(Debug)]
pub(super) struct Module {
    /// Version of Kubernetes, such as `v1.36.4`.
    version: String,
    /// Distinguishes builds of one version from different lock files.
    fingerprint: String,
}

impl Module {
    /// Reads `go.mod` and `go.sum`.
    ///
    /// # Errors
    /// Fails if the files cannot be read or name no version of Kubernetes.
    pub(super) fn read() -> Result<Self> {
        let dir = workspace::root().join(MODULE);
        let read =
            |name: &str| fs::read_to_string(dir.join(name)).with_context(|| format!("cannot read `{MODULE}/{name}`"));
        let (go_mod, go_sum) = (read("go.mod")?, read("go.sum")?);
        let version = versions::kubernetes(&go_mod)?.to_owned();
        let hash = Sha256::new().chain_update(&go_mod).chain_update(&go_sum).finalize();
        let fingerprint = hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { version, fingerprint })
    }

    /// Returns the path of `program` in the cache; the file may not exist yet.
    ///
    /// # Errors
    /// Fails if there is no cache directory.
    pub(super) fn place(&self, program: &str) -> Result<PathBuf> {
        Ok(workspace::cache_dir()?.join(self.dir_name(program)).join(program))
    }

    /// Builds `program` into the cache.
    ///
    /// # Errors
    /// Fails if Go is missing or too old, or cannot fetch or build the program.
    pub(super) fn build(&self, cache: &Cache, program: &str) -> Result<()> {
        let go = go::find("Kubernetes")?;
        let place = cache.install(&self.dir_name(program), |staging| {
            let package = format!("k8s.io/kubernetes/cmd/{program}");
            let mut build = go::build(&go, MODULE, &package, &self.linker_flags(), &staging.join(program));
            // A higher parallelism needs more memory than a small machine has.
            build.env("GOFLAGS", "-p=2");
            let label = format!("building {program} {} (once; all five take about ten minutes)", self.version);
            process::run_shown(&label, &mut build, BUILD_LIMIT)
        });
        place.map(drop).with_context(|| format!("cannot build `{program}`; `go version` must say 1.26 or newer"))
    }

    fn linker_flags(&self) -> String {
        let version = &self.version;
        let set = |name: &str, value: &str| format!(" -X k8s.io/component-base/version.{name}={value}");
        let mut flags = set("gitVersion", version);
        if let Some((major, minor)) = versions::minor(version) {
            flags.push_str(&set("gitMajor", major));
            flags.push_str(&set("gitMinor", minor));
        }
        flags
    }

    fn dir_name(&self, program: &str) -> String {
        format!("kubernetes-{}-{}-{program}", self.version, self.fingerprint)
    }
}

/// Announces the programs that will be built, because that takes long.
pub(super) fn announce(missing: &[&str]) {
    progress::note(&format!(
        "building {} of Kubernetes' programs from their sources; an interrupted build goes on where it was",
        missing.len()
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_linked_with_their_version() {
        let module = Module { version: "v1.36.4".to_owned(), fingerprint: "ab".to_owned() };
        let flags = module.linker_flags();
        assert!(flags.contains("gitVersion=v1.36.4") && flags.contains("gitMinor=36"), "{flags}");
        assert_eq!(module.dir_name("kubelet"), "kubernetes-v1.36.4-ab-kubelet");
    }
}
