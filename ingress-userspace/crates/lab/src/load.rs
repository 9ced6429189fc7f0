//! Steady load by a thread inside a namespace, while a test changes the proxy. Every request either gets the expected
//! answer or is a failure, recorded with its reason.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::time::timeout;
use tokio_tungstenite::{client_async, tungstenite::Message};

use super::{
    Namespace,
    client::{Ask, Connection, Protocol, Trust, block_on, connect},
    until,
};

/// Number of failures kept with their text; further ones are only counted.
const KEPT: usize = 10;

/// Spread of the requests over connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    /// Each client keeps one connection for all its requests.
    Kept,
    /// A new connection for each request.
    New,
    /// A WebSocket that exchanges messages for three seconds; then a new one. An earlier end is a failure.
    WebSockets,
}

/// Address, protocol and trusted certificates of a server.
#[derive(Clone, Debug)]
pub struct Target {
    pub addr: SocketAddr,
    pub protocol: Protocol,
    pub trust: Trust,
}

/// Clients, their target and their request.
#[derive(Clone, Debug)]
pub struct Clients {
    pub target: Target,
    pub ask: Ask,
    /// Number of concurrent clients.
    pub count: usize,
    /// Addresses of the namespace that the clients use in turn; if empty, the kernel chooses.
    pub from: Vec<IpAddr>,
    pub connections: Connections,
    /// Pause of each client between two requests, and of a WebSocket between two messages, at least 20 ms.
    pub pause: Duration,
}

/// Time for which a WebSocket is used, and the shortest pause between its messages.
const SOCKET_LIFE: Duration = Duration::from_secs(3);
const MESSAGE_PAUSE: Duration = Duration::from_millis(20);
/// Longest wait for a handshake or for a message to come back.
const MESSAGE_LIMIT: Duration = Duration::from_secs(20);

/// Running load. Dropping the value stops it.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<anyhow::Result<Report>>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    answered: AtomicU64,
    failed: AtomicU64,
}

/// Result of a load.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub answered: u64,
    pub failed: u64,
    /// Time of each answered request, including its connection if that was new; WebSockets add none.
    pub times: Vec<Duration>,
    /// The first few failures.
    pub reasons: Vec<String>,
}

impl From<SocketAddr> for Target {
    /// Plain HTTP/1.1.
    fn from(addr: SocketAddr) -> Self {
        Self { addr, protocol: Protocol::Http1, trust: Trust::none() }
    }
}

impl Load {
    /// Starts `clients` concurrent clients that send `ask` to `target` as fast as they get answers.
    ///
    /// # Errors
    /// Fails if the thread cannot be started, or no request is answered at the beginning.
    pub fn start(
        namespace: &Namespace,
        target: impl Into<Target>,
        ask: Ask,
        clients: usize,
        connections: Connections,
    ) -> anyhow::Result<Self> {
        let (target, from, pause) = (target.into(), Vec::new(), Duration::ZERO);
        Self::of(namespace, Clients { target, ask, count: clients, from, connections, pause })
    }

    /// Starts `clients`, which send as fast as their answers and pauses allow.
    ///
    /// # Errors
    /// Fails if the thread cannot be started, or no request is answered at the beginning.
    pub fn of(namespace: &Namespace, clients: Clients) -> anyhow::Result<Self> {
        let count = clients.count;
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = namespace.thread("load", move || {
            block_on(async move {
                let mut tasks = tokio::task::JoinSet::new();
                for number in 0..count {
                    let from = clients.from.get(number % clients.from.len().max(1)).copied();
                    tasks.spawn(client(Arc::clone(&theirs), clients.clone(), from));
                }
                let mut total = Report::default();
                while let Some(report) = tasks.join_next().await {
                    total.add(report?);
                }
                Ok(total)
            })
        })?;
        let load = Self { shared, thread: Some(thread) };
        until("the load's first answers", || (load.answered() >= count as u64).then_some(()))?;
        Ok(load)
    }

    /// Returns the number of requests answered so far.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.shared.answered.load(Ordering::Relaxed)
    }

    /// Returns the number of failures so far.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// Waits until this many more requests have been answered.
    ///
    /// # Errors
    /// Fails if that takes longer than 30 seconds.
    pub fn pass(&self, requests: u64) -> anyhow::Result<()> {
        let goal = self.answered() + requests;
        until("the load to go on", || (self.answered() >= goal).then_some(()))
    }

    /// Ends the load; requests in progress are finished.
    ///
    /// # Errors
    /// Fails if the load's thread failed.
    pub fn stop(mut self) -> anyhow::Result<Report> {
        self.shared.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(report)) => report,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(Report::default()),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

impl Report {
    fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.failed += other.failed;
        self.times.extend(other.times);
        self.reasons.extend(other.reasons);
        self.reasons.truncate(KEPT);
    }

    fn failure(&mut self, reason: String) {
        self.failed += 1;
        if self.reasons.len() < KEPT {
            self.reasons.push(reason);
        }
    }
}

async fn client(shared: Arc<Shared>, clients: Clients, from: Option<IpAddr>) -> Report {
    let mut report = Report::default();
    let mut kept = None;
    while !shared.stop.load(Ordering::Relaxed) {
        let result = match clients.connections {
            Connections::WebSockets => converse(&shared, from, &clients, &mut report).await,
            Connections::Kept | Connections::New => {
                let began = Instant::now();
                let result = exchange(&mut kept, from, &clients).await;
                if result.is_ok() {
                    report.answered += 1;
                    report.times.push(began.elapsed());
                    shared.answered.fetch_add(1, Ordering::Relaxed);
                }
                result
            }
        };
        if let Err(error) = result {
            report.failure(format!("{error:#}"));
            shared.failed.fetch_add(1, Ordering::Relaxed);
            kept = None;
            // Refused connections fail at once, so this gives the other tasks of this thread a turn.
            tokio::task::yield_now().await;
        }
        if clients.connections == Connections::New
            && let Some(connection) = kept.take()
            && let Err(error) = Connection::close(connection).await
        {
            report.failure(format!("{error:#}"));
        }
        if !clients.pause.is_zero() {
            tokio::time::sleep(clients.pause).await;
        }
    }
    report
}

async fn exchange(kept: &mut Option<Connection>, from: Option<IpAddr>, clients: &Clients) -> anyhow::Result<()> {
    let Clients { target: Target { addr, protocol, trust }, ask, .. } = clients;
    // A server that announced the end of a kept connection closes it between requests. The client opens another, as
    // every client does (RFC 9112, 9.6).
    if let Some(connection) = kept
        && !connection.is_usable().await
    {
        *kept = None;
    }
    let open = || Connection::open_from(from, *addr, *protocol, &ask.host, trust);
    let connection = match kept {
        Some(connection) => connection,
        None => kept.insert(open().await?),
    };
    let answer = match connection.send(ask).await {
        // The announcement arrived after the check and before the request, and no byte of the request was sent.
        Err(error) if was_never_sent(&error) => kept.insert(open().await?).send(ask).await?,
        answer => answer?,
    };
    anyhow::ensure!(answer.status.is_success(), "answered {}", answer.status);
    Ok(())
}

/// Returns `true` if hyper returned the request unsent.
fn was_never_sent(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled))
}

/// Runs one WebSocket, from its handshake to its close by the client.
async fn converse(shared: &Shared, from: Option<IpAddr>, clients: &Clients, report: &mut Report) -> anyhow::Result<()> {
    let Clients { target, ask: Ask { method: _, host, path, upload: _ }, .. } = clients;
    let began = Instant::now();
    let stream = connect(from, target.addr).await?;
    let local = stream.local_addr()?;
    let handshake = client_async(format!("ws://{host}{path}"), stream);
    let (mut socket, _) = timeout(MESSAGE_LIMIT, handshake).await.context("no answer to the handshake")??;
    while began.elapsed() < SOCKET_LIFE && !shared.stop.load(Ordering::Relaxed) {
        let sent = Message::text(format!("{:?}", began.elapsed()));
        socket.send(sent.clone()).await.context("cannot send a message")?;
        let received = timeout(MESSAGE_LIMIT, socket.next()).await;
        // The port tells the connection in a dump of packets or sockets.
        let received = received.with_context(|| format!("a message of {local} did not come back"))?;
        let received = received.context("the WebSocket was cut")?.context("the WebSocket broke")?;
        anyhow::ensure!(received == sent, "`{sent}` came back as `{received}`");
        report.answered += 1;
        shared.answered.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(MESSAGE_PAUSE.max(clients.pause)).await;
    }
    socket.close(None).await.context("cannot close the WebSocket")?;
    while let Some(frame) = timeout(MESSAGE_LIMIT, socket.next()).await.context("the close is not answered")? {
        frame.context("the close broke")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, thread};

    use super::*;
    use crate::echo::{self, Security};

    #[test]
    fn requests_and_messages_are_counted_and_resets_are_failures() {
        let listener = echo::bind((Ipv4Addr::LOCALHOST, 0).into(), Security::Plain).expect("a port");
        let addr = listener.0.local_addr().expect("an address");
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let pod = thread::spawn(move || {
            echo::serve("pod", vec![listener], async {
                stopped.await.ok();
            })
        });
        let load = |connections| {
            Load::start(&Namespace::current(), addr, Ask::get("a.test", "/"), 2, connections).expect("load starts")
        };
        let kept = load(Connections::Kept);
        kept.pass(10).expect("requests are answered");
        let report = kept.stop().expect("load ends");
        assert!(report.answered >= 10 && report.failed == 0, "{report:?}");
        let sockets = load(Connections::WebSockets);
        sockets.pass(10).expect("messages come back");
        drop(stop);
        pod.join().expect("no panic").expect("the pod ends");
        until("the cut is noticed", || (sockets.failed() >= 2).then_some(())).expect("it is");
        let report = sockets.stop().expect("load ends");
        assert!(report.answered >= 10 && report.failed >= 2, "{report:?}");
    }
}
