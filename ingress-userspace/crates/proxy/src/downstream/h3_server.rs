//! HTTP/3 of a worker: starts the driver of QUIC, makes its connections known to the worker, and answers their requests.
//! Packets, streams and frames are the work of `ingress_quic`.

use std::{
    any::Any,
    cell::RefCell,
    future::pending,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    rc::Rc,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use http::{HeaderValue, Method, Request, Response, header};
use http_body::Body as _;
use ingress_model::Settings;
use ingress_panics::vital;
use ingress_quic::{Datagram, Driver, FirstPacket, Handle, Limits, Options, Peer, Pressure, RequestBody};
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinHandle},
};

use crate::{
    downstream::{conn::Conn, open, refusal::Refusal},
    limits::CountGuard,
    observe::http3_stats::Http3Counters,
    request::response_body::Body,
    server::{
        listen_quic::QuicListener,
        memory,
        worker::{RegisteredConn, Worker},
    },
    tls::client_certificates::Greeting,
};

/// Datagrams that wait for a worker's thread, for connections whose packets a sibling received.
pub(crate) const FORWARDED_MAX: usize = 256;

/// The part of a worker in QUIC, with the ways to and from its siblings.
pub(crate) struct QuicPart {
    pub(crate) listener: QuicListener,
    /// Channels to the workers, by their numbers.
    pub(crate) siblings: Vec<mpsc::Sender<Datagram>>,
    pub(crate) forwarded: mpsc::Receiver<Datagram>,
}

/// HTTP/3 of a worker, while it runs.
pub(crate) struct Http3 {
    handle: Handle,
    driving: JoinHandle<()>,
    forwarding: AbortHandle,
    counters: Arc<Http3Counters>,
    /// The settings that the driver has.
    settings: Rc<Settings>,
}

/// The worker's part of a connection.
struct Client {
    conn: Rc<Conn>,
    _counted: Option<CountGuard>,
    _entered: RegisteredConn,
}

impl Http3 {
    /// Starts HTTP/3 on `worker`; `None` if that fails, which is logged and costs TCP nothing.
    pub(crate) fn start(worker: &Rc<Worker>, part: QuicPart) -> Option<Self> {
        let QuicPart { listener: QuicListener { socket, ids, keys }, siblings, mut forwarded } = part;
        let settings = worker.settings();
        let port = match socket.local_addr() {
            Ok(address) => address.port(),
            Err(error) => {
                tracing::error!(%error, "a worker cannot serve HTTP/3");
                return None;
            }
        };
        let options = Options {
            socket,
            tls: worker.shared.tls.http3(),
            keys,
            ids,
            limits: limits(worker, &settings),
            pressure: {
                let worker = Rc::clone(worker);
                Box::new(move |first| admit(&worker, first, port))
            },
            tls_at: {
                let worker = Rc::clone(worker);
                Box::new(move |first| tls_at(&worker, first, port))
            },
            tls_of: {
                let shared = Arc::clone(&worker.shared);
                Box::new(move |local| shared.tls.http3_at(local))
            },
            opened: {
                let worker = Rc::clone(worker);
                Box::new(move |peer| enter(&worker, peer, port))
            },
            moved: Box::new(|peer| {
                if let Some(client) = peer.context::<Client>() {
                    client.conn.moves_to(peer.current());
                }
            }),
            forward: Box::new(move |worker, datagram| {
                // Lost if the sibling is too busy, as in a full socket.
                let _lost = siblings.get(usize::from(worker)).map(|sibling| sibling.try_send(datagram));
            }),
        };
        let dates = Rc::<Dates>::default();
        let service = move |request, peer: Rc<Peer>| answer(request, &peer, Rc::clone(&dates));
        let (driver, handle) = match Driver::new(options, service) {
            Ok(made) => made,
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "a worker cannot serve HTTP/3");
                return None;
            }
        };
        let driving = tokio::task::spawn_local(vital({
            let worker = Rc::clone(worker);
            async move {
                let ended = driver.run().await;
                worker.http3.fail(&worker.shared);
                if let Err(error) = ended {
                    tracing::error!(%error, "a worker's socket for HTTP/3 has failed; it serves TCP alone");
                }
            }
        }));
        let forwarding = tokio::task::spawn_local({
            let handle = handle.clone();
            async move {
                while let Some(datagram) = forwarded.recv().await {
                    handle.inject(datagram);
                }
            }
        });
        worker.http3.serve(&worker.shared, port, worker.options.http3_advertise_port);
        let counters = worker.shared.note_http3();
        Some(Self { handle, driving, forwarding: forwarding.abort_handle(), counters, settings })
    }

    /// Publishes the counters, and applies settings that have changed to new connections.
    pub(crate) fn tick(&mut self, worker: &Worker) {
        self.counters.publish(self.handle.counters());
        let settings = worker.settings();
        if !Rc::ptr_eq(&settings, &self.settings) {
            if let Err(error) = self.handle.configure(worker.shared.tls.http3(), limits(worker, &settings)) {
                tracing::error!(error = &error as &dyn std::error::Error, "HTTP/3 keeps its settings");
            }
            self.settings = settings;
        }
    }

    /// Begins the end of all connections, by GOAWAY. Those that last longer than `within` are closed.
    pub(crate) fn drain(&self, within: Duration) {
        self.handle.drain(within);
    }

    /// Waits until the last connection has ended, after [`Self::drain`].
    pub(crate) async fn ended(&mut self) {
        // A panic of it has ended the process.
        let _ended = (&mut self.driving).await;
    }
}

impl Drop for Http3 {
    fn drop(&mut self) {
        self.forwarding.abort();
        self.counters.publish(self.handle.counters());
    }
}

/// Returns the limits of new connections: those of HTTP/2 where both have them. Handshakes have
/// the time of QUIC: where packets are lost, they take longer than over TCP.
fn limits(worker: &Worker, settings: &Settings) -> Limits {
    let options = &worker.options;
    Limits {
        streams_max: settings.streams_max,
        idle_timeout: settings.idle_timeout + settings.stall_timeout,
        keep_alive: settings.idle_timeout,
        head_timeout: settings.head_timeout,
        send_timeout: settings.stall_timeout,
        section_max: settings.request_head_max.unwrap_or(options.head_max),
        drain_idle: options.drain_idle,
        connect_protocol: true,
        ..Limits::default()
    }
}

/// Decides whether there is room for a new client.
fn admit(worker: &Worker, first: &FirstPacket, port: u16) -> Pressure {
    if !first.is_validated {
        // The programs have chosen this worker for the packet, whatever becomes of it.
        worker.load.accepted();
    }
    let stats = &worker.shared.stats;
    let snapshot = worker.snapshot();
    if !snapshot.serves_http3(None) {
        return Pressure::Refuse;
    }
    let refusal = worker.refuses().or_else(|| {
        let is_served = snapshot.listeners.serve_http3_at(local(first.local, first.remote, port));
        (!is_served).then_some(Refusal::NoListener)
    });
    if let Some(why) = refusal {
        stats.accepted.fetch_add(1, Relaxed);
        stats.refused.count(why);
        return Pressure::Refuse;
    }
    if worker.shared.pressure() >= memory::Pressure::Tight { Pressure::Prove } else { Pressure::None }
}

/// Returns the address of Gateways that a client uses. Its TLS finds certificates in the snapshot of the handshake.
fn tls_at(worker: &Worker, first: &FirstPacket, port: u16) -> Option<SocketAddr> {
    let snapshot = worker.snapshot();
    let local = local(first.local, first.remote, port);
    let is_bound = !snapshot.listeners.is_empty() && snapshot.listeners.at(local).is_some();
    is_bound.then_some(local)
}

/// Makes a connection known to the worker; `None` if its client or the worker has too many.
fn enter(worker: &Rc<Worker>, peer: &Rc<Peer>, port: u16) -> Option<Rc<dyn Any>> {
    let stats = &worker.shared.stats;
    stats.accepted.fetch_add(1, Relaxed);
    // Others may have entered since the first packet.
    if let Some(why) = worker.refuses() {
        stats.refused.count(why);
        return None;
    }
    let conn = Conn::new(Rc::clone(worker), peer.remote, local(peer.local, peer.remote, port), true);
    conn.becomes_http3(peer);
    let counted = open::count(&conn).map_err(|why| stats.refused.count(why)).ok()?;
    let server_name = peer.server_name().unwrap_or_default().to_ascii_lowercase();
    conn.shown.greeted(Greeting { server_name, asked: false, enforced: None, chain: Vec::new() });
    let entered = worker.enter(&conn);
    Some(Rc::new(Client { conn, _counted: counted, _entered: entered }))
}

/// Returns the address that a client uses for us. It is unspecified if the kernel does not tell.
fn local(local: Option<std::net::IpAddr>, remote: SocketAddr, port: u16) -> SocketAddr {
    let unspecified = if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    SocketAddr::new(local.unwrap_or(unspecified).to_canonical(), port)
}

/// Answers a request. Its state is in boxes like that of HTTP/2: a request that waits for its turn holds little.
fn answer(
    request: Request<RequestBody>,
    peer: &Peer,
    dates: Rc<Dates>,
) -> impl Future<Output = Response<Body>> + use<> {
    let is_head = *request.method() == Method::HEAD;
    let served = peer.context::<Client>().map(|client| {
        let conn = Rc::clone(&client.conn);
        conn.in_turn(request)
    });
    async move {
        // Without a client the connection has ended, which ends this task.
        let Some(served) = served else { return pending().await };
        let Ok(mut response) = served.await;
        complete(&mut response, is_head, &dates);
        response
    }
}

/// Adds the fields that hyper adds to responses of HTTP/2.
fn complete(response: &mut Response<Body>, is_head: bool, dates: &Dates) {
    let length = response.body().size_hint().exact().filter(|length| *length > 0 && !is_head);
    let headers = response.headers_mut();
    if let Some(length) = length {
        headers.entry(header::CONTENT_LENGTH).or_insert_with(|| length.into());
    }
    headers.entry(header::DATE).or_insert_with(|| dates.now());
}

/// The value of `date`, made once a second.
#[derive(Default)]
struct Dates(RefCell<Option<(i64, HeaderValue)>>);

impl Dates {
    fn now(&self) -> HeaderValue {
        let now = jiff::Timestamp::now();
        let second = now.as_second();
        let mut latest = self.0.borrow_mut();
        if let Some((_, value)) = latest.as_ref().filter(|(of, _)| *of == second) {
            return value.clone();
        }
        let text = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&now).unwrap_or_default();
        let value = HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""));
        *latest = Some((second, value.clone()));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_that_of_rfc_9110() {
        let dates = Dates::default();
        let date = dates.now();
        let text = date.to_str().expect("text");
        assert_eq!((text.len(), &text[3..5], &text[25..]), (29, ", ", " GMT"), "{text}");
    }

    #[tokio::test]
    async fn heads_have_the_bound_of_the_setting() {
        let worker = Worker::alone();
        for (request_head_max, expect) in [(None, worker.options.head_max), (Some(64 * 1024), 64 * 1024)] {
            let settings = Settings { request_head_max, ..Settings::default() };
            assert_eq!(limits(&worker, &settings).section_max, expect, "{request_head_max:?}");
        }
    }
}
