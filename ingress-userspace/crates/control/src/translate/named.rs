//! The Secrets and ConfigMaps that an Ingress names, so that they can be followed before anything is translated. It
//! looks none of them up.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::networking::v1::{Ingress, IngressSpec};

use super::{
    Options, annotation_reader, class,
    ingress::too_large,
    lookup::{Lookup, Memo},
};
use crate::{
    change::{Change, Kind, ObjectId, ObjectName},
    cluster::Cluster,
    outcome::Origin,
};

/// The Ingresses that may name other objects than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Affected {
    NoIngress,
    OfNamespace(Arc<str>),
    All,
}

/// Keeps the IngressClasses, which decide the Ingresses of this controller.
pub(crate) struct Namer {
    options: Options,
    /// Contains only IngressClasses, and Namespaces if these are selected.
    cluster: Cluster,
}

// === impl Namer ===

impl Namer {
    pub(crate) fn new(options: &Options) -> Self {
        let cluster = Cluster::new(options.selects_namespaces);
        Self { options: options.clone(), cluster }
    }

    pub(crate) const fn options(&self) -> &Options {
        &self.options
    }

    /// Returns `true` unless Namespaces are selected, and this one is not.
    pub(crate) fn selects(&self, namespace: &str) -> bool {
        self.cluster.selects(namespace)
    }

    /// Applies a change of an IngressClass, or of a Namespace if these are selected. Returns the Ingresses that may
    /// have joined or left this controller.
    pub(crate) fn learn(&mut self, change: &Change) -> Affected {
        let kind = match change {
            Change::Apply { object, origin: _ } => object.kind(),
            Change::Remove(id) => id.kind,
            Change::Resolve { .. } | Change::Forget { .. } => return Affected::NoIngress,
        };
        let affected = match (kind, change) {
            (Kind::IngressClass, _) => Affected::All,
            (Kind::Namespace, _) if !self.options.selects_namespaces => return Affected::NoIngress,
            (Kind::Namespace, Change::Apply { object, origin: _ }) => Affected::OfNamespace(object.id().name.name),
            (Kind::Namespace, Change::Remove(id)) => Affected::OfNamespace(Arc::clone(&id.name.name)),
            _ => return Affected::NoIngress,
        };
        if self.cluster.apply(change.clone()) { affected } else { Affected::NoIngress }
    }

    /// Returns the objects that `ingress` names, if it belongs to this controller and is within the limits for an
    /// Ingress.
    pub(crate) fn named(&self, ingress: &Ingress) -> BTreeSet<ObjectId> {
        let Some(spec) = &ingress.spec else { return BTreeSet::new() };
        let named = named(ingress, spec, &self.options);
        if named.is_empty()
            || self.cluster.leaves_out(ingress)
            || too_large(ingress, spec, &self.options).is_some()
            || !self.is_ours(ingress)
        {
            return BTreeSet::new();
        }
        named
    }

    fn is_ours(&self, ingress: &Ingress) -> bool {
        let lookup = Lookup::new(&self.cluster, &self.options, Memo::default());
        let object = ObjectName::of(&ingress.metadata).refer(Kind::Ingress, &Origin::Api);
        lookup.traced(|context| class::ours(ingress, &object, context)).0.is_some()
    }
}

/// Returns the Secrets and ConfigMaps that `ingress` names, independent of its controller.
pub(super) fn named(ingress: &Ingress, spec: &IngressSpec, options: &Options) -> BTreeSet<ObjectId> {
    let namespace: Arc<str> = ObjectName::of(&ingress.metadata).namespace;
    let secrets = spec.tls.iter().flatten().filter_map(|tls| tls.secret_name.as_deref());
    let secret = |name| ObjectId { kind: Kind::Secret, name: ObjectName::new(&namespace, name) };
    let mut named: BTreeSet<_> = secrets.filter(|name| !name.is_empty()).map(secret).collect();
    named.extend(annotation_reader::references(ingress, &options.annotations_prefix));
    named
}
