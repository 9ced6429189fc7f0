//! Drops from objects what is never looked at, which is often most of them. It changes nothing that a translation, the
//! status or an event would say.
//!
//! What stays of an object, in bytes of JSON, as the tests print it: of an EndpointSlice of 100 pods 12,600 of 24,600
//! (126 for a pod), of a Service 380 of 850, of a small Ingress 340 of 960, of a Node 170, however large it is (often
//! above 10,000).

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Node, NodeCondition, NodeStatus, Secret, Service, ServicePort, ServiceSpec},
        discovery::v1::{Endpoint, EndpointSlice},
        networking::v1::{Ingress, IngressClass},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use crate::{
    control::{change::Object, cluster::SERVICE_NAME, status},
    model::{KeySet, PasswordHash, TicketKeys},
};

/// Written by `kubectl apply`: the whole object again, of no use here.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Names the zone of a node.
const ZONE: &str = "topology.kubernetes.io/zone";

/// Reads an object that a watch has told of.
pub(super) fn ingress(mut object: Ingress) -> Object {
    // The writer of the status compares with what is there, and whose it is; both stay here.
    status::reduce(&mut object);
    let managed_fields = object.metadata.managed_fields.take();
    strip(&mut object.metadata);
    object.metadata.managed_fields = managed_fields;
    Object::Ingress(Arc::new(object))
}

pub(super) fn ingress_class(mut object: IngressClass) -> Object {
    strip(&mut object.metadata);
    Object::IngressClass(Arc::new(object))
}

pub(super) fn service(mut object: Service) -> Object {
    strip(&mut object.metadata);
    object.metadata.labels = None;
    object.status = None;
    object.spec = object.spec.take().map(|spec| {
        let ServiceSpec { type_, external_name, cluster_ip, cluster_ips, ports, traffic_distribution, .. } = spec;
        let ports = ports.map(|ports| {
            let plain = |port: ServicePort| ServicePort { node_port: None, ..port };
            ports.into_iter().map(plain).collect()
        });
        ServiceSpec {
            type_,
            external_name,
            cluster_ip,
            cluster_ips,
            ports,
            traffic_distribution,
            ..ServiceSpec::default()
        }
    });
    Object::Service(Arc::new(object))
}

pub(super) fn endpoint_slice(mut object: EndpointSlice) -> Object {
    strip(&mut object.metadata);
    object.metadata.annotations = None;
    retain(&mut object.metadata.labels, |label| label == SERVICE_NAME);
    for endpoint in object.endpoints.iter_mut().flatten() {
        let Endpoint { addresses, conditions, hints, node_name, zone, .. } = std::mem::take(endpoint);
        *endpoint = Endpoint { addresses, conditions, hints, node_name, zone, ..Endpoint::default() };
    }
    Object::EndpointSlice(Arc::new(object))
}

pub(super) fn config_map(mut object: ConfigMap) -> Object {
    strip(&mut object.metadata);
    object.binary_data = None;
    Object::ConfigMap(Arc::new(object))
}

/// Keeps name, zone, addresses and whether it is ready: a node tells its health every few minutes, which changes none
/// of these.
pub(super) fn node(object: Node) -> Object {
    let Node { metadata: ObjectMeta { name, labels, .. }, spec: _, status } = object;
    let mut metadata = ObjectMeta { name, labels, ..ObjectMeta::default() };
    retain(&mut metadata.labels, |label| label == ZONE);
    let ready = |NodeCondition { type_, status, .. }: NodeCondition| {
        (type_ == "Ready").then(|| NodeCondition { type_, status, ..NodeCondition::default() })
    };
    let status = status.map(|NodeStatus { addresses, conditions, .. }| {
        let conditions = conditions.map(|conditions| conditions.into_iter().filter_map(ready).collect());
        NodeStatus { addresses, conditions, ..NodeStatus::default() }
    });
    Object::Node(Arc::new(Node { metadata, spec: None, status }))
}

pub(super) fn secret(object: Secret) -> Object {
    Object::Secret(strip_secret(object))
}

/// Drops what is neither part of a certificate, nor whom to trust, nor a hash of a password, nor a key for tickets or
/// tokens: other secrets are not ours to hold. The keys stay, so that it can be told what is wrong with a Secret.
pub(super) fn strip_secret(mut secret: Secret) -> Arc<Secret> {
    let keep = |key: &str, value: &[u8]| {
        let is_hash = || str::from_utf8(value).is_ok_and(|text| PasswordHash::parse(text.trim()).is_ok());
        let is_known =
            matches!(key, "auth" | "ca.crl" | "ca.crt" | "tls.crt" | "tls.key" | "tls.ocsp-staple" | KeySet::FIELD);
        is_known || key.starts_with(TicketKeys::FIELD) || is_hash()
    };
    strip(&mut secret.metadata);
    for (key, value) in secret.data.iter_mut().flatten() {
        if !keep(key, &value.0) {
            value.0 = Vec::new();
        }
    }
    for (key, value) in secret.string_data.iter_mut().flatten() {
        if !keep(key, value.as_bytes()) {
            *value = String::new();
        }
    }
    Arc::new(secret)
}

/// Keeps what names an object, how old it is, and what people wrote on it.
pub(super) fn strip(metadata: &mut ObjectMeta) {
    let ObjectMeta { name, namespace, uid, creation_timestamp, labels, annotations, .. } = std::mem::take(metadata);
    *metadata = ObjectMeta { name, namespace, uid, creation_timestamp, labels, annotations, ..ObjectMeta::default() };
    retain(&mut metadata.annotations, |annotation| annotation != LAST_APPLIED);
}

fn retain<V>(map: &mut Option<BTreeMap<String, V>>, keep: impl Fn(&str) -> bool) {
    if let Some(map) = map {
        map.retain(|key, _| keep(key));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Length of the JSON of an object before and after, as a measure of what is kept.
    fn kept<K: serde::de::DeserializeOwned + serde::Serialize>(
        object: &Value,
        convert: fn(K) -> Object,
    ) -> (usize, Value) {
        let read: K = serde_json::from_value(object.clone()).expect("an object");
        let kept = match convert(read) {
            Object::Ingress(object) => serde_json::to_value(&*object),
            Object::Service(object) => serde_json::to_value(&*object),
            Object::EndpointSlice(object) => serde_json::to_value(&*object),
            Object::Secret(object) => serde_json::to_value(&*object),
            Object::Node(object) => serde_json::to_value(&*object),
            other => panic!("unexpected {other:?}"),
        };
        let kept = kept.expect("JSON");
        eprintln!("{} of {} bytes of JSON are kept", kept.to_string().len(), object.to_string().len());
        (kept.to_string().len() * 100 / object.to_string().len(), kept)
    }

    fn metadata() -> Value {
        json!({"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "a", SERVICE_NAME: "a", ZONE: "z1"},
            "annotations": {LAST_APPLIED: "hunter2".repeat(40), "kept": "yes"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "a", "uid": "o"}],
            "managedFields": [{"manager": "kubectl", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}]})
    }

    #[test]
    fn what_is_kept_of_an_object_is_small() {
        let pods = (0..100).map(|pod| {
            json!({"addresses": [format!("10.0.0.{pod}")], "nodeName": "node-1", "zone": "z1",
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "targetRef": {"kind": "Pod", "name": format!("a-5d4f8c7b9-{pod:05}"), "namespace": "n",
                    "uid": "7f3b7a52-5a0b-4a50-9d3c-000000000000"}})
        });
        let slice = json!({"metadata": metadata(), "addressType": "IPv4", "endpoints": pods.collect::<Vec<_>>(),
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]});
        let (percent, slice) = kept(&slice, endpoint_slice);
        assert!(percent < 65, "{percent} % of a slice is kept");
        assert_eq!(slice["metadata"]["labels"], json!({SERVICE_NAME: "a"}));
        assert_eq!(slice["endpoints"][7]["addresses"], json!(["10.0.0.7"]));

        let images: Vec<_> = (0..50).map(|image| json!({"names": [format!("registry.test/image-{image}@sha256:0123456789abcdef")], "sizeBytes": 1})).collect();
        let whole = json!({"metadata": metadata(), "spec": {"podCIDR": "10.0.0.0/24"}, "status": {"images": images,
            "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
            "conditions": [{"type": "DiskPressure", "status": "False", "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": null},
                {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z", "reason": "KubeletReady"}]}});
        let (percent, node) = kept(&whole, node);
        assert!(percent < 10, "{percent} % of a node is kept");
        assert_eq!(node["metadata"], json!({"name": "a", "labels": {ZONE: "z1"}}));
        assert_eq!(
            node["status"],
            json!({"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
            "conditions": [{"type": "Ready", "status": "True"}]})
        );
    }

    #[test]
    fn what_is_looked_at_is_kept() {
        let balancer = json!({"ingress": [{"ip": "192.0.2.1"}]});
        let whole =
            json!({"metadata": metadata(), "spec": {"ingressClassName": "xdp"}, "status": {"loadBalancer": balancer}});
        let (_, ingress) = kept(&whole, ingress);
        assert_eq!(ingress["status"]["loadBalancer"], balancer);
        assert_eq!(ingress["metadata"]["annotations"], json!({"kept": "yes"}));
        assert_eq!(ingress["metadata"]["uid"], json!("u"));
        let mut ours = whole;
        ours["metadata"]["managedFields"] = json!([{"manager": "xdp-ingress", "subresource": "status", "fieldsV1": {"f:status": {}}},
            {"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]);
        let (_, ours) = kept(&ours, self::ingress);
        assert_eq!(ours["metadata"]["managedFields"], json!([{"manager": "xdp-ingress"}]), "whose the status is");

        let spec = json!({"type": "ClusterIP", "clusterIP": "10.1.0.1", "trafficDistribution": "PreferSameNode",
            "ports": [{"name": "http", "port": 80, "targetPort": "web", "appProtocol": "kubernetes.io/h2c"}]});
        let mut whole = json!({"metadata": metadata(), "spec": spec});
        whole["spec"]["selector"] = json!({"app": "a"});
        let (_, service) = kept(&whole, service);
        assert_eq!(service["spec"], spec);
    }

    #[test]
    fn of_a_secret_only_certificates_and_hashes_are_kept() {
        // The hash is `{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=`.
        let hash = "e1NIQX01ZW42RzZNZXpScm9UM1hLcWtkUE9tWS9CZlE9";
        let data = json!({"tls.key": "YQ==", "auth": "YQ==", "ann": hash, "password": "aHVudGVyMg==",
            "tickets.key": "YQ==", "tickets.key.1": "YQ==", "tls.ocsp-staple": "YQ==", "jwks": "YQ=="});
        let (_, secret) = kept(&json!({"metadata": metadata(), "data": data}), secret);
        assert_eq!(
            secret["data"],
            json!({"tls.key": "YQ==", "auth": "YQ==", "ann": hash, "password": "",
            "tickets.key": "YQ==", "tickets.key.1": "YQ==", "tls.ocsp-staple": "YQ==", "jwks": "YQ=="})
        );
    }
}
