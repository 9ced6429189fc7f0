//! Pages in place of errors: the Service that answers when the pods of an Ingress fail or are missing.

use std::sync::Arc;

use super::{
    row::{Row, key},
    scope::Scope,
};
use crate::{
    outcome::Reason,
    translate::{
        destination::{Purpose, SubrequestSender},
        service,
        text::{own_object, shorten},
        values::{Expected, Read, boolean},
    },
};
use ingress_model::{Action, ErrorPages, Filter, UpstreamKey};

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedErrorPages>] = &[
    key(
        "custom-http-errors",
        "statuses from 300 to 599, separated by commas. A response of a pod with one of them is replaced by the \
         default backend's answer to `GET /` with the fields `X-Code`, `X-Format`, `X-Original-URI`, `X-Namespace`, \
         `X-Ingress-Name`, `X-Service-Name` and `X-Service-Port`. The status stays; responses of filters, such as \
         refusals, are not replaced",
    )
    .differs("refusals of the proxy itself, such as 401, 403 and 413, are not replaced")
    .reads(|value, parsed| parsed.statuses(value)),
    key(
        "default-backend",
        "a Service. Its first port answers for `custom-http-errors`, instead of `--default-backend-service`, and \
         serves the requests of rules without endpoints",
    )
    .leading_to(own_object)
    .reads(|value, parsed| {
        if value.is_empty() {
            return Err("the name of a Service".into());
        }
        parsed.backend = Some(value.to_owned());
        Ok(())
    }),
    key("disable-proxy-intercept-errors", "whether responses of pods stay as they are despite `custom-http-errors`")
        .default("false")
        .reads(|value, parsed| boolean(value, &mut parsed.disabled)),
];

/// Sorted by name.
pub(super) const DEFAULTS: &[Row<ParsedErrorPages>] = &[
    key(
        "custom-http-errors",
        "statuses of pods' responses to replace, unless an Ingress overrides it: see the annotation",
    )
    .differs("refusals of the proxy itself, such as 401, 403 and 413, are not replaced")
    .reads(|value, parsed| parsed.statuses(value)),
    key(
        "disable-proxy-intercept-errors",
        "whether all responses of pods stay as they are, unless an Ingress overrides it",
    )
    .default("false")
    .reads(|value, parsed| boolean(value, &mut parsed.disabled)),
];

/// The values of `custom-http-errors` and the keys that belong to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedErrorPages {
    /// Sorted.
    pub(super) statuses: Arc<[u16]>,
    /// Passes responses of pods on unchanged for every status. Default false.
    disabled: bool,
    /// Name of a Service.
    backend: Option<String>,
}

// === impl ParsedErrorPages ===

impl ParsedErrorPages {
    /// Reads statuses, separated by commas.
    fn statuses(&mut self, value: &str) -> Read {
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
    pub(crate) fn is_wanted(&self) -> bool {
        !self.statuses.is_empty() && !self.disabled
    }

    /// Returns the filter for rules of the Ingress, if there is a Service that can answer for their pods. `common` are
    /// the statuses of Ingresses without any of their own.
    pub(super) fn filter(self, common: &[u16], scope: &mut Scope<'_, '_>) -> Option<Filter> {
        let is_wanted = self.is_wanted();
        let is_own = *self.statuses != *common;
        let Self { statuses, disabled: _, backend } = self;
        let is_named = backend.is_some();
        let sender = SubrequestSender { purpose: Purpose::Page, namespace: Arc::clone(&scope.name.namespace) };
        let named = backend.and_then(|backend| own(&backend, &sender, scope));
        let stands_in = named.is_some();
        let backend = match named {
            Some(backend) => backend,
            None if !is_wanted => return None,
            None => match self::common(&sender, scope) {
                Some(backend) => backend,
                // The problem of the named Service is already reported.
                None if !is_own || is_named => return None,
                None => {
                    let message = "annotation `custom-http-errors` has no effect, because no Service makes the error \
                     pages; name one in `default-backend`";
                    scope.report(Reason::InvalidAnnotation, message.to_owned());
                    return None;
                }
            },
        };
        let statuses = if is_wanted { statuses } else { [].into() };
        let pages = ErrorPages { owner: scope.name.to_string().into(), statuses, backend, stands_in };
        Some(Filter::ErrorPages(Arc::new(pages)))
    }
}

/// Returns the upstream of the Service `value` in the Ingress's own namespace.
fn own(value: &str, sender: &SubrequestSender, scope: &mut Scope<'_, '_>) -> Option<UpstreamKey> {
    let Some(name) = own_object(value, &sender.namespace) else {
        let message = format!(
            "annotation `default-backend` names `{}`, which is not a Service of its namespace; it is as if not set, name one",
            shorten(value)
        );
        scope.report(Reason::InvalidAnnotation, message);
        return None;
    };
    service::first(&name, sender, scope.object, &mut scope.context())
}

/// Returns the upstream of `--default-backend-service`. Its problems are reported with the default rule, which uses it,
/// too.
fn common(sender: &SubrequestSender, scope: &mut Scope<'_, '_>) -> Option<UpstreamKey> {
    let name = scope.lookup.options.default_backend.clone()?;
    match service::default(&name, Some(sender), &mut scope.context())? {
        Action::Forward(key) => Some(key),
        Action::Refuse(_) | Action::Redirect(_) | Action::Split(_) | Action::Weighted(_) => None,
    }
}
