//! Which Secrets and ConfigMaps an Ingress names, so that they can be followed before anything is translated. It looks
//! none of them up.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::networking::v1::{Ingress, IngressSpec};

use super::{Context, Options, annotations, class, context::Memo, ingress::too_large, settings::Globals};
use crate::control::{
    change::{Change, Kind, Object, ObjectId, ObjectName},
    cluster::Cluster,
    outcome::Origin,
};

/// Knows the IngressClasses, and by them which Ingresses are ours.
pub(in crate::control) struct Namer {
    options: Options,
    globals: Globals,
    /// It holds IngressClasses alone.
    cluster: Cluster,
}

// === impl Namer ===

impl Namer {
    pub(in crate::control) fn new(options: &Options) -> Self {
        Self { options: options.clone(), globals: Globals::of(&options.classes), cluster: Cluster::default() }
    }

    pub(in crate::control) const fn options(&self) -> &Options {
        &self.options
    }

    /// Takes in what has become of an IngressClass, and says whether other Ingresses may be ours for that.
    pub(in crate::control) fn learn(&mut self, change: &Change) -> bool {
        let is_class = match change {
            Change::Apply { object, origin: _ } => matches!(object, Object::IngressClass(_)),
            Change::Remove(id) => id.kind == Kind::IngressClass,
            Change::Resolve { .. } | Change::Forget { .. } => false,
        };
        is_class && self.cluster.apply(change.clone())
    }

    /// What `ingress` names, if it is ours and within the bounds that an Ingress has.
    pub(in crate::control) fn named(&self, ingress: &Ingress) -> BTreeSet<ObjectId> {
        let Some(spec) = &ingress.spec else { return BTreeSet::new() };
        let named = named(ingress, spec, &self.options);
        if named.is_empty() || too_large(ingress, spec, &self.options).is_some() || !self.is_ours(ingress) {
            return BTreeSet::new();
        }
        named
    }

    fn is_ours(&self, ingress: &Ingress) -> bool {
        let mut context = Context::new(&self.cluster, &self.options, self.globals.clone(), Memo::default());
        let object = ObjectName::of(&ingress.metadata).refer(Kind::Ingress, &Origin::Api);
        class::is_ours(ingress, &object, &mut context)
    }
}

/// The Secrets and ConfigMaps that `ingress` names, whosever it is.
pub(super) fn named(ingress: &Ingress, spec: &IngressSpec, options: &Options) -> BTreeSet<ObjectId> {
    let namespace: Arc<str> = ObjectName::of(&ingress.metadata).namespace;
    let secrets = spec.tls.iter().flatten().filter_map(|tls| tls.secret_name.as_deref());
    let secret = |name| ObjectId { kind: Kind::Secret, name: ObjectName::new(&namespace, name) };
    let mut named: BTreeSet<_> = secrets.filter(|name| !name.is_empty()).map(secret).collect();
    named.extend(annotations::references(ingress, &options.annotations_prefix));
    named
}
