//! Helm and kustomize, which check and install the packaging, in the versions that `xtask/setup/helm/go.mod` pins.
//! Go builds them into the cache.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::cache::{Cache, sha256_file};
use super::go;
use xtask_tools::{process, workspace};

/// Module that pins the versions, relative to the work tree.
const MODULE: &str = "xtask/setup/helm";
/// The programs, each with the package that it is built from.
const PROGRAMS: [(&str, &str); 2] =
    [("helm", "helm.sh/helm/v4/cmd/helm"), ("kustomize", "sigs.k8s.io/kustomize/kustomize/v5")];
/// About 200 CPU seconds; a slow or busy machine may need many times that.
const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// The programs, ready to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packagers {
    /// Renders and checks the chart.
    pub helm: PathBuf,
    /// Renders `deploy/base` and its overlays.
    pub kustomize: PathBuf,
}

/// Returns the programs if they are in the cache.
///
/// # Errors
/// Fails if there is no cache directory or the pinned versions cannot be read.
pub(super) fn find() -> Result<Option<Packagers>> {
    let place = workspace::cache_dir()?.join(dir_name()?);
    let [helm, kustomize] = PROGRAMS.map(|(program, _)| place.join(program));
    Ok((helm.is_file() && kustomize.is_file()).then_some(Packagers { helm, kustomize }))
}

/// Builds the programs into the cache.
///
/// # Errors
/// Fails if there is no Go, or it cannot fetch or build them.
pub(super) fn install(cache: &Cache) -> Result<()> {
    let go = go::find("helm and kustomize")?;
    let place = cache.install(&dir_name()?, |staging| {
        for (program, package) in PROGRAMS {
            let label = format!("building {program} (once, a minute or more)");
            process::run_shown(&label, &mut go::build(&go, MODULE, package, "", &staging.join(program)), BUILD_LIMIT)?;
        }
        Ok(())
    });
    place.map(drop)
}

/// Returns a name that changes with the pinned versions, which are part of the checksum file.
fn dir_name() -> Result<String> {
    let pinned = workspace::root().join(MODULE);
    let text = fs::read_to_string(pinned.join("go.mod")).context("cannot read the pinned versions of helm")?;
    for (_, package) in PROGRAMS {
        ensure!(text.contains(package), "`{MODULE}/go.mod` has no tool `{package}`; add it with `go get -tool`");
    }
    Ok(format!("packagers-{:.16}", sha256_file(&pinned.join("go.sum"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_is_a_tool_of_the_module() {
        assert!(dir_name().expect("the pinned versions").starts_with("packagers-"));
    }
}
