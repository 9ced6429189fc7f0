//! Ingresses that take a share of the requests for another one's rules.

use http::{HeaderName, HeaderValue};

use super::row::{Row, key};
use crate::translate::values::{boolean, cookie_text, number};
use ingress_model::{CanaryRule, CanarySessions, CanaryValue, Pattern};

const INSTEAD: &str = "give `backendRefs` weights, or write a rule with `matches` of header fields";

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedCanary>] = &[
    key(
        "affinity-canary-behavior",
        "for a canary of rules with `affinity`: `sticky` keeps clients where their sessions began, with the canary or \
         without it, and ignores the canary's header, cookie and weight; `legacy` ignores sessions",
    )
    .default("sticky")
    .not_on_routes(INSTEAD)
    .reads(|value, parsed| {
        parsed.rule.sessions = match value {
            "sticky" => CanarySessions::Kept,
            "legacy" => CanarySessions::Ignored,
            _ => return Err("`sticky` or `legacy`".into()),
        };
        Ok(())
    }),
    key(
        "canary",
        "whether the Ingress takes only a part of the requests for another Ingress's rules with the same host and \
         path, in its namespace. TLS and the other annotations come from that Ingress",
    )
    .default("false")
    .or_refuse()
    .not_on_routes(INSTEAD)
    .reads(|value, parsed| boolean(value, &mut parsed.is_canary)),
    key("canary-by-cookie", "a cookie that selects the canary (`always`) or avoids it (`never`)")
        .not_on_routes(INSTEAD)
        .reads(|value, parsed| {
            parsed.rule.cookie = cookie_text(value)?;
            Ok(())
        }),
    key(
        "canary-by-header",
        "a header field that selects the canary (`always`) or avoids it (`never`); the header takes precedence over \
         the cookie, and the cookie over the weight",
    )
    .or_refuse()
    .not_on_routes(INSTEAD)
    .reads(|value, parsed| {
        parsed.header = Some(HeaderName::try_from(value).map_err(|_invalid| "the name of a header field")?);
        Ok(())
    }),
    key(
        "canary-by-header-pattern",
        "a regular expression that selects the canary if it matches a part of that field's value, instead of `always` \
         or `never`. A value does not match if its bytes times the states of the expression exceed 262,144",
    )
    .differs("look-around and back references are refused")
    .or_refuse()
    .not_on_routes(INSTEAD)
    .reads(|value, parsed| {
        let pattern = Pattern::within_field(value).map_err(|error| format!("a regular expression ({error})"))?;
        parsed.pattern = (!value.is_empty()).then_some(pattern);
        Ok(())
    }),
    key(
        "canary-by-header-value",
        "value of that field that selects the canary, instead of `always` or `never`; it takes precedence over the \
         expression",
    )
    .or_refuse()
    .not_on_routes(INSTEAD)
    .reads(|value, parsed| {
        let value = HeaderValue::from_str(value).map_err(|_invalid| "the value of a header field")?;
        parsed.value = Some(value).filter(|value| !value.is_empty());
        Ok(())
    }),
    key("canary-weight", "number of requests, of each `canary-weight-total`, that go to the canary at random")
        .default("0")
        .not_on_routes(INSTEAD)
        .reads(|value, parsed| {
            number(value, 0..=1_000_000_000, &mut parsed.rule.weight).ok_or("a number")?;
            Ok(())
        }),
    key("canary-weight-total", "total of the weights, see `canary-weight`")
        .default("100")
        .not_on_routes(INSTEAD)
        .reads(|value, parsed| {
            number(value, 1..=1_000_000_000, &mut parsed.rule.total).ok_or("a number from 1")?;
            Ok(())
        }),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedCanary {
    is_canary: bool,
    /// Without the required value of its header.
    rule: CanaryRule,
    header: Option<HeaderName>,
    value: Option<HeaderValue>,
    pattern: Option<Pattern>,
}

impl Default for ParsedCanary {
    fn default() -> Self {
        let rule = CanaryRule { total: 100, ..CanaryRule::default() };
        Self { is_canary: false, rule, header: None, value: None, pattern: None }
    }
}

// === impl ParsedCanary ===

impl ParsedCanary {
    /// Returns the requests that the Ingress takes from another one's rules, if it is a canary.
    pub(super) fn build(self) -> Option<CanaryRule> {
        let Self { is_canary, mut rule, header, value, pattern } = self;
        let value = match (value, pattern) {
            (Some(value), _) => CanaryValue::Exactly(value),
            (None, Some(pattern)) => CanaryValue::Like(pattern),
            (None, None) => CanaryValue::Word,
        };
        rule.header = header.map(|name| (name, value));
        is_canary.then_some(rule)
    }
}
