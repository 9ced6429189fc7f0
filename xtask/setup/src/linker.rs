//! bpf-linker in the version that fits the pinned compiler. It touches no other tool of the user.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::cache::Cache;
use xtask_tools::{process, workspace};

/// The last version that uses the compiler's own LLVM at run time; later ones require a system LLVM.
pub const VERSION: &str = "0.10.4";
/// The major version of LLVM that this version can read bitcode of.
pub(super) const LLVM_MAJOR: u32 = 22;
/// About 100 CPU seconds; a slow or busy machine may need many times that.
const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// Returns the linker if it is in the cache, or on `PATH` in the right version.
///
/// # Errors
/// Fails if there is no cache directory.
pub(super) fn find() -> Result<Option<PathBuf>> {
    let cached = workspace::cache_dir()?.join(dir_name()).join("bin/bpf-linker");
    if cached.is_file() {
        return Ok(Some(cached));
    }
    Ok(process::find_program("bpf-linker").filter(|path| answers_version(path)))
}

/// Builds the linker into the cache.
///
/// # Errors
/// Fails if cargo cannot fetch or build it.
pub(super) fn install(cache: &Cache) -> Result<()> {
    let place = cache.install(&dir_name(), |staging| {
        let mut cargo = Command::new("cargo");
        cargo.args(["install", "--locked", "--quiet", "--version", VERSION, "--root"]).arg(staging);
        cargo.arg("bpf-linker").current_dir(workspace::root());
        let target = staging.join("target");
        // A profile or flags meant for this project must not change a third-party program.
        cargo.env("CARGO_TARGET_DIR", &target).env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
        process::run_shown(&format!("building bpf-linker {VERSION} (once, a minute or two)"), &mut cargo, BUILD_LIMIT)?;
        fs::remove_dir_all(&target).context("cannot remove what the build of bpf-linker left")
    });
    place.map(drop).with_context(|| {
        format!("cannot get bpf-linker; `cargo install --locked bpf-linker --version {VERSION}` on `PATH` does as well")
    })
}

fn dir_name() -> String {
    format!("bpf-linker-{VERSION}")
}

fn answers_version(path: &Path) -> bool {
    process::capture(Command::new(path).arg("--version")).is_ok_and(|answer| answer == format!("bpf-linker {VERSION}"))
}
