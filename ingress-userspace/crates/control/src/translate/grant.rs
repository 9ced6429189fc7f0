//! Permission for an Ingress's or a route's own requests (`auth-url`, `jwt-jwks-url` and `mirror-target`) to Services of other
//! namespaces. The node sends them, past network policies, so a name alone gives no right. The owner of the Service's
//! namespace grants it by a ReferenceGrant, or the operator does.

use super::lookup::Lookup;
use crate::{
    change::{Kind, ObjectName},
    gateway::{Group, ReferentKind},
};

/// Returns `true` if this is the Service of the API server. Neither requests of clients nor those of an Ingress are
/// sent there, because the node may reach it where clients may not. Rows of stream services may lead there, since they
/// belong to the operator.
pub(super) fn is_api_server(service: &ObjectName) -> bool {
    (&*service.namespace, &*service.name) == ("default", "kubernetes")
}

/// Checks that an Ingress or route, an object of `kind` in `namespace`, may send its own requests to `service`.
///
/// # Errors
/// A description of `service` and the remedy, if it may not.
pub(super) fn check(kind: &str, namespace: &str, service: &ObjectName, lookup: &Lookup<'_>) -> Result<(), String> {
    if is_api_server(service) {
        return Err(format!(
            "service `{service}`, the API server, which never gets requests from the proxy; name another"
        ));
    }
    let is_own = *service.namespace == *namespace;
    if is_own || lookup.options.cross_namespace.iter().any(|pattern| pattern.holds(service)) {
        return Ok(());
    }
    let group = if kind == Kind::Ingress.as_str() { Group::Networking } else { Group::Gateway };
    let kind = ReferentKind::from(kind);
    let (from, to) = ((&group, &kind, namespace), (&Group::Core, &ReferentKind::Service, &*service.name));
    if lookup.grants_of(&service.namespace).any(|grant| grant.permits(from, to)) {
        return Ok(());
    }
    Err(format!(
        "service `{service}` of another namespace, which gets no requests; name one of `{namespace}`, add a \
         ReferenceGrant in `{}`, or ask the operator to add it to `--allow-cross-namespace-services`",
        service.namespace
    ))
}
