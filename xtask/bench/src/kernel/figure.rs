//! A target figure: its limit, the measured value, and the verdict.

use std::fmt;

use crate::{
    goal::Limit,
    report::{least, median, sorted},
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
    /// Not told apart from the limit by the rounds of this run.
    Undecided,
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

/// Returns an interval that holds the median of what the samples are taken from, with a probability of 95 % or more (sign
/// test): as many samples are left out at each end as are hardly ever all on the same side of it. Fewer than six samples
/// have none.
pub(super) fn interval(samples: &[f64]) -> Option<[f64; 2]> {
    const OUTSIDE: f64 = 0.05;
    let sorted = sorted(samples.iter().copied());
    let count = sorted.len();
    // Probability that this number of samples is below the median, and that at most so many are.
    let mut exactly = 0.5_f64.powi(i32::try_from(count).ok()?);
    let mut at_most = exactly;
    let mut left_out = None;
    for below in 0..count / 2 {
        if 2.0 * at_most > OUTSIDE {
            break;
        }
        left_out = Some(below);
        exactly *= (count - below) as f64 / (below + 1) as f64;
        at_most += exactly;
    }
    left_out.map(|left_out| [sorted[left_out], sorted[count - 1 - left_out]])
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
            Self::Undecided => "undecided",
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
    fn an_interval_leaves_out_what_the_sign_test_permits() {
        // Tables of the sign test at 5 %, two-sided.
        for (count, left_out) in [(5, None), (6, Some(0)), (8, Some(0)), (9, Some(1)), (20, Some(5)), (50, Some(17))] {
            let samples: Vec<f64> = (0..count).rev().map(f64::from).collect();
            let expect = left_out.map(|left_out: i32| [f64::from(left_out), f64::from(count - 1 - left_out)]);
            assert_eq!(interval(&samples), expect, "{count}");
        }
    }

    #[test]
    fn a_spread_is_the_minimum_and_the_median() {
        let spread = Spread::of(&[3.0, 1.0, 2.0]);
        assert_eq!(spread, Spread { best: 1.0, median: 2.0 });
        assert_eq!(spread.over(Spread { best: 2.0, median: 2.0 }), Spread { best: 0.5, median: 1.0 });
    }
}
