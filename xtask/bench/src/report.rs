//! Converts rows into medians, ratios, spread and verdicts, as Markdown.

use std::{collections::BTreeMap, fmt, time::Duration};

use super::{
    Case,
    goal::{Figure, Goal},
    pace::Pace,
    peers::{Peer, Setting},
    usage::CpuTime,
};

/// A measurement.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) requests: u64,
    pub(super) errors: u64,
    pub(super) seconds: f64,
    pub(super) cpu: CpuTime,
    /// Only for loads with a schedule.
    pub(super) times: Option<Times>,
}

/// Percentiles of request times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) p999: Duration,
}

/// All measurements of a session, by subject `S`.
#[derive(Debug)]
pub(super) struct Results<S> {
    peers: Vec<Peer>,
    setting: Setting,
    rows: BTreeMap<S, Rows>,
}

/// Rows by peer and round.
type Rows = BTreeMap<(usize, u32), Row>;

/// The rows of one peer, with those of all peers for comparison.
struct Beside<'r> {
    own: Vec<(u32, &'r Row)>,
    all: &'r Rows,
}

// === impl Times ===

impl Times {
    /// Returns zeros if `times` is empty.
    pub(crate) fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |permille: usize| {
            // The least time within which this share of requests is answered.
            let number = (times.len() * permille).div_ceil(1000);
            times.get(number.saturating_sub(1)).copied().unwrap_or_default()
        };
        Self { p50: at(500), p99: at(990), p999: at(999) }
    }
}

// === impl Results ===

impl<S: Copy + Ord> Results<S> {
    pub(super) fn new(peers: Vec<Peer>, setting: Setting) -> Self {
        Self { peers, setting, rows: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, subject: S, round: u32, peer: usize, row: Row) {
        self.rows.entry(subject).or_default().insert((peer, round), row);
    }

    /// Removes the rows of a peer that gives no figures for a subject. The table says so.
    pub(super) fn leave_out(&mut self, subject: S, peer: usize) {
        self.rows.entry(subject).or_default().retain(|(index, _), _| *index != peer);
    }

    /// Returns the median of a figure for each peer, NaN for one without figures; empty if it was not measured.
    pub(super) fn medians(&self, subject: S, figure: Figure) -> Vec<f64> {
        let Some(rows) = self.rows.get(&subject) else { return Vec::new() };
        (0..self.peers.len()).map(|peer| Beside::of(rows, peer).median(figure)).collect()
    }

    fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Iterates over each subject with each peer.
    fn each(&self) -> impl Iterator<Item = (S, Peer, Beside<'_>)> {
        self.rows.iter().flat_map(|(subject, rows)| {
            let peers = self.peers.iter().enumerate();
            peers.map(move |(index, peer)| (*subject, *peer, Beside::of(rows, index)))
        })
    }

    /// Returns the goals, which apply only to xdp-ingress, and only with nginx as the reference.
    fn goals(&self, peer: Peer, goals: impl FnOnce() -> Vec<Goal>) -> Vec<Goal> {
        if peer == Peer::XdpIngress && self.peers[0] == Peer::Nginx { goals() } else { Vec::new() }
    }
}

impl fmt::Display for Results<Case> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return Ok(());
        }
        let reference = self.peers[0];
        writeln!(
            f,
            "| case | peer | req/s | × {reference} | µs CPU/req | × {reference} | of it in the kernel | CPU busy | spread \
             | errors | goal | verdict |"
        )?;
        writeln!(f, "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|---|")?;
        for (case, peer, beside) in self.each() {
            if beside.own.is_empty() {
                writeln!(f, "| {case} | {peer} | no figures{} |", " |".repeat(9))?;
                continue;
            }
            let goals = self.goals(peer, || case.goals(self.setting.workers));
            writeln!(
                f,
                "| {case} | {peer} | {:.0} | {} | {:.1} | {} | {:.1} | {:.0} % | {:.0} % | {} | {} |",
                beside.median(Figure::Rate),
                shown(beside.ratio(Figure::Rate)),
                beside.median(Figure::Cpu),
                shown(beside.ratio(Figure::Cpu)),
                beside.median(Figure::Kernel),
                100.0 * median(beside.own.iter().map(|(_, row)| row.cpu.all / row.seconds)),
                100.0 * spread(beside.own.iter().map(|(_, row)| Figure::Cpu.in_row(row))),
                beside.errors(),
                judged(&goals, &beside),
            )?;
        }
        self.write_beside_tcp(f)
    }
}

impl fmt::Display for Results<Pace> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return Ok(());
        }
        let reference = self.peers[0];
        writeln!(
            f,
            "| asked for | peer | req/s | p50 µs | × {reference} | p99 µs | × {reference} | p99.9 µs | × {reference} \
             | µs CPU/req | × {reference} | errors | goal | verdict |"
        )?;
        writeln!(f, "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|---|")?;
        for (pace, peer, beside) in self.each() {
            let Pace { rate, amid_changes } = pace;
            let goals = self.goals(peer, || pace.goals(self.setting.workers));
            let amid = if amid_changes { ", routes change" } else { "" };
            write!(f, "| {rate}/s{amid} | {peer} | {:.0}", beside.median(Figure::Rate))?;
            for time in [Figure::P50, Figure::P99, Figure::P999] {
                write!(f, " | {:.0} | {:.2}", beside.median(time), beside.ratio(time))?;
            }
            let (cpu, cpu_ratio) = (beside.median(Figure::Cpu), beside.ratio(Figure::Cpu));
            writeln!(f, " | {cpu:.1} | {cpu_ratio:.2} | {} | {} |", beside.errors(), judged(&goals, &beside))?;
        }
        Ok(())
    }
}

impl Results<Case> {
    /// Writes the CPU time of cases of HTTP/3 relative to those of TCP with the same load, for each peer.
    fn write_beside_tcp(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (case, tcp) in self.rows.keys().filter_map(|case| Some((*case, case.by_tcp()?))) {
            let (by_http3, by_tcp) = (self.medians(case, Figure::Cpu), self.medians(tcp, Figure::Cpu));
            let peers = self
                .peers
                .iter()
                .zip(by_http3)
                .zip(by_tcp)
                .filter(|((_, http3), tcp)| http3.is_finite() && tcp.is_finite());
            for ((peer, http3), tcp_cpu) in peers {
                writeln!(f, "\n`{case}` costs {peer} {:.2} × the CPU time of `{tcp}`.", http3 / tcp_cpu)?;
            }
        }
        Ok(())
    }
}

// === impl Beside ===

impl<'r> Beside<'r> {
    fn of(all: &'r Rows, peer: usize) -> Self {
        let own = all.iter().filter(|((p, _), _)| *p == peer).map(|((_, round), row)| (*round, row)).collect();
        Self { own, all }
    }

    fn median(&self, figure: Figure) -> f64 {
        median(self.own.iter().map(|(_, row)| figure.in_row(row)))
    }

    /// Returns the ratio to the first peer in the same round, as the median over rounds.
    fn ratio(&self, figure: Figure) -> f64 {
        median(self.own.iter().filter_map(|(round, row)| {
            let reference = self.all.get(&(0, *round))?;
            Some(figure.in_row(row) / figure.in_row(reference))
        }))
    }

    fn errors(&self) -> u64 {
        self.own.iter().map(|(_, row)| row.errors).sum()
    }
}

/// Returns a ratio, or a dash if the reference has no figures.
fn shown(ratio: f64) -> String {
    if ratio.is_nan() { "–".to_owned() } else { format!("{ratio:.2}") }
}

/// Returns the last two columns. A measurement with errors, of any peer, gets no verdict.
fn judged(goals: &[Goal], beside: &Beside<'_>) -> String {
    let list = goals.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let has_errors = beside.all.values().any(|row| row.errors > 0);
    let has_reference = beside.all.keys().any(|(peer, _)| *peer == 0);
    let verdict = match goals {
        [] => "",
        _ if !has_reference => "none, no reference",
        _ if has_errors => "none, errors",
        _ if goals.iter().all(|Goal { of, limit }| limit.holds(beside.ratio(*of))) => "met",
        _ => "MISSED",
    };
    format!("{list} | {verdict}")
}

/// Returns the values in ascending order.
pub(crate) fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Returns the minimum; NaN for no values, like [`median`].
pub(super) fn least(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::NAN, f64::min)
}

/// Returns the maximum; NaN for no values.
pub(super) fn most(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::NAN, f64::max)
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let values = sorted(values);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

/// Returns the difference of largest and smallest, relative to the median.
fn spread(values: impl Iterator<Item = f64>) -> f64 {
    let values = sorted(values);
    match (values.first(), values.last()) {
        (Some(least), Some(most)) => (most - least) / median(values.iter().copied()),
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_spreads_are_computed() {
        assert!((median([3.0, 1.0, 2.0].into_iter()) - 2.0).abs() < 1e-9);
        assert!((median([4.0, 1.0].into_iter()) - 2.5).abs() < 1e-9);
        assert!((spread([1.0, 2.0, 3.0].into_iter()) - 1.0).abs() < 1e-9);
        assert!((least([2.0, 1.0, 3.0].into_iter()) - 1.0).abs() < 1e-9);
        assert!((most([2.0, 3.0, 1.0].into_iter()) - 3.0).abs() < 1e-9);
        let none = std::iter::empty::<f64>;
        assert!(median(none()).is_nan() && least(none()).is_nan() && most(none()).is_nan());
    }

    #[test]
    fn percentiles_are_times_of_answered_requests() {
        let times = |count| Times::of((1..=count).rev().map(Duration::from_millis).collect());
        let expect = |p50, p99, p999| {
            let [p50, p99, p999] = [p50, p99, p999].map(Duration::from_millis);
            Times { p50, p99, p999 }
        };
        assert_eq!(times(10_000), expect(5000, 9900, 9990));
        assert_eq!(times(3), expect(2, 3, 3));
        assert_eq!(times(1), expect(1, 1, 1));
        assert_eq!(times(0), expect(0, 0, 0));
    }

    #[test]
    fn cases_of_http3_are_compared_with_those_of_tcp() {
        let setting = Setting { workers: 1, pin: true, access_log: false, http3: true };
        let mut results = Results::new(vec![Peer::XdpIngress], setting);
        for (case, cpu) in [(Case::H2, 2.0), (Case::H3, 3.0), (Case::H310m, 5.0)] {
            let cpu = CpuTime { all: cpu, kernel: 0.0 };
            results.add(case, 0, 0, Row { requests: 1000, errors: 0, seconds: 4.0, cpu, times: None });
        }
        let text = results.to_string();
        assert!(text.ends_with("\n\n`h3` costs xdp-ingress 1.50 × the CPU time of `h2`.\n"), "{text}");
    }

    #[test]
    fn peers_without_figures_are_named_and_judge_nothing() {
        let mut results = results(0.5, 0);
        results.leave_out(Case::H1, 0);
        let table = results.to_string();
        let lines: Vec<_> = table.lines().collect();
        let columns = |line: &str| line.matches('|').count();
        assert!(lines[2].starts_with("| h1 | nginx | no figures | "), "{table}");
        assert!(lines[3].ends_with("| CPU ≤ 0.85 | none, no reference |"), "{table}");
        assert!(!table.contains("NaN"), "{table}");
        assert_eq!([2, 3].map(|row| columns(lines[row])), [columns(lines[0]); 2], "{table}");
    }

    /// Returns results of both peers in two rounds; the machine is twice as slow in the second.
    fn results(own: f64, own_errors: u64) -> Results<Case> {
        let setting = Setting { workers: 1, pin: true, access_log: false, http3: false };
        let mut results = Results::new(vec![Peer::Nginx, Peer::XdpIngress], setting);
        for (round, slow) in [(0, 1.0), (1, 2.0)] {
            for (peer, cpu, errors) in [(0, 1.0, 0), (1, own, own_errors)] {
                let cpu = CpuTime { all: cpu * slow, kernel: 0.75 * cpu * slow };
                let row = Row { requests: 1000, errors, seconds: 4.0, cpu, times: None };
                results.add(Case::H1, round, peer, row);
            }
        }
        results
    }

    #[test]
    fn verdicts_use_ratios_within_a_round_for_the_product_only() {
        for (own, errors, expect) in [(0.85, 0, "met"), (0.9, 0, "MISSED"), (0.5, 1, "none, errors")] {
            let table = results(own, errors).to_string();
            let lines: Vec<_> = table.lines().collect();
            assert!(lines[2].ends_with("| 0 |  |  |"), "{table}");
            assert!(lines[3].ends_with(&format!("| CPU ≤ 0.85 | {expect} |")), "{table}");
            assert!(lines[3].contains(&format!(" {own:.2} |")), "{table}");
        }
        assert_eq!(results(1.0, 0).medians(Case::H1, Figure::Rate), [250.0, 250.0]);
        assert!(results(1.0, 0).medians(Case::H2, Figure::Rate).is_empty());
    }
}
