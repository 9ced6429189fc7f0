//! Opens HTTP/3: derives its keys, binds a socket for each worker, and has the kernel part choose among them. Then asks
//! its port from time to time whether it answers, because clients are told of HTTP/3 only while it does.
//!
//! The sockets are bound once the first snapshot is known, because the keys come from the Secret of session tickets. A
//! failure is reported once, with its remedy; TCP does not depend on it. Keys stay until the process ends: its clients
//! hold resets and tokens by them.

use std::{
    convert::Infallible,
    net::UdpSocket,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use ingress_common::quic::{QuicCell, VERSION};
use ingress_datapath::QuicKey;
use ingress_model::RouteTable;
use ingress_proxy::{ListenError, QuicListener, RECEIVE_BUFFER, Shared, WorkerListeners, bind_quic};
use ingress_quic::{Ids, Keys, NodeIds};
use socket2::SockRef;
use tracing::{info, warn};
use zeroize::Zeroizing;

use super::{
    admin::Http3State,
    http3_probe::{self, News, Verdict},
    kernel::Kernel,
    udp_drops,
};
use crate::config::settings::Http3Settings;

/// Epoch of a process without the kernel part, which is alone on its ports.
const ALONE: u32 = 1;

/// HTTP/3 of this process.
#[derive(Debug)]
pub(super) struct Http3 {
    settings: Http3Settings,
    /// Number of open sockets, one for each worker.
    sockets: AtomicUsize,
    /// Their numbers in the kernel's lists.
    inodes: Mutex<Vec<u64>>,
}

/// A reason why HTTP/3 is off although it is wanted.
#[derive(Debug, thiserror::Error)]
pub(super) enum Http3Error {
    #[error(
        "`use-proxy-protocol` is on, and UDP has no PROXY protocol, so the addresses of clients would be unknown; turn \
         the setting off and restart the process, or run with `--http3 off`"
    )]
    ProxyProtocol,
    #[error(
        "another process has UDP port {port} (`ss -lunp 'sport = :{port}'` shows it); end that process and restart this \
         one, or run with `--http3 off`"
    )]
    Taken { port: u16 },
    #[error(
        "UDP port {port} belongs to another user or program (`ss -lunpe 'sport = :{port}'` shows it), although a process \
         of xdp-ingress on this node has it, too; run all of them as one user, or with `--http3 off`"
    )]
    NotShared { port: u16 },
    #[error(
        "ports below `net.ipv4.ip_unprivileged_port_start` need CAP_NET_BIND_SERVICE; add it (`deploy/http3`, or \
         `controller.http3` of the chart), take a higher `--https-port`, or run with `--http3 off`"
    )]
    Denied,
    #[error("cannot bind the sockets")]
    Bind(#[source] ListenError),
    #[error("the kernel part cannot choose among its sockets")]
    Kernel(#[from] ingress_datapath::Error),
    #[error("the keys cannot be made: the cryptographic library or the system's randomness fails")]
    Keys(#[from] aws_lc_rs::error::Unspecified),
}

/// Input of the key derivation.
struct Secret {
    bytes: Zeroizing<Vec<u8>>,
    /// Whether other processes of the node have the same.
    is_shared: bool,
}

// === impl Http3 ===

impl Http3 {
    pub(super) fn new(settings: Http3Settings) -> Self {
        Self { settings, sockets: AtomicUsize::new(0), inodes: Mutex::default() }
    }

    /// Returns whether HTTP/3 works; `None` if it is not open, and need not be (`auto`).
    pub(super) fn state(&self, shared: &Shared) -> Option<Http3State> {
        let (sockets, workers) = (self.sockets.load(Relaxed), shared.http3_workers());
        let receive_drops = match sockets {
            0 => 0,
            _ => udp_drops::of_sockets(&self.inodes.lock().unwrap_or_else(PoisonError::into_inner)),
        };
        let is_ready = sockets > 0 && workers >= sockets && shared.http3_answers();
        (self.settings.is_expected || sockets > 0).then_some(Http3State { is_ready, workers, receive_drops })
    }

    /// Notes that the sockets are closed.
    pub(super) fn closed(&self) {
        self.sockets.store(0, Relaxed);
    }

    /// Asks the port whether it answers, again and again, and lets the workers tell clients of HTTP/3 while it does. Must
    /// begin after this process has taken the node over: its predecessor would answer before.
    pub(super) async fn watch(&self, shared: &Shared) -> Infallible {
        if self.sockets.load(Relaxed) == 0 {
            return std::future::pending().await;
        }
        let (mut verdict, port) = (Verdict::default(), self.settings.port);
        loop {
            let answered = http3_probe::probe(port).await;
            let news = verdict.note(answered.is_ok());
            shared.set_http3_answers(verdict.answers());
            match (news, answered) {
                (Some(News::Answers), _) => info!(port, "HTTP/3 answers, so responses over TCP offer it"),
                (Some(News::Silent), Err(reason)) => self.note(format_args!(
                    "HTTP/3 does not answer this process, so it is not offered: {reason}; let UDP port {port} through the \
                     firewall of the node, and see whether another process has the port; it is asked again every {} s",
                    verdict.pause().as_secs()
                )),
                (Some(News::Silent), Ok(())) | (None, _) => {}
            }
            tokio::time::sleep(verdict.pause()).await;
        }
    }

    /// Says once that HTTP/3 does not work, as loudly as the user expects it.
    fn note(&self, text: std::fmt::Arguments<'_>) {
        if self.settings.is_expected {
            warn!("{text}");
        } else {
            info!("{text}");
        }
    }

    /// Opens the sockets for `port` and gives each of `listeners` its own. Returns the port that clients are told to use;
    /// `None` if HTTP/3 stays off, for a reason that is logged.
    pub(super) fn open(
        &self,
        port: u16,
        listeners: &mut [WorkerListeners],
        kernel: Option<&mut Kernel>,
        table: &RouteTable,
    ) -> Option<u16> {
        let is_steered = kernel.is_some();
        match self.try_open(port, listeners, kernel, table) {
            Ok(is_shared) => {
                info!(port, sockets = listeners.len(), is_steered, is_shared, "HTTP/3 open");
                if !is_steered {
                    warn!("without the kernel part, no connection of HTTP/3 survives an update of this process");
                } else if !is_shared {
                    info!(
                        "without `--tls-ticket-secret`, clients of HTTP/3 learn of a crash of this process only by \
                         their own timeouts"
                    );
                }
                self.sockets.store(listeners.len(), Relaxed);
                Some(self.settings.advertised_port)
            }
            Err(error) => {
                self.note(format_args!("HTTP/3 is off, and TCP serves on: {:#}", anyhow::Error::new(error)));
                None
            }
        }
    }

    /// Returns whether the keys are shared with other processes of the node.
    fn try_open(
        &self,
        port: u16,
        listeners: &mut [WorkerListeners],
        kernel: Option<&mut Kernel>,
        table: &RouteTable,
    ) -> Result<bool, Http3Error> {
        if table.settings.trust.proxy_protocol {
            return Err(Http3Error::ProxyProtocol);
        }
        let secret = Secret::of(table)?;
        let keys = || Keys::derive(&secret.bytes, &self.settings.node);
        let cid = keys()?.cid();
        let count = listeners.len();
        let (sockets, ids) = match kernel {
            Some(kernel) => {
                let epoch = kernel.epoch();
                let key = if secret.is_shared { QuicKey::Derived(cid) } else { QuicKey::Kept { otherwise: cid } };
                let (sockets, cell) = kernel.open_quic(port, key, |joins| bind(port, count, joins))?;
                (sockets, ids(count, |worker| NodeIds::new(cell, epoch, worker)))
            }
            None => {
                let cell = Arc::new(QuicCell::default());
                cell.set_version(VERSION);
                cell.set_current_key(0, &cid);
                cell.set_epoch(ALONE, true);
                (bind(port, count, false)?, ids(count, |worker| NodeIds::new(Arc::clone(&cell), ALONE, worker)))
            }
        };
        report_buffers(&sockets);
        *self.inodes.lock().unwrap_or_else(PoisonError::into_inner) =
            sockets.iter().filter_map(|socket| udp_drops::inode(socket).ok()).collect();
        for ((listener, socket), ids) in listeners.iter_mut().zip(sockets).zip(ids) {
            listener.quic = Some(QuicListener { socket, ids, keys: keys()? });
        }
        Ok(secret.is_shared)
    }
}

/// Returns the connection IDs of `count` workers, at most 64.
fn ids<I: Ids + 'static>(count: usize, of: impl Fn(u8) -> I) -> Vec<Arc<dyn Ids>> {
    (0..64).take(count).map(|worker| Arc::new(of(worker)) as Arc<dyn Ids>).collect()
}

fn bind(port: u16, count: usize, joins: bool) -> Result<Vec<UdpSocket>, Http3Error> {
    bind_quic(port, count, joins).map_err(|error| match error {
        ListenError::InUse { .. } if joins => Http3Error::NotShared { port },
        ListenError::InUse { .. } => Http3Error::Taken { port },
        ListenError::Denied { .. } => Http3Error::Denied,
        ListenError::Io { .. } => Http3Error::Bind(error),
    })
}

/// Warns if the kernel gives less than the wanted receive buffer: packets that do not fit are lost.
fn report_buffers(sockets: &[UdpSocket]) {
    let sizes = sockets.iter().filter_map(|socket| SockRef::from(socket).recv_buffer_size().ok());
    // The kernel doubles the value for its own overhead (socket(7)).
    if let Some(bytes) = sizes.min().filter(|size| *size < 2 * RECEIVE_BUFFER) {
        warn!(
            bytes = bytes / 2,
            wanted = RECEIVE_BUFFER,
            "the receive buffers of HTTP/3 are small, so bursts lose packets; raise `net.core.rmem_max`, or give the \
             process CAP_NET_ADMIN"
        );
    }
}

// === impl Secret ===

impl Secret {
    /// Returns the key that seals session tickets, or a random secret without one.
    fn of(table: &RouteTable) -> Result<Self, aws_lc_rs::error::Unspecified> {
        if let Some(key) = table.ticket_keys.as_ref().and_then(|keys| keys.keys.first()) {
            return Ok(Self { bytes: Zeroizing::new(key.secret().to_vec()), is_shared: true });
        }
        let mut bytes = Zeroizing::new(vec![0; 32]);
        aws_lc_rs::rand::fill(&mut bytes)?;
        Ok(Self { bytes, is_shared: false })
    }
}

#[cfg(test)]
mod tests {
    use ingress_model::{TicketKey, TicketKeys};
    use ingress_proxy::{ListenMode, ListenOptions};
    use ingress_quic::Owner;

    use super::*;

    fn http3() -> Http3 {
        expected(true)
    }

    fn expected(is_expected: bool) -> Http3 {
        Http3::new(Http3Settings { node: "node-1".to_owned(), port: 0, advertised_port: 443, is_expected })
    }

    fn shared() -> Shared {
        let cells = Box::leak(Box::new([ingress_common::HostL7Cell::default()]));
        Shared::new(cells, None).expect("shared state")
    }

    fn listeners(workers: usize) -> Vec<WorkerListeners> {
        ingress_proxy::bind(ListenOptions { mode: ListenMode::Slots, workers, reuse: false }).expect("bound")
    }

    fn with_ticket_key() -> RouteTable {
        let keys = vec![TicketKey::new(&[7; 80]).expect("a key")];
        let ticket_keys = Some(Arc::new(TicketKeys { origin: "a/b".into(), keys }));
        RouteTable { ticket_keys, ..RouteTable::default() }
    }

    #[test]
    fn each_worker_gets_a_socket_and_ids_of_its_own() {
        for (table, is_shared) in [(RouteTable::default(), false), (with_ticket_key(), true)] {
            let (http3, mut listeners) = (http3(), listeners(2));
            assert_eq!(http3.try_open(0, &mut listeners, None, &table).expect("open"), is_shared);
            let quic: Vec<_> = listeners.iter().map(|listener| listener.quic.as_ref().expect("a socket")).collect();
            let port = |quic: &QuicListener| quic.socket.local_addr().expect("an address").port();
            assert_eq!(port(quic[0]), port(quic[1]));
            let id = quic[1].ids.issue([3; 7]);
            assert_eq!((quic[0].ids.owner(&id), quic[1].ids.owner(&id)), (Owner::Sibling(1), Owner::Own));
            assert_eq!(quic[0].keys.cid(), quic[1].keys.cid(), "each worker opens the tokens of the others");
            assert_eq!(quic[0].keys.ticket(), quic[1].keys.ticket());
        }
    }

    #[test]
    fn a_process_after_a_crash_resets_by_the_same_keys() {
        let (mut before, mut after) = (listeners(1), listeners(1));
        let table = with_ticket_key();
        http3().try_open(0, &mut before, None, &table).expect("open");
        http3().try_open(0, &mut after, None, &table).expect("open");
        let [before, after] = [before, after].map(|mut listeners| listeners.remove(0).quic.expect("a socket"));
        assert_eq!(after.ids.owner(&before.ids.issue([1; 7])), Owner::Own, "known, so it is answered by a reset");
        let mut other = listeners(1);
        http3().try_open(0, &mut other, None, &RouteTable::default()).expect("open");
        let other = other.remove(0).quic.expect("a socket");
        assert_eq!(other.ids.owner(&before.ids.issue([1; 7])), Owner::Unknown, "a random secret is another one");
    }

    #[test]
    fn reasons_name_the_remedy() {
        let mut listeners = listeners(1);
        let taken = UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0)).expect("bound");
        let port = taken.local_addr().expect("an address").port();
        let error = http3().try_open(port, &mut listeners, None, &RouteTable::default()).expect_err("taken");
        assert!(error.to_string().contains(&format!("another process has UDP port {port}")), "{error}");
        let error = bind(port, 1, true).expect_err("taken");
        assert!(error.to_string().contains("run all of them as one user"), "{error}");
        let mut table = RouteTable::default();
        table.settings.trust.proxy_protocol = true;
        let error = http3().try_open(0, &mut listeners, None, &table).expect_err("no PROXY protocol");
        assert!(error.to_string().starts_with("`use-proxy-protocol` is on"), "{error}");
        assert!(listeners[0].quic.is_none(), "the listeners stay as they are");
        let http3 = http3();
        assert_eq!(http3.open(port, &mut listeners, None, &RouteTable::default()), None);
        assert_eq!(http3.state(&shared()), Some(Http3State { is_ready: false, workers: 0, receive_drops: 0 }));
    }

    #[test]
    fn http3_is_ready_once_all_workers_serve_it_and_the_port_answers() {
        let shared = shared();
        for is_expected in [true, false] {
            let http3 = expected(is_expected);
            let absent = is_expected.then_some(Http3State { is_ready: false, workers: 0, receive_drops: 0 });
            assert_eq!(http3.state(&shared), absent, "not open, expected: {is_expected}");
            assert_eq!(http3.open(0, &mut listeners(2), None, &RouteTable::default()), Some(443));
            shared.set_http3_answers(true);
            // No worker has started.
            assert_eq!(http3.state(&shared), Some(Http3State { is_ready: false, workers: 0, receive_drops: 0 }));
            http3.closed();
            assert_eq!(http3.state(&shared), absent, "closed, expected: {is_expected}");
        }
    }
}
