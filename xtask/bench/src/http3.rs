//! The load of the HTTP/3 cases, on quinn and h3: wrk has no HTTP/3, and neither have Debian's builds of h2load. Each
//! connection has its own socket, as clients have.

use std::{
    future::poll_fn,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context as _, ensure};
use bytes::{Buf as _, Bytes};
use h3::client::SendRequest;
use h3_quinn::OpenStreams;
use http::{Request, StatusCode, Uri};
use quinn::{ClientConfig, Connection, Endpoint, crypto::rustls::QuicClientConfig};
use rustls::{
    DigitallySignedStruct, SignatureScheme,
    client::{
        Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName, UnixTime},
    version::TLS13,
};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use super::{
    Case,
    credentials::ECDSA,
    load::{Amount, Sample, Target, beside_the_pod},
};
use ingress_lab::client::{Trust, block_on};

/// Longest time for a request, with the connection if it needs one.
const PATIENCE: Duration = Duration::from_secs(10);
const NO_ERROR: u32 = 0x100;

/// Connections and requests of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    connections: usize,
    /// Requests at a time on each connection.
    streams: usize,
    path: &'static str,
    /// Length of the request's body.
    upload: usize,
    connects: Connects,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connects {
    Once,
    /// A full handshake for each request.
    Always,
    /// A handshake for each request, with the ticket of the previous one.
    Resumed,
}

/// Remaining requests of all clients together.
#[derive(Clone)]
enum Left {
    Until(Instant),
    Times(Arc<AtomicU32>),
}

/// A client with its socket, and the tickets that it has received.
#[derive(Clone)]
struct Client {
    address: SocketAddr,
    host: &'static str,
    uri: Uri,
    shape: Shape,
    endpoint: Endpoint,
    config: ClientConfig,
    verifier: Arc<Counting>,
    body: Bytes,
}

/// Counts full handshakes: in a resumed one the server sends no certificate.
#[derive(Debug)]
struct Counting {
    inner: Arc<WebPkiServerVerifier>,
    verified: AtomicU64,
}

#[derive(Default)]
struct Done {
    requests: u64,
    errors: u64,
    first_error: Option<anyhow::Error>,
}

/// Loads the target.
///
/// # Errors
/// Fails if the case is not of HTTP/3, or the clients cannot be created.
pub(super) fn run(case: Case, target: Target<'_>, amount: Amount) -> anyhow::Result<Sample> {
    let shape = Shape::of(case).with_context(|| format!("`{case}` is not about HTTP/3"))?;
    let Target { ip, ports, folder: _, trust, pin } = target;
    let address = SocketAddr::from((ip, ports.https));
    beside_the_pod(pin, || block_on(load(address, shape, trust, amount)))
}

async fn load(address: SocketAddr, shape: Shape, trust: &Trust, amount: Amount) -> anyhow::Result<Sample> {
    let begun = Instant::now();
    let left = match amount {
        Amount::For(length) => Left::Until(begun + length),
        Amount::Times(times) => Left::Times(Arc::new(AtomicU32::new(times))),
    };
    let mut clients = JoinSet::new();
    for _ in 0..shape.connections {
        let local = Ipv4Addr::LOCALHOST.into();
        clients.spawn(Client::new((local, address), ECDSA, shape, trust)?.run(left.clone()));
    }
    let mut sum = Done::default();
    while let Some(done) = clients.join_next().await {
        sum.add(done?);
    }
    if let Some(reason) = sum.first_error {
        eprintln!("a request by HTTP/3 to {address} failed: {reason:#}");
    }
    Ok(Sample { requests: sum.requests, errors: sum.errors, seconds: begun.elapsed().as_secs_f64() })
}

/// Sends the first packet of a connection to a server that does not answer.
pub(super) async fn begin(target: SocketAddr, host: &'static str, trust: &Trust) -> anyhow::Result<()> {
    let shape = Shape { connections: 1, streams: 1, path: "/", upload: 0, connects: Connects::Always };
    let client = Client::new((target.ip(), target), host, shape, trust)?;
    let connecting = client.endpoint.connect_with(client.config.clone(), target, host)?;
    timeout(Duration::from_millis(100), connecting).await.ok();
    Ok(())
}

/// Clients that pause after each request, and open a connection for each.
#[derive(Clone, Debug)]
pub(super) struct Paced {
    pub(super) target: SocketAddr,
    pub(super) host: &'static str,
    /// Address of each client.
    pub(super) from: Vec<IpAddr>,
    pub(super) pause: Duration,
    pub(super) trust: Trust,
}

/// Requests of [`paced`] clients.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// Time of each answered request with its connection, also of those that were under way at the end.
    pub(super) times: Vec<Duration>,
    /// Requests answered before the end.
    pub(super) answered: u64,
    pub(super) failed: u64,
}

/// Sends requests for this long, and waits for the answers.
///
/// # Errors
/// Fails if the clients cannot be created.
pub(super) fn paced(paced: &Paced, length: Duration) -> anyhow::Result<Asked> {
    block_on(async {
        let end = Instant::now() + length;
        let shape = Shape { connections: 1, streams: 1, path: "/", upload: 0, connects: Connects::Always };
        let mut clients = JoinSet::new();
        for &from in &paced.from {
            let client = Client::new((from, paced.target), paced.host, shape, &paced.trust)?;
            clients.spawn(client.ask_in_turns(paced.pause, end));
        }
        let mut sum = Asked::default();
        while let Some(asked) = clients.join_next().await {
            let Asked { times, answered, failed } = asked?;
            sum.times.extend(times);
            sum.answered += answered;
            sum.failed += failed;
        }
        Ok(sum)
    })
}

// === impl Shape ===

impl Shape {
    fn of(case: Case) -> Option<Self> {
        let many = Self { connections: 16, streams: 32, path: "/", upload: 0, connects: Connects::Once };
        Some(match case {
            Case::H3 => many,
            Case::H3close => Self { connections: 64, streams: 1, connects: Connects::Always, ..many },
            Case::H3resume => Self { connections: 64, streams: 1, connects: Connects::Resumed, ..many },
            Case::H364k => Self { connections: 32, streams: 1, path: "/64k", ..many },
            Case::H310m => Self { connections: 8, streams: 1, path: "/10m", ..many },
            Case::H3post64k => Self { connections: 32, streams: 1, path: "/post", upload: 64 << 10, ..many },
            _ => return None,
        })
    }
}

// === impl Left ===

impl Left {
    /// Returns `true` if another request is due, and assigns it to the caller.
    fn take(&self) -> bool {
        match self {
            Self::Until(end) => Instant::now() < *end,
            Self::Times(left) => left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok(),
        }
    }
}

// === impl Done ===

impl Done {
    fn note(&mut self, asked: anyhow::Result<()>) {
        match asked {
            Ok(()) => self.requests += 1,
            Err(error) => {
                self.errors += 1;
                self.first_error.get_or_insert(error);
            }
        }
    }

    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
    }
}

// === impl Client ===

impl Client {
    fn new(
        (local, address): (IpAddr, SocketAddr),
        host: &'static str,
        shape: Shape,
        trust: &Trust,
    ) -> anyhow::Result<Self> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let inner = WebPkiServerVerifier::builder_with_provider(trust.roots(), Arc::clone(&provider)).build()?;
        let verifier = Arc::new(Counting { inner, verified: AtomicU64::new(0) });
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&verifier) as Arc<dyn ServerCertVerifier>)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        if shape.connects == Connects::Always {
            tls.resumption = Resumption::disabled();
        }
        Ok(Self {
            address,
            host,
            uri: format!("https://{host}{}", shape.path).parse()?,
            shape,
            endpoint: Endpoint::client((local, 0).into()).context("no socket for a client")?,
            config: ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?)),
            verifier,
            body: vec![b'x'; shape.upload].into(),
        })
    }

    async fn run(self, left: Left) -> Done {
        if self.shape.connects != Connects::Once {
            return self.connect_for_each(left).await;
        }
        let mut done = Done::default();
        let (quic, requests) = match self.connect().await {
            Ok(connected) => connected,
            Err(error) => {
                done.note(Err(error));
                return done;
            }
        };
        let mut streams = JoinSet::new();
        for _ in 0..self.shape.streams {
            let (client, left, mut requests) = (self.clone(), left.clone(), requests.clone());
            streams.spawn(async move {
                let mut done = Done::default();
                while left.take() {
                    done.note(client.ask_in_time(&mut requests).await);
                }
                done
            });
        }
        while let Some(ended) = streams.join_next().await {
            done.add(ended.unwrap_or_default());
        }
        quic.close(NO_ERROR.into(), b"");
        done
    }

    async fn connect_for_each(&self, left: Left) -> Done {
        let (mut done, mut is_first) = (Done::default(), true);
        while left.take() {
            done.note(self.ask_once(is_first).await);
            is_first = false;
        }
        done
    }

    async fn ask_in_turns(self, pause: Duration, end: Instant) -> Asked {
        let mut asked = Asked::default();
        while Instant::now() < end {
            let begun = Instant::now();
            match self.ask_once(true).await {
                Ok(()) => {
                    asked.times.push(begun.elapsed());
                    asked.answered += u64::from(Instant::now() <= end);
                }
                Err(_failed) => asked.failed += 1,
            }
            tokio::time::sleep(pause).await;
        }
        asked
    }

    /// Sends a request on a connection of its own, whose handshake must be of the right kind.
    async fn ask_once(&self, is_first: bool) -> anyhow::Result<()> {
        let before = self.verifier.verified.load(Relaxed);
        let (quic, mut requests) = self.connect().await?;
        let is_resumed = self.verifier.verified.load(Relaxed) == before;
        let asked = self.ask_in_time(&mut requests).await;
        quic.close(NO_ERROR.into(), b"");
        let expected = self.shape.connects == Connects::Resumed && !is_first;
        ensure!(is_resumed == expected, "a handshake that is not what it should be: resumed is {is_resumed}");
        asked
    }

    async fn connect(&self) -> anyhow::Result<(Connection, SendRequest<OpenStreams, Bytes>)> {
        let connecting = self.endpoint.connect_with(self.config.clone(), self.address, self.host)?;
        let quic = timeout(PATIENCE, connecting).await.context("no handshake in time")??;
        let (mut driver, requests) = h3::client::new(h3_quinn::Connection::new(quic.clone())).await?;
        tokio::spawn(async move { poll_fn(|cx| driver.poll_close(cx)).await });
        Ok((quic, requests))
    }

    async fn ask_in_time(&self, requests: &mut SendRequest<OpenStreams, Bytes>) -> anyhow::Result<()> {
        timeout(PATIENCE, self.ask(requests)).await.context("no answer in time").flatten()
    }

    async fn ask(&self, requests: &mut SendRequest<OpenStreams, Bytes>) -> anyhow::Result<()> {
        let method = if self.body.is_empty() { "GET" } else { "POST" };
        let request = Request::builder().method(method).uri(self.uri.clone()).body(())?;
        let mut stream = requests.send_request(request).await?;
        if !self.body.is_empty() {
            stream.send_data(self.body.clone()).await?;
        }
        stream.finish().await?;
        let status = stream.recv_response().await?.status();
        ensure!(status == StatusCode::OK, "answered {status}");
        let mut length = 0;
        while let Some(data) = stream.recv_data().await? {
            length += data.remaining();
        }
        ensure!(length > 0, "an empty response");
        Ok(())
    }
}

// === impl Counting ===

impl ServerCertVerifier for Counting {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.verified.fetch_add(1, Relaxed);
        self.inner.verify_server_cert(certificate, intermediates, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_case_of_http3_has_a_shape() {
        for case in Case::value_variants() {
            assert_eq!(Shape::of(*case).is_some(), case.is_http3(), "{case}");
        }
    }
}
