//! mdBook, which turns `docs` into a site. Only `cargo xtask docs` needs it, so `cargo xtask setup` leaves it out.
//! A tool under the MPL-2.0, and no part of the product.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::cache::Cache;
use xtask_tools::{process, workspace};

const VERSION: &str = "0.5.4";
/// About three minutes on two CPUs; a slow or busy machine may need many times that.
const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// Returns mdBook if it is in the cache, or on `PATH` in the right version.
///
/// # Errors
/// Fails if there is no cache directory.
pub(super) fn find() -> Result<Option<PathBuf>> {
    let cached = workspace::cache_dir()?.join(dir_name()).join("bin/mdbook");
    if cached.is_file() {
        return Ok(Some(cached));
    }
    Ok(process::find_program("mdbook").filter(|path| answers_version(path)))
}

/// Builds mdBook into the cache, with the search and without its development server.
///
/// # Errors
/// Fails if cargo cannot fetch or build it.
pub(super) fn install(cache: &Cache) -> Result<()> {
    let place = cache.install(&dir_name(), |staging| {
        let mut cargo = Command::new("cargo");
        cargo.args(["install", "--locked", "--quiet", "--version", VERSION, "--no-default-features"]);
        cargo.args(["--features", "search", "--root"]).arg(staging).arg("mdbook").current_dir(workspace::root());
        let target = staging.join("target");
        // A profile or flags meant for this project must not change a third-party program.
        cargo.env("CARGO_TARGET_DIR", &target).env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
        process::run_shown(&format!("building mdbook {VERSION} (once, some minutes)"), &mut cargo, BUILD_LIMIT)?;
        fs::remove_dir_all(&target).context("cannot remove what the build of mdbook left")
    });
    place.map(drop).with_context(|| {
        format!("cannot get mdbook; `cargo install --locked mdbook --version {VERSION}` on `PATH` does as well")
    })
}

fn dir_name() -> String {
    format!("mdbook-{VERSION}")
}

fn answers_version(path: &Path) -> bool {
    process::capture(Command::new(path).arg("--version"))
        .is_ok_and(|answer| answer.trim_start_matches("mdbook ").trim_start_matches('v') == VERSION)
}
