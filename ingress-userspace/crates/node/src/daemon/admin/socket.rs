//! The probe socket: a Unix socket of this process alone, so that a probe never reaches the other process of a node. It
//! gives the same answers as the admin address.

use std::{
    convert::Infallible,
    fs, io,
    os::unix::{
        fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
        net::UnixListener as StdListener,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use socket2::{Domain, SockAddr, Type};
use tokio::net::UnixListener;
use tracing::info;

use super::{Answers, Listener, accept};

/// A bound probe socket. Dropping it removes its file, unless another process has replaced that.
#[derive(Debug)]
pub(crate) struct ProbeSocket {
    listener: Listener,
    path: PathBuf,
    /// Device and inode of the file.
    file: (u64, u64),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    #[error("the probe socket `{0}` belongs to a running process; give each process its own path")]
    InUse(PathBuf),
    #[error("`{0}` is not a socket, so the probe socket does not replace it; remove it or choose another path")]
    NoSocket(PathBuf),
    #[error("cannot make the probe socket `{path}`; its directory must exist and be writable")]
    Io { path: PathBuf, source: io::Error },
}

impl ProbeSocket {
    /// Creates the socket, readable and writable by its owner only (mode 0600). A socket left at `path` by a dead
    /// process is replaced. Connections wait until [`ProbeSocket::serve`]. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Fails if a living process listens at `path`, if the file there is not a socket, or if the file system refuses.
    pub(crate) fn bind(path: &Path) -> Result<Self, SocketError> {
        let failed = |source| SocketError::Io { path: path.to_owned(), source };
        ensure_free(path)?;
        // The file appears under its name only with its final mode, and replaces a stale one atomically.
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        ensure_free(&beside)?;
        if let Err(error) = fs::remove_file(&beside)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(failed(error));
        }
        let listener = StdListener::bind(&beside).map_err(failed)?;
        let placed = place(&beside, path).map_err(failed);
        if placed.is_err() {
            // Only the first error is reported.
            let _kept = fs::remove_file(&beside).is_err();
        }
        let file = placed?;
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = UnixListener::from_std(listener).map_err(failed)?;
        info!(path = %path.display(), "probe socket open");
        Ok(Self { listener: Listener::Unix(listener), path: path.to_owned(), file })
    }

    /// Serves `answers` until dropped.
    pub(crate) async fn serve(&self, answers: Arc<Answers>) -> Infallible {
        accept(&self.listener, &answers).await
    }
}

impl Drop for ProbeSocket {
    fn drop(&mut self) {
        let own = fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.file);
        if own {
            // A leftover file is replaced by the next process.
            let _kept = fs::remove_file(&self.path).is_err();
        }
    }
}

fn place(beside: &Path, path: &Path) -> io::Result<(u64, u64)> {
    fs::set_permissions(beside, fs::Permissions::from_mode(0o600))?;
    let file = fs::symlink_metadata(beside)?;
    fs::rename(beside, path)?;
    Ok((file.dev(), file.ino()))
}

/// Checks that `path` is free, or has only the socket of a dead process.
fn ensure_free(path: &Path) -> Result<(), SocketError> {
    let failed = |source| SocketError::Io { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.file_type().is_socket() => return Err(SocketError::NoSocket(path.to_owned())),
        Ok(_) => {}
    }
    let caller = socket2::Socket::new(Domain::UNIX, Type::STREAM, None).map_err(failed)?;
    // A hanging process has a full backlog, and a blocking connect would wait for it.
    caller.set_nonblocking(true).map_err(failed)?;
    match caller.connect(&SockAddr::unix(path).map_err(failed)?) {
        Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => Ok(()),
        Ok(()) | Err(_) => Err(SocketError::InUse(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(path: &Path) -> Result<ProbeSocket, SocketError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let _entered = runtime.enter();
        ProbeSocket::bind(path)
    }

    #[test]
    fn the_socket_is_private_and_removed_at_exit() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("probe.sock");
        let socket = bound(&path).expect("binds");
        assert_eq!(fs::metadata(&path).expect("is there").mode() & 0o7777, 0o600);
        drop(socket);
        assert_eq!(fs::read_dir(home.path()).expect("a directory").count(), 0, "nothing is left");
    }

    #[test]
    fn a_stale_socket_is_replaced() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("probe.sock");
        for left in [path.clone(), home.path().join("probe.sock.new")] {
            drop(StdListener::bind(&left).expect("binds"));
            assert!(left.exists(), "std leaves the file");
        }
        drop(bound(&path).expect("a stale file is in nobody's way"));
    }

    #[test]
    fn a_live_socket_and_a_regular_file_are_kept() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("probe.sock");
        let living = StdListener::bind(&path).expect("binds");
        assert!(matches!(bound(&path), Err(SocketError::InUse(_))));
        drop(living);
        let file = home.path().join("file");
        fs::write(&file, "precious").expect("written");
        assert!(matches!(bound(&file), Err(SocketError::NoSocket(_))));
        assert_eq!(fs::read_to_string(&file).expect("still there"), "precious");
    }

    #[test]
    fn a_successors_socket_is_not_removed() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("probe.sock");
        let mut first = bound(&path).expect("binds");
        let mut elsewhere = bound(&home.path().join("elsewhere")).expect("binds");
        std::mem::swap(&mut first.listener, &mut elsewhere.listener);
        drop(elsewhere);
        let second = bound(&path).expect("the first answers no more");
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }
}
