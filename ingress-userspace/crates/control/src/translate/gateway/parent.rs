//! The listeners of one Gateway or ListenerSet: their certificates, and the view that routes have of them. Routes are not known here.

use std::sync::Arc;

use super::{
    frontend::{self, Clients},
    listener::{distinct, intersect, kinds},
    placement::{Placed, PlacedListener},
    report::{ACCEPTED, Flaw, PROGRAMMED, RESOLVED_REFS, conflicted, met, unless},
    secret,
};
use crate::{
    change::{Kind, ObjectId, ObjectName},
    gateway::{Listener, NamespacesFrom, RouteNamespaces, selects},
    object_status::{
        Condition, ConditionStatus, GatewayAddress, ListenerStatus, ObjectStatus, SEE_LISTENERS, StatusBody,
    },
    translate::Context,
};
use ingress_model::{ClientCertificates, HostPattern, ListenerName, ListenerProtocol};

/// The view that routes have of a Gateway or ListenerSet. If it stays the same, so do they.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ParentView {
    /// In the order of the object.
    pub(super) listeners: Vec<ListenerView>,
    /// Secret with the certificate that the Gateway presents to backends, if it has a usable one.
    pub(super) certificate: Option<ObjectName>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ListenerView {
    pub(super) name: ListenerName,
    pub(super) section: Arc<str>,
    pub(super) port: u16,
    hostname: HostPattern,
    kinds: Vec<Kind>,
    namespace: Arc<str>,
    namespaces: RouteNamespacesView,
}

/// Namespaces whose routes may attach.
#[derive(Debug, PartialEq)]
struct RouteNamespacesView(RouteNamespaces);

/// A Gateway or ListenerSet as it is, without its routes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Parent {
    generation: i64,
    pub(crate) view: Arc<ParentView>,
    conditions: Vec<Condition>,
    addresses: Vec<GatewayAddress>,
    /// In the order of the object.
    pub(crate) listeners: Vec<MadeListener>,
    /// The Gateway of a ListenerSet.
    pub(crate) gateway: Option<ObjectId>,
    /// The ListenerSets of a Gateway that allows some.
    sets: Option<Vec<ObjectId>>,
}

/// A listener as it is, without its routes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MadeListener {
    pub(crate) name: ListenerName,
    section: Arc<str>,
    kinds: Vec<&'static str>,
    conditions: Vec<Condition>,
    /// `None` if it does not stand, or has no address.
    pub(crate) served: Option<ServedListener>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServedListener {
    pub(crate) protocol: ListenerProtocol,
    pub(crate) certificates: Vec<Arc<str>>,
    pub(crate) clients: Option<Arc<ClientCertificates>>,
}

/// Makes a Gateway or ListenerSet; `None` if it is gone.
pub(crate) fn make(id: &ObjectId, placed: &Placed, context: &mut Context<'_, '_>) -> Option<Parent> {
    let gateway_id = placed.gateway.as_ref().unwrap_or(id);
    let gateway = &*context.gateway(&gateway_id.name)?.object;
    let (metadata, listeners) = match id.kind {
        Kind::ListenerSet => {
            let set = &*context.listener_set(&id.name)?.object;
            (&set.metadata, &set.spec.listeners)
        }
        _ => (&gateway.metadata, &gateway.spec.listeners),
    };
    let (mut made, mut views) = (Vec::new(), Vec::new());
    for (listener, placed_listener) in distinct(listeners).zip(&placed.listeners) {
        let clients = if placed_listener.standing().is_some_and(|shape| shape.protocol == ListenerProtocol::Https) {
            frontend::clients(gateway_id, &gateway.spec.tls, listener.port, context)
        } else {
            Clients::default()
        };
        let is_reachable = placed.allotted.is_reachable();
        let (listener, view) = make_listener(id, listener, placed_listener, clients, is_reachable, context);
        made.push(listener);
        views.push(view);
    }
    let mut conditions = match id.kind {
        Kind::ListenerSet => set_conditions(placed, &made),
        _ => conditions(placed, &made),
    };
    if id.kind == Kind::Gateway && frontend::is_insecure(&gateway.spec.tls.frontend) {
        conditions.push(Condition {
            message: "clients without a valid certificate are served, too".to_owned(),
            ..Condition::met("InsecureFrontendValidationMode", "ConfigurationChanged")
        });
    }
    let reference = gateway.spec.tls.backend.client_certificate_ref.as_ref();
    let certificate = reference.map(|reference| secret::client_certificate(gateway_id, reference, context.lookup));
    if let Some(found) = certificate.as_ref().filter(|_| id.kind == Kind::Gateway) {
        conditions.push(unless(RESOLVED_REFS, found.as_ref().err()));
    }
    Some(Parent {
        generation: metadata.generation.unwrap_or_default(),
        view: Arc::new(ParentView { listeners: views, certificate: certificate.and_then(Result::ok) }),
        conditions,
        addresses: placed.allotted.addresses.iter().copied().map(GatewayAddress::Ip).collect(),
        listeners: made,
        gateway: placed.gateway.clone(),
        sets: placed.sets.clone(),
    })
}

fn make_listener(
    id: &ObjectId,
    listener: &Listener,
    placed: &PlacedListener,
    clients: Clients,
    is_reachable: bool,
    context: &mut Context<'_, '_>,
) -> (MadeListener, ListenerView) {
    let section: Arc<str> = (*listener.name).into();
    let (kinds, kinds_flaw) = kinds(listener);
    let needs_certificates = placed
        .standing()
        .is_some_and(|shape| matches!(shape.protocol, ListenerProtocol::Https | ListenerProtocol::TlsTerminate));
    let (mut certificates, certificates_flaw) =
        if needs_certificates { secret::certificates(id, listener, context) } else { (Vec::new(), None) };
    let Clients { demand, unresolved, refused } = clients;
    if refused.is_some() {
        // Handshakes fail, so that no client gets past the demand.
        certificates.clear();
    }
    let accepted = placed.shape.as_ref().err().or(placed.conflict.as_ref()).or(refused.as_ref());
    let unserved = match accepted {
        Some(flaw) if placed.conflict.is_some() => Some(flaw.clone()),
        Some(flaw) => Some(Flaw::new("Invalid", flaw.message.clone())),
        None if needs_certificates && certificates.is_empty() => certificates_flaw.as_ref().map(invalid),
        None if kinds.is_empty() => kinds_flaw.as_ref().map(invalid),
        None if !is_reachable => Some(Flaw::new("Pending", "the Gateway is not served; see its own conditions")),
        None => None,
    };
    let made = MadeListener {
        name: placed.name.clone(),
        section: Arc::clone(&section),
        kinds: kinds.iter().map(|kind| kind.as_str()).collect(),
        conditions: vec![
            unless(ACCEPTED, accepted),
            conflicted(placed.conflict.as_ref()),
            unless(RESOLVED_REFS, unresolved.as_ref().or(certificates_flaw.as_ref()).or(kinds_flaw.as_ref())),
            unless(PROGRAMMED, unserved.as_ref()),
        ],
        served: placed.standing().filter(|_| is_reachable).map(|shape| ServedListener {
            protocol: shape.protocol,
            certificates,
            clients: demand,
        }),
    };
    let view = ListenerView {
        name: placed.name.clone(),
        section,
        port: listener.port,
        hostname: placed.shape.as_ref().map_or(HostPattern::Any, |shape| shape.hostname.clone()),
        kinds,
        namespace: Arc::clone(&id.name.namespace),
        namespaces: RouteNamespacesView(listener.allowed_routes.namespaces.clone()),
    };
    (made, view)
}

/// A listener with this flaw serves no requests.
fn invalid(flaw: &Flaw) -> Flaw {
    Flaw::new("Invalid", flaw.message.clone())
}

fn is_met(listener: &MadeListener, kind: &'static str) -> bool {
    listener.conditions.contains(&met(kind))
}

/// Returns the conditions of a ListenerSet. It needs one listener that is served.
fn set_conditions(placed: &Placed, listeners: &[MadeListener]) -> Vec<Condition> {
    let is_served = |listener: &MadeListener| is_met(listener, PROGRAMMED) || !placed.allotted.is_reachable();
    let flaw = match &placed.allotted.refused {
        Some(flaw) => Some(flaw.clone()),
        None if listeners.iter().any(|listener| is_met(listener, ACCEPTED) && is_served(listener)) => None,
        None => Some(Flaw::new("ListenersNotValid", "no listener can be served; see their conditions")),
    };
    let lacks = placed
        .allotted
        .lacks
        .as_ref()
        .map(|_| Flaw::new("Pending", "its Gateway lacks an address; see the conditions of the Gateway"));
    vec![unless(ACCEPTED, flaw.as_ref()), unless(PROGRAMMED, flaw.or(lacks).as_ref())]
}

/// Returns the conditions of a Gateway.
fn conditions(placed: &Placed, listeners: &[MadeListener]) -> Vec<Condition> {
    let fallen: Vec<_> = listeners.iter().filter(|listener| !is_met(listener, ACCEPTED)).collect();
    let names = || fallen.iter().map(|listener| format!("`{}`", listener.section)).collect::<Vec<_>>().join(", ");
    let accepted = match &placed.allotted.refused {
        Some(flaw) => flaw.unmet(ACCEPTED),
        None if fallen.len() == listeners.len() => {
            let message = if listeners.is_empty() {
                "there are no listeners; add one".to_owned()
            } else {
                format!("no listener is accepted: {}; {SEE_LISTENERS}", names())
            };
            Flaw::new("ListenersNotValid", message).unmet(ACCEPTED)
        }
        None if fallen.is_empty() => met(ACCEPTED),
        None => Condition {
            message: format!("not accepted are the listeners {}; {SEE_LISTENERS}", names()),
            ..Condition::met(ACCEPTED, "ListenersNotValid")
        },
    };
    let programmed = match (&placed.allotted.refused, &placed.allotted.lacks) {
        (Some(flaw), _) => Some(invalid(flaw)),
        (None, Some(flaw)) => Some(flaw.clone()),
        (None, None) if listeners.iter().any(|listener| is_met(listener, PROGRAMMED)) => None,
        (None, None) => Some(Flaw::new("Invalid", format!("no listener is served; {SEE_LISTENERS}"))),
    };
    vec![accepted, unless(PROGRAMMED, programmed.as_ref())]
}

// === impl Parent ===

impl Parent {
    /// Returns whether the object is accepted.
    pub(crate) fn is_accepted(&self) -> bool {
        self.conditions.iter().any(|condition| condition.kind == ACCEPTED && condition.status == ConditionStatus::True)
    }

    /// Returns the status. `attached` returns the number of routes of a listener, `is_accepted` tells about ListenerSets.
    pub(crate) fn status(
        &self,
        attached: impl Fn(&ListenerName) -> u32,
        is_accepted: impl Fn(&ObjectId) -> bool,
    ) -> ObjectStatus {
        let Self { generation, view: _, conditions, addresses, listeners, gateway, sets } = self;
        let listeners = listeners.iter().map(|listener| {
            let MadeListener { name, section, kinds, conditions, served: _ } = listener;
            ListenerStatus {
                name: Arc::clone(section),
                supported_kinds: kinds.clone(),
                attached_routes: attached(name),
                conditions: conditions.clone(),
            }
        });
        let (conditions, listeners) = (conditions.clone(), listeners.collect());
        let body = if gateway.is_some() {
            StatusBody::ListenerSet { conditions, listeners }
        } else {
            let accepted = sets.as_ref().map(|sets| sets.iter().filter(|id| is_accepted(id)).count());
            StatusBody::Gateway {
                conditions,
                listeners,
                addresses: addresses.clone(),
                attached_listener_sets: accepted.map(|count| u32::try_from(count).unwrap_or(u32::MAX)),
            }
        };
        ObjectStatus { generation: *generation, body }
    }
}

// === impl ListenerView ===

impl ListenerView {
    /// Returns whether routes of `kind` in `namespace` may attach.
    pub(super) fn allows(&self, kind: Kind, namespace: &str, context: &Context<'_, '_>) -> bool {
        let RouteNamespaces { from, selector } = &self.namespaces.0;
        self.kinds.contains(&kind)
            && match from {
                NamespacesFrom::All => true,
                NamespacesFrom::Same => *self.namespace == *namespace,
                NamespacesFrom::Selector => selector
                    .as_ref()
                    .and_then(|selector| selects(selector, &context.namespace_labels(namespace)))
                    .unwrap_or(false),
                NamespacesFrom::None | NamespacesFrom::Other(_) => false,
            }
    }

    /// Returns those of a route's hostnames for which requests can arrive.
    pub(super) fn reached<'h>(&self, hostnames: &'h [HostPattern]) -> impl Iterator<Item = &'h HostPattern> {
        hostnames.iter().filter(|hostname| intersect(&self.hostname, hostname))
    }
}

impl Eq for RouteNamespacesView {}
