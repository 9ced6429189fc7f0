//! What statuses and events are made of, read from the cluster and its translation where it is asked for: by the leader
//! alone. It judges nothing.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::{
    api::{
        core::v1::ObjectReference,
        networking::v1::{Ingress, IngressLoadBalancerIngress},
    },
    apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry,
};

use super::{Kind, MANAGER, ObjectName};
use crate::control::{
    Translation,
    cluster::{Cluster, Stored},
    outcome::{ObjectRef, Origin, Outcome, Reason, Severity},
};

/// All that matters here, as of one moment. To make it costs nothing, as every replica does so after every change.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    cluster: Cluster,
    translation: Translation,
    /// The field manager of what is ours.
    manager: Arc<str>,
}

/// An Ingress whose status is ours to write.
#[derive(Clone, Debug)]
pub(super) struct Bearer {
    pub(super) ingress: Arc<Ingress>,
    pub(super) standing: Standing,
}

/// What an Ingress is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Served,
    /// Not, or no longer, served; its status has entries, and by field ownership they are ours.
    Left,
}

/// Something an event is to say.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Problem {
    pub(super) kind: Kind,
    pub(super) name: ObjectName,
    pub(super) uid: Arc<str>,
    pub(super) reason: Reason,
    pub(super) message: Arc<str>,
}

/// Drops what statuses do not need: of the status all but the load balancer, of field ownership all but whether we have
/// any.
///
/// The API server keeps for each manager which fields it owns, and that is how a status is known as ours after a
/// restart, by another leader, or when its addresses have changed since. The record itself is several times as large as
/// the status.
pub(in crate::control) fn reduce(ingress: &mut Ingress) {
    let entries_of_ours = ingress.metadata.managed_fields.take().into_iter().flatten().filter(|entry| {
        entry.subresource.as_deref() == Some("status")
            && entry.manager.as_deref().is_some_and(|manager| manager.starts_with(MANAGER))
    });
    let marks: Vec<_> = entries_of_ours
        .map(|entry| ManagedFieldsEntry { manager: entry.manager, ..ManagedFieldsEntry::default() })
        .collect();
    ingress.metadata.managed_fields = (!marks.is_empty()).then_some(marks);
    if entries(ingress).is_empty() {
        ingress.status = None;
    }
}

/// The entries of the status as it is.
pub(super) fn entries(ingress: &Ingress) -> &[IngressLoadBalancerIngress] {
    let balancer = ingress.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    balancer.and_then(|balancer| balancer.ingress.as_deref()).unwrap_or_default()
}

/// Whether [`reduce`] found fields of this manager.
fn is_marked(ingress: &Ingress, manager: &str) -> bool {
    ingress.metadata.managed_fields.iter().flatten().any(|entry| entry.manager.as_deref() == Some(manager))
}

// === impl Facts ===

impl Facts {
    pub(super) fn new(cluster: &Cluster, translation: &Translation, manager: &Arc<str>) -> Self {
        Self { cluster: cluster.clone(), translation: translation.clone(), manager: Arc::clone(manager) }
    }

    /// The Ingresses that are served, and those that are not but bear a status of ours.
    pub(super) fn bearers(&self) -> impl Iterator<Item = Bearer> {
        self.cluster.ingresses.keys().filter_map(|name| self.bearer(name))
    }

    /// The Ingress `name`, if it is one of [`Facts::bearers`].
    pub(super) fn bearer(&self, name: &ObjectName) -> Option<Bearer> {
        let Self { cluster, translation, manager } = self;
        let Stored { object, origin } = cluster.ingresses.get(name)?;
        let standing = if translation.served.contains_key(name) {
            Standing::Served
        } else if is_marked(object, manager) && !entries(object).is_empty() {
            Standing::Left
        } else {
            return None;
        };
        (*origin == Origin::Api).then(|| Bearer { ingress: Arc::clone(object), standing })
    }

    /// The Ingresses of which there may be something else to say than in `before`.
    pub(super) fn changed_since(&self, before: &Self) -> BTreeSet<ObjectName> {
        let ingresses = before.cluster.ingresses.differences(&self.cluster.ingresses).into_iter();
        let served = before.translation.served.differences(&self.translation.served).into_iter();
        ingresses.map(|difference| difference.key).chain(served.map(|difference| difference.key)).cloned().collect()
    }

    /// Whether [`Facts::problems`] may be others than in `before`. It costs what differs; they cost what there are.
    pub(super) fn may_have_other_problems(&self, before: &Self) -> bool {
        let Cluster { ingresses, classes, services, secrets, config_maps, .. } = &self.cluster;
        let old = &before.cluster;
        self.translation.outcomes != before.translation.outcomes
            || (ingresses, classes, services) != (&old.ingresses, &old.classes, &old.services)
            || (secrets, config_maps) != (&old.secrets, &old.config_maps)
    }

    pub(super) fn problems(&self) -> BTreeSet<Problem> {
        let Self { cluster, translation, manager: _ } = self;
        translation.outcomes.keys().filter_map(|outcome| Problem::of(outcome, cluster)).collect()
    }
}

// === impl Problem ===

impl Problem {
    /// `None` for notes, for objects that are not the API server's, and for kinds that no event is written about.
    fn of(outcome: &Outcome, cluster: &Cluster) -> Option<Self> {
        let Outcome { object: ObjectRef { kind, namespace, name, origin }, reason, message } = outcome;
        if *origin != Origin::Api || outcome.severity() != Severity::Warning {
            return None;
        }
        let name = ObjectName { namespace: Arc::clone(namespace), name: Arc::clone(name) };
        let (kind, uid) = match kind.as_ref() {
            "Ingress" => (Kind::Ingress, cluster.ingresses.get(&name)?.object.metadata.uid.as_deref()),
            "IngressClass" => (Kind::IngressClass, cluster.classes.get(&name)?.object.metadata.uid.as_deref()),
            "Service" => (Kind::Service, cluster.services.get(&name)?.object.uid.as_deref()),
            "Secret" => (Kind::Secret, cluster.secrets.get(&name)?.object.metadata.uid.as_deref()),
            "ConfigMap" => (Kind::ConfigMap, cluster.config_maps.get(&name)?.object.metadata.uid.as_deref()),
            _ => return None,
        };
        let uid = uid?.into();
        Some(Self { kind, name, uid, reason: *reason, message: message.as_str().into() })
    }

    pub(super) fn regarding(&self) -> ObjectReference {
        let Self { kind, name: ObjectName { namespace, name }, uid, reason: _, message: _ } = self;
        let version = match kind {
            Kind::Ingress | Kind::IngressClass => "networking.k8s.io/v1",
            Kind::EndpointSlice => "discovery.k8s.io/v1",
            Kind::Service | Kind::Secret | Kind::ConfigMap | Kind::Node => "v1",
        };
        ObjectReference {
            api_version: Some(version.into()),
            kind: Some(kind.as_str().into()),
            name: Some(name.as_ref().into()),
            namespace: (!namespace.is_empty()).then(|| namespace.as_ref().into()),
            uid: Some(uid.as_ref().into()),
            ..ObjectReference::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::control::{change::Change, source::manifests::parse, translate};

    #[test]
    fn problems_are_gathered_again_when_they_may_be_others() {
        let ingress = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: web, uid: UID}\n\
            spec: {ingressClassName: xdp, defaultBackend: {service: {name: web, port: {number: 80}}}}\n";
        let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web, uid: s}\nspec: {ports: [{port: 80}]}\n";
        let slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\nports: [{port: 80}]\n\
            metadata: {name: web, labels: {kubernetes.io/service-name: web}}\n\
            endpoints: [{addresses: [10.0.0.PART]}]\n";
        let mut cluster = Cluster::default();
        let mut translator = translate::Translator::new(translate::Options::for_manifests());
        let mut before = Facts::default();
        for (text, may_be_others, problems) in [
            (ingress.replace("UID", "a"), true, 1),
            (ingress.replace("UID", "b"), true, 1),
            (service.to_owned(), true, 1),
            (slice.replace("PART", "1"), true, 0),
            (slice.replace("PART", "2"), false, 0),
        ] {
            let parsed = parse(&Path::new("object.yaml").into(), &text);
            for object in parsed.objects {
                cluster.apply(Change::Apply { object, origin: Origin::Api });
            }
            let facts = Facts::new(&cluster, &translator.translate(&cluster), &Arc::from("manager"));
            let found = (facts.may_have_other_problems(&before), facts.problems().len());
            assert_eq!(found, (may_be_others, problems), "{text}");
            before = facts;
        }
    }
}
