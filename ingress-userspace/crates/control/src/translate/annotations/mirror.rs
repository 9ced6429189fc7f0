//! Reads the destination of mirrored requests, and finds its upstream.

use std::sync::Arc;

use http::{HeaderValue, uri::Authority};

use super::{
    super::{
        destination::{Asker, Purpose},
        values::{Read, switch},
    },
    Context,
    url::Author,
};
use crate::{
    change::ObjectName,
    outcome::{ObjectRef, Reason},
    translate::{
        parsed_annotations::{ParsedMirror, Target, Url},
        text::shorten,
    },
};
use ingress_model::{Filter, Host, Mirror};

// === impl ParsedMirror ===

/// Each method reads the value of one annotation.
impl ParsedMirror {
    pub(super) fn target(&mut self, value: &str) -> Read {
        let target = Target::parse(value).map_err(|why| {
            format!("a URL as `https://mirror.test$request_uri`, or a Service as `shadow:80` ({why})")
        })?;
        self.target = Some(target);
        Ok(())
    }

    pub(super) fn body(&mut self, value: &str) -> Read {
        switch(value, &mut self.body)
    }

    pub(super) fn host(&mut self, value: &str) -> Read {
        let authority: Authority = value.parse().map_err(|_invalid| "a host, as `a.test` or `a.test:8080`")?;
        if authority.as_str().contains('@') {
            return Err("a host, without a user".into());
        }
        self.host = HeaderValue::from_str(authority.as_str()).ok();
        Ok(())
    }

    /// Returns the filter for rules of the Ingress `name`, if the mirror may be reached. Problems are reported on
    /// `object`. A mirror protects nothing, so the rules are served without it.
    pub(super) fn filter(self, name: &ObjectName, object: &ObjectRef, context: &mut Context<'_>) -> Option<Filter> {
        let Self { target, body, host } = self;
        let url = match target? {
            Target::Url(url) => url,
            Target::Service { name: service, port } => {
                Url::parse(&format!("http://{service}.{}.svc.cluster.local:{port}/$request_uri", name.namespace))
                    .ok()?
            }
        };
        let asker = Asker { purpose: Purpose::Mirror, namespace: Arc::clone(&name.namespace) };
        let (upstream, known) = url.upstream("mirror-target", Author::Ingress, &asker, object, context).or_else(|| {
            let message = format!(
                "the host at `{}` of `mirror-target` cannot be reached; requests are not mirrored, correct the URL or the problem reported for its host",
                shorten(url.shown())
            );
            context.report(object, Reason::InvalidAnnotation, message);
            None
        })?;
        let mirror = Mirror { upstream, host: host.unwrap_or(known), target: url.into_target(), body };
        Some(Filter::Mirror(mirror.into()))
    }
}

/// Returns the Service that `value`, an annotation in `namespace`, leads to.
pub(super) fn service_of(value: &str, namespace: &str) -> Option<ObjectName> {
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
