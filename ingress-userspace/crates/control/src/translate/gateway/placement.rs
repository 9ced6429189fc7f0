//! Places all Gateways: which class and addresses each has, and which listeners stand beside the others. Certificates
//! and routes are not known here.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use super::{
    addresses::{self, Allotted},
    class,
    conflicts::Occupied,
    listener::{Shape, distinct},
    report::Flaw,
};
use crate::{
    change::{Kind, ObjectId, ObjectName},
    gateway::{Gateway, GatewayClass},
    translate::{claims::age, lookup::Lookup, text::shorten},
};
use ingress_model::{Bind, Bound, ListenerName, ListenerProtocol};

/// The Gateways of this controller, and their binds.
#[derive(Default)]
pub(crate) struct Placement {
    pub(crate) parents: BTreeMap<ObjectId, Arc<Placed>>,
    pub(crate) binds: BTreeMap<Bind, Bound>,
}

/// A Gateway among the others.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(super) allotted: Allotted,
    /// In the order of the object.
    pub(super) listeners: Vec<PlacedListener>,
}

/// A listener among the others.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PlacedListener {
    pub(super) name: ListenerName,
    /// Its own fields, if they are understood.
    pub(super) shape: Result<Shape, Flaw>,
    /// Its conflict with another listener.
    pub(super) conflict: Option<Flaw>,
}

/// Places the Gateways of this controller.
pub(crate) fn place(lookup: &Lookup<'_>) -> Placement {
    let classes = lookup.gateway_classes();
    let class_of = |gateway: &Gateway| -> Option<&GatewayClass> {
        let stored = classes.get(&ObjectName::new("", &gateway.spec.gateway_class_name))?;
        Some(&*stored.object).filter(|class| class.is_ours())
    };
    let gateways = lookup.gateways().iter().map(|(name, stored)| (name, &*stored.object));
    let mut gateways: Vec<_> =
        gateways.filter_map(|(name, gateway)| Some((name, gateway, class_of(gateway)?))).collect();
    gateways.sort_by_cached_key(|(name, gateway, _)| (age(&gateway.metadata), (*name).clone()));
    let pool = &lookup.options.gateway_addresses;
    let allotted = addresses::allot(pool, gateways.iter().map(|(_, gateway, _)| *gateway));
    let (mut placement, mut occupied) = (Placement::default(), Occupied::default());
    for ((name, gateway, class), mut allotted) in gateways.into_iter().zip(allotted) {
        allotted.refused = class::flaw(class).or_else(|| parameters_flaw(gateway)).or(allotted.refused);
        let addresses: Vec<Option<IpAddr>> = match &allotted {
            _ if !allotted.is_reachable() => Vec::new(),
            _ if pool.is_empty() => vec![None],
            Allotted { addresses, .. } => addresses.iter().copied().map(Some).collect(),
        };
        let listeners = place_listeners(name, gateway, &addresses, &mut occupied);
        for listener in &listeners {
            placement.bind(&addresses, listener);
        }
        let id = ObjectId { kind: Kind::Gateway, name: name.clone() };
        placement.parents.insert(id, Arc::new(Placed { allotted, listeners }));
    }
    placement
}

fn place_listeners(
    name: &ObjectName,
    gateway: &Gateway,
    addresses: &[Option<IpAddr>],
    occupied: &mut Occupied,
) -> Vec<PlacedListener> {
    let shapes: Vec<_> = distinct(&gateway.spec.listeners).map(Shape::of).collect();
    let conflicts = occupied.place(addresses, &shapes.iter().map(|shape| shape.as_ref().ok()).collect::<Vec<_>>());
    let listeners = distinct(&gateway.spec.listeners).zip(shapes.into_iter().zip(conflicts));
    let placed = listeners.map(|(listener, (shape, conflict))| PlacedListener {
        name: ListenerName::of_gateway(&name.namespace, &name.name, &listener.name),
        shape,
        conflict,
    });
    placed.collect()
}

/// Returns the flaw of parameters: there are none for Gateways.
fn parameters_flaw(gateway: &Gateway) -> Option<Flaw> {
    let reference = gateway.spec.infrastructure.as_ref()?.parameters_ref.as_ref()?;
    let message = format!(
        "`parametersRef` names {} `{}`, but this controller has no parameters of Gateways; remove it",
        shorten(reference.kind.as_str()),
        shorten(&reference.name)
    );
    Some(Flaw::new("InvalidParameters", message))
}

// === impl Placement ===

impl Placement {
    fn bind(&mut self, addresses: &[Option<IpAddr>], listener: &PlacedListener) {
        let Some(Shape { protocol, port, hostname }) = listener.standing() else { return };
        for address in addresses {
            let bound = self.binds.entry(Bind { address: *address, port: *port }).or_default();
            match protocol {
                ListenerProtocol::Http => drop(bound.http.insert(hostname.clone(), listener.name.clone())),
                ListenerProtocol::Https | ListenerProtocol::TlsPassthrough | ListenerProtocol::TlsTerminate => {
                    bound.tls.insert(hostname.clone(), listener.name.clone());
                }
                ListenerProtocol::Tcp | ListenerProtocol::Udp => bound.stream = Some(listener.name.clone()),
            }
        }
    }
}

// === impl PlacedListener ===

impl PlacedListener {
    /// Returns the fields of a listener that stands.
    pub(super) fn standing(&self) -> Option<&Shape> {
        self.shape.as_ref().ok().filter(|_| self.conflict.is_none())
    }
}
