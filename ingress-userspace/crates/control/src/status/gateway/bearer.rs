//! Objects of the Gateway API whose statuses this controller writes, found in the input. This module decides nothing.

use std::{collections::BTreeSet, sync::Arc};

use super::{patch::Present, shared_list::has_ours};
use crate::{
    change::{Kind, ObjectId, ObjectName},
    cluster::{Store, Stored},
    gateway::{GatewayObject, HeldMetadata},
    object_status::ObjectStatus,
    outcome::Origin,
    status::input::StatusInput,
};

/// An object whose status this controller writes.
#[derive(Clone, Debug)]
pub(super) struct Bearer<'i> {
    pub(super) uid: &'i str,
    /// `metadata.resourceVersion`.
    pub(super) version: &'i str,
    pub(super) present: Present<'i>,
    /// The status to show. `None`: the object is not this controller's any more, but shows parts of its status.
    pub(super) wanted: Option<&'i Arc<ObjectStatus>>,
}

impl StatusInput {
    /// Returns the object of this name, if its status is this controller's to write, or was.
    pub(super) fn bearer(&self, id: &ObjectId) -> Option<Bearer<'_>> {
        let stores = &self.cluster().gateway_api;
        let name = &id.name;
        let (metadata, origin, present) = match id.kind {
            Kind::GatewayClass => of(&stores.classes, name, |object| Present::GatewayClass(&object.status)),
            Kind::Gateway => of(&stores.gateways, name, |object| Present::Gateway(&object.status)),
            Kind::ListenerSet => of(&stores.listener_sets, name, |object| Present::ListenerSet(&object.status)),
            Kind::HttpRoute => of(&stores.http_routes, name, |object| Present::Route(&object.status)),
            Kind::GrpcRoute => of(&stores.grpc_routes, name, |object| Present::Route(&object.status)),
            Kind::TlsRoute => of(&stores.tls_routes, name, |object| Present::Route(&object.status)),
            Kind::TcpRoute => of(&stores.tcp_routes, name, |object| Present::Route(&object.status)),
            Kind::UdpRoute => of(&stores.udp_routes, name, |object| Present::Route(&object.status)),
            Kind::BackendTlsPolicy => of(&stores.backend_tls_policies, name, |object| Present::Policy(&object.status)),
            _ => None,
        }?;
        let wanted = self.translation().statuses.get(id);
        let is_ours = wanted.is_some()
            || match present {
                Present::Route(status) => has_ours(&status.parents),
                Present::Policy(status) => has_ours(&status.ancestors),
                _ => metadata.managers.iter().any(|manager| **manager == *self.manager()),
            };
        let version = metadata.resource_version.as_deref().unwrap_or_default();
        let uid = metadata.uid.as_deref().unwrap_or_default();
        (is_ours && *origin == Origin::Api).then_some(Bearer { uid, version, present, wanted })
    }

    /// Returns the names of the objects with a [`StatusInput::bearer`] that may differ from `before`.
    pub(super) fn bearers_changed_since(&self, before: &Self) -> BTreeSet<ObjectId> {
        let (old, new) = (&before.cluster().gateway_api, &self.cluster().gateway_api);
        let statuses = before.translation().statuses.differences(&self.translation().statuses).into_iter();
        let mut ids: BTreeSet<ObjectId> = statuses.map(|difference| difference.key.clone()).collect();
        ids.extend(changed(Kind::GatewayClass, &old.classes, &new.classes));
        ids.extend(changed(Kind::Gateway, &old.gateways, &new.gateways));
        ids.extend(changed(Kind::ListenerSet, &old.listener_sets, &new.listener_sets));
        ids.extend(changed(Kind::HttpRoute, &old.http_routes, &new.http_routes));
        ids.extend(changed(Kind::GrpcRoute, &old.grpc_routes, &new.grpc_routes));
        ids.extend(changed(Kind::TlsRoute, &old.tls_routes, &new.tls_routes));
        ids.extend(changed(Kind::TcpRoute, &old.tcp_routes, &new.tcp_routes));
        ids.extend(changed(Kind::UdpRoute, &old.udp_routes, &new.udp_routes));
        ids.extend(changed(Kind::BackendTlsPolicy, &old.backend_tls_policies, &new.backend_tls_policies));
        ids
    }

    /// Returns the names of all Gateways.
    pub(super) fn gateways(&self) -> impl Iterator<Item = ObjectId> {
        let names = self.cluster().gateway_api.gateways.keys();
        names.map(|name| ObjectId { kind: Kind::Gateway, name: name.clone() })
    }
}

fn of<'i, K: GatewayObject>(
    store: &'i Store<K>,
    name: &ObjectName,
    present: fn(&'i K) -> Present<'i>,
) -> Option<(&'i HeldMetadata, &'i Origin, Present<'i>)> {
    let Stored { object, origin } = store.get(name)?;
    Some((object.metadata(), origin, present(object)))
}

fn changed<'i, K: PartialEq>(
    kind: Kind,
    before: &'i Store<K>,
    now: &'i Store<K>,
) -> impl Iterator<Item = ObjectId> + use<'i, K> {
    before.differences(now).into_iter().map(move |difference| ObjectId { kind, name: difference.key.clone() })
}
