//! One client connection: handshake, hyper, and its end. Requests are `serve`'s.

use std::{
    cell::{Cell, OnceCell, RefCell},
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    pin::{Pin, pin},
    rc::Rc,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, Waker},
    time::Duration,
};

use hyper::{
    Request,
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use ingress_common::{HostL7Cell, StatusClass};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::{self, AbortHandle},
};
use tokio_rustls::{LazyConfigAcceptor, server::TlsStream};

use crate::{
    model::{HostId, Settings, filter::Limit},
    route::HostEntry,
};

use super::{
    access_log::Line,
    client::Peer,
    client_certificates::{self, Greeting},
    counters::Tally,
    limit::{Counted, Excess},
    offers::{Offers, Stream},
    pick::Busy,
    progress::Progress,
    proxy_protocol::{self, Header},
    refusal::Refusal,
    serve::serve,
    shared::FlowTable,
    snapshot::Snapshot,
    tunnel::{self, Tunnel},
    wire::Wire,
    worker::Worker,
};

/// An HTTP/2 client that was silent for this long is asked for a sign of life…
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// …and has this long to give it.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// What hyper takes for [`super::Options::headers_max`] if it is told nothing.
const HYPER_HEADERS_MAX: usize = 100;

/// What a connection is, for its requests, its byte stream and its worker.
pub(super) struct Conn {
    pub(super) worker: Rc<Worker>,
    pub(super) remote: SocketAddr,
    local: SocketAddr,
    pub(super) secure: bool,
    peer: OnceCell<Peer>,
    /// What its client showed in the handshake.
    pub(super) shown: client_certificates::Client,
    pub(super) progress: Progress,
    /// Of the snapshot that was current when it was accepted.
    pub(super) settings: Rc<Settings>,
    protocol: Cell<Protocol>,
    handshake: Cell<Handshake>,
    /// What follows the 101 that hyper is about to send.
    tunnel: RefCell<Option<Box<Tunnel>>>,
    pub(super) offers: Offers,
    /// Tasks of HTTP/2 streams whose request, and of tunnels whose copying, has not begun.
    spawned: RefCell<Vec<Spawned>>,
    /// Host of the latest request, as entered in the flow table.
    host: Cell<Option<HostId>>,
    order: Cell<Order>,
    /// Set by the connection's task, so that an order wakes it.
    waker: RefCell<Option<Waker>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http1,
    /// No request has come yet.
    NewHttp2,
    Http2,
}

/// A task that hyper made.
struct Spawned {
    /// The task that hyper was polled by.
    by: Option<task::Id>,
    task: AbortHandle,
}

/// A WebSocket handshake, as its bytes look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handshake {
    None,
    /// Its head was read; what follows waits for its answer.
    Asked,
    /// It is an ordinary request after all, or its answer is no 101.
    Declined,
}

/// What the worker wants of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    Serve,
    /// End after the requests in flight.
    Finish,
    /// End now.
    Close,
}

/// A request in flight on a connection.
pub(super) struct InFlight {
    tally: Tally,
    /// Counts for the endpoint that serves it.
    busy: Option<Busy>,
    /// Its line of the access log.
    line: Option<Line>,
    /// Counts for a limit of its client.
    counted: Option<Counted>,
    stream: Stream,
    conn: Rc<Conn>,
}

impl Conn {
    /// Addresses are canonical here: v4-mapped ones, which a dual-stack socket has, become IPv4.
    pub(super) fn new(worker: Rc<Worker>, remote: SocketAddr, local: SocketAddr, secure: bool) -> Rc<Self> {
        let (remote, local) = (canonical(remote), canonical(local));
        Rc::new(Self {
            shown: client_certificates::Client::default(),
            progress: Progress::new(worker.now()),
            settings: worker.settings(),
            protocol: Cell::new(Protocol::Http1),
            handshake: Cell::new(Handshake::None),
            tunnel: RefCell::new(None),
            offers: Offers::default(),
            spawned: RefCell::default(),
            peer: OnceCell::new(),
            worker,
            remote,
            local,
            secure,
            host: Cell::new(None),
            order: Cell::new(Order::Serve),
            waker: RefCell::new(None),
        })
    }

    /// Who is at the other end; the socket tells, where no header of the PROXY protocol has.
    pub(super) fn peer(&self) -> &Peer {
        self.peer.get_or_init(|| Peer::new(self.remote.ip(), self.secure, self.local.port()))
    }

    /// Begins a request for `host`: counts it and tells the kernel whose packets the connection's are.
    pub(super) fn begin(self: &Rc<Self>, host: HostId) -> InFlight {
        self.progress.begin_request();
        if self.protocol.get() == Protocol::NewHttp2 {
            self.protocol.set(Protocol::Http2);
            if !self.worker.keeps_alive() {
                self.order(Order::Finish);
            }
        }
        // Without an entry the packets count for host 0 already.
        if self.host.get().unwrap_or(HostId::UNATTRIBUTED) != host {
            self.host.set(Some(host));
            if let Some(flows) = self.flows() {
                flows.insert(self.remote, self.local, host);
            }
        }
        let tally = Tally::begin(self.worker.shared.counters.cell(host));
        let stream = self.stream();
        InFlight { tally, busy: None, line: None, counted: None, stream, conn: Rc::clone(self) }
    }

    /// The stream whose task this is.
    fn stream(&self) -> Stream {
        if !self.is_http2() {
            return Stream::None;
        }
        let mut spawned = self.spawned.borrow_mut();
        let own = task::try_id().and_then(|id| spawned.iter().position(|spawned| spawned.task.id() == id));
        own.map_or(Stream::None, |own| Stream::Open(spawned.swap_remove(own).task))
    }

    /// The task that sends what a tunnel has for the client: that of the stream on which it was asked for made it.
    pub(super) fn take_spawned_by(&self, stream: task::Id) -> Option<AbortHandle> {
        let mut spawned = self.spawned.borrow_mut();
        let found = spawned.iter().position(|spawned| spawned.by == Some(stream))?;
        Some(spawned.swap_remove(found).task)
    }

    /// Orders only ever become stricter.
    pub(super) fn order(&self, order: Order) {
        if order > self.order.get() {
            self.order.set(order);
            self.wake();
        }
    }

    pub(super) fn is_http2(&self) -> bool {
        self.protocol.get() != Protocol::Http1
    }

    /// Whether it is HTTP/2 and has made a request.
    pub(super) fn is_begun_http2(&self) -> bool {
        self.protocol.get() == Protocol::Http2
    }

    pub(super) fn ordered(&self) -> Order {
        self.order.get()
    }

    /// The head of a WebSocket handshake was read.
    pub(super) fn handshake(&self) {
        self.handshake.set(Handshake::Asked);
    }

    /// Whether a WebSocket handshake waits for its answer. Requests before it on the connection may still be under way.
    pub(super) fn is_asked_handshake(&self) -> bool {
        self.handshake.get() == Handshake::Asked
    }

    /// The handshake gets an answer like any other request.
    pub(super) fn decline(&self) {
        self.handshake.set(Handshake::Declined);
        self.wake();
    }

    /// Whether the handshake was declined; said once.
    pub(super) fn take_declined(&self) -> bool {
        let declined = self.handshake.get() == Handshake::Declined;
        if declined {
            self.handshake.set(Handshake::None);
        }
        declined
    }

    /// After the answer that hyper sends next, the connection is a tunnel.
    pub(super) fn switch(&self, tunnel: Tunnel) {
        *self.tunnel.borrow_mut() = Some(Box::new(tunnel));
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    fn flows(&self) -> Option<&dyn FlowTable> {
        self.worker.shared.flows.as_deref()
    }

    /// Keeps the task's waker; a task that is polled by the same executor keeps the same one.
    pub(super) fn listen(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        match &mut *waker {
            Some(known) => known.clone_from(cx.waker()),
            None => *waker = Some(cx.waker().clone()),
        }
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        if self.host.get().is_some()
            && let Some(flows) = self.flows()
        {
            flows.remove(self.remote, self.local);
        }
    }
}

// === impl InFlight ===

impl InFlight {
    pub(super) fn cell(&self) -> &'static HostL7Cell {
        self.tally.cell()
    }

    /// Keeps `busy` for as long as the request is under way.
    pub(super) fn hold(&mut self, busy: Option<Busy>) {
        self.busy = busy;
    }

    /// Writes a line about it when it is over.
    pub(super) fn tell(&mut self, line: Line) {
        self.line = Some(line);
    }

    /// Bytes of the response's body go out.
    pub(super) fn sent(&mut self, count: usize) {
        if let Some(line) = &self.line {
            line.sent(count);
        }
    }

    /// Counts it for `limit` as a request of `client`.
    ///
    /// # Errors
    /// If it is one too many.
    pub(super) fn count(&mut self, limit: &Limit, client: IpAddr) -> Result<(), Excess> {
        let worker = &self.conn.worker;
        self.counted = worker.shared.limiter.admit(limit, client, worker.clock())?;
        Ok(())
    }

    pub(super) fn finish(&mut self, class: StatusClass) {
        self.tally.finish(class);
    }

    pub(super) fn is_http2(&self) -> bool {
        self.stream.is_http2()
    }

    /// A frame of the response is handed over.
    pub(super) fn offer(&mut self) {
        self.stream.offer(&self.conn.offers, self.conn.worker.now());
    }

    /// More of the response is asked for.
    pub(super) fn resume(&mut self) {
        self.stream.resume(&self.conn.offers);
    }

    /// The client stopped sending.
    pub(super) fn starved(&self) {
        self.conn.worker.shared.stats.timed_out.fetch_add(1, Relaxed);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(line) = self.line.take() {
            line.finish();
        }
        self.resume();
        self.conn.progress.end_request(self.conn.worker.now());
    }
}

/// Serves a connection to its end.
pub(super) async fn run(conn: Rc<Conn>, mut stream: TcpStream) {
    if conn.settings.trust.proxy_protocol && !meet(&conn, &mut stream).await {
        return conn.worker.shared.stats.refused.count(Refusal::ProxyProtocol);
    }
    let _counted = match count(&conn) {
        Ok(counted) => counted,
        Err(why) => return conn.worker.shared.stats.refused.count(why),
    };
    if !conn.secure {
        return http1(stream, |tcp| tcp, conn).await;
    }
    let limit = conn.worker.options.handshake_timeout;
    let snapshot = conn.worker.snapshot();
    let accepted = if snapshot.routes.ask_clients() {
        // Boxed, so that where no host asks for certificates nothing carries its size.
        tokio::time::timeout(limit, Box::pin(accept_asking(&conn, stream, &snapshot))).await
    } else {
        drop(snapshot);
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::clone(conn.worker.shared.tls.of(&conn.settings)));
        tokio::time::timeout(limit, acceptor.accept(stream)).await
    };
    match accepted {
        Ok(Ok(stream)) if stream.get_ref().1.alpn_protocol() == Some(b"h2") => http2(stream, Vec::new(), conn).await,
        Ok(Ok(stream)) => http1(stream, |tls| tls.get_ref().0, conn).await,
        failed => {
            conn.worker.shared.stats.handshake_errors.fetch_add(1, Relaxed);
            tracing::debug!(remote = %conn.remote, ok = failed.is_ok(), "tls handshake failed");
        }
    }
}

/// Counts the connection for as long as the result is kept, if its client's are limited. An error if it is one too many.
fn count(conn: &Conn) -> Result<Option<Counted>, Refusal> {
    let Some(max) = conn.settings.connections_per_client else { return Ok(None) };
    let client = conn.peer().address();
    // A hop has connections for many.
    if conn.settings.trust.believes(client) {
        return Ok(None);
    }
    conn.worker.shared.limiter.connect(client, max).map(Some).ok_or(Refusal::ClientConnections)
}

/// Learns from the header of the PROXY protocol whose connection it is. Whether it may be served.
async fn meet(conn: &Conn, stream: &mut TcpStream) -> bool {
    let trust = &conn.settings.trust;
    if !trust.admits_proxy(conn.remote.ip()) {
        return false;
    }
    match tokio::time::timeout(trust.proxy_protocol_timeout, proxy_protocol::read(stream)).await {
        Ok(Ok(Header::Local)) => true,
        Ok(Ok(Header::Proxied { source, destination })) => {
            let client = Peer::proxied(source.ip(), conn.secure, destination.port());
            // Nobody has asked before.
            conn.peer.set(client).is_ok()
        }
        Ok(Err(error)) => {
            tracing::debug!(remote = %conn.remote, error = &error as &dyn std::error::Error, "no client is known");
            false
        }
        Err(_elapsed) => false,
    }
}

/// A handshake that asks for a certificate if the host that it names does.
async fn accept_asking(conn: &Conn, stream: TcpStream, snapshot: &Snapshot) -> io::Result<TlsStream<TcpStream>> {
    let start = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream).await?;
    let server_name = start.client_hello().server_name().unwrap_or_default().to_ascii_lowercase();
    let configs = &conn.worker.shared.tls;
    let policy = snapshot.routes.host(&server_name).and_then(HostEntry::clients);
    let config = match policy {
        Some(policy) => configs.asking(policy, &conn.settings).map_err(io::Error::other)?,
        None => Arc::clone(configs.of(&conn.settings)),
    };
    let stream = start.into_stream(config).await?;
    let chain = stream.get_ref().1.peer_certificates().map(<[_]>::to_vec).unwrap_or_default();
    conn.shown.greeted(Greeting { server_name, asked: policy.is_some(), chain });
    Ok(stream)
}

async fn http1<S>(stream: S, tcp: fn(&S) -> &TcpStream, conn: Rc<Conn>)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let options = &conn.worker.options;
    let mut builder = http1::Builder::new();
    builder
        // `Progress` does this without a timer per request.
        .header_read_timeout(None)
        .max_header_size(options.head_max)
        .max_buf_size(options.head_max.saturating_mul(2).max(64 * 1024))
        .half_close(false);
    // With hyper's own limit it keeps the parsed fields on the stack without clearing them first.
    if options.headers_max != HYPER_HEADERS_MAX {
        builder.max_headers(options.headers_max);
    }
    let service = {
        let conn = Rc::clone(&conn);
        service_fn(move |request: Request<Incoming>| serve(Rc::clone(&conn), request))
    };
    let io = TokioIo::new(Wire::http1(stream, Rc::clone(&conn)));
    let mut hyper = builder.serve_connection(io, service);
    let _forgotten = Forget(&conn);
    let ended = until_ordered(&conn, Pin::new(&mut hyper), |hyper| hyper.graceful_shutdown()).await;
    if ended == Ended::Cut {
        return;
    }
    let http1::Parts { io, read_buf, .. } = hyper.into_parts();
    let mut wire = io.into_inner();
    if wire.is_http2() {
        let (stream, early) = wire.into_parts();
        return Box::pin(http2(stream, early, Rc::clone(&conn))).await;
    }
    match conn.tunnel.take() {
        None => shut_down(&conn, &mut wire).await,
        // A 101 that the client does not even take leads nowhere.
        Some(_) if conn.progress.is_blocked() => {}
        Some(tunnel) => {
            let (stream, held) = wire.into_parts();
            let early = [&read_buf[..], &held].concat();
            Box::pin(tunnel.run(&conn, tunnel::Client { stream, tcp, early })).await;
        }
    }
}

/// Ends a connection in order. hyper has done so, except where a request on it ever asked for an upgrade: whatever the answer
/// was, hyper leaves the end of such a connection to its caller.
async fn shut_down<S>(conn: &Conn, wire: &mut Wire<S>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    std::future::poll_fn(|cx| {
        conn.listen(cx);
        if conn.order.get() == Order::Close {
            return Poll::Ready(());
        }
        // A client that is gone already needs no farewell.
        Pin::new(&mut *wire).poll_shutdown(cx).map(drop)
    })
    .await;
}

/// Breaks the circle that a connection makes with a tunnel that never began.
struct Forget<'c>(&'c Conn);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        drop(self.0.tunnel.take());
    }
}

/// How hyper's part of a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// All that it had to say is said.
    Whole,
    /// By an error or an order.
    Cut,
}

/// `early` is what was read of it already.
async fn http2(stream: impl AsyncRead + AsyncWrite + Unpin + 'static, early: Vec<u8>, conn: Rc<Conn>) {
    let options = &conn.worker.options;
    let mut builder = http2::Builder::new(LocalExecutor(Rc::clone(&conn)));
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(conn.settings.streams_max)
        .enable_connect_protocol()
        .max_header_list_size(u32::try_from(options.head_max).unwrap_or(u32::MAX))
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    let service = {
        let conn = Rc::clone(&conn);
        service_fn(move |request: Request<Incoming>| serve(Rc::clone(&conn), request))
    };
    let io = TokioIo::new(Wire::http2(stream, Rc::clone(&conn), early));
    conn.protocol.set(Protocol::NewHttp2);
    let hyper = pin!(builder.serve_connection(io, service));
    until_ordered(&conn, hyper, |hyper| hyper.graceful_shutdown()).await;
}

/// Polls `hyper` to its end and obeys orders in between.
async fn until_ordered<H>(conn: &Conn, mut hyper: Pin<&mut H>, finish: impl Fn(Pin<&mut H>)) -> Ended
where
    H: Future<Output = hyper::Result<()>>,
{
    let mut finishing = false;
    let result = std::future::poll_fn(|cx| {
        conn.listen(cx);
        match conn.order.get() {
            Order::Serve => {}
            Order::Finish if finishing => {}
            Order::Finish => {
                finishing = true;
                finish(hyper.as_mut());
            }
            Order::Close => return Poll::Ready(None),
        }
        hyper.as_mut().poll(cx).map(Some)
    })
    .await;
    match result {
        Some(Ok(())) => Ended::Whole,
        None => Ended::Cut,
        Some(Err(error)) => {
            tracing::debug!(remote = %conn.remote, error = &error as &dyn std::error::Error, "connection ended with an error");
            Ended::Cut
        }
    }
}

/// Runs the streams of HTTP/2 connections on the worker they came in on. The worker's `LocalSet` owns them.
#[derive(Clone)]
struct LocalExecutor(Rc<Conn>);

impl<F> hyper::rt::Executor<F> for LocalExecutor
where
    F: Future<Output = ()> + 'static,
{
    fn execute(&self, future: F) {
        let task = task::spawn_local(future).abort_handle();
        self.0.spawned.borrow_mut().push(Spawned { by: task::try_id(), task });
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
