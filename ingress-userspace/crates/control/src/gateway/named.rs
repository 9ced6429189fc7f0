//! The Secrets and ConfigMaps that an object of the Gateway API names. It looks none of them up.

use std::collections::BTreeSet;

use super::{
    Gateway, GatewayApiObject, GatewayObject, Group, Listener, ObjectReference, ReferentKind,
    route::{Filter, GrpcRoute, HttpRoute},
};
use crate::object::{Kind, ObjectId, ObjectName};

/// Returns the Secrets and ConfigMaps that `object` names: at most `max`, in order of their kinds and names.
pub(crate) fn named(object: &GatewayApiObject, max: usize) -> BTreeSet<ObjectId> {
    let ObjectName { namespace, name: _ } = &object.metadata().name;
    let references: Vec<&ObjectReference> = match object {
        // A reference without a namespace leads nowhere.
        GatewayApiObject::GatewayClass(class) => {
            class.spec().parameters_ref.iter().filter(|reference| reference.namespace.is_some()).collect()
        }
        GatewayApiObject::Gateway(gateway) => of_gateway(gateway).collect(),
        GatewayApiObject::ListenerSet(set) => set.spec().listeners.iter().flat_map(certificates).collect(),
        GatewayApiObject::HttpRoute(route) => of_http_route(route).collect(),
        GatewayApiObject::GrpcRoute(route) => of_grpc_route(route).collect(),
        GatewayApiObject::BackendTlsPolicy(policy) => policy.spec().validation.ca_certificate_refs.iter().collect(),
        GatewayApiObject::TlsRoute(_) | GatewayApiObject::TcpRoute(_) | GatewayApiObject::UdpRoute(_) => Vec::new(),
    };
    let is_route = matches!(object, GatewayApiObject::HttpRoute(_) | GatewayApiObject::GrpcRoute(_));
    let named = references.into_iter().filter_map(|reference| id(reference, namespace));
    // The settings of a filter are in ConfigMaps: a Secret would be read in vain.
    let named: BTreeSet<_> = named.filter(|id| !is_route || id.kind == Kind::ConfigMap).collect();
    named.into_iter().take(max).collect()
}

/// Returns the ConfigMaps that filters of the rules of a route name: those whose keys are annotations.
pub(crate) fn extensions(object: &GatewayApiObject) -> BTreeSet<ObjectId> {
    let ObjectName { namespace, name: _ } = &object.metadata().name;
    let filters: Vec<&Filter> = match object {
        GatewayApiObject::HttpRoute(route) => route.spec().rules.iter().flat_map(|rule| &rule.filters).collect(),
        GatewayApiObject::GrpcRoute(route) => route.spec().rules.iter().flat_map(|rule| &rule.filters).collect(),
        _ => Vec::new(),
    };
    let id = |name| ObjectId { kind: Kind::ConfigMap, name: ObjectName::new(namespace, name) };
    filters.into_iter().filter_map(Filter::config_map).map(id).collect()
}

fn of_gateway(gateway: &Gateway) -> impl Iterator<Item = &ObjectReference> {
    let spec = gateway.spec();
    let frontend = &spec.tls.frontend;
    let ports = frontend.per_port.iter().map(|port| &port.tls);
    let validations = [&frontend.default].into_iter().chain(ports).filter_map(|tls| tls.validation.as_ref());
    let anchors = validations.flat_map(|validation| &validation.ca_certificate_refs);
    let parameters = spec.infrastructure.iter().filter_map(|infrastructure| infrastructure.parameters_ref.as_ref());
    let ours = spec.tls.backend.client_certificate_ref.iter();
    spec.listeners.iter().flat_map(certificates).chain(anchors).chain(parameters).chain(ours)
}

fn of_http_route(route: &HttpRoute) -> impl Iterator<Item = &ObjectReference> {
    let rules = route.spec().rules.iter();
    rules.flat_map(|rule| {
        let of_backends = rule.backend_refs.iter().flat_map(|backend| &backend.filters);
        rule.filters.iter().chain(of_backends).filter_map(extension)
    })
}

fn of_grpc_route(route: &GrpcRoute) -> impl Iterator<Item = &ObjectReference> {
    let rules = route.spec().rules.iter();
    rules.flat_map(|rule| {
        let of_backends = rule.backend_refs.iter().flat_map(|backend| &backend.filters);
        rule.filters.iter().chain(of_backends).filter_map(extension)
    })
}

fn certificates(listener: &Listener) -> impl Iterator<Item = &ObjectReference> {
    listener.tls.iter().flat_map(|tls| &tls.certificate_refs)
}

fn extension(filter: &Filter) -> Option<&ObjectReference> {
    match filter {
        Filter::ExtensionRef(reference) => Some(reference),
        _ => None,
    }
}

/// Returns the Secret or ConfigMap that an object of `namespace` refers to.
fn id(reference: &ObjectReference, namespace: &str) -> Option<ObjectId> {
    let ObjectReference { group, kind, namespace: other, name } = reference;
    let kind = match (group, kind) {
        (Group::Core, ReferentKind::Secret) => Kind::Secret,
        (Group::Core, ReferentKind::ConfigMap) => Kind::ConfigMap,
        _ => return None,
    };
    let named = ObjectName::new(other.as_deref().unwrap_or(namespace), name);
    (!named.name.is_empty() && !named.namespace.is_empty()).then_some(ObjectId { kind, name: named })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::StoredKind;

    fn names<K: StoredKind + serde::de::DeserializeOwned>(text: &str, max: usize) -> Vec<String> {
        let object: K =
            serde_saphyr::from_str(&format!("metadata: {{namespace: n, name: o}}\n{text}")).expect("an object");
        let named = named(&K::any(object.into()), max);
        named.into_iter().map(|id| format!("{} {}", id.kind.as_str(), id.name)).collect()
    }

    #[test]
    fn secrets_and_config_maps_are_named() {
        let gateway = "spec:
  infrastructure: {parametersRef: {group: '', kind: ConfigMap, name: p}}
  tls:
    backend: {clientCertificateRef: {name: us}}
    frontend:
      default: {validation: {caCertificateRefs: [{group: '', kind: ConfigMap, name: ca, namespace: m}]}}
      perPort: [{port: 1, tls: {validation: {caCertificateRefs: [{group: '', kind: Secret, name: ca}]}}}]
  listeners:
  - tls: {certificateRefs: [{name: a}, {name: a}, {name: b, namespace: m}, {group: acme.test, kind: Secret, name: x}, {name: ''}]}";
        let all = ["Secret m/b", "Secret n/a", "Secret n/ca", "Secret n/us", "ConfigMap m/ca", "ConfigMap n/p"];
        assert_eq!(names::<Gateway>(gateway, 9), all);
        assert_eq!(names::<Gateway>(gateway, 2), all[..2]);
        let extension =
            |name| format!("{{type: ExtensionRef, extensionRef: {{group: '', kind: ConfigMap, name: {name}}}}}");
        let route = format!(
            "spec: {{rules: [{{filters: [{}, {{type: CORS}}], backendRefs: [{{name: s, filters: [{}]}}]}}]}}",
            extension("r"),
            extension("b")
        );
        assert_eq!(names::<HttpRoute>(&route, 9), ["ConfigMap n/b", "ConfigMap n/r"]);
        assert_eq!(names::<GrpcRoute>(&route, 9), ["ConfigMap n/b", "ConfigMap n/r"]);
        assert_eq!(
            names::<crate::gateway::ListenerSet>("spec: {listeners: [{tls: {certificateRefs: [{name: a}]}}]}", 9),
            ["Secret n/a"]
        );
        let policy = "spec: {validation: {caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]}}";
        assert_eq!(names::<crate::gateway::BackendTlsPolicy>(policy, 9), ["ConfigMap n/ca"]);
        let class = |namespace| format!("spec: {{parametersRef: {{group: '', kind: ConfigMap, name: p{namespace}}}}}");
        assert_eq!(names::<crate::gateway::GatewayClass>(&class(", namespace: m"), 9), ["ConfigMap m/p"]);
        assert!(names::<crate::gateway::GatewayClass>(&class(""), 9).is_empty());
    }
}
