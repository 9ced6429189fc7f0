//! Finds the listeners to which a route attaches. Its rules are not known here.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    parent::{ListenerView, ParentView},
    report::{Flaw, parent_of},
    route::RouteParent,
};
use crate::{
    change::{Kind, ObjectId, ObjectName},
    gateway::{Group, ParentReference, ReferentKind},
    translate::{Context, text::shorten_error},
};
use ingress_model::{HostPattern, ListenerName};

/// Listeners with those hostnames of a route for which requests can arrive there.
type Attachments = BTreeMap<ListenerName, Vec<HostPattern>>;

/// The same, as long as the route exists: sorted, without spare capacity.
#[derive(PartialEq)]
pub(crate) struct AttachedListeners(Box<[(ListenerName, Box<[HostPattern]>)]>);

/// A reference to a Gateway of this controller, and the listeners behind it.
pub(super) struct Attachment<'r> {
    reference: &'r ParentReference,
    listeners: Result<Attachments, Flaw>,
    /// Secret with the certificate that the Gateway presents to backends, if it has one.
    certificate: Option<ObjectName>,
}

/// Returns the hostnames of a route; all, if it names none.
///
/// # Errors
/// The flaw of the first that is none.
pub(super) fn hostnames(hostnames: &[Box<str>]) -> Result<Vec<HostPattern>, Flaw> {
    if hostnames.is_empty() {
        return Ok(vec![HostPattern::Any]);
    }
    let parse = |hostname: &str| {
        HostPattern::parse_suffix(hostname)
            .map_err(|error| Flaw::unsupported(format!("{}; correct `hostnames`", shorten_error(&error))))
    };
    let mut hostnames = hostnames.iter().map(|hostname| parse(hostname)).collect::<Result<Vec<_>, _>>()?;
    hostnames.sort();
    hostnames.dedup();
    Ok(hostnames)
}

/// Returns the hostnames by which listeners are sought. A route without valid ones finds all, and is then attached to
/// none for that reason.
pub(super) fn reaching(hostnames: &Result<Vec<HostPattern>, Flaw>) -> &[HostPattern] {
    hostnames.as_deref().unwrap_or(&[HostPattern::Any])
}

/// Follows the references of route `id` to Gateways of this controller.
pub(super) fn attach<'r>(
    id: &ObjectId,
    references: &'r [ParentReference],
    hostnames: &[HostPattern],
    context: &Context<'_, '_>,
) -> Vec<Attachment<'r>> {
    let follow = |reference: &'r ParentReference| {
        let ParentReference { group, kind, namespace, name, .. } = reference;
        let kind = match (group, kind) {
            (Group::Gateway, ReferentKind::Gateway) => Kind::Gateway,
            (Group::Gateway, ReferentKind::ListenerSet) => Kind::ListenerSet,
            _ => return None,
        };
        let name = ObjectName::new(namespace.as_deref().unwrap_or(&id.name.namespace), name);
        let view = context.parent(&ObjectId { kind, name })?;
        let listeners = listeners(id, reference, &view, hostnames, context);
        Some(Attachment { reference, listeners, certificate: view.certificate.clone() })
    };
    references.iter().filter_map(follow).collect()
}

fn listeners(
    id: &ObjectId,
    ParentReference { section_name, port, .. }: &ParentReference,
    view: &ParentView,
    hostnames: &[HostPattern],
    context: &Context<'_, '_>,
) -> Result<Attachments, Flaw> {
    let is_named = |listener: &&ListenerView| {
        section_name.as_ref().is_none_or(|section| **section == *listener.section)
            && port.is_none_or(|port| port == listener.port)
    };
    let named: Vec<_> = view.listeners.iter().filter(is_named).collect();
    if named.is_empty() {
        let message = "no listener there has this name and port; correct `sectionName` and `port`";
        return Err(Flaw::new("NoMatchingParent", message));
    }
    let allowing: Vec<_> =
        named.into_iter().filter(|listener| listener.allows(id.kind, &id.name.namespace, context)).collect();
    if allowing.is_empty() {
        let message = format!(
            "no listener there allows {} of namespace `{}`; extend its `allowedRoutes`",
            id.kind.as_str(),
            id.name.namespace
        );
        return Err(Flaw::new("NotAllowedByListeners", message));
    }
    let reached = |listener: &ListenerView| {
        let hostnames: Vec<_> = listener.reached(hostnames).cloned().collect();
        (!hostnames.is_empty()).then(|| (listener.name.clone(), hostnames))
    };
    let attachments: Attachments = allowing.into_iter().filter_map(reached).collect();
    if attachments.is_empty() {
        let message = "no listener there has a hostname that meets `hostnames`; correct them";
        return Err(Flaw::new("NoMatchingListenerHostname", message));
    }
    Ok(attachments)
}

/// Returns the Secrets with certificates for backends, each with the listeners of the Gateways that present it. Under
/// `None` are the listeners of Gateways without one.
pub(super) fn by_certificate(attachments: &[Attachment<'_>]) -> BTreeMap<Option<ObjectName>, BTreeSet<ListenerName>> {
    let mut all: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for Attachment { reference: _, listeners, certificate } in attachments {
        let listeners = listeners.iter().flat_map(Attachments::keys).cloned();
        all.entry(certificate.clone()).or_default().extend(listeners);
    }
    all
}

/// Returns the number of hostnames by which requests can arrive, summed over all listeners of `attachments`.
pub(super) fn count_hostnames(attachments: &[Attachment<'_>]) -> usize {
    let listeners = attachments.iter().flat_map(|attachment| attachment.listeners.iter().flatten());
    // Several references may lead to one listener.
    let counts: BTreeMap<_, _> = listeners.map(|(listener, hostnames)| (listener, hostnames.len())).collect();
    counts.values().sum()
}

/// Returns all listeners of `attachments`, and the references to them. With `flaw`, the route attaches to none.
pub(super) fn conclude(
    attachments: Vec<Attachment<'_>>,
    flaw: Option<&Flaw>,
) -> (AttachedListeners, Box<[RouteParent]>) {
    let (mut all, mut parents) = (Attachments::new(), Vec::new());
    for Attachment { reference, listeners, certificate: _ } in attachments {
        let listeners = listeners.and_then(|listeners| flaw.map_or(Ok(listeners), |flaw| Err(flaw.clone())));
        let names = listeners.map(|listeners| {
            let names = listeners.keys().cloned().collect();
            all.extend(listeners);
            names
        });
        parents.push(RouteParent { reference: parent_of(reference), listeners: names });
    }
    (AttachedListeners(all.into_iter().map(|(listener, names)| (listener, names.into())).collect()), parents.into())
}

// === impl AttachedListeners ===

impl AttachedListeners {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ListenerName, &[HostPattern])> {
        self.0.iter().map(|(listener, hostnames)| (listener, &**hostnames))
    }

    /// Returns the hostnames at `listener`, if the route is attached to it.
    pub(crate) fn get(&self, listener: &ListenerName) -> Option<&[HostPattern]> {
        let at = self.0.binary_search_by(|(other, _)| other.cmp(listener)).ok()?;
        self.0.get(at).map(|(_, hostnames)| &**hostnames)
    }
}
