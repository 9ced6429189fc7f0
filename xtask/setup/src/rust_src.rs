//! The source of the standard library for a compiler that lacks it: from rustup, else from Debian's package of the same
//! version. It never combines a compiler with the source of another one.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::apt::PrivateApt;
use super::cache::{Cache, sha256_file};
use super::compiler::{Compiler, RELEASE};
use xtask_tools::{process, progress, workspace};

const PACKAGE: &str = "rust-src";
const SUITE: &str = "trixie-backports";
/// The version of the package that was tested.
const VERSION: &str = "1.95.0+dfsg1-2~bpo13+1";
const SHA256: &str = "7b76db5b880a77f9e52975d2baa6209d2f76d2c9c2789515c3088cb960e2c83b";

const UNPACK_LIMIT: Duration = Duration::from_secs(300);

/// Adds the component `rust-src` to `compiler` with rustup.
///
/// # Errors
/// Fails if the compiler is not rustup's, or rustup cannot get the component in time.
pub(super) fn add_component(compiler: &Compiler) -> Result<()> {
    compiler.add_component("rust-src")?;
    if !compiler.has_source() {
        bail!("rustup said it was done but `{}` still has no source", compiler.sysroot.display());
    }
    Ok(())
}

/// Fetches Debian's package and unpacks its `library` into the cache.
///
/// # Errors
/// Fails if the package is not available for this release, or its checksum is not the recorded one.
pub(super) fn fetch_from_debian(cache: &Cache) -> Result<()> {
    cache.install(&dir_name(), |staging| {
        let work = staging.join("apt");
        fs::create_dir(&work)?;
        let apt = PrivateApt::open(&work, SUITE)?;
        let version = choose(&apt.versions(PACKAGE)?)?;
        let package = apt.download(PACKAGE, &version)?;
        if version == VERSION {
            verify(&package)?;
        } else {
            progress::warn(&format!(
                "Debian no longer carries `{PACKAGE}` {VERSION}; taking {version}, the same compiler's source, which \
                 apt checked against Debian's signature but this project has not recorded"
            ));
        }
        let unpacked = work.join("unpacked");
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("-x").arg(&package).arg(&unpacked);
        process::run_shown("unpacking it", &mut unpack, UNPACK_LIMIT)?;
        let library = unpacked.join(format!("usr/src/rustc-{RELEASE}/library"));
        fs::rename(&library, staging.join("library"))
            .with_context(|| format!("Debian's package has no `/usr/src/rustc-{RELEASE}/library`"))?;
        fs::remove_dir_all(work).context("cannot remove what is left of the package")
    })?;
    Ok(())
}

/// Creates a sysroot that joins `compiler` with the source fetched from Debian; `None` if that source was not fetched.
///
/// Returns the compiler to call. It is a script, because a link to rustc would find its own sysroot again.
///
/// # Errors
/// Fails if the sysroot cannot be written.
pub(super) fn private_sysroot(compiler: &Compiler) -> Result<Option<PathBuf>> {
    if compiler.release != RELEASE || !is_fetched()? {
        return Ok(None);
    }
    let cache = workspace::cache_dir()?;
    let library = cache.join(dir_name()).join("library");
    let sysroot = cache.join(format!("sysroot-{RELEASE}"));
    let rustc = sysroot.join("bin/rustc");
    let script = script(compiler, &sysroot);
    let targets = sysroot.join("lib/rustlib").join(&compiler.host);
    let real_targets = compiler.sysroot.join("lib/rustlib").join(&compiler.host);
    let source = sysroot.join("lib/rustlib/src/rust/library");
    let complete = fs::read_to_string(&rustc).is_ok_and(|present| present == script)
        && fs::read_link(&targets).is_ok_and(|to| to == real_targets)
        && fs::read_link(&source).is_ok_and(|to| to == library);
    if complete {
        return Ok(Some(rustc));
    }
    // Small and quick to create, so it is created again under the lock whenever the compiler has moved.
    Cache::lock()?.install(&format!("sysroot-{RELEASE}"), |staging| {
        for dir in ["bin", "lib/rustlib/src/rust"] {
            fs::create_dir_all(staging.join(dir))?;
        }
        symlink(&real_targets, staging.join("lib/rustlib").join(&compiler.host))?;
        symlink(&library, staging.join("lib/rustlib/src/rust/library"))?;
        fs::write(staging.join("bin/rustc"), &script)?;
        Ok(fs::set_permissions(staging.join("bin/rustc"), fs::Permissions::from_mode(0o755))?)
    })?;
    Ok(Some(rustc))
}

/// Returns `true` if Debian's source is in the cache.
///
/// # Errors
/// Fails if there is no cache directory.
pub(super) fn is_fetched() -> Result<bool> {
    Ok(workspace::cache_dir()?.join(dir_name()).join("library/core/Cargo.toml").is_file())
}

fn dir_name() -> String {
    format!("rust-src-{RELEASE}")
}

fn script(compiler: &Compiler, sysroot: &Path) -> String {
    let quote = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
    format!("#!/bin/sh\nexec {} --sysroot {} \"$@\"\n", quote(&compiler.sysroot.join("bin/rustc")), quote(sysroot))
}

/// Returns the recorded version, else the newest of the same compiler.
fn choose(versions: &[String]) -> Result<String> {
    let same_compiler =
        |version: &&String| version.strip_prefix(RELEASE).is_some_and(|rest| rest.starts_with(['+', '-', '~']));
    versions
        .iter()
        .find(|version| *version == VERSION)
        .or_else(|| versions.iter().find(same_compiler))
        .cloned()
        .with_context(|| format!("Debian {SUITE} carries `{PACKAGE}` only as {versions:?}, none of rustc {RELEASE}"))
}

fn verify(package: &Path) -> Result<()> {
    let found = sha256_file(package)?;
    if found != SHA256 {
        bail!(
            "`{PACKAGE}` {VERSION} has the SHA-256 `{found}`, but this project recorded `{SHA256}`: the download was \
             damaged, or a mirror or proxy serves another file under the same version; run `cargo xtask setup` again, \
             and if it stays so compare with https://packages.debian.org/{SUITE}/{PACKAGE} before trusting either"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_source_of_the_same_compiler_is_chosen() {
        let check = |versions: &[&str], expect: Option<&str>| {
            let versions: Vec<_> = versions.iter().map(|version| (*version).to_owned()).collect();
            assert_eq!(choose(&versions).ok().as_deref(), expect, "{versions:?}");
        };
        check(&["1.96.1+dfsg1-2~bpo13+1", "1.95.0+dfsg1-3~bpo13+1", VERSION], Some(VERSION));
        check(&["1.96.1+x", "1.95.0+dfsg1-3~bpo13+1", "1.95.0+dfsg1-1"], Some("1.95.0+dfsg1-3~bpo13+1"));
        check(&["1.95.01+x", "1.96.1+x"], None);
        check(&[], None);
    }

    #[test]
    fn a_changed_package_is_refused_and_explained() {
        let error = verify(Path::new("/dev/null")).unwrap_err().to_string();
        assert!(error.contains(SHA256) && error.contains("e3b0c44298fc1c14"), "{error}");
    }

    #[test]
    fn paths_in_the_script_survive_quotes() {
        let sysroot = PathBuf::from("/it's");
        let compiler = Compiler { release: RELEASE.to_owned(), host: String::new(), llvm_major: 22, sysroot };
        let expect = "#!/bin/sh\nexec '/it'\\''s/bin/rustc' --sysroot '/f' \"$@\"\n";
        assert_eq!(script(&compiler, Path::new("/f")), expect);
    }
}
