//! The Ingress whose policy is made: lookups for it, and a sink for its problems.

use crate::{
    change::ObjectName,
    outcome::{ObjectRef, Reason},
    translate::{
        Context,
        text::{own_object, shorten},
    },
};

/// The reason why something that an Ingress asks for cannot be had.
pub(super) type Refusal = (Reason, String);

/// State that all features share while they make their parts of one policy.
pub(crate) struct Scope<'s, 'c> {
    pub(super) name: &'s ObjectName,
    pub(super) object: &'s ObjectRef,
    pub(super) context: &'s mut Context<'c>,
    /// Whether the rules must not be served.
    pub(super) refuses: bool,
}

// === impl Scope ===

impl<'s, 'c> Scope<'s, 'c> {
    pub(crate) const fn new(name: &'s ObjectName, object: &'s ObjectRef, context: &'s mut Context<'c>) -> Self {
        Self { name, object, context, refuses: false }
    }

    /// Reports a problem of the Ingress.
    pub(crate) fn report(&mut self, reason: Reason, message: String) {
        self.context.report(self.object, reason, message);
    }

    /// Reports a problem because of which the rules must not be served.
    pub(crate) fn refuse(&mut self, (reason, message): Refusal) {
        self.refuses = true;
        self.report(reason, message);
    }

    /// Returns the object of the Ingress's namespace that `value` of `annotation` names.
    pub(super) fn own(&self, annotation: &str, value: &str, kind: &str) -> Result<ObjectName, Refusal> {
        own_object(value, &self.name.namespace).ok_or_else(|| {
            let message = format!(
                "annotation `{annotation}` names `{}`, which is in another namespace; its rules answer 503, name a {kind} of its own",
                shorten(value)
            );
            (Reason::InvalidAnnotation, message)
        })
    }
}
