//! Changes of the bound ports of TCP and UDP services, on their way to one worker.

use std::{
    convert::Infallible,
    net::{TcpListener, UdpSocket},
};

use tokio::sync::{mpsc, oneshot};

/// Changes queued for one worker; senders wait while the queue is full.
const WAITING: usize = 16;

/// A change of one port on a worker.
#[derive(Debug)]
pub(crate) enum PortChange<S> {
    Open {
        port: u16,
        socket: S,
        /// Dropped after the socket, which tells the sender of the change that the port is closed.
        held: oneshot::Sender<Infallible>,
    },
    Close {
        port: u16,
    },
}

/// Sending end of the changes for one worker.
#[derive(Debug)]
pub(crate) struct Changes {
    pub(crate) tcp: mpsc::Sender<PortChange<TcpListener>>,
    pub(crate) udp: mpsc::Sender<PortChange<UdpSocket>>,
}

/// Receiving end of the changes.
#[derive(Debug)]
pub(crate) struct Changed {
    pub(crate) tcp: mpsc::Receiver<PortChange<TcpListener>>,
    pub(crate) udp: mpsc::Receiver<PortChange<UdpSocket>>,
}

/// Creates the channels for the changes of one worker.
pub(crate) fn changes() -> (Changes, Changed) {
    let ((tcp, tcp_changed), (udp, udp_changed)) = (mpsc::channel(WAITING), mpsc::channel(WAITING));
    (Changes { tcp, udp }, Changed { tcp: tcp_changed, udp: udp_changed })
}
