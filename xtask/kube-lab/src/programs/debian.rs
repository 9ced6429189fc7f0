//! The parts of a cluster that Debian packages, unpacked into the cache. Nothing is installed: no file of the system is
//! touched and no service of a package is started.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::versions::Package;
use xtask_setup::apt::PrivateApt;
use xtask_setup::cache::Cache;
use xtask_setup::debian::Recorded;
use xtask_tools::workspace;

/// Returns the directory into which `package` is unpacked; it may not exist yet.
///
/// # Errors
/// Fails if there is no cache directory.
pub(super) fn place(package: &Package) -> Result<PathBuf> {
    Ok(workspace::cache_dir()?.join(dir_name(package)))
}

/// Returns `true` if all required programs of `package` are in the cache.
///
/// # Errors
/// Fails if there is no cache directory.
pub(super) fn is_there(package: &Package) -> Result<bool> {
    let place = place(package)?;
    Ok(package.programs.iter().all(|program| place.join(program).is_file()))
}

/// Unpacks the missing ones of `packages`. All must be of one suite, so that its index is read once.
///
/// # Errors
/// Fails if Debian cannot be reached from here, a package is not the recorded one, or one of its programs does not run
/// here.
pub(super) fn install(cache: &Cache, packages: &[&Package]) -> Result<()> {
    let Some(first) = packages.first() else { return Ok(()) };
    // The index is kept only during the download; the cache keeps the unpacked files.
    let index = cache.install("debian-index", |work| {
        let apt = PrivateApt::open(work, first.suite)?;
        for package in packages {
            cache.install(&dir_name(package), |staging| {
                let Package { name, suite, version, sha256, .. } = package;
                Recorded { name, suite, version, sha256 }.unpack(&apt, staging)?;
                verify_programs(staging, package)
            })?;
        }
        Ok(())
    })?;
    fs::remove_dir_all(&index).with_context(|| format!("cannot remove `{}`", index.display()))
}

/// Reports early, and in plain words, that a program was built for a newer C library than this machine has.
fn verify_programs(root: &Path, package: &Package) -> Result<()> {
    for program in package.programs {
        let path = root.join(program);
        let answer = Command::new("ldd").arg(&path).output().context("cannot start `ldd`")?;
        let text = [answer.stdout, answer.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        if let Some(problem) = text.lines().find(|line| line.contains("not found") || line.contains("No such file")) {
            bail!("`{program}` of Debian's `{}` does not run on this machine: {}", package.name, problem.trim());
        }
    }
    Ok(())
}

fn dir_name(package: &Package) -> String {
    format!("debian-{}-{}", package.name, package.version)
}

#[cfg(test)]
mod tests {
    use super::super::versions;
    use super::*;

    #[test]
    fn a_missing_program_is_named() {
        let error = verify_programs(Path::new("/no/such/place"), &versions::RUNC).unwrap_err().to_string();
        assert!(error.contains("usr/sbin/runc"), "{error}");
    }
}
