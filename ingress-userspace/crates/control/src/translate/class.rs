//! Decides which Ingresses belong to this controller, by the chain controller → IngressClass → Ingress.

use std::sync::Arc;

use k8s_openapi::api::networking::v1::{Ingress, IngressClass};

use super::{
    Context, Options,
    lookup::{Lookup, Memo},
    options::Classes,
    outcomes::Outcomes,
};
use crate::{
    change::{Kind, ObjectName},
    cluster::{Cluster, Stored},
    outcome::{ObjectRef, Origin, Reason},
};

const LEGACY_CLASS: &str = "kubernetes.io/ingress.class";
const DEFAULT_CLASS: &str = "ingressclass.kubernetes.io/is-default-class";

/// The class by which an Ingress belongs to this controller.
pub(super) struct Ours {
    /// The class of the Ingress, even if no IngressClass has that name. `None` if it names no class and there is no
    /// default class.
    pub(super) class: Option<Arc<str>>,
}

/// Returns `true` if a translation with these options takes `ingress` for one of its own.
#[must_use]
pub fn owns(cluster: &Cluster, options: &Options, ingress: &Ingress) -> bool {
    let lookup = Lookup::new(cluster, options, Memo::default());
    let object = ObjectName::of(&ingress.metadata).refer(Kind::Ingress, &Origin::Api);
    ours(ingress, &object, &mut Context { lookup: &lookup, outcomes: &mut Outcomes::default() }).is_some()
}

/// Returns `None` if `ingress` belongs to another controller. The field takes precedence over the annotation. If they
/// differ and either selects this controller, that is reported.
pub(super) fn ours(ingress: &Ingress, object: &ObjectRef, context: &mut Context<'_, '_>) -> Option<Ours> {
    let classes = &context.options.classes;
    let field = ingress.spec.as_ref().and_then(|spec| spec.ingress_class_name.as_deref());
    let annotation = ingress.metadata.annotations.as_ref().and_then(|all| all.get(LEGACY_CLASS)).map(String::as_str);
    let (is_ours, class) = match (field, annotation) {
        (Some(field), annotation) => {
            let is_ours = classes.owns_field(field, context.lookup);
            if let Some(annotation) = annotation.filter(|annotation| *annotation != field)
                && (is_ours || classes.owns_annotation(annotation, context.lookup))
            {
                let message = format!(
                    "`spec.ingressClassName` is `{field}` but annotation `{LEGACY_CLASS}` is `{annotation}`; the field \
                     applies, remove the annotation"
                );
                context.report(object, Reason::ClassMismatch, message);
            }
            if !is_ours && field == classes.name && context.class(field).is_none() {
                let message = format!(
                    "IngressClass `{field}` does not exist; create it with `spec.controller: {}`",
                    classes.controller
                );
                context.report(object, Reason::ClassMismatch, message);
            }
            (is_ours, Some(field))
        }
        (None, Some(annotation)) => (classes.owns_annotation(annotation, context.lookup), Some(annotation)),
        (None, None) => {
            let default = if classes.apply_default_class { default_class(context.lookup) } else { None };
            let is_ours = classes.watch_without_class || default.is_some_and(|class| classes.owns(class));
            if !is_ours && classes.apply_default_class && default.is_none() {
                let name = &classes.name;
                let message = format!(
                    "the Ingress names no class and none is marked as default; set `spec.ingressClassName: \
                     {name}`"
                );
                context.report(object, Reason::ClassMismatch, message);
            }
            (is_ours, default.and_then(|class| class.metadata.name.as_deref()))
        }
    };
    is_ours.then(|| Ours { class: class.map(Into::into) })
}

/// Returns the default class. If several are marked, admission takes the newest, then the first by name (k/k
/// plugin/pkg/admission/network/defaultingressclass).
fn default_class<'c>(lookup: &Lookup<'c>) -> Option<&'c IngressClass> {
    let is_default = |class: &IngressClass| {
        let annotations = class.metadata.annotations.as_ref();
        annotations.and_then(|all| all.get(DEFAULT_CLASS)).is_some_and(|value| value == "true")
    };
    let mut newest: Option<&'c IngressClass> = None;
    for Stored { object: class, origin: _ } in lookup.classes().values().filter(|stored| is_default(&stored.object)) {
        if newest.is_none_or(|best| class.metadata.creation_timestamp > best.metadata.creation_timestamp) {
            newest = Some(class);
        }
    }
    newest
}

// === impl Classes ===

impl Classes {
    /// Returns the defaults for a directory of manifests, which has no admission and may have no IngressClass.
    #[must_use]
    pub fn for_manifests() -> Self {
        Self { apply_default_class: true, by_name: true, ..Self::default() }
    }

    /// Returns `true` if `class` belongs to this controller.
    pub(super) fn owns(&self, class: &IngressClass) -> bool {
        class.spec.as_ref().and_then(|spec| spec.controller.as_deref()) == Some(self.controller.as_str())
    }

    /// Returns `true` if `spec.ingressClassName: name` selects this controller. The controller of that IngressClass
    /// decides.
    pub(super) fn owns_field(&self, name: &str, lookup: &Lookup<'_>) -> bool {
        match lookup.class(name) {
            Some(Stored { object, origin: _ }) => self.owns(object),
            None => self.by_name && name == self.name && lookup.classes().is_empty(),
        }
    }

    /// Returns `true` if this value of the annotation selects this controller. An IngressClass of that name may exist,
    /// but need not.
    pub(super) fn owns_annotation(&self, name: &str, lookup: &Lookup<'_>) -> bool {
        match lookup.class(name) {
            Some(Stored { object, origin: _ }) => self.owns(object),
            None => name == self.name,
        }
    }
}
