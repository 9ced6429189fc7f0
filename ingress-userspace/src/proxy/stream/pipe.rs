//! Pipes, through which `splice(2)` moves what one socket has received to another without a copy in this process. A
//! worker keeps those that are empty. Where there are no descriptors left for one, a buffer does.

use std::{cell::RefCell, io, os::fd::OwnedFd, rc::Rc};

use bytes::{Buf as _, BytesMut};
use rustix::{
    io::{Errno, write},
    net::{RecvFlags, recv},
    pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice},
};
use tokio::{io::Interest, net::TcpStream};

/// Most bytes in one pipe, and so what a direction whose receiver is slow keeps beside the buffers of its sockets. More
/// than the kernel's default of 64 KiB, so that fewer system calls move more.
const CAPACITY: usize = 256 * 1024;
/// The same in place of a pipe.
const BUFFER: usize = 16 * 1024;
/// Empty pipes that a worker keeps; a direction has one only while there is something in it.
const KEPT_MAX: usize = 64;

/// The empty pipes of one worker; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Pipes(Rc<RefCell<Vec<Pipe>>>);

/// What bytes are in between two sockets.
#[derive(Debug)]
pub(super) enum Pipe {
    /// A pipe, and how much is in it.
    Kernel { from: OwnedFd, to: OwnedFd, held: usize },
    /// Streams that are open must go on when descriptors are short.
    Buffer(BytesMut),
}

// === impl Pipes ===

impl Pipes {
    /// An empty pipe.
    pub(super) fn take(&self) -> Pipe {
        self.0.borrow_mut().pop().unwrap_or_else(Pipe::new)
    }

    /// Keeps `pipe`, if it can be used again.
    pub(super) fn give_back(&self, pipe: Pipe) {
        let mut kept = self.0.borrow_mut();
        if matches!(pipe, Pipe::Kernel { held: 0, .. }) && kept.len() < KEPT_MAX {
            kept.push(pipe);
        }
    }

    /// So many buffers, as if descriptors were short.
    #[cfg(test)]
    pub(super) fn of_buffers(count: usize) -> Self {
        Self(Rc::new(RefCell::new((0..count).map(|_| Pipe::Buffer(BytesMut::new())).collect())))
    }

    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.0.borrow().len()
    }

    /// Closes what is kept: its descriptors are needed for something else.
    pub fn clear(&self) {
        drop(self.0.take());
    }
}

// === impl Pipe ===

impl Pipe {
    fn new() -> Self {
        match pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK) {
            Ok((from, to)) => {
                // Beyond `fs.pipe-user-pages-soft` the kernel refuses; a smaller one does as well.
                let _smaller = fcntl_setpipe_size(&to, CAPACITY).is_err();
                Self::Kernel { from, to, held: 0 }
            }
            Err(error) => {
                tracing::debug!(%error, "there is no pipe to be had; bytes go through a buffer");
                Self::Buffer(BytesMut::new())
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Kernel { held, .. } => *held == 0,
            Self::Buffer(bytes) => bytes.is_empty(),
        }
    }

    /// Takes in what `socket` has; 0 at its end. Only for an empty pipe: of one that is full the kernel would say the
    /// same as of a socket without bytes.
    pub(super) fn fill(&mut self, socket: &TcpStream) -> io::Result<usize> {
        debug_assert!(self.is_empty(), "else a full pipe looks like a silent socket");
        match self {
            Self::Kernel { from: _, to, held } => {
                let to = &*to;
                let filled = socket.try_io(Interest::READABLE, || {
                    match moved(|flags| splice(socket, None, to, None, CAPACITY, flags)) {
                        // Before urgent data it says what it says of silence, or of the end; only reading goes past
                        // that.
                        Ok(0) => past_urgent(socket, to),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => past_urgent(socket, to),
                        result => result,
                    }
                })?;
                *held = filled;
                Ok(filled)
            }
            Self::Buffer(bytes) => {
                bytes.reserve(BUFFER);
                socket.try_read_buf(bytes)
            }
        }
    }

    /// Hands to `socket` as much as it takes.
    pub(super) fn drain(&mut self, socket: &TcpStream) -> io::Result<usize> {
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

/// Reads what `socket` has into the empty pipe behind `to`. An urgent byte is left out, as for every program that does
/// not ask for it.
fn past_urgent(socket: &TcpStream, to: &OwnedFd) -> io::Result<usize> {
    // As much as an empty pipe takes at once, however small it is.
    let mut bytes = [0; 4096];
    let (count, _) = recv(socket, bytes.as_mut_slice(), RecvFlags::DONTWAIT)?;
    if count == 0 { Ok(0) } else { Ok(write(to, &bytes[..count])?) }
}

/// Splices without waiting, and again if a signal came between.
fn moved(splice: impl Fn(SpliceFlags) -> Result<usize, Errno>) -> io::Result<usize> {
    loop {
        match splice(SpliceFlags::MOVE | SpliceFlags::NONBLOCK) {
            Err(Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}
