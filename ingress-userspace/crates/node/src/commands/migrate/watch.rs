//! Watches a share while the command runs: reads the responses of each host from the pinned maps, and decides whether to
//! go back. Pure except for [`watch`].

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    io::Write as _,
    time::Duration,
};

use anyhow::{Context as _, bail};
use ingress_datapath::{ClientShare, Error, Maps, NodeShare, Renewal};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, MissedTickBehavior, interval},
};

use super::{
    condition::AbortConditions,
    histogram::{NGINX, OWN, Series},
    latency::{LatencyWindow, Source},
};

/// Interval of readings and renewals.
const TICK: Duration = Duration::from_secs(1);
/// Readings that are compared: the responses of a minute.
const READINGS: usize = 60;
/// Readings of counters between two readings of metrics, which cost both processes more.
const LATENCIES: usize = 5;
/// Failed readings of metrics in a row that end a shift: one may meet a restart.
const FAILURES_MAX: usize = 2;
/// Readings between two lines of output.
const LINES: usize = 10;
/// Least number of responses to judge: one error of fewer says little.
const LEAST: u64 = 20;
/// Name shown for all hosts together.
const ALL_HOSTS: &str = "all hosts";

/// Where response times are read.
#[derive(Clone, Debug)]
pub(super) struct Sources {
    pub(super) own: Source,
    pub(super) other: Option<Source>,
}

/// Signals that end the command.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

/// Responses of a host so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Responses {
    all: u64,
    errors: u64,
}

/// Responses by host at one time.
type Reading = BTreeMap<String, Responses>;

/// The readings of the last minute.
#[derive(Debug, Default)]
struct Window(VecDeque<Reading>);

/// A host with too many errors.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Excess {
    host: String,
    responses: Responses,
}

/// Sets `share`, and goes back to none if a condition holds within `lasts`, if the counters or metrics cannot be read, or
/// if the command is interrupted or its terminal closed. Afterwards the serving process renews the share.
///
/// # Errors
/// Returns the reason why the share is none again, or why the watch ended.
pub(super) async fn watch(
    node: &NodeShare,
    share: ClientShare,
    conditions: AbortConditions,
    sources: &Sources,
    lasts: Duration,
) -> anyhow::Result<()> {
    let mut signals = Signals::listen().context("cannot wait for signals")?;
    let mut window = Window::default();
    window.add(read(node.maps()).context("cannot read the responses; the share is unchanged")?);
    let mut latencies = LatencyWindow::default();
    if conditions.latency.is_some() {
        tokio::select! {
            why = signals.recv() => bail!("{why}; the share is unchanged"),
            read = sources.read() => {
                let (own, other) = read.context("the share is unchanged")?;
                latencies.add(own, other);
            }
        }
        if conditions.compares() && !latencies.knows_other() {
            bail!(
                "the other controller has answered too few requests to compare `p99` with; the share is unchanged. Wait, \
                 or give a time as `p99>500ms`"
            );
        }
    }
    node.set(share, Renewal::Caller);
    let back = |why: String| {
        if !node.renew(share) {
            return anyhow::anyhow!("{why}; {}", set_by_another(node));
        }
        node.set(ClientShare::NONE, Renewal::Process);
        anyhow::anyhow!("{why}; the share is 0 % again")
    };
    let (mut ticks, end) = (interval(TICK), Instant::now() + lasts);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failures = 0;
    for number in 1_usize.. {
        tokio::select! {
            _ = ticks.tick() => {}
            why = signals.recv() => return Err(back(why.to_owned())),
        }
        let is_last = Instant::now() >= end;
        if !node.renew(share) {
            bail!(set_by_another(node));
        }
        match read(node.maps()) {
            Ok(reading) => window.add(reading),
            Err(error) => return Err(back(format!("cannot read the responses: {error}"))),
        }
        if let Some(excess) = conditions.errors.and_then(|errors| window.excess(errors)) {
            return Err(back(excess.to_string()));
        }
        if let Some(limit) = conditions.latency.filter(|_| number % LATENCIES == 0 || is_last) {
            let read = tokio::select! {
                read = sources.read() => read,
                why = signals.recv() => return Err(back(why.to_owned())),
            };
            match read {
                Ok((own, other)) => {
                    failures = 0;
                    latencies.add(own, other);
                }
                Err(error) => {
                    failures += 1;
                    if failures >= FAILURES_MAX || is_last {
                        return Err(back(format!("{error:#}")));
                    }
                    let _unread = writeln!(std::io::stderr(), "{error:#}; one more failure ends the shift").is_err();
                }
            }
            if let Some(slowness) = latencies.excess(limit) {
                return Err(back(slowness.to_string()));
            }
        }
        if number % LINES == 0 {
            // The reader may be gone, such as `head`.
            let latency = if conditions.latency.is_some() { format!(", {latencies}") } else { String::new() };
            let _unread = writeln!(std::io::stderr(), "{share} of the clients: {}{latency}", window.sum()).is_err();
        }
        if is_last {
            break;
        }
    }
    if !node.hand_over(share) {
        bail!(set_by_another(node));
    }
    Ok(())
}

fn set_by_another(node: &NodeShare) -> String {
    format!("another share was set meanwhile: {}; the watch ends", node.get().effective())
}

fn read(maps: &Maps) -> Result<Reading, Error> {
    let hosts = maps.hosts()?.into_iter().map(|host| {
        let [success, redirect, client_error, errors, aborted] = host.l7.requests.to_array();
        let all = success + redirect + client_error + errors + aborted;
        (host.name.unwrap_or_default(), Responses { all, errors })
    });
    Ok(hosts.collect())
}

// === impl Sources ===

impl Sources {
    /// Returns the response times of xdp-ingress and of the other controller.
    async fn read(&self) -> anyhow::Result<(Series, Series)> {
        let own = self.own.read(OWN).await?;
        let other = match &self.other {
            Some(other) => other.read(NGINX).await?,
            None => Series::default(),
        };
        Ok((own, other))
    }
}

// === impl Signals ===

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal, and returns its meaning.
    async fn recv(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "interrupted",
            _ = self.terminate.recv() => "terminated",
            _ = self.hangup.recv() => "the terminal was closed",
        }
    }
}

// === impl Window ===

impl Window {
    fn add(&mut self, reading: Reading) {
        if self.0.len() > READINGS {
            self.0.pop_front();
        }
        self.0.push_back(reading);
    }

    /// Returns the responses of each host within the window.
    fn responses(&self) -> impl Iterator<Item = (&str, Responses)> {
        let (first, last) = (self.0.front(), self.0.back());
        last.into_iter().flatten().map(move |(host, now)| {
            let then = first.and_then(|first| first.get(host)).copied().unwrap_or_default();
            // A host whose number was given to another begins again.
            let all = now.all.saturating_sub(then.all);
            (host.as_str(), Responses { all, errors: now.errors.saturating_sub(then.errors) })
        })
    }

    fn sum(&self) -> Responses {
        self.responses().fold(Responses::default(), |sum, (_, responses)| Responses {
            all: sum.all + responses.all,
            errors: sum.errors + responses.errors,
        })
    }

    /// Returns the first host with more than the part `errors` of server errors, or all hosts if they have together.
    fn excess(&self, errors: f64) -> Option<Excess> {
        let all = std::iter::once((ALL_HOSTS, self.sum()));
        let exceeds =
            |responses: &Responses| responses.all >= LEAST && responses.errors as f64 > errors * responses.all as f64;
        let (host, responses) = self.responses().chain(all).find(|(_, responses)| exceeds(responses))?;
        let host = if host.is_empty() { "no host" } else { host };
        Some(Excess { host: host.to_owned(), responses })
    }
}

impl fmt::Display for Responses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { all, errors } = self;
        let percent = if *all == 0 { 0.0 } else { *errors as f64 * 100.0 / *all as f64 };
        write!(f, "{all} responses within a minute, {percent:.2} % with 5xx")
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, responses } = self;
        write!(f, "too many errors of {host}: {responses}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(hosts: &[(&str, u64, u64)]) -> Reading {
        hosts.iter().map(|&(host, all, errors)| (host.to_owned(), Responses { all, errors })).collect()
    }

    #[test]
    fn errors_of_one_host_or_of_all_end_a_shift() {
        let before: &[_] = &[("", 5, 0), ("a.test", 1_000, 900), ("b.test", 50, 0)];
        for (after, expected) in [
            (&[("a.test", 1_100, 901), ("b.test", 150, 1)][..], None),
            (
                &[("a.test", 1_100, 900), ("b.test", 150, 2)],
                Some("b.test: 100 responses within a minute, 2.00 % with 5xx"),
            ),
            // Too few to judge a host, but not all of them together.
            (
                &[("a.test", 1_015, 901), ("b.test", 65, 1)],
                Some("all hosts: 30 responses within a minute, 6.67 % with"),
            ),
            (&[("a.test", 1_005, 905)], None),
            (&[("new.test", 20, 20)], Some("new.test: 20 responses within a minute, 100.00 % with 5xx")),
            // Given to another host meanwhile.
            (&[("a.test", 3, 0)], None),
            (&[("", 105, 50)], Some("no host: 100 responses")),
        ] {
            let mut window = Window::default();
            window.add(reading(before));
            window.add(reading(after));
            let excess = window.excess(0.01).map(|excess| excess.to_string());
            assert_eq!(excess.is_some(), expected.is_some(), "{excess:?}");
            let said = excess.unwrap_or_default();
            assert!(said.contains(expected.unwrap_or_default()), "{said}");
        }
    }

    #[test]
    fn only_the_last_minute_counts() {
        let mut window = Window::default();
        for second in 0..200 {
            window.add(reading(&[("a.test", 10 * second, second.min(100))]));
            let expected =
                Responses { all: 10 * second.min(60), errors: second.min(100) - second.saturating_sub(60).min(100) };
            assert_eq!(window.sum(), expected, "{second}");
        }
    }
}
