//! The Go compiler, which builds programs without a package from modules of this project. It does not install Go, but
//! unpacks a newer one where a module needs that.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::apt::PrivateApt;
use super::cache::{Cache, sha256_file};
use super::debian::Recorded;
use xtask_tools::{process, workspace};

/// Go 1.27 from Debian. Its parts link to each other by relative paths, so both are unpacked into one directory.
const NEWER: [Recorded<'_>; 2] = [
    Recorded {
        name: "golang-1.27-go",
        suite: "sid",
        version: "1.27.3-1",
        sha256: &[
            ("amd64", "0f1ab6483c3db98118aa1faf0365c368b5c07f2e449d8d8f3eba432004b5eee2"),
            ("arm64", "72e7aa336a5ba201eda711c3f18cf8bf550a5995a3c87e59aed0259322db39ce"),
        ],
    },
    Recorded {
        name: "golang-1.27-src",
        suite: "sid",
        version: "1.27.3-1",
        sha256: &[("amd64", SOURCES), ("arm64", SOURCES)],
    },
];
/// The sources are the same for all architectures.
const SOURCES: &str = "a0a57e5e8c815b6deddaf007156594ccb3d8d08c9627303f4ae95eb9a9cba2c7";
/// The second number of the version in [`NEWER`].
const NEWER_MINOR: u32 = 27;
/// Some hundred modules; a slow network may need many times the usual minute.
const FETCH_LIMIT: Duration = Duration::from_secs(900);

/// Go itself, or modules, if this machine lacks them and cannot fetch them. Errors have it in their chain; all others are
/// defects.
#[derive(Debug)]
pub struct Unavailable(String);

// === impl Unavailable ===

impl Unavailable {
    /// Creates it with a text that names the missing part, and the remedy.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(text) = self;
        formatter.write_str(text)
    }
}

impl std::error::Error for Unavailable {}

/// Returns the `go` of this machine.
///
/// # Errors
/// Fails with [`Unavailable`] if there is none; the error names `what`, which cannot be built.
pub fn find(what: &str) -> Result<PathBuf> {
    process::find_program("go").with_context(|| {
        Unavailable::new(format!(
            "{what} must be built by Go 1.26 or newer, which is not on `PATH`; install it from https://go.dev/dl"
        ))
    })
}

/// Fetches the modules that `package` needs, with the versions that `module` pins. `flags` are those of `go list`, such as
/// `-test` for its tests.
///
/// # Errors
/// Fails with [`Unavailable`] if they cannot be fetched.
pub fn fetch(go: &Path, module: &str, package: &str, flags: &[&str]) -> Result<()> {
    let mut list = command(go, module);
    list.args(["list", "-mod=readonly", "-deps"]).args(flags).arg(package);
    process::run_shown(&format!("fetching the modules of {package}"), &mut list, FETCH_LIMIT)
        .with_context(|| Unavailable::new(format!("cannot fetch the modules of `{package}`")))
}

/// Returns a `go` of version 1.27 or newer: that of this machine, or Debian's, which is unpacked into `cache`.
///
/// # Errors
/// Fails with [`Unavailable`] if this machine's is older or missing, and Debian's cannot be had or does not run here.
pub fn newer(cache: &Cache) -> Result<PathBuf> {
    if let Some(go) = process::find_program("go") {
        let said = process::capture(Command::new(&go).arg("version"))?;
        if minor(&said).is_some_and(|minor| minor >= NEWER_MINOR) {
            return Ok(go);
        }
    }
    let name = format!("debian-golang-{}", NEWER[0].version);
    let program = format!("usr/lib/go-1.{NEWER_MINOR}/bin/go");
    let place = workspace::cache_dir()?.join(&name).join(&program);
    if !place.is_file() {
        unpack(cache, &name, &program).with_context(|| {
            Unavailable::new(format!("cannot get Go 1.{NEWER_MINOR} from Debian; install it from https://go.dev/dl"))
        })?;
    }
    Ok(place)
}

fn unpack(cache: &Cache, name: &str, program: &str) -> Result<()> {
    let index = cache.install("debian-index", |work| {
        let apt = PrivateApt::open(work, NEWER[0].suite)?;
        cache.install(name, |staging| {
            NEWER.iter().try_for_each(|package| package.unpack(&apt, staging))?;
            process::capture(Command::new(staging.join(program)).arg("version")).map(drop)
        })?;
        Ok(())
    })?;
    fs::remove_dir_all(&index).with_context(|| format!("cannot remove `{}`", index.display()))
}

/// Returns the second number of the version in an output such as `go version go1.27.3 linux/amd64`.
fn minor(said: &str) -> Option<u32> {
    let version = said.split_whitespace().find_map(|word| word.strip_prefix("go1."))?;
    version.split(|byte: char| !byte.is_ascii_digit()).next()?.parse().ok()
}

/// Returns the `go build` of `package` into `output`, with the versions that `module` pins. `flags` are passed to the
/// linker in addition to the flags that remove debug information.
pub fn build(go: &Path, module: &str, package: &str, flags: &str, output: &Path) -> Command {
    compile(go, &["build"], module, package, flags, output)
}

/// Returns the `go test -c` of `package` into `output`, likewise.
pub fn build_tests(go: &Path, module: &str, package: &str, output: &Path) -> Command {
    compile(go, &["test", "-c"], module, package, "", output)
}

fn compile(go: &Path, action: &[&str], module: &str, package: &str, flags: &str, output: &Path) -> Command {
    let mut command = command(go, module);
    command.args(action).args(["-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags"]);
    command.arg(format!("-s -w{flags}")).arg("-o").arg(output).arg(package);
    command
}

/// Returns `go` in the directory of `module`, relative to the work tree, without its arguments.
pub fn command(go: &Path, module: &str) -> Command {
    let mut command = Command::new(go);
    // Flags and workspaces of the user's other Go projects must not change these programs.
    command.current_dir(workspace::root().join(module));
    command.env("CGO_ENABLED", "0").env("GOFLAGS", "").env("GOWORK", "off");
    command
}

/// Returns a text that changes with the versions that `module` pins: the beginning of the checksum of its `go.sum`.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn fingerprint(module: &str) -> Result<String> {
    Ok(format!("{:.16}", sha256_file(&workspace::root().join(module).join("go.sum"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minor_version_is_read_from_what_go_says() {
        let check = |said: &str, expect: Option<u32>| assert_eq!(minor(said), expect, "{said}");
        check("go version go1.26.8 linux/amd64", Some(26));
        check("go version go1.27rc1 linux/amd64", Some(27));
        check("go version devel go1.28-abc Thu linux/amd64", Some(28));
        check("go version", None);
    }

    #[test]
    fn tests_are_compiled_and_not_run() {
        let words = process::show(&build_tests(Path::new("go"), "xtask", "example.com/p", Path::new("/out")));
        assert_eq!(words, "go test -c -mod=readonly -trimpath -buildvcs=false -ldflags -s -w -o /out example.com/p");
    }
}
