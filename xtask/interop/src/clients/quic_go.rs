//! The client on quic-go, built by Go from the pinned module.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use xtask_setup::cache::{self, Cache, sha256_file};
use xtask_setup::go;
use xtask_tools::{process, workspace};

use super::Case;

/// Module that pins the version, relative to the work tree.
const MODULE: &str = "xtask/interop/go";
/// Sources in the module.
const SOURCES: [&str; 2] = ["main.go", "paths.go"];
const PROGRAM: &str = "client";
const BUILD_LIMIT: Duration = Duration::from_secs(900);

/// Returns the program; builds it if it is missing.
pub(super) fn program() -> Result<PathBuf> {
    cache::kept("the client on quic-go", find, install)
}

/// Returns the command of the client for `cases`, without arguments.
pub(super) fn command(program: &Path, cases: &[Case]) -> Command {
    let mut command = Command::new(program);
    if cases == [Case::Chacha20] {
        // The ciphers of TLS 1.3 cannot be chosen, but Go prefers this one on processors without AES.
        command.env("GODEBUG", "cpu.aes=off");
    }
    command
}

fn find() -> Result<Option<PathBuf>> {
    let place = workspace::cache_dir()?.join(dir_name()?).join(PROGRAM);
    Ok(place.is_file().then_some(place))
}

fn install(cache: &Cache) -> Result<()> {
    let go = go::find("the client on quic-go")?;
    go::fetch(&go, MODULE, ".", &[])?;
    let place = cache.install(&dir_name()?, |staging| {
        let mut build = go::build(&go, MODULE, ".", "", &staging.join(PROGRAM));
        process::run_shown("building the client on quic-go (once)", &mut build, BUILD_LIMIT)
    });
    place.map(drop)
}

/// Returns a name that changes with the versions and with the source.
fn dir_name() -> Result<String> {
    let sources = SOURCES.iter().map(|name| sha256_file(&workspace::root().join(MODULE).join(name)));
    let sources: Vec<String> = sources.map(|hash| Ok(format!("{:.8}", hash?))).collect::<Result<_>>()?;
    Ok(format!("interop-quic-go-{}-{}", go::fingerprint(MODULE)?, sources.join("-")))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;

    use super::*;

    #[test]
    fn each_source_changes_the_name_of_the_build() {
        let files = fs::read_dir(workspace::root().join(MODULE)).unwrap().map(|file| file.unwrap().path());
        let mut names: Vec<_> = files.filter(|path| path.extension() == Some(OsStr::new("go"))).collect();
        names.sort();
        let names: Vec<_> = names.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(names, SOURCES);
    }
}
