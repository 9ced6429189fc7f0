//! A server with a service for tests, and clients.

use std::{
    cell::{Cell, RefCell},
    future::{pending, poll_fn},
    net::{SocketAddr, UdpSocket},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use bytes::{Buf, Bytes};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::{Body, Frame};
use ingress_quic::{
    BodyError, Driver, Handle, ID_LENGTH, ID_NONCE, Ids, Keys, Limits, Options, Owner, Peer, Pressure, RequestBody,
};
use quinn::crypto::rustls::QuicClientConfig;
use rustls::{
    RootCertStore,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::CertificateDer,
    version::TLS13,
};
use tokio::{
    sync::Notify,
    task::{JoinHandle, LocalSet},
    time::timeout,
};

/// Every wait of a test ends after this time, with a panic.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test on one thread, where clients and servers take turns.
pub(crate) fn run<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, async { timeout(PATIENCE, test).await.expect("the test ends in time") });
}

/// Waits until `is_true`.
pub(crate) async fn until(is_true: impl Fn() -> bool) {
    while !is_true() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

// === the service ===

/// The requests that the service has seen, and the gate that lets some go on.
#[derive(Default)]
pub(crate) struct Seen {
    /// Bytes that bodies of `/size` have given.
    pub(crate) given: Cell<usize>,
    /// Requests of `/hang` and `/gate` that have begun, and those that were dropped or have ended.
    pub(crate) begun: Cell<usize>,
    pub(crate) ended: Cell<usize>,
    /// Lets requests of `/gate` go on.
    pub(crate) gate: Notify,
    pub(crate) is_open: Cell<bool>,
    /// Whether a body is gone after a panic in its connection.
    pub(crate) is_gone: Cell<bool>,
    /// Clients of the requests, at the handshake and now, and their server names.
    pub(crate) peers: RefCell<Vec<(SocketAddr, SocketAddr, Option<String>)>>,
}

struct Ends<'a>(&'a Seen);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.ended.set(self.0.ended.get() + 1);
    }
}

/// The byte at an offset of all bodies.
pub(crate) fn byte(offset: usize) -> u8 {
    (offset % 251) as u8
}

/// A body of `length` bytes that tell their offset.
pub(crate) fn pattern(length: usize) -> Bytes {
    (0..length).map(byte).collect()
}

/// The bodies of the service's responses.
pub(crate) enum Answer {
    Empty,
    Echo(RequestBody),
    Pattern {
        seen: Rc<Seen>,
        sent: usize,
        length: usize,
    },
    /// Gives some bytes, and the rest once the gate is open. Never ends.
    Later {
        seen: Rc<Seen>,
        length: Option<usize>,
    },
    Fails,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = String;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, String>>> {
        const CHUNK: usize = 16 * 1024;
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Echo(body) => Pin::new(body).poll_frame(cx).map_err(|error| error.to_string()),
            Self::Fails => Poll::Ready(Some(Err("fails".into()))),
            Self::Later { seen, length } => match *length {
                Some(rest) if rest > 0 => {
                    // A second poll waits for the gate.
                    *length = Some(0);
                    seen.given.set(rest);
                    Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"first")))))
                }
                Some(_) if seen.is_open.get() => {
                    *length = None;
                    Poll::Ready(Some(Ok(Frame::data(pattern(seen.given.get())))))
                }
                Some(_) => {
                    // The gate is polled, so that the body needs no state of its own.
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                None => Poll::Pending,
            },
            Self::Pattern { sent, length, .. } if sent == length => Poll::Ready(None),
            Self::Pattern { seen, sent, length } => {
                let end = (*sent + CHUNK).min(*length);
                let data: Bytes = (*sent..end).map(byte).collect();
                seen.given.set(seen.given.get() + data.len());
                *sent = end;
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Empty)
    }
}

/// A waker that panics, in the middle of the turn that wakes it.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics")
    }
}

/// The same when it is dropped.
struct PanicsOnDrop;

impl Wake for PanicsOnDrop {
    fn wake(self: Arc<Self>) {}
}

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        panic!("a waker that panics")
    }
}

async fn serve(seen: Rc<Seen>, request: Request<RequestBody>, peer: Rc<Peer>) -> Response<Answer> {
    seen.peers.borrow_mut().push((peer.remote, peer.current(), peer.server_name().map(str::to_owned)));
    let path = request.uri().path().to_owned();
    let (name, number) = path.rsplit_once('/').expect("a path");
    let number = number.parse().unwrap_or(0);
    let begin = || seen.begun.set(seen.begun.get() + 1);
    let body = match name {
        "/echo" => Answer::Echo(request.into_body()),
        "/size" => Answer::Pattern { seen: Rc::clone(&seen), sent: 0, length: number },
        "/fails" => Answer::Fails,
        "/later" => Answer::Later { seen: Rc::clone(&seen), length: Some(number) },
        // A waker that panics when it is replaced, amid a use of the connection.
        "/replace" => {
            let waker = Waker::from(Arc::new(PanicsOnDrop));
            let mut body = request.into_body();
            assert!(Pin::new(&mut body).poll_frame(&mut Context::from_waker(&waker)).is_pending());
            drop(waker);
            let mut poll = || Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop()));
            let panicked = catch_unwind(AssertUnwindSafe(&mut poll)).is_err();
            let is_gone = |polled| matches!(polled, Poll::Ready(Some(Err(BodyError::Gone))));
            seen.is_gone.set(panicked && is_gone(poll()));
            begin();
            drop(body);
            Answer::Empty
        }
        "/hang" => {
            let _ends = Ends(&seen);
            begin();
            pending::<Answer>().await
        }
        "/gate" => {
            let _ends = Ends(&seen);
            begin();
            while !seen.is_open.get() {
                seen.gate.notified().await;
            }
            seen.gate.notify_one();
            Answer::Echo(request.into_body())
        }
        "/wake" => {
            let waker = Waker::from(Arc::new(Panics));
            let mut body = request.into_body();
            assert!(Pin::new(&mut body).poll_frame(&mut Context::from_waker(&waker)).is_pending());
            begin();
            pending::<Answer>().await
        }
        // Another task reads the body, and the response does not wait for it.
        "/aside" => {
            let (seen, mut body) = (Rc::clone(&seen), request.into_body());
            begin();
            tokio::task::spawn_local(async move {
                let _ends = Ends(&seen);
                while let Some(Ok(_)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {}
            });
            Answer::Empty
        }
        "/panic" => panic!("a service that panics"),
        // Without reading the body.
        _ => Answer::Empty,
    };
    let mut response = Response::new(body);
    if name == "/404" {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    response.headers_mut().insert("x-path", path.parse().expect("a value"));
    // HTTP/3 has no such field; it must not reach the client.
    response.headers_mut().insert("connection", "close".parse().expect("a value"));
    response
}

// === the server ===

/// IDs with the worker in plain sight. Numbers from 64 on are processes that have ended.
#[derive(Debug)]
pub(crate) struct Plain(pub(crate) u8);

impl Ids for Plain {
    fn issue(&self, nonce: [u8; ID_NONCE]) -> [u8; ID_LENGTH] {
        let mut id = [7; ID_LENGTH];
        id[..ID_NONCE].copy_from_slice(&nonce);
        id[ID_NONCE] = self.0;
        id
    }

    fn owner(&self, id: &[u8; ID_LENGTH]) -> Owner {
        match id[ID_NONCE] {
            _ if id[ID_NONCE + 1..] != [7; ID_LENGTH - ID_NONCE - 1] => Owner::Unknown,
            worker if worker == self.0 => Owner::Own,
            worker if worker >= 64 => Owner::Gone,
            worker => Owner::Sibling(worker),
        }
    }
}

/// A driver that runs, with the service above.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) handle: Handle,
    pub(crate) seen: Rc<Seen>,
    pub(crate) task: JoinHandle<std::io::Result<()>>,
    pub(crate) certificate: CertificateDer<'static>,
}

pub(crate) fn options(socket: UdpSocket, worker: u8, limits: Limits) -> (Options, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["localhost".into()]).expect("a certificate");
    let certificate = made.cert.der().clone();
    let key = made.signing_key.serialize_der().try_into().expect("a key");
    let tls = rustls::ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .expect("TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .expect("a TLS configuration");
    let options = Options {
        socket,
        tls,
        keys: Keys::derive(b"secret", "node").expect("keys"),
        ids: Arc::new(Plain(worker)),
        limits,
        pressure: Box::new(|_| Pressure::None),
        tls_at: Box::new(|_| None),
        tls_of: Box::new(|address| panic!("no TLS of {address}")),
        opened: Box::new(|_| Some(Rc::new(()))),
        moved: Box::new(|_| {}),
        forward: Box::new(|worker, _| panic!("a datagram for worker {worker}")),
    };
    (options, certificate)
}

pub(crate) fn start_with((options, certificate): (Options, CertificateDer<'static>)) -> Server {
    let address = options.socket.local_addr().expect("an address");
    let seen = Rc::<Seen>::default();
    let for_service = Rc::clone(&seen);
    let (driver, handle) =
        Driver::new(options, move |request, peer| serve(Rc::clone(&for_service), request, peer)).expect("a driver");
    Server { address, handle, seen, task: tokio::task::spawn_local(driver.run()), certificate }
}

pub(crate) fn bind() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").expect("a socket")
}

pub(crate) fn start(limits: Limits) -> Server {
    start_with(options(bind(), 0, limits))
}

// === clients ===

/// A connection of quinn, and HTTP/3 on it.
pub(crate) struct Client {
    pub(crate) endpoint: quinn::Endpoint,
    pub(crate) quic: quinn::Connection,
    pub(crate) requests: h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>,
}

pub(crate) fn client_tls(certificate: &CertificateDer<'static>, provider: CryptoProvider) -> rustls::ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).expect("a certificate");
    let mut tls = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    tls
}

pub(crate) fn client_config(certificate: &CertificateDer<'static>) -> quinn::ClientConfig {
    let tls = client_tls(certificate, aws_lc_rs::default_provider());
    quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).expect("a configuration")))
}

/// Returns the datagrams by which a client begins a handshake.
pub(crate) fn first_packets(server: &Server) -> Vec<Vec<u8>> {
    let mut endpoint = quinn_proto::Endpoint::new(Arc::default(), None, true, None);
    let now = std::time::Instant::now();
    let config = client_config(&server.certificate);
    let (_handle, mut connection) = endpoint.connect(now, config, server.address, "localhost").expect("a connection");
    let mut packet = || {
        let mut packet = Vec::new();
        connection.poll_transmit(now, 1, &mut packet).map(|_sent| packet)
    };
    std::iter::from_fn(&mut packet).collect()
}

/// Connects without HTTP/3.
pub(crate) async fn connect_raw(server: &Server) -> (quinn::Endpoint, quinn::Connection) {
    connect_to(server.address, &server.certificate).await
}

/// The same from another thread.
pub(crate) async fn connect_to(
    address: SocketAddr,
    certificate: &CertificateDer<'static>,
) -> (quinn::Endpoint, quinn::Connection) {
    let endpoint = quinn::Endpoint::client(([127, 0, 0, 1], 0).into()).expect("an endpoint");
    let connecting = endpoint.connect_with(client_config(certificate), address, "localhost").expect("an address");
    let quic = connecting.await.expect("a connection");
    (endpoint, quic)
}

pub(crate) async fn connect(server: &Server) -> Client {
    http3(connect_raw(server).await).await
}

/// Opens HTTP/3 on a connection.
pub(crate) async fn http3((endpoint, quic): (quinn::Endpoint, quinn::Connection)) -> Client {
    let (mut driver, requests) = h3::client::new(h3_quinn::Connection::new(quic.clone())).await.expect("HTTP/3");
    tokio::task::spawn_local(async move { poll_fn(|cx| driver.poll_close(cx)).await });
    Client { endpoint, quic, requests }
}

/// A response.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) head: Response<()>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Option<HeaderMap>,
}

/// Sends a request, and receives its response meanwhile.
pub(crate) async fn exchange(client: &Client, request: Request<Bytes>) -> Result<Got, h3::error::StreamError> {
    let (parts, body) = request.into_parts();
    let trailers = parts.extensions.get::<HeaderMap>().cloned();
    let mut requests = client.requests.clone();
    let (mut sender, mut receiver) = requests.send_request(Request::from_parts(parts, ())).await?.split();
    let send = async {
        if !body.is_empty() {
            sender.send_data(body).await?;
        }
        if let Some(trailers) = trailers {
            sender.send_trailers(trailers).await?;
        }
        sender.finish().await
    };
    let receive = async {
        let head = receiver.recv_response().await?;
        let mut body = Vec::new();
        while let Some(mut data) = receiver.recv_data().await? {
            while data.has_remaining() {
                let chunk = data.chunk();
                body.extend_from_slice(chunk);
                let length = chunk.len();
                data.advance(length);
            }
        }
        let trailers = receiver.recv_trailers().await?;
        Ok::<_, h3::error::StreamError>(Got { head, body, trailers })
    };
    // A server that answers early stops the request.
    let (_sent, received) = tokio::join!(send, receive);
    received
}

pub(crate) fn request(method: Method, path: &str, body: Bytes) -> Request<Bytes> {
    let uri = format!("https://localhost{path}");
    Request::builder().method(method).uri(uri).body(body).expect("a request")
}

pub(crate) async fn get(client: &Client, path: &str) -> Result<Got, h3::error::StreamError> {
    exchange(client, request(Method::GET, path, Bytes::new())).await
}

pub(crate) async fn post(client: &Client, path: &str, body: Bytes) -> Result<Got, h3::error::StreamError> {
    exchange(client, request(Method::POST, path, body)).await
}
