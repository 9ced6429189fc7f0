//! Makes the rules of one Ingress, one after the other. All of them share its policy and its allowance of expressions.

use std::sync::Arc;

use k8s_openapi::api::networking::v1::{HTTPIngressPath, HTTPIngressRuleValue, IngressBackend, IngressRule};

use crate::{
    change::ObjectName,
    outcome::{ObjectRef, Reason},
    translate::{
        Context,
        backend_policy::BackendPolicy,
        claims::RulesClaim,
        compiled_expressions::Allowance,
        features::{Globals, backend_protocol::Wanted, redirects::Redirects},
        policy::{Policy, Service},
        service,
        text::{shorten, shorten_error},
    },
};
use ingress_model::{Action, HostPattern, PathMatch, Rule, Unavailable};

/// Returns the path of a fallback, which matches everything.
fn everything() -> PathMatch {
    PathMatch::Prefix("/".into())
}

/// State that all rules of one Ingress share while they are made.
pub(in super::super) struct Builder<'b, 'c> {
    pub(super) name: &'b ObjectName,
    pub(in super::super) owner: Arc<str>,
    pub(in super::super) policy: Policy,
    pub(super) allowance: Allowance,
    pub(in super::super) object: &'b ObjectRef,
    pub(in super::super) globals: &'b Globals,
    pub(in super::super) context: Context<'b, 'c>,
}

// === impl Builder ===

impl Builder<'_, '_> {
    /// Returns the rules by host. Without rules, the default backend serves every host.
    pub(super) fn hosts(
        &mut self,
        rules: &[IngressRule],
        default_backend: Option<&IngressBackend>,
    ) -> Vec<(HostPattern, RulesClaim)> {
        if !rules.is_empty() {
            return rules.iter().filter_map(|rule| self.host(rule, default_backend)).collect();
        }
        let Some(backend) = default_backend else {
            let message = "there are neither rules nor a default backend; add one of them".to_owned();
            self.context.report(self.object, Reason::NoBackend, message);
            return Vec::new();
        };
        let fallback = Some(Box::new(self.rule(everything(), backend)));
        vec![(HostPattern::Any, RulesClaim { fallback, ..RulesClaim::default() })]
    }

    fn host(
        &mut self,
        rule: &IngressRule,
        default_backend: Option<&IngressBackend>,
    ) -> Option<(HostPattern, RulesClaim)> {
        let IngressRule { host, http } = rule;
        let pattern = match HostPattern::parse(host.as_deref().unwrap_or_default()) {
            Ok(pattern) => pattern,
            Err(error) => {
                let message = format!("{}; its rule is skipped", shorten_error(&error));
                self.context.report(self.object, Reason::InvalidHost, message);
                return None;
            }
        };
        let paths = http.as_ref().map_or(&[][..], |HTTPIngressRuleValue { paths }| paths);
        if paths.is_empty() && default_backend.is_none() {
            let message = format!(
                "the rule of host `{pattern}` has no paths and there is no default backend; requests get 404, add either"
            );
            self.context.report(self.object, Reason::NoBackend, message);
        }
        let mut rules: Vec<_> = paths.iter().filter_map(|path| self.path(&pattern, path)).collect();
        if let Some(location) = self.policy.redirects.app_root.clone().filter(|_| self.policy.service == Service::Full)
        {
            let root = PathMatch::Exact("/".into());
            rules.retain(|rule| rule.path != root);
            rules.push(self.with(root, Action::Redirect(location), None));
        }
        let fallback = default_backend.map(|backend| Box::new(self.rule(everything(), backend)));
        let text =
            |path: &HTTPIngressPath| path.path.clone().filter(|path| !path.is_empty()).unwrap_or_else(|| "/".into());
        let has_expressions = paths.iter().any(|path| self.policy.makes_expressions(&text(path)));
        Some((pattern, RulesClaim { rules, fallback, has_expressions }))
    }

    fn path(&mut self, pattern: &HostPattern, path: &HTTPIngressPath) -> Option<Rule> {
        let HTTPIngressPath { backend, path, path_type } = path;
        // If the controller may choose the kind of match, an empty path matches everything.
        let path = match path.as_deref().unwrap_or_default() {
            "" if path_type == "ImplementationSpecific" => "/",
            path => path,
        };
        let parsed = if self.policy.has_patterns(path_type) {
            let groups = self.policy.wants_groups();
            let Self { allowance, context, .. } = self;
            Some(context.with_memo(|memo| allowance.read(path, groups, &mut memo.expressions))?)
        } else {
            Policy::path(path, path_type)
        };
        let Some(parsed) = parsed else {
            let other = shorten(path_type);
            let message = format!(
                "path type `{other}` of host `{pattern}` is not one of `Exact`, `Prefix`, `ImplementationSpecific`; the path is skipped"
            );
            self.context.report(self.object, Reason::InvalidPath, message);
            return None;
        };
        match parsed {
            Ok(path) => Some(self.rule(path, backend)),
            Err(error) => {
                let message = format!("{}; the path is skipped for host `{pattern}`", shorten_error(&error));
                self.context.report(self.object, Reason::InvalidPath, message);
                None
            }
        }
    }

    fn rule(&mut self, path: PathMatch, backend: &IngressBackend) -> Rule {
        let action = match &self.policy {
            Policy { service: Service::Refuse, .. } => Action::Refuse(Unavailable::Policy),
            Policy { redirects: Redirects { elsewhere: Some(redirect), .. }, .. } => {
                Action::Redirect(Arc::clone(redirect))
            }
            Policy { backend: BackendPolicy { protocol: Wanted::Unsupported, .. }, .. } => {
                Action::Refuse(Unavailable::Backend)
            }
            Policy { backend: wish, .. } => {
                service::resolve(&self.name.namespace, backend, wish, self.object, &mut self.context)
            }
        };
        self.with(path, action, Some(backend))
    }

    fn with(&self, path: PathMatch, action: Action, backend: Option<&IngressBackend>) -> Rule {
        let filters = self.policy.filters(&path, self.name, backend);
        let forwarding = self.policy.forwarding(&path);
        Rule { path, conditions: None, owner: Arc::clone(&self.owner), filters, action, forwarding }
    }
}
