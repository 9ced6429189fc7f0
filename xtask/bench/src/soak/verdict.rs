//! The verdict of the law of clients that do not read, from the measured rounds.

use std::{fmt, time::Duration};

use crate::report::{Times, median};

pub(super) const RESIDENT_MAX: u64 = 200 << 20;
/// Permitted ratio of the 99th percentile under attack to that of the quiet phase.
const SLOWER_MAX: f64 = 2.0;
/// Percentiles below this are noise of the machine.
const NOISE: Duration = Duration::from_millis(1);
/// Percentage of the quiet phase's answers that the other phase must reach.
const ANSWERED_MIN: u64 = 80;

/// Results of some clients in one phase.
#[derive(Clone, Debug, Default)]
pub(super) struct Phase {
    pub(super) answered: u64,
    pub(super) failed: u64,
    pub(super) times: Times,
    pub(super) reasons: Vec<String>,
}

/// Results of one product, in quiet and under attack.
#[derive(Clone, Debug, Default)]
pub(super) struct Round {
    pub(super) quiet: Phase,
    pub(super) attacked: Phase,
    /// Under attack: clients of the attacked pod.
    pub(super) beside: Phase,
    /// Clients of the other pod without the product, in quiet and under attack. They show the machine's own share of
    /// the time.
    pub(super) direct: [Times; 2],
    /// Peak of the resident memory in bytes.
    pub(super) resident: u64,
    /// Number of processes that the kernel has killed for lack of memory.
    pub(super) killed: u64,
    pub(super) is_alive: bool,
    /// Requests of the attack that the product has seen, and their expected number.
    pub(super) asked: (u64, u64),
    /// Bytes of responses that the product has prepared for the attackers, which read none, and the minimum for an
    /// attack.
    pub(super) unread: (u64, u64),
}

/// All rounds of one protocol.
pub(super) struct Verdict<'r>(pub(super) &'r [Round]);

impl Verdict<'_> {
    /// Returns the medians of 99th percentiles: in quiet, and under attack.
    fn p99(&self) -> (Duration, Duration) {
        let of = |phase: fn(&Round) -> &Phase| {
            let seconds = median(self.0.iter().map(|round| phase(round).times.p99.as_secs_f64()));
            Duration::try_from_secs_f64(seconds).unwrap_or_default()
        };
        (of(|round| &round.quiet), of(|round| &round.attacked))
    }

    /// Returns descriptions of the conditions that do not hold.
    pub(super) fn broken(&self) -> Vec<String> {
        let mut broken: Vec<_> = self.0.iter().flat_map(Round::broken).collect();
        let (quiet, attacked) = self.p99();
        let is_slower = attacked.as_secs_f64() > SLOWER_MAX * quiet.max(NOISE).as_secs_f64();
        // Without answers the percentiles are zero.
        if is_slower || quiet.is_zero() {
            broken.push(format!("99 % of others have their answers within {attacked:.1?}, and {quiet:.1?} in quiet"));
        }
        broken
    }
}

impl fmt::Display for Verdict<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resident = self.0.iter().map(|round| round.resident).max().unwrap_or(0);
        let (quiet, attacked) = self.p99();
        let factor = attacked.as_secs_f64() / quiet.as_secs_f64();
        let mib = resident as f64 / f64::from(1 << 20);
        write!(
            f,
            "resident {mib:.0} MiB at most; 99 % within {attacked:.1?}, {quiet:.1?} in quiet: {factor:.1} times"
        )?;
        let broken = self.broken();
        if broken.is_empty() { f.write_str("; HELD") } else { write!(f, "; BROKEN: {}", broken.join("; ")) }
    }
}

impl Round {
    fn broken(&self) -> Vec<String> {
        let Self { quiet, attacked, beside, resident, killed, is_alive, asked, unread, direct: _ } = self;
        let mut broken = Vec::new();
        let mut law = |holds: bool, text: String| {
            if !holds {
                broken.push(text);
            }
        };
        law(*is_alive && *killed == 0, format!("the product ended; the kernel has killed {killed} for lack of memory"));
        law(*resident <= RESIDENT_MAX, format!("{resident} bytes are resident, of {RESIDENT_MAX}"));
        for phase in [quiet, attacked, beside] {
            law(phase.failed == 0, format!("{} requests got no answer: {:?}", phase.failed, phase.reasons));
            law(phase.answered > 0, "nobody was answered".into());
        }
        let enough = quiet.answered * ANSWERED_MIN / 100;
        law(attacked.answered >= enough, format!("{} answers, {} in quiet", attacked.answered, quiet.answered));
        law(asked.0 >= asked.1, format!("no attack: {} requests of {}", asked.0, asked.1));
        law(unread.0 >= unread.1, format!("no attack: {} bytes unread, of {} at least", unread.0, unread.1));
        broken
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quiet, attacked, beside, direct: [before, with], resident, asked, unread, .. } = self;
        writeln!(f, "  quiet: {quiet}; attacked: {attacked}; same pod: {beside}")?;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        write!(f, "  attack: {} requests, {:.0} MiB for them; ", asked.0, mib(unread.0))?;
        write!(f, "resident {:.0} MiB; not by the product: 99 % {:.1?}, {:.1?}", mib(*resident), before.p99, with.p99)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answered, failed, times: Times { p50, p99, p999 }, reasons: _ } = self;
        write!(f, "{answered} answers, {failed} failed, 50 % {p50:.1?}, 99 % {p99:.1?}, 99.9 % {p999:.1?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(answered: u64, p99_ms: u64) -> Phase {
        let times = Times { p99: Duration::from_millis(p99_ms), ..Times::default() };
        Phase { answered, times, ..Phase::default() }
    }

    fn good() -> Round {
        Round {
            quiet: phase(1000, 3),
            attacked: phase(950, 6),
            beside: phase(10, 50),
            direct: Default::default(),
            resident: RESIDENT_MAX,
            killed: 0,
            is_alive: true,
            asked: (7680, 7680),
            unread: (10, 10),
        }
    }

    #[test]
    fn a_broken_law_is_named() {
        assert_eq!(Verdict(&[good(), good()]).broken(), Vec::<String>::new());
        let failed = Phase { failed: 1, ..phase(1000, 3) };
        for (round, expect) in [
            (Round { is_alive: false, ..good() }, "the product ended"),
            (Round { killed: 1, ..good() }, "the kernel has killed 1"),
            (Round { resident: RESIDENT_MAX + 1, ..good() }, "bytes are resident"),
            (Round { quiet: failed.clone(), ..good() }, "got no answer"),
            (Round { attacked: Phase { failed: 1, ..good().attacked }, ..good() }, "got no answer"),
            (Round { beside: failed, ..good() }, "got no answer"),
            (Round { beside: phase(0, 1), ..good() }, "nobody was answered"),
            (Round { attacked: phase(799, 6), ..good() }, "799 answers, 1000 in quiet"),
            (Round { attacked: phase(1000, 7), ..good() }, "within 7.0ms, and 3.0ms in quiet"),
            (Round { asked: (7679, 7680), ..good() }, "no attack: 7679 requests"),
            (Round { unread: (9, 10), ..good() }, "no attack: 9 bytes"),
            (Round { quiet: phase(1000, 0), ..good() }, "0.0ns in quiet"),
        ] {
            let broken = Verdict(std::slice::from_ref(&round)).broken();
            assert!(broken.len() == 1 && broken[0].contains(expect), "{expect}: {broken:?}");
        }
        assert!(!Verdict(&[]).broken().is_empty(), "nothing was measured");
    }

    #[test]
    fn times_are_compared_by_medians_above_the_noise() {
        let slow = Round { attacked: phase(1000, 60), ..good() };
        assert_eq!(Verdict(&[good(), slow.clone(), good()]).broken(), Vec::<String>::new());
        assert_eq!(Verdict(&[slow.clone(), good(), slow]).broken().len(), 1);
        let tiny = |micros| Phase {
            times: Times { p99: Duration::from_micros(micros), ..Times::default() },
            ..phase(1000, 0)
        };
        assert_eq!(
            Verdict(&[Round { quiet: tiny(100), attacked: tiny(1900), ..good() }]).broken(),
            Vec::<String>::new()
        );
    }
}
