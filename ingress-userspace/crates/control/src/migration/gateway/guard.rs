//! Kinds of filters that protect a rule, and the names that ask for each.

use ingress_model::Filter;

/// A kind of protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Guard {
    ClientCertificate,
    Access,
    RequestRules,
    Limit,
    Authentication,
}

// === impl Guard ===

impl Guard {
    /// Returns the kind of a filter; `None` if it protects nothing.
    pub(super) const fn of(filter: &Filter) -> Option<Self> {
        match filter {
            Filter::ClientCertificate(_) => Some(Self::ClientCertificate),
            Filter::Access(_) => Some(Self::Access),
            Filter::RequestRules(_) => Some(Self::RequestRules),
            Filter::Limit(_) => Some(Self::Limit),
            Filter::Authentication(_) => Some(Self::Authentication),
            Filter::RedirectHttps { .. }
            | Filter::Cors(_)
            | Filter::Rewrite(_)
            | Filter::UpstreamHost(_)
            | Filter::RequestHeaders(_)
            | Filter::Mirror(_)
            | Filter::ErrorPages(_)
            | Filter::ResponseHeaders(_)
            | Filter::Compression(_)
            | Filter::StrictTransportSecurity(_) => None,
        }
    }

    /// Returns whether the annotation or setting `key` asks for this kind.
    pub(super) fn is_asked_by(self, key: &str) -> bool {
        let beginnings: &[&str] = match self {
            Self::ClientCertificate => &["auth-tls-"],
            Self::Access => &["allowlist-source-range", "denylist-source-range", "whitelist-source-range", "satisfy"],
            Self::RequestRules => &["deny-paths", "redirect-rules"],
            Self::Limit => &["limit-"],
            Self::Authentication if key.starts_with("auth-tls-") => &[],
            Self::Authentication => &["auth-", "global-auth-", "jwt-", "satisfy", "no-auth-locations"],
        };
        beginnings.iter().any(|beginning| key.starts_with(beginning))
    }
}
