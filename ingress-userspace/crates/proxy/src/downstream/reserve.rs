//! A file descriptor kept in reserve, so that a connection can be refused when none is free.

use std::{
    cell::Cell,
    task::{Context, Waker},
};

use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::net::TcpListener;

/// A file descriptor that a worker keeps in reserve: without one, a waiting connection could not even be refused.
pub(crate) struct Reserve(Cell<Option<EventFd>>);

impl Reserve {
    pub(crate) fn new() -> Self {
        Self(Cell::new(Self::open()))
    }

    /// Accepts one waiting connection and closes it, so that its client is notified.
    pub(crate) fn shed(&self, listener: &TcpListener) {
        self.0.set(None);
        let mut cx = Context::from_waker(Waker::noop());
        drop(listener.poll_accept(&mut cx));
        self.0.set(Self::open());
    }

    /// Opens an eventfd as a placeholder, because workers may not open files (`server::seccomp`).
    fn open() -> Option<EventFd> {
        EventFd::from_flags(EfdFlags::EFD_CLOEXEC).ok()
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncReadExt, net::TcpStream};

    use super::*;

    #[tokio::test]
    async fn shedding_closes_a_connection_and_restores_the_reserve() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("bound");
        let address = listener.local_addr().expect("address");
        let _first = TcpStream::connect(address).await.expect("connected");
        let mut second = TcpStream::connect(address).await.expect("connected");
        let reserve = Reserve::new();
        // Makes the runtime notice the waiting connections, as an `accept` that failed for lack of descriptors would
        // have.
        let _accepted = listener.accept().await.expect("accepted");
        reserve.shed(&listener);
        assert_eq!(second.read(&mut [0]).await.expect("closed in order"), 0);
        assert!(reserve.0.take().is_some());
    }
}
