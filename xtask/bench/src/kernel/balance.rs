//! The spread of lasting connections over workers, and the response times when all connections send requests at once.
//! Compares the worker that XDP chooses with the one that the kernel chooses for a port that workers share.

use std::{fmt, path::Path};

use anyhow::Context as _;

use super::{
    figure::Verdict,
    node::{Node, POD_HOST, SERVED, Way},
};
use crate::{
    goal::Limit,
    report::{Times, median, most},
};
use ingress_lab::{
    balance::{Kept, Senders, most_held},
    until,
};

/// XDP sees every packet in both.
const WAYS: [Way; 2] = [Way::Steered, Way::Counted];
const WORKERS: u32 = 2;
const CONNECTIONS: usize = 120;
/// Requests of each connection in a turn.
const QUESTIONS: usize = 20;

/// The result, as a table of Markdown.
pub(super) struct Balance {
    rounds: u32,
    rows: Vec<Row>,
}

/// A way to choose a worker, for clients that send from these CPUs.
struct Row {
    senders: Senders,
    way: Way,
    turns: Vec<Turn>,
}

/// A measurement.
struct Turn {
    /// Share of all connections that the worker with the most holds.
    share: f64,
    /// Median response time in milliseconds.
    p50: f64,
    p99: f64,
}

/// Takes turns through both ways, with all senders.
///
/// # Errors
/// Fails if a node does not start, or a connection or a response fails.
pub(super) fn measure(rounds: u32, binary: &Path) -> anyhow::Result<Balance> {
    // Not pinned to one CPU: the test is about two.
    let start = |way| Node::start(way, binary, WORKERS as usize, false);
    let nodes = WAYS.into_iter().map(start).collect::<anyhow::Result<Vec<_>>>()?;
    for node in &nodes {
        // Warm-up, not counted: caches, pools and neighbours are cold.
        Turn::take(node, Senders::EveryCpu)?;
    }
    let mut turns: [[Vec<Turn>; WAYS.len()]; Senders::ALL.len()] = Default::default();
    for round in 0..rounds as usize {
        for turn in 0..nodes.len() {
            let index = (turn + round) % nodes.len();
            for (turns, senders) in turns.iter_mut().zip(Senders::ALL) {
                turns[index].push(Turn::take(&nodes[index], senders)?);
            }
        }
        eprintln!("balance: round {} of {rounds} done", round + 1);
    }
    let rows = Senders::ALL
        .into_iter()
        .zip(turns)
        .flat_map(|(senders, turns)| WAYS.into_iter().zip(turns).map(move |(way, turns)| Row { senders, way, turns }));
    Ok(Balance { rounds, rows: rows.collect() })
}

/// Returns the share of the worker with the most connections; NaN if there are none.
fn share(held: &[u64]) -> f64 {
    let most = held.iter().copied().max().unwrap_or_default();
    most as f64 / held.iter().sum::<u64>() as f64
}

// === impl Turn ===

impl Turn {
    fn take(node: &Node, senders: Senders) -> anyhow::Result<Self> {
        let maps = node.maps()?;
        let first = until("the node's first worker", || maps.first_worker().ok())?;
        maps.held(first, WORKERS, 0).context("connections of the turn before")?;
        let mut kept = Kept::open(&node.topology.client, SERVED.into(), senders, CONNECTIONS)?;
        let share = share(&maps.held(first, WORKERS, CONNECTIONS)?);
        let Times { p50, p99, p999: _ } = Times::of(kept.ask_at_once(POD_HOST, QUESTIONS)?);
        let [p50, p99] = [p50, p99].map(|time| time.as_secs_f64() * 1e3);
        Ok(Self { share, p50, p99 })
    }
}

// === impl Row ===

impl Row {
    /// Returns the median over rounds, and the worst.
    fn figure(&self, figure: fn(&Turn) -> f64) -> [f64; 2] {
        [median(self.turns.iter().map(figure)), most(self.turns.iter().map(figure))]
    }

    /// Returns the verdict on the promise, in the worst round; the kernel's way has no promise.
    fn verdict(&self) -> Verdict {
        let [_, worst] = self.figure(|turn| turn.share);
        if limit().holds(worst) { Verdict::Met } else { Verdict::Missed }
    }

    fn is_promised(&self) -> bool {
        self.way == Way::Steered
    }
}

/// Returns the largest share that ADR 0027 permits for a worker.
fn limit() -> Limit {
    let total = CONNECTIONS as u64;
    Limit::AtMost(most_held(total, u64::from(WORKERS)) as f64 / total as f64)
}

const fn by_cpus(senders: Senders) -> &'static str {
    match senders {
        Senders::OneCpu => "one CPU",
        Senders::EveryCpu => "every CPU",
    }
}

const fn chosen_by(way: Way) -> &'static str {
    match way {
        Way::Steered => "XDP",
        _ => "`SO_REUSEPORT`",
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [share, worst] = self.figure(|turn| turn.share);
        write!(f, "| {} | {} | {share:.2} | {worst:.2}", by_cpus(self.senders), chosen_by(self.way))?;
        let times: [fn(&Turn) -> f64; 2] = [|turn| turn.p50, |turn| turn.p99];
        for time in times {
            let [middle, worst] = self.figure(time);
            write!(f, " | {middle:.2} | {worst:.2}")?;
        }
        let verdict = self.verdict();
        if self.is_promised() { write!(f, " | {verdict} |") } else { write!(f, " | ({verdict}) |") }
    }
}

// === impl Balance ===

impl Balance {
    /// Returns `true` if XDP has given a worker more than its limit.
    pub(super) fn is_missed(&self) -> bool {
        self.rows.iter().any(|row| row.is_promised() && row.verdict() == Verdict::Missed)
    }
}

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rounds, rows } = self;
        writeln!(
            f,
            "| packets come by | worker chosen by | largest share | worst | p50, ms | worst | p99, ms | worst | verdict |"
        )?;
        writeln!(f, "|---|---|---:|---:|---:|---:|---:|---:|---|")?;
        for row in rows {
            writeln!(f, "{row}")?;
        }
        writeln!(
            f,
            "\nMedians of {rounds} rounds, and the worst of them. The largest share is the part of {CONNECTIONS} long \
             connections that one of {WORKERS} workers holds: 0.50 is even, 1.00 is all of them. XDP's share must be {} in \
             every round. That is 125 % of the mean (ADR 0027) and three connections that were between two counts. Verdicts \
             in brackets are for a choice that is not ours. Times run from the first of {CONNECTIONS} concurrent queries to \
             each answer of a pod, {QUESTIONS} times in a round. Client, pod and workers share the CPUs of this machine, so \
             read little into a difference of times.",
            limit()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(way: Way, shares: &[f64]) -> Row {
        let turns = shares.iter().map(|&share| Turn { share, p50: 2.0, p99: 4.0 * share });
        Row { senders: Senders::OneCpu, way, turns: turns.collect() }
    }

    #[test]
    fn the_share_is_that_of_the_busiest_worker() {
        for (held, expect) in [(&[60, 60][..], 0.5), (&[30, 90], 0.75), (&[0, 120], 1.0), (&[40, 40, 40], 1.0 / 3.0)] {
            assert!((share(held) - expect).abs() < 1e-9, "{held:?}");
        }
        assert!(share(&[0, 0]).is_nan() && share(&[]).is_nan());
    }

    #[test]
    fn the_worst_round_is_judged_and_only_steering_can_fail() {
        for (way, shares, verdict, is_missed) in [
            (Way::Steered, [0.5, 0.65, 0.5], "met", false),
            (Way::Steered, [0.5, 0.66, 0.5], "MISSED", true),
            (Way::Counted, [0.5, 0.55, 0.5], "(met)", false),
            (Way::Counted, [0.5, 1.0, 0.5], "(MISSED)", false),
        ] {
            let row = row(way, &shares);
            assert!(row.to_string().ends_with(&format!("| {verdict} |")), "{row}");
            assert_eq!(Balance { rounds: 3, rows: vec![row] }.is_missed(), is_missed, "{way:?} {shares:?}");
        }
        assert_eq!(row(Way::Steered, &[]).verdict(), Verdict::Missed, "of nothing, nothing is kept");
    }

    #[test]
    fn medians_stand_beside_the_worst() {
        let row = row(Way::Steered, &[0.5, 0.6, 0.53]);
        assert_eq!(row.to_string(), "| one CPU | XDP | 0.53 | 0.60 | 2.00 | 2.00 | 2.12 | 2.40 | met |");
    }
}
