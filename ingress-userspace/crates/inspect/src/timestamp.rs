//! Times in documents.

use jiff::Timestamp;

/// Returns a Unix time as text of RFC 3339 in UTC, such as `2026-11-26T10:00:00Z`. A time outside the years -9999 to
/// 9999 becomes the nearest one.
#[must_use]
pub fn timestamp(unix_seconds: i64) -> String {
    Timestamp::from_second(unix_seconds)
        .unwrap_or(if unix_seconds < 0 { Timestamp::MIN } else { Timestamp::MAX })
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_utc_and_total() {
        assert_eq!(timestamp(1_795_687_200), "2026-11-26T10:00:00Z");
        assert!(timestamp(i64::MAX).starts_with("9999-12-"));
        assert!(timestamp(i64::MIN).starts_with("-009999-01-"));
    }
}
