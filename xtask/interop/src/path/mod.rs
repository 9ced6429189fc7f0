//! A path with faults: a relay of datagrams between clients and the product, on loopback. It needs no rights and no
//! `netem`. Batches of datagrams are taken apart, and each one passes for itself.

mod counts;
mod fate;
mod packet;
mod relay;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

pub(crate) use self::counts::{Counts, Tally};
pub(crate) use self::fate::{Fault, Plan, RATE};
use self::relay::Socket;

/// A path to the product, until its end or dropped.
#[derive(Debug)]
pub(crate) struct Path {
    /// Addresses at which clients find the product.
    pub(crate) ports: Vec<SocketAddr>,
    counts: Arc<Mutex<Counts>>,
    open: oneshot::Sender<()>,
    thread: JoinHandle<io::Result<()>>,
}

impl Path {
    /// Starts a path with as many ports to `server`. Paths with another `number`, 1 or above, use other addresses towards
    /// the server, and other random numbers.
    ///
    /// # Errors
    /// Fails without a socket.
    pub(crate) fn start(server: SocketAddr, plan: Plan, number: u8, ports: usize) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let sockets: Vec<Socket> = {
            let _context = runtime.enter();
            let open = |_| Socket::bind((Ipv4Addr::LOCALHOST, 0).into());
            (0..ports).map(open).collect::<io::Result<_>>().context("no socket for a path")?
        };
        let ports = sockets.iter().map(Socket::address).collect::<io::Result<_>>()?;
        let counts = Arc::new(Mutex::new(Counts::default()));
        let (open, closed) = oneshot::channel::<()>();
        let kept = Arc::clone(&counts);
        let thread = thread::spawn(move || {
            LocalSet::new().block_on(&runtime, async {
                tokio::select! {
                    failed = relay::run(server, plan, number, kept, sockets) => failed,
                    _dropped = closed => Ok(()),
                }
            })
        });
        Ok(Self { ports, counts, open, thread })
    }

    /// Ends the path, and returns what it has seen.
    ///
    /// # Errors
    /// Fails if it could not go on.
    pub(crate) fn end(self) -> Result<Counts> {
        drop(self.open);
        self.thread.join().ok().context("a path panicked")?.context("a path failed")?;
        Ok(self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

#[cfg(test)]
mod tests;
