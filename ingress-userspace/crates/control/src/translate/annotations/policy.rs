//! Combines the requests of one Ingress into a policy: the filters of its rules, how they forward, and whether they may
//! be served.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;

use super::{super::destination::Through, Context, Limits, ParsedAnnotations, authentication, backend_tls, clients};
use crate::{
    change::ObjectName,
    outcome::{ObjectRef, Reason},
    translate::{
        backend_protocol::Wanted,
        policy::{Clients, Policy, Redirect, Service},
        text::{own_object, shorten},
    },
};
use ingress_model::{
    Balance, CanaryValue, Filter, HeaderEdits,
    filter::{Limit, Rate},
};

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
        let message = "annotation `ssl-passthrough` forwards connections without reading them, so that clients cannot \
         be authenticated and requests cannot be counted; its rules answer 503, remove it or the annotations that \
         require these";
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
