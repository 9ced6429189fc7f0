//! A row of the table: one flood against one way to serve, compared to the quiet service and to another flooded one, with
//! its verdict.

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
/// The same for SYN cookies, compared to the flooded service with a program that only counts.
pub(super) const BESIDE_GOODPUT: Limit = Limit::AtLeast(0.95);
pub(super) const BESIDE_P99: Limit = Limit::AtMost(1.5);

pub(super) const HEAD: &str = "\
| flood from | in its way | quiet, req/s | p99, ms | flooded, req/s | p99, ms | failed/s | flood, packets/s \
| goodput kept | p99 kept | goodput, beside | p99, beside | verdict |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|";

pub(super) struct Row {
    senders: Senders,
    way: Way,
    quiet: Service,
    flooded: Service,
    /// Medians of the ratios of the flooded to the quiet service within each round.
    goodput_kept: f64,
    p99_kept: f64,
    /// Likewise, of the flooded service to [`Round::beside`].
    goodput_beside: f64,
    p99_beside: f64,
}

/// The service of one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) quiet: Service,
    pub(super) flooded: Service,
    /// The flooded service to compare with, if it was measured: with a program that only counts, and for floods of QUIC,
    /// during the flood that the deny list drops.
    pub(super) beside: Option<Service>,
}

impl Row {
    /// Creates a row from its rounds.
    pub(super) fn of(senders: Senders, way: Way, rounds: &[Round]) -> Self {
        let ratio = |figure: fn(&Service) -> f64, to: fn(&Round) -> Option<&Service>| {
            median(rounds.iter().filter_map(|round| Some(figure(&round.flooded) / figure(to(round)?))))
        };
        let middle = |of: fn(&Round) -> Service| Service::median(&rounds.iter().map(of).collect::<Vec<_>>());
        Self {
            senders,
            way,
            goodput_kept: ratio(|service| service.goodput, |round| Some(&round.quiet)),
            p99_kept: ratio(|service| service.p99, |round| Some(&round.quiet)),
            goodput_beside: ratio(|service| service.goodput, |round| round.beside.as_ref()),
            p99_beside: ratio(|service| service.p99, |round| round.beside.as_ref()),
            quiet: middle(|round| round.quiet),
            flooded: middle(|round| round.flooded),
        }
    }

    /// Returns `true` if this way promises to stop such a flood. Limits of each client do not stop a flood of clients
    /// that send once. Nothing, a program that only counts, nft, and SYN cookies with the kernel's defaults serve for
    /// comparison.
    pub(super) const fn is_promised(&self) -> bool {
        matches!(
            (self.way, self.senders),
            (Way::Limiting | Way::Denying, Senders::Denied)
                | (Way::Limiting, Senders::Few)
                | (Way::Answering | Way::AnsweringAndLimiting, Senders::Many | Senders::ManyV6)
                | (Way::AnsweringAndLimiting, Senders::Mixed)
                | (Way::Limiting | Way::Denying, Senders::QuicMany | Senders::QuicOne | Senders::QuicUnknown)
        )
    }

    pub(super) fn verdict(&self) -> Verdict {
        let is_met = if self.senders.is_quic() {
            GOODPUT.holds(self.goodput_beside)
        } else if self.way.has_cookies() {
            BESIDE_GOODPUT.holds(self.goodput_beside) && BESIDE_P99.holds(self.p99_beside)
        } else {
            GOODPUT.holds(self.goodput_kept) && P99.holds(self.p99_kept)
        };
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
        Way::AnsweringByDefault => "XDP: SYN cookies, sysctls by default",
        Way::AnsweringAndLimiting => "XDP: SYN cookies, deny list, limits of clients",
        Way::Proxied => "plain bind, XDP that only counts, nft `synproxy`",
        Way::StackAnswers => "plain bind, XDP that only counts, tcp_syncookies=2",
        Way::Bound => "plain bind: nothing",
        Way::Counted => "plain bind, XDP that only counts",
        Way::Steered => "XDP: nothing",
        Way::Redirected => "nft REDIRECT",
    }
}

/// Returns a ratio as text, or a dash without a node to compare with.
fn beside(ratio: f64) -> String {
    if ratio.is_nan() { "-".into() } else { format!("{ratio:.2}") }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { senders, way, quiet, flooded, goodput_kept, p99_kept, goodput_beside, p99_beside } = self;
        let verdict = self.verdict();
        let verdict = if self.is_promised() { verdict.to_string() } else { format!("({verdict})") };
        write!(
            f,
            "| {} | {} | {:.0} | {:.1} | {:.0} | {:.1} | {:.1} | {:.0} | {goodput_kept:.2} | {p99_kept:.2} \
             | {} | {} | {verdict} |",
            senders.name(),
            in_the_way(*way),
            quiet.goodput,
            quiet.p99,
            flooded.goodput,
            flooded.p99,
            flooded.failed,
            flooded.flood,
            beside(*goodput_beside),
            beside(*p99_beside),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(goodput: f64, p99: f64) -> Service {
        Service { goodput: 200.0 * goodput, p99: 50.0 * p99, failed: 0.0, flood: 1e5 }
    }

    /// A row that keeps this much of the quiet service, or of that with a program that only counts.
    fn row(way: Way, senders: Senders, goodput: f64, p99: f64) -> Row {
        let usual = service(1.0, 1.0);
        Row::of(senders, way, &[Round { quiet: usual, flooded: service(goodput, p99), beside: Some(usual) }])
    }

    #[test]
    fn a_verdict_needs_both_figures() {
        for (goodput, p99, expect, with_cookies) in [
            (0.96, 1.4, Verdict::Met, Verdict::Met),
            (0.93, 1.0, Verdict::Met, Verdict::Missed),
            (1.1, 1.8, Verdict::Met, Verdict::Missed),
            (0.85, 1.0, Verdict::Missed, Verdict::Missed),
            (1.0, 2.5, Verdict::Missed, Verdict::Missed),
            (f64::NAN, 1.0, Verdict::Missed, Verdict::Missed),
        ] {
            let row = row(Way::Limiting, Senders::Few, goodput, p99);
            assert_eq!(row.verdict(), expect, "{row}");
            let row = self::row(Way::Answering, Senders::Many, goodput, p99);
            assert_eq!(row.verdict(), with_cookies, "{row}");
        }
    }

    #[test]
    fn floods_of_quic_are_judged_by_the_goodput_beside_one_that_is_dropped() {
        for (goodput, expect) in [(0.91, Verdict::Met), (0.89, Verdict::Missed), (f64::NAN, Verdict::Missed)] {
            let row = row(Way::Denying, Senders::QuicMany, goodput, 9.0);
            assert_eq!(row.verdict(), expect, "{row}");
        }
    }

    #[test]
    fn a_flood_is_compared_within_its_round() {
        // A slow round and a fast one; each keeps a half of the quiet service, and a quarter of the other.
        let round = |scale: f64| Round {
            quiet: service(scale, 1.0),
            flooded: service(scale / 2.0, 1.0),
            beside: Some(service(scale * 2.0, 2.0)),
        };
        let row = Row::of(Senders::Denied, Way::Denying, &[round(1.0), round(100.0)]);
        let found = [row.goodput_kept, row.p99_kept, row.goodput_beside, row.p99_beside];
        assert!(found.iter().zip([0.5, 1.0, 0.25, 0.5]).all(|(found, expect)| (found - expect).abs() < 1e-9), "{row}");
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
            (Way::Answering, Senders::ManyV6, true),
            (Way::Answering, Senders::Mixed, false),
            (Way::AnsweringAndLimiting, Senders::Mixed, true),
            (Way::AnsweringByDefault, Senders::Many, false),
            (Way::Denying, Senders::QuicUnknown, true),
            (Way::Counted, Senders::QuicUnknown, false),
            // The flood that the others are compared to.
            (Way::Denying, Senders::QuicDenied, false),
        ] {
            let row = row(way, senders, 0.1, 9.0);
            assert_eq!(row.is_promised(), is_promised, "{row}");
            assert!(row.to_string().ends_with(if is_promised { "| MISSED |" } else { "| (MISSED) |" }), "{row}");
        }
    }
}
