//! The parts of a cluster that Debian packages, unpacked into the cache. Nothing is installed: no file of the system is
//! touched and no service of a package is started.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::versions::Package;
use xtask_setup::apt::PrivateApt;
use xtask_setup::cache::{Cache, sha256_file};
use xtask_tools::{process, progress, workspace};

const UNPACK_LIMIT: Duration = Duration::from_secs(300);

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
        let architecture = process::capture(Command::new("dpkg").arg("--print-architecture"))?;
        for package in packages {
            cache.install(&dir_name(package), |staging| {
                let file = fetch(&apt, package, &architecture)?;
                let mut unpack = Command::new("dpkg-deb");
                unpack.arg("-x").arg(&file).arg(staging);
                process::run_shown(&format!("unpacking {}", package.name), &mut unpack, UNPACK_LIMIT)?;
                fs::remove_file(&file).with_context(|| format!("cannot remove `{}`", file.display()))?;
                verify_programs(staging, package)
            })?;
        }
        Ok(())
    })?;
    fs::remove_dir_all(&index).with_context(|| format!("cannot remove `{}`", index.display()))
}

fn fetch(apt: &PrivateApt, package: &Package, architecture: &str) -> Result<PathBuf> {
    let Package { name, suite, version: recorded, sha256, programs: _, asset: _ } = package;
    let versions = apt.versions(name)?;
    let version = versions
        .iter()
        .find(|version| version == recorded)
        .or(versions.first())
        .with_context(|| format!("Debian {suite} carries no `{name}` for {architecture}"))?;
    let file = apt.download(name, version)?;
    let expect = sha256.iter().find(|(of, _)| *of == architecture).map(|(_, sum)| *sum);
    match expect {
        Some(sum) if version == recorded => verify(&file, package, sum)?,
        _ => progress::warn(&format!(
            "taking Debian's `{name}` {version} for {architecture}, which apt checked against Debian's signature; this \
             project has recorded {recorded} and may not have been tried with it"
        )),
    }
    Ok(file)
}

fn verify(file: &Path, package: &Package, expect: &str) -> Result<()> {
    let found = sha256_file(file)?;
    if found != expect {
        bail!(
            "`{}` {} has the SHA-256 `{found}`, but this project recorded `{expect}`: the download was damaged, or a \
             mirror serves another file under the same version; compare with https://packages.debian.org/{}/{}",
            package.name,
            package.version,
            package.suite,
            package.name
        );
    }
    Ok(())
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
    fn a_changed_package_is_refused_and_explained() {
        let (_, sum) = versions::ETCD.sha256[0];
        let error = verify(Path::new("/dev/null"), &versions::ETCD, sum).unwrap_err().to_string();
        assert!(error.contains(sum) && error.contains("e3b0c44298fc1c14"), "{error}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = verify_programs(Path::new("/no/such/place"), &versions::RUNC).unwrap_err().to_string();
        assert!(error.contains("usr/sbin/runc"), "{error}");
    }
}
