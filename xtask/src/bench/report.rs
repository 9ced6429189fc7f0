//! Turns rows into medians, ratios and spread, as Markdown.

use std::{collections::BTreeMap, fmt, fs};

use super::{Case, Peer};

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) requests: u64,
    pub(super) errors: u64,
    pub(super) seconds: f64,
    /// Seconds of CPU.
    pub(super) cpu: f64,
}

/// All measurements of a run.
pub(super) struct Results {
    peers: Vec<Peer>,
    rows: BTreeMap<Case, BTreeMap<(usize, u32), Row>>,
}

impl Row {
    fn rate(self) -> f64 {
        self.requests as f64 / self.seconds
    }

    /// Microseconds of CPU per request.
    fn cost(self) -> f64 {
        self.cpu * 1e6 / self.requests as f64
    }
}

impl Results {
    pub(super) fn new(peers: Vec<Peer>) -> Self {
        Self { peers, rows: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, case: Case, round: u32, peer: usize, row: Row) {
        self.rows.entry(case).or_default().insert((peer, round), row);
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        writeln!(
            f,
            "| case | peer | req/s | × {0} | µs CPU/req | × {0} | CPU busy | spread | errors |",
            self.peers[0]
        )?;
        writeln!(f, "|---|---|---:|---:|---:|---:|---:|---:|---:|")?;
        for (case, rows) in &self.rows {
            for (index, peer) in self.peers.iter().enumerate() {
                let own: Vec<(u32, Row)> =
                    rows.iter().filter(|((p, _), _)| *p == index).map(|((_, round), row)| (*round, *row)).collect();
                let ratio = |of: fn(Row) -> f64| {
                    median(own.iter().filter_map(|(round, row)| Some(of(*row) / of(*rows.get(&(0, *round))?))))
                };
                let all = |of: fn(Row) -> f64| median(own.iter().map(|(_, row)| of(*row)));
                writeln!(
                    f,
                    "| {case:?} | {peer} | {:.0} | {:.2} | {:.1} | {:.2} | {:.0} % | {:.0} % | {} |",
                    all(Row::rate),
                    ratio(Row::rate),
                    all(Row::cost),
                    ratio(Row::cost),
                    100.0 * all(|row| row.cpu / row.seconds),
                    100.0 * spread(own.iter().map(|(_, row)| row.cost())),
                    own.iter().map(|(_, row)| row.errors).sum::<u64>(),
                )?;
            }
        }
        write!(
            f,
            "\nMedians over rounds; ratios within a round; spread is of CPU per request. Load average {}",
            load.trim()
        )
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// NaN of none, as is [`median`].
pub(super) fn least(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::NAN, f64::min)
}

pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let values = sorted(values);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

/// Largest minus smallest, as a part of the median.
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
    fn medians_and_spreads() {
        assert!((median([3.0, 1.0, 2.0].into_iter()) - 2.0).abs() < 1e-9);
        assert!((median([4.0, 1.0].into_iter()) - 2.5).abs() < 1e-9);
        assert!((spread([1.0, 2.0, 3.0].into_iter()) - 1.0).abs() < 1e-9);
        assert!((least([2.0, 1.0, 3.0].into_iter()) - 1.0).abs() < 1e-9);
        assert!(median(std::iter::empty()).is_nan() && least(std::iter::empty()).is_nan());
    }
}
