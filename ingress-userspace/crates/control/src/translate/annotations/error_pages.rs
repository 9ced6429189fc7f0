//! Finds the Service that answers when the pods of an Ingress fail or are missing.

use std::sync::Arc;

use super::{
    super::{
        destination::{Asker, Purpose},
        service,
        values::{Expected, Read},
    },
    Context,
};
use crate::{
    change::ObjectName,
    outcome::{ObjectRef, Reason},
    translate::{
        parsed_annotations::ParsedErrorPages,
        text::{own_object, shorten},
    },
};
use ingress_model::{Action, ErrorPages, Filter, UpstreamKey};

// === impl ParsedErrorPages ===

impl ParsedErrorPages {
    /// Reads statuses, separated by commas.
    pub(in crate::translate) fn statuses(&mut self, value: &str) -> Read {
        const EXPECTED: Expected =
            Expected::Borrowed("statuses from 300 to 599 other than 304, separated by commas, as `404,503`");
        let words = value.split(',').map(str::trim).filter(|word| !word.is_empty());
        let statuses =
            words.map(|word| word.parse().ok().filter(|status| (300..=599).contains(status) && *status != 304));
        let mut statuses: Vec<u16> = statuses.collect::<Option<_>>().ok_or(EXPECTED)?;
        statuses.sort_unstable();
        statuses.dedup();
        self.statuses = statuses.into();
        Ok(())
    }

    /// Returns `true` if error responses of pods are to be replaced.
    pub(in crate::translate) fn is_wanted(&self) -> bool {
        !self.statuses.is_empty() && !self.disabled
    }

    /// Returns the filter for rules of the Ingress `name`, if there is a Service that can answer for their pods.
    pub(super) fn filter(self, name: &ObjectName, object: &ObjectRef, context: &mut Context<'_>) -> Option<Filter> {
        let is_wanted = self.is_wanted();
        let is_own = self.statuses != context.globals.parsed.error_pages.statuses;
        let Self { statuses, disabled: _, backend } = self;
        let is_named = backend.is_some();
        let asker = Asker { purpose: Purpose::Page, namespace: Arc::clone(&name.namespace) };
        let named = backend.and_then(|backend| own(&backend, &asker, object, context));
        let stands_in = named.is_some();
        let backend = match named {
            Some(backend) => backend,
            None if !is_wanted => return None,
            None => match common(&asker, context) {
                Some(backend) => backend,
                // The problem of the named Service is already reported.
                None if !is_own || is_named => return None,
                None => {
                    let message = "annotation `custom-http-errors` has no effect, because no Service makes the error \
                     pages; name one in `default-backend`";
                    context.report(object, Reason::InvalidAnnotation, message.to_owned());
                    return None;
                }
            },
        };
        let statuses = if is_wanted { statuses } else { [].into() };
        let pages = ErrorPages { owner: name.to_string().into(), statuses, backend, stands_in };
        Some(Filter::ErrorPages(Arc::new(pages)))
    }
}

/// Returns the upstream of the Service `value` in the Ingress's own namespace.
fn own(value: &str, asker: &Asker, object: &ObjectRef, context: &mut Context<'_>) -> Option<UpstreamKey> {
    let Some(name) = own_object(value, &asker.namespace) else {
        let message = format!(
            "annotation `default-backend` names `{}`, which is not a Service of its namespace; it is as if not set, name one",
            shorten(value)
        );
        context.report(object, Reason::InvalidAnnotation, message);
        return None;
    };
    service::first(&name, asker, object, context)
}

/// Returns the upstream of `--default-backend-service`. Its problems are reported with the default rule, which uses it,
/// too.
fn common(asker: &Asker, context: &mut Context<'_>) -> Option<UpstreamKey> {
    let name = context.options.default_backend.clone()?;
    match service::default(&name, Some(asker), context)? {
        Action::Forward(key) => Some(key),
        Action::Refuse(_) | Action::Redirect(_) | Action::Split(_) => None,
    }
}
