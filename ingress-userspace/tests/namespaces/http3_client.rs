//! A client of HTTP/3 that changes its address, and steady load by several of them.

use std::{
    future::poll_fn,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use bytes::{Buf as _, Bytes};
use h3::{client::SendRequest, error::StreamError};
use http::{Request, StatusCode};
use ingress_lab::{
    client::{Trust, block_on},
    topology::{Family, node_addr},
    until_within,
};
use quinn::{Endpoint, EndpointConfig, TokioRuntime, crypto::rustls::QuicClientConfig};
use tokio::time::timeout;

use crate::net::Net;

/// Longest wait for a response, or for a handshake.
const PATIENCE: Duration = Duration::from_secs(20);

/// An open connection.
pub(crate) struct Client {
    endpoint: Endpoint,
    family: Family,
    pub(crate) quic: quinn::Connection,
    requests: SendRequest<h3_quinn::OpenStreams, Bytes>,
}

/// A request without a response.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server has announced the end of the connection, and has not processed the request.
    Refused,
    /// Another reason.
    Lost(anyhow::Error),
}

// === impl Client ===

impl Client {
    /// Connects to the node's port 443, for `web.test`. The thread is in the namespace of the client.
    pub(crate) async fn connect(trust: &Trust, family: Family) -> anyhow::Result<Self> {
        let mut tls =
            rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
                .with_protocol_versions(&[&rustls::version::TLS13])?
                .with_root_certificates(trust.roots())
                .with_no_client_auth();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
        let endpoint = Endpoint::new(EndpointConfig::default(), None, bound(family)?, Arc::new(TokioRuntime))?;
        let address = SocketAddr::new(node_addr(family), 443);
        let connecting = endpoint.connect_with(config, address, "web.test")?;
        let quic = timeout(PATIENCE, connecting).await.context("no handshake in time")??;
        let (mut driver, requests) = h3::client::new(h3_quinn::Connection::new(quic.clone())).await?;
        tokio::spawn(async move { poll_fn(|cx| driver.poll_close(cx)).await });
        Ok(Self { endpoint, family, quic, requests })
    }

    /// Continues from another port.
    pub(crate) fn change_port(&self) -> anyhow::Result<()> {
        Ok(self.endpoint.rebind(bound(self.family)?)?)
    }

    /// Asks for `path`, and reads the whole response.
    pub(crate) async fn get(&mut self, path: &str) -> Result<(StatusCode, Vec<u8>), Failure> {
        match timeout(PATIENCE, self.exchange(path)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) if is_refusal(&error) => Err(Failure::Refused),
            Ok(Err(error)) => Err(Failure::Lost(error.into())),
            Err(_elapsed) => Err(Failure::Lost(anyhow::anyhow!("no response in {} s", PATIENCE.as_secs()))),
        }
    }

    async fn exchange(&mut self, path: &str) -> Result<(StatusCode, Vec<u8>), StreamError> {
        let request = Request::get(format!("https://web.test{path}")).body(()).expect("a request");
        let mut stream = self.requests.send_request(request).await?;
        stream.finish().await?;
        let head = stream.recv_response().await?;
        let mut body = Vec::new();
        while let Some(mut data) = stream.recv_data().await? {
            let length = data.remaining();
            body.extend_from_slice(&data.copy_to_bytes(length));
        }
        Ok((head.status(), body))
    }
}

/// Returns whether another connection may repeat the request (RFC 9114, 5.2 and 8.1).
fn is_refusal(error: &StreamError) -> bool {
    match error {
        StreamError::RemoteTerminate { code, .. } => *code == h3::error::Code::H3_REQUEST_REJECTED,
        // The variant for a connection that the server is closing is private.
        error => error.is_h3_no_error() || error.to_string() == "Remote is closing the connection",
    }
}

fn bound(family: Family) -> std::io::Result<UdpSocket> {
    UdpSocket::bind((if family == Family::V4 { "0.0.0.0" } else { "::" }, 0))
}

/// Load by clients that change their port every few requests.
pub(crate) struct MovingLoad {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<anyhow::Result<Report>>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    answered: AtomicU64,
}

/// Result of a load.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) answered: u64,
    /// Connections that were opened.
    pub(crate) connections: u64,
    /// Changes of a client's port.
    pub(crate) moves: u64,
    /// The slowest answered request, with its connection if that was new.
    pub(crate) slowest: Duration,
    /// Requests without their response.
    pub(crate) failures: Vec<String>,
}

impl MovingLoad {
    /// Starts `count` clients, half of them with IPv6, and waits for their first responses.
    pub(crate) fn start(net: &Net, trust: &Trust, count: usize) -> Self {
        let shared = Arc::new(Shared::default());
        let (theirs, trust) = (Arc::clone(&shared), trust.clone());
        let work = async move {
            let mut tasks = tokio::task::JoinSet::new();
            for number in 0..count {
                let family = if number % 2 == 0 { Family::V4 } else { Family::V6 };
                tasks.spawn(client(Arc::clone(&theirs), trust.clone(), family));
            }
            let mut total = Report::default();
            while let Some(report) = tasks.join_next().await {
                total.add(report?);
            }
            Ok(total)
        };
        let thread = net.topology.client.thread("http3-load", move || block_on(work)).expect("a thread");
        let load = Self { shared, thread: Some(thread) };
        load.pass(count as u64);
        load
    }

    /// Returns the number of responses so far.
    pub(crate) fn answered(&self) -> u64 {
        self.shared.answered.load(Relaxed)
    }

    /// Waits until this many more requests have been answered.
    pub(crate) fn pass(&self, requests: u64) {
        let goal = self.shared.answered.load(Relaxed) + requests;
        let is_there = || (self.shared.answered.load(Relaxed) >= goal).then_some(());
        until_within(3 * PATIENCE, "the load over HTTP/3 to go on", is_there).expect("it goes on");
    }

    /// Ends the load after the requests in progress.
    pub(crate) fn stop(mut self) -> Report {
        self.shared.stop.store(true, Relaxed);
        let thread = self.thread.take().expect("it runs");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).expect("the load ends")
    }
}

impl Drop for MovingLoad {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

impl Report {
    fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.connections += other.connections;
        self.moves += other.moves;
        self.slowest = self.slowest.max(other.slowest);
        self.failures.extend(other.failures);
    }
}

async fn client(shared: Arc<Shared>, trust: Trust, family: Family) -> Report {
    /// Requests between two changes of the port.
    const STAY: u64 = 5;
    let mut report = Report::default();
    let started = Instant::now();
    let mut answered = 0;
    let mut open: Option<Client> = None;
    while !shared.stop.load(Relaxed) {
        let begun = Instant::now();
        let mut connection = match open.take() {
            Some(connection) => connection,
            None => match Client::connect(&trust, family).await {
                Ok(connection) => {
                    report.connections += 1;
                    answered = 0;
                    connection
                }
                Err(error) => {
                    report.failures.push(format!("no connection: {error:#}"));
                    continue;
                }
            },
        };
        if report.answered % STAY == STAY - 1 {
            report.moves += 1;
            if let Err(error) = connection.change_port() {
                report.failures.push(format!("no other port: {error:#}"));
            }
        }
        match connection.get("/").await {
            Ok((StatusCode::OK, _body)) => {
                report.answered += 1;
                answered += 1;
                shared.answered.fetch_add(1, Relaxed);
                report.slowest = report.slowest.max(begun.elapsed());
                open = Some(connection);
            }
            Ok((status, _body)) => report.failures.push(format!("status {status}")),
            // Another connection takes the request.
            Err(Failure::Refused) => {}
            Err(Failure::Lost(error)) => report.failures.push(format!(
                "{error:#}, {:.3} s after the start, after {answered} responses on the connection",
                started.elapsed().as_secs_f64()
            )),
        }
    }
    report
}
