//! Connections that clients keep open, sent by chosen CPUs, with requests on all of them at once. They show how a
//! node's workers share connections. The number that each worker holds comes from [`super::maps::Maps::held`].

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    runtime::Runtime,
    time::timeout,
};

use super::{Namespace, idle};

/// Longest wait for a connection, and for all answers to simultaneous requests.
const LIMIT: Duration = Duration::from_secs(20);

/// CPUs that clients send from. On links within one machine the node receives on the same CPU, so XDP runs there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Senders {
    OneCpu,
    /// All CPUs in turn.
    EveryCpu,
}

/// Connections of one client. Dropping the value closes them.
#[derive(Debug)]
pub struct Kept {
    namespace: Namespace,
    turns: Vec<CpuSet>,
    streams: Vec<TcpStream>,
    runtime: Runtime,
}

/// Returns the largest number of `total` connections that one of `workers` may hold if XDP chooses (ADR 0027): a
/// quarter above the mean, plus the connection that reached that bound, plus two that fell between two counts.
#[must_use]
pub const fn most_held(total: u64, workers: u64) -> u64 {
    total * 125 / 100 / workers + 3
}

// === impl Senders ===

impl Senders {
    pub const ALL: [Self; 2] = [Self::OneCpu, Self::EveryCpu];

    /// Returns one-CPU sets, for CPUs that this process may use.
    fn turns(self) -> anyhow::Result<Vec<CpuSet>> {
        // The mask of the process: the calling thread may have been moved already.
        let may = sched_getaffinity(Pid::this()).context("cannot tell which CPUs may be used")?;
        let mut turns = Vec::new();
        for cpu in (0..CpuSet::count()).filter(|&cpu| may.is_set(cpu) == Ok(true)) {
            let mut one = CpuSet::new();
            one.set(cpu)?;
            turns.push(one);
        }
        if self == Self::OneCpu {
            turns.truncate(1);
        }
        ensure!(!turns.is_empty(), "no CPU may be used");
        Ok(turns)
    }
}

// === impl Kept ===

impl Kept {
    /// Opens `count` connections from `namespace`, one after the other.
    ///
    /// # Errors
    /// Fails if a connection cannot be opened.
    pub fn open(namespace: &Namespace, to: SocketAddr, senders: Senders, count: usize) -> anyhow::Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot make a runtime")?;
        let turns = senders.turns()?;
        let streams = namespace.run(|| {
            runtime.block_on(async {
                let mut streams = Vec::with_capacity(count);
                for turn in turns.iter().cycle().take(count) {
                    move_to(turn)?;
                    let stream = timeout(LIMIT, TcpStream::connect(to)).await??;
                    stream.set_nodelay(true)?;
                    streams.push(stream);
                }
                anyhow::Ok(streams)
            })
        });
        let streams = streams.with_context(|| format!("cannot open {count} connections to `{to}`"))?;
        Ok(Self { namespace: namespace.clone(), turns, streams, runtime })
    }

    /// Sends a request to a pod ([`super::echo`]) of `host` on all connections at once, in several rounds, each from
    /// the next CPU. Returns the time of each answer since the first request of its round.
    ///
    /// # Errors
    /// Fails if an answer is wrong or missing.
    pub fn ask_at_once(&mut self, host: &str, rounds: usize) -> anyhow::Result<Vec<Duration>> {
        let Self { namespace, turns, streams, runtime } = self;
        let request = format!("GET /status/200 HTTP/1.1\r\nHost: {host}\r\n\r\n");
        namespace.run(|| {
            runtime.block_on(async {
                let mut times = Vec::with_capacity(rounds * streams.len());
                for round in 0..rounds {
                    let began = Instant::now();
                    for (number, stream) in streams.iter_mut().enumerate() {
                        move_to(&turns[(number + round) % turns.len()])?;
                        stream.write_all(request.as_bytes()).await?;
                    }
                    // All answers are awaited concurrently, in any order.
                    let answers = streams.iter_mut().map(|stream| async move {
                        answered(stream).await?;
                        anyhow::Ok(began.elapsed())
                    });
                    times.extend(timeout(LIMIT, try_join_all(answers)).await??);
                }
                anyhow::Ok(times)
            })
        })
    }
}

/// Moves the calling thread to these CPUs.
fn move_to(cpu: &CpuSet) -> anyhow::Result<()> {
    sched_setaffinity(Pid::from_raw(0), cpu).context("cannot move a client to a CPU")
}

/// Reads an answer to its end.
async fn answered(stream: &mut TcpStream) -> anyhow::Result<()> {
    let mut answer = Vec::with_capacity(1024);
    while !idle::is_whole(&answer)? {
        ensure!(stream.read_buf(&mut answer).await? > 0, "no answer: {}", answer.escape_ascii());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{echo::Echo, free_port};

    #[test]
    fn each_turn_uses_one_cpu() {
        let cpus = |set: &CpuSet| (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu) == Ok(true)).count();
        let [one, every] = Senders::ALL.map(|senders| senders.turns().expect("a CPU"));
        assert_eq!(one.len(), 1);
        assert_eq!(one[0], every[0]);
        assert_eq!(every.len(), cpus(&sched_getaffinity(Pid::this()).expect("CPUs")));
        assert!(every.iter().all(|turn| cpus(turn) == 1));
    }

    #[test]
    fn each_request_of_each_connection_is_timed() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().expect("a port")));
        let here = Namespace::current();
        let pod = Echo::start(&here, "pod", &[address]).expect("a pod");
        for senders in Senders::ALL {
            let mut kept = Kept::open(&here, address, senders, 5).expect("connections");
            assert_eq!(kept.ask_at_once("a.test", 3).expect("answers").len(), 15, "{senders:?}");
        }
        let mut left = Kept::open(&here, address, Senders::EveryCpu, 2).expect("connections");
        drop(pod);
        assert!(left.ask_at_once("a.test", 1).is_err(), "nobody answers");
        assert!(Kept::open(&here, address, Senders::OneCpu, 1).is_err(), "nobody is there");
    }

    #[test]
    fn a_worker_may_hold_125_percent_of_its_share_plus_three() {
        for (total, workers, expect) in [(120, 2, 78), (20, 2, 15), (100, 4, 34)] {
            assert_eq!(most_held(total, workers), expect);
        }
    }
}
