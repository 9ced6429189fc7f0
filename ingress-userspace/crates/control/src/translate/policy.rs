//! The policy of one Ingress: the filters of its rules, how they forward, and whether they may be served. `features`
//! make it, `ingress` applies it to rules.

use std::sync::Arc;

use k8s_openapi::api::networking::v1::IngressBackend;

use crate::change::ObjectName;

use super::{
    backend_policy::BackendPolicy,
    compiled_expressions::Cost,
    features::{
        aliases::ParsedAliases,
        authentication::{unauthenticated, unclaimed},
        client_certificates::Clients,
        https_redirect::Redirect,
        redirects::Redirects,
        rewrite::ParsedRewrite,
        session_affinity::with_path,
        upstream_host::ParsedUpstreamHost,
    },
};
use ingress_model::{CanaryRule, Filter, Forwarding, PathError, PathMatch};

/// The effect of one Ingress's annotations on its rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policy {
    pub(crate) redirect: Redirect,
    pub(crate) service: Service,
    pub(crate) backend: BackendPolicy,
    /// The requests that a canary takes from another Ingress's rules; a canary has no rules of its own.
    pub(crate) canary: Option<CanaryRule>,
    /// Certificates that clients of its hosts must have.
    pub(crate) clients: Clients,
    /// Whether TLS connections are passed through to pods.
    pub(crate) passes: bool,
    /// Whether HTTP/3 serves none of its hosts.
    pub(crate) refuses_http3: bool,
    pub(crate) redirects: Redirects,
    pub(crate) aliases: ParsedAliases,
    /// Namespaces that may add paths to its hosts.
    pub(crate) shares_with: Arc<[Arc<str>]>,
    pub(crate) forwarding: Arc<Forwarding>,
    /// Paths without authentication.
    pub(crate) unauthenticated: Arc<[PathMatch]>,
    pub(crate) rewrite: ParsedRewrite,
    /// Cost of the regular expressions of its filters.
    pub(crate) expressions: Cost,
    /// Filters before the rewrite; `after` has those behind it.
    pub(crate) before: Vec<Filter>,
    pub(crate) host: ParsedUpstreamHost,
    pub(crate) after: Vec<Filter>,
}

/// Whether the Ingress can be served as intended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Service {
    #[default]
    Full,
    /// A protection that it asks for is missing, so its rules answer an error.
    Refuse,
}

// === impl Policy ===

impl Policy {
    /// Returns the policy of an ACME solver: settings that the operator made for all Ingresses must not block a
    /// challenge.
    pub(crate) fn of_solver() -> Self {
        Self { redirect: Redirect::Never, ..Self::default() }
    }

    /// Returns `true` if paths of kind `path_type` are regular expressions.
    pub(crate) fn has_patterns(&self, path_type: &str) -> bool {
        self.rewrite.uses_patterns() && matches!(path_type, "Prefix" | "ImplementationSpecific")
    }

    /// Returns `true` if ingress-nginx matches all paths of a host with this path as regular expressions.
    pub(crate) fn makes_expressions(&self, path: &str) -> bool {
        self.rewrite.makes_expressions(path)
    }

    /// Returns `true` if its rules are counted separately.
    pub(crate) fn is_metered(&self) -> bool {
        self.forwarding.metered
    }

    /// Switches separate counting of its rules off. Returns `true` if it was on.
    pub(crate) fn stop_metering(&mut self) -> bool {
        self.forwarding.metered && {
            Arc::make_mut(&mut self.forwarding).metered = false;
            true
        }
    }

    /// Returns `true` if its filters use the groups of expressions.
    pub(crate) const fn wants_groups(&self) -> bool {
        self.rewrite.wants_groups()
    }

    /// Returns the match of a path of kind `path_type`, for paths that are not regular expressions. Without a kind, the
    /// controller chooses.
    pub(crate) fn path(path: &str, path_type: &str) -> Option<Result<PathMatch, PathError>> {
        Some(match path_type {
            "Exact" => PathMatch::exact(path),
            "Prefix" | "ImplementationSpecific" => PathMatch::prefix(path),
            _ => return None,
        })
    }

    /// Returns the forwarding of a rule for `path`. A cookie without a path of its own gets that of the rule.
    pub(crate) fn forwarding(&self, path: &PathMatch) -> Arc<Forwarding> {
        with_path(&self.forwarding, path)
    }

    /// Returns the filters of a rule of `ingress` for `path`, with the `backend` that it names. The redirect to HTTPS, which comes before them, depends on the claims
    /// of all Ingresses.
    pub(crate) fn filters(
        &self,
        path: &PathMatch,
        ingress: &ObjectName,
        backend: Option<&IngressBackend>,
    ) -> Vec<Filter> {
        let rewrite = self.rewrite.filter(path);
        let is_open = self.is_unauthenticated(path);
        let before = self
            .before
            .iter()
            .filter_map(|filter| if is_open { unauthenticated(filter) } else { Some(filter.clone()) });
        let unclaimed = if is_open { self.before.iter().find_map(unclaimed) } else { None };
        let host = self.host.filter(ingress, backend);
        before.chain(rewrite).chain(host).chain(unclaimed).chain(self.after.iter().cloned()).collect()
    }

    fn is_unauthenticated(&self, path: &PathMatch) -> bool {
        match path {
            PathMatch::Exact(path) | PathMatch::Prefix(path) => {
                self.unauthenticated.iter().any(|open| open.matches(path))
            }
            // The paths that an expression matches are not known.
            PathMatch::Pattern(_) | PathMatch::Beginning(_) => false,
        }
    }
}
