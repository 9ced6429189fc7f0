//! The life of a worker's thread: accepts connections, ticks, takes up changes of ports, and drains at the end.

use std::{
    collections::BTreeMap,
    rc::Rc,
    time::{Duration, Instant},
};

use tokio::{
    net::TcpListener,
    runtime::LocalRuntime,
    sync::{mpsc, watch},
    task::{AbortHandle, JoinSet},
    time::MissedTickBehavior,
};

use ingress_model::Settings;
use ingress_panics::vital;

use crate::{
    downstream::{
        accept,
        conn::{Conn, Order},
        h3_server::{Http3, QuicPart},
    },
    l4::udp,
    server::{
        listen::Entrance,
        options::Options,
        port_changes::{Changed, PortChange},
        signal::Signal,
        worker::Worker,
    },
};

/// Time for the packets that tell clients of HTTP/3 of the end, after the deadline of a drain.
const CLOSING_MAX: Duration = Duration::from_millis(100);

/// Runs a worker until it is stopped or drained. Returns the number of connections cut off.
pub(crate) fn run(
    runtime: LocalRuntime,
    worker: &Rc<Worker>,
    listeners: Vec<(Entrance, TcpListener)>,
    quic: Option<QuicPart>,
    changed: Changed,
    signal: watch::Receiver<Signal>,
) -> usize {
    let Changed { tcp, udp } = changed;
    runtime.block_on(async {
        let datagrams = udp::run(Rc::clone(worker), udp, signal.clone());
        tokio::select! {
            _ended = async { tokio::join!(serve(Rc::clone(worker), listeners, quic, tcp, signal), datagrams) } => {}
            never = worker.lines.hand_over_in_time() => match never {},
            never = worker.evict_in_time() => match never {},
        }
    });
    let cut = worker.cut.get() + worker.connections.borrow().len();
    // Dropping the runtime drops the tasks of the remaining connections with everything they hold. It waits for
    // password hashes in progress, and the sign of life must not be expected meanwhile.
    worker.liveness.end();
    worker.lines.hand_over();
    drop(runtime);
    worker.lines.hand_over();
    cut
}

async fn serve(
    worker: Rc<Worker>,
    listeners: Vec<(Entrance, TcpListener)>,
    quic: Option<QuicPart>,
    mut changes: mpsc::Receiver<PortChange<std::net::TcpListener>>,
    mut signal: watch::Receiver<Signal>,
) {
    let mut http3 = quic.and_then(|quic| Http3::start(&worker, quic));
    let mut accepting = JoinSet::new();
    // Bound ports of TCP services, each with the task that accepts its connections.
    let mut open: BTreeMap<u16, AbortHandle> = BTreeMap::new();
    for (entrance, listener) in listeners {
        let run = accept::run(Rc::clone(&worker), listener, entrance, signal.clone());
        accepting.spawn_local(vital(run));
    }
    let deadline = loop {
        tokio::select! {
            () = tokio::time::sleep(period(&worker.settings(), &worker.options)) => tick(&worker, http3.as_mut()),
            Some(change) = changes.recv() => match change {
                PortChange::Open { port, socket, held } => match TcpListener::from_std(socket) {
                    Ok(listener) => {
                        let run = accept::run(Rc::clone(&worker), listener, Entrance::Streams, signal.clone());
                        let task = accepting.spawn_local(vital(async move {
                            run.await;
                            drop(held);
                        }));
                        open.insert(port, task);
                    }
                    // Lack of memory or descriptors. Another worker's listener serves, or the port is opened again.
                    Err(error) => tracing::error!(port, %error, "a worker cannot serve a TCP port"),
                },
                // Connections in its backlog have no target any more.
                PortChange::Close { port } => {
                    if let Some(task) = open.remove(&port) {
                        task.abort();
                    }
                }
            },
            // A listener of a closed port has ended.
            Some(_ended) = accepting.join_next() => {}
            // A closed channel means that the server was dropped without an order: stop.
            changed = signal.changed() => match changed.map_or(Signal::Stop, |()| *signal.borrow_and_update()) {
                Signal::Serve => {}
                Signal::Drain { deadline } => break deadline,
                Signal::Stop => return,
            },
        }
    };
    worker.draining.set(true);
    while accepting.join_next().await.is_some() {}
    if let Some(http3) = &http3 {
        worker.http3.leave(&worker.shared);
        http3.drain(deadline.saturating_duration_since(Instant::now()) + CLOSING_MAX);
    }
    drain(&worker, deadline, http3.as_mut(), signal.clone()).await;
    if let Some(http3) = http3 {
        close(&worker, deadline, http3, signal).await;
    }
}

fn tick(worker: &Worker, http3: Option<&mut Http3>) {
    worker.tick();
    if let Some(http3) = http3 {
        http3.tick(worker);
    }
}

/// Waits until the last connections of HTTP/3 are closed, with the packets that answer their clients. At the deadline
/// the others are cut off, of which their clients are told.
async fn close(worker: &Worker, deadline: Instant, mut http3: Http3, mut signal: watch::Receiver<Signal>) {
    tokio::select! {
        () = http3.ended() => return,
        () = tokio::time::sleep_until(deadline.into()) => {}
        _ = signal.wait_for(|signal| *signal == Signal::Stop) => {}
    }
    worker.cut.set(worker.connections.borrow().values().filter(|conn| conn.is_http3()).count());
    http3.drain(Duration::ZERO);
    let _some_are_closing = tokio::time::timeout(CLOSING_MAX, http3.ended()).await;
}

/// Waits for the connections to end, until the deadline at the latest. HTTP/2 connections are notified at once, by
/// GOAWAY; HTTP/1 connections by the next answer; connections without requests are ended some time later. Streams,
/// bodies and WebSockets continue to their end or the deadline.
async fn drain(worker: &Worker, deadline: Instant, mut http3: Option<&mut Http3>, mut signal: watch::Receiver<Signal>) {
    let idle_until = (Instant::now() + worker.options.drain_idle).min(deadline);
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // A client that has made no request may not know that its connection is open: a GOAWAY now would cost it the
    // request it is about to send.
    worker.order_all(Order::Finish, Conn::is_begun_http2);
    while !worker.is_empty() {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = signal.wait_for(|signal| *signal == Signal::Stop) => return,
        }
        tick(worker, http3.as_deref_mut());
        if worker.now() >= deadline {
            return;
        }
        if worker.now() >= idle_until {
            worker.order_all(Order::Finish, |conn| conn.is_http2() || conn.progress.is_idle());
        }
    }
}

/// Returns the interval of a worker's ticks: a quarter of the shortest time-out, so that none is overrun by more than
/// that, within 10 ms and one second.
fn period(settings: &Settings, options: &Options) -> Duration {
    let Settings { head_timeout, idle_timeout, stall_timeout, upstream_idle_timeout, .. } = settings;
    let shortest = [idle_timeout, stall_timeout, upstream_idle_timeout, &options.drain_idle];
    let shortest = shortest.into_iter().fold(*head_timeout, |shortest, other| shortest.min(*other));
    (shortest / 4).clamp(Duration::from_millis(10), Duration::from_secs(1))
}
