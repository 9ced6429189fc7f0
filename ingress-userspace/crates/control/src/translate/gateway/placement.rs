//! Places all Gateways: which class and addresses each has, and which listeners stand beside the others. Certificates
//! and routes are not known here.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use super::{
    addresses::{self, Allotted},
    class,
    conflicts::Occupied,
    listener::{Shape, distinct},
    ports::Ports,
    report::Flaw,
};
use crate::{
    change::{Kind, ObjectId, ObjectName},
    gateway::{
        Gateway, GatewayClass, Group, Listener, ListenerNamespaces, ListenerSet, NamespacesFrom, ParentReference,
        ReferentKind, selects,
    },
    translate::{claims::age, lookup::Lookup, text::shorten},
};
use ingress_model::{Bind, Bound, ListenerName, ListenerProtocol, StreamPort};

/// The Gateways of this controller, and their binds.
#[derive(Default)]
pub(crate) struct Placement {
    pub(crate) parents: BTreeMap<ObjectId, Arc<Placed>>,
    pub(crate) binds: BTreeMap<Bind, Bound>,
}

/// A Gateway among the others, or a ListenerSet of one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Placed {
    /// Of the Gateway, except for a refusal of the ListenerSet.
    pub(super) allotted: Allotted,
    /// In the order of the object. Empty for a ListenerSet that is not allowed.
    pub(super) listeners: Vec<PlacedListener>,
    /// The Gateway of a ListenerSet.
    pub(crate) gateway: Option<ObjectId>,
    /// The ListenerSets of a Gateway that allows some.
    pub(crate) sets: Option<Vec<ObjectId>>,
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

/// Returns the Gateways of this controller with their classes.
fn ours<'c>(lookup: &Lookup<'c>) -> Vec<(&'c ObjectName, &'c Gateway, &'c GatewayClass)> {
    let classes = lookup.gateway_classes();
    let class_of = |gateway: &Gateway| -> Option<&'c GatewayClass> {
        let stored = classes.get(&ObjectName::new("", &gateway.spec.gateway_class_name))?;
        Some(&*stored.object).filter(|class| class.is_ours())
    };
    let gateways = lookup.gateways().iter().map(|(name, stored)| (name, &*stored.object));
    let gateways = gateways.filter(|(name, _)| lookup.selects(&name.namespace));
    gateways.filter_map(|(name, gateway)| Some((name, gateway, class_of(gateway)?))).collect()
}

/// Returns the ports of all listeners that stand. No others are open, so no author of listeners can close ports of nodes to
/// the endpoints of others.
pub(crate) fn ports(lookup: &Lookup<'_>) -> BTreeSet<StreamPort> {
    place(lookup).binds.keys().map(|bind| bind.port).collect()
}

/// Places the Gateways of this controller, the oldest first, and each before its ListenerSets.
pub(crate) fn place(lookup: &Lookup<'_>) -> Placement {
    let mut gateways = ours(lookup);
    gateways
        .sort_by_cached_key(|(name, gateway, _)| (age(gateway.metadata.creation_timestamp.as_ref()), (*name).clone()));
    let pool = &lookup.options.gateway_addresses;
    let flaw = |gateway, class| class::flaw(class).or_else(|| parameters_flaw(gateway));
    let allotted = addresses::allot(pool, gateways.iter().map(|(_, gateway, class)| (*gateway, flaw(gateway, class))));
    let sets = sets(lookup);
    let (mut placement, mut occupied, mut ports) = (Placement::default(), Occupied::default(), Ports::new(lookup));
    for ((name, gateway, _), allotted) in gateways.into_iter().zip(allotted) {
        let addresses: Vec<Option<IpAddr>> = match &allotted {
            _ if !allotted.is_reachable() => Vec::new(),
            _ if pool.is_empty() => vec![None],
            Allotted { addresses, .. } => addresses.iter().copied().map(Some).collect(),
        };
        let mut place = |id: ObjectId, listeners: &[Listener], allotted, gateway, sets| {
            let listeners = place_listeners(&id, listeners, &addresses, &mut occupied, &mut ports);
            listeners.iter().for_each(|listener| placement.bind(&addresses, listener));
            placement.parents.insert(id, Arc::new(Placed { allotted, listeners, gateway, sets }));
        };
        let id = ObjectId { kind: Kind::Gateway, name: name.clone() };
        let own = sets.get(name).map(Vec::as_slice).unwrap_or_default();
        let allows_sets = gateway.spec.allowed_listeners.namespaces.from != NamespacesFrom::None;
        let (allowed, others): (Vec<_>, Vec<_>) = own.iter().partition(|(set, _)| allows(gateway, name, set, lookup));
        let ids = allowed.iter().map(|(set, _)| set_id(set));
        let ids = allows_sets.then(|| ids.collect());
        place(id.clone(), &gateway.spec.listeners, allotted.clone(), None, ids);
        for (set, object) in allowed {
            let refused = allotted.refused.as_ref().map(|_| {
                Flaw::new("ParentNotAccepted", "its Gateway is not accepted; see the conditions of the Gateway")
            });
            let allotted = Allotted { refused, ..allotted.clone() };
            place(set_id(set), &object.spec.listeners, allotted, Some(id.clone()), None);
        }
        for (set, _) in others {
            let message = "its Gateway does not allow ListenerSets of this namespace; extend `allowedListeners` there";
            let refused = Some(Flaw::new("NotAllowed", message));
            let allotted = Allotted { refused, ..Allotted::default() };
            let placed = Placed { allotted, gateway: Some(id.clone()), ..Placed::default() };
            placement.parents.insert(set_id(set), Arc::new(placed));
        }
    }
    placement
}

fn set_id(name: &ObjectName) -> ObjectId {
    ObjectId { kind: Kind::ListenerSet, name: name.clone() }
}

/// Returns the ListenerSets by the Gateway that they name, the oldest first.
fn sets<'c>(lookup: &Lookup<'c>) -> HashMap<ObjectName, Vec<(&'c ObjectName, &'c ListenerSet)>> {
    let mut sets: HashMap<_, Vec<_>> = HashMap::new();
    for (name, stored) in lookup.listener_sets() {
        let ParentReference { group, kind, namespace, name: gateway, .. } = &stored.object.spec.parent_ref;
        if (group, kind) == (&Group::Gateway, &ReferentKind::Gateway) && lookup.selects(&name.namespace) {
            let gateway = ObjectName::new(namespace.as_deref().unwrap_or(&name.namespace), gateway);
            sets.entry(gateway).or_default().push((name, &*stored.object));
        }
    }
    for sets in sets.values_mut() {
        sets.sort_by_cached_key(|(name, set)| (age(set.metadata.creation_timestamp.as_ref()), (*name).clone()));
    }
    sets
}

/// Returns whether a ListenerSet may add listeners to a Gateway.
fn allows(gateway: &Gateway, name: &ObjectName, set: &ObjectName, lookup: &Lookup<'_>) -> bool {
    let ListenerNamespaces { from, selector } = &gateway.spec.allowed_listeners.namespaces;
    match from {
        NamespacesFrom::All => true,
        NamespacesFrom::Same => name.namespace == set.namespace,
        NamespacesFrom::Selector => selector
            .as_ref()
            .and_then(|selector| selects(selector, &lookup.namespace_labels(&set.namespace)))
            .unwrap_or(false),
        NamespacesFrom::None | NamespacesFrom::Other(_) => false,
    }
}

fn place_listeners(
    ObjectId { kind, name }: &ObjectId,
    listeners: &[Listener],
    addresses: &[Option<IpAddr>],
    occupied: &mut Occupied,
    ports: &mut Ports<'_>,
) -> Vec<PlacedListener> {
    let shapes = ports.check(distinct(listeners).map(Shape::of));
    let conflicts = occupied.place(addresses, &shapes.iter().map(|shape| shape.as_ref().ok()).collect::<Vec<_>>());
    let ObjectName { namespace, name } = name;
    let placed = distinct(listeners).zip(shapes.into_iter().zip(conflicts)).map(|(listener, (shape, conflict))| {
        let name = match kind {
            Kind::ListenerSet => ListenerName::of_set(namespace, name, &listener.name),
            _ => ListenerName::of_gateway(namespace, name, &listener.name),
        };
        PlacedListener { name, shape, conflict }
    });
    let placed: Vec<_> = placed.collect();
    // Without an address, no listener has a port.
    for shape in placed.iter().filter(|_| !addresses.is_empty()).filter_map(PlacedListener::standing) {
        ports.take(shape.port);
    }
    placed
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
