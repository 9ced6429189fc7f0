//! The client on aioquic, whose wheels pip checks by their hashes. Nothing is installed outside of the cache.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use xtask_setup::cache::{self, Cache, sha256_file};
use xtask_setup::system;
use xtask_tools::{process, workspace};

const REQUIREMENTS: &str = "xtask/interop/aioquic/requirements.txt";
const CLIENT: &str = "xtask/interop/aioquic/client.py";
const LIMIT: Duration = Duration::from_secs(300);

/// Returns the directory with the packages; fetches them if they are missing.
pub(super) fn directory() -> Result<PathBuf> {
    cache::kept("aioquic", find, install)
}

/// Returns the command of the client, without arguments.
pub(super) fn command(packages: &Path) -> Command {
    let mut command = Command::new("python3");
    command.arg(workspace::root().join(CLIENT)).env("PYTHONPATH", packages).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn find() -> Result<Option<PathBuf>> {
    let place = workspace::cache_dir()?.join(dir_name()?);
    Ok(place.join("aioquic").is_dir().then_some(place))
}

fn install(cache: &Cache) -> Result<()> {
    system::ensure_pip()?;
    let place = cache.install(&dir_name()?, |staging| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--require-hashes"]);
        pip.args(["--no-compile", "--root-user-action", "ignore", "--target"]).arg(staging);
        pip.arg("-r").arg(workspace::root().join(REQUIREMENTS));
        process::run_shown("fetching aioquic", &mut pip, LIMIT)?;
        // Wheels of this machine, for this Python.
        process::capture(command(staging).arg("--help")).map(drop)
    });
    place.map(drop).context("cannot get aioquic; its wheels need Python 3.11 or 3.13 with pip")
}

/// Returns a name that changes with the versions and with Python's.
fn dir_name() -> Result<String> {
    let python =
        process::capture(Command::new("python3").args(["-c", "import sys; print(sys.implementation.cache_tag)"]))?;
    let hash = sha256_file(&workspace::root().join(REQUIREMENTS))?;
    Ok(format!("interop-aioquic-{hash:.16}-{python}"))
}
