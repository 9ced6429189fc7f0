//! Drops the fields of objects that are never used, which often are most of them. This affects neither a translation,
//! nor the status, nor an event.
//!
//! The remaining size of an object, in bytes of JSON, as the tests print it: an EndpointSlice of 100 pods keeps 9,300
//! of 24,600 (90 per pod, which in memory are 64). A small Ingress keeps 340 of 960, and a Node keeps 170 at any size
//! (often above 10,000). Services, slices, Namespaces and ReferenceGrants have types of their own, and objects of the
//! Gateway API metadata of their own; in other objects, dropped fields are empty.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Namespace, Node, NodeCondition, NodeStatus, Secret, Service},
        discovery::v1::EndpointSlice,
        networking::v1::{Ingress, IngressClass, IngressSpec},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use zeroize::Zeroize as _;

use crate::{change::Object, gateway::StoredKind, reference_grant::ReferenceGrant, status::field_owners::reduce};
use ingress_model::{KeySet, PasswordHash, TicketKeys};

/// Written by `kubectl apply`: a copy of the whole object, which is not used here.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Label with the zone of a node.
const ZONE: &str = "topology.kubernetes.io/zone";

/// Keeps the used fields of an Ingress.
pub(super) fn ingress(mut object: Ingress) -> Object {
    // The status writer compares with the current status and its field owners, so both stay.
    reduce(&mut object);
    let managed_fields = object.metadata.managed_fields.take();
    strip(&mut object.metadata);
    object.metadata.managed_fields = managed_fields;
    if let Some(IngressSpec { rules, tls, .. }) = &mut object.spec {
        fit(rules);
        fit(tls);
        rules.iter_mut().flatten().filter_map(|rule| rule.http.as_mut()).for_each(|http| http.paths.shrink_to_fit());
        tls.iter_mut().flatten().for_each(|tls| fit(&mut tls.hosts));
    }
    Object::Ingress(Arc::new(object))
}

pub(super) fn ingress_class(mut object: IngressClass) -> Object {
    strip(&mut object.metadata);
    Object::IngressClass(Arc::new(object))
}

pub(super) fn service(object: Service) -> Object {
    Object::Service(Arc::new(object.into()))
}

pub(super) fn endpoint_slice(object: EndpointSlice) -> Object {
    Object::EndpointSlice(Arc::new(object.into()))
}

pub(super) fn namespace(object: Namespace) -> Object {
    Object::Namespace(Arc::new(object.into()))
}

pub(super) fn reference_grant<const BETA: bool>(object: ReferenceGrant<BETA>) -> Object {
    Object::ReferenceGrant(Arc::new(object.into()))
}

/// Keeps the status, with which statuses to write are compared, and the metadata in use
/// ([`HeldMetadata`](crate::gateway::HeldMetadata)).
pub(super) fn gateway_api<K: StoredKind>(object: K::Sent) -> Object {
    Object::GatewayApi(K::any(Arc::new(object.into())))
}

pub(super) fn config_map(mut object: ConfigMap) -> Object {
    strip(&mut object.metadata);
    object.binary_data = None;
    Object::ConfigMap(Arc::new(object))
}

/// Keeps name, zone, addresses and readiness. A node reports its health every few minutes, which changes none of these.
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

/// Drops values other than parts of certificates, trust anchors, password hashes, and keys for tickets or tokens: this
/// process must not hold other secrets. The keys of dropped values stay, so that problems of a Secret can be reported.
pub(super) fn secret(mut secret: Secret) -> Object {
    let keep = |key: &str, value: &[u8]| {
        let is_hash = || str::from_utf8(value).is_ok_and(|text| PasswordHash::parse(text.trim()).is_ok());
        let is_known =
            matches!(key, "auth" | "ca.crl" | "ca.crt" | "tls.crt" | "tls.key" | "tls.ocsp-staple" | KeySet::FIELD);
        is_known || key.starts_with(TicketKeys::FIELD) || is_hash()
    };
    strip(&mut secret.metadata);
    for (key, value) in secret.data.iter_mut().flatten() {
        if !keep(key, &value.0) {
            std::mem::take(&mut value.0).zeroize();
        }
    }
    for (key, value) in secret.string_data.iter_mut().flatten() {
        if !keep(key, value.as_bytes()) {
            std::mem::take(value).zeroize();
        }
    }
    Object::Secret(Arc::new(secret.into()))
}

/// Keeps the name, UID and age of an object, and its labels and annotations.
fn strip(metadata: &mut ObjectMeta) {
    let ObjectMeta { name, namespace, uid, creation_timestamp, labels, annotations, .. } = std::mem::take(metadata);
    *metadata = ObjectMeta { name, namespace, uid, creation_timestamp, labels, annotations, ..ObjectMeta::default() };
    retain(&mut metadata.annotations, |annotation| annotation != LAST_APPLIED);
}

/// Returns unused capacity of a list: decoding reserves room for four elements, and most lists hold one.
fn fit<T>(list: &mut Option<Vec<T>>) {
    if let Some(list) = list {
        list.shrink_to_fit();
    }
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
    use crate::{
        gateway::{Gateway, GatewayApiObject, route::HttpRoute},
        slice::SERVICE_NAME,
    };

    /// Returns the length of the JSON of an object before and after, as a measure of the remaining size.
    fn kept<K: serde::de::DeserializeOwned + serde::Serialize>(
        object: &Value,
        convert: fn(K) -> Object,
    ) -> (usize, Value) {
        let read: K = serde_json::from_value(object.clone()).expect("an object");
        let kept = match convert(read) {
            Object::Ingress(object) => serde_json::to_value(&*object),
            Object::EndpointSlice(slice) => serde_json::to_value(EndpointSlice::from(&*slice)),
            Object::Secret(secret) => serde_json::to_value(&**secret),
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
    fn stripped_objects_are_small() {
        let pods = (0..100).map(|pod| {
            json!({"addresses": [format!("10.0.0.{pod}")], "nodeName": "node-1", "zone": "z1",
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "targetRef": {"kind": "Pod", "name": format!("a-5d4f8c7b9-{pod:05}"), "namespace": "n",
                    "uid": "7f3b7a52-5a0b-4a50-9d3c-000000000000"}})
        });
        let slice = json!({"metadata": metadata(), "addressType": "IPv4", "endpoints": pods.collect::<Vec<_>>(),
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]});
        let (percent, slice) = kept(&slice, endpoint_slice);
        assert!(percent < 45, "{percent} % of a slice is kept");
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
    fn lists_have_no_spare_capacity() {
        let text = r#"{"spec": {"rules": [{"http": {"paths": [{"pathType": "Exact", "backend": {}}]}}]}}"#;
        let object = ingress(serde_json::from_str(text).expect("an Ingress"));
        let Object::Ingress(ingress) = object else { panic!("unexpected {object:?}") };
        let rules = ingress.spec.as_ref().and_then(|spec| spec.rules.as_ref()).expect("rules");
        let http = rules[0].http.as_ref().expect("paths");
        assert_eq!((rules.capacity(), http.paths.capacity()), (1, 1));
    }

    #[test]
    fn fields_in_use_are_kept() {
        let balancer = json!({"ingress": [{"ip": "192.0.2.1"}]});
        let whole =
            json!({"metadata": metadata(), "spec": {"ingressClassName": "xdp"}, "status": {"loadBalancer": balancer}});
        let (_, ingress) = kept(&whole, ingress);
        assert_eq!(ingress["status"]["loadBalancer"], balancer);
        assert_eq!(ingress["metadata"]["annotations"], json!({"kept": "yes"}));
        assert_eq!(ingress["metadata"]["uid"], json!("u"));
        let mut ours = whole;
        ours["metadata"]["managedFields"] = json!([{"manager": "xdp-ingress", "operation": "Apply", "subresource": "status", "fieldsV1": {"f:status": {}}},
            {"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]);
        let (_, ours) = kept(&ours, self::ingress);
        assert_eq!(ours["metadata"]["managedFields"], json!([{"manager": "xdp-ingress"}]), "whose the status is");
    }

    #[test]
    fn routes_keep_the_annotations_of_this_controller() {
        let annotations = json!({"xdp-ingress.io/limit-rps": "1", "xdp-ingress.iox/a": "", "acme.test/checked": "now"});
        let object = json!({"metadata": {"name": "r", "annotations": annotations, "labels": {"a": "b"}}});
        let kept = gateway_api::<HttpRoute>(serde_json::from_value(object).expect("a route"));
        let Object::GatewayApi(GatewayApiObject::HttpRoute(route)) = kept else { panic!("unexpected {kept:?}") };
        let kept = route.metadata.annotations.iter().flat_map(|all| all.iter()).collect::<Vec<_>>();
        assert_eq!(kept, [(&"xdp-ingress.io/limit-rps".to_owned(), &"1".to_owned())]);
    }

    #[test]
    fn gateways_keep_what_their_statuses_need() {
        let mut object =
            json!({"metadata": metadata(), "status": {"conditions": [{"type": "Accepted", "status": "True"}]}});
        object["metadata"]["generation"] = json!(3);
        let owner = |operation: &str| {
            json!({"manager": "xdp-ingress", "operation": operation, "subresource": "status",
                "fieldsType": "FieldsV1", "fieldsV1": {"f:status": {"f:addresses": {}}}})
        };
        object["metadata"]["managedFields"] = json!([owner("Update"), owner("Apply")]);
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:05Z");
        let kept = gateway_api::<Gateway>(serde_json::from_value(object).expect("a Gateway"));
        let Object::GatewayApi(GatewayApiObject::Gateway(gateway)) = kept else { panic!("unexpected {kept:?}") };
        let kept = serde_json::to_value(&*gateway).expect("JSON");
        let mut expected = metadata();
        expected["generation"] = json!(3);
        expected["deletionTimestamp"] = json!("2026-01-01T00:00:05Z");
        expected["managedFields"] = json!([{"manager": "xdp-ingress", "operation": "Apply", "subresource": "status"}]);
        let fields = expected.as_object_mut().expect("fields");
        ["ownerReferences", "labels", "annotations"].iter().for_each(|field| drop(fields.remove(*field)));
        assert_eq!(kept["metadata"], expected);
        assert_eq!(gateway.status.conditions.len(), 1);
    }

    #[test]
    fn secrets_keep_only_certificates_and_hashes() {
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
