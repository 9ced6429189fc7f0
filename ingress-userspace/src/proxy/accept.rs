//! Accepts connections for one worker, come what may: no error of a connection or of the process ends the loop, and none
//! makes it spin.

use std::{
    fs::File,
    io,
    net::SocketAddr,
    rc::Rc,
    sync::atomic::Ordering::Relaxed,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::{
    conn::{self, Conn},
    server::Signal,
    worker::Worker,
};

/// Connections taken before others on the worker get a turn.
const BATCH: usize = 32;
/// Pause after an error that will not go away by itself at once.
const PAUSE: Duration = Duration::from_millis(10);

/// Accepts until told to stop; then takes what waits in the backlog, whose clients hold their connection for made, and
/// closes the listener.
pub(super) async fn run(worker: Rc<Worker>, listener: TcpListener, secure: bool, mut signal: watch::Receiver<Signal>) {
    let mut reserve = Reserve::new();
    loop {
        let first = tokio::select! {
            biased;
            _ = signal.wait_for(|signal| *signal != Signal::Serve) => break,
            accepted = listener.accept() => accepted,
        };
        if let Err(error) = first.map(|accepted| begin(&worker, accepted, secure)) {
            failed(&worker, &listener, &mut reserve, &error).await;
        }
        take(&worker, &listener, secure);
        tokio::task::yield_now().await;
    }
    take_rest(&worker, listener, secure);
}

/// Takes some of the connections that wait already.
fn take(worker: &Rc<Worker>, listener: &TcpListener, secure: bool) {
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..BATCH {
        match listener.poll_accept(&mut cx) {
            Poll::Ready(Ok(accepted)) => begin(worker, accepted, secure),
            // An error that stays shows again in the loop, where it is dealt with.
            Poll::Ready(Err(_)) | Poll::Pending => return,
        }
    }
}

/// Takes the whole backlog. Asks the kernel itself: the runtime may not have heard yet of connections that wait.
fn take_rest(worker: &Rc<Worker>, listener: TcpListener, secure: bool) {
    let Ok(listener) = listener.into_std() else { return };
    while let Ok((stream, remote)) = listener.accept() {
        if let Ok(stream) = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)) {
            begin(worker, (stream, remote), secure);
        }
    }
}

fn begin(worker: &Rc<Worker>, (stream, remote): (TcpStream, SocketAddr), secure: bool) {
    worker.shared.stats.accepted.fetch_add(1, Relaxed);
    // Fails if the client is gone already.
    let Ok(local) = stream.local_addr() else { return };
    let conn = Conn::new(Rc::clone(worker), remote, local, secure);
    let guard = worker.enter(&conn);
    tokio::task::spawn_local(async move {
        conn::run(conn, stream).await;
        drop(guard);
    });
}

async fn failed(worker: &Worker, listener: &TcpListener, reserve: &mut Reserve, error: &io::Error) {
    worker.shared.stats.accept_errors.fetch_add(1, Relaxed);
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => {
            tracing::warn!("no file descriptors left; shedding a connection");
            reserve.shed(listener);
            tokio::time::sleep(PAUSE).await;
        }
        Some(libc::ENOBUFS | libc::ENOMEM) => tokio::time::sleep(PAUSE).await,
        // accept(2): errors of the connection that was about to be accepted.
        _ => tracing::debug!(error = error as &dyn std::error::Error, "accept failed"),
    }
}

/// A file descriptor kept back: without one a waiting connection could not even be refused.
struct Reserve(Option<File>);

impl Reserve {
    fn new() -> Self {
        Self(File::open("/dev/null").ok())
    }

    /// Takes one waiting connection and closes it, so that its client knows.
    fn shed(&mut self, listener: &TcpListener) {
        self.0 = None;
        let mut cx = Context::from_waker(Waker::noop());
        drop(listener.poll_accept(&mut cx));
        *self = Self::new();
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn a_connection_that_is_shed_is_closed_and_the_reserve_restored() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("bound");
        let address = listener.local_addr().expect("address");
        let _first = TcpStream::connect(address).await.expect("connected");
        let mut second = TcpStream::connect(address).await.expect("connected");
        let mut reserve = Reserve::new();
        // Makes the runtime know that connections wait, as an `accept` that failed for lack of descriptors would have.
        let _accepted = listener.accept().await.expect("accepted");
        reserve.shed(&listener);
        assert_eq!(second.read(&mut [0]).await.expect("closed in order"), 0);
        assert!(reserve.0.is_some());
    }
}
