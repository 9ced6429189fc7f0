//! TLSRoutes, TCPRoutes and UDPRoutes, which divide whole connections or sessions among backends.

use super::{
    attach::{attach, by_certificate, hostnames, reaching},
    backend,
    route::{ByListener, MadeRoute, RouteRules},
};
use crate::{
    change::{Kind, ObjectId},
    cluster::Stored,
    gateway::{BackendRef, route::Route},
    outcome::Reason,
    translate::{Context, annotation_reader::route::is_annotated},
};
use ingress_model::{Transport, Unavailable, WeightedBackend, WeightedBackends};

/// Makes a route; `None` if it refers to no Gateway of this controller.
pub(crate) fn make<R: Route>(id: &ObjectId, stored: &Stored<R>, context: &mut Context<'_, '_>) -> Option<MadeRoute> {
    let Stored { object: route, origin } = stored;
    let names = hostnames(route.hostnames());
    let found = attach(id, route.parent_refs(), reaching(&names), context);
    if found.is_empty() {
        return None;
    }
    if is_annotated(route.metadata()) {
        let message = format!(
            "annotations with the prefix `xdp-ingress.io/` have no effect on a {}; remove them, or write an HTTPRoute or \
             a GRPCRoute",
            id.kind.as_str()
        );
        context.report(&id.name.refer(id.kind, origin), Reason::UnsupportedAnnotation, message);
    }
    let transport = if id.kind == Kind::UdpRoute { Transport::Udp } else { Transport::Tcp };
    let mut unresolved = None;
    let mut rules = Vec::new();
    for (certificate, listeners) in by_certificate(&found) {
        let mut resolve = |reference: &BackendRef| {
            let target = backend::stream(id, reference, transport, certificate.as_ref(), context).map_err(|flaw| {
                unresolved.get_or_insert(flaw);
                Unavailable::InvalidReference
            });
            WeightedBackend { weight: reference.weight, target, filters: Vec::new() }
        };
        let backends: Vec<_> = route.backends().into_iter().map(&mut resolve).collect();
        rules.push((listeners.into_iter().collect(), WeightedBackends::new(backends).map(Into::into)));
    }
    Some(MadeRoute::new(
        id,
        stored,
        found,
        names.err(),
        unresolved,
        RouteRules::Bytes(ByListener(rules.into())),
        context.lookup,
    ))
}
