//! An EndpointSlice, reduced to the fields in use. A cluster has one endpoint per pod, and in the Kubernetes type each
//! takes half a kilobyte. This module judges nothing.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::discovery::v1::{Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::change::ObjectName;

/// A part of a service's endpoints, without unused fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    pub name: ObjectName,
    /// The service that its label names.
    pub service: Option<ObjectName>,
    /// `IPv4` or `IPv6` for slices that can be served.
    pub address_type: Box<str>,
    /// Empty means all ports.
    pub ports: Box<[EndpointPort]>,
    pub endpoints: Box<[SliceEndpoint]>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SliceEndpoint {
    /// The text as it is written. The first address counts; others have no meaning (discovery/v1,
    /// `Endpoint.addresses`).
    pub address: Box<str>,
    pub conditions: Option<EndpointConditions>,
    pub hints: Option<Box<EndpointHints>>,
}

/// Label that ties an EndpointSlice to its Service (k8s.io/api/discovery/v1, `LabelServiceName`).
pub(super) const SERVICE_NAME: &str = "kubernetes.io/service-name";

// === impl Slice ===

impl From<EndpointSlice> for Slice {
    fn from(object: EndpointSlice) -> Self {
        let EndpointSlice { address_type, endpoints, metadata, ports } = object;
        let name = ObjectName::of(&metadata);
        let label = metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME));
        let service =
            |label: &String| ObjectName { namespace: Arc::clone(&name.namespace), name: label.as_str().into() };
        Self {
            service: label.map(service),
            name,
            address_type: address_type.into(),
            ports: ports.unwrap_or_default().into(),
            endpoints: endpoints.into_iter().flatten().filter_map(SliceEndpoint::of).collect(),
        }
    }
}

/// The form in which it is saved.
impl From<&Slice> for EndpointSlice {
    fn from(slice: &Slice) -> Self {
        let Slice { name: ObjectName { namespace, name }, service, address_type, ports, endpoints } = slice;
        let label = |service: &ObjectName| BTreeMap::from([(SERVICE_NAME.to_owned(), (*service.name).to_owned())]);
        let metadata = ObjectMeta {
            name: Some((**name).to_owned()),
            namespace: Some((**namespace).to_owned()),
            labels: service.as_ref().map(label),
            ..ObjectMeta::default()
        };
        Self {
            address_type: (**address_type).to_owned(),
            endpoints: Some(endpoints.iter().map(Endpoint::from).collect()),
            metadata,
            ports: Some(ports.to_vec()),
        }
    }
}

// === impl SliceEndpoint ===

impl SliceEndpoint {
    /// Returns `None` for an endpoint without an address.
    fn of(endpoint: Endpoint) -> Option<Self> {
        let Endpoint { addresses, conditions, hints, .. } = endpoint;
        let address = addresses.into_iter().next()?.into();
        Some(Self { address, conditions, hints: hints.map(Box::new) })
    }
}

impl From<&SliceEndpoint> for Endpoint {
    fn from(endpoint: &SliceEndpoint) -> Self {
        let SliceEndpoint { address, conditions, hints } = endpoint;
        Self {
            addresses: vec![(**address).to_owned()],
            conditions: conditions.clone(),
            hints: hints.as_deref().cloned(),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_saved_object_equals_the_kept_one() {
        let object = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "a-1", "namespace": "n", "uid": "u", "labels": {SERVICE_NAME: "a", "app": "a"}},
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP", "appProtocol": "https"}],
            "endpoints": [
                {"addresses": ["10.0.0.1", "10.0.0.2"], "conditions": {"ready": false, "serving": true},
                    "hints": {"forZones": [{"name": "z"}]}, "nodeName": "node-1", "zone": "z"},
                {"addresses": []},
                {"addresses": ["nonsense"]}]});
        let object: EndpointSlice = serde_json::from_value(object).expect("a slice");
        let slice = Slice::from(object);
        assert_eq!(
            (slice.name.to_string(), slice.service.as_ref()),
            ("n/a-1".to_owned(), Some(&ObjectName::new("n", "a")))
        );
        let addresses: Vec<_> = slice.endpoints.iter().map(|endpoint| &*endpoint.address).collect();
        assert_eq!(addresses, ["10.0.0.1", "nonsense"]);
        let saved = EndpointSlice::from(&slice);
        assert_eq!(
            serde_json::to_value(&saved).expect("JSON"),
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"name": "a-1", "namespace": "n", "labels": {SERVICE_NAME: "a"}},
                "ports": [{"name": "http", "port": 8080, "protocol": "TCP", "appProtocol": "https"}],
                "endpoints": [
                    {"addresses": ["10.0.0.1"], "conditions": {"ready": false, "serving": true},
                        "hints": {"forZones": [{"name": "z"}]}},
                    {"addresses": ["nonsense"]}]})
        );
        assert_eq!(Slice::from(saved), slice);
        assert!(size_of::<SliceEndpoint>() <= 32, "there is one for each pod");
    }
}
