//! One TCP connection to an upstream: non-blocking reads and writes, and the time-out of whoever waits for them.
//!
//! A wait that ends in time, which is nearly every one, arms no timer: the connection has one timer that outlives the exchanges,
//! is armed when there is none to run out soon enough, and when it runs out looks whether the wait of that moment is really
//! that old, and else is armed anew. A busy connection so touches the timer wheel once per time-out, not once per read.

use std::{
    fmt,
    future::Future,
    io::{self, IoSlice},
    net::SocketAddr,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWrite},
    net::TcpStream,
    time::{Instant, Sleep, sleep_until},
};

use super::{buffer::ReadBuffer, pool::Pool};

/// An open connection, fit for one exchange. Dropping it closes it.
pub struct Connection {
    stream: TcpStream,
    address: SocketAddr,
    reused: bool,
    timer: Timer,
    pool: Pool,
}

#[derive(Default)]
struct Timer {
    /// When the present wait began; none while there is progress.
    since: Option<Instant>,
    sleep: Option<Pin<Box<Sleep>>>,
}

// === impl Connection ===

impl Connection {
    pub(super) fn new(stream: TcpStream, address: SocketAddr, pool: Pool) -> Self {
        Self { stream, address, reused: false, timer: Timer::default(), pool }
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it has served a request before.
    #[must_use]
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// Gives it back for another request.
    pub(super) fn release(mut self) {
        self.reused = true;
        self.timer.progress();
        let pool = self.pool.clone();
        pool.keep(self);
    }

    /// Whether it is open and silent, as far as the reactor knows by now: no system call unless something happened to it.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self.stream.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Reads what is there into `buffer`, which gets memory only when there is something. 0 is the end.
    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuffer,
        large: bool,
    ) -> Poll<io::Result<usize>> {
        ready!(self.stream.poll_read_ready(cx))?;
        buffer.prepare(large);
        let read = pin!(self.stream.read_buf(&mut **buffer)).poll(cx);
        match read {
            Poll::Ready(_) => self.timer.progress(),
            Poll::Pending => buffer.rest(),
        }
        read
    }

    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, parts));
        self.timer.progress();
        Poll::Ready(written)
    }

    /// Ready when the present wait, which begins now if none has begun, is `limit` old.
    pub(super) fn poll_overdue(&mut self, cx: &mut Context<'_>, limit: Duration) -> Poll<()> {
        self.timer.poll_overdue(cx, limit)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stream: _, address, reused, timer: _, pool: _ } = self;
        f.debug_struct("Connection").field("address", address).field("reused", reused).finish_non_exhaustive()
    }
}

// === impl Timer ===

impl Timer {
    fn progress(&mut self) {
        self.since = None;
    }

    fn poll_overdue(&mut self, cx: &mut Context<'_>, limit: Duration) -> Poll<()> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let Some(due) = since.checked_add(limit) else { return Poll::Pending };
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if sleep.deadline() > due {
            sleep.as_mut().reset(due);
        }
        loop {
            ready!(sleep.as_mut().poll(cx));
            if Instant::now() >= due {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(due);
        }
    }
}
