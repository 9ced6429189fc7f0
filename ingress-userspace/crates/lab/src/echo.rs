//! The test pod: a server that reports its name and the received request, over HTTP/1.1, HTTP/2 by prior knowledge, and
//! WebSocket. It has no configuration, and no state except a request count and its readiness.
//!
//! | path | answer |
//! |---|---|
//! | `/bytes/N` | N bytes of [`super::pattern`] |
//! | `/status/N` | status N and one line of text |
//! | `/ready` | 200 while the pod is ready, else 503 |
//! | `/ready/0`, `/ready/1` | makes the pod unready, ready |
//! | any other | JSON: pod, number of the request, protocol, method, path, headers, body length, and whether the body was the pattern |
//!
//! A WebSocket handshake on any path begins an echo of messages.

use std::{
    convert::Infallible,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use anyhow::Context as _;
use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Either, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use rustls::pki_types::PrivateKeyDer;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net,
    sync::oneshot,
};
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{handshake::derive_accept_key, protocol::Role},
};

use super::{
    Namespace,
    pattern::{Check, PatternBody},
};

/// Header of every answer: the pod's name.
pub const POD_HEADER: &str = "x-pod";

type Answer = Response<Either<Full<Bytes>, PatternBody>>;

/// A pod served by a thread of this process inside a namespace. Dropping the value closes its listeners and
/// connections.
#[derive(Debug)]
pub struct Echo {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

/// Security of a listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    Plain,
    /// TLS with a self-signed certificate.
    Tls,
}

impl Echo {
    /// Listens on every address of `listen` inside `namespace`.
    ///
    /// # Errors
    /// Fails if it cannot listen on an address.
    pub fn start(namespace: &Namespace, name: &str, listen: &[SocketAddr]) -> anyhow::Result<Self> {
        let listeners = namespace.run(|| listen.iter().map(|addr| bind(*addr, Security::Plain)).collect())?;
        let (stop, stopped) = oneshot::channel::<()>();
        let pod = name.to_owned();
        let thread = namespace.thread(name, move || {
            serve(&pod, listeners, async {
                stopped.await.ok();
            })
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// Opens a listener for [`serve`].
///
/// # Errors
/// Fails if it cannot listen on the address.
pub fn bind(addr: SocketAddr, security: Security) -> anyhow::Result<(TcpListener, Security)> {
    let listener = TcpListener::bind(addr).with_context(|| format!("cannot listen on `{addr}`"))?;
    Ok((listener, security))
}

/// Serves `listeners` on this thread until `stop` is ready.
///
/// # Errors
/// Fails if the runtime or a listener cannot be set up.
pub fn serve(
    name: &str,
    listeners: Vec<(TcpListener, Security)>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot make a runtime")?;
    let pod = Arc::new(Pod {
        name: HeaderValue::from_str(name).context("unusable pod name")?,
        requests: AtomicU64::new(0),
        ready: AtomicBool::new(true),
    });
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for (listener, security) in listeners {
            listener.set_nonblocking(true).context("cannot make a listener non-blocking")?;
            let listener = net::TcpListener::from_std(listener).context("cannot register a listener")?;
            let acceptor = match security {
                Security::Plain => None,
                Security::Tls => Some(acceptor(name)?),
            };
            tasks.spawn(accept(listener, acceptor, Arc::clone(&pod)));
        }
        stop.await;
        Ok(())
    })
}

fn acceptor(name: &str) -> anyhow::Result<TlsAcceptor> {
    let signed = rcgen::generate_simple_self_signed([name.to_owned()]).context("cannot make a certificate")?;
    let key = PrivateKeyDer::Pkcs8(signed.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("no usable TLS version")?
        .with_no_client_auth()
        .with_single_cert(vec![signed.cert.der().clone()], key)
        .context("unusable certificate")?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn accept(listener: net::TcpListener, acceptor: Option<TlsAcceptor>, pod: Arc<Pod>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        // A connection that failed before it was accepted is the client's problem.
        let Ok((stream, _)) = listener.accept().await else { continue };
        // Small answers must not wait for acknowledgements; a socket that refuses the option is served nevertheless.
        stream.set_nodelay(true).ok();
        let (pod, acceptor) = (Arc::clone(&pod), acceptor.clone());
        connections.spawn(async move {
            match acceptor {
                None => pod.converse(stream).await,
                Some(acceptor) => {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        pod.converse(stream).await;
                    }
                }
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

struct Pod {
    name: HeaderValue,
    requests: AtomicU64,
    ready: AtomicBool,
}

impl Pod {
    async fn converse<S>(self: Arc<Self>, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let service = service_fn(|request| {
            let pod = Arc::clone(&self);
            async move { Ok::<_, Infallible>(pod.answer(request).await) }
        });
        // A client that goes away is not an error for a test pod.
        let builder = auto::Builder::new(TokioExecutor::new());
        builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await.ok();
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(key) = websocket_key(request.headers()) {
            return self.echo_messages(&key, request);
        }
        let mut answer = match argument(request.uri().path()) {
            ("bytes", Some(len)) => Response::new(Either::Right(PatternBody::new(len))),
            ("status", Some(code)) => {
                let code = u16::try_from(code).ok().and_then(|code| StatusCode::from_u16(code).ok());
                let mut answer = text(format!("status {}\n", code.unwrap_or(StatusCode::BAD_REQUEST).as_u16()));
                *answer.status_mut() = code.unwrap_or(StatusCode::BAD_REQUEST);
                answer
            }
            ("ready", Some(ready)) => {
                self.ready.store(ready != 0, Ordering::Relaxed);
                text("noted\n".into())
            }
            _ if request.uri().path() == "/ready" => {
                let mut answer = text("is it ready?\n".into());
                if !self.ready.load(Ordering::Relaxed) {
                    *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                }
                answer
            }
            _ => self.mirror(number, request).await,
        };
        answer.headers_mut().insert(POD_HEADER, self.name.clone());
        answer
    }

    /// Answers a WebSocket handshake (RFC 6455, 4.2.2) and sends every message back.
    fn echo_messages(&self, key: &HeaderValue, request: Request<Incoming>) -> Answer {
        let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes()));
        tokio::spawn(async move {
            // A client that goes away is not an error for a test pod.
            let Ok(upgraded) = hyper::upgrade::on(request).await else { return };
            let mut socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
            while let Some(Ok(message)) = socket.next().await {
                if (message.is_text() || message.is_binary()) && socket.send(message).await.is_err() {
                    return;
                }
            }
        });
        let mut answer = text(String::new());
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = answer.headers_mut();
        headers.insert(POD_HEADER, self.name.clone());
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        if let Ok(accept) = accept {
            headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
        }
        answer
    }

    async fn mirror(&self, number: u64, request: Request<Incoming>) -> Answer {
        let (head, mut body) = request.into_parts();
        let mut check = Check::default();
        while let Some(frame) = body.frame().await {
            match frame.map(http_body::Frame::into_data) {
                Ok(Ok(data)) => check.add(&data),
                Ok(Err(_trailers)) => {}
                Err(_gone) => break,
            }
        }
        let mut answer = text(format!(
            "{:#}\n",
            serde_json::json!({
                "pod": String::from_utf8_lossy(self.name.as_bytes()),
                "request": number,
                "protocol": format!("{:?}", head.version),
                "method": head.method.as_str(),
                "path": head.uri.path_and_query().map(ToString::to_string),
                "headers": headers(&head.headers),
                "received": check.received(),
                "intact": check.intact(),
            })
        ));
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        answer
    }
}

/// Returns the key of a WebSocket handshake; `None` for other requests.
fn websocket_key(headers: &HeaderMap) -> Option<HeaderValue> {
    headers.get(header::UPGRADE).filter(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))?;
    headers.get(header::SEC_WEBSOCKET_KEY).cloned()
}

/// Returns `("bytes", Some(10))` for `/bytes/10`, with any prefix before it: a route may add one.
fn argument(path: &str) -> (&str, Option<u64>) {
    let mut parts = path.rsplit('/');
    let number = parts.next().and_then(|last| last.parse().ok());
    (parts.next().unwrap_or_default(), number)
}

fn text(text: String) -> Answer {
    Response::new(Either::Left(Full::new(Bytes::from(text))))
}

fn headers(headers: &HeaderMap) -> serde_json::Value {
    let mut all = serde_json::Map::new();
    for name in headers.keys() {
        let values: Vec<_> =
            headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
        all.insert(name.to_string(), values.join(", ").into());
    }
    all.into()
}
