//! Combines the requests of one Ingress into a policy: the filters of its rules, how they forward, and whether they may
//! be served.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;

use super::{
    super::{destination::Through, protocol::Wanted},
    Clients, Context, Limits, ParsedAnnotations, ParsedTls, authentication, backend_tls, clients,
};
use crate::{
    change::ObjectName,
    outcome::{ObjectRef, Reason},
    translate::text::{own_object, shorten},
};
use ingress_model::{
    Affinity, Balance, CanaryRule, CanaryValue, Filter, Forwarding, HeaderEdit, HeaderEdits, HealthPolicy, Host,
    PathError, PathMatch, ProxyVersion, Rewrite, Satisfy, SessionCookie, Template,
    filter::{Limit, Rate},
};

/// The effect of one Ingress's annotations on its rules.
#[derive(Clone, Debug, Default)]
pub(in crate::translate) struct Policy {
    pub(in crate::translate) redirect: Redirect,
    pub(in crate::translate) service: Service,
    pub(in crate::translate) protocol: Wanted,
    pub(in crate::translate) through: Through,
    /// The requests that a canary takes from another Ingress's rules; a canary has no rules of its own.
    pub(in crate::translate) canary: Option<CanaryRule>,
    /// Certificates that clients of its hosts must have.
    pub(in crate::translate) clients: Clients,
    /// Whether TLS connections are passed through to pods.
    pub(in crate::translate) passes: bool,
    /// TLS with pods.
    pub(in crate::translate) backend_tls: Option<ParsedTls>,
    /// Health policy of the pods, if it differs from the default.
    pub(in crate::translate) health_policy: Option<Arc<HealthPolicy>>,
    /// Version of the PROXY protocol header sent to pods, if any.
    pub(in crate::translate) proxy_header: Option<ProxyVersion>,
    /// Redirect of every rule, instead of a service.
    pub(in crate::translate) elsewhere: Option<Arc<ingress_model::Redirect>>,
    /// Redirect of requests for `/`.
    pub(in crate::translate) app_root: Option<Arc<ingress_model::Redirect>>,
    /// Whether its hosts are reached with and without `www.`.
    pub(in crate::translate) redirects_www: bool,
    /// Further names of its first host.
    pub(in crate::translate) aliases: Arc<[Host]>,
    /// Namespaces that may add paths to its hosts.
    pub(in crate::translate) shares_with: Arc<[Arc<str>]>,
    forwarding: Arc<Forwarding>,
    uses_patterns: bool,
    /// Paths without authentication.
    unauthenticated: Arc<[PathMatch]>,
    rewrite: Option<Template>,
    /// Filters before the rewrite; `after` has those behind it.
    before: Vec<Filter>,
    host: Option<Filter>,
    after: Vec<Filter>,
}

/// Requests over plain HTTP that are redirected to HTTPS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::translate) enum Redirect {
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
pub(in crate::translate) enum Service {
    #[default]
    Full,
    /// A protection that it asks for is missing, so its rules answer an error.
    Refuse,
}

/// Makes the policy of the Ingress `name`.
pub(super) fn make(
    parsed: ParsedAnnotations,
    mut service: Service,
    name: &ObjectName,
    object: &ObjectRef,
    context: &mut Context<'_>,
) -> Policy {
    let ParsedAnnotations {
        ssl_redirect,
        force_ssl_redirect,
        passthrough,
        protocol,
        through_service,
        upstream_tls,
        health_policy,
        proxy_header,
        traced,
        trace,
        clients,
        use_regex,
        rewrite_target,
        app_root,
        redirects_www,
        aliases,
        shares_with,
        permanent_redirect,
        permanent_status,
        temporal_redirect,
        temporal_status,
        upstream_host,
        mut forwarding,
        hash_by,
        has_affinity,
        mut affinity,
        cookie_expires,
        access,
        is_canary,
        mut canary,
        canary_header,
        canary_value,
        canary_pattern,
        authentication,
        limits,
        enable_cors,
        cors,
        request_headers,
        mut response_headers,
        compression,
        error_pages,
        mirror,
        custom_headers,
    } = parsed;
    if protocol == Wanted::Unsupported {
        let message = "annotation `backend-protocol` asks for a protocol that is not supported; its rules answer 503, use `HTTP`, `HTTPS`, `GRPC` or `GRPCS`";
        context.report(object, Reason::UnsupportedAnnotation, message.to_owned());
    }
    let backend_tls = match backend_tls(&upstream_tls, &name.namespace, context) {
        Ok(backend_tls) => backend_tls.is_some().then_some(upstream_tls),
        Err((reason, message)) => {
            service = service.max(Service::Refuse);
            context.report(object, reason, message);
            None
        }
    };
    let clients = clients::clients(clients, name, context).unwrap_or_else(|(reason, message)| {
        service = service.max(Service::Refuse);
        context.report(object, reason, message);
        Clients::Refused
    });
    if let Some(value) = custom_headers {
        match fields(&value, name, context) {
            Ok(fields) => response_headers.extend(fields),
            Err((reason, message)) => {
                service = service.max(Service::Refuse);
                context.report(object, reason, message);
            }
        }
    }
    if let Some(template) = hash_by {
        forwarding.balance = Balance::Hash(template);
    }
    forwarding.trace = traced.then(|| Arc::new(trace));
    affinity.cookie.max_age = affinity.cookie.max_age.or(cookie_expires);
    forwarding.affinity = has_affinity.then_some(affinity);
    let value = match (canary_value, canary_pattern) {
        (Some(value), _) => CanaryValue::Exactly(value),
        (None, Some(pattern)) => CanaryValue::Like(pattern),
        (None, None) => CanaryValue::Word,
    };
    canary.header = canary_header.map(|name| (name, value));
    let redirect = |status, location| Arc::new(ingress_model::Redirect { status, location });
    let elsewhere = temporal_redirect
        .map(|location| redirect(temporal_status, location))
        .or_else(|| permanent_redirect.map(|location| redirect(permanent_status, location)));
    let (access, authentication) = match authentication::make(authentication, access, name, object, context) {
        Ok(filters) => filters,
        Err((reason, message)) => {
            service = service.max(Service::Refuse);
            context.report(object, reason, message);
            (None, None)
        }
    };
    let limit = limit(limits, name, context).map(|limit| Filter::Limit(Arc::new(limit)));
    if passthrough && (authentication.is_some() || limit.is_some() || clients != Clients::Any) {
        service = service.max(Service::Refuse);
        let message = "annotation `ssl-passthrough` passes connections on unread, so that clients cannot be authenticated and requests cannot be counted; its rules answer 503, remove it or the annotations that ask for that";
        context.report(object, Reason::InvalidAnnotation, message.to_owned());
    }
    let cors = enable_cors.then(|| Filter::Cors(Arc::new(cors)));
    let host = upstream_host.map(Filter::UpstreamHost);
    let requests = (!request_headers.is_empty()).then(|| Filter::RequestHeaders(Arc::new(request_headers)));
    let responses = (!response_headers.is_empty()).then(|| Filter::ResponseHeaders(Arc::new(response_headers)));
    let common = &context.globals.forwarding;
    let forwarding = if forwarding == **common { Arc::clone(common) } else { Arc::new(forwarding) };
    Policy {
        redirect: match (force_ssl_redirect, ssl_redirect) {
            (true, _) => Redirect::Always,
            (false, true) => Redirect::WithTls,
            (false, false) => Redirect::Never,
        },
        service,
        protocol,
        through: if through_service { Through::Service } else { Through::Pods },
        canary: is_canary.then_some(canary),
        clients,
        passes: passthrough,
        backend_tls,
        health_policy: health_policy.made(),
        proxy_header,
        elsewhere,
        app_root: app_root.map(|location| redirect(302, location)),
        redirects_www,
        aliases,
        shares_with,
        forwarding,
        uses_patterns: use_regex || rewrite_target.is_some(),
        unauthenticated: Arc::clone(&context.globals.unauthenticated),
        rewrite: rewrite_target,
        before: [access, limit, cors, authentication].into_iter().flatten().collect(),
        host,
        after: [
            requests,
            mirror.filter(name, object, context),
            error_pages.filter(name, object, context),
            responses,
            compression.filter(),
        ]
        .into_iter()
        .flatten()
        .collect(),
    }
}

/// Returns the limits for clients of the Ingress `name`, if there are any.
fn limit(limits: Limits, name: &ObjectName, context: &mut Context<'_>) -> Option<Limit> {
    let Limits {
        per_second,
        per_minute,
        burst_multiplier,
        in_flight,
        of_cluster,
        exempt,
        rate_status,
        in_flight_status,
    } = limits;
    let nodes = if of_cluster { context.ready_nodes() } else { 1 };
    let [per_second, per_minute, in_flight] = [per_second, per_minute, in_flight].map(|count| count.div_ceil(nodes));
    let rate = |requests, seconds| {
        let burst = u32::saturating_mul(requests, burst_multiplier);
        NonZeroU32::new(requests).map(|requests| Rate { requests, per: Duration::from_secs(seconds), burst })
    };
    let limit = Limit {
        owner: name.to_string().into(),
        per_second: rate(per_second, 1),
        per_minute: rate(per_minute, 60),
        in_flight: NonZeroU32::new(in_flight),
        exempt,
        rate_status,
        in_flight_status,
    };
    (!limit.is_none()).then_some(limit)
}

/// Returns the header fields in the ConfigMap `value`, or the reason why they are not available.
fn fields(value: &str, ingress: &ObjectName, context: &mut Context<'_>) -> Result<HeaderEdits, (Reason, String)> {
    let Some(name) = own_object(value, &ingress.namespace) else {
        let message = format!(
            "annotation `custom-headers` names `{}`, which is in another namespace; its rules answer 503, name a ConfigMap of its own",
            shorten(value)
        );
        return Err((Reason::InvalidAnnotation, message));
    };
    let Some(stored) = context.config_map(&name) else {
        let message = format!("ConfigMap `{name}` of `custom-headers` does not exist; its rules answer 503, create it");
        return Err((Reason::ConfigMapNotFound, message));
    };
    let ConfigMap { data, .. } = &*stored.object;
    let fields = data.iter().flatten().map(|(field, value)| (field.as_str(), value.as_str()));
    let edits = HeaderEdits::setting(fields).map_err(|error| {
        let message =
            format!("ConfigMap `{name}` of `custom-headers`: {error}; its rules answer 503, correct the ConfigMap");
        (Reason::InvalidAnnotation, message)
    })?;
    let allowed = &context.globals.allowed_headers;
    match edits.iter().find(|edit| !allowed.is_empty() && !allowed.contains(edit.name())) {
        None => Ok(edits),
        Some(edit) => {
            let message = format!(
                "field `{}` of `custom-headers` is not in `global-allowed-response-headers`; its rules answer 503, remove it or ask the operator",
                edit.name()
            );
            Err((Reason::InvalidAnnotation, message))
        }
    }
}

// === impl Policy ===

impl Policy {
    /// Returns the policy of an ACME solver: settings that the operator made for all Ingresses must not block a
    /// challenge.
    pub(in crate::translate) fn of_solver() -> Self {
        Self { redirect: Redirect::Never, ..Self::default() }
    }

    /// Returns `true` if paths of kind `path_type` are regular expressions.
    pub(in crate::translate) fn has_patterns(&self, path_type: &str) -> bool {
        self.uses_patterns && matches!(path_type, "Prefix" | "ImplementationSpecific")
    }

    /// Returns `true` if its rules are counted separately.
    pub(in crate::translate) fn is_metered(&self) -> bool {
        self.forwarding.metered
    }

    /// Switches separate counting of its rules off. Returns `true` if it was on.
    pub(in crate::translate) fn stop_metering(&mut self) -> bool {
        self.forwarding.metered && {
            Arc::make_mut(&mut self.forwarding).metered = false;
            true
        }
    }

    /// Returns `true` if its filters use the groups of expressions.
    pub(in crate::translate) const fn wants_groups(&self) -> bool {
        self.rewrite.is_some()
    }

    /// Returns the match of a path of kind `path_type`, for paths that are not regular expressions. Without a kind, the
    /// controller chooses.
    pub(in crate::translate) fn path(path: &str, path_type: &str) -> Option<Result<PathMatch, PathError>> {
        Some(match path_type {
            "Exact" => PathMatch::exact(path),
            "Prefix" | "ImplementationSpecific" => PathMatch::prefix(path),
            _ => return None,
        })
    }

    /// Returns the forwarding of a rule for `path`. A cookie without a path of its own gets that of the rule.
    pub(in crate::translate) fn forwarding(&self, path: &PathMatch) -> Arc<Forwarding> {
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
    pub(in crate::translate) fn filters(&self, path: &PathMatch) -> Vec<Filter> {
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

/// On unauthenticated paths, strips the headers that a verified token would set, so that clients cannot forge them.
fn unclaimed(filter: &Filter) -> Option<Filter> {
    let Filter::Authentication(authentication) = filter else { return None };
    let mut edits = HeaderEdits::default();
    for (name, _) in &authentication.token.as_ref()?.passed {
        edits.push(HeaderEdit::Remove(name.clone()));
    }
    (!edits.is_empty()).then(|| Filter::RequestHeaders(Arc::new(edits)))
}

/// Returns the rest of a filter on unauthenticated paths.
fn unauthenticated(filter: &Filter) -> Option<Filter> {
    let Filter::Authentication(authentication) = filter else { return Some(filter.clone()) };
    match &authentication.satisfy {
        Satisfy::Any(access) if !access.is_open() => Some(Filter::Access(Arc::new(access.clone()))),
        Satisfy::Any(_) | Satisfy::All => None,
    }
}
