//! cosign, which verifies the signatures and attestations of a release, in the version that `xtask/setup/cosign/go.mod`
//! pins. Go builds it into the cache, from 1.6 GB of modules.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::cache::Cache;
use super::go;
use xtask_tools::{process, workspace};

/// Module that pins the version, relative to the work tree.
const MODULE: &str = "xtask/setup/cosign";
/// The program.
const PACKAGE: &str = "github.com/sigstore/cosign/v3/cmd/cosign";
/// About 300 CPU seconds; a slow or busy machine may need many times that.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);

/// Returns the program if it is in the cache.
///
/// # Errors
/// Fails if there is no cache directory or the pinned version cannot be read.
pub(super) fn find() -> Result<Option<PathBuf>> {
    let program = workspace::cache_dir()?.join(dir_name()?).join("cosign");
    Ok(program.is_file().then_some(program))
}

/// Builds the program into the cache.
///
/// # Errors
/// Fails if there is no Go, or it cannot fetch or build the program.
pub(super) fn install(cache: &Cache) -> Result<()> {
    let go = go::find("cosign")?;
    let place = cache.install(&dir_name()?, |staging| {
        let mut build = go::build(&go, MODULE, PACKAGE, "", &staging.join("cosign"));
        process::run_shown("building cosign (once, some minutes)", &mut build, BUILD_LIMIT)
    });
    place.map(drop)
}

/// Returns a name that changes with the pinned version, which is part of the checksum file.
fn dir_name() -> Result<String> {
    let pinned = workspace::root().join(MODULE).join("go.mod");
    let text = fs::read_to_string(pinned).context("cannot read the pinned version of cosign")?;
    ensure!(text.contains(PACKAGE), "`{MODULE}/go.mod` has no tool `{PACKAGE}`; add it with `go get -tool`");
    Ok(format!("cosign-{}", go::fingerprint(MODULE)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_a_tool_of_the_module() {
        assert!(dir_name().expect("the pinned version").starts_with("cosign-"));
    }
}
