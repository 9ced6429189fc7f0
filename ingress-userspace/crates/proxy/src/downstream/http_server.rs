//! HTTP with a client: drives hyper's part of a connection.

use std::{
    future::Future,
    pin::{Pin, pin},
    rc::Rc,
    task::Poll,
    time::Duration,
};

use hyper::{
    Request,
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task,
};

use crate::{
    downstream::{
        buffer_size::PIECE,
        conn::{Conn, Order, Serve as _},
        h2_backlog::STREAM_MAX,
        h2_write_coalescer::WriteCoalescer,
        tunnel,
        wire::Wire,
    },
    l4::pipe::end_turn,
    request::unread_body::UnreadBodies,
};

/// Silence of an HTTP/2 client after which it is sent a PING…
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// …and the time it has to answer.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes that the kernel takes for an HTTP/2 client ahead of those that it has sent, as `TCP_NOTSENT_LOWAT` (tcp(7)).
/// More than that would wait in the socket, where the order of streams is fixed and memory counts for the node.
const UNSENT_MAX: u32 = 128 * 1024;

/// hyper's default for [`crate::Options::headers_max`].
const HYPER_HEADERS_MAX: usize = 100;

/// Serves HTTP/1.1, or HTTP/2 if the client begins with that. `tcp` returns the socket below `stream`; `early` was read
/// already. Returns the stream if the connection is to be parked, with every byte taken from it answered.
pub(crate) async fn http1<S>(stream: S, tcp: fn(&S) -> &TcpStream, early: Vec<u8>, conn: Rc<Conn>) -> Option<S>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (options, head_max) = (&conn.worker.options, conn.head_max());
    let mut builder = http1::Builder::new();
    builder
        // `Progress` does this without a timer per request.
        .header_read_timeout(None)
        .max_header_size(head_max)
        .max_buf_size(head_max.saturating_mul(2).max(PIECE))
        .half_close(false);
    // With its own default, hyper keeps the parsed fields on the stack without clearing them first.
    if options.headers_max != HYPER_HEADERS_MAX {
        builder.max_headers(options.headers_max);
    }
    let service = {
        let conn = Rc::clone(&conn);
        service_fn(move |request: Request<Incoming>| request.serve(Rc::clone(&conn)))
    };
    let plain = (!conn.secure).then_some(tcp);
    let io = TokioIo::new(Wire::http1(stream, plain, Rc::clone(&conn), early));
    let mut hyper = builder.serve_connection(io, service);
    let _forgotten = Forget(&conn);
    let ended = until_ordered(&conn, Pin::new(&mut hyper), |hyper| hyper.graceful_shutdown()).await;
    if ended == HttpEnd::Cut {
        return None;
    }
    let http1::Parts { io, read_buf, .. } = hyper.into_parts();
    let mut wire = io.into_inner();
    if ended == HttpEnd::Idle {
        let (stream, held) = wire.into_parts();
        // Between two requests there may be bare line ends, which are ignored (RFC 9112, 2.2). If there are any other
        // bytes, the connection is closed rather than risk reading them differently a second time.
        let is_whole = held.is_empty() && read_buf.iter().all(|byte| matches!(byte, b'\r' | b'\n'));
        return is_whole.then_some(stream);
    }
    if wire.is_http2() {
        let (stream, early) = wire.into_parts();
        Box::pin(http2(stream, tcp, early, Rc::clone(&conn))).await;
        return None;
    }
    match conn.take_tunnel() {
        None => shut_down(&conn, &mut wire).await,
        // A client that does not even take the 101 gets no tunnel.
        Some(_) if conn.progress.is_blocked() => {}
        Some(tunnel) => {
            let (stream, held) = wire.into_parts();
            let early = [&read_buf[..], &held].concat();
            Box::pin(tunnel.run(&conn, tunnel::TunnelClient { stream, tcp, early })).await;
        }
    }
    None
}

/// Ends a connection in order. hyper has done so unless a request on the connection asked for an upgrade: then,
/// whatever the answer, hyper leaves the end to its caller.
async fn shut_down<S>(conn: &Conn, wire: &mut Wire<S>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    std::future::poll_fn(|cx| {
        conn.listen(cx);
        if conn.ordered() == Order::Close {
            return Poll::Ready(());
        }
        // A client that is gone needs no orderly end.
        Pin::new(&mut *wire).poll_shutdown(cx).map(drop)
    })
    .await;
}

/// Breaks the reference cycle between a connection and a tunnel that never began.
struct Forget<'c>(&'c Conn);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        drop(self.0.take_tunnel());
    }
}

/// The end of hyper's part of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpEnd {
    /// Everything was sent.
    Whole,
    /// The connection continues: it is to be parked.
    Idle,
    /// Ended by an error or an order.
    Cut,
}

/// Serves HTTP/2. `tcp` returns the socket below `stream`; `early` was read already.
pub(crate) async fn http2<S>(stream: S, tcp: fn(&S) -> &TcpStream, early: Vec<u8>, conn: Rc<Conn>)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    if let Err(error) = SockRef::from(tcp(&stream)).set_tcp_notsent_lowat(UNSENT_MAX) {
        tracing::debug!(remote = %conn.remote(), %error, "cannot bound the unsent bytes of a connection");
    }
    let mut builder = http2::Builder::new(LocalExecutor(Rc::clone(&conn)));
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(conn.settings.streams_max)
        .max_send_buf_size(STREAM_MAX)
        .enable_connect_protocol()
        .max_header_list_size(u32::try_from(conn.head_max()).unwrap_or(u32::MAX))
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    let service = {
        let conn = Rc::clone(&conn);
        service_fn(move |request: Request<Incoming>| Rc::clone(&conn).in_turn(request))
    };
    let coalescer = WriteCoalescer::new(Wire::http2(stream, Rc::clone(&conn), early));
    conn.becomes_http2();
    let hyper = pin!(builder.serve_connection(TokioIo::new(coalescer.clone()), service));
    let mut hyper = coalescer.follow(hyper);
    until_ordered(&conn, Pin::new(&mut hyper), |hyper| hyper.get_mut().hyper().graceful_shutdown()).await;
}

/// Polls `hyper` to its end, or until it is to be parked, and obeys orders in between.
async fn until_ordered<H>(conn: &Rc<Conn>, mut hyper: Pin<&mut H>, finish: impl Fn(Pin<&mut H>)) -> HttpEnd
where
    H: Future<Output = hyper::Result<()>>,
{
    let (mut finishing, mut rests) = (false, UnreadBodies::default());
    std::future::poll_fn(|cx| {
        conn.listen(cx);
        match conn.ordered() {
            Order::Serve => {}
            Order::Finish if finishing => {}
            Order::Finish => {
                finishing = true;
                finish(hyper.as_mut());
            }
            Order::Close => return Poll::Ready(HttpEnd::Cut),
        }
        match hyper.as_mut().poll(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(HttpEnd::Whole),
            Poll::Ready(Err(error)) => {
                tracing::debug!(
                    remote = %conn.remote(),
                    error = &error as &dyn std::error::Error,
                    "connection ended with an error"
                );
                // No violation, even where hyper cannot parse the head: a script can make a browser send control bytes
                // in a field. The wire counts the bytes that it refuses.
                Poll::Ready(HttpEnd::Cut)
            }
            // Until hyper has the end of a body, the connection is not idle.
            Poll::Pending if !rests.poll(conn, cx) && conn.is_to_be_parked() => Poll::Ready(HttpEnd::Idle),
            Poll::Pending => {
                if conn.is_to_be_polled_again() {
                    end_turn(cx);
                }
                Poll::Pending
            }
        }
    })
    .await
}

/// Runs the streams of HTTP/2 connections on the worker that accepted them. The worker's runtime owns them.
#[derive(Clone)]
struct LocalExecutor(Rc<Conn>);

impl<F> hyper::rt::Executor<F> for LocalExecutor
where
    F: Future<Output = ()> + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawned(task::spawn_local(future).abort_handle());
    }
}
