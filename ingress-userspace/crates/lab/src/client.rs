//! A real client: HTTP/1.1, HTTPS and HTTP/2 on hyper and rustls, one connection at a time. It does no pooling, no
//! retries and no redirects, so its counts match its actions exactly.
//!
//! The client must run inside a tokio runtime; its sockets belong to the namespace of the thread that opens the
//! connection.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{RootCertStore, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpSocket, TcpStream},
    task::JoinHandle,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::{
    echo::POD_HEADER,
    pattern::{Check, PatternBody},
};

/// Longest wait for a connection or for the next part of an answer.
const DEADLINE: Duration = Duration::from_secs(20);
/// Bodies up to this length are kept as text as well as counted: metrics of a full deny list are half a megabyte.
const TEXT_MAX: usize = 4 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    /// HTTP/1.1 over TLS.
    Https1,
    /// HTTP/2 over TLS, by ALPN.
    Https2,
}

/// The certificates that the client trusts.
#[derive(Clone, Debug)]
pub struct Trust(Arc<RootCertStore>);

/// A single connection. [`Connection::close`] waits until it is closed; dropping it closes it at some later time.
#[derive(Debug)]
pub struct Connection {
    sender: Sender,
    driver: JoinHandle<()>,
    pub local: SocketAddr,
}

#[derive(Debug)]
enum Sender {
    Http1(http1::SendRequest<PatternBody>),
    Http2(http2::SendRequest<PatternBody>),
}

/// A request to send.
#[derive(Clone, Debug)]
pub struct Ask {
    pub method: Method,
    pub host: String,
    pub path: String,
    /// Length of the body in bytes of the pattern.
    pub upload: u64,
}

/// An answer read to its end.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Check,
    /// The beginning of the body, at most 4 MiB.
    pub text: Vec<u8>,
}

/// An answer with only its head read.
#[derive(Debug)]
pub struct Streaming {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
}

// === impl Trust ===

impl Trust {
    /// Returns the trusted authorities.
    #[must_use]
    pub fn roots(&self) -> Arc<RootCertStore> {
        Arc::clone(&self.0)
    }

    /// Trusts no certificate; for clients without TLS.
    #[must_use]
    pub fn none() -> Self {
        Self(Arc::new(RootCertStore::empty()))
    }

    /// Trusts certificates that this authority has signed.
    ///
    /// # Errors
    /// Fails if `der` is not a certificate.
    pub fn authority(der: &[u8]) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(der.to_vec().into()).context("unusable authority certificate")?;
        Ok(Self(Arc::new(roots)))
    }

    /// Returns the TLS configuration of a client that offers `alpn` and trusts only these certificates.
    ///
    /// # Errors
    /// Fails if the cryptography provider supports no usable version of TLS.
    pub fn config(&self, alpn: &[u8]) -> anyhow::Result<Arc<rustls::ClientConfig>> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("no usable TLS version")?
            .with_root_certificates(Arc::clone(&self.0))
            .with_no_client_auth();
        config.alpn_protocols = vec![alpn.to_vec()];
        Ok(Arc::new(config))
    }
}

// === impl Ask ===

impl Ask {
    #[must_use]
    pub fn get(host: &str, path: &str) -> Self {
        Self { method: Method::GET, host: host.into(), path: path.into(), upload: 0 }
    }

    #[must_use]
    pub fn upload(host: &str, path: &str, bytes: u64) -> Self {
        Self { method: Method::POST, host: host.into(), path: path.into(), upload: bytes }
    }
}

// === impl Connection ===

impl Connection {
    /// Connects to `addr`; with TLS, `name` is sent as SNI and the certificate must be valid for it.
    ///
    /// # Errors
    /// Fails if the connection is refused, times out, or TLS fails.
    pub async fn open(addr: SocketAddr, protocol: Protocol, name: &str, trust: &Trust) -> anyhow::Result<Self> {
        Self::open_from(None, addr, protocol, name, trust).await
    }

    /// Connects like [`Connection::open`] from this address of the namespace, or from one that the kernel chooses.
    ///
    /// # Errors
    /// Fails like [`Connection::open`], and if the namespace does not have the address.
    pub async fn open_from(
        from: Option<IpAddr>,
        addr: SocketAddr,
        protocol: Protocol,
        name: &str,
        trust: &Trust,
    ) -> anyhow::Result<Self> {
        let opening = async { Self::over(connect(from, addr).await?, protocol, name, trust).await };
        timeout(DEADLINE, opening).await.with_context(|| format!("no connection to `{addr}` within {DEADLINE:?}"))?
    }

    async fn over(stream: TcpStream, protocol: Protocol, name: &str, trust: &Trust) -> anyhow::Result<Self> {
        let local = stream.local_addr().context("connection has no address")?;
        let (sender, driver) = match protocol {
            Protocol::Http1 => start_http1(stream).await?,
            Protocol::Https1 => start_http1(handshake(stream, name, trust, b"http/1.1").await?).await?,
            Protocol::Https2 => start_http2(handshake(stream, name, trust, b"h2").await?).await?,
        };
        Ok(Self { sender, driver, local })
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    /// Fails if the connection breaks or no data arrives for twenty seconds.
    pub async fn send(&mut self, ask: &Ask) -> anyhow::Result<Answer> {
        self.start(ask).await?.finish().await
    }

    /// Sends a request and reads the head of the answer.
    ///
    /// # Errors
    /// Fails if the connection breaks or no head arrives within twenty seconds.
    pub async fn start(&mut self, ask: &Ask) -> anyhow::Result<Streaming> {
        let Ask { method, host, path, upload } = ask;
        let body = PatternBody::new(*upload);
        let request = Request::builder().method(method);
        let exchange = async {
            match &mut self.sender {
                Sender::Http1(sender) => {
                    let request = request.uri(path).header(header::HOST, host).body(body)?;
                    sender.ready().await?;
                    anyhow::Ok(sender.send_request(request).await?)
                }
                Sender::Http2(sender) => {
                    let request = request.uri(format!("https://{host}{path}")).body(body)?;
                    sender.ready().await?;
                    anyhow::Ok(sender.send_request(request).await?)
                }
            }
        };
        let response = timeout(DEADLINE, exchange)
            .await
            .with_context(|| format!("no answer within {DEADLINE:?}"))
            .flatten()
            .with_context(|| format!("{method} {host}{path}"))?;
        let (head, body) = response.into_parts();
        Ok(Streaming { status: head.status, headers: head.headers, body })
    }

    /// Returns `true` if another request can be sent: the server has neither announced nor begun to close the
    /// connection.
    pub async fn is_usable(&mut self) -> bool {
        match &mut self.sender {
            Sender::Http1(sender) => sender.ready().await.is_ok(),
            Sender::Http2(sender) => sender.ready().await.is_ok(),
        }
    }

    /// Closes the connection and waits until it is closed.
    ///
    /// # Errors
    /// Fails if that takes longer than twenty seconds.
    pub async fn close(self) -> anyhow::Result<()> {
        let Self { sender, driver, local } = self;
        drop(sender);
        let ended = timeout(DEADLINE, driver).await.with_context(|| format!("connection from `{local}` stays open"))?;
        ended.context("the connection's task failed")
    }
}

// === impl Streaming ===

impl Streaming {
    /// Returns the next part of the body; `None` at its end.
    ///
    /// # Errors
    /// Fails if the connection breaks or no data arrives for twenty seconds.
    pub async fn next(&mut self) -> anyhow::Result<Option<Bytes>> {
        loop {
            let frame = timeout(DEADLINE, self.body.frame()).await.context("the body stopped for twenty seconds")?;
            match frame {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(data) = frame.context("the body broke off")?.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// Reads the rest and returns its length.
    ///
    /// # Errors
    /// Fails like [`Streaming::next`].
    pub async fn rest(mut self) -> anyhow::Result<u64> {
        let mut len = 0;
        while let Some(data) = self.next().await? {
            len += data.len() as u64;
        }
        Ok(len)
    }

    /// Reads the rest.
    ///
    /// # Errors
    /// Fails like [`Streaming::next`].
    pub async fn finish(mut self) -> anyhow::Result<Answer> {
        let (mut body, mut text) = (Check::default(), Vec::new());
        while let Some(data) = self.next().await? {
            body.add(&data);
            let room = TEXT_MAX - text.len();
            text.extend_from_slice(&data[..data.len().min(room)]);
        }
        let Self { status, headers, body: _ } = self;
        Ok(Answer { status, headers, body, text })
    }
}

// === impl Answer ===

impl Answer {
    /// A header's value as text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the pod that answered; `None` for other servers.
    #[must_use]
    pub fn pod(&self) -> Option<&str> {
        self.header(POD_HEADER)
    }

    /// Parses the body as JSON.
    ///
    /// # Errors
    /// Fails if the body is not JSON.
    pub fn json(&self) -> anyhow::Result<serde_json::Value> {
        serde_json::from_slice(&self.text)
            .with_context(|| format!("no JSON in `{}`", String::from_utf8_lossy(&self.text)))
    }
}

/// Connects from an address of the namespace, or from one that the kernel chooses.
pub(super) async fn connect(from: Option<IpAddr>, addr: SocketAddr) -> anyhow::Result<TcpStream> {
    let connecting = async {
        let socket = match addr {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        }?;
        if let Some(from) = from {
            socket.bind(SocketAddr::new(from, 0))?;
        }
        socket.connect(addr).await
    };
    let connected: io::Result<TcpStream> = connecting.await;
    let stream = connected.with_context(|| match from {
        Some(from) => format!("cannot connect to `{addr}` from `{from}`"),
        None => format!("cannot connect to `{addr}`"),
    })?;
    stream.set_nodelay(true).context("cannot set TCP_NODELAY")?;
    Ok(stream)
}

async fn handshake(
    stream: TcpStream,
    name: &str,
    trust: &Trust,
    alpn: &[u8],
) -> anyhow::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let name = ServerName::try_from(name.to_owned()).with_context(|| format!("unusable server name `{name}`"))?;
    let stream = TlsConnector::from(trust.config(alpn)?).connect(name.clone(), stream).await;
    let stream = stream.with_context(|| format!("TLS handshake as `{}` failed", name.to_str()))?;
    let agreed = stream.get_ref().1.alpn_protocol();
    anyhow::ensure!(
        agreed == Some(alpn),
        "asked for `{}` by ALPN, got `{}`",
        String::from_utf8_lossy(alpn),
        String::from_utf8_lossy(agreed.unwrap_or(b"nothing")),
    );
    Ok(stream)
}

async fn start_http1<S>(stream: S) -> anyhow::Result<(Sender, JoinHandle<()>)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.context("HTTP/1 handshake failed")?;
    // An error of the connection reaches the caller that waits for an answer; without such a caller it does not matter.
    let driver = tokio::spawn(async move { connection.await.unwrap_or_default() });
    Ok((Sender::Http1(sender), driver))
}

async fn start_http2<S>(stream: S) -> anyhow::Result<(Sender, JoinHandle<()>)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.context("HTTP/2 handshake failed")?;
    let driver = tokio::spawn(async move { connection.await.unwrap_or_default() });
    Ok((Sender::Http2(sender), driver))
}

/// Runs `work` to its end on this thread.
///
/// # Errors
/// Fails with the error of `work`.
pub fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot make a runtime")?.block_on(work)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn a_connection_has_the_requested_source_address() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let addr = listener.local_addr().expect("an address");
        let named = Ipv4Addr::new(127, 0, 0, 2);
        for (from, expect) in [(None, Ipv4Addr::LOCALHOST), (Some(named.into()), named)] {
            let _open = block_on(connect(from, addr)).expect("connected");
            let (_, peer) = listener.accept().expect("accepted");
            assert_eq!(peer.ip(), expect);
        }
    }
}
