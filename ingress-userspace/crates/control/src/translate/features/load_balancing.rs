//! Choice of the pod for a request.

use std::borrow::Cow;

use super::row::{Row, key};
use crate::translate::values::{Read, boolean, number};
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
    key(
        "upstream-hash-by-subset",
        "whether requests with the same text of `upstream-hash-by` are spread over a few pods instead of one",
    )
    .differs("subsets of different texts may have pods in common")
    .default("false")
    .reads(|value, parsed| boolean(value, &mut parsed.chooses_subset)),
    key("upstream-hash-by-subset-size", "number of pods in each subset of `upstream-hash-by-subset`, up to 100")
        .differs("subsets of different texts may have pods in common; at most 100 pods")
        .default("3")
        .reads(|value, parsed| {
            number(value, 1..=100, &mut parsed.subset_size).ok_or_else(|| "a number from 1 to 100".into())
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedLoadBalancing {
    balance: Balance,
    /// Takes precedence over `balance`.
    hash_by: Option<Template>,
    /// Whether `hash_by` chooses a subset of the pods.
    chooses_subset: bool,
    subset_size: usize,
}

impl Default for ParsedLoadBalancing {
    fn default() -> Self {
        Self { balance: Balance::default(), hash_by: None, chooses_subset: false, subset_size: 3 }
    }
}

// === impl ParsedLoadBalancing ===

impl ParsedLoadBalancing {
    pub(super) fn build(&self) -> Balance {
        match &self.hash_by {
            None => self.balance.clone(),
            Some(by) if self.chooses_subset => Balance::Subset { by: by.clone(), size: self.subset_size },
            Some(by) => Balance::Hash(by.clone()),
        }
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
