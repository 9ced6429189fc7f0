//! Clients in Python, whose wheels pip checks by their hashes. Nothing is installed outside of the cache.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use xtask_setup::cache::{self, Cache, sha256_file};
use xtask_setup::system;
use xtask_tools::{process, workspace};

const LIMIT: Duration = Duration::from_secs(300);

/// A client with the packages that it needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Python {
    /// Name of the client, and of the file with its requirements.
    name: &'static str,
    /// Program of the client.
    program: &'static str,
    /// Package that the client imports.
    package: &'static str,
}

pub(super) const AIOQUIC: Python = Python { name: "aioquic", program: "aioquic_client.py", package: "aioquic" };
pub(super) const QH3: Python = Python { name: "qh3", program: "aioquic_client.py", package: "qh3" };
pub(super) const CURL: Python = Python { name: "curl", program: "curl_client.py", package: "curl_cffi" };

impl Python {
    /// Returns the directory with the packages; fetches them if they are missing.
    pub(super) fn packages(self) -> Result<PathBuf> {
        cache::kept(self.package, || self.find(), |cache| self.install(cache))
    }

    /// Returns the command of the client, without arguments.
    pub(super) fn command(self, packages: &Path) -> Command {
        let mut command = Command::new("python3");
        command.arg(file(self.program)).args(["--library", self.package]);
        command.env("PYTHONPATH", packages).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    fn find(self) -> Result<Option<PathBuf>> {
        let place = workspace::cache_dir()?.join(self.dir_name()?);
        Ok(place.join(self.package).is_dir().then_some(place))
    }

    fn install(self, cache: &Cache) -> Result<()> {
        system::ensure_pip()?;
        let package = self.package;
        let place = cache.install(&self.dir_name()?, |staging| {
            let mut pip = Command::new("python3");
            pip.args(["-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--require-hashes"]);
            pip.args(["--no-compile", "--root-user-action", "ignore", "--target"]).arg(staging);
            pip.arg("-r").arg(self.requirements());
            process::run_shown(&format!("fetching {package}"), &mut pip, LIMIT)?;
            // Wheels of this machine, for this Python.
            process::capture(self.command(staging).args(["--address", "[::1]:0", "--name", "", "--roots", ""]))
                .map(drop)
        });
        place.map(drop).with_context(|| format!("cannot get {package}; its wheels need Python 3.11 or 3.13 with pip"))
    }

    /// Returns a name that changes with the versions and with Python's.
    fn dir_name(self) -> Result<String> {
        let python =
            process::capture(Command::new("python3").args(["-c", "import sys; print(sys.implementation.cache_tag)"]))?;
        let hash = sha256_file(&self.requirements())?;
        Ok(format!("interop-{}-{hash:.16}-{python}", self.name))
    }

    fn requirements(self) -> PathBuf {
        file(&format!("{}.txt", self.name))
    }
}

/// Returns a file of the clients in Python.
fn file(name: &str) -> PathBuf {
    workspace::root().join("xtask/interop/python").join(name)
}
