//! Prometheus and its tool promtool, which test the alerts, in the version that `xtask/setup/prometheus/go.mod` pins.
//! Go builds them into the cache, without service discovery and without the pages for browsers.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::cache::{Cache, sha256_file};
use super::go;
use xtask_tools::{process, workspace};

/// Module that pins the version, relative to the work tree.
const MODULE: &str = "xtask/setup/prometheus";
/// The programs, each with the package that it is built from.
const PROGRAMS: [(&str, &str); 2] = [
    ("promtool", "github.com/prometheus/prometheus/cmd/promtool"),
    ("prometheus", "github.com/prometheus/prometheus/cmd/prometheus"),
];
/// Leaves out the clients of clouds and clusters, most of the code. Files and fixed targets remain.
const TAGS: &str = "-tags=remove_all_sd";
/// About 300 CPU seconds; a slow or busy machine may need many times that.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);

/// The programs, ready to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prometheus {
    /// Checks and tests rules.
    pub promtool: PathBuf,
    pub prometheus: PathBuf,
}

/// Returns the programs if they are in the cache.
///
/// # Errors
/// Fails if there is no cache directory or the pinned version cannot be read.
pub(super) fn find() -> Result<Option<Prometheus>> {
    let place = workspace::cache_dir()?.join(dir_name()?);
    let [promtool, prometheus] = PROGRAMS.map(|(program, _)| place.join(program));
    Ok((promtool.is_file() && prometheus.is_file()).then_some(Prometheus { promtool, prometheus }))
}

/// Builds the programs into the cache.
///
/// # Errors
/// Fails if there is no Go, or it cannot fetch or build them.
pub(super) fn install(cache: &Cache) -> Result<()> {
    let go = go::find("Prometheus")?;
    let place = cache.install(&dir_name()?, |staging| {
        for (program, package) in PROGRAMS {
            let label = format!("building {program} (once, some minutes)");
            let mut build = go::build(&go, MODULE, package, "", &staging.join(program));
            process::run_shown(&label, build.env("GOFLAGS", TAGS), BUILD_LIMIT)?;
        }
        Ok(())
    });
    place.map(drop)
}

/// Returns a name that changes with the pinned version, which is part of the checksum file.
fn dir_name() -> Result<String> {
    let pinned = workspace::root().join(MODULE);
    let text = fs::read_to_string(pinned.join("go.mod")).context("cannot read the pinned version of Prometheus")?;
    for (_, package) in PROGRAMS {
        ensure!(text.contains(package), "`{MODULE}/go.mod` has no tool `{package}`; add it with `go get -tool`");
    }
    Ok(format!("prometheus-{:.16}", sha256_file(&pinned.join("go.sum"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_is_a_tool_of_the_module() {
        assert!(dir_name().expect("the pinned version").starts_with("prometheus-"));
    }
}
