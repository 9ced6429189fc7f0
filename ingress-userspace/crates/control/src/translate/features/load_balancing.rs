//! Choice of the pod for a request.

use std::borrow::Cow;

use super::row::{Row, key};
use crate::translate::values::Read;
use ingress_model::{Balance, Template};

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedLoadBalancing>] = &[
    key(
        "load-balance",
        "how pods share requests: `round_robin`, `ewma` (of two pods, the one with the shorter expected response \
         time) or, specific to xdp-ingress, `least_request` (of two, the one with fewer requests)",
    )
    .differs("`upstream-hash-by` and `affinity` alone choose hashing and sticky sessions")
    .default("round_robin")
    .notes(note)
    .reads(|value, parsed| {
        parsed.balance = balance(value)?;
        Ok(())
    }),
    key(
        "upstream-hash-by",
        "a text with variables, as `$request_uri`; requests with the same text go to the same pod while it exists. It \
         takes precedence over `load-balance`",
    )
    .differs("variables of nginx that are not listed for annotations are refused")
    .reads(|value, parsed| {
        let template = Template::parse(value).map_err(|error| format!("a text with variables ({error})"))?;
        parsed.hash_by = (!value.is_empty()).then_some(template);
        Ok(())
    }),
];

/// Explains names of balancers that other keys choose here.
fn note(value: &str) -> Option<Cow<'static, str>> {
    Some(match value {
        "chash" | "chashsubset" => "`upstream-hash-by` chooses it; without that, `round_robin` applies".into(),
        "sticky_balanced" | "sticky_persistent" => {
            "`affinity` and `affinity-mode` choose it; without these, `round_robin` applies".into()
        }
        "least_conn" => "`least_request` applies".into(),
        _ => return None,
    })
}

/// Sorted by name.
pub(super) const DEFAULTS: &[Row<ParsedLoadBalancing>] = &[key(
    "load-balance",
    "how pods share requests, unless an Ingress overrides it: `round_robin`, `ewma` or `least_request`",
)
.differs("`upstream-hash-by` and `affinity` alone choose hashing and sticky sessions")
.default("round_robin")
.notes(note)
.reads(|value, parsed| {
    parsed.balance = balance(value)?;
    Ok(())
})];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedLoadBalancing {
    balance: Balance,
    /// Takes precedence over `balance`.
    hash_by: Option<Template>,
}

// === impl ParsedLoadBalancing ===

impl ParsedLoadBalancing {
    pub(super) fn build(&self) -> Balance {
        self.hash_by.clone().map_or_else(|| self.balance.clone(), Balance::Hash)
    }
}

/// Reads `round_robin`, `ewma` or `least_request`, and the further names of ingress-nginx.
fn balance(value: &str) -> Read<Balance> {
    Ok(match value {
        "round_robin" | "chash" | "chashsubset" | "sticky_balanced" | "sticky_persistent" => Balance::RoundRobin,
        "least_conn" => Balance::LeastRequest,
        "ewma" => Balance::Ewma,
        "least_request" => Balance::LeastRequest,
        _ => return Err("`round_robin`, `ewma` or `least_request`".into()),
    })
}
