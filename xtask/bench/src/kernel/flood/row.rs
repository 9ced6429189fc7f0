//! A row of the table: one flood against one way to serve, compared to the quiet service, with its verdict.

use std::fmt;

use super::{senders::Senders, service::Service};
use crate::{
    goal::Limit,
    kernel::{figure::Verdict, node::Way},
    report::median,
};

/// Share of the goodput that must remain.
pub(super) const GOODPUT: Limit = Limit::AtLeast(0.9);
/// Permitted growth of the 99th percentile.
pub(super) const P99: Limit = Limit::AtMost(2.0);

pub(super) const HEAD: &str = "\
| flood of SYNs from | in its way | quiet, req/s | p99, ms | flooded, req/s | p99, ms | failed/s | flood, packets/s \
| goodput kept | p99 kept | verdict |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|";

pub(super) struct Row {
    senders: Senders,
    way: Way,
    quiet: Service,
    flooded: Service,
    /// Medians of the ratios of the flooded to the quiet service within each round.
    goodput_kept: f64,
    p99_kept: f64,
}

impl Row {
    /// Creates a row from the service of each round, quiet and flooded.
    pub(super) fn of(senders: Senders, way: Way, rounds: impl Iterator<Item = (Service, Service)>) -> Self {
        let (quiet, flooded): (Vec<Service>, Vec<Service>) = rounds.unzip();
        let kept = |figure: fn(&Service) -> f64| {
            median(quiet.iter().zip(&flooded).map(|(quiet, flooded)| figure(flooded) / figure(quiet)))
        };
        Self {
            senders,
            way,
            goodput_kept: kept(|service| service.goodput),
            p99_kept: kept(|service| service.p99),
            quiet: Service::median(&quiet),
            flooded: Service::median(&flooded),
        }
    }

    /// Returns `true` if this way promises to stop such a flood. Limits of each client do not stop a flood of clients
    /// that send once. SYN cookies are off by default, and their figures are shown. Nothing, a program that only counts,
    /// and nft serve for comparison.
    pub(super) const fn is_promised(&self) -> bool {
        matches!(
            (self.way, self.senders),
            (Way::Limiting | Way::Denying, Senders::Denied) | (Way::Limiting, Senders::Few)
        )
    }

    pub(super) fn verdict(&self) -> Verdict {
        let is_met = GOODPUT.holds(self.goodput_kept) && P99.holds(self.p99_kept);
        if is_met { Verdict::Met } else { Verdict::Missed }
    }

    pub(super) fn name(&self) -> String {
        format!("{}, {}", self.senders.name(), in_the_way(self.way))
    }
}

/// Returns the table's name for the defence of a way to serve.
const fn in_the_way(way: Way) -> &'static str {
    match way {
        Way::Limiting => "XDP: deny list, limits of clients",
        Way::Denying => "XDP: deny list",
        Way::Filtered => "plain bind, nft netdev ingress: set, `limit rate`",
        Way::Answering => "XDP: SYN cookies",
        Way::Bound => "plain bind: nothing",
        Way::Counted => "plain bind, XDP that only counts",
        Way::Steered | Way::Redirected => "nothing",
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { senders, way, quiet, flooded, goodput_kept, p99_kept } = self;
        let verdict = self.verdict();
        let verdict = if self.is_promised() { verdict.to_string() } else { format!("({verdict})") };
        write!(
            f,
            "| {} | {} | {:.0} | {:.1} | {:.0} | {:.1} | {:.1} | {:.0} | {goodput_kept:.2} | {p99_kept:.2} \
             | {verdict} |",
            senders.name(),
            in_the_way(*way),
            quiet.goodput,
            quiet.p99,
            flooded.goodput,
            flooded.p99,
            flooded.failed,
            flooded.flood,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(way: Way, senders: Senders, goodput: f64, p99: f64) -> Row {
        let quiet = Service { goodput: 200.0, p99: 50.0, failed: 0.0, flood: 0.0 };
        let flooded = Service { goodput: 200.0 * goodput, p99: 50.0 * p99, failed: 0.0, flood: 1e5 };
        Row::of(senders, way, [(quiet, flooded)].into_iter())
    }

    #[test]
    fn a_verdict_needs_both_figures() {
        for (goodput, p99, expect) in [
            (0.95, 1.5, Verdict::Met),
            (1.1, 0.9, Verdict::Met),
            (0.85, 1.0, Verdict::Missed),
            (1.0, 2.5, Verdict::Missed),
            (f64::NAN, 1.0, Verdict::Missed),
        ] {
            let row = row(Way::Limiting, Senders::Few, goodput, p99);
            assert_eq!(row.verdict(), expect, "{row}");
        }
    }

    #[test]
    fn a_flood_is_compared_within_its_round() {
        // A slow round and a fast one; each keeps a half.
        let service = |goodput| Service { goodput, p99: 10.0, failed: 0.0, flood: 0.0 };
        let rounds = [(service(10.0), service(5.0)), (service(1000.0), service(500.0))];
        let row = Row::of(Senders::Denied, Way::Denying, rounds.into_iter());
        assert!((row.goodput_kept - 0.5).abs() < 1e-9 && (row.p99_kept - 1.0).abs() < 1e-9, "{row}");
    }

    #[test]
    fn floods_without_a_promise_are_in_brackets() {
        for (way, senders, is_promised) in [
            (Way::Limiting, Senders::Denied, true),
            (Way::Limiting, Senders::Few, true),
            (Way::Limiting, Senders::Many, false),
            (Way::Denying, Senders::Denied, true),
            (Way::Denying, Senders::Few, false),
            (Way::Filtered, Senders::Denied, false),
        ] {
            let row = row(way, senders, 0.1, 9.0);
            assert_eq!(row.is_promised(), is_promised, "{row}");
            assert!(row.to_string().ends_with(if is_promised { "| MISSED |" } else { "| (MISSED) |" }), "{row}");
        }
    }
}
