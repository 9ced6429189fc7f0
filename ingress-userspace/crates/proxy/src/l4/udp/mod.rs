//! UDP services: forwards datagrams of clients to pods, and responses back. It does not parse their contents.
//!
//! ```text
//! main thread     snapshot ─▶ `ports` ─▶ a socket for each worker and port
//! worker          socket ─▶ port ─▶ session (one for each client) ─▶ its own socket ─▶ one endpoint
//!                 socket ◀───────── session ◀──────────────────────────────┘
//! ```
//!
//! The main thread opens the sockets, because workers have no capability for low ports, and hands them to the workers.
//! All sockets of a port share it through `SO_REUSEPORT`: the kernel assigns each client to one socket. The endpoint of
//! a client depends only on the client's address and port, so every worker, process and node chooses the same one.

pub(crate) mod common;
mod port;
mod session;
mod socket;
mod stats;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    net::UdpSocket,
    rc::Rc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, watch},
    task::AbortHandle,
    time::{Instant, MissedTickBehavior, interval},
};

use ingress_panics::vital;

use crate::{
    l4::udp::common::UdpCommon,
    server::{port_changes::PortChange, signal::Signal, worker::Worker},
};
use port::{ServedPort, UdpPort};

pub(crate) use socket::bind_port;
pub(crate) use stats::DatagramStats;
pub use stats::{DatagramStatsView, Dropped};

/// The longest datagram of IPv4 and IPv6 (except for jumbograms).
const DATAGRAM_MAX: usize = 65_535;

/// Longest time that a draining worker waits for outstanding responses.
const DRAIN: Duration = Duration::from_secs(2);

/// Serves the ports opened through `changes` on one worker until the server stops. When the server drains, returns once
/// the outstanding responses have arrived, or after [`DRAIN`].
pub(crate) async fn run(
    worker: Rc<Worker>,
    mut changes: mpsc::Receiver<PortChange<UdpSocket>>,
    mut signal: watch::Receiver<Signal>,
) {
    let mut ports: BTreeMap<u16, Running> = BTreeMap::new();
    let common = Rc::new(UdpCommon { sessions: Cell::new(0), buffer: RefCell::new(Box::default()) });
    let deadline = loop {
        tokio::select! {
            Some(change) = changes.recv() => match change {
                PortChange::Open { port, socket, held } => match UdpPort::new(&worker, &common, port, socket, held) {
                    Ok(opened) => drop(ports.insert(port, Running::start(opened))),
                    // Memory or descriptors are exhausted. The socket of another worker serves the clients, or the port
                    // is opened again.
                    Err(error) => tracing::error!(port, %error, "a worker cannot serve a UDP port"),
                },
                PortChange::Close { port } => drop(ports.remove(&port)),
            },
            changed = signal.changed() => match changed.map_or(Signal::Stop, |()| *signal.borrow_and_update()) {
                Signal::Serve => {}
                Signal::Drain { deadline } => break deadline,
                Signal::Stop => return,
            },
        }
    };
    let deadline = Instant::from_std(deadline).min(Instant::now() + DRAIN);
    let mut ticks = interval(Duration::from_millis(10));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while ports.values().any(|running| running.port.awaits_answers()) && Instant::now() < deadline {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = signal.wait_for(|signal| *signal == Signal::Stop) => return,
        }
    }
}

/// A port that is served until this value is dropped.
struct Running {
    port: Rc<UdpPort>,
    task: AbortHandle,
}

impl Running {
    fn start(port: Rc<UdpPort>) -> Self {
        let serving = ServedPort::new(Rc::clone(&port));
        Self { port, task: tokio::task::spawn_local(vital(serving.run())).abort_handle() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}
