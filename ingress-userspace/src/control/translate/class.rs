//! Decides which Ingresses are ours, by the chain controller → IngressClass → Ingress.

use k8s_openapi::api::networking::v1::{Ingress, IngressClass};

use crate::control::{
    cluster::Stored,
    outcome::{ObjectRef, Reason},
};

use super::Context;

/// Which Ingresses to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classes {
    /// An IngressClass with this `spec.controller` is ours. Default `xdp-ingress.io/controller`.
    pub controller: String,
    /// The class that is ours by its name alone, where no IngressClass says whose it is: accepted as value of the
    /// legacy annotation `kubernetes.io/ingress.class` while no IngressClass has this name, and, with `by_name`, in
    /// `spec.ingressClassName` while there is no IngressClass at all. In every other case `spec.controller` of the
    /// IngressClass decides, and the name means nothing. Default `xdp`.
    pub name: String,
    /// Serve Ingresses that name no class. Off by default: in a shared cluster they may be another controller's.
    pub watch_without_class: bool,
    /// Give Ingresses that name no class to the IngressClass marked as default. A cluster's admission does that when an
    /// Ingress is created; a directory of manifests has no admission. Default off.
    pub apply_default_class: bool,
    /// Accept `name` in `spec.ingressClassName` while there is no IngressClass at all, so that a directory of manifests
    /// need not hold one. On for manifests, off for a cluster. Default off.
    pub by_name: bool,
}

const LEGACY_CLASS: &str = "kubernetes.io/ingress.class";
const DEFAULT_CLASS: &str = "ingressclass.kubernetes.io/is-default-class";

// === impl Classes ===

impl Default for Classes {
    fn default() -> Self {
        Self {
            controller: "xdp-ingress.io/controller".into(),
            name: "xdp".into(),
            watch_without_class: false,
            apply_default_class: false,
            by_name: false,
        }
    }
}

impl Classes {
    /// The defaults for a directory of manifests, which has neither admission nor, perhaps, an IngressClass.
    #[must_use]
    pub fn for_manifests() -> Self {
        Self { apply_default_class: true, by_name: true, ..Self::default() }
    }

    /// Whether `class` is of our controller.
    pub(super) fn owns(&self, class: &IngressClass) -> bool {
        class.spec.as_ref().and_then(|spec| spec.controller.as_deref()) == Some(self.controller.as_str())
    }

    /// Whether `spec.ingressClassName: name` makes an Ingress ours: the controller of that IngressClass decides.
    fn owns_field(&self, name: &str, context: &mut Context<'_>) -> bool {
        match context.class(name) {
            Some(Stored { object, origin: _ }) => self.owns(object),
            None => self.by_name && name == self.name && context.classes().is_empty(),
        }
    }

    /// Whether the annotation's value makes an Ingress ours: it may, but need not, name an IngressClass.
    fn owns_annotation(&self, name: &str, context: &mut Context<'_>) -> bool {
        match context.class(name) {
            Some(Stored { object, origin: _ }) => self.owns(object),
            None => name == self.name,
        }
    }
}

/// Whether `ingress` is ours. The field goes before the annotation; where they differ and either is ours, that is said.
pub(super) fn is_ours(ingress: &Ingress, object: &ObjectRef, context: &mut Context<'_>) -> bool {
    let classes = &context.options.classes;
    let field = ingress.spec.as_ref().and_then(|spec| spec.ingress_class_name.as_deref());
    let annotation = ingress.metadata.annotations.as_ref().and_then(|all| all.get(LEGACY_CLASS)).map(String::as_str);
    match (field, annotation) {
        (Some(field), annotation) => {
            let ours = classes.owns_field(field, context);
            if let Some(annotation) = annotation.filter(|annotation| *annotation != field)
                && (ours || classes.owns_annotation(annotation, context))
            {
                let message = format!(
                    "`spec.ingressClassName` is `{field}` but annotation `{LEGACY_CLASS}` is `{annotation}`; the field counts, remove the annotation"
                );
                context.report(object, Reason::ClassMismatch, message);
            }
            if !ours && field == classes.name && context.class(field).is_none() {
                let message = format!(
                    "IngressClass `{field}` does not exist; create it with `spec.controller: {}`",
                    classes.controller
                );
                context.report(object, Reason::ClassMismatch, message);
            }
            ours
        }
        (None, Some(annotation)) => classes.owns_annotation(annotation, context),
        (None, None) => {
            let default = if classes.apply_default_class { default_class(context) } else { None };
            let ours = classes.watch_without_class || default.is_some_and(|class| classes.owns(class));
            if !ours && classes.apply_default_class && default.is_none() {
                let name = &classes.name;
                let message =
                    format!("no class is named and none is marked as default; set `spec.ingressClassName: {name}`");
                context.report(object, Reason::ClassMismatch, message);
            }
            ours
        }
    }
}

/// Of several classes marked as default, admission takes the newest, then the first by name
/// (k/k plugin/pkg/admission/network/defaultingressclass).
fn default_class<'c>(context: &mut Context<'c>) -> Option<&'c IngressClass> {
    let is_default = |class: &IngressClass| {
        let annotations = class.metadata.annotations.as_ref();
        annotations.and_then(|all| all.get(DEFAULT_CLASS)).is_some_and(|value| value == "true")
    };
    let mut newest: Option<&'c IngressClass> = None;
    for Stored { object: class, origin: _ } in context.classes().values().filter(|stored| is_default(&stored.object)) {
        if newest.is_none_or(|best| class.metadata.creation_timestamp > best.metadata.creation_timestamp) {
            newest = Some(class);
        }
    }
    newest
}
