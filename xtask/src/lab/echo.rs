//! The test pod: an HTTP/1 server that says who it is and what it received. It has no configuration and no state beyond
//! a count of requests.
//!
//! | path | answer |
//! |---|---|
//! | `/bytes/N` | N bytes of [`super::pattern`] |
//! | `/status/N` | status N and one line of text |
//! | any other | JSON: pod, number of the request, method, path, headers; of a body its length and whether it was the pattern |

use std::{
    convert::Infallible,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use anyhow::Context as _;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Either, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{net, sync::oneshot};

use super::{
    Namespace,
    pattern::{Check, PatternBody},
};

/// Header of every answer: the pod's name.
pub const POD_HEADER: &str = "x-pod";

type Answer = Response<Either<Full<Bytes>, PatternBody>>;

/// A pod served by a thread of this process inside a namespace. Dropping it closes its listeners and connections.
#[derive(Debug)]
pub struct Echo {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Echo {
    /// Listens on every address of `listen` inside `namespace`.
    ///
    /// # Errors
    /// If an address cannot be listened on.
    pub fn start(namespace: &Namespace, name: &str, listen: &[SocketAddr]) -> anyhow::Result<Self> {
        let listeners = namespace.run(|| {
            let bind = |addr| TcpListener::bind(addr).with_context(|| format!("cannot listen on `{addr}`"));
            listen.iter().map(bind).collect::<anyhow::Result<Vec<_>>>()
        })?;
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

/// Serves `listeners` on this thread until `stop` is ready.
///
/// # Errors
/// If the runtime or a listener cannot be set up.
pub fn serve(name: &str, listeners: Vec<TcpListener>, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot make a runtime")?;
    let pod = Arc::new(Pod { name: HeaderValue::from_str(name).context("unusable pod name")?, requests: 0.into() });
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for listener in listeners {
            listener.set_nonblocking(true).context("cannot make a listener non-blocking")?;
            let listener = net::TcpListener::from_std(listener).context("cannot register a listener")?;
            tasks.spawn(accept(listener, Arc::clone(&pod)));
        }
        stop.await;
        Ok(())
    })
}

async fn accept(listener: net::TcpListener, pod: Arc<Pod>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        // A connection that failed before it was accepted is the client's affair.
        let Ok((stream, _)) = listener.accept().await else { continue };
        let pod = Arc::clone(&pod);
        connections.spawn(async move {
            let service = service_fn(|request| {
                let pod = Arc::clone(&pod);
                async move { Ok::<_, Infallible>(pod.answer(request).await) }
            });
            // A client that goes away is no error of a test pod.
            http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok();
        });
        while connections.try_join_next().is_some() {}
    }
}

struct Pod {
    name: HeaderValue,
    requests: AtomicU64,
}

impl Pod {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        let mut answer = match argument(request.uri().path()) {
            ("bytes", Some(len)) => Response::new(Either::Right(PatternBody::new(len))),
            ("status", Some(code)) => {
                let code = u16::try_from(code).ok().and_then(|code| StatusCode::from_u16(code).ok());
                let mut answer = text(format!("status {}\n", code.unwrap_or(StatusCode::BAD_REQUEST).as_u16()));
                *answer.status_mut() = code.unwrap_or(StatusCode::BAD_REQUEST);
                answer
            }
            _ => self.mirror(number, request).await,
        };
        answer.headers_mut().insert(POD_HEADER, self.name.clone());
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

/// `("bytes", Some(10))` of `/bytes/10`, whatever precedes it: a route may add a prefix.
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
