//! The pod: it echoes bodies with their trailers, and keeps the reports of browsers. It serves HTTP/1.1, and HTTP/2
//! without TLS, as long as this process lives.
//!
//! | path | answer |
//! |---|---|
//! | `/echo`, `/h2/echo` | the body of the request, and its trailers |
//! | `/size/N` | N bytes of a pattern |
//! | `/early` | a text, before the body of the request is read |
//! | `/page` | a page whose script runs the cases in its query, and reports the results |
//! | `/report` | an empty text; the body is kept |

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;

const PAGE: &str = include_str!("page.html");

type Reports = Arc<Mutex<Vec<String>>>;

/// A pod that serves.
#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) address: SocketAddr,
    reports: Reports,
}

impl Pod {
    pub(crate) fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("no port for the pod")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let reports = Reports::default();
        let kept = Arc::clone(&reports);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::spawn(move || runtime.block_on(accept(listener, kept)));
        Ok(Self { address, reports })
    }

    /// Returns and forgets the reports.
    pub(crate) fn take_reports(&self) -> Vec<String> {
        std::mem::take(&mut *self.reports.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn accept(listener: TcpListener, reports: Reports) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let reports = Arc::clone(&reports);
        let service = service_fn(move |request| serve(request, Arc::clone(&reports)));
        tokio::spawn(async move {
            let server = auto::Builder::new(TokioExecutor::new());
            // The proxy closes connections as it likes.
            let _ended = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn serve(
    request: Request<Incoming>,
    reports: Reports,
) -> Result<Response<Either<Incoming, Full<Bytes>>>, Infallible> {
    let path = request.uri().path().to_owned();
    let text = |text: &'static str| Either::Right(Full::from(text));
    let mut response = Response::new(match path.rsplit_once('/') {
        Some(("" | "/h2", "echo")) => Either::Left(request.into_body()),
        Some(("/size", length)) => Either::Right(Full::from(pattern(length.parse().unwrap_or_default()))),
        Some(("", "page")) => text(PAGE),
        Some(("", "report")) => {
            if let Ok(body) = request.into_body().collect().await {
                let report = String::from_utf8_lossy(&body.to_bytes()).into_owned();
                reports.lock().unwrap_or_else(PoisonError::into_inner).push(report);
            }
            text("")
        }
        _ => text("early"),
    });
    // Pages ask other origins, too, and see the protocol of the answers.
    for name in ["access-control-allow-origin", "timing-allow-origin"] {
        response.headers_mut().insert(name, header::HeaderValue::from_static("*"));
    }
    if path == "/page" {
        response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/html"));
    }
    Ok(response)
}

/// Returns the bytes of a body of `length`.
pub(crate) fn pattern(length: usize) -> Bytes {
    (0..=250).cycle().take(length).collect::<Vec<u8>>().into()
}
