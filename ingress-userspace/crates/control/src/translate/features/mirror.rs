//! Copies of requests for a second destination, whose answers are dropped.

use http::{HeaderValue, uri::Authority};

use super::{
    row::{Row, key},
    scope::Scope,
    url::{Author, Url},
};
use crate::{
    change::ObjectName,
    outcome::Reason,
    translate::{
        destination::Purpose,
        text::shorten,
        values::{Read, switch},
    },
};
use ingress_model::{Filter, Host, Mirror};

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedMirror>] = &[
    key("mirror-host", "`Host` of requests to `mirror-target`, instead of the target's own")
        .reads(|value, parsed| parsed.host(value)),
    key("mirror-request-body", "whether `mirror-target` gets bodies, too")
        .default("on")
        .reads(|value, parsed| parsed.body(value)),
    key(
        "mirror-target",
        "target for a copy of each request: a URL, with the client's path and query if it has none, or, specific to \
         xdp-ingress, a Service of the Ingress' namespace, as `shadow:80`; a URL may name a Service of another \
         namespace only if a ReferenceGrant there or `--allow-cross-namespace-services` allows it. The answer is \
         dropped, and no request waits or fails because of a copy: a mirror that lags 256 KiB of a body behind is cut \
         off. Copies use HTTP/1.1; WebSockets are not mirrored",
    )
    .differs("copies use HTTP/1.1, and WebSockets are not mirrored")
    .leading_to(service_of)
    .reads(|value, parsed| parsed.target(value)),
];

/// The values of `mirror-target` and the keys that belong to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedMirror {
    target: Option<Target>,
    /// Default true.
    body: bool,
    /// Replaces the host of the target.
    host: Option<HeaderValue>,
}

/// Destination of a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Url(Url),
    /// A Service of the Ingress's namespace.
    Service {
        name: String,
        port: u16,
    },
}

impl Default for ParsedMirror {
    fn default() -> Self {
        Self { target: None, body: true, host: None }
    }
}

// === impl ParsedMirror ===

/// Each method reads the value of one annotation.
impl ParsedMirror {
    fn target(&mut self, value: &str) -> Read {
        let target = Target::parse(value).map_err(|why| {
            format!("a URL as `https://mirror.test$request_uri`, or a Service as `shadow:80` ({why})")
        })?;
        self.target = Some(target);
        Ok(())
    }

    fn body(&mut self, value: &str) -> Read {
        switch(value, &mut self.body)
    }

    fn host(&mut self, value: &str) -> Read {
        let authority: Authority = value.parse().map_err(|_invalid| "a host, as `a.test` or `a.test:8080`")?;
        if authority.as_str().contains('@') {
            return Err("a host, without a user".into());
        }
        self.host = HeaderValue::from_str(authority.as_str()).ok();
        Ok(())
    }

    /// Returns the filter for rules of the Ingress, if the mirror may be reached. A mirror protects nothing, so
    /// the rules are served without it if it may not.
    pub(super) fn filter(self, scope: &mut Scope<'_, '_>) -> Option<Filter> {
        let Self { target, body, host } = self;
        let url = match target? {
            Target::Url(url) => url,
            Target::Service { name: service, port } => {
                Url::parse(&format!("http://{service}.{}.svc.cluster.local:{port}/$request_uri", scope.name.namespace))
                    .ok()?
            }
        };
        let (upstream, known) = url.upstream("mirror-target", Author::Ingress, Purpose::Mirror, scope).or_else(|| {
            let message = format!(
                "the host at `{}` of `mirror-target` cannot be reached; requests are not mirrored, correct the URL or the problem reported for its host",
                shorten(url.shown())
            );
            scope.report(Reason::InvalidAnnotation, message);
            None
        })?;
        let mirror =
            Mirror { upstream, host: Some(host.unwrap_or(known)), target: Some(url.into_target()), body, share: None };
        Some(Filter::Mirror(mirror.into()))
    }
}

/// Returns the Service that `value`, an annotation in `namespace`, leads to.
fn service_of(value: &str, namespace: &str) -> Option<ObjectName> {
    match Target::parse(value).ok()? {
        Target::Url(url) => url.service(),
        Target::Service { name, port: _ } => Some(ObjectName::new(namespace, &name)),
    }
}

// === impl Target ===

impl Target {
    fn parse(text: &str) -> Result<Self, String> {
        let Some((scheme, rest)) = text.split_once("://") else {
            let (name, port) = text.split_once(':').unwrap_or((text, "80"));
            let port = port.parse().ok().filter(|port| *port != 0).ok_or("its port is not a port number")?;
            Host::parse(name).map_err(|error| error.to_string())?;
            if name.contains('.') {
                return Err("the Service must be in the namespace of the Ingress".into());
            }
            return Ok(Self::Service { name: name.to_owned(), port });
        };
        // In nginx templates the path follows the host, or is left out if it is the default one.
        let (authority, target) = rest.split_at(rest.find(['/', '?', '$']).unwrap_or(rest.len()));
        let target = if target.is_empty() { "$request_uri" } else { target };
        if authority.is_empty() {
            return Err("it has no host of its own".into());
        }
        let slash = if target.starts_with('$') { "/" } else { "" };
        Url::parse(&format!("{scheme}://{authority}{slash}{target}")).map(Self::Url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_are_urls_or_services() {
        for (text, service) in [
            ("https://mirror.test", None),
            ("https://mirror.test$request_uri", None),
            ("https://mirror.test/$request_uri", None),
            ("http://shadow.b.svc.cluster.local:8080/x?y=$arg_z", Some("b/shadow")),
            ("shadow", Some("a/shadow")),
            ("shadow:8080", Some("a/shadow")),
        ] {
            let target = Target::parse(text).expect(text);
            let found = match target {
                Target::Url(url) => url.service(),
                Target::Service { .. } => service_of(text, "a"),
            };
            assert_eq!(found.map(|name| name.to_string()).as_deref(), service, "{text}");
        }
        for text in
            ["", "shadow:x", "shadow:0", "b.shadow", "ftp://a.test", "http://", "http://$host/", "http://u@a.test"]
        {
            assert!(Target::parse(text).is_err(), "{text}");
        }
    }
}
