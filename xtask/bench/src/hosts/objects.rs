//! The Kubernetes objects of many hosts: each host has its own Ingress, Service and EndpointSlice.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::Plan;
use ingress_lab::credentials::Signed;

const NAMESPACE: &str = "bench";

pub(super) fn class() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IngressClass",
        "metadata": {"name": "xdp"},
        "spec": {"controller": "xdp-ingress.io/controller"},
    })
}

/// Returns all objects of one host, which lead to a pod at this address.
pub(super) fn group(plan: Plan, host: usize, pod: Ipv4Addr, port: u16) -> [Value; 3] {
    let [service, slice] = behind(host, pod, port);
    [service, slice, ingress(plan, host)]
}

/// Returns the objects behind the Ingress of a host.
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
            "creationTimestamp": "2026-01-01T00:00:00Z",
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
