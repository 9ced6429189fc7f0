//! Starts the workers and ends them, by draining or stopping.

pub(crate) mod clock;
pub(crate) mod eviction;
pub(crate) mod flow_table;
pub(crate) mod listen;
pub(crate) mod listen_quic;
pub(crate) mod liveness;
pub(crate) mod load;
pub(crate) mod memory;
pub(crate) mod options;
pub(crate) mod port_changes;
pub(crate) mod ports;
pub(crate) mod run;
pub(crate) mod seccomp;
pub(crate) mod shared;
pub(crate) mod signal;
pub(crate) mod worker;

use std::{
    convert::Infallible,
    io,
    sync::{Arc, atomic::Ordering::Relaxed, mpsc::sync_channel},
    thread,
    time::{Duration, Instant},
};

use tokio::{
    net::TcpListener,
    runtime::{self, LocalOptions, LocalRuntime},
    sync::{mpsc, oneshot, watch},
};

use crate::{
    downstream::h3_server::{FORWARDED_MAX, QuicPart},
    observe::traces,
    server::{
        listen::{Entrance, WorkerListeners},
        options::Options,
        seccomp::WorkerFilter,
        shared::Shared,
        signal::Signal,
        worker::Worker,
    },
    upstream::health_check,
};

/// All workers of a process. Dropping it stops them without waiting.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    signal: watch::Sender<Signal>,
    /// Workers that have not ended.
    workers: Vec<RunningWorker>,
    /// Thread that exports trace spans. It ends when the sender is dropped.
    exporter: Option<(oneshot::Sender<Infallible>, thread::JoinHandle<()>)>,
    /// Thread of the health checks.
    checks: Option<thread::JoinHandle<()>>,
    /// Connections cut off by workers that have ended.
    cut: usize,
    /// Ports of HTTP and HTTPS.
    http_ports: [u16; 2],
}

#[derive(Debug)]
struct RunningWorker {
    thread: thread::JoinHandle<()>,
    /// Receives the number of connections that the worker cut off.
    done: oneshot::Receiver<usize>,
    /// Changes of the bound ports that the worker serves.
    changes: port_changes::Changes,
}

/// Result of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that were still open at the deadline and were cut off.
    pub cut: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot set up worker {number}")]
    Runtime { number: usize, source: io::Error },
    #[error("cannot start the thread that sends traces")]
    Exporter { source: io::Error },
    #[error("cannot start the thread of health checks")]
    Checks { source: io::Error },
    #[error("cannot make a filter of system calls; `--worker-seccomp off` starts without")]
    Seccomp { source: seccompiler::BackendError },
    #[error(
        "cannot filter the system calls of workers, as `--worker-seccomp` asks for; without the option they run \
         unfiltered where there is no filter"
    )]
    Unfiltered { source: io::Error },
    #[error("cannot start the thread of worker {number}")]
    Thread { number: usize, source: io::Error },
}

impl Server {
    /// Starts one worker for each of `listeners`. Connections are served from now on.
    ///
    /// # Errors
    /// Fails if a runtime or a thread cannot be created; workers that run already are stopped.
    pub fn start(shared: Arc<Shared>, listeners: Vec<WorkerListeners>, options: &Options) -> Result<Self, StartError> {
        let signal = watch::Sender::new(Signal::Serve);
        let http_ports = [options.http_port, options.https_port];
        let mut server = Self {
            shared,
            signal,
            http_ports,
            workers: Vec::with_capacity(listeners.len()),
            checks: None,
            exporter: None,
            cut: 0,
        };
        let filter = WorkerFilter::new(options.seccomp).map_err(|source| StartError::Seccomp { source })?;
        if let Some(filter) = filter.as_ref().filter(|_| options.needs_seccomp) {
            filter.try_out().map_err(|source| StartError::Unfiltered { source })?;
        }
        let (siblings, forwarded): (Vec<_>, Vec<_>) = listeners.iter().map(|_| mpsc::channel(FORWARDED_MAX)).unzip();
        for ((number, mut listeners), forwarded) in listeners.into_iter().enumerate().zip(forwarded) {
            let siblings = siblings.clone();
            let quic = listeners.quic.take().map(|listener| QuicPart { listener, siblings, forwarded });
            let running = server.start_worker(number, listeners, quic, options.clone(), filter.clone())?;
            server.workers.push(running);
        }
        let (going_on, stop) = oneshot::channel();
        let exporter = traces::export::start(Arc::clone(&server.shared.spans), stop);
        let exporter = exporter.map_err(|source| StartError::Exporter { source })?;
        server.exporter = exporter.map(|thread| (going_on, thread));
        let checks = health_check::start(Arc::clone(&server.shared), server.signal.subscribe(), filter);
        server.checks = Some(checks.map_err(|source| StartError::Checks { source })?);
        Ok(server)
    }

    /// Returns the ports of HTTP and HTTPS, which are open all the time.
    pub(crate) fn http_ports(&self) -> [u16; 2] {
        self.http_ports
    }

    fn start_worker(
        &self,
        number: usize,
        listeners: WorkerListeners,
        quic: Option<QuicPart>,
        options: Options,
        filter: Option<WorkerFilter>,
    ) -> Result<RunningWorker, StartError> {
        let (report, done) = oneshot::channel();
        let (changes, changed) = port_changes::changes();
        let (shared, signal) = (Arc::clone(&self.shared), self.signal.subscribe());
        // The runtime stays on the thread that creates it. The channel reports whether that succeeded.
        let (ready, is_ready) = sync_channel(1);
        let thread = thread::Builder::new()
            .name(format!("worker-{number}"))
            .spawn(move || {
                WorkerFilter::bind(filter.as_ref());
                let (runtime, listeners) = match runtime_with(listeners) {
                    Ok(made) => made,
                    Err(error) => return drop(ready.send(Err(error))),
                };
                drop(ready.send(Ok(())));
                let worker = Worker::new(shared, number, options);
                let cut = run::run(runtime, &worker, listeners, quic, changed, signal);
                if report.send(cut).is_err() {
                    tracing::debug!("the server was dropped without waiting for its workers");
                }
            })
            .map_err(|source| StartError::Thread { number, source })?;
        // A channel closed without a message means that the thread panicked.
        let made = is_ready.recv().unwrap_or_else(|silence| Err(io::Error::other(silence)));
        made.map_err(|source| StartError::Runtime { number, source })?;
        Ok(RunningWorker { thread, done, changes })
    }

    /// Returns the number of open client connections, including those in a handshake.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.stats.connections.load(Relaxed)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Sends each worker one of `changes`.
    pub(crate) async fn change<S: ports::Bound>(&self, changes: impl IntoIterator<Item = port_changes::PortChange<S>>) {
        for (running, change) in self.workers.iter().zip(changes) {
            if S::changes(&running.changes).send(change).await.is_err() {
                tracing::debug!("a stopped worker gets no port changes");
            }
        }
    }

    /// Stops accepting, lets connections finish and ends the workers, after `timeout` at the latest.
    ///
    /// With [`crate::ListenMode::Slots`], first give the slots to a successor: connections that wait in a listener's
    /// backlog are still served, later ones would be refused. Responses carry `Connection: close`, HTTP/2 connections
    /// get GOAWAY, idle HTTP/1 connections are closed after [`Options::drain_idle`].
    ///
    /// Dropping the future leaves the workers draining: [`Server::stop`] then ends them, and every request is counted.
    pub async fn drain(&mut self, timeout: Duration) -> Drained {
        self.end(Signal::Drain { deadline: Instant::now() + timeout }).await
    }

    /// Ends the workers at once, cutting connections off. Requests in flight have been counted as aborted by the time
    /// it returns.
    pub async fn stop(mut self) -> Drained {
        self.end(Signal::Stop).await
    }

    async fn end(&mut self, signal: Signal) -> Drained {
        self.signal.send_replace(signal);
        while let Some(RunningWorker { thread: _, done, changes: _ }) = self.workers.last_mut() {
            self.cut += done.await.unwrap_or(0);
            // The report is the last action of the thread.
            if self.workers.pop().is_some_and(|worker| worker.thread.join().is_err()) {
                tracing::error!("a worker panicked");
            }
        }
        if self.checks.take().is_some_and(|checks| checks.join().is_err()) {
            tracing::error!("the thread of health checks panicked");
        }
        if let Some((going_on, thread)) = self.exporter.take() {
            drop(going_on);
            if thread.join().is_err() {
                tracing::error!("the thread that sends traces panicked");
            }
        }
        Drained { cut: self.cut }
    }
}

fn runtime_with(listeners: WorkerListeners) -> io::Result<(LocalRuntime, Vec<(Entrance, TcpListener)>)> {
    let WorkerListeners { http, https, streams, quic: _apart } = listeners;
    let all = [(Entrance::Http, http), (Entrance::Https, https)].into_iter();
    let all = all.chain(streams.map(|streams| (Entrance::Streams, streams)));
    let runtime = runtime::Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    let listeners = {
        let _entered = runtime.enter();
        let listener = |(entrance, listener): (Entrance, std::net::TcpListener)| {
            listener.set_nonblocking(true)?;
            Ok((entrance, TcpListener::from_std(listener)?))
        };
        all.map(listener).collect::<io::Result<Vec<_>>>()?
    };
    Ok((runtime, listeners))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Read as _, Write as _},
        net,
        os::fd::OwnedFd,
    };

    use ingress_common::HostL7Cell;

    use super::*;

    #[test]
    fn a_panic_closes_only_its_connection() {
        const TEST: &str = "server::tests::a_panic_closes_only_its_connection";
        if ingress_panics::testing::role().is_some() {
            return one_connection_of_two_panics();
        }
        assert!(ingress_panics::testing::in_own_process(TEST, "server").success());
    }

    fn one_connection_of_two_panics() {
        ingress_panics::testing::install_for_test();
        let bound = || net::TcpListener::bind(("127.0.0.1", 0)).expect("bound");
        let listeners = WorkerListeners { http: bound(), https: bound(), streams: None, quic: None };
        let address = listeners.http.local_addr().expect("an address");
        let cells = Box::leak(Box::new([HostL7Cell::default()]));
        let shared = Arc::new(Shared::new(cells, None).expect("shared state"));
        let server = Server::start(shared, vec![listeners], &Options::default()).expect("started");
        let connect = || {
            let stream = net::TcpStream::connect(address).expect("connected");
            stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
            stream
        };
        let ask = |mut stream: &net::TcpStream| {
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").expect("sent");
            let mut answer = [0; 1024];
            let length = stream.read(&mut answer).expect("an answer");
            // Any response will do, because there are no rules.
            let answer = String::from_utf8_lossy(&answer[..length]);
            assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
        };
        let (good, mut bad) = (connect(), connect());
        ask(&good);
        ask(&bad);
        bad.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\nX-Provoke-Panic: 1\r\n\r\n").expect("sent");
        // The connection is closed or reset, without a byte before.
        assert!(matches!(bad.read(&mut [0]), Ok(0) | Err(_)));
        assert_eq!(ingress_panics::count(), 1);
        let another = connect();
        ask(&good);
        ask(&another);
        assert_eq!(server.shared().stats().connections, 2, "the lost one is not counted any more");
    }

    #[test]
    fn a_worker_that_cannot_be_set_up_fails_the_start() {
        let bound = || net::TcpListener::bind(("127.0.0.1", 0)).expect("bound");
        // A runtime cannot wait for this file (epoll_ctl(2), EPERM).
        let file = net::TcpListener::from(OwnedFd::from(File::open("/dev/null").expect("opened")));
        let good = WorkerListeners { http: bound(), https: bound(), streams: None, quic: None };
        let bad = WorkerListeners { http: bound(), https: file, streams: None, quic: None };
        let cells = Box::leak(Box::new([HostL7Cell::default()]));
        let shared = Arc::new(Shared::new(cells, None).expect("shared state"));
        let error = Server::start(shared, vec![good, bad], &Options::default()).expect_err("a file accepts nobody");
        assert!(matches!(error, StartError::Runtime { number: 1, .. }), "{error}");
    }
}
