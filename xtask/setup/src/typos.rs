//! The spell checker `typos`, from the wheel that its authors publish, so that nothing has to be compiled.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::cache::Cache;
use super::system;
use xtask_tools::{process, workspace};

const VERSION: &str = "1.52.0";
/// The wheels for x86-64 and arm64 with glibc.
const SHA256: [&str; 2] = [
    "418fd85f7fc11dec14e5482e747f6e916af56da96207cde0cdd69540a4b389f6",
    "5e870133c7e9cace94183e4d638697004a1473e79abcd01b8f75e362049a9b5c",
];
const LIMIT: Duration = Duration::from_secs(300);

/// Returns the checker if it is in the cache, or on `PATH` in the right version.
///
/// # Errors
/// Fails if there is no cache directory.
pub(super) fn find() -> Result<Option<PathBuf>> {
    let cached = workspace::cache_dir()?.join(dir_name()).join("bin/typos");
    if cached.is_file() {
        return Ok(Some(cached));
    }
    let answers_version = |path: &PathBuf| {
        process::capture(Command::new(path).arg("--version"))
            .is_ok_and(|answer| answer.ends_with(&format!(" {VERSION}")))
    };
    Ok(process::find_program("typos").filter(answers_version))
}

/// Installs the checker into the cache.
///
/// # Errors
/// Fails if Python's package installer is missing or cannot fetch it.
pub(super) fn install(cache: &Cache) -> Result<()> {
    system::ensure_pip()?;
    let place = cache.install(&dir_name(), |staging| {
        let requirements = staging.join("requirements.txt");
        fs::write(
            &requirements,
            format!("typos=={VERSION} --hash=sha256:{} --hash=sha256:{}\n", SHA256[0], SHA256[1]),
        )?;
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]);
        pip.args(["--root-user-action", "ignore", "--target"]).arg(staging).arg("-r").arg(&requirements);
        process::run_shown(&format!("fetching typos {VERSION}"), &mut pip, LIMIT)?;
        fs::metadata(staging.join("bin/typos")).map(drop).context("the wheel has no `bin/typos`")
    });
    place.map(drop).with_context(|| {
        format!("cannot get the spell checker; `cargo install --locked typos-cli --version {VERSION}` does as well")
    })
}

fn dir_name() -> String {
    format!("typos-{VERSION}")
}
