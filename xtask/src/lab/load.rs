//! Steady load by a thread inside a namespace, for the time in which something happens to the proxy. Every request is
//! either answered as expected or a failure that is kept with its reason.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use super::{
    Namespace,
    client::{Ask, Connection, Protocol, Trust, block_on},
    until,
};

/// Failures kept with their text; the rest is only counted.
const KEPT: usize = 10;

/// How the requests are spread over connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    /// Each client keeps one connection for all its requests.
    Kept,
    /// A new connection for each request.
    New,
}

/// Running load. Dropping it stops it.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<anyhow::Result<Report>>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    answered: AtomicU64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub answered: u64,
    pub failed: u64,
    /// The first few failures.
    pub reasons: Vec<String>,
}

impl Load {
    /// Starts `clients` concurrent clients that ask `ask` of `addr` as fast as they are answered.
    ///
    /// # Errors
    /// If the thread cannot be started, or no request is answered at the beginning.
    pub fn start(
        namespace: &Namespace,
        addr: SocketAddr,
        ask: Ask,
        clients: usize,
        connections: Connections,
    ) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = namespace.thread("load", move || {
            block_on(async move {
                let mut tasks = tokio::task::JoinSet::new();
                for _ in 0..clients {
                    tasks.spawn(client(Arc::clone(&theirs), addr, ask.clone(), connections));
                }
                let mut total = Report::default();
                while let Some(report) = tasks.join_next().await {
                    total.add(report?);
                }
                Ok(total)
            })
        })?;
        let load = Self { shared, thread: Some(thread) };
        until("the load's first answers", || (load.answered() >= clients as u64).then_some(()))?;
        Ok(load)
    }

    /// Requests answered so far.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.shared.answered.load(Ordering::Relaxed)
    }

    /// Waits until this many more requests have been answered.
    ///
    /// # Errors
    /// If that takes longer than ten seconds.
    pub fn pass(&self, requests: u64) -> anyhow::Result<()> {
        let goal = self.answered() + requests;
        until("the load to go on", || (self.answered() >= goal).then_some(()))
    }

    /// Ends the load; requests under way are finished.
    ///
    /// # Errors
    /// If the load's thread failed.
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

async fn client(shared: Arc<Shared>, addr: SocketAddr, ask: Ask, connections: Connections) -> Report {
    let mut report = Report::default();
    let mut kept = None;
    while !shared.stop.load(Ordering::Relaxed) {
        match exchange(&mut kept, addr, &ask).await {
            Ok(()) => {
                report.answered += 1;
                shared.answered.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                report.failure(format!("{error:#}"));
                kept = None;
                // Refused connections fail at once; the other tasks of this thread get their turn.
                tokio::task::yield_now().await;
            }
        }
        if connections == Connections::New
            && let Some(connection) = kept.take()
            && let Err(error) = Connection::close(connection).await
        {
            report.failure(format!("{error:#}"));
        }
    }
    report
}

async fn exchange(kept: &mut Option<Connection>, addr: SocketAddr, ask: &Ask) -> anyhow::Result<()> {
    // A server that announced the end of a kept connection closes it between requests: the client opens another, as
    // every client does (RFC 9112, 9.6).
    if let Some(connection) = kept
        && !connection.is_usable().await
    {
        *kept = None;
    }
    let connection = match kept {
        Some(connection) => connection,
        None => kept.insert(Connection::open(addr, Protocol::Http1, &ask.host, &Trust::none()).await?),
    };
    let answer = connection.send(ask).await?;
    anyhow::ensure!(answer.status.is_success(), "answered {}", answer.status);
    Ok(())
}
