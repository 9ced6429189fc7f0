//! The annotations of an Ingress on its way to routes: those that are copied, and the verdict on each. Whether its rules
//! are served alike is found out elsewhere.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::Ingress;

use super::{Expressed, RowVerdict};
use crate::{
    boolean::boolean,
    change::ObjectName,
    translate::{annotation_entries, annotation_verdict, instead_on_routes},
    verdict::Kind,
};

/// The contribution of an Ingress to the annotations of its routes.
#[derive(Clone, Debug, Default)]
pub(super) struct IngressAnnotations {
    /// By their whole names.
    pub(super) copied: BTreeMap<String, String>,
    /// The whole names that the Ingress has, by those without a prefix.
    pub(super) written: BTreeMap<String, String>,
    /// Whether the Ingress is a canary of another.
    pub(super) is_canary: bool,
    /// Whether one of them redirects all requests.
    pub(super) is_sent_elsewhere: bool,
    pub(super) verdicts: Vec<RowVerdict>,
}

/// Keys whose effect the rules of a route show, as far as the host can be written at all.
const BY_RULES: [(&str, &str); 13] = [
    ("app-root", "as a filter `RequestRedirect`"),
    ("canary", "as weights and matches of the other Ingress's routes"),
    ("canary-by-header", "as matches of the other Ingress's routes"),
    ("canary-by-header-value", "as matches of the other Ingress's routes"),
    ("canary-weight", "as weights of the other Ingress's routes"),
    ("canary-weight-total", "as weights of the other Ingress's routes"),
    ("force-ssl-redirect", "as a route with a filter `RequestRedirect` at the listener for HTTP"),
    ("from-to-www-redirect", "as a route with a filter `RequestRedirect`"),
    ("rewrite-target", "as a filter `URLRewrite`"),
    ("server-alias", "as hostnames with listeners of their own"),
    ("share-hosts-with", "as `allowedRoutes` of the listeners"),
    ("ssl-redirect", "as a route with a filter `RequestRedirect` at the listener for HTTP"),
    ("use-regex", "as matches of type `PathPrefix`"),
];

/// Keys that ask for what a missing one means, with that value.
const OF_DEFAULT: [(&str, &str); 4] = [
    ("backend-protocol", "HTTP"),
    ("enable-global-auth", "true"),
    ("metrics-per-path", "false"),
    ("ssl-passthrough", "false"),
];

/// Reads the annotations of `ingress` with the prefix for compatibility, or that of this controller.
pub(super) fn read(name: &ObjectName, ingress: &Ingress, prefix: &str) -> IngressAnnotations {
    let mut read = IngressAnnotations::default();
    for (key, (written, value)) in annotation_entries(ingress, prefix) {
        read.written.insert(key.to_owned(), written.to_owned());
        read.is_canary |= key == "canary" && boolean(value) == Some(true);
        let expressed = match (annotation_verdict(key), instead_on_routes(key)) {
            (None, _) => Expressed::Not {
                because: "it is not known, and has no effect on Ingresses either".to_owned(),
                instead: "remove it".to_owned(),
            },
            (Some(verdict), None) if matches!(verdict.kind, Kind::NoEffect | Kind::Refused) || !is_row(key) => {
                let because =
                    if verdict.text.is_empty() { "it has no effect on Ingresses either" } else { verdict.text };
                Expressed::Not { because: because.to_owned(), instead: verdict.instead.to_owned() }
            }
            (Some(_), None) => {
                read.copied.insert(format!("xdp-ingress.io/{key}"), value.to_owned());
                read.is_sent_elsewhere |= matches!(key, "permanent-redirect" | "temporal-redirect");
                Expressed::Fully("as an annotation of the routes".to_owned())
            }
            (Some(_), Some(instead)) => {
                match (BY_RULES.iter().find(|row| row.0 == key), OF_DEFAULT.iter().find(|row| row.0 == key)) {
                    (Some((_, how)), _) => Expressed::Fully((*how).to_owned()),
                    (None, Some((_, default))) if value.eq_ignore_ascii_case(default) => {
                        Expressed::Fully("as nothing, because routes do so by themselves".to_owned())
                    }
                    _ => {
                        Expressed::Not { because: "it has no effect on routes".to_owned(), instead: instead.to_owned() }
                    }
                }
            }
        };
        let subject = format!("Ingress {name}");
        read.verdicts.push(RowVerdict { subject, row: format!("annotation `{written}`"), expressed });
    }
    read
}

/// Returns `true` if the key is one of this controller's table.
fn is_row(key: &str) -> bool {
    crate::translate::is_annotation(key)
}
