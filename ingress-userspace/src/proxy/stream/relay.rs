//! Bytes both ways between two TCP connections until both have ended. What the bytes mean is not looked at, and they do
//! not come into this process as long as there are descriptors for pipes: see `pipe`.
//!
//! | one side | the other |
//! |---|---|
//! | ends its sending (FIN) | is told so when it has all bytes; the opposite direction goes on |
//! | breaks off (RST) | still gets what had arrived from there, then breaks off |
//! | takes nothing | is not read from: what it does not take stays where it is |
//!
//! A relay that rests for the idle time-out, in both directions, ends. Dead peers are found by TCP keep-alive.

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

use crate::proxy::pipe::{Pipe, Pipes, TURN, end_turn};

/// A reset overtakes what is still on its way to the client: what was passed on just before has this long to arrive.
const GRACE: Duration = Duration::from_secs(1);

/// Two connections between which bytes are passed.
#[derive(Debug)]
pub struct Relay {
    pub client: TcpStream,
    pub endpoint: TcpStream,
    /// After this long without a byte in either direction it ends.
    pub idle_timeout: Duration,
}

/// Bytes that were handed over: to the endpoint, and to the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    pub up: usize,
    pub down: usize,
}

/// Why a relay ended before both sides had.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    #[error("a side broke off")]
    Broken(#[source] io::Error),
    #[error("no byte came from either side for too long")]
    Idle,
}

/// One direction.
#[derive(Debug, Default)]
struct Way {
    /// Only while something is in it.
    pipe: Option<Pipe>,
    /// The side that sends has broken off, which the kernel says only once: what looks like its end is none.
    cut: bool,
    ended: bool,
}

/// What ends a direction out of order.
enum Fault {
    /// The side that sends is gone.
    Read(io::Error),
    /// The side that receives is gone; it may have sent something before.
    Write(io::Error),
}

// === impl Relay ===

impl Relay {
    /// Passes bytes until both sides have ended, and tells `passed` of them each time the connections rest. Dropping
    /// the future closes both.
    ///
    /// # Errors
    /// If a side breaks off, in which case the other has been reset, or both are silent for too long.
    pub async fn run(self, pipes: &Pipes, mut passed: impl FnMut(Passed)) -> Result<(), RelayError> {
        let Self { client, endpoint, idle_timeout } = self;
        let (mut up, mut down) = (Way::default(), Way::default());
        let mut broken = None;
        let (begun, mut latest) = (Instant::now(), None);
        let mut idle = pin!(sleep(idle_timeout));
        let ended = poll_fn(|cx| {
            let mut now = Passed::default();
            let to_endpoint = up.poll(cx, (&client, &endpoint), pipes, &mut now.up);
            down.cut |= matches!(to_endpoint, Poll::Ready(Err(Fault::Write(_))));
            let to_client = down.poll(cx, (&endpoint, &client), pipes, &mut now.down);
            up.cut |= matches!(to_client, Poll::Ready(Err(Fault::Write(_))));
            if now != Passed::default() {
                latest = Some(Instant::now());
                passed(now);
            }
            for (way, result) in [(&mut up, to_endpoint), (&mut down, to_client)] {
                match result {
                    Poll::Pending | Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(Fault::Read(error))) => return Poll::Ready(Err(RelayError::Broken(error))),
                    Poll::Ready(Err(Fault::Write(error))) => {
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

/// Lets the end of `tcp` look like what it is: no end in order.
pub(super) fn reset(tcp: &TcpStream) {
    if let Err(error) = SockRef::from(tcp).set_linger(Some(Duration::ZERO)) {
        tracing::debug!(error = &error as &dyn std::error::Error, "no reset");
    }
}

// === impl Way ===

impl Way {
    /// Passes on what can be passed on now. Ready when the sending side has ended and the receiving side knows.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        (from, to): (&TcpStream, &TcpStream),
        pipes: &Pipes,
        passed: &mut usize,
    ) -> Poll<Result<(), Fault>> {
        if self.ended {
            return Poll::Ready(Ok(()));
        }
        loop {
            if let Some(pipe) = &mut self.pipe {
                *passed += ready!(pipe.poll_drain(cx, to)).map_err(Fault::Write)?;
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
            match ready!(pipes.poll_fill(cx, from, usize::MAX)).map_err(Fault::Read)? {
                Some(pipe) => self.pipe = Some(pipe),
                None if self.cut => return Poll::Ready(Err(Fault::Read(io::ErrorKind::ConnectionReset.into()))),
                None => {
                    self.ended = true;
                    return Poll::Ready(SockRef::from(to).shutdown(Shutdown::Write).map_err(Fault::Write));
                }
            }
        }
    }
}
