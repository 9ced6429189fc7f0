//! The time until every new connection sees a change, and failures in the meantime.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::ensure;

use crate::{
    hosts::{Change, Serving},
    usage,
};
use ingress_lab::{
    Namespace,
    client::{Ask, Protocol},
    idle,
    load::{Clients, Connections, Load, Target},
};

/// Number of consecutive new connections that must see the change before it counts as served. If an old process still
/// accepts, one of them would see the old state.
const STREAK: u32 = 20;
/// Pause between two new connections.
const PAUSE: Duration = Duration::from_micros(100);
/// Longest wait for a change.
const PATIENCE: Duration = Duration::from_secs(120);
/// Interval between reads of the memory.
const LOOK: Duration = Duration::from_millis(20);
/// Minimum time for an old process to end and release its memory.
const SETTLE: Duration = Duration::from_millis(300);

/// Result of one change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Served {
    pub(super) millis: f64,
    /// Connections that saw neither the state before the change nor the one after it.
    pub(super) failed: u64,
    /// Milliseconds within the process, as the product says; `None` for other peers.
    pub(super) within: Option<f64>,
}

/// Makes a change and waits until it is served. The time runs from before the change is sent to the end of the first
/// response that shows it.
pub(super) fn change(peer: &mut Serving<'_>, change: Change, number: usize) -> anyhow::Result<Served> {
    let (telling, expected) = peer.prepare(change, number)?;
    let began = Instant::now();
    peer.tell(telling)?;
    let served = until_served(began, || peer.look(&expected))?;
    Ok(Served { within: peer.within()?, ..served })
}

fn until_served(began: Instant, mut look: impl FnMut() -> Option<bool>) -> anyhow::Result<Served> {
    let (mut first, mut streak, mut failed) = (None, 0, 0);
    loop {
        match look() {
            Some(true) => {
                let since = *first.get_or_insert_with(|| began.elapsed());
                streak += 1;
                if streak == STREAK {
                    return Ok(Served { millis: since.as_secs_f64() * 1e3, failed, within: None });
                }
            }
            Some(false) => (first, streak) = (None, 0),
            None => {
                (first, streak) = (None, 0);
                failed += 1;
            }
        }
        ensure!(began.elapsed() < PATIENCE, "a change is not served after {} s", PATIENCE.as_secs());
        thread::sleep(PAUSE);
    }
}

/// Returns the peak memory of a peer while these changes are made, and for a while after each.
pub(super) fn peak(peer: &mut Serving<'_>, changes: &[(Change, usize)]) -> anyhow::Result<u64> {
    let (pid, is_over) = (peer.pid(), AtomicBool::new(false));
    thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut most = 0;
            while !is_over.load(Ordering::Relaxed) {
                most = usage::memory(pid)?.max(most);
                thread::sleep(LOOK);
            }
            anyhow::Ok(most)
        });
        let made = changes.iter().try_for_each(|(kind, number)| {
            let began = Instant::now();
            change(peer, *kind, *number)?;
            thread::sleep(began.elapsed().max(SETTLE));
            anyhow::Ok(())
        });
        is_over.store(true, Ordering::Relaxed);
        let most = looking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        made.and(most)
    })
}

/// Background clients that must not fail: one that keeps its connection, and one with a new connection for each
/// request, plain, and one over TLS.
pub(super) struct Background(Vec<Load>);

impl Background {
    pub(super) fn start(server: &idle::Server) -> anyhow::Result<Self> {
        let idle::Server { http, https, host, trust } = server;
        let start = |(addr, protocol, connections, pause): (SocketAddr, Protocol, Connections, u64)| {
            Load::of(
                &Namespace::current(),
                Clients {
                    target: Target { addr, protocol, trust: trust.clone() },
                    ask: Ask::get(host, "/"),
                    count: 1,
                    from: Vec::new(),
                    connections,
                    pause: Duration::from_millis(pause),
                },
            )
        };
        let loads = [
            (*http, Protocol::Http1, Connections::Kept, 5),
            (*http, Protocol::Http1, Connections::New, 5),
            (*https, Protocol::Https1, Connections::New, 20),
        ];
        Ok(Self(loads.into_iter().map(start).collect::<anyhow::Result<_>>()?))
    }

    /// Ends the clients; returns the number of failed requests.
    pub(super) fn stop(self) -> anyhow::Result<u64> {
        let mut failed = 0;
        for load in self.0 {
            let report = load.stop()?;
            failed += report.failed;
            report.reasons.iter().for_each(|reason| eprintln!("a request failed: {reason}"));
        }
        Ok(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_served_after_a_streak_of_new_responses() {
        let began = Instant::now();
        let mut looks = 0;
        let served = until_served(began, || {
            looks += 1;
            match looks {
                1..=3 | 6 => Some(false),
                5 => None,
                _ => Some(true),
            }
        });
        let Served { millis, failed, within: _ } = served.expect("served");
        assert_eq!((looks, failed), (6 + STREAK, 1));
        assert!(millis < began.elapsed().as_secs_f64() * 1e3);
    }
}
