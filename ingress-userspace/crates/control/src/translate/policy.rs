//! The policy of one Ingress: the filters of its rules, how they forward, and whether they may be served. `annotations`
//! makes it, `ingress` applies it to rules.

use std::sync::Arc;

use super::{backend_protocol::Wanted, destination::Through, parsed_tls::ParsedTls};
use ingress_model::{
    Affinity, CanaryRule, ClientCertificates, Filter, Forwarding, HeaderEdit, HeaderEdits, HealthPolicy, Host,
    PathError, PathMatch, ProxyVersion, Rewrite, Satisfy, SessionCookie, Template,
};

/// The effect of one Ingress's annotations on its rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policy {
    pub(crate) redirect: Redirect,
    pub(crate) service: Service,
    pub(crate) protocol: Wanted,
    pub(crate) through: Through,
    /// The requests that a canary takes from another Ingress's rules; a canary has no rules of its own.
    pub(crate) canary: Option<CanaryRule>,
    /// Certificates that clients of its hosts must have.
    pub(crate) clients: Clients,
    /// Whether TLS connections are passed through to pods.
    pub(crate) passes: bool,
    /// TLS with pods.
    pub(crate) backend_tls: Option<ParsedTls>,
    /// Health policy of the pods, if it differs from the default.
    pub(crate) health_policy: Option<Arc<HealthPolicy>>,
    /// Version of the PROXY protocol header sent to pods, if any.
    pub(crate) proxy_header: Option<ProxyVersion>,
    /// Redirect of every rule, instead of a service.
    pub(crate) elsewhere: Option<Arc<ingress_model::Redirect>>,
    /// Redirect of requests for `/`.
    pub(crate) app_root: Option<Arc<ingress_model::Redirect>>,
    /// Whether its hosts are reached with and without `www.`.
    pub(crate) redirects_www: bool,
    /// Further names of its first host.
    pub(crate) aliases: Arc<[Host]>,
    /// Namespaces that may add paths to its hosts.
    pub(crate) shares_with: Arc<[Arc<str>]>,
    pub(crate) forwarding: Arc<Forwarding>,
    pub(crate) uses_patterns: bool,
    /// Paths without authentication.
    pub(crate) unauthenticated: Arc<[PathMatch]>,
    pub(crate) rewrite: Option<Template>,
    /// Filters before the rewrite; `after` has those behind it.
    pub(crate) before: Vec<Filter>,
    pub(crate) host: Option<Filter>,
    pub(crate) after: Vec<Filter>,
}

/// Requests over plain HTTP that are redirected to HTTPS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// No requests.
    Never,
    /// Requests for hosts that have TLS, from any Ingress: the default.
    #[default]
    WithTls,
    /// All requests.
    Always,
}

/// Whether the Ingress can be served as intended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Service {
    #[default]
    Full,
    /// A protection that it asks for is missing, so its rules answer an error.
    Refuse,
}

/// On unauthenticated paths, strips the headers that a verified token would set, so that clients cannot forge them.
pub(crate) fn unclaimed(filter: &Filter) -> Option<Filter> {
    let Filter::Authentication(authentication) = filter else { return None };
    let mut edits = HeaderEdits::default();
    for (name, _) in &authentication.token.as_ref()?.passed {
        edits.push(HeaderEdit::Remove(name.clone()));
    }
    (!edits.is_empty()).then(|| Filter::RequestHeaders(Arc::new(edits)))
}

/// Returns the rest of a filter on unauthenticated paths.
pub(crate) fn unauthenticated(filter: &Filter) -> Option<Filter> {
    let Filter::Authentication(authentication) = filter else { return Some(filter.clone()) };
    match &authentication.satisfy {
        Satisfy::Any(access) if !access.is_open() => Some(Filter::Access(Arc::new(access.clone()))),
        Satisfy::Any(_) | Satisfy::All => None,
    }
}

/// The demands for the hosts of an Ingress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Clients {
    /// The Ingress demands nothing.
    #[default]
    Any,
    With(Arc<ClientCertificates>),
    /// The demand cannot be met, so all clients are refused.
    Refused,
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
        self.uses_patterns && matches!(path_type, "Prefix" | "ImplementationSpecific")
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
        self.rewrite.is_some()
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
        let plain = match path {
            PathMatch::Exact(path) | PathMatch::Prefix(path) => &**path,
            PathMatch::Pattern(_) => "/",
        };
        let mut forwarding = Arc::clone(&self.forwarding);
        if let Some(Affinity { cookie: SessionCookie { path: None, .. }, .. }) = &forwarding.affinity
            && let Some(affinity) = &mut Arc::make_mut(&mut forwarding).affinity
        {
            affinity.cookie.path = Some(plain.into());
        }
        forwarding
    }

    /// Returns the filters of a rule for `path`. The redirect to HTTPS, which comes before them, depends on the claims
    /// of all Ingresses.
    pub(crate) fn filters(&self, path: &PathMatch) -> Vec<Filter> {
        let rewrite = self.rewrite.clone().map(|target| {
            let pattern = match path {
                PathMatch::Pattern(pattern) => pattern.alone().cloned(),
                PathMatch::Exact(_) | PathMatch::Prefix(_) => None,
            };
            Filter::Rewrite(Arc::new(Rewrite { pattern, target }))
        });
        let is_open = self.is_unauthenticated(path);
        let before = self
            .before
            .iter()
            .filter_map(|filter| if is_open { unauthenticated(filter) } else { Some(filter.clone()) });
        let unclaimed = if is_open { self.before.iter().find_map(unclaimed) } else { None };
        let host = self.host.iter().cloned();
        before.chain(rewrite).chain(host).chain(unclaimed).chain(self.after.iter().cloned()).collect()
    }

    fn is_unauthenticated(&self, path: &PathMatch) -> bool {
        match path {
            PathMatch::Exact(path) | PathMatch::Prefix(path) => {
                self.unauthenticated.iter().any(|open| open.matches(path))
            }
            // The paths that an expression matches are not known.
            PathMatch::Pattern(_) => false,
        }
    }
}
