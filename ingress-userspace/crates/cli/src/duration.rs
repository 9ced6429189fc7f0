//! Durations on the command line, in the grammar of `ingress_control::duration`, with their ranges.

use std::time::Duration;

use ingress_control::duration::{UNITS, parse};

/// Maximum of durations that have one.
pub const YEAR: Duration = Duration::from_hours(365 * 24);

/// Parses any duration.
///
/// # Errors
/// Names the text, and the forms that are accepted.
pub fn any(text: &str) -> Result<Duration, String> {
    at_least(text, Duration::ZERO)
}

/// Parses a duration of more than zero.
///
/// # Errors
/// Fails like [`any`].
pub fn positive(text: &str) -> Result<Duration, String> {
    parse(text).filter(|time| !time.is_zero()).ok_or_else(|| invalid(text, "more than 0s"))
}

/// Parses a duration of at least `least`.
///
/// # Errors
/// Fails like [`any`].
pub fn at_least(text: &str, least: Duration) -> Result<Duration, String> {
    let wanted = || format!("{} or more", show(least));
    parse(text).filter(|time| *time >= least).ok_or_else(|| invalid(text, &wanted()))
}

/// Parses a duration from `least` to `most`, both included.
///
/// # Errors
/// Fails like [`any`].
pub fn between(text: &str, least: Duration, most: Duration) -> Result<Duration, String> {
    let wanted = || format!("{} to {}", show(least), show(most));
    parse(text).filter(|time| (least..=most).contains(time)).ok_or_else(|| invalid(text, &wanted()))
}

/// Returns the message about a text that is no duration in the `wanted` range.
#[must_use]
pub fn invalid(text: &str, wanted: &str) -> String {
    format!("invalid duration `{text}`: use {wanted}, for example `30s`, `10m`, `12h`")
}

/// Returns `time` in the largest unit that divides it.
fn show(time: Duration) -> String {
    let whole = |(name, unit): &(&str, Duration)| {
        let is_whole = time >= *unit && time.as_nanos().is_multiple_of(unit.as_nanos());
        is_whole.then(|| format!("{}{name}", time.as_nanos() / unit.as_nanos()))
    };
    UNITS
        .iter()
        .filter(|(_, unit)| *unit <= Duration::from_hours(24))
        .find_map(whole)
        .unwrap_or_else(|| format!("{}s", time.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_one_grammar() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("12h", 43_200_000),
            ("7d", 604_800_000),
            ("1h30m", 5_400_000),
            ("1d2h3m4s5ms", 93_784_005),
            ("1.5h", 5_400_000),
            ("0", 0),
            ("0s", 0),
            ("45", 45_000),
            ("+45", 45_000),
            ("0.25", 250),
            (".5", 500),
            ("1e3", 1_000_000),
        ] {
            assert_eq!(any(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(any("18446744073709551615"), Ok(Duration::from_secs(u64::MAX)), "to the last second");
    }

    #[test]
    fn other_texts_are_refused() {
        let texts = ["", "h", "1 h", "-1", "-1s", "1h30", "1H", "soon", "inf", "NaN", "1..5s", "1s,", "1µs"];
        for text in texts.into_iter().chain(["99999999999999999999d", "99999999999999999999"]) {
            assert!(any(text).is_err(), "{text}");
        }
    }

    #[test]
    fn errors_name_the_range_and_examples() {
        let second = Duration::from_secs(1);
        assert_eq!(
            between("x", second, YEAR).expect_err("no duration"),
            "invalid duration `x`: use 1s to 365d, for example `30s`, `10m`, `12h`"
        );
        for (wrong, range) in [
            (between("366d", second, YEAR), "1s to 365d"),
            (between("999ms", second, YEAR), "1s to 365d"),
            (at_least("0.05", Duration::from_millis(100)), "100ms or more"),
            (at_least("1h", Duration::from_mins(90)), "90m or more"),
            (positive("0"), "more than 0s"),
            (any("-1"), "0s or more"),
        ] {
            let error = wrong.expect_err(range);
            assert!(error.contains(&format!(": use {range}, for")), "{error}");
        }
        assert_eq!(between("365d", second, YEAR), Ok(YEAR));
    }
}
