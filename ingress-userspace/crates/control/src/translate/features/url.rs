//! The URLs that annotations name, and the upstreams they lead to.

use std::{fmt, sync::Arc};

use http::{HeaderValue, uri::Authority};

use super::{scope::Scope, upstream_tls::ParsedTls};
use crate::{
    change::ObjectName,
    outcome::Reason,
    translate::{
        destination::{Destination, Finding, Purpose, SubrequestSender, TrustAnchors},
        grant, service, trust_anchors,
    },
};
use ingress_model::{Protocol, Template, UpstreamKey, Variable};

/// URL of a service. `Debug` omits the query, which may be secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Url {
    is_secure: bool,
    /// `None` for the host of the request.
    authority: Option<Authority>,
    /// Path and query.
    target: Template,
    trust_anchors: TrustAnchors,
}

/// Author of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Author {
    /// The owner of an Ingress.
    Ingress,
    /// The operator, in a setting for all Ingresses.
    Operator,
}

/// Returns the Service within the cluster that `url`, a value of an annotation, leads to.
pub(crate) fn service_of(url: &str) -> Option<ObjectName> {
    Url::parse(url).ok()?.service()
}

pub(super) fn without_groups(template: Template) -> Result<Template, &'static str> {
    let has_groups = template.variables().any(|variable| matches!(variable, Variable::Group(_)));
    if has_groups { Err("groups of regular expressions have no value here") } else { Ok(template) }
}

// === impl Url ===

impl Url {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").ok_or("it begins with neither `http://` nor `https://`")?;
        let is_secure = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err("it begins with neither `http://` nor `https://`".into()),
        };
        let (authority, target) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let authority = match authority {
            "$host" | "$http_host" | "$best_http_host" | "${host}" | "${http_host}" | "${best_http_host}" => None,
            _ if authority.contains('$') => return Err("its host has variables other than `$host`".into()),
            _ if authority.contains('@') => return Err("it has a user".into()),
            _ => Some(authority.parse::<Authority>().map_err(|_invalid| "it has no host")?),
        };
        let has_bad_port =
            |authority: &Authority| authority.port_u16().is_none() && authority.as_str() != authority.host();
        if authority.as_ref().is_some_and(has_bad_port) {
            return Err("its port is not a port number".into());
        }
        if !target.bytes().all(|b| b.is_ascii_graphic() && b != b'#') {
            return Err("its path has characters that are not allowed in a path".into());
        }
        let slash = if target.starts_with('/') { "" } else { "/" };
        let target = Template::parse(&format!("{slash}{target}")).map_err(|error| error.to_string())?;
        Ok(Self { is_secure, authority, target: without_groups(target)?, trust_anchors: TrustAnchors::Any })
    }

    /// Returns the URL if no other server can answer in its place: it must be fixed, and use TLS with a verified
    /// certificate or lead to a Service.
    pub(super) fn verified(self) -> Result<Self, &'static str> {
        let authority = self.authority.as_ref().ok_or("it has no host of its own")?;
        if self.target.literal().is_none() {
            return Err("it has variables");
        }
        match (self.is_secure, self.service()) {
            (false, None) => return Err("only Services may have `http://`"),
            // The issuer of certificates within a cluster is not known.
            (true, Some(_)) => return Err("a Service needs `http://`"),
            (true, None) if trust_anchors::name(authority.host()).is_none() => {
                return Err("its host is not a name that a certificate can have");
            }
            (true, None) | (false, Some(_)) => {}
        }
        Ok(Self { trust_anchors: TrustAnchors::Public, ..self })
    }

    /// Returns the URL with the authorities in Secret `name` as the only trust anchors for its host.
    pub(super) fn verified_by(self, name: ObjectName) -> Self {
        Self { trust_anchors: TrustAnchors::Private(name), ..self }
    }

    pub(super) fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// Returns the URL for people, without its query, which may be secret.
    pub(super) fn origin(&self) -> String {
        let scheme = if self.is_secure { "https" } else { "http" };
        let path = self.target.as_str().split('?').next().unwrap_or_default();
        format!("{scheme}://{}{path}", self.shown())
    }

    /// Returns `true` if its host is that of the request.
    pub(super) fn is_of_request(&self) -> bool {
        self.authority.is_none()
    }

    fn port(&self) -> u16 {
        let default = if self.is_secure { 443 } else { 80 };
        self.authority.as_ref().and_then(Authority::port_u16).unwrap_or(default)
    }

    /// Returns host and port, as they are written.
    pub(super) fn shown(&self) -> &str {
        self.authority.as_ref().map_or("$host", Authority::as_str)
    }

    pub(super) fn target(&self) -> &Template {
        &self.target
    }

    pub(super) fn into_target(self) -> Template {
        self.target
    }

    /// Returns the upstream and `Host` for requests of this purpose. Returns `None` if the host is that of the
    /// request. If the destination is missing or may not be reached, this is reported as a problem of `annotation`, with
    /// `None` as the result. A Service of another namespace may be reached if the operator's own settings name it,
    /// or if a grant allows it.
    pub(super) fn upstream(
        &self,
        annotation: &str,
        author: Author,
        purpose: Purpose,
        scope: &mut Scope<'_, '_>,
    ) -> Option<(UpstreamKey, HeaderValue)> {
        let authority = self.authority.as_ref()?;
        let protocol = if self.is_secure { Protocol::Https } else { Protocol::Http1 };
        let sender = SubrequestSender { purpose, namespace: Arc::clone(&scope.name.namespace) };
        let key = match self.service() {
            Some(name) => {
                if author == Author::Ingress
                    && let Err(why) = grant::check(&scope.object.kind, &sender.namespace, &name, scope.lookup)
                {
                    scope.report(Reason::RefNotPermitted, format!("`{annotation}` leads to {why}"));
                    return None;
                }
                let backend_tls = self.is_secure.then(|| ParsedTls::naming(authority.host())).flatten();
                service::named(&name, self.port(), protocol, backend_tls, &sender, scope.object, &mut scope.context())
            }
            None => outside(annotation, self, authority, protocol, sender, scope),
        }?;
        Some((key, HeaderValue::from_str(authority.as_str()).ok()?))
    }

    /// Returns the Service that the host names, in the form that cluster DNS uses.
    pub(super) fn service(&self) -> Option<ObjectName> {
        let host = self.authority.as_ref()?.host().trim_end_matches('.').to_ascii_lowercase();
        let name = host.strip_suffix(".svc.cluster.local").or_else(|| host.strip_suffix(".svc"))?;
        let (name, namespace) = name.split_once('.').filter(|(_, namespace)| !namespace.contains('.'))?;
        Some(ObjectName::new(namespace, name))
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Url({})", self.origin())
    }
}

/// Returns the upstream of a name outside the cluster, or of an address. If it is refused, the reason is reported
/// and the result is `None`.
fn outside(
    annotation: &str,
    url: &Url,
    authority: &Authority,
    protocol: Protocol,
    sender: SubrequestSender,
    scope: &mut Scope<'_, '_>,
) -> Option<UpstreamKey> {
    let host = authority.host().into();
    let (port, trust_anchors) = (url.port(), url.trust_anchors.clone());
    let destination = Destination::Outside { host, port, protocol, trust_anchors, sender };
    let (key, gathered) = scope.lookup.upstream(&destination);
    for Finding { reason, message } in &gathered.findings {
        scope.report(*reason, format!("the host of `{annotation}`: {message}"));
    }
    gathered.upstream.is_some().then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_service_a_host_or_the_request_host() {
        for (text, service, port, target) in [
            ("http://auth.sso.svc.cluster.local/verify", Some("sso/auth"), 80, "/verify"),
            ("http://auth.sso.svc:4180/oauth2/auth?x=$arg_x", Some("sso/auth"), 4180, "/oauth2/auth?x=$arg_x"),
            ("https://login.example.com", None, 443, "/"),
            ("https://login.example.com?a=b", None, 443, "/?a=b"),
            ("https://$host/oauth2/auth", None, 443, "/oauth2/auth"),
            ("http://[2001:db8::1]:8080/", None, 8080, "/"),
            ("http://a.b.c.svc.cluster.local/", None, 80, "/"),
        ] {
            let url = Url::parse(text).expect(text);
            assert_eq!(url.service().map(|name| name.to_string()).as_deref(), service, "{text}");
            assert_eq!((url.port(), url.target.as_str()), (port, target), "{text}");
            assert!(!format!("{url:?}").contains('?'), "{url:?}");
        }
        for text in [
            "auth.test/x",
            "ftp://a.test",
            "http://",
            "http://$arg_x/",
            "http://a$host/",
            "http://u@a.test/",
            "http://a.test/ x",
            "http://a.test/$nope",
            "http://a.test/$1",
            "http://a.test:99999/",
        ] {
            assert!(Url::parse(text).is_err(), "{text}");
        }
    }
}
