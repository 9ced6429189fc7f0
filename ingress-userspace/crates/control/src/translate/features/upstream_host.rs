//! `Host` in requests for pods.

use http::{HeaderValue, uri::Authority};
use k8s_openapi::api::networking::v1::IngressBackend;

use super::row::{Row, key};
use crate::{
    change::ObjectName,
    translate::values::{Read, text},
};
use ingress_model::{Filter, HeaderText};

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedUpstreamHost>] = &[key(
    "upstream-vhost",
    "`Host` for pods, instead of the client's, with variables. `$namespace`, `$ingress_name`, `$service_name` and \
     `$service_port` are those of the rule. Requests that make no host of it get 400",
)
.differs("variables that are not listed for annotations are refused")
.or_refuse()
.reads(|value, parsed| {
    // Any constants: whether the text is valid does not depend on them.
    made(&expanded(value, |_constant| "a".into()))?;
    parsed.text = Some(value.into());
    Ok(())
})];

/// A text with variables, and with constants of the rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedUpstreamHost {
    text: Option<Box<str>>,
}

/// Constants of a rule that a text may name.
const CONSTANTS: [&str; 4] = ["ingress_name", "namespace", "service_name", "service_port"];

// === impl ParsedUpstreamHost ===

impl ParsedUpstreamHost {
    /// Returns the filter of a rule of `ingress`.
    pub(crate) fn filter(&self, ingress: &ObjectName, backend: Option<&IngressBackend>) -> Option<Filter> {
        let service = backend.and_then(|backend| backend.service.as_ref());
        let port = service.and_then(|service| service.port.as_ref());
        let constant = |name: &str| match name {
            "ingress_name" => ingress.name.to_string(),
            "namespace" => ingress.namespace.to_string(),
            "service_name" => service.map(|service| service.name.clone()).unwrap_or_default(),
            _ => port
                .and_then(|port| port.name.clone().or_else(|| port.number.map(|number| number.to_string())))
                .unwrap_or_default(),
        };
        let host = expanded(self.text.as_deref()?, constant);
        // A port may have a name, which nginx sends as it is, too.
        let sent = made(&host).or_else(|_invalid| HeaderValue::from_str(&host).map(HeaderText::Fixed));
        sent.ok().map(Filter::UpstreamHost)
    }
}

/// Replaces the constants in `text`, written `$name` or `${name}`.
fn expanded(text: &str, constant: impl Fn(&str) -> String) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        let name = after.strip_prefix('{').unwrap_or(after);
        let end = name.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(name.len());
        let (name, behind) = name.split_at(end);
        let behind = if after.starts_with('{') { behind.strip_prefix('}') } else { Some(behind) };
        match behind {
            Some(behind) if CONSTANTS.contains(&name) => {
                expanded.push_str(&constant(name));
                rest = behind;
            }
            // In braces, it ends where it did, whatever constant follows.
            Some(behind) if !name.is_empty() => {
                expanded.push_str(&format!("${{{name}}}"));
                rest = behind;
            }
            _ => {
                expanded.push('$');
                rest = after;
            }
        }
    }
    expanded + rest
}

fn made(value: &str) -> Read<HeaderText> {
    if value.contains('$') {
        return match text(value)? {
            Some(template) => Ok(HeaderText::Template(template)),
            None => Err("a host".into()),
        };
    }
    let authority: Authority = value.parse().map_err(|_invalid| "a host, as `a.test` or `a.test:8080`")?;
    if authority.as_str().contains('@') {
        return Err("a host, without a user".into());
    }
    HeaderValue::from_str(authority.as_str()).map(HeaderText::Fixed).map_err(|_invalid| "a host".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_of_the_rule_are_replaced() {
        for (text, expect) in [
            ("a.test:8080", "a.test:8080"),
            (
                "$service_name.$namespace.svc.cluster.local:$service_port",
                "<service_name>.<namespace>.svc.cluster.local:<service_port>",
            ),
            ("${ingress_name}x", "<ingress_name>x"),
            ("$service_names.$host", "${service_names}.${host}"),
            ("$http_x$namespace", "${http_x}<namespace>"),
            ("${namespace", "${namespace"),
            ("$", "$"),
        ] {
            assert_eq!(expanded(text, |name| format!("<{name}>")), expect, "{text}");
        }
    }
}
