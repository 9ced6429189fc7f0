//! Writes a rule of an Ingress as one of an HTTPRoute. A rule for which there are no words has a reason instead, and then
//! its host stays with the Ingresses.

use serde_json::{Value, json};

use super::{host::WrittenPath, ingresses::Ingresses};
use crate::change::ObjectName;
use ingress_model::{
    Action, Canary, CanaryRule, CanaryValue, Filter, Location, LocationParts, PathMatch, PathModifier, Redirect,
    Rewrite, Rule, Split, Unavailable, UpstreamKey,
};

/// A rule in the words of Gateway API.
pub(super) struct WrittenRule {
    /// The demand on the path.
    pub(super) path: Value,
    /// Rules of the HTTPRoute: several if header fields choose between backends.
    pub(super) rules: Vec<Value>,
    /// Status of the redirect of plain HTTP to HTTPS, if there is one.
    pub(super) https_redirect: Option<u16>,
    /// How the rule differs; empty if it does not.
    pub(super) differs: &'static str,
    pub(super) written: WrittenPath,
}

/// Protocols and TLS of an upstream, which only fields of other objects set for routes.
const SPOKEN: [(&str, &str); 4] = [
    ("+tls(", "its pods get TLS with settings of annotations (`proxy-ssl-*`); write a BackendTLSPolicy"),
    ("+https", "its pods are reached over HTTPS (`backend-protocol`); write a BackendTLSPolicy"),
    (
        "+h2c",
        "its pods are reached over HTTP/2 (`backend-protocol`); set `appProtocol: kubernetes.io/h2c` of the port of the \
         Service",
    ),
    ("+h2", "its pods are reached over HTTP/2 and TLS (`backend-protocol`); write a BackendTLSPolicy"),
];

/// Largest length of a path, and largest weight, in the custom resource.
const MAX_PATH: usize = 1024;
const MAX_WEIGHT: u32 = 1_000_000;
const NO_WORDS: &str =
    "it is a regular expression, which routes do not have for paths; use `Exact` or `Prefix` in the Ingress";
/// Reason for which a host with client certificates stays.
pub(super) const CLIENTS: &str =
    "clients need certificates (`auth-tls-secret`); set `spec.tls.frontend` of a Gateway for this host";
const BY_SEGMENTS: &str = "the path is compared by whole segments and with regard to case";

/// Writes `rule` of the Ingress `owner`.
///
/// # Errors
/// The reason why there are no words for the rule.
pub(super) fn write(rule: &Rule, owner: &ObjectName, ingresses: &Ingresses<'_>) -> Result<WrittenRule, String> {
    // With it, an annotation of the route redirects its requests.
    let is_sent_elsewhere = ingresses.annotations.get(owner).is_some_and(|annotations| annotations.is_sent_elsewhere);
    let (path, rewrite, differs) = path_of(rule)?;
    let written = WrittenPath { path: matched(&path)?, is_rewritten: rewrite.is_some() };
    let mut filters: Vec<Value> = rewrite.into_iter().collect();
    let mut https_redirect = None;
    for filter in &rule.filters {
        match filter {
            Filter::RedirectHttps { status, except } if except.is_empty() => https_redirect = Some(*status),
            Filter::RedirectHttps { .. } => {
                return Err(
                    "the setting `no-tls-redirect-locations` exempts paths from redirects; remove it".to_owned()
                );
            }
            Filter::ClientCertificate(_) => {
                return Err(CLIENTS.to_owned());
            }
            Filter::StrictTransportSecurity(value) => {
                let value = value.to_str().map_err(|error| error.to_string())?;
                let set = json!([{"name": "Strict-Transport-Security", "value": value}]);
                filters.push(json!({"type": "ResponseHeaderModifier", "responseHeaderModifier": {"set": set}}));
            }
            // Annotations of the route make the others, or a difference is found.
            _ => {}
        }
    }
    let with = |headers: Value, backends: Vec<Value>| {
        let mut demand = json!({"path": path});
        if headers != Value::Null {
            demand["headers"] = json!([headers]);
        }
        let mut written = json!({"matches": [demand]});
        if !filters.is_empty() {
            written["filters"] = filters.clone().into();
        }
        if !backends.is_empty() {
            written["backendRefs"] = backends.into();
        }
        written
    };
    let rules = match &rule.action {
        Action::Redirect(_) if is_sent_elsewhere => vec![with(Value::Null, Vec::new())],
        Action::Redirect(redirect) => {
            let filter = json!({"type": "RequestRedirect", "requestRedirect": redirected(redirect)?});
            let mut written = with(Value::Null, Vec::new());
            let mut all = filters.clone();
            all.push(filter);
            written["filters"] = all.into();
            vec![written]
        }
        Action::Forward(key) => vec![with(Value::Null, vec![backend(key, owner, None)?])],
        Action::Split(split) if !split.over_tls.is_empty() => {
            return Err(
                "its pods are reached in the protocol of the client's scheme (`AUTO_HTTP`), which routes do not \
                        choose; write `HTTP` or `HTTPS`"
                    .to_owned(),
            );
        }
        Action::Split(_) if rule.forwarding.affinity.is_some() => {
            return Err(
                "`affinity` keeps clients with a pod, and weights of routes keep no session; remove it or the \
                        canary"
                    .to_owned(),
            );
        }
        Action::Split(split) => {
            let parts = parts(split)?;
            let backends = |parts: &[(UpstreamKey, u32)]| {
                let backends = parts.iter().map(|(key, weight)| backend(key, owner, Some(*weight)));
                backends.collect::<Result<Vec<_>, _>>()
            };
            let mut rules = Vec::new();
            for (header, key) in parts.by_header {
                rules.push(with(header, backends(&[(key, 1)])?));
            }
            rules.push(with(Value::Null, backends(&parts.by_weight)?));
            rules
        }
        Action::Refuse(Unavailable::Policy) => {
            return Err(format!("{}; correct the Ingress first", ingresses.refusal(owner)));
        }
        Action::Refuse(why) => return Err(format!("it answers an error ({why}); correct the Ingress first")),
        Action::Weighted(_) => return Err("it has weighted backends".to_owned()),
    };
    Ok(WrittenRule { path, rules, https_redirect, differs, written })
}

/// Returns the demand on the path, the filter that changes it, and how they differ.
fn path_of(rule: &Rule) -> Result<(Value, Option<Value>, &'static str), String> {
    let rewrite = rule.filters.iter().find_map(|filter| match filter {
        Filter::Rewrite(rewrite) => Some(&**rewrite),
        _ => None,
    });
    let demand = |kind: &str, value: &str| json!({"type": kind, "value": value});
    let prefix = |value: &str| {
        let value = if value.len() > 1 { value.trim_end_matches('/') } else { value };
        demand("PathPrefix", if value.is_empty() { "/" } else { value })
    };
    match (&rule.path, rewrite) {
        (PathMatch::Exact(path), None) => Ok((demand("Exact", path), None, "")),
        (PathMatch::Prefix(path), None) => Ok((prefix(path), None, "")),
        (PathMatch::Beginning(path), None) => Ok((prefix(path), None, BY_SEGMENTS)),
        (path, Some(Rewrite::Template { target, .. })) => {
            let text = path.as_str();
            let (plain, replacement) = match text.strip_suffix("(/|$)(.*)") {
                Some(plain) if target.to_string() == "/$2" => (plain, "ReplacePrefixMatch"),
                None if target.literal().is_some_and(|target| target.starts_with('/') && !target.contains('?')) => {
                    (text, "ReplaceFullPath")
                }
                _ => return Err(NO_WORDS.to_owned()),
            };
            if !is_plain(plain) {
                return Err(NO_WORDS.to_owned());
            }
            let change = match replacement {
                "ReplacePrefixMatch" => json!({"type": replacement, "replacePrefixMatch": "/"}),
                _ => json!({"type": replacement, "replaceFullPath": target.to_string()}),
            };
            let demand = match path {
                PathMatch::Exact(path) => demand("Exact", path),
                _ => prefix(plain),
            };
            Ok((demand, Some(json!({"type": "URLRewrite", "urlRewrite": {"path": change}})), BY_SEGMENTS))
        }
        (PathMatch::Pattern(pattern), None) if is_plain(pattern.as_str()) => {
            Ok((prefix(pattern.as_str()), None, BY_SEGMENTS))
        }
        _ => Err(NO_WORDS.to_owned()),
    }
}

/// Returns `true` for a path that is no expression but for its dots, which are rare in paths.
fn is_plain(text: &str) -> bool {
    text.starts_with('/') && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_/~%@".contains(&b))
}

/// Returns the match that a demand on the path means.
///
/// # Errors
/// The reason why a route cannot have it.
fn matched(demand: &Value) -> Result<PathMatch, String> {
    let value = demand["value"].as_str().unwrap_or_default();
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@%/".contains(&byte);
    if value.len() > MAX_PATH || !value.bytes().all(is_allowed) {
        return Err(format!("a path of routes has at most {MAX_PATH} characters, and only those of URLs"));
    }
    let parsed = if demand["type"] == "Exact" { PathMatch::exact(value) } else { PathMatch::prefix(value) };
    parsed.map_err(|error| error.to_string())
}

fn backend(key: &UpstreamKey, owner: &ObjectName, weight: Option<u32>) -> Result<Value, String> {
    let text = key.to_string();
    if let Some((_, why)) = SPOKEN.iter().find(|(mark, _)| text.contains(mark)) {
        return Err((*why).to_owned());
    }
    let port = key.service().and_then(|(service, port)| Some((service, port.parse::<u16>().ok()?)));
    let Some((service, port)) = port.filter(|_| text.starts_with(&format!("{}/", owner.namespace))) else {
        return Err(format!("its backend `{text}` is no Service of `{}`", owner.namespace));
    };
    let mut backend = json!({"name": service, "port": port});
    if let Some(weight) = weight {
        backend["weight"] = weight.into();
    }
    Ok(backend)
}

/// How a canary divides requests.
struct Parts {
    /// Backends for requests with a header field.
    by_header: Vec<(Value, UpstreamKey)>,
    by_weight: Vec<(UpstreamKey, u32)>,
}

fn parts(Split { main, canaries, over_tls: _ }: &Split) -> Result<Parts, String> {
    let [Canary { when, upstream }] = &**canaries else {
        return Err("it has several canaries; write rules with `matches` and weights".to_owned());
    };
    let CanaryRule { header, cookie, weight, total, sessions: _ } = when;
    if cookie.is_some() {
        return Err(
            "a cookie chooses the canary; write rules with a regular expression for the field `Cookie`".to_owned()
        );
    }
    let by_header = match header {
        None => Vec::new(),
        Some((name, CanaryValue::Word)) => [("always", upstream), ("never", main)]
            .map(|(word, key)| (json!({"name": name.as_str(), "value": word}), key.clone()))
            .into(),
        Some((name, CanaryValue::Exactly(value))) => {
            let value = value.to_str().map_err(|error| error.to_string())?;
            vec![(json!({"name": name.as_str(), "value": value}), upstream.clone())]
        }
        Some((_, CanaryValue::Like(_))) => {
            return Err(
                "an expression for a field chooses the canary; write a rule with a match of the whole field".to_owned()
            );
        }
    };
    if *total > MAX_WEIGHT {
        return Err(format!("`canary-weight-total` is above {MAX_WEIGHT}, the largest weight of routes"));
    }
    let weight = (*weight).min(*total);
    let (main, canary) = ((main.clone(), total - weight), (upstream.clone(), weight));
    let by_weight = if weight == 0 { vec![main] } else { vec![main, canary] };
    Ok(Parts { by_header, by_weight })
}

/// Returns the fields of a redirect.
fn redirected(Redirect { status, location }: &Redirect) -> Result<Value, String> {
    let mut fields = json!({"statusCode": status});
    match location {
        Location::Parts(LocationParts { scheme, host, port, path }) => {
            if let Some(scheme) = scheme {
                fields["scheme"] = scheme.as_str().into();
            }
            if let Some(host) = host {
                fields["hostname"] = host.as_str().into();
            }
            if let Some(port) = port {
                fields["port"] = port.get().into();
            }
            match path {
                None => {}
                Some(PathModifier::Full(path)) => {
                    fields["path"] = json!({"type": "ReplaceFullPath", "replaceFullPath": path.as_str()});
                }
                Some(PathModifier::Prefix { .. }) => return Err("it replaces a prefix".to_owned()),
            }
        }
        Location::Template(template) => {
            let text = template.to_string();
            let plain = |text: &str| !text.contains(['$', '?', '#']);
            if let Some(host) = text.strip_prefix("$scheme://").and_then(|rest| rest.strip_suffix("$request_uri"))
                && plain(host)
            {
                fields["hostname"] = host.into();
            } else if text.starts_with('/') && plain(&text) {
                fields["path"] = json!({"type": "ReplaceFullPath", "replaceFullPath": text});
            } else {
                return Err(format!("it redirects to `{text}`, which has no words in a filter `RequestRedirect`"));
            }
        }
    }
    Ok(fields)
}
