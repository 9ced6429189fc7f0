//! Opens and closes the sockets of UDP services as the configuration has them. It sends and receives nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    io,
    net::{SocketAddr, UdpSocket},
    sync::atomic::Ordering::Relaxed,
    time::Duration,
};

use super::{
    Order,
    socket::{self, Sharing},
};
use crate::{
    model::Transport,
    proxy::{listen, server::Server},
};

/// How often a port is tried again that could not be opened.
const RETRY: Duration = Duration::from_secs(5);

/// Why a port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "cannot open UDP port {port}: another process has it, or it on one address of the node; stop that, or take another port"
    )]
    InUse { port: u16 },
    #[error(
        "cannot open UDP port {port}: ports below `net.ipv4.ip_unprivileged_port_start` need CAP_NET_BIND_SERVICE; add it to the container (`deploy/udp`), or take a higher port"
    )]
    Denied { port: u16 },
    #[error("cannot open UDP port {port}")]
    Io { port: u16, source: io::Error },
}

/// Keeps the ports of UDP services open on all workers of `server`, for as long as it is polled. One that cannot be
/// opened is told of in the log, and tried again every 5 s.
///
/// `has_company` says whether another process like this one is on the node, which may have the same ports open.
/// Otherwise a port that any process has is an error: the two would share the datagrams.
pub async fn keep_open(server: &Server, has_company: impl Fn() -> bool) -> Infallible {
    let (shared, mut published) = (server.shared(), server.shared().published());
    let mut open = BTreeSet::new();
    // With what the log has said of it.
    let mut closed: BTreeMap<u16, String> = BTreeMap::new();
    loop {
        published.mark_unchanged();
        let snapshot = shared.snapshot();
        let ports = snapshot.streams.keys().filter(|port| port.transport == Transport::Udp);
        let wanted: BTreeSet<u16> = ports.map(|port| port.number).collect();
        for port in open.extract_if(.., |port| !wanted.contains(port)) {
            server.order((0..server.workers()).map(|_| Order::Close { port })).await;
            tracing::info!(port, "UDP port closed");
        }
        closed.retain(|port, _| wanted.contains(port));
        for port in wanted {
            if open.contains(&port) {
                continue;
            }
            match bind(port, server.workers(), has_company()) {
                Ok(sockets) => {
                    server.order(sockets.into_iter().map(|socket| Order::Open { port, socket })).await;
                    open.insert(port);
                    closed.remove(&port);
                    tracing::info!(port, "UDP port open");
                }
                Err(error) => {
                    let text = describe(&error);
                    if closed.get(&port) != Some(&text) {
                        tracing::warn!(port, "{text}");
                    }
                    closed.insert(port, text);
                }
            }
        }
        shared.stats.datagrams.open_ports.store(open.len(), Relaxed);
        shared.stats.datagrams.closed_ports.store(closed.len(), Relaxed);
        tokio::select! {
            changed = published.changed() => if changed.is_err() { std::future::pending().await },
            () = tokio::time::sleep(RETRY), if !closed.is_empty() => {}
        }
    }
}

/// A socket for each worker.
fn bind(port: u16, workers: usize, has_company: bool) -> Result<Vec<UdpSocket>, OpenError> {
    let address = SocketAddr::new(listen::unspecified(), port);
    let bind = |sharing| {
        socket::bind(address, sharing).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => OpenError::InUse { port },
            io::ErrorKind::PermissionDenied => OpenError::Denied { port },
            _ => OpenError::Io { port, source },
        })
    };
    if !has_company {
        // SO_REUSEPORT would join another process's sockets without a word; a socket without it finds out.
        drop(bind(Sharing::Alone)?);
    }
    (0..workers).map(|_| bind(Sharing::ReusePort)).collect()
}

fn describe(error: &OpenError) -> String {
    match error {
        OpenError::InUse { .. } | OpenError::Denied { .. } => error.to_string(),
        OpenError::Io { port: _, source } => format!("{error}: {source}"),
    }
}
