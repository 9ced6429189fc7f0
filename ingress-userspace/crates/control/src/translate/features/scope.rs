//! The Ingress or route whose policy is made: lookups for it, and a sink for its problems.

use std::sync::Arc;

use crate::{
    change::{Kind, ObjectName},
    outcome::{ObjectRef, Reason},
    translate::{
        Context,
        lookup::Lookup,
        outcomes::Outcomes,
        text::{own_object, shorten},
    },
};

/// The reason why something that an Ingress asks for cannot be had.
pub(super) type Refusal = (Reason, String);

/// State that all features share while they make their parts of one policy.
pub(crate) struct Scope<'s, 'c> {
    pub(super) name: &'s ObjectName,
    pub(super) object: &'s ObjectRef,
    /// Name of the counters of its limits. Rules with the same name share them.
    pub(super) counters: Arc<str>,
    pub(super) lookup: &'s Lookup<'c>,
    outcomes: &'s mut Outcomes,
    /// Whether the rules must not be served.
    pub(super) refuses: bool,
}

// === impl Scope ===

impl<'s, 'c> Scope<'s, 'c> {
    pub(crate) fn new(
        name: &'s ObjectName,
        object: &'s ObjectRef,
        counters: Arc<str>,
        context: &'s mut Context<'_, 'c>,
    ) -> Self {
        Self { name, object, counters, lookup: context.lookup, outcomes: context.outcomes, refuses: false }
    }

    /// Returns `true` for a route of the Gateway API instead of an Ingress.
    pub(crate) fn is_of_route(&self) -> bool {
        *self.object.kind != *Kind::Ingress.as_str()
    }

    /// Returns lookups and outcomes together, for code that reports on other objects, too.
    pub(super) const fn context(&mut self) -> Context<'_, 'c> {
        Context { lookup: self.lookup, outcomes: self.outcomes }
    }

    /// Reports a problem of the Ingress.
    pub(crate) fn report(&mut self, reason: Reason, message: String) {
        self.outcomes.report(self.object, reason, message);
    }

    /// Reports a problem because of which the rules must not be served.
    pub(crate) fn refuse(&mut self, (reason, message): Refusal) {
        self.refuses = true;
        self.report_refusal(reason, message);
    }

    /// Reports a problem because of which the rules have no backend and answer 503.
    pub(super) fn report_refusal(&mut self, reason: Reason, message: String) {
        self.outcomes.refuse(self.object, reason, message);
    }

    /// Returns the result, or `instead` if the rules must not be served.
    pub(super) fn or_refuse<T>(&mut self, result: Result<T, Refusal>, instead: T) -> T {
        result.unwrap_or_else(|refusal| {
            self.refuse(refusal);
            instead
        })
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
