//! Paths that are regular expressions, and paths for pods.

use std::sync::Arc;

use super::row::{Row, key};
use crate::translate::values::boolean;
use ingress_model::{Filter, PathMatch, Rewrite, Template};

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedRewrite>] = &[
    key(
        "rewrite-target",
        "path for pods, instead of the client's; the rule's path is then a regular expression, and `$1` … `$9` are \
         its groups. The query stays. With a URL, clients are redirected to it, with 302",
    )
    .differs("holds groups and no other variables, and none in the host of a URL")
    .or_refuse()
    .not_on_routes("write a filter `URLRewrite`")
    .reads(|value, parsed| {
        parsed.rewrite_target = Some(Rewrite::parse(value).map_err(|error| format!("a path ({error})"))?);
        Ok(())
    }),
    key(
        "use-regex",
        "whether paths are regular expressions, matched from the start of the path and without regard to case. \
         Applies only to this Ingress; with ingress-nginx's class, this key and `rewrite-target` apply to all paths \
         that the owner of the host has there. Look-around is not supported",
    )
    .differs("applies to no paths that other namespaces have on its hosts; look-around and back references are refused")
    .default("false")
    .or_refuse()
    .not_on_routes("write matches of type `Exact` or `PathPrefix`")
    .reads(|value, parsed| boolean(value, &mut parsed.use_regex)),
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedRewrite {
    use_regex: bool,
    rewrite_target: Option<Template>,
}

// === impl ParsedRewrite ===

impl ParsedRewrite {
    /// Returns `true` if prefixes are regular expressions.
    pub(crate) const fn uses_patterns(&self) -> bool {
        self.use_regex || self.rewrite_target.is_some()
    }

    /// Returns `true` if ingress-nginx matches all paths of a host with this path as regular expressions. A rewrite to
    /// the same path does not count.
    pub(crate) fn makes_expressions(&self, path: &str) -> bool {
        self.use_regex || self.rewrite_target.as_ref().is_some_and(|target| target.to_string() != path)
    }

    /// Returns `true` if the filter uses the groups of expressions.
    pub(crate) const fn wants_groups(&self) -> bool {
        self.rewrite_target.is_some()
    }

    /// Returns the filter of a rule for `path`.
    pub(crate) fn filter(&self, path: &PathMatch) -> Option<Filter> {
        let target = self.rewrite_target.clone()?;
        let pattern = match path {
            PathMatch::Pattern(pattern) => pattern.alone().cloned(),
            PathMatch::Exact(_) | PathMatch::Prefix(_) | PathMatch::Beginning(_) => None,
        };
        Some(Filter::Rewrite(Arc::new(Rewrite::to(target, pattern))))
    }
}
