//! Debian's packages in versions that this project has recorded, unpacked and not installed: no file of the system is
//! touched and no service of a package is started.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::apt::PrivateApt;
use super::cache::sha256_file;
use xtask_tools::{process, progress};

const UNPACK_LIMIT: Duration = Duration::from_secs(300);

/// A package and the version that was tried.
#[derive(Debug, Clone, Copy)]
pub struct Recorded<'a> {
    /// Name of the package.
    pub name: &'a str,
    /// Release of Debian, such as `sid`.
    pub suite: &'a str,
    /// Version of the package.
    pub version: &'a str,
    /// SHA-256 of the package for each architecture, by Debian's name for it.
    pub sha256: &'a [(&'a str, &'a str)],
}

impl Recorded<'_> {
    /// Downloads the package and unpacks it into `into`. Another version is taken, with a warning, where the mirror no
    /// longer has this one.
    ///
    /// # Errors
    /// Fails if the mirror has no such package, or the recorded version is another file than the recorded one.
    pub fn unpack(&self, apt: &PrivateApt, into: &Path) -> Result<()> {
        let file = self.fetch(apt)?;
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("-x").arg(&file).arg(into);
        process::run_shown(&format!("unpacking {}", self.name), &mut unpack, UNPACK_LIMIT)?;
        fs::remove_file(&file).with_context(|| format!("cannot remove `{}`", file.display()))
    }

    fn fetch(&self, apt: &PrivateApt) -> Result<PathBuf> {
        let Self { name, suite, version: recorded, sha256 } = *self;
        let architecture = process::capture(Command::new("dpkg").arg("--print-architecture"))?;
        let versions = apt.versions(name)?;
        let version = versions
            .iter()
            .find(|version| *version == recorded)
            .or(versions.first())
            .with_context(|| format!("Debian {suite} carries no `{name}` for {architecture}"))?;
        let file = apt.download(name, version)?;
        let expect = sha256.iter().find(|(of, _)| *of == architecture).map(|(_, sum)| *sum);
        match expect {
            Some(sum) if version == recorded => self.verify(&file, sum)?,
            _ => progress::warn(&format!(
                "taking Debian's `{name}` {version} for {architecture}, which apt checked against Debian's signature; this \
                 project has recorded {recorded} and may not have been tried with it"
            )),
        }
        Ok(file)
    }

    fn verify(&self, file: &Path, expect: &str) -> Result<()> {
        let found = sha256_file(file)?;
        if found != expect {
            let Self { name, suite, version, sha256: _ } = self;
            bail!(
                "`{name}` {version} has the SHA-256 `{found}`, but this project recorded `{expect}`: the download was \
                 damaged, or a mirror serves another file under the same version; compare with \
                 https://packages.debian.org/{suite}/{name}"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_package_is_refused_and_explained() {
        let package = Recorded { name: "tool", suite: "sid", version: "1-1", sha256: &[] };
        let error = package.verify(Path::new("/dev/null"), "0123").unwrap_err().to_string();
        assert!(error.contains("recorded `0123`") && error.contains("e3b0c44298fc1c14"), "{error}");
    }
}
