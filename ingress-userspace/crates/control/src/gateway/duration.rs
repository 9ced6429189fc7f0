//! Durations as the Gateway API writes them (GEP-2257).

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A duration, as it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GatewayDuration(pub Box<str>);

const MAX_PARTS: usize = 4;
const MAX_DIGITS: usize = 5;

// === impl GatewayDuration ===

impl GatewayDuration {
    /// Returns the duration: one to four numbers of one to five digits with the unit `h`, `m`, `s` or `ms`, as in
    /// `1h30m`. Returns `None` for any other text. The API server lets no other text pass, but files may hold it.
    #[must_use]
    pub fn parse(&self) -> Option<Duration> {
        let mut rest = &*self.0;
        let mut sum = Duration::ZERO;
        for _ in 0..MAX_PARTS {
            let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
            let (unit, after) = after.split_at(after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len()));
            let milliseconds = match unit {
                "h" => 3_600_000,
                "m" => 60_000,
                "s" => 1_000,
                "ms" => 1,
                _ => return None,
            };
            if number.len() > MAX_DIGITS {
                return None;
            }
            sum += Duration::from_millis(number.parse::<u64>().ok()? * milliseconds);
            if after.is_empty() {
                return Some(sum);
            }
            rest = after;
        }
        None
    }
}

impl From<&str> for GatewayDuration {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_grammar_of_the_api() {
        for (text, millis) in [
            ("0s", 0),
            ("0h", 0),
            ("10ms", 10),
            ("00001s", 1_000),
            ("1h", 3_600_000),
            ("1h30m", 5_400_000),
            ("1h2m3s4ms", 3_723_004),
            ("30s1h", 3_630_000),
            ("1s1s1s1s", 4_000),
            ("99999h99999h99999h99999h", 4 * 99_999 * 3_600_000),
        ] {
            assert_eq!(GatewayDuration::from(text).parse(), Some(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn other_texts_are_no_durations() {
        for text in [
            "",
            "1",
            "s",
            "1d",
            "1us",
            "1.5s",
            "-1s",
            "+1s",
            "1 s",
            " 1s",
            "1s ",
            "1S",
            "1msms",
            "1hm",
            "100000s",
            "1s1s1s1s1s",
            "1h30",
            "١s",
            "1µs",
        ] {
            assert_eq!(GatewayDuration::from(text).parse(), None, "{text}");
        }
    }
}
