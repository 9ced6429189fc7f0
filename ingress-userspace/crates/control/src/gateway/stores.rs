//! The known objects of the Gateway API, by kind and name. This module stores and finds objects; it judges none.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserializer, Serialize, Serializer};

use super::{
    BackendTlsPolicy, Gateway, GatewayClass, GatewayObject, GatewayStatus, HeldMetadata, ListenerSet,
    object::write,
    route::{GrpcRoute, HttpRoute, TcpRoute, TlsRoute, UdpRoute},
};
use crate::{
    cluster::{Cluster, Store, Stored},
    object::{Kind, ObjectName},
    outcome::Origin,
};

/// A kind of the Gateway API that a cluster stores.
pub(crate) trait StoredKind: GatewayObject + PartialEq {
    fn any(object: Arc<Self>) -> GatewayApiObject;
}

/// Defines, for all kinds, the enum of objects and the stores: `Kind: store;`.
macro_rules! stored_kinds {
    ($($kind:ident: $store:ident;)*) => {
        /// An object of any kind of the Gateway API, apart from ReferenceGrants.
        #[derive(Clone, PartialEq)]
        pub enum GatewayApiObject {
            $($kind(Arc<$kind>),)*
        }

        /// The objects of each kind.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct GatewayStores {
            $(pub $store: Store<$kind>,)*
        }

        $(impl StoredKind for $kind {
            fn any(object: Arc<Self>) -> GatewayApiObject {
                GatewayApiObject::$kind(object)
            }
        })*

        impl GatewayApiObject {
            #[must_use]
            pub fn kind(&self) -> Kind {
                match self {
                    $(Self::$kind(_) => Kind::$kind,)*
                }
            }

            #[must_use]
            pub fn metadata(&self) -> &HeldMetadata {
                match self {
                    $(Self::$kind(object) => &object.metadata,)*
                }
            }

            /// Reads an object of `kind`. Returns `None` for a kind that is not of the Gateway API.
            pub(crate) fn read<'de, D: Deserializer<'de>>(kind: Kind, source: D) -> Option<Result<Self, D::Error>> {
                match kind {
                    $(Kind::$kind => Some(serde::Deserialize::deserialize(source).map(Arc::new).map(Self::$kind)),)*
                    _ => None,
                }
            }
        }

        /// The form in which it is saved: with the part of the status that is input of the translation.
        impl Serialize for GatewayApiObject {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let status = match self {
                    Self::Gateway(gateway) => {
                        let addresses = gateway.status.addresses.clone();
                        Some(GatewayStatus { addresses, ..GatewayStatus::default() })
                    }
                    _ => None,
                };
                match self {
                    $(Self::$kind(object) => {
                        write::<$kind, _>(&object.metadata, &object.spec, status.as_ref(), serializer)
                    })*
                }
            }
        }

        impl GatewayStores {
            /// Returns `true` if the stores hold an equal object.
            pub(crate) fn hold(&self, object: &GatewayApiObject, origin: &Origin) -> bool {
                let name = &object.metadata().name;
                match object {
                    $(GatewayApiObject::$kind(object) => {
                        self.$store.get(name).is_some_and(|stored| stored.object == *object && stored.origin == *origin)
                    })*
                }
            }

            /// Returns `true` if the stored object differs only in fields that no translation reads.
            pub(crate) fn differ_in_status(&self, object: &GatewayApiObject, origin: &Origin) -> bool {
                let name = &object.metadata().name;
                if let GatewayApiObject::Gateway(new) = object
                    && self.gateways.get(name).is_some_and(|old| old.object.status.addresses != new.status.addresses)
                {
                    return false;
                }
                match object {
                    $(GatewayApiObject::$kind(object) => self.$store.get(name).is_some_and(|stored| {
                        stored.origin == *origin && stored.object.differs_in_status(object)
                    }),)*
                }
            }

            pub(crate) fn insert(&mut self, object: GatewayApiObject, origin: Origin) {
                let name = object.metadata().name.clone();
                match object {
                    $(GatewayApiObject::$kind(object) => drop(self.$store.insert(name, Stored { object, origin })),)*
                }
            }

            /// Returns `true` if there was such an object.
            pub(crate) fn remove(&mut self, kind: Kind, name: &ObjectName) -> bool {
                match kind {
                    $(Kind::$kind => self.$store.remove(name).is_some(),)*
                    _ => false,
                }
            }

            /// Returns `true` if there is no object of any kind.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                true $(&& self.$store.is_empty())*
            }
        }
    };
}

stored_kinds! {
    GatewayClass: classes;
    Gateway: gateways;
    ListenerSet: listener_sets;
    HttpRoute: http_routes;
    GrpcRoute: grpc_routes;
    TlsRoute: tls_routes;
    TcpRoute: tcp_routes;
    UdpRoute: udp_routes;
    BackendTlsPolicy: backend_tls_policies;
}

// === impl Cluster ===

impl Cluster {
    #[must_use]
    pub fn gateway_classes(&self) -> &Store<GatewayClass> {
        &self.gateway_api.classes
    }

    #[must_use]
    pub fn gateways(&self) -> &Store<Gateway> {
        &self.gateway_api.gateways
    }

    #[must_use]
    pub fn gateway(&self, name: &ObjectName) -> Option<&Stored<Gateway>> {
        self.gateway_api.gateways.get(name)
    }

    #[must_use]
    pub fn listener_sets(&self) -> &Store<ListenerSet> {
        &self.gateway_api.listener_sets
    }

    #[must_use]
    pub fn http_routes(&self) -> &Store<HttpRoute> {
        &self.gateway_api.http_routes
    }

    #[must_use]
    pub fn http_route(&self, name: &ObjectName) -> Option<&Stored<HttpRoute>> {
        self.gateway_api.http_routes.get(name)
    }

    #[must_use]
    pub fn grpc_routes(&self) -> &Store<GrpcRoute> {
        &self.gateway_api.grpc_routes
    }

    #[must_use]
    pub fn tls_routes(&self) -> &Store<TlsRoute> {
        &self.gateway_api.tls_routes
    }

    #[must_use]
    pub fn tcp_routes(&self) -> &Store<TcpRoute> {
        &self.gateway_api.tcp_routes
    }

    #[must_use]
    pub fn udp_routes(&self) -> &Store<UdpRoute> {
        &self.gateway_api.udp_routes
    }

    #[must_use]
    pub fn backend_tls_policies(&self) -> &Store<BackendTlsPolicy> {
        &self.gateway_api.backend_tls_policies
    }

    /// Returns the labels of a Namespace, which include `kubernetes.io/metadata.name`. Returns `None` if the Namespace
    /// is not known: it may not exist, or not be watched.
    #[must_use]
    pub fn namespace_labels(&self, namespace: &str) -> Option<&BTreeMap<String, String>> {
        self.namespace_labels.get(namespace).map(|labels| &**labels)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        change::{Change, Object},
        namespace::Namespace,
        object::ObjectId,
    };

    fn gateway(change: impl FnOnce(&mut Value)) -> Change {
        let mut object = json!({"metadata": {"name": "g", "namespace": "n", "uid": "u", "generation": 1, "resourceVersion": "1"}, "spec": {"gatewayClassName": "xdp"}});
        change(&mut object);
        let gateway: Gateway = serde_json::from_value(object).expect("a Gateway");
        let object = Object::GatewayApi(GatewayApiObject::Gateway(gateway.into()));
        Change::Apply { object, origin: Origin::Api }
    }

    #[test]
    fn a_status_makes_no_difference_apart_from_addresses() {
        let mut cluster = Cluster::default();
        let name = ObjectName::new("n", "g");
        assert!(cluster.apply(gateway(|_| {})));
        assert!(!cluster.apply(gateway(|_| {})), "nothing is new");
        let written = |object: &mut Value| {
            object["metadata"]["resourceVersion"] = json!("2");
            object["status"] = json!({"conditions": [{"type": "Accepted", "status": "True"}]});
        };
        assert!(!cluster.apply(gateway(written)), "only the status differs");
        let stored = cluster.gateway(&name).expect("a Gateway");
        assert_eq!(stored.object.status.conditions.len(), 1);
        assert_eq!(stored.object.metadata.resource_version.as_deref(), Some("2"), "the writer needs the newest");
        let addressed = |object: &mut Value| object["status"] = json!({"addresses": [{"value": "192.0.2.1"}]});
        assert!(cluster.apply(gateway(addressed)));
        let changed = |object: &mut Value| {
            addressed(object);
            object["metadata"]["generation"] = json!(2);
        };
        assert!(cluster.apply(gateway(changed)));
        assert!(cluster.apply(Change::Remove(ObjectId { kind: Kind::Gateway, name: name.clone() })));
        assert!(!cluster.apply(Change::Remove(ObjectId { kind: Kind::Gateway, name })));
        assert_eq!(cluster, Cluster::default(), "nothing is kept of what is gone");
    }

    #[test]
    fn labels_of_namespaces_matter_beside_gateways() {
        let mut cluster = Cluster::default();
        let namespace = |team: &str| {
            let object = json!({"metadata": {"name": "n", "labels": {"team": team}}});
            let object = Namespace::from(
                serde_json::from_value::<k8s_openapi::api::core::v1::Namespace>(object).expect("a Namespace"),
            );
            Change::Apply { object: Object::Namespace(object.into()), origin: Origin::Api }
        };
        assert!(!cluster.apply(namespace("a")), "no object asks for them");
        cluster.apply(gateway(|_| {}));
        assert!(!cluster.apply(namespace("a")));
        assert!(cluster.apply(namespace("b")));
        let labels = cluster.namespace_labels("n").expect("labels");
        assert_eq!((&*labels["team"], &*labels["kubernetes.io/metadata.name"]), ("b", "n"));
        assert!(cluster.apply(Change::Remove(ObjectId { kind: Kind::Namespace, name: ObjectName::new("", "n") })));
        assert_eq!(cluster.namespace_labels("n"), None);
    }
}
