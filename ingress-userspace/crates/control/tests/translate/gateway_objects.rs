//! Random objects of the Gateway API, as manifests. Most are valid and meet each other, unlike those of
//! [`objects`](crate::objects), so that routes attach, listeners conflict and routes yield.

use proptest::prelude::*;

use crate::objects::{any_grant, any_namespace, any_secret, any_slice, rotated};

/// The class of most Gateways here.
pub(crate) const CLASS: &str = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: xdp}\n\
                                spec: {controllerName: xdp-ingress.io/gateway-controller}\n";

/// Objects that are there at first, so that most of the others have something to meet.
const FOUNDATION: &str = "---\n\
    apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {namespace: a, name: a}\n\
    spec:\n  gatewayClassName: xdp\n  \
    tls: {backend: {clientCertificateRef: {group: \"\", kind: Secret, name: a}}}\n  \
    listeners: [\
    {name: l0, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}, \
    {name: l1, port: 81, protocol: HTTP, hostname: a.test, allowedRoutes: {namespaces: {from: All}}}]\n---\n\
    apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {namespace: b, name: b}\n\
    spec: {gatewayClassName: xdp, listeners: [{name: l0, port: 80, protocol: HTTP, hostname: b.test}]}\n---\n\
    apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
    metadata: {namespace: a, name: a, creationTimestamp: 2026-01-01T00:00:00Z}\n\
    spec: {parentRefs: [{name: a, sectionName: l1}], hostnames: [a.test], rules: [{backendRefs: [{name: a, port: 80}]}]}\n---\n\
    apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {namespace: a, name: b}\n\
    spec: {parentRefs: [{name: a, sectionName: l1}], rules: [{backendRefs: [{name: a, port: 80}]}]}\n---\n\
    apiVersion: gateway.networking.k8s.io/v1\nkind: GRPCRoute\nmetadata: {namespace: a, name: a}\n\
    spec: {parentRefs: [{name: a}], rules: [{backendRefs: [{name: b, port: 80}]}]}\n---\n\
    apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
    metadata: {namespace: b, name: a, creationTimestamp: 2026-01-01T00:00:00Z}\n\
    spec: {parentRefs: [{name: b}], rules: [{backendRefs: [{name: a, port: 80}]}]}\n---\n\
    apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
    metadata: {namespace: b, name: b, creationTimestamp: 2026-01-02T00:00:00Z}\n\
    spec: {parentRefs: [{name: b}], rules: [{backendRefs: [{name: b, port: 80}]}]}\n---\n\
    apiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\n\
    metadata: {namespace: a, name: a, creationTimestamp: 2026-01-01T00:00:00Z}\n\
    spec: {targetRefs: [{group: \"\", kind: Service, name: a}], \
    validation: {hostname: a.test, wellKnownCACertificates: System}}\n---\n\
    apiVersion: v1\nkind: Service\nmetadata: {namespace: a, name: a}\nspec: {ports: [{port: 80}]}\n---\n\
    apiVersion: v1\nkind: Service\nmetadata: {namespace: a, name: b}\nspec: {ports: [{port: 80}]}\n---\n\
    apiVersion: v1\nkind: Secret\nmetadata: {namespace: a, name: a}\n";

/// Returns the class of the Gateways, and the objects that are there at first.
pub(crate) fn foundation() -> String {
    [CLASS, FOUNDATION, &rotated()].concat()
}

/// An object that concerns the Gateway API.
pub(crate) fn any_gateway_object() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => any_gateway(),
        3 => any_listener_set(),
        8 => any_route(),
        4 => any_policy(),
        2 => any_class(),
        4 => any_service(),
        2 => any_keys(),
        1 => any_slice(),
        1 => any_grant(),
        1 => any_namespace(),
        2 => any_secret().prop_map(|text| ["b", "c"].iter().fold(text, |text, name| named_a(&text, name))),
    ]
}

/// Gives the object `name` the name of the one to which Gateways refer.
fn named_a(text: &str, name: &str) -> String {
    text.replacen(&format!(" name: {name}}}"), " name: a}", 1)
}

fn any_service() -> impl Strategy<Value = String> {
    let protocol = prop::sample::select(vec!["", "", ", appProtocol: kubernetes.io/h2c", ", protocol: UDP"]);
    (any_name(), any_name(), 80..82u16, protocol).prop_map(|(namespace, name, port, protocol)| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{namespace: {namespace}, name: {name}}}\nspec: {{ports: [{{port: {port}{protocol}}}]}}\n"
        )
    })
}

/// A ConfigMap for filters of routes.
fn any_keys() -> impl Strategy<Value = String> {
    let data = prop::sample::select(vec![
        "limit-rps: \"2\"",
        "auth-type: basic, auth-secret: a",
        "limit-rps: few",
        "upstream-vhost: $service_name, service-upstream: \"true\"",
    ]);
    (any_name(), any_name(), data).prop_map(|(namespace, name, data)| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{namespace: {namespace}, name: {name}}}\ndata: {{{data}}}\n"
        )
    })
}

fn any_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b"])
}

/// Namespace, name and age, as fields of `metadata`.
fn any_metadata() -> impl Strategy<Value = String> {
    (any_name(), any_name(), prop::option::of(1..4u8)).prop_map(|(namespace, name, age)| {
        let age = age.map_or_else(String::new, |age| format!(", creationTimestamp: 2026-01-0{age}T00:00:00Z"));
        format!("metadata: {{namespace: {namespace}, name: {name}{age}}}")
    })
}

fn any_hostname() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", "a.test", "b.test", "*.test", "*.a.test"])
}

/// Listeners, each with a name of its own. Those at 22 and 443 are refused without a pool.
fn any_listeners() -> impl Strategy<Value = String> {
    let served = prop::sample::select(vec![
        "port: 80, protocol: HTTP",
        "port: 80, protocol: HTTP",
        "port: 81, protocol: HTTP",
        "port: 81, protocol: TCP",
        "port: 82, protocol: TCP",
        "port: 82, protocol: UDP",
        "port: 443, protocol: HTTP",
        "port: 443, protocol: TLS, tls: {mode: Passthrough}",
        "port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: a}]}",
        "port: 22, protocol: TCP",
    ]);
    let allowed = prop::sample::select(vec![
        ", allowedRoutes: {namespaces: {from: All}}",
        ", allowedRoutes: {namespaces: {from: All}}",
        ", allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {team: a}}}}",
        "",
    ]);
    let listener = (served, any_hostname(), allowed).prop_map(|(served, hostname, allowed)| {
        let is_stream = served.contains("TCP") || served.contains("UDP");
        let hostname =
            if is_stream || hostname.is_empty() { String::new() } else { format!(", hostname: \"{hostname}\"") };
        format!("{served}{hostname}{allowed}")
    });
    prop::collection::vec(listener, 1..4).prop_map(|listeners| {
        listeners.iter().enumerate().map(|(at, listener)| format!("{{name: l{at}, {listener}}}, ")).collect()
    })
}

fn any_gateway() -> impl Strategy<Value = String> {
    let class = prop::sample::select(vec!["xdp", "xdp", "xdp", "other"]);
    let parameters = prop::sample::select(vec!["", "", "", ", parametersRef: {group: \"\", kind: ConfigMap, name: a}"]);
    let own = prop::sample::select(vec![
        "",
        "",
        "  tls: {backend: {clientCertificateRef: {group: \"\", kind: Secret, name: a}}}\n",
    ]);
    let sets = prop::sample::select(vec!["None", "Same", "All", "All"]);
    (any_metadata(), class, parameters, own, sets, any_listeners()).prop_map(
        |(metadata, class, parameters, own, sets, listeners)| {
            format!(
                "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\n{metadata}\nspec:\n  gatewayClassName: {class}\n{own}  \
                 allowedListeners: {{namespaces: {{from: {sets}}}}}\n  infrastructure: {{labels: {{}}{parameters}}}\n  \
                 listeners: [{listeners}]\n"
            )
        },
    )
}

fn any_listener_set() -> impl Strategy<Value = String> {
    (any_metadata(), any_name(), any_name(), any_listeners()).prop_map(|(metadata, namespace, name, listeners)| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: ListenerSet\n{metadata}\n\
             spec: {{parentRef: {{namespace: {namespace}, name: {name}}}, listeners: [{listeners}]}}\n"
        )
    })
}

fn any_class() -> impl Strategy<Value = String> {
    let other = CLASS.replace("xdp-ingress.io/gateway-controller", "another.io/controller");
    prop::sample::select(vec![CLASS.to_owned(), CLASS.to_owned(), CLASS.to_owned(), other])
}

fn any_policy() -> impl Strategy<Value = String> {
    (any_metadata(), prop::sample::select(vec!["a", "a", "a", "b"])).prop_map(|(metadata, service)| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\n{metadata}\nspec: {{targetRefs: [{{group: \"\", kind: \
             Service, name: {service}}}], validation: {{hostname: a.test, wellKnownCACertificates: System}}}}\n"
        )
    })
}

/// A route of any kind, with one or two parents.
fn any_route() -> impl Strategy<Value = String> {
    let kind = prop::sample::select(vec![
        "HTTPRoute",
        "HTTPRoute",
        "HTTPRoute",
        "GRPCRoute",
        "GRPCRoute",
        "TLSRoute",
        "TCPRoute",
        "UDPRoute",
    ]);
    let section = prop::sample::select(vec!["", "", ", sectionName: l0", ", port: 81"]);
    let parent_kind = prop::sample::select(vec!["Gateway", "Gateway", "ListenerSet"]);
    let parent = (parent_kind, any_name(), any_name(), section).prop_map(|(kind, namespace, name, section)| {
        format!("{{kind: {kind}, namespace: {namespace}, name: {name}{section}}}, ")
    });
    let backend = (any_name(), any_name(), 80..82u16)
        .prop_map(|(namespace, name, port)| format!("{{namespace: {namespace}, name: {name}, port: {port}}}, "));
    let http = prop::sample::select(vec![
        "",
        "{path: {value: /x}}",
        "{path: {value: /x}, method: GET}, {path: {type: Exact, value: /x}}",
        "{headers: [{name: a, value: b, type: RegularExpression}]}",
        "{path: {type: RegularExpression, value: x}}",
        "{path: {type: RegularExpression, value: y}}",
    ]);
    let grpc = prop::sample::select(vec![
        "",
        "{method: {service: s, method: m}}",
        "{method: {method: m}}",
        "{headers: [{name: a, value: b}]}",
    ]);
    let parents = prop::collection::vec(parent, 1..3);
    let hostnames = prop::collection::btree_set(any_hostname(), 0..3);
    let annotations = prop::sample::select(vec![
        "",
        "",
        ", annotations: {xdp-ingress.io/limit-rps: \"1\"}",
        ", annotations: {xdp-ingress.io/custom-headers: a, xdp-ingress.io/affinity: cookie}",
    ]);
    let filters = prop::sample::select(vec![
        "",
        "",
        "filters: [{type: ExtensionRef, extensionRef: {group: \"\", kind: ConfigMap, name: a}}], ",
    ]);
    let of_requests = (http, grpc, annotations, filters);
    (any_metadata(), kind, parents, hostnames, of_requests, prop::collection::vec(backend, 1..3)).prop_map(
        |(metadata, kind, parents, hostnames, (http, grpc, annotations, filters), backends)| {
            let metadata = format!("{}{annotations}}}", metadata.trim_end_matches('}'));
            let (parents, backends) = (parents.concat(), backends.concat());
            let matches = match kind {
                "HTTPRoute" => format!("{filters}matches: [{http}], "),
                "GRPCRoute" => format!("{filters}matches: [{grpc}], "),
                _ => String::new(),
            };
            let named = hostnames.iter().filter(|hostname| !hostname.is_empty());
            let hostnames: String = match kind {
                "TCPRoute" | "UDPRoute" => String::new(),
                _ => named.map(|hostname| format!("\"{hostname}\", ")).collect(),
            };
            format!(
                "apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\n{metadata}\nspec:\n  parentRefs: [{parents}]\n  \
                 hostnames: [{hostnames}]\n  rules: [{{{matches}backendRefs: [{backends}]}}]\n"
            )
        },
    )
}
