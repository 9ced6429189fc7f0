//! Parses and writes `traceparent` (W3C Trace Context), which identifies the trace of a request. Pure; ids are
//! arguments.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::http::fields::Field;

pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub(crate) const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// A position in a trace. Neither id is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceContext {
    pub(super) trace: u128,
    pub(super) span: u64,
    /// Whether the services called next should record the trace.
    pub(super) sampled: bool,
}

impl TraceContext {
    /// Parses the `traceparent` of a request, if there is exactly one and it is valid (section 3.2).
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        Self::parse(Field::of(headers, &TRACEPARENT).once()?.to_str().ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(5, '-');
        let [version, trace, span, flags] = std::array::from_fn(|_| parts.next().unwrap_or_default());
        // Later versions may append fields; version 255 is invalid.
        let is_known = match number(version, 2)? {
            0 => parts.next().is_none(),
            255 => false,
            _ => true,
        };
        let (trace, span) = (number(trace, 32)?, number(span, 16)?);
        let context = Self { trace, span: u64::try_from(span).ok()?, sampled: number(flags, 2)? & 1 == 1 };
        (is_known && trace != 0 && span != 0).then_some(context)
    }

    pub(crate) fn header(self) -> Option<HeaderValue> {
        let Self { trace, span, sampled } = self;
        HeaderValue::try_from(format!("00-{trace:032x}-{span:016x}-0{}", u8::from(sampled))).ok()
    }
}

/// Parses exactly `digits` hexadecimal digits in lower case.
fn number(text: &str, digits: usize) -> Option<u128> {
    let is_hex = text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    u128::from_str_radix(text, 16).ok().filter(|_| is_hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn of(values: &[&str]) -> Option<TraceContext> {
        let field = |value: &&str| (TRACEPARENT, value.parse().expect("a value"));
        TraceContext::of(&values.iter().map(field).fold(HeaderMap::new(), |mut headers, (name, value)| {
            headers.append(name, value);
            headers
        }))
    }

    #[test]
    fn valid_traceparents_round_trip() {
        let context = of(&[GOOD]).expect("in order");
        assert_eq!((context.trace, context.span), (0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c, 0xb7ad_6b71_6920_3331));
        assert!(context.sampled);
        assert_eq!(context.header().expect("a value"), GOOD);
        let unsampled = of(&[&GOOD.replace("-01", "-02")]).expect("in order");
        assert_eq!(unsampled.header().expect("a value"), GOOD.replace("-01", "-00").as_str());
        for later in
            ["cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-else", &GOOD.replacen("00", "01", 1)]
        {
            assert_eq!(of(&[later]), Some(context), "{later}");
        }
    }

    #[test]
    fn invalid_traceparents_are_ignored() {
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[GOOD, GOOD]), None);
        for bad in [
            "",
            "00",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00 0af7651916cd43dd8448eb211c80319c b7ad6b7169203331 01",
        ] {
            assert_eq!(of(&[bad]), None, "{bad}");
        }
    }
}
