//! HTTP/3, by a client that was not written here: quinn with h3. `corpus` sends its own bytes on streams of quinn.

mod corpus;
mod flows;
mod gateways;
mod hosts;
mod lifetime;
mod requests;
mod slow;
mod websocket;

use std::{
    future::poll_fn,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
};

use bytes::{Buf as _, Bytes};
use h3::{client::SendRequest, error::StreamError};
use h3_quinn::{Connection, OpenStreams};
use http::{HeaderMap, Method, Request, Response};
use ingress_proxy::Options;
use quinn::{ClientConfig, ConnectionError, Endpoint, crypto::rustls::QuicClientConfig};
use rustls::version::TLS13;
use tokio::time::timeout;

use ingress_proxy_testing::tls::config_of;
use ingress_proxy_testing::{DEADLINE, Proxy, Table};

/// Starts a proxy with HTTP/3 on one worker.
pub(super) fn start(table: &Table) -> Proxy {
    Proxy::start_http3(table, &options(), 1)
}

pub(super) fn options() -> Options {
    Options { http3_advertise_port: Some(443), ..Options::default() }
}

/// A connection, and HTTP/3 on it.
pub(super) struct Client {
    pub(super) endpoint: Endpoint,
    pub(super) quic: quinn::Connection,
    pub(super) requests: SendRequest<OpenStreams, Bytes>,
}

/// A response.
#[derive(Debug)]
pub(super) struct Got {
    pub(super) head: Response<()>,
    pub(super) body: Vec<u8>,
    pub(super) trailers: Option<HeaderMap>,
}

impl Got {
    pub(super) fn status(&self) -> u16 {
        self.head.status().as_u16()
    }

    pub(super) fn text(&self) -> &str {
        str::from_utf8(&self.body).expect("text")
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.head.headers().get(name).map(|value| value.to_str().expect("text"))
    }
}

fn client_config() -> ClientConfig {
    let mut tls = config_of(&[&TLS13], None);
    tls.alpn_protocols = vec![b"h3".to_vec()];
    ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).expect("a configuration")))
}

/// Returns a configuration with `window` bytes for all streams together.
fn narrow(window: u32) -> ClientConfig {
    let mut transport = quinn::TransportConfig::default();
    transport.receive_window(window.into());
    let mut config = client_config();
    config.transport_config(Arc::new(transport));
    config
}

/// Connects for the host `name`, without HTTP/3.
pub(super) async fn connect_raw(proxy: &Proxy, name: &str) -> Result<(Endpoint, quinn::Connection), ConnectionError> {
    connect_with(proxy, name, client_config()).await
}

async fn connect_with(
    proxy: &Proxy,
    name: &str,
    config: ClientConfig,
) -> Result<(Endpoint, quinn::Connection), ConnectionError> {
    connect_at(proxy.http3.expect("it serves HTTP/3"), name, config).await
}

async fn connect_at(
    address: SocketAddr,
    name: &str,
    config: ClientConfig,
) -> Result<(Endpoint, quinn::Connection), ConnectionError> {
    let endpoint = Endpoint::client(([127, 0, 0, 1], 0).into()).expect("an endpoint");
    let connecting = endpoint.connect_with(config, address, name).expect("an address");
    let quic = timeout(DEADLINE, connecting).await.expect("in time")?;
    Ok((endpoint, quic))
}

impl Client {
    pub(super) async fn connect(proxy: &Proxy, name: &str) -> Self {
        Self::over(connect_raw(proxy, name).await.expect("a connection")).await
    }

    /// Connects with `window` bytes for all responses together.
    pub(super) async fn connect_narrow(proxy: &Proxy, name: &str, window: u32) -> Self {
        Self::over(connect_with(proxy, name, narrow(window)).await.expect("a connection")).await
    }

    /// Connects at `address`, which is a link to a proxy.
    pub(super) async fn connect_at(address: SocketAddr, name: &str) -> Self {
        Self::over(connect_at(address, name, client_config()).await.expect("a connection")).await
    }

    async fn over((endpoint, quic): (Endpoint, quinn::Connection)) -> Self {
        let (mut driver, requests) = h3::client::new(Connection::new(quic.clone())).await.expect("HTTP/3");
        tokio::spawn(async move { poll_fn(|cx| driver.poll_close(cx)).await });
        Self { endpoint, quic, requests }
    }

    /// Continues at another address, as a client does that changes its network.
    pub(super) fn move_to(&self, address: &str) {
        let socket = UdpSocket::bind((address, 0)).expect("a socket");
        self.endpoint.rebind(socket).expect("another socket");
    }

    pub(super) async fn get(&self, host: &str, path: &str) -> Got {
        self.send(request(Method::GET, host, path, Bytes::new())).await.expect("a response")
    }

    pub(super) async fn post(&self, host: &str, path: &str, body: Bytes) -> Got {
        self.send(request(Method::POST, host, path, body)).await.expect("a response")
    }

    /// Sends a request, and receives its response meanwhile. Trailers are among the extensions of the request.
    pub(super) async fn send(&self, request: Request<Bytes>) -> Result<Got, StreamError> {
        let (parts, body) = request.into_parts();
        let trailers = parts.extensions.get::<HeaderMap>().cloned();
        let mut requests = self.requests.clone();
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
            Ok::<_, StreamError>(Got { head, body, trailers })
        };
        let both = async { tokio::join!(send, receive) };
        let (sent, received) = timeout(DEADLINE * 3, both).await.expect("in time");
        // The rest of a request that is answered early is read.
        if let Ok(got) = &received {
            assert!(sent.is_ok(), "{} before the body was sent: {sent:?}", got.head.status());
        }
        received
    }
}

pub(super) fn request(method: Method, host: &str, path: &str, body: Bytes) -> Request<Bytes> {
    Request::builder().method(method).uri(format!("https://{host}{path}")).body(body).expect("a request")
}

/// A body of `length` bytes that tell their offset.
pub(super) fn pattern(length: usize) -> Bytes {
    (0..length).map(|offset| (offset % 251) as u8).collect()
}

/// Settles when the counters of the workers are published.
pub(super) async fn until_counted(proxy: &Proxy, what: &str, holds: impl Fn(ingress_proxy::Http3StatsView) -> bool) {
    ingress_proxy_testing::until(what, || holds(proxy.shared.stats().http3)).await;
}
