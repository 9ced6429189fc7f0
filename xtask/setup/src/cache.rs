//! The user's cache of tools: one writer at a time, and only complete entries under their final names.
//! The content of entries is the caller's choice.

use std::fs::{self, File, TryLockError};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use xtask_tools::{progress, workspace};

/// Directories with this prefix are under construction, or left over from an interrupted setup.
const STAGING: &str = "tmp-";

/// The cache, locked by this process until dropped.
#[derive(Debug)]
pub struct Cache {
    dir: PathBuf,
    // The kernel releases the lock when this process ends, however it ends.
    _lock: File,
}

impl Cache {
    /// Opens the cache, waits while another process fills it, and removes leftovers of interrupted setups.
    ///
    /// # Errors
    /// Fails if the directory cannot be created or locked.
    pub fn lock() -> Result<Self> {
        Self::lock_at(workspace::cache_dir()?)
    }

    fn lock_at(dir: PathBuf) -> Result<Self> {
        fs::create_dir_all(&dir).with_context(|| format!("cannot make the cache directory `{}`", dir.display()))?;
        let path = dir.join("setup.lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open `{}`", path.display()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress::note("waiting for another `cargo xtask` that is installing tools …");
                lock.lock().with_context(|| format!("cannot lock `{}`", path.display()))?;
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock `{}`", path.display()));
            }
        }
        let cache = Self { dir, _lock: lock };
        cache.remove_leftovers()?;
        Ok(cache)
    }

    /// Creates `name` in the cache: `fill` works in an empty directory, which gets the final name only if `fill`
    /// succeeds.
    ///
    /// # Errors
    /// Returns the errors of `fill`. Also fails if directories cannot be created or renamed.
    pub fn install(&self, name: &str, fill: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let staging = self.dir.join(format!("{STAGING}{name}"));
        fs::create_dir_all(&staging).with_context(|| format!("cannot make `{}`", staging.display()))?;
        if let Err(error) = fill(&staging) {
            remove(&staging)?;
            return Err(error);
        }
        let place = self.dir.join(name);
        remove(&place)?;
        fs::rename(&staging, &place).with_context(|| format!("cannot rename to `{}`", place.display()))?;
        Ok(place)
    }

    fn remove_leftovers(&self) -> Result<()> {
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(STAGING) {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }
}

/// Returns the SHA-256 of a file in lowercase hexadecimal.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn sha256_file(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("cannot open `{}`", path.display()))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = file.read(&mut buffer).with_context(|| format!("cannot read `{}`", path.display()))?;
        if count == 0 {
            return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
        }
        hash.update(&buffer[..count]);
    }
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove `{}`", path.display()))
        }
        _ => Ok(()),
    }
}

/// Returns the result of `find`; installs the missing part first. Another process may do the same, so the installation
/// runs under the lock, after another look.
pub fn kept<T>(
    name: &str,
    find: impl Fn() -> Result<Option<T>>,
    install: impl FnOnce(&Cache) -> Result<()>,
) -> Result<T> {
    if let Some(found) = find()? {
        return Ok(found);
    }
    let cache = Cache::lock()?;
    if find()?.is_none() {
        install(&cache)?;
    }
    find()?.with_context(|| format!("{name} is missing although its installation succeeded"))
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    fn with_cache(name: &str, test: impl FnOnce(&Cache)) {
        let dir = env::temp_dir().join(format!("xdp-ingress-cache-{name}-{}", std::process::id()));
        test(&Cache::lock_at(dir.clone()).unwrap());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_failed_installation_leaves_no_files() {
        with_cache("failed", |cache| {
            let result = cache.install("tool", |dir| {
                fs::write(dir.join("half"), "x")?;
                anyhow::bail!("interrupted")
            });
            assert!(result.is_err());
            assert!(!cache.dir.join("tool").exists() && !cache.dir.join("tmp-tool").exists());
        });
    }

    #[test]
    fn an_installation_replaces_the_previous_one() {
        with_cache("replaced", |cache| {
            for content in ["old", "new"] {
                cache.install("tool", |dir| Ok(fs::write(dir.join(content), content)?)).unwrap();
            }
            assert!(cache.dir.join("tool/new").exists() && !cache.dir.join("tool/old").exists());
        });
    }

    #[test]
    fn leftovers_of_an_interrupted_setup_are_removed() {
        with_cache("leftover", |cache| {
            fs::create_dir(cache.dir.join("tmp-tool")).unwrap();
            cache.remove_leftovers().unwrap();
            assert!(!cache.dir.join("tmp-tool").exists());
        });
    }
}
