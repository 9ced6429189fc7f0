//! zig and cargo-zigbuild, which compile and link programs for macOS on Linux, from the wheels that their authors publish.
//! zig brings the C library of macOS as headers and lists of names; Apple's SDK is not part of it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::cache::Cache;
use super::system;
use xtask_tools::{process, workspace};

/// Name of the directory in the cache; it changes with the versions below.
const NAME: &str = "zig-0.17.1-zigbuild-0.24.1";
/// The wheels for x86-64 and arm64 with glibc.
const REQUIREMENTS: &str = "\
ziglang==0.17.1 \
    --hash=sha256:ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54 \
    --hash=sha256:b7c5f02fccd40f89b999ee16a1f5ddced56e6182370f8affe494bcf8a28cf07e
cargo-zigbuild==0.24.1 \
    --hash=sha256:238a1ab54a95053a4eadc34775c81f795a8ad75f80bfed63f3f445f518102375 \
    --hash=sha256:07c5e3dcddf208500462ec927c556bb306cca2b533b0abe29446bffb63767b85
";
/// 100 MB, which become 420 MB.
const LIMIT: Duration = Duration::from_secs(900);

/// The programs, ready to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zig {
    dir: PathBuf,
}

// === impl Zig ===

impl Zig {
    /// Returns a `cargo zigbuild` that runs in the work tree.
    #[must_use]
    pub fn cargo(&self) -> Command {
        let Self { dir } = self;
        let mut command = Command::new(dir.join("bin/cargo-zigbuild"));
        command.arg("zigbuild").current_dir(workspace::root());
        command.env("CARGO_ZIGBUILD_ZIG_PATH", dir.join("ziglang/zig"));
        // What it makes depends on the paths of this work tree.
        let made = workspace::target_dir().join("zig");
        command.env("CARGO_ZIGBUILD_CACHE_DIR", made.join("wrappers"));
        command.env("ZIG_GLOBAL_CACHE_DIR", made.join("cache"));
        command
    }
}

/// Returns the programs if they are in the cache.
///
/// # Errors
/// Fails if there is no cache directory.
pub(super) fn find() -> Result<Option<Zig>> {
    let dir = workspace::cache_dir()?.join(NAME);
    Ok(dir.is_dir().then_some(Zig { dir }))
}

/// Installs the programs into the cache.
///
/// # Errors
/// Fails if Python's package installer is missing or cannot fetch them.
pub(super) fn install(cache: &Cache) -> Result<()> {
    system::ensure_pip()?;
    let place = cache.install(NAME, |staging| {
        let requirements = staging.join("requirements.txt");
        fs::write(&requirements, REQUIREMENTS)?;
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]);
        pip.args(["--root-user-action", "ignore", "--target"]).arg(staging).arg("-r").arg(&requirements);
        process::run_shown("fetching zig and cargo-zigbuild", &mut pip, LIMIT)?;
        for program in ["bin/cargo-zigbuild", "ziglang/zig"] {
            fs::metadata(staging.join(program)).with_context(|| format!("the wheels have no `{program}`"))?;
        }
        Ok(())
    });
    place.map(drop).context("cannot get zig, which links programs for macOS")
}
