//! Kernel pipes, through which `splice(2)` moves bytes from one socket to another without a copy into this process.
//! Each worker keeps a stock of empty pipes. Without free descriptors, a buffer replaces the pipe.

use std::{
    cell::{Cell, RefCell},
    future::Future,
    io,
    os::fd::OwnedFd,
    pin::pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use rustix::{
    buffer::spare_capacity,
    io::{Errno, read, write},
    net::{RecvFlags, recv},
    pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice},
};
use tokio::{io::Interest, net::TcpStream};

/// Capacity of one pipe, and so the memory that a slow receiver holds besides the sockets' buffers. It exceeds the
/// kernel's default of 64 KiB, so that fewer system calls move more.
pub(crate) const CAPACITY: usize = 256 * 1024;
/// Bytes that one receiver may get before other connections of the worker have a turn.
pub(crate) const TURN: usize = 1024 * 1024;
/// Bytes still expected from a socket above which a pipe is worth its cost.
pub(crate) const WORTHWHILE: u64 = 16 * 1024;
/// A pipe with less room costs more calls than it saves copies. The value is the kernel's default.
const ROOM_MIN: usize = 64 * 1024;
/// The equivalent of [`CAPACITY`] for a buffer.
const BUFFER: usize = 16 * 1024;
/// Empty pipes that a worker keeps. A connection holds a pipe only while the pipe has bytes.
const KEPT_MAX: usize = 64;

/// The empty pipes of one worker; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Pipes(Rc<Stock>);

#[derive(Debug, Default)]
struct Stock {
    empty: RefCell<Vec<Pipe>>,
    /// The kernel has refused a pipe; others are not requested at each turn.
    is_refused: Cell<bool>,
}

/// Container of the bytes in flight between two sockets.
#[derive(Debug)]
pub enum Pipe {
    /// A kernel pipe and the number of bytes in it.
    Kernel { from: OwnedFd, to: OwnedFd, held: usize },
    /// A buffer, which keeps transfers going when descriptors are short.
    Buffer(BytesMut),
}

/// Reschedules the current task behind all runnable tasks, including those known to be ready by the kernel alone so
/// far. While any task is ready, tokio polls the kernel only every 61 polls, and a task that wakes itself is always
/// ready.
pub(crate) fn end_turn(cx: &mut Context<'_>) {
    let _woken_later = pin!(tokio::task::yield_now()).poll(cx);
}

// === impl Pipes ===

impl Pipes {
    /// Moves at most `most` bytes from `socket` into a pipe. Returns `None` at the end of the stream.
    pub(crate) fn poll_fill(
        &self,
        cx: &mut Context<'_>,
        socket: &TcpStream,
        most: usize,
    ) -> Poll<io::Result<Option<Pipe>>> {
        loop {
            ready!(socket.poll_read_ready(cx))?;
            let mut pipe = self.take();
            let filled = pipe.fill(socket, most);
            if matches!(filled, Ok(1..)) {
                return Poll::Ready(Ok(Some(pipe)));
            }
            self.give_back(pipe);
            match filled {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                ended => return Poll::Ready(ended.map(|_none| None)),
            }
        }
    }

    /// Returns an empty pipe.
    fn take(&self) -> Pipe {
        let Stock { empty, is_refused } = &*self.0;
        let kept = empty.borrow_mut().pop();
        kept.or_else(|| (!is_refused.get()).then(Pipe::new)?).unwrap_or_else(|| {
            is_refused.set(true);
            Pipe::Buffer(BytesMut::new())
        })
    }

    /// Requests pipes from the kernel again, after a refusal.
    pub(crate) fn ask_again(&self) {
        self.0.is_refused.set(false);
    }

    /// Keeps `pipe` if it can be reused.
    pub(crate) fn give_back(&self, pipe: Pipe) {
        let mut kept = self.0.empty.borrow_mut();
        if matches!(pipe, Pipe::Kernel { held: 0, .. }) && kept.len() < KEPT_MAX {
            kept.push(pipe);
        }
    }

    /// Returns a stock of `count` buffers, as if descriptors were short.
    #[cfg(test)]
    pub(crate) fn of_buffers(count: usize) -> Self {
        let pipes = Self::default();
        pipes.add_buffers(count);
        pipes
    }

    #[cfg(test)]
    pub(crate) fn add_buffers(&self, count: usize) {
        self.0.empty.borrow_mut().extend((0..count).map(|_| Pipe::Buffer(BytesMut::new())));
    }

    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.0.empty.borrow().len()
    }

    /// Returns whether the kernel has refused a pipe.
    #[cfg(test)]
    pub(crate) fn is_refused(&self) -> &Cell<bool> {
        &self.0.is_refused
    }

    /// Closes the empty pipes, because their descriptors are needed elsewhere.
    pub fn clear(&self) {
        drop(self.0.empty.take());
    }
}

// === impl Pipe ===

impl Pipe {
    /// Creates a kernel pipe with enough room; `None` if the kernel refuses.
    fn new() -> Option<Self> {
        let made = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).and_then(|(from, to)| {
            // Beyond `fs.pipe-user-pages-soft`, which all programs of a user share, the kernel refuses to enlarge
            // pipes, and new ones have two pages (pipe(7)).
            let room = fcntl_setpipe_size(&to, CAPACITY).or_else(|_refused| fcntl_getpipe_size(&to))?;
            Ok((room >= ROOM_MIN).then_some(Self::Kernel { from, to, held: 0 }))
        });
        made.unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot get a pipe; copying bytes through a buffer");
            None
        })
    }

    /// Returns the number of bytes in it; at most [`CAPACITY`].
    pub(crate) fn held(&self) -> usize {
        match self {
            Self::Kernel { held, .. } => *held,
            Self::Buffer(bytes) => bytes.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held() == 0
    }

    /// Fills the empty pipe with at most `most` bytes of `socket`; returns 0 at the end of the stream. The pipe must be
    /// empty, because `splice` answers for a full pipe as for a socket without bytes.
    fn fill(&mut self, socket: &TcpStream, most: usize) -> io::Result<usize> {
        debug_assert!(self.is_empty(), "else a full pipe looks like a silent socket");
        match self {
            Self::Kernel { from: _, to, held } => {
                let (to, most) = (&*to, most.min(CAPACITY));
                let filled = socket.try_io(Interest::READABLE, || {
                    match moved(|flags| splice(socket, None, to, None, most, flags)) {
                        // Before urgent data, `splice` answers as for an idle socket or the end of the stream. Only a
                        // read gets past urgent data.
                        Ok(0) => past_urgent(socket, to, most),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => past_urgent(socket, to, most),
                        result => result,
                    }
                })?;
                *held = filled;
                Ok(filled)
            }
            Self::Buffer(bytes) => {
                bytes.reserve(BUFFER);
                socket.try_read_buf(&mut bytes.limit(most.min(BUFFER)))
            }
        }
    }

    /// Takes all bytes out.
    pub(crate) fn take_bytes(&mut self) -> io::Result<Bytes> {
        match self {
            Self::Kernel { from, to: _, held } => {
                let mut bytes = Vec::with_capacity(*held);
                while bytes.len() < *held && read(&*from, spare_capacity(&mut bytes))? > 0 {}
                *held -= bytes.len();
                Ok(bytes.into())
            }
            Self::Buffer(bytes) => Ok(bytes.split().freeze()),
        }
    }

    /// Writes as many bytes to `socket` as it accepts, at least one.
    pub(crate) fn poll_drain(&mut self, cx: &mut Context<'_>, socket: &TcpStream) -> Poll<io::Result<usize>> {
        loop {
            ready!(socket.poll_write_ready(cx))?;
            match self.drain(socket) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                drained => return Poll::Ready(drained),
            }
        }
    }

    fn drain(&mut self, socket: &TcpStream) -> io::Result<usize> {
        match self {
            Self::Kernel { from, to: _, held } => {
                let (from, most) = (&*from, *held);
                let drained = socket
                    .try_io(Interest::WRITABLE, || moved(|flags| splice(from, None, socket, None, most, flags)))?;
                *held -= drained;
                Ok(drained)
            }
            Self::Buffer(bytes) => {
                let drained = socket.try_write(bytes)?;
                bytes.advance(drained);
                Ok(drained)
            }
        }
    }
}

/// Reads at most `most` bytes from `socket` into the empty pipe behind `to`. An urgent byte is skipped, as for every
/// program that does not ask for it.
fn past_urgent(socket: &TcpStream, to: &OwnedFd, most: usize) -> io::Result<usize> {
    // One page: an empty pipe takes at least this much at once, however small it is.
    let mut bytes = [0; 4096];
    let room = most.min(bytes.len());
    let (count, _) = recv(socket, &mut bytes[..room], RecvFlags::DONTWAIT)?;
    if count == 0 { Ok(0) } else { Ok(write(to, &bytes[..count])?) }
}

/// Splices without blocking, and retries after a signal.
fn moved(splice: impl Fn(SpliceFlags) -> Result<usize, Errno>) -> io::Result<usize> {
    loop {
        match splice(SpliceFlags::MOVE | SpliceFlags::NONBLOCK) {
            Err(Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        net,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering::Relaxed},
        },
    };

    use tokio::{io::AsyncWriteExt as _, net::TcpListener};

    use super::*;

    #[tokio::test]
    async fn buffers_replace_pipes_after_a_refusal_until_the_next_retry() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("bound");
        let near = TcpStream::connect(listener.local_addr().expect("address")).await.expect("connected");
        let (mut far, _) = listener.accept().await.expect("accepted");
        far.write_all(b"xx").await.expect("sent");
        let pipes = Pipes::default();
        pipes.is_refused().set(true);
        for is_kernel in [false, true] {
            let pipe = poll_fn(|cx| pipes.poll_fill(cx, &near, 1)).await.expect("filled").expect("a byte");
            assert_eq!((matches!(pipe, Pipe::Kernel { .. }), pipe.held()), (is_kernel, 1));
            pipes.ask_again();
        }
    }

    #[tokio::test]
    async fn the_reactor_is_polled_after_each_turn() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("bound");
        let _client = net::TcpStream::connect(listener.local_addr().expect("address")).expect("connected");
        let is_met = Arc::new(AtomicBool::new(false));
        let busy = tokio::spawn({
            let (is_met, mut turns) = (Arc::clone(&is_met), 0);
            poll_fn(move |cx| {
                if is_met.load(Relaxed) {
                    return Poll::Ready(turns);
                }
                turns += 1;
                end_turn(cx);
                Poll::Pending
            })
        });
        tokio::spawn(async move {
            listener.accept().await.expect("accepted");
            is_met.store(true, Relaxed);
        });
        let turns = busy.await.expect("no panic");
        assert!(turns <= 3, "{turns} turns before anybody else's");
    }
}
