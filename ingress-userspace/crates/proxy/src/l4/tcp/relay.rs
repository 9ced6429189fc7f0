//! Relays bytes both ways between two TCP connections until both have ended. The bytes are not parsed. They stay in the
//! kernel as long as there are descriptors for pipes: see `pipe`.
//!
//! | one side | the other |
//! |---|---|
//! | ends its sending (FIN) | receives all bytes, then the end; the opposite direction goes on |
//! | resets the connection (RST) | receives the bytes that arrived before, then a reset |
//! | stops reading | is not read from either: the bytes stay in its socket |
//!
//! A relay without traffic in either direction ends after the idle timeout. Dead peers are found by TCP keep-alive.

use std::{
    future::{Future, poll_fn},
    io,
    net::Shutdown,
    pin::pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use socket2::SockRef;
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, sleep_until},
};

use crate::l4::pipe::{Pipe, Pipes, TURN, end_turn};

/// Delay before a reset, so that bytes relayed just before can still arrive: a reset overtakes them on their way to the
/// client.
const GRACE: Duration = Duration::from_secs(1);

/// Two connections to relay between.
#[derive(Debug)]
pub struct Relay {
    pub client: TcpStream,
    pub endpoint: TcpStream,
    /// Ends the relay after this time without a byte in either direction.
    pub idle_timeout: Duration,
}

/// Bytes relayed to the endpoint (`up`) and to the client (`down`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayedBytes {
    pub up: usize,
    pub down: usize,
}

/// The reason why a relay ended before both sides had ended.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    #[error("a side broke off")]
    Broken(#[source] io::Error),
    #[error("no byte came from either side for too long")]
    Idle,
}

/// The state of one direction of a relay.
#[derive(Debug, Default)]
struct RelayDirection {
    /// Present only while it holds bytes.
    pipe: Option<Pipe>,
    /// Whether the sending side was reset. The kernel reports that only once, so a following end of file is not a
    /// regular end.
    cut: bool,
    ended: bool,
}

/// An error of one direction.
enum RelayFault {
    /// The sending side failed.
    Read(io::Error),
    /// The receiving side failed; it may have sent bytes before.
    Write(io::Error),
}

// === impl Relay ===

impl Relay {
    /// Relays bytes until both sides have ended, and reports them to `passed` each time no more can be moved. Dropping
    /// the future closes both connections.
    ///
    /// # Errors
    /// If a side is reset, in which case the other has been reset as well, or if the idle timeout expires.
    pub async fn run(self, pipes: &Pipes, mut passed: impl FnMut(RelayedBytes)) -> Result<(), RelayError> {
        let Self { client, endpoint, idle_timeout } = self;
        let (mut up, mut down) = (RelayDirection::default(), RelayDirection::default());
        let mut broken = None;
        let (begun, mut latest) = (Instant::now(), None);
        let mut idle = pin!(sleep(idle_timeout));
        let ended = poll_fn(|cx| {
            let mut now = RelayedBytes::default();
            let to_endpoint = up.poll(cx, (&client, &endpoint), pipes, &mut now.up);
            down.cut |= matches!(to_endpoint, Poll::Ready(Err(RelayFault::Write(_))));
            let to_client = down.poll(cx, (&endpoint, &client), pipes, &mut now.down);
            up.cut |= matches!(to_client, Poll::Ready(Err(RelayFault::Write(_))));
            if now != RelayedBytes::default() {
                latest = Some(Instant::now());
                passed(now);
            }
            for (way, result) in [(&mut up, to_endpoint), (&mut down, to_client)] {
                match result {
                    Poll::Pending | Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(RelayFault::Read(error))) => return Poll::Ready(Err(RelayError::Broken(error))),
                    Poll::Ready(Err(RelayFault::Write(error))) => {
                        (way.pipe, way.ended) = (None, true);
                        broken = Some(error);
                    }
                }
            }
            if up.ended && down.ended {
                return Poll::Ready(broken.take().map_or(Ok(()), |error| Err(RelayError::Broken(error))));
            }
            while idle.as_mut().poll(cx).is_ready() {
                let until = latest.unwrap_or(begun) + idle_timeout;
                if until <= Instant::now() {
                    return Poll::Ready(Err(RelayError::Idle));
                }
                idle.as_mut().reset(until);
            }
            Poll::Pending
        })
        .await;
        if let Err(RelayError::Broken(_)) = &ended {
            if let Some(latest) = latest {
                sleep_until(latest + GRACE).await;
            }
            reset(&client);
            reset(&endpoint);
        }
        ended
    }
}

/// Makes the close of `tcp` a reset, so that it does not look like a regular end.
pub(crate) fn reset(tcp: &TcpStream) {
    if let Err(error) = SockRef::from(tcp).set_linger(Some(Duration::ZERO)) {
        tracing::debug!(error = &error as &dyn std::error::Error, "no reset");
    }
}

// === impl RelayDirection ===

impl RelayDirection {
    /// Relays the bytes available now. Ready once the sending side has ended and the receiving side has been shut down.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        (from, to): (&TcpStream, &TcpStream),
        pipes: &Pipes,
        passed: &mut usize,
    ) -> Poll<Result<(), RelayFault>> {
        if self.ended {
            return Poll::Ready(Ok(()));
        }
        loop {
            if let Some(pipe) = &mut self.pipe {
                *passed += ready!(pipe.poll_drain(cx, to)).map_err(RelayFault::Write)?;
                if pipe.is_empty()
                    && let Some(pipe) = self.pipe.take()
                {
                    pipes.give_back(pipe);
                }
                if *passed >= TURN {
                    end_turn(cx);
                    return Poll::Pending;
                }
                continue;
            }
            match ready!(pipes.poll_fill(cx, from, usize::MAX)).map_err(RelayFault::Read)? {
                Some(pipe) => self.pipe = Some(pipe),
                None if self.cut => return Poll::Ready(Err(RelayFault::Read(io::ErrorKind::ConnectionReset.into()))),
                None => {
                    self.ended = true;
                    return Poll::Ready(SockRef::from(to).shutdown(Shutdown::Write).map_err(RelayFault::Write));
                }
            }
        }
    }
}
