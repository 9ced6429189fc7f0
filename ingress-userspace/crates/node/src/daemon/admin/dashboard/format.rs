//! Texts of numbers, times and links.

use std::{borrow::Cow, time::Duration};

use maud::{Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::PREFIX;

/// Characters of names in paths that need no escape.
const KEPT: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'*');

/// Returns a number with commas between thousands.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a number of bytes with a decimal unit, such as `1.2 MB`.
pub(super) fn bytes(number: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if number < 1000 {
        return format!("{number} B");
    }
    let mut value = number as f64 / 1000.0;
    let mut unit = 0;
    // What would be shown as 1000.0 belongs to the next unit.
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Returns a duration with at most two units, such as `3 d 4 h` or `250 ms`.
pub(super) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let two = |large: u64, large_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large} {large_unit}"),
        _ => format!("{large} {large_unit} {small} {small_unit}"),
    };
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{seconds} s"),
        60..3600 => two(seconds / 60, "min", seconds % 60, "s"),
        3600..86_400 => two(seconds / 3600, "h", seconds % 3600 / 60, "min"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    }
}

/// Returns milliseconds with one decimal below ten.
pub(super) fn milliseconds(duration: Duration) -> String {
    let milliseconds = duration.as_secs_f64() * 1000.0;
    if milliseconds < 10.0 { format!("{milliseconds:.1}") } else { count(milliseconds.round() as u64) }
}

/// Returns the time element of a time in RFC 3339 and UTC.
pub(super) fn time(rfc3339: &str) -> Markup {
    let shown = rfc3339.trim_end_matches('Z').replacen('T', " ", 1);
    html! { time datetime=(rfc3339) { (shown) " UTC" } }
}

/// Returns `number` with the word that fits it.
pub(super) fn plural(number: usize, one: &str, many: &str) -> String {
    format!("{} {}", count(number as u64), if number == 1 { one } else { many })
}

/// Returns the text with a capital at the beginning and a full stop at the end.
pub(super) fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    let stop = if text.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{first}{}{stop}", chars.as_str())
}

/// Returns a sentence, see [`sentence`], with the parts between backticks as code. A backtick without its other half
/// stays.
pub(super) fn marked(text: &str) -> Markup {
    with_code(&sentence(text))
}

/// Returns the text with the parts between backticks as code.
pub(super) fn with_code(text: &str) -> Markup {
    let parts: Vec<_> = text.split('`').collect();
    // Parts at odd places are between two backticks, but for the last one.
    let is_code = |index: usize| index % 2 == 1 && index + 1 < parts.len();
    let is_open = |index: usize| index % 2 == 1 && index + 1 == parts.len();
    html! {
        @for (index, part) in parts.iter().enumerate() {
            @if is_code(index) { code { (part) } } @else if is_open(index) { "`" (part) } @else { (part) }
        }
    }
}

/// Returns the path of the page of a host.
pub(super) fn host_path(host: &str) -> String {
    format!("{PREFIX}/hosts/{}", utf8_percent_encode(host, &KEPT))
}

/// Returns a path with a query of the parameters that are not empty.
pub(super) fn path(page: &str, parameters: &[(&str, Cow<'_, str>)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in parameters.iter().filter(|(_, value)| !value.is_empty()) {
        query.append_pair(name, value);
    }
    let query = query.finish();
    if query.is_empty() { format!("{PREFIX}/{page}") } else { format!("{PREFIX}/{page}?{query}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        for (number, expected) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), expected);
        }
        for (number, expected) in
            [(999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_999, "1.0 MB"), (u64::MAX, "18.4 EB")]
        {
            assert_eq!(bytes(number), expected);
        }
        for (milliseconds, expected) in [
            (0, "0 ms"),
            (250, "250 ms"),
            (59_999, "59 s"),
            (60_000, "1 min"),
            (3_725_000, "1 h 2 min"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(duration(Duration::from_millis(milliseconds)), expected);
        }
        assert_eq!(milliseconds(Duration::from_micros(2540)), "2.5");
        assert_eq!(milliseconds(Duration::from_millis(1234)), "1,234");
    }

    #[test]
    fn links_keep_hostile_names_in_one_element() {
        assert_eq!(host_path("*.a.test"), "/dashboard/hosts/*.a.test");
        assert_eq!(host_path("a/../b?c#\"<"), "/dashboard/hosts/a%2F..%2Fb%3Fc%23%22%3C");
        assert_eq!(path("hosts", &[("name", "a&b".into()), ("sort", "".into())]), "/dashboard/hosts?name=a%26b");
    }

    #[test]
    fn error_texts_become_sentences() {
        assert_eq!(sentence("there is no page `/x`"), "There is no page `/x`.");
        assert_eq!(sentence(""), ".");
    }

    #[test]
    fn parts_between_backticks_become_code() {
        for (text, expected) in [
            ("the Service `a/b` has no port `x`", "The Service <code>a/b</code> has no port <code>x</code>."),
            ("one ` alone", "One ` alone."),
            ("`<b>`", "<code>&lt;b&gt;</code>."),
        ] {
            assert_eq!(marked(text).into_string(), expected);
        }
    }
}
