//! Load at a fixed rate, independent of the peer: measures the time of requests that are sent when they are due.
//!
//! All connections send at the same time, like a page and its parts, and again after each period. If a request cannot
//! be sent when it is due, because the previous one has no response yet, the delay counts as part of its time.
//! Otherwise a peer that stalls would get fewer requests, and so look good (coordinated omission).

use std::{net::SocketAddr, thread, time::Duration};

use anyhow::{Context as _, ensure};
use nix::sys::{
    time::TimeSpec,
    timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
};
use tokio::{
    net::TcpStream,
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout},
};

use super::{
    exchange::exchange,
    goal::{Figure, Goal, Limit},
    load::Sample,
    report::Times,
};

/// Rate of the requests, and changes during the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pace {
    /// Requests per second.
    pub(super) rate: u32,
    /// Whether routes change during the load.
    pub(super) amid_changes: bool,
}

/// Number of connections, and so of requests that are due at the same time.
const BURST: u32 = 40;
/// The rate that has goals.
pub(super) const GOAL_RATE: u32 = 4000;
/// The highest rate.
const RATE_MAX: u32 = 20_000;
/// Upper limit of the rate, as a fraction of the slowest peer's capacity.
const CAPACITY_PART: f64 = 0.7;

/// Longest wait for a response.
const PATIENCE: Duration = Duration::from_secs(10);
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: bench.test\r\n\r\n";

/// Position in the schedule.
#[derive(Clone, Copy, Debug)]
struct Tick {
    begun: Instant,
    /// Number of bursts that are due; the first is due one period after the beginning.
    number: u32,
}

/// A client that keeps a connection, and opens another if it was closed between two requests.
struct Client {
    address: SocketAddr,
    /// Dropped after a response that failed or took too long, because the rest of it would be taken for the next
    /// response.
    stream: Option<TcpStream>,
    answer: Vec<u8>,
}

// === impl Pace ===

impl Pace {
    /// Returns the goals relative to nginx.
    pub(super) fn goals(self, workers: u32) -> Vec<Goal> {
        if workers != 1 || self != (Self { rate: GOAL_RATE, amid_changes: false }) {
            return Vec::new();
        }
        let time = |of, most| Goal { of, limit: Limit::AtMost(most) };
        vec![Goal::cpu(0.7), time(Figure::P50, 0.8), time(Figure::P99, 0.95)]
    }

    /// Returns the higher of the two rates: one that peers with these capacities, in requests per second, can all
    /// sustain.
    pub(super) fn high_rate(capacities: impl IntoIterator<Item = f64>) -> u32 {
        let slowest = capacities.into_iter().fold(f64::INFINITY, f64::min);
        (slowest * CAPACITY_PART).clamp(f64::from(BURST), f64::from(RATE_MAX)) as u32
    }

    fn period(self) -> Duration {
        Duration::from_secs(1) * BURST / self.rate
    }

    /// Sends requests to `address` for `length`, and a little longer if requests are late.
    ///
    /// # Errors
    /// Fails if a connection cannot be opened at the beginning, or the timer fails.
    pub(super) async fn run(self, address: SocketAddr, length: Duration) -> anyhow::Result<(Sample, Times)> {
        let period = self.period();
        let count = u32::try_from(length.as_nanos() / period.as_nanos()).context("too many bursts")?;
        ensure!(count > 0, "{length:?} is too short for {} requests per second", self.rate);
        let mut clients = Vec::new();
        for _ in 0..BURST {
            let opened = timeout(PATIENCE, Client::open(address)).await.context("no answer in time").flatten();
            clients.push(opened.with_context(|| format!("cannot begin to ask {address}"))?);
        }
        let (sender, ticks) = watch::channel(Tick { begun: Instant::now(), number: 0 });
        let mut asking = JoinSet::new();
        for client in clients {
            asking.spawn(client.keep_to(ticks.clone(), period, count));
        }
        let timer = thread::Builder::new().name("pace".into()).spawn(move || tick(period, count, &sender))?;
        let (mut times, mut errors) = (Vec::new(), 0);
        while let Some(done) = asking.join_next().await {
            let Done { times: own, error } = done?;
            times.extend(own);
            if let Some(error) = error {
                eprintln!("a request to {address} at a fixed rate failed: {error:#}");
                errors += 1;
            }
        }
        timer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        ensure!(!times.is_empty(), "nothing was answered at {} requests per second", self.rate);
        let seconds = ticks.borrow().begun.elapsed().as_secs_f64();
        Ok((Sample { requests: times.len() as u64, errors, seconds }, Times::of(times)))
    }
}

/// Announces each burst when it is due. tokio's timer has a resolution of milliseconds, and a sleeping thread has 50 µs
/// of slack.
fn tick(period: Duration, count: u32, ticks: &watch::Sender<Tick>) -> anyhow::Result<()> {
    let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC).context("no timer")?;
    let begun = Instant::now();
    let every = Expiration::Interval(TimeSpec::from_duration(period));
    timer.set(every, TimerSetTimeFlags::empty()).context("cannot set a timer")?;
    for number in 1..=count {
        // Expirations that this thread has overslept end the wait at once, and the timer then reports them once more.
        while begun.elapsed() < period * number {
            timer.wait().context("cannot wait for a timer")?;
        }
        if ticks.send(Tick { begun, number }).is_err() {
            break;
        }
    }
    Ok(())
}

struct Done {
    times: Vec<Duration>,
    /// Error after which the client sent no more requests.
    error: Option<anyhow::Error>,
}

// === impl Client ===

impl Client {
    /// Opens a connection, and sends one request, so that the measurement does not include a cold start.
    async fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let mut client = Self { address, stream: None, answer: Vec::with_capacity(4096) };
        client.ask().await?;
        Ok(client)
    }

    /// Sends a request in each of `count` bursts.
    async fn keep_to(mut self, mut ticks: watch::Receiver<Tick>, period: Duration, count: u32) -> Done {
        let mut times = Vec::with_capacity(count as usize);
        for number in 1..=count {
            let Ok(begun) = ticks.wait_for(|tick| tick.number >= number).await.map(|tick| tick.begun) else { break };
            match timeout(PATIENCE, self.ask()).await.context("no answer in time").flatten() {
                Ok(()) => times.push((begun + period * number).elapsed()),
                Err(error) => return Done { times, error: Some(error) },
            }
        }
        Done { times, error: None }
    }

    async fn ask(&mut self) -> anyhow::Result<()> {
        let mut asked = None;
        if let Some(stream) = self.stream.take() {
            // A server may close an idle connection, as nginx does when it reloads. Clients then send the request
            // again, and wait.
            asked = Some(self.ask_over(stream).await).filter(|asked| asked.is_ok() || !self.answer.is_empty());
        }
        let status = match asked {
            Some(asked) => asked?,
            None => {
                let stream = TcpStream::connect(self.address).await.context("cannot connect")?;
                stream.set_nodelay(true).context("cannot set TCP_NODELAY")?;
                self.ask_over(stream).await?
            }
        };
        ensure!(status == 200, "answered {status}");
        Ok(())
    }

    async fn ask_over(&mut self, mut stream: TcpStream) -> anyhow::Result<u16> {
        let status = exchange(&mut stream, REQUEST, &mut self.answer).await?;
        self.stream = Some(stream);
        Ok(status)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;
    use ingress_lab::client::block_on;

    #[test]
    fn the_high_rate_is_what_the_slowest_can_hold() {
        assert_eq!(Pace::high_rate([50_000.0, 12_000.0, 30_000.0]), 8400);
        assert_eq!(Pace::high_rate([50_000.0, 40_000.0]), RATE_MAX);
        let quiet = Pace { rate: GOAL_RATE, amid_changes: false };
        assert_eq!(quiet.period(), Duration::from_millis(10));
        assert_eq!(quiet.goals(1).len(), 3);
        assert!(quiet.goals(2).is_empty());
        assert!(Pace { amid_changes: true, ..quiet }.goals(1).is_empty());
        assert!(Pace { rate: RATE_MAX, ..quiet }.goals(1).is_empty());
    }

    /// The second response of each connection, which is the first on schedule, arrives when all others are due.
    #[test]
    fn requests_behind_a_stall_are_late_by_it() {
        const STALL: Duration = Duration::from_millis(100);
        let (sample, times) = block_on(async {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
            let address = listener.local_addr()?;
            let accepting = tokio::spawn(async move {
                let mut peers = JoinSet::new();
                while let Ok((mut stream, _)) = listener.accept().await {
                    peers.spawn(async move {
                        let mut request = [0; REQUEST.len()];
                        for number in 0_u32.. {
                            stream.read_exact(&mut request).await?;
                            if number == 1 {
                                tokio::time::sleep(STALL).await;
                            }
                            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await?;
                        }
                        anyhow::Ok(())
                    });
                }
            });
            let pace = Pace { rate: GOAL_RATE, amid_changes: false };
            let measured = pace.run(address, Duration::from_millis(50)).await;
            accepting.abort();
            measured
        })
        .expect("measured");
        assert_eq!((sample.requests, sample.errors), (5 * u64::from(BURST), 0));
        // Five bursts are due from the first, which stalls, to 40 ms later: a fifth of all requests waits 100 ms, 90,
        // 80 …
        let Times { p50, p99: _, p999 } = times;
        assert!(p50 >= STALL - Duration::from_millis(20), "{times:?}");
        assert!(p999 >= STALL, "{times:?}");
        assert!(sample.seconds >= 0.05);
    }
}
