//! A Service, reduced to the fields in use. This module resolves nothing.

use std::net::IpAddr;

use k8s_openapi::{
    api::core::v1::{self, ServicePort, ServiceSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::change::ObjectName;

/// A Service without its unused fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    pub name: ObjectName,
    /// The UID for events about it.
    pub uid: Option<Box<str>>,
    /// The external name, if the Service is of type ExternalName; empty if it gives none.
    pub external_name: Option<Box<str>>,
    /// The cluster IPs; a headless Service has none.
    pub cluster_ips: Box<[IpAddr]>,
    pub ports: Box<[ServicePort]>,
}

const EXTERNAL_NAME: &str = "ExternalName";

// === impl Service ===

impl From<v1::Service> for Service {
    fn from(object: v1::Service) -> Self {
        let v1::Service { metadata, spec, status: _ } = object;
        let ServiceSpec { type_, external_name, cluster_ip, cluster_ips, ports, .. } = spec.unwrap_or_default();
        let is_external = type_.as_deref() == Some(EXTERNAL_NAME);
        // The API server repeats the first address in `clusterIP`, which is older than dual-stack Services.
        let cluster_ips = cluster_ips.unwrap_or_else(|| cluster_ip.into_iter().collect());
        let mut ports = ports.unwrap_or_default();
        ports.iter_mut().for_each(|port| port.node_port = None);
        Self {
            name: ObjectName::of(&metadata),
            uid: metadata.uid.map(Into::into),
            external_name: is_external.then(|| external_name.unwrap_or_default().into()),
            cluster_ips: cluster_ips.iter().filter_map(|ip| ip.parse().ok()).collect(),
            ports: ports.into(),
        }
    }
}

/// The form in which it is saved.
impl From<&Service> for v1::Service {
    fn from(service: &Service) -> Self {
        let Service { name: ObjectName { namespace, name }, uid, external_name, cluster_ips, ports } = service;
        let metadata = ObjectMeta {
            name: Some((**name).to_owned()),
            namespace: Some((**namespace).to_owned()),
            uid: uid.as_deref().map(str::to_owned),
            ..ObjectMeta::default()
        };
        let spec = ServiceSpec {
            type_: external_name.is_some().then(|| EXTERNAL_NAME.to_owned()),
            external_name: external_name.as_deref().map(str::to_owned),
            cluster_ips: Some(cluster_ips.iter().map(ToString::to_string).collect()),
            ports: Some(ports.to_vec()),
            ..ServiceSpec::default()
        };
        Self { metadata, spec: Some(spec), status: None }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(spec: &Value, kept: &Value) {
        let metadata = json!({"name": "a", "namespace": "n", "uid": "u"});
        let object = |spec| json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec});
        let read: v1::Service = serde_json::from_value(object(spec)).expect("a Service");
        let service = Service::from(read);
        let saved = v1::Service::from(&service);
        assert_eq!(serde_json::to_value(&saved).expect("JSON"), object(kept));
        assert_eq!(Service::from(saved), service);
    }

    #[test]
    fn the_saved_object_equals_the_kept_one() {
        let port = json!({"name": "http", "port": 80, "targetPort": "web", "appProtocol": "kubernetes.io/h2c"});
        let mut exposed = port.clone();
        exposed["nodePort"] = json!(30_080);
        check(
            &json!({"type": "NodePort", "clusterIP": "10.1.0.1", "clusterIPs": ["10.1.0.1", "fd00::1"],
                "trafficDistribution": "PreferSameNode", "selector": {"app": "a"}, "ports": [exposed]}),
            &json!({"clusterIPs": ["10.1.0.1", "fd00::1"], "ports": [port]}),
        );
        check(&json!({"clusterIP": "10.1.0.1"}), &json!({"clusterIPs": ["10.1.0.1"], "ports": []}));
        check(&json!({"clusterIP": "None", "clusterIPs": ["None"]}), &json!({"clusterIPs": [], "ports": []}));
        check(
            &json!({"type": "ExternalName", "externalName": "a.test"}),
            &json!({"type": "ExternalName", "externalName": "a.test", "clusterIPs": [], "ports": []}),
        );
        check(&json!({"externalName": "a.test"}), &json!({"clusterIPs": [], "ports": []}));
    }
}
