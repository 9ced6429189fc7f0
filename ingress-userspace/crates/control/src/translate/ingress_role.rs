//! Recognises the Ingresses that cert-manager makes to answer the HTTP challenges of a certificate authority. It
//! answers none.

use k8s_openapi::api::networking::v1::{HTTPIngressPath, Ingress};

use ingress_model::path::ACME_CHALLENGE;

/// Role of an Ingress: ordinary, or made for a challenge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum IngressRole {
    /// Its paths come before those of every ordinary Ingress, are never redirected, and end with the challenge.
    Solver,
    #[default]
    Ordinary,
}

/// cert-manager's label (pkg/apis/acme/v1, `SolverIdentificationLabelKey`).
const LABEL: &str = "acme.cert-manager.io/http01-solver";

// === impl IngressRole ===

impl IngressRole {
    /// Determines the role. The label alone would let any user take any path from an older Ingress. So each path must
    /// be one of a challenge, and no other claim is allowed.
    pub(super) fn of(ingress: &Ingress) -> Self {
        let is_labelled =
            ingress.metadata.labels.as_ref().and_then(|labels| labels.get(LABEL)).is_some_and(|v| v == "true");
        let Some(spec) = ingress.spec.as_ref().filter(|_| is_labelled) else { return Self::Ordinary };
        let is_challenge = |path: &HTTPIngressPath| {
            path.path
                .as_deref()
                .and_then(|path| path.strip_prefix(ACME_CHALLENGE)?.strip_prefix('/'))
                .is_some_and(|token| !token.is_empty())
        };
        let mut rules = spec.rules.iter().flatten().peekable();
        let is_solver = spec.default_backend.is_none()
            && spec.tls.as_ref().is_none_or(Vec::is_empty)
            && rules.peek().is_some()
            && rules.all(|rule| rule.http.as_ref().is_some_and(|http| http.paths.iter().all(is_challenge)));
        if is_solver { Self::Solver } else { Self::Ordinary }
    }
}
