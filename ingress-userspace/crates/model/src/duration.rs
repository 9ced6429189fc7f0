//! The one grammar of durations, on the command line, in annotations and in settings. It holds those of nginx and of Go.
//!
//! A duration is a number of seconds, which may have a fraction, or a sequence of numbers with units, such as `1h30m`. The
//! units are `ms`, `s`, `m`, `h`, `d`, `w`, `M` (30 days) and `y` (365 days). Libraries either know no bare number and no
//! days, or also know names of units.

use std::time::Duration;

const DAY: Duration = Duration::from_hours(24);

/// Units, each with its name, in descending order.
pub const UNITS: [(&str, Duration); 8] = [
    ("y", Duration::from_hours(365 * 24)),
    ("M", Duration::from_hours(30 * 24)),
    ("w", Duration::from_hours(7 * 24)),
    ("d", DAY),
    ("h", Duration::from_hours(1)),
    ("m", Duration::from_mins(1)),
    ("s", Duration::from_secs(1)),
    ("ms", Duration::from_millis(1)),
];

/// Returns `None` if the text is no duration, or is too long for one.
#[must_use]
pub fn parse(text: &str) -> Option<Duration> {
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    if let Ok(seconds) = text.parse() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let mut sum = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let is_of_number = |c: char| c.is_ascii_digit() || c == '.';
        let (number, after) = rest.split_at(rest.find(|c| !is_of_number(c))?);
        let (name, after) = after.split_at(after.find(is_of_number).unwrap_or(after.len()));
        let (_, unit) = UNITS.iter().find(|(known, _)| *known == name)?;
        let part = match number.parse::<u32>() {
            Ok(count) => unit.checked_mul(count),
            Err(_fraction) => Duration::try_from_secs_f64(number.parse::<f64>().ok()? * unit.as_secs_f64()).ok(),
        };
        sum = sum.checked_add(part?)?;
        rest = after;
    }
    (!text.is_empty()).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_nginx_and_go_are_parsed() {
        for (text, seconds) in [
            ("45", 45.0),
            ("0.25", 0.25),
            ("500ms", 0.5),
            ("30s", 30.0),
            ("1h30m", 5_400.0),
            ("1.5h", 5_400.0),
            ("1d2h3m4s5ms", 93_784.005),
            ("2w", 1_209_600.0),
            ("1M", 2_592_000.0),
            ("1y", 31_536_000.0),
            ("1m1M", 2_592_060.0),
        ] {
            assert_eq!(parse(text), Some(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in ["", "h", "1H", "1 h", "-1", "-1s", "1h30", "soon", "1..5s", "1s,", "1µs", "99999999999999999999d"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
