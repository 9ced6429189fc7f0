//! The Kubernetes objects of many hosts: each host has its own Ingress or HTTPRoute, Service and EndpointSlice.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::{Plan, Way};
use crate::peers::Ports;
use ingress_lab::credentials::Signed;

const NAMESPACE: &str = "bench";
const CREATED: &str = "2026-01-01T00:00:00Z";

/// Returns the objects that all hosts share.
pub(super) fn shared(way: Way, plan: Plan, ports: Ports) -> Vec<Value> {
    if way == Way::XdpIngressGatewayFiles { vec![gateway_class(), gateway(plan, ports)] } else { vec![class()] }
}

fn gateway_class() -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "GatewayClass",
        "metadata": {"name": "xdp-ingress"},
        "spec": {"controllerName": "xdp-ingress.io/gateway-controller"},
    })
}

/// Returns a Gateway with a listener, and with another one for TLS if there is a certificate, which is for all hosts.
fn gateway(plan: Plan, ports: Ports) -> Value {
    let mut listeners = vec![json!({"name": "http", "port": ports.http, "protocol": "HTTP"})];
    if plan.certificates() > 0 {
        let tls = json!({"certificateRefs": [{"name": "c0"}]});
        listeners.push(json!({"name": "https", "port": ports.https, "protocol": "HTTPS", "tls": tls}));
    }
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"namespace": NAMESPACE, "name": "web", "creationTimestamp": CREATED},
        "spec": {"gatewayClassName": "xdp-ingress", "listeners": listeners},
    })
}

pub(super) fn class() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IngressClass",
        "metadata": {"name": "xdp"},
        "spec": {"controller": "xdp-ingress.io/controller"},
    })
}

/// Returns all objects of one host, which lead to a pod at this address.
pub(super) fn group(way: Way, plan: Plan, host: usize, pod: Ipv4Addr, port: u16) -> [Value; 3] {
    let [service, slice] = behind(host, pod, port);
    [service, slice, if way == Way::XdpIngressGatewayFiles { route(host) } else { ingress(plan, host) }]
}

/// Returns the objects behind the Ingress or HTTPRoute of a host.
pub(super) fn behind(host: usize, pod: Ipv4Addr, port: u16) -> [Value; 2] {
    [service(host), slice(host, pod, port)]
}

fn service(host: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": NAMESPACE, "name": format!("s{host}")},
        "spec": {"ports": [{"port": 80}]},
    })
}

pub(super) fn slice(host: usize, pod: Ipv4Addr, port: u16) -> Value {
    let labels = json!({"kubernetes.io/service-name": format!("s{host}")});
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"namespace": NAMESPACE, "name": format!("s{host}-a"), "labels": labels},
        "addressType": "IPv4",
        "ports": [{"port": port}],
        "endpoints": [{"addresses": [pod.to_string()]}],
    })
}

pub(super) fn ingress(plan: Plan, host: usize) -> Value {
    let name = super::name(host);
    let backend = json!({"service": {"name": format!("s{host}"), "port": {"number": 80}}});
    let paths = json!([{"path": "/", "pathType": "Prefix", "backend": backend}]);
    let mut object = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {
            "namespace": NAMESPACE,
            "name": format!("i{host}"),
            "creationTimestamp": CREATED,
        },
        "spec": {"ingressClassName": "xdp", "rules": [{"host": &name, "http": {"paths": paths}}]},
    });
    if let Some(number) = plan.certificate(host) {
        object["spec"]["tls"] = json!([{"hosts": [&name], "secretName": format!("c{number}")}]);
        // The host is requested over plain HTTP, too.
        object["metadata"]["annotations"] = json!({"nginx.ingress.kubernetes.io/ssl-redirect": "false"});
    }
    object
}

fn route(host: usize) -> Value {
    let backends = json!([{"name": format!("s{host}"), "port": 80}]);
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"namespace": NAMESPACE, "name": format!("i{host}"), "creationTimestamp": CREATED},
        "spec": {
            "parentRefs": [{"name": "web"}],
            "hostnames": [super::name(host)],
            "rules": [{"matches": [{"path": {"type": "PathPrefix", "value": "/"}}], "backendRefs": backends}],
        },
    })
}

pub(super) fn secret(number: usize, signed: &Signed) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"namespace": NAMESPACE, "name": format!("c{number}")},
        "type": "kubernetes.io/tls",
        // The form in which users may write a Secret; a server then converts it into `data`.
        "stringData": {"tls.crt": signed.certificate(), "tls.key": signed.key()},
    })
}

/// Formats objects as the text of a manifest: JSON is YAML.
pub(super) fn manifest(objects: &[Value]) -> String {
    objects.iter().map(|object| format!("{object}\n---\n")).collect()
}
