//! The session of one client of a port: its endpoint and its idle timeout. Other code moves the datagrams.

use std::{
    cell::{Cell, RefCell},
    io,
    net::SocketAddr,
    os::fd::AsRawFd,
    sync::Arc,
    time::Duration,
};

use nix::sys::socket::{MsgFlags, recv, send};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{io::Interest, net::UdpSocket, time::Instant};

use ingress_model::StreamSettings;

use crate::upstream::balance::UpstreamState;

/// Time for which a session is kept after all expected responses, for duplicate or late ones.
const FINISHED: Duration = Duration::from_secs(1);

/// Time for which a session without any response is kept, the same as netfilter's (`nf_conntrack_udp_timeout`).
/// Datagrams with forged source addresses must not occupy the room for sessions for long.
const UNANSWERED: Duration = Duration::from_secs(30);

/// A pending socket error, for instance after an ICMP port unreachable, makes a UDP socket writable but not readable.
/// Receiving therefore waits for errors as well.
const RECEIVE: Interest = Interest::READABLE.add(Interest::ERROR);

/// The socket between one client and its endpoint.
#[derive(Debug)]
pub(super) struct UdpSession {
    pub(super) endpoint: SocketAddr,
    /// The upstream of `endpoint`, in its current state.
    pub(super) upstream: RefCell<Arc<UpstreamState>>,
    socket: UdpSocket,
    pub(super) exchange: Exchange,
}

/// Counts of the datagrams in both directions.
#[derive(Debug)]
pub(super) struct Exchange {
    asked: Cell<u64>,
    answered: Cell<u64>,
    latest: Cell<Instant>,
}

impl UdpSession {
    /// Opens a session with a socket of its own, so that every datagram received on it belongs to this client.
    pub(super) fn open(endpoint: SocketAddr, upstream: Arc<UpstreamState>) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(endpoint), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
        // Connected, so that the kernel drops datagrams from other sources and reports ICMP errors.
        socket.connect(&endpoint.into())?;
        let socket = UdpSocket::from_std(socket.into())?;
        Ok(Self { endpoint, upstream: RefCell::new(upstream), socket, exchange: Exchange::new() })
    }

    /// Sends without waiting for the reactor, which does not know yet that a new socket is writable.
    pub(super) fn try_send(&self, datagram: &[u8]) -> io::Result<()> {
        Ok(send(self.socket.as_raw_fd(), datagram, MsgFlags::MSG_DONTWAIT).map(drop)?)
    }

    /// Resolves when a datagram or an error can be received.
    pub(super) async fn receivable(&self) -> io::Result<()> {
        self.socket.ready(RECEIVE).await.map(drop)
    }

    /// Receives a datagram into `buffer` and returns its length.
    pub(super) fn try_receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut receive = || Ok(recv(self.socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT)?);
        // One interest after the other: tokio's `try_io` is never ready for two interests together (`Interest::mask`).
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

    /// Counts a response. Returns whether it is the first one.
    pub(super) fn answer(&self) -> bool {
        self.answered.update(|count| count + 1);
        self.latest.set(Instant::now());
        self.answered.get() == 1
    }

    /// Returns whether fewer responses have arrived than are expected.
    pub(super) fn awaits_answers(&self, settings: &StreamSettings) -> bool {
        self.answered.get() < self.asked.get().saturating_mul(settings.responses.into())
    }

    /// Returns the time at which the session ends if no further datagram arrives.
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
    async fn the_deadline_of_a_session_depends_on_its_responses() {
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
