//! Reads values of annotations and settings: text in, value out. It reports nothing; an error describes valid values.

use std::{
    borrow::Cow, collections::BTreeSet, num::NonZeroU32, ops::RangeInclusive, str::FromStr, sync::Arc, time::Duration,
};

use crate::boolean;
use ingress_model::{Networks, Template, Variable, duration};

/// Description of valid values.
pub(super) type Expected = Cow<'static, str>;

pub(super) type Read<T = ()> = Result<T, Expected>;

pub(super) fn boolean(value: &str, field: &mut bool) -> Read {
    *field = boolean::boolean(value).ok_or("\"true\" or \"false\"")?;
    Ok(())
}

pub(super) fn switch(value: &str, field: &mut bool) -> Read {
    *field = match value {
        "on" => true,
        "off" => false,
        _ => return Err("\"on\" or \"off\"".into()),
    };
    Ok(())
}

/// Reads the name of a Secret, as it is written.
pub(super) fn secret(value: &str, field: &mut Option<String>) -> Read {
    *field = Some(value.to_owned()).filter(|name| !name.is_empty());
    field.is_some().then_some(()).ok_or_else(|| "a Secret".into())
}

/// Reads a time in whole seconds, up to a week. The special meaning of 0 for several keys of nginx does not exist here.
pub(super) fn seconds(value: &str, field: &mut Duration) -> Read {
    let is_whole = |time: &Duration| !time.is_zero() && time.subsec_nanos() == 0;
    *field =
        time(value).ok().filter(is_whole).ok_or("a number of seconds from 1 to 604800, or a time as `30s` or `10m`")?;
    Ok(())
}

/// Reads a time up to a week, in the grammar of [`duration`].
pub(super) fn time(value: &str) -> Read<Duration> {
    let time = duration::parse(value).filter(|time| *time <= Duration::from_hours(7 * 24));
    time.ok_or_else(|| "a time up to a week, as `30s`, `10m` or `1h`".into())
}

/// Reads a time from a millisecond to a day.
pub(super) fn span(value: &str, field: &mut Duration) -> Read {
    let day = Duration::from_millis(1)..=Duration::from_secs(86_400);
    *field =
        time(value).ok().filter(|time| day.contains(time)).ok_or("a time up to a day, as `500ms`, `10s` or `2m`")?;
    Ok(())
}

/// Reads a time from a second to a day.
pub(super) fn slow_span(value: &str, field: &mut Duration) -> Read {
    let day = Duration::from_secs(1)..=Duration::from_secs(86_400);
    *field = time(value).ok().filter(|time| day.contains(time)).ok_or("a time from `1s` to a day, as `10s` or `2m`")?;
    Ok(())
}

/// Reads a text with variables, without groups of regular expressions; `None` if it is empty.
pub(super) fn text(value: &str) -> Read<Option<Template>> {
    let template = Template::parse(value).map_err(|error| format!("a text with variables ({error})"))?;
    if template.variables().any(|variable| matches!(variable, Variable::Group(_))) {
        return Err("a text with variables other than `$1` to `$9`".into());
    }
    Ok(Some(template).filter(|_| !value.is_empty()))
}

/// Reads a number of bytes, with `k`, `m` or `g` behind it for powers of 1024.
pub(super) fn bytes(value: &str) -> Read<u64> {
    let (digits, unit) = match value.char_indices().next_back() {
        Some((at, 'b' | 'B')) => (&value[..at], 1),
        Some((at, 'k' | 'K')) => (&value[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&value[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&value[..at], 1 << 30),
        _ => (value, 1),
    };
    let count = Some(digits).filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
    let count = count.and_then(|digits| digits.parse::<u64>().ok()).and_then(|count| count.checked_mul(unit));
    count.ok_or_else(|| "a number of bytes, as `512`, `8k`, `20m` or `1g`".into())
}

/// Reads a limit in bytes; 0 means unlimited.
pub(super) fn limit(value: &str, field: &mut Option<u64>) -> Read {
    *field = Some(bytes(value)?).filter(|limit| *limit != 0);
    Ok(())
}

/// Reads a number up to `max`; 0 means none.
pub(super) fn count(value: &str, max: u32, field: &mut Option<NonZeroU32>) -> Read {
    let mut count = 0;
    number(value, 0..=max, &mut count).ok_or_else(|| format!("a number up to {max}"))?;
    *field = NonZeroU32::new(count);
    Ok(())
}

pub(super) fn networks(value: &str, field: &mut Networks) -> Read {
    *field = Networks::parse(value).map_err(|error| format!("networks, separated by commas ({error})"))?;
    Ok(())
}

/// Reads names of namespaces (RFC 1123 labels), separated by commas.
pub(super) fn namespaces(value: &str) -> Read<BTreeSet<Arc<str>>> {
    let is_label = |name: &str| {
        let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        name.len() <= 63 && name.bytes().all(fits) && !name.starts_with('-') && !name.ends_with('-')
    };
    let names = || value.split(',').map(str::trim).filter(|name| !name.is_empty());
    if names().all(is_label) {
        Ok(names().map(Arc::from).collect())
    } else {
        Err("namespaces, separated by commas".into())
    }
}

/// Reads a URI with variables, or a path.
pub(super) fn location(value: &str) -> Read<Template> {
    let template = Template::parse(value).map_err(|error| format!("a URI ({error})"))?;
    let is_uri = ["http://", "https://", "/", "$"].iter().any(|start| value.starts_with(start));
    if is_uri && value.bytes().all(|b| b.is_ascii_graphic() && b != b'"') {
        Ok(template)
    } else {
        Err("a URI that begins with `http://`, `https://`, `/` or a variable".into())
    }
}

/// Reads the status of a redirect.
pub(super) fn status(value: &str, field: &mut u16) -> Read {
    *field = match value {
        "301" => 301,
        "302" => 302,
        "303" => 303,
        "307" => 307,
        "308" => 308,
        _ => return Err("301, 302, 303, 307 or 308".into()),
    };
    Ok(())
}

/// Reads the name of a cookie, or the value of one of its attributes; `None` if it is empty.
pub(super) fn cookie_text(value: &str) -> Read<Option<Box<str>>> {
    let is_text = value.bytes().all(|b| b.is_ascii_graphic() && b != b';');
    if is_text { Ok(Some(value.into()).filter(|_| !value.is_empty())) } else { Err("text without `;`".into()) }
}

pub(super) fn number<T: FromStr + PartialOrd>(value: &str, range: RangeInclusive<T>, field: &mut T) -> Option<()> {
    *field = value.parse().ok().filter(|number| range.contains(number))?;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (value, expect) in [
            ("0", Some(0)),
            ("512", Some(512)),
            ("512b", Some(512)),
            ("8k", Some(8192)),
            ("8K", Some(8192)),
            ("20m", Some(20 << 20)),
            ("1g", Some(1 << 30)),
            ("", None),
            ("k", None),
            ("-1", None),
            ("+1", None),
            ("1t", None),
            ("1 k", None),
            ("é", None),
            ("99999999999g", None),
        ] {
            assert_eq!(bytes(value).ok(), expect, "{value}");
        }
    }

    #[test]
    fn times_have_units() {
        for (value, expect, is_span) in [
            ("0", Some(0), false),
            ("1", Some(1_000), true),
            ("500ms", Some(500), true),
            ("600s", Some(600_000), true),
            ("10m", Some(600_000), true),
            ("24h", Some(86_400_000), true),
            ("25h", Some(90_000_000), false),
            ("7d", Some(604_800_000), false),
            ("8d", None, false),
            ("s", None, false),
            ("", None, false),
            ("-1s", None, false),
            ("1h30m", Some(5_400_000), true),
            ("1é", None, false),
            ("18446744073709551615m", None, false),
        ] {
            assert_eq!(time(value).ok().map(|time| time.as_millis()), expect, "{value}");
            let mut taken = Duration::ZERO;
            assert_eq!(span(value, &mut taken).is_ok(), is_span, "{value}");
        }
    }

    #[test]
    fn locations_are_uris_or_paths() {
        for value in ["https://b.test$request_uri", "/new", "$scheme://b.test"] {
            assert!(location(value).is_ok(), "{value}");
        }
        for value in ["", "b.test", "ftp://b.test", "/a b", "https://b.test\r\nx: y", "/$nope"] {
            assert!(location(value).is_err(), "{value}");
        }
    }
}
