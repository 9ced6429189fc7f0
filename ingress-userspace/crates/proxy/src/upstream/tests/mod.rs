//! Tests of the upstream side against scripted servers on loopback.

use std::{cell::RefCell, future::Future, rc::Rc, time::Duration};

use bytes::Bytes;
use http::{Method, Response};
use http_body_util::{BodyExt, Empty, Full};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::LocalSet,
};

use super::*;

/// Runs a test on one thread, like a worker.
fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(Duration::from_secs(30), future).await.expect("the test ends in time")
    })
}

/// A server that follows a script on one connection after the other, and records the received bytes.
struct Origin {
    address: std::net::SocketAddr,
    received: Rc<RefCell<Vec<u8>>>,
}

impl Origin {
    async fn new<F: Future<Output = ()> + 'static>(script: impl Fn(Peer) -> F + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let received = Rc::new(RefCell::new(Vec::new()));
        let log = Rc::clone(&received);
        tokio::task::spawn_local(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("accept");
                stream.set_nodelay(true).expect("nodelay");
                tokio::task::spawn_local(script(Peer { stream, log: Rc::clone(&log), unread: Vec::new() }));
            }
        });
        Self { address, received }
    }

    /// Answers every request with the same bytes.
    async fn answering(bytes: &'static [u8]) -> Self {
        Self::new(move |mut peer| async move {
            while peer.request().await.is_some() {
                peer.send(bytes).await
            }
        })
        .await
    }

    fn received(&self) -> String {
        String::from_utf8_lossy(&self.received.borrow()).into_owned()
    }
}

/// The server's end of a connection.
struct Peer {
    stream: TcpStream,
    log: Rc<RefCell<Vec<u8>>>,
    unread: Vec<u8>,
}

impl Peer {
    /// Reads up to the next empty line and returns the text with it; `None` at the end of the stream.
    async fn request(&mut self) -> Option<String> {
        self.until(b"\r\n\r\n").await
    }

    async fn until(&mut self, end: &[u8]) -> Option<String> {
        loop {
            if let Some(at) = self.unread.windows(end.len()).position(|window| window == end) {
                let rest = self.unread.split_off(at + end.len());
                let found = std::mem::replace(&mut self.unread, rest);
                return Some(String::from_utf8_lossy(&found).into_owned());
            }
            if self.more().await == 0 {
                return None;
            }
        }
    }

    async fn more(&mut self) -> usize {
        let mut bytes = vec![0; 64 * 1024];
        let read = self.stream.read(&mut bytes).await.unwrap_or(0);
        self.unread.extend_from_slice(&bytes[..read]);
        self.log.borrow_mut().extend_from_slice(&bytes[..read]);
        read
    }

    async fn send(&mut self, bytes: &[u8]) {
        // The other side may have closed the connection already.
        self.stream.write_all(bytes).await.ok();
    }

    /// Stays open silently until the other side closes.
    async fn linger(mut self) {
        while self.more().await > 0 {}
    }
}

fn line(method: &Method) -> impl FnOnce(&mut Vec<u8>) + use<> {
    let method = method.clone();
    move |out| {
        write_request_line(out, &method, "/path?query");
        out.extend_from_slice(b"host: a.test\r\n");
    }
}

async fn send<B: Outgoing>(
    pool: &Pool,
    origin: &Origin,
    method: Method,
    body: B,
) -> Result<Response<ResponseBody<B>>, ExchangeFailure<B>> {
    let connection = match pool.idle(plain(origin.address)) {
        Some(connection) => connection,
        None => pool.connect(plain(origin.address), ExchangeLimits::default().connect_timeout).await.expect("connect"),
    };
    exchange(connection, ExchangeLimits::default(), &method, line(&method), body).await
}

async fn get(
    pool: &Pool,
    origin: &Origin,
) -> Result<Response<ResponseBody<Empty<Bytes>>>, ExchangeFailure<Empty<Bytes>>> {
    send(pool, origin, Method::GET, Empty::new()).await
}

/// Returns status and content, or the name of the error.
async fn outcome(pool: &Pool, origin: &Origin, method: Method) -> Result<(u16, String), String> {
    let response = send(pool, origin, method, Empty::<Bytes>::new()).await.map_err(|failure| match failure.error {
        ExchangeError::Malformed(why) => format!("{why:?}"),
        other => format!("{other:?}"),
    })?;
    let status = response.status().as_u16();
    let content = response.into_body().collect().await.map_err(|error| match error {
        BodyError::Malformed(why) => format!("body {why:?}"),
        other => format!("body {other:?}"),
    })?;
    Ok((status, String::from_utf8_lossy(&content.to_bytes()).into_owned()))
}

fn plain(address: std::net::SocketAddr) -> ConnectTarget<'static> {
    ConnectTarget { address, transport: UpstreamTransport::Plain, proxy_header: None }
}

fn pool() -> Pool {
    Pool::new(PoolOptions::default())
}

/// Lets the other tasks and the reactor run until `condition` holds.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "{what}");
        tokio::task::yield_now().await;
    }
}

mod faults;
mod framing;
mod reuse;
mod upload;
