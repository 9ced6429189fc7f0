//! A target figure: its limit, the measured value, and the verdict.

use std::fmt;

use crate::{
    goal::Limit,
    report::{least, median},
};

/// The best of all rounds, and their median.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) best: f64,
    pub(super) median: f64,
}

/// A measured clause of a figure.
#[derive(Debug)]
pub(super) struct Clause {
    pub(super) limit: Limit,
    /// Object of the limit: words that follow its number.
    pub(super) of: String,
    /// The measured value.
    pub(super) found: Spread,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Met,
    Missed,
    /// Not measured in this run, but by the command beside it.
    Elsewhere,
}

/// A row of the table.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) number: u8,
    pub(super) figure: String,
    pub(super) target: String,
    pub(super) measured: String,
    pub(super) verdict: Verdict,
}

// === impl Spread ===

impl Spread {
    /// Summarises the results of each round; less is better.
    pub(super) fn of(samples: &[f64]) -> Self {
        Self { best: least(samples.iter().copied()), median: median(samples.iter().copied()) }
    }

    /// Returns the ratio of this to `other`.
    pub(super) fn over(self, other: Self) -> Self {
        Self { best: self.best / other.best, median: self.median / other.median }
    }
}

// === impl Row ===

impl Row {
    /// Returns the row of a figure, which is met if all its clauses are, in the best round.
    pub(super) fn judged(number: u8, figure: &str, clauses: &[Clause]) -> Self {
        Self::judged_by(|found| found.best, number, figure, clauses)
    }

    /// Like [`Row::judged`], by the median of the rounds.
    pub(super) fn judged_by_median(number: u8, figure: &str, clauses: &[Clause]) -> Self {
        Self::judged_by(|found| found.median, number, figure, clauses)
    }

    fn judged_by(judged: fn(Spread) -> f64, number: u8, figure: &str, clauses: &[Clause]) -> Self {
        let list = |each: fn(&Clause) -> String| clauses.iter().map(each).collect::<Vec<_>>().join("; ");
        let is_met = clauses.iter().all(|Clause { limit, of: _, found }| limit.holds(judged(*found)));
        let verdict = if is_met { Verdict::Met } else { Verdict::Missed };
        let measured = |clause: &Clause| {
            let Spread { best, median } = clause.found;
            format!("{best:.2} (median {median:.2})")
        };
        let target = list(|clause| format!("{} {}", clause.limit, clause.of));
        Self { number, figure: figure.to_owned(), target, measured: list(measured), verdict }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Met => "met",
            Self::Missed => "MISSED",
            Self::Elsewhere => "see there",
        })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, figure, target, measured, verdict } = self;
        write!(f, "| {number} | {figure} | {target} | {measured} | {verdict} |")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_met_only_by_all_of_its_clauses() {
        let spread = |best| Spread { best, median: 2.0 * best };
        for (bind, nft, expect) in [
            (spread(1.1), spread(0.99), Verdict::Met),
            (spread(1.1), spread(1.0), Verdict::Missed),
            (spread(1.2), spread(0.9), Verdict::Missed),
        ] {
            let clauses = [
                Clause { limit: Limit::AtMost(1.1), of: "× bind".into(), found: bind },
                Clause { limit: Limit::Below(1.0), of: "× nft".into(), found: nft },
            ];
            let row = Row::judged(1, "CPU", &clauses);
            assert_eq!(row.verdict, expect, "{row}");
            assert_eq!(row.target, "≤ 1.10 × bind; < 1.00 × nft");
        }
    }

    #[test]
    fn a_spread_is_the_minimum_and_the_median() {
        let spread = Spread::of(&[3.0, 1.0, 2.0]);
        assert_eq!(spread, Spread { best: 1.0, median: 2.0 });
        assert_eq!(spread.over(Spread { best: 2.0, median: 2.0 }), Spread { best: 0.5, median: 1.0 });
    }
}
