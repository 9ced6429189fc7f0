//! The file with the keys of [`super::auth`], which is read again while the process runs.

use std::{
    fs::OpenOptions,
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::fcntl::OFlag;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::auth::Key;

/// Interval at which the file is read again. The kubelet takes a minute or so to write a changed Secret.
const READ: Duration = Duration::from_secs(10);
/// Keys that are accepted at once: the present one, and the one before or after it.
const KEYS_MAX: usize = 2;
/// Shortest key, in characters: 32 of base64 have 192 bits.
const SHORTEST: usize = 32;
/// Longest file, in bytes.
const LONGEST: u64 = 4096;

/// A file with one key a line. The first key signs, and both are accepted.
#[derive(Debug)]
pub(super) struct KeyFile {
    path: PathBuf,
    next_read: Instant,
    /// Whether the latest attempt failed.
    is_failing: bool,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum KeyFileError {
    #[error("cannot read it")]
    Read(#[from] io::Error),
    #[error("it is no regular file")]
    NotAFile,
    #[error("it has {0} keys; write one, or two while you change it, each in a line of its own")]
    Count(usize),
    #[error("key {0} has fewer than 32 characters; make one by `openssl rand -base64 48`")]
    Short(usize),
    #[error("it is longer than 4096 bytes")]
    Long,
    #[error("the cryptographic library fails")]
    Derive(#[from] aws_lc_rs::error::Unspecified),
}

// === impl KeyFile ===

impl KeyFile {
    /// Opens the file and returns its keys.
    ///
    /// # Errors
    /// Fails if it cannot be read or has no usable keys. The error never quotes it.
    pub(super) fn open(path: PathBuf, now: Instant) -> Result<(Self, Vec<Key>), KeyFileError> {
        let keys = read(&path)?;
        Ok((Self { path, next_read: now + READ, is_failing: false }, keys))
    }

    /// Returns the path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file again if it is time. Returns an error only for the first of several failures.
    pub(super) fn read_again(&mut self, now: Instant) -> Option<Result<Vec<Key>, KeyFileError>> {
        if now < self.next_read {
            return None;
        }
        self.next_read = now + READ;
        let keys = read(&self.path);
        let was_failing = std::mem::replace(&mut self.is_failing, keys.is_err());
        (keys.is_ok() || !was_failing).then_some(keys)
    }
}

/// Reads the keys. A pipe without a writer would block the main thread, which sends the heartbeats.
fn read(path: &Path) -> Result<Vec<Key>, KeyFileError> {
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(KeyFileError::NotAFile);
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(LONGEST as usize + 1));
    file.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        return Err(KeyFileError::Long);
    }
    keys(&bytes)
}

/// Returns the keys of a file's content. White space around a key does not count, nor do empty lines.
fn keys(content: &[u8]) -> Result<Vec<Key>, KeyFileError> {
    let lines = content.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
    if !(1..=KEYS_MAX).contains(&lines.len()) {
        return Err(KeyFileError::Count(lines.len()));
    }
    if let Some(short) = lines.iter().position(|line| line.len() < SHORTEST) {
        return Err(KeyFileError::Short(short + 1));
    }
    Ok(lines.into_iter().map(Key::derive).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const KEY: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn a_file_has_one_key_or_two() {
        let count = |content: &str| keys(content.as_bytes()).map(|keys| keys.len());
        assert_eq!(count(KEY).expect("usable"), 1);
        assert_eq!(count(&format!("\r\n {KEY}\r\n\n{KEY}\n")).expect("usable"), 2);
        assert!(matches!(count(" \n"), Err(KeyFileError::Count(0))));
        assert!(matches!(count(&[KEY; 3].join("\n")), Err(KeyFileError::Count(3))));
        assert!(matches!(count(&format!("{KEY}\n{}", &KEY[1..])), Err(KeyFileError::Short(2))));
    }

    #[test]
    fn errors_quote_no_key() {
        let error = keys(b"hunter2").expect_err("too short");
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }

    #[test]
    fn a_pipe_and_a_directory_are_refused_at_once() {
        let home = tempfile::tempdir().expect("a directory");
        let pipe = home.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        // The test would never end if it were opened and waited for.
        assert!(matches!(read(&pipe), Err(KeyFileError::NotAFile)));
        assert!(matches!(read(home.path()), Err(KeyFileError::NotAFile)));
        // A mounted Secret is a link.
        fs::write(home.path().join("keys"), KEY).expect("written");
        std::os::unix::fs::symlink("keys", home.path().join("link")).expect("linked");
        assert_eq!(read(&home.path().join("link")).expect("usable").len(), 1);
    }

    #[test]
    fn the_file_is_read_again_and_a_failure_is_told_once() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("keys");
        let start = Instant::now();
        assert!(matches!(KeyFile::open(path.clone(), start), Err(KeyFileError::Read(_))));
        fs::write(&path, KEY).expect("written");
        let (mut file, _) = KeyFile::open(path.clone(), start).expect("usable");
        assert!(file.read_again(start + READ / 2).is_none());
        let read =
            |file: &mut KeyFile, times| file.read_again(start + READ * times).map(|keys| keys.map(|keys| keys.len()));
        fs::write(&path, format!("{KEY}\n{KEY}")).expect("written");
        assert!(matches!(read(&mut file, 1), Some(Ok(2))));
        fs::write(&path, [b'x'; 5000]).expect("written");
        assert!(matches!(read(&mut file, 2), Some(Err(KeyFileError::Long))));
        assert!(read(&mut file, 3).is_none());
        fs::write(&path, KEY).expect("written");
        assert!(matches!(read(&mut file, 4), Some(Ok(1))));
    }
}
