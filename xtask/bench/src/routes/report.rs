//! The results of each change as Markdown: medians over rounds, ratios within a round, and the goals of the product.

use std::{collections::BTreeMap, fmt, time::Duration};

use super::served::Served;
use crate::{
    hosts::{Change, Way},
    report::median,
};

/// Time to a peer's first response, and its memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) start: Duration,
    pub(super) steady: u64,
    /// Peak during changes, including old processes.
    pub(super) peak: u64,
}

/// Results of a run.
#[derive(Debug, Default)]
pub(super) struct Results {
    /// Results by hosts, change and peer, with the round.
    changes: BTreeMap<(usize, Change, Way), BTreeMap<u32, Served>>,
    taken: BTreeMap<(usize, Way), Taken>,
    /// Failed requests of the background load.
    failed: BTreeMap<(usize, Way), u64>,
}

/// Goals in milliseconds until a change is served, by the number of hosts.
const GOALS: [(usize, f64); 2] = [(10_000, 1.0), (100_000, 2.0)];

// === impl Results ===

impl Results {
    pub(super) fn add(&mut self, hosts: usize, kind: Change, way: Way, round: u32, served: Served) {
        self.changes.entry((hosts, kind, way)).or_default().insert(round, served);
    }

    pub(super) fn take(&mut self, hosts: usize, way: Way, taken: Taken) {
        self.taken.insert((hosts, way), taken);
    }

    pub(super) fn fail(&mut self, hosts: usize, way: Way, failed: u64) {
        *self.failed.entry((hosts, way)).or_default() += failed;
    }

    /// Returns the number of requests to the product that failed.
    pub(super) fn own_failures(&self) -> u64 {
        let background = self.failed.iter().filter(|((_, way), _)| way.is_ours()).map(|(_, failed)| failed);
        let changes = self.changes.iter().filter(|((_, _, way), _)| way.is_ours());
        let probes = changes.flat_map(|(_, rounds)| rounds.values()).map(|served| &served.failed);
        background.chain(probes).sum()
    }

    /// Returns the time of a change relative to nginx in the same round; a peer with separate rounds has no ratio.
    fn ratio(&self, hosts: usize, kind: Change, way: Way, rounds: &BTreeMap<u32, Served>) -> Option<f64> {
        if way.reads_manifests() {
            return None;
        }
        let reference = self.changes.get(&(hosts, kind, Way::Nginx))?;
        let of = |(round, served): (&u32, &Served)| Some(served.millis / reference.get(round)?.millis);
        Some(median(rounds.iter().filter_map(of)))
    }

    /// Writes the times of the product's changes as it says them, beside those of clients.
    fn fmt_within(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ours = || self.changes.iter().filter(|(_, rounds)| rounds.values().any(|served| served.within.is_some()));
        if ours().next().is_none() {
            return Ok(());
        }
        writeln!(f, "\n| hosts | change | peer | ms until served, p50 | p99 | ms within the process, p50 | p99 |")?;
        writeln!(f, "|---:|---|---|---:|---:|---:|---:|")?;
        for ((hosts, kind, way), rounds) in ours() {
            let served = quantiles(rounds.values().map(|served| served.millis));
            let within = quantiles(rounds.values().filter_map(|served| served.within));
            let [[served_50, served_99], [within_50, within_99]] = [served, within];
            writeln!(
                f,
                "| {hosts} | {kind} | {way} | {served_50:.2} | {served_99:.2} | {within_50:.2} | {within_99:.2} |"
            )?;
        }
        Ok(())
    }
}

/// Returns the smallest values that at least 50 and 99 of 100 do not exceed; with fewer than 100 values, the latter is the
/// largest.
fn quantiles(values: impl Iterator<Item = f64>) -> [f64; 2] {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    [50, 99].map(|percent| {
        let rank = (values.len() * percent).div_ceil(100);
        values.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    })
}

/// Returns the verdict; the goal applies to the way in which the product is installed.
fn verdict(hosts: usize, way: Way, millis: f64) -> String {
    let goal = GOALS.iter().find(|(most, _)| hosts <= *most);
    match (way, goal) {
        (Way::XdpIngress, Some((_, goal))) => {
            format!("≤ {goal} ms: {}", if millis <= *goal { "met" } else { "missed" })
        }
        _ => String::new(),
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| hosts | change | peer | ms until served | worst | × nginx | failed | goal |")?;
        writeln!(f, "|---:|---|---|---:|---:|---:|---:|---|")?;
        for ((hosts, kind, way), rounds) in &self.changes {
            let millis = median(rounds.values().map(|served| served.millis));
            let worst = rounds.values().map(|served| served.millis).fold(f64::NAN, f64::max);
            let ratio = self.ratio(*hosts, *kind, *way, rounds).map_or_else(String::new, |ratio| format!("{ratio:.4}"));
            let failed: u64 = rounds.values().map(|served| served.failed).sum();
            let verdict = verdict(*hosts, *way, millis);
            writeln!(f, "| {hosts} | {kind} | {way} | {millis:.2} | {worst:.1} | {ratio} | {failed} | {verdict} |")?;
        }
        self.fmt_within(f)?;
        writeln!(f, "\n| hosts | peer | s to start | MiB | MiB, peak | failed in the background |")?;
        writeln!(f, "|---:|---|---:|---:|---:|---:|")?;
        for ((hosts, way), Taken { start, steady, peak }) in &self.taken {
            let failed = self.failed.get(&(*hosts, *way)).copied().unwrap_or_default();
            let (start, steady, peak) = (start.as_secs_f64(), mib(*steady), mib(*peak));
            writeln!(f, "| {hosts} | {way} | {start:.2} | {steady:.1} | {peak:.1} | {failed} |")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_formed_within_a_round_and_failures_are_those_of_the_product() {
        let mut results = Results::default();
        for (round, nginx, own) in [(0, 100.0, 1.0), (1, 200.0, 4.0), (2, 400.0, 2.0)] {
            let served = |millis| Served { millis, failed: 1, within: None };
            results.add(1000, Change::Endpoint, Way::Nginx, round, served(nginx));
            results.add(1000, Change::Endpoint, Way::XdpIngress, round, served(own));
            results.add(1000, Change::Endpoint, Way::XdpIngressFiles, round, served(own));
        }
        let start = Duration::from_millis(1500);
        results.take(1000, Way::XdpIngress, Taken { start, steady: 1 << 20, peak: 3 << 19 });
        results.fail(1000, Way::Nginx, 5);
        results.fail(1000, Way::XdpIngress, 2);
        assert_eq!(results.own_failures(), 8);
        let text = results.to_string();
        for line in [
            "| 1000 | endpoint changed | nginx, reload | 200.00 | 400.0 | 1.0000 | 3 |  |",
            "| 1000 | endpoint changed | xdp-ingress | 2.00 | 4.0 | 0.0100 | 3 | ≤ 1 ms: missed |",
            "| 1000 | endpoint changed | xdp-ingress, manifests | 2.00 | 4.0 |  | 3 |  |",
            "| 1000 | xdp-ingress | 1.50 | 1.0 | 1.5 | 2 |",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn quantiles_are_values_by_rank() {
        let of = |count: u32| quantiles((1..=count).rev().map(f64::from)).map(|value| value as u32);
        assert_eq!([1, 2, 11, 100, 200].map(of), [[1, 1], [1, 2], [6, 11], [50, 99], [100, 198]]);
        assert!(quantiles(std::iter::empty()).iter().all(|value| value.is_nan()));
    }

    #[test]
    fn the_product_says_its_times() {
        let mut results = Results::default();
        for (round, within) in [(0, Some(0.5)), (1, Some(0.25))] {
            let way = Way::XdpIngressGatewayFiles;
            results.add(1000, Change::Added, way, round, Served { millis: 2.0, failed: 0, within });
            results.add(1000, Change::Endpoint, Way::Nginx, round, Served { millis: 9.0, failed: 0, within: None });
        }
        let text = results.to_string();
        let line = "| 1000 | host added | xdp-ingress, manifests, HTTPRoutes | 2.00 | 2.00 | 0.25 | 0.50 |";
        assert!(text.lines().any(|found| found == line), "{text}");
        assert!(!text.contains("| 9.00 | 9.00 |"), "{text}");
    }

    #[test]
    fn goals_depend_on_the_number_of_hosts() {
        for (hosts, millis, expect) in [
            (1000, 1.0, "≤ 1 ms: met"),
            (10_000, 1.1, "≤ 1 ms: missed"),
            (100_000, 1.1, "≤ 2 ms: met"),
            (200_000, 1.0, ""),
        ] {
            assert_eq!(verdict(hosts, Way::XdpIngress, millis), expect);
            assert_eq!(verdict(hosts, Way::XdpIngressFiles, millis), "");
        }
    }
}
