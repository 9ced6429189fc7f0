//! Pipes, through which `splice(2)` moves what one socket has received to another without a copy in this process. A worker keeps
//! those that are empty.

use std::{cell::RefCell, io, os::fd::OwnedFd, rc::Rc};

use rustix::{
    io::Errno,
    pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice},
};
use tokio::{io::Interest, net::TcpStream};

/// Most bytes in one pipe, and so what a direction whose receiver is slow keeps beside the buffers of its sockets. More than the
/// kernel's default of 64 KiB, so that fewer system calls move more.
const CAPACITY: usize = 256 * 1024;
/// Empty pipes that a worker keeps; a direction has one only while there is something in it.
const KEPT_MAX: usize = 64;

/// The empty pipes of one worker; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Pipes(Rc<RefCell<Vec<Pipe>>>);

/// A pipe and how much is in it.
#[derive(Debug)]
pub(super) struct Pipe {
    from: OwnedFd,
    to: OwnedFd,
    held: usize,
}

// === impl Pipes ===

impl Pipes {
    /// An empty pipe.
    pub(super) fn take(&self) -> io::Result<Pipe> {
        self.0.borrow_mut().pop().map_or_else(Pipe::new, Ok)
    }

    /// Keeps `pipe`, if it can be used again.
    pub(super) fn give_back(&self, pipe: Pipe) {
        let mut kept = self.0.borrow_mut();
        if pipe.is_empty() && kept.len() < KEPT_MAX {
            kept.push(pipe);
        }
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
    fn new() -> io::Result<Self> {
        let (from, to) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Beyond `fs.pipe-user-pages-soft` the kernel refuses; a smaller one does as well.
        let _smaller = fcntl_setpipe_size(&to, CAPACITY).is_err();
        Ok(Self { from, to, held: 0 })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Takes in what `socket` has; 0 at its end. Only for an empty pipe: of one that is full the kernel would say the same as of a
    /// socket without bytes.
    pub(super) fn fill(&mut self, socket: &TcpStream) -> io::Result<usize> {
        debug_assert!(self.is_empty(), "else a full pipe looks like a silent socket");
        let filled = socket
            .try_io(Interest::READABLE, || moved(|flags| splice(socket, None, &self.to, None, CAPACITY, flags)))?;
        self.held = filled;
        Ok(filled)
    }

    /// Hands to `socket` as much as it takes.
    pub(super) fn drain(&mut self, socket: &TcpStream) -> io::Result<usize> {
        let drained = socket
            .try_io(Interest::WRITABLE, || moved(|flags| splice(&self.from, None, socket, None, self.held, flags)))?;
        self.held -= drained;
        Ok(drained)
    }
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
