//! Requests that are answered before they reach a pod: denied paths, and redirects with conditions.

use std::sync::Arc;

use super::row::{Row, key};
use crate::translate::{compiled_expressions::Cost, values::Expected};
use ingress_model::{ExpressionCost, Filter, RequestRuleError, RequestRules};

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedRequestRules>] = &[
    key(
        "deny-paths",
        "paths that are not served, separated by commas or lines: `/path` and all that begins with it, `= /path` alone, \
         `~ expression`, or `~* expression` without regard to case. `=404` at the end is the status, 403 without one; \
         `!` in front exempts a path from later entries. A path is refused if a pod may read it as a denied one, for \
         example with `%2f` or `..;`. At most 64 entries, 32 of them expressions. Specific to xdp-ingress",
    )
    .or_refuse()
    .reads(|value, parsed| {
        parsed.denied = RequestRules::deny_paths(value).map_err(|error| expected("paths", &error))?;
        Ok(())
    }),
    key(
        "redirect-rules",
        "redirects with conditions, one per line: `host = old.example.com and path ~ ^/a/(.*) -> 301 https://b.example/$1`. \
         The first rule whose conditions hold answers, with 302 without a status; a status from 400 to 599 alone refuses, \
         if the conditions hold for any line of a field, or any cookie or argument of the name. A status from 200 to 299, \
         as `200 \"ok\"`, answers with a plain text. `rewrite /$1` changes the path for pods and leaves the other rules \
         out; `rewrite-target` takes precedence. `client = 10.0.0.0/8` is a network. A text that \
         takes too long to search meets the condition of a refusal; for other rules, the request gets 431. At most 64 rules \
         with 256 conditions, 32 of them expressions. Specific to xdp-ingress",
    )
    .or_refuse()
    .reads(|value, parsed| {
        parsed.redirects = RequestRules::redirects(value).map_err(|error| expected("a rule a line", &error))?;
        Ok(())
    }),
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedRequestRules {
    denied: RequestRules,
    redirects: RequestRules,
}

// === impl ParsedRequestRules ===

impl ParsedRequestRules {
    /// Returns the filters, denied paths first, and the cost of their expressions.
    pub(super) fn filters(self) -> (impl Iterator<Item = Filter>, Cost) {
        let Self { denied, redirects } = self;
        let ExpressionCost { count, bytes } = denied.cost();
        let mut cost = Cost { count, bytes };
        let ExpressionCost { count, bytes } = redirects.cost();
        cost += Cost { count, bytes };
        let lists = [denied, redirects].into_iter().filter(|rules| !rules.is_empty());
        (lists.map(|rules| Filter::RequestRules(Arc::new(rules))), cost)
    }
}

fn expected(what: &str, error: &RequestRuleError) -> Expected {
    format!("{what} ({error})").into()
}
