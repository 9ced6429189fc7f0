//! One client of one port: its endpoint, and how long it is remembered. It moves no datagram.

use std::{cell::Cell, io, net::SocketAddr, os::fd::AsRawFd, time::Duration};

use nix::sys::socket::{MsgFlags, recv, send};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{io::Interest, net::UdpSocket, time::Instant};

use crate::model::StreamSettings;

/// How long a session that has had all its answers is kept, for those that come twice or late.
const FINISHED: Duration = Duration::from_secs(1);

/// How long one is kept that no answer has ever come for, as netfilter does (`nf_conntrack_udp_timeout`): whoever sends
/// datagrams under addresses of others must not fill the room for sessions for long.
const UNANSWERED: Duration = Duration::from_secs(30);

/// An error that waits, as that nobody is at the endpoint, makes a socket of UDP writable and not readable.
const RECEIVE: Interest = Interest::READABLE.add(Interest::ERROR);

/// A client's way to its endpoint.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) endpoint: SocketAddr,
    socket: UdpSocket,
    pub(super) exchange: Exchange,
}

/// What has gone to and fro.
#[derive(Debug)]
pub(super) struct Exchange {
    asked: Cell<u64>,
    answered: Cell<u64>,
    latest: Cell<Instant>,
}

impl Session {
    /// A socket of its own, so that what comes for it is this client's.
    pub(super) fn open(endpoint: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(endpoint), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
        // Connected, so that the kernel drops what others send, and tells when nobody is there (ICMP).
        socket.connect(&endpoint.into())?;
        let socket = UdpSocket::from_std(socket.into())?;
        Ok(Self { endpoint, socket, exchange: Exchange::new() })
    }

    /// Sends without asking the reactor, which does not know of a new socket yet that it has room.
    pub(super) fn try_send(&self, datagram: &[u8]) -> io::Result<()> {
        Ok(send(self.socket.as_raw_fd(), datagram, MsgFlags::MSG_DONTWAIT).map(drop)?)
    }

    /// Resolves when there is something to receive, an error as well as a datagram.
    pub(super) async fn receivable(&self) -> io::Result<()> {
        self.socket.ready(RECEIVE).await.map(drop)
    }

    /// Takes a datagram into `buffer`, and tells its length.
    pub(super) fn try_receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut receive = || Ok(recv(self.socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT)?);
        // One after the other: of two interests together, tokio's `try_io` is never ready (`Interest::mask`).
        match self.socket.try_io(Interest::READABLE, &mut receive) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.socket.try_io(Interest::ERROR, receive),
            received => received,
        }
    }
}

impl Exchange {
    fn new() -> Self {
        Self { asked: Cell::new(0), answered: Cell::new(0), latest: Cell::new(Instant::now()) }
    }

    pub(super) fn ask(&self) {
        self.asked.update(|count| count + 1);
        self.latest.set(Instant::now());
    }

    /// Whether it is the first answer.
    pub(super) fn answer(&self) -> bool {
        self.answered.update(|count| count + 1);
        self.latest.set(Instant::now());
        self.answered.get() == 1
    }

    /// Whether fewer answers have come than are expected.
    pub(super) fn awaits_answers(&self, settings: &StreamSettings) -> bool {
        self.answered.get() < self.asked.get().saturating_mul(settings.responses.into())
    }

    /// When it ends, if nothing comes until then.
    pub(super) fn deadline(&self, settings: &StreamSettings) -> Instant {
        let patience = if !self.awaits_answers(settings) {
            FINISHED
        } else if self.answered.get() == 0 {
            UNANSWERED
        } else {
            settings.timeout
        };
        self.latest.get() + patience.min(settings.timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_session_is_kept_as_long_as_something_may_come() {
        let settings = |responses, timeout| StreamSettings {
            responses,
            timeout: Duration::from_secs(timeout),
            ..StreamSettings::default()
        };
        for (asked, answered, settings, expect) in [
            (1, 0, settings(1, 600), UNANSWERED),
            (1, 0, settings(1, 5), Duration::from_secs(5)),
            (1, 1, settings(1, 600), FINISHED),
            (2, 1, settings(1, 600), Duration::from_secs(600)),
            (2, 3, settings(1, 600), FINISHED),
            (2, 3, settings(2, 600), Duration::from_secs(600)),
            (1, 0, settings(0, 600), FINISHED),
            (1, 9, settings(1_000_000, 600), Duration::from_secs(600)),
        ] {
            let exchange = Exchange::new();
            tokio::time::advance(Duration::from_secs(7)).await;
            (0..asked).for_each(|_| exchange.ask());
            (0..answered).for_each(|n| assert_eq!(exchange.answer(), n == 0));
            assert_eq!(exchange.deadline(&settings) - Instant::now(), expect, "{asked} {answered} {settings:?}");
        }
    }
}
