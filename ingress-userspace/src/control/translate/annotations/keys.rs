//! The annotations that are honoured, as a table: one row per key. It reads values and reports nothing.
//!
//! Keys are ingress-nginx's, and mean here what they mean there, where a row does not say otherwise.

use http::{HeaderName, HeaderValue, uri::Authority};

use super::{
    super::{
        protocol,
        values::{Read, boolean, bytes, limit, location, networks, number, seconds, status},
    },
    Asked,
};
use crate::{
    control::change::Kind,
    model::{HeaderEdit, HeaderEdits, HeaderText, Origins, Rewrite},
};

/// One key.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    /// What stands where the key is not set, as it would be written; empty for nothing.
    pub(super) default: &'static str,
    /// For people: what it does, with its unit and limits.
    pub(super) meaning: &'static str,
    /// Of what kind the object is that its value names, by itself or as `namespace/name`; it must be in the Ingress' namespace.
    pub(super) names: Option<Kind>,
    /// What becomes of rules whose value cannot be read.
    pub(super) otherwise: Otherwise,
    /// Notes the value, or tells what to write instead.
    pub(super) read: fn(&str, &mut Asked) -> Read,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Otherwise {
    /// They are served as if the key were not there.
    Default,
    /// They answer 503: to serve them would be unsafe, or lead to somewhere else than was meant.
    Refuse,
}

/// A row for a key without a default that names no object.
const fn key(name: &'static str, meaning: &'static str, read: fn(&str, &mut Asked) -> Read) -> Key {
    Key { name, default: "", meaning, names: None, otherwise: Otherwise::Default, read }
}

impl Key {
    const fn default(self, default: &'static str) -> Self {
        Self { default, ..self }
    }

    const fn or_refuse(self) -> Self {
        Self { otherwise: Otherwise::Refuse, ..self }
    }

    const fn naming(self, kind: Kind) -> Self {
        Self { names: Some(kind), ..self }
    }
}

/// Sorted by name.
const KEYS: [Key; 30] = [
    key(
        "allowlist-source-range",
        "networks that may come in, separated by commas; all others get 403",
        |value, asked| networks(value, &mut asked.access.allow),
    )
    .or_refuse(),
    key("app-root", "where a request for `/` is redirected to, with 302", |value, asked| {
        asked.app_root = Some(location(value)?);
        Ok(())
    })
    .or_refuse(),
    key(
        "backend-protocol",
        "what pods speak: `HTTP`, `HTTPS` (their certificate is not verified) or `GRPC`; without it, `appProtocol` of the port decides",
        |value, asked| {
            asked.protocol = protocol::of_annotation(value).ok_or("`HTTP`, `HTTPS` or `GRPC`")?;
            Ok(())
        },
    ),
    key("cors-allow-credentials", "whether browsers may send cookies and the like", |value, asked| {
        boolean(value, &mut asked.cors.credentials)
    })
    .default("true"),
    key("cors-allow-headers", "fields that browsers may send", |value, asked| {
        names(value, &mut asked.cors.headers)
    })
    .default("DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization"),
    key("cors-allow-methods", "methods that browsers may use", |value, asked| {
        names(value, &mut asked.cors.methods)
    })
    .default("GET, PUT, POST, DELETE, PATCH, OPTIONS"),
    key(
        "cors-allow-origin",
        "origins that may ask, separated by commas; `https://*.a.test` stands for one label more, `*` for all",
        |value, asked| {
            asked.cors.origins =
                Origins::parse(value).map_err(|error| format!("origins, separated by commas ({error})"))?;
            Ok(())
        },
    )
    .default("*")
    .or_refuse(),
    key("cors-expose-headers", "fields that browsers may show to scripts", |value, asked| {
        let mut fields = HeaderValue::from_static("");
        names(value, &mut fields)?;
        asked.cors.expose = Some(fields).filter(|fields| !fields.is_empty());
        Ok(())
    }),
    key("cors-max-age", "how long browsers may keep the answer to a preflight, in seconds", |value, asked| {
        number(value, 0..=31_536_000, &mut asked.cors.max_age).ok_or("a number of seconds up to 31536000")?;
        Ok(())
    })
    .default("1728000"),
    key(
        "custom-headers",
        "a ConfigMap whose data are fields that every response gets; `global-allowed-response-headers` may limit them",
        |value, asked| {
            asked.custom_headers = Some(value.to_owned());
            Ok(())
        },
    )
    .naming(Kind::ConfigMap)
    .or_refuse(),
    key(
        "denylist-source-range",
        "networks that get 403, separated by commas, even if they may come in otherwise",
        |value, asked| networks(value, &mut asked.access.deny),
    )
    .or_refuse(),
    key(
        "enable-cors",
        "whether other sites' pages may use the rules. Only real preflights are answered, other `OPTIONS` reach the pods",
        |value, asked| boolean(value, &mut asked.enable_cors),
    )
    .default("false"),
    key("force-ssl-redirect", "whether hosts without TLS are redirected to it, too", |value, asked| {
        boolean(value, &mut asked.force_ssl_redirect)
    })
    .default("false"),
    key("permanent-redirect", "where all requests are redirected to, instead of to a service", |value, asked| {
        asked.permanent_redirect = Some(location(value)?);
        Ok(())
    })
    .or_refuse(),
    key("permanent-redirect-code", "status of `permanent-redirect`", |value, asked| {
        status(value, &mut asked.permanent_status)
    })
    .default("301"),
    key("proxy-body-size", "longest body of a request, else 413; `0` for any", |value, asked| {
        limit(value, &mut asked.forwarding.body_max)
    })
    .default("0"),
    key("proxy-buffer-size", "longest head of a response, else 502; from `1k` to `1m`", |value, asked| {
        let max = usize::try_from(bytes(value)?).unwrap_or(usize::MAX);
        if !(1 << 10..=1 << 20).contains(&max) {
            return Err("from `1k` to `1m`".into());
        }
        asked.forwarding.response_head_max = max;
        Ok(())
    })
    .default("64k"),
    key("proxy-connect-timeout", "time to open a connection to a pod, in seconds", |value, asked| {
        seconds(value, &mut asked.forwarding.connect_timeout)
    })
    .default("5"),
    key(
        "proxy-read-timeout",
        "longest silence of a pod before and within a response, in seconds",
        |value, asked| seconds(value, &mut asked.forwarding.read_timeout),
    )
    .default("60"),
    key("proxy-send-timeout", "longest time that a pod takes no byte of a request, in seconds", |value, asked| {
        seconds(value, &mut asked.forwarding.send_timeout)
    })
    .default("60"),
    key(
        "request-headers",
        "changes of the fields that pods get, one a line: `Name: value`, `+Name: value` for one more, `-Name` for none. Ours alone",
        |value, asked| edits(value, &mut asked.request_headers),
    )
    .or_refuse(),
    key("response-headers", "the same for the fields that clients get. Ours alone", |value, asked| {
        edits(value, &mut asked.response_headers)
    })
    .or_refuse(),
    key(
        "rewrite-target",
        "path that pods get instead of the client's; `$1` … `$9` are groups of the rule's path, which is a regular expression then. The query stays",
        |value, asked| {
            asked.rewrite_target = Some(Rewrite::parse(value).map_err(|error| format!("a path ({error})"))?);
            Ok(())
        },
    )
    .or_refuse(),
    key("ssl-redirect", "whether hosts with TLS are redirected to it", |value, asked| {
        boolean(value, &mut asked.ssl_redirect)
    })
    .default("true"),
    key("temporal-redirect", "as `permanent-redirect`, with another status; it goes before that", |value, asked| {
        asked.temporal_redirect = Some(location(value)?);
        Ok(())
    })
    .or_refuse(),
    key("temporal-redirect-code", "status of `temporal-redirect`", |value, asked| {
        status(value, &mut asked.temporal_status)
    })
    .default("302"),
    key("upstream-vhost", "`Host` that pods get instead of the client's", |value, asked| {
        let authority: Authority = value.parse().map_err(|_invalid| "a host, as `a.test` or `a.test:8080`")?;
        if authority.as_str().contains('@') {
            return Err("a host, without a user".into());
        }
        asked.upstream_host = HeaderValue::from_str(authority.as_str()).ok();
        Ok(())
    })
    .or_refuse(),
    key(
        "use-regex",
        "whether paths are regular expressions, matched from the path's begin whatever the case. Of this Ingress alone, and without look-around",
        |value, asked| boolean(value, &mut asked.use_regex),
    )
    .default("false")
    .or_refuse(),
    key("whitelist-source-range", "the same as `allowlist-source-range`", |value, asked| {
        networks(value, &mut asked.access.allow)
    })
    .or_refuse(),
    key("x-forwarded-prefix", "`X-Forwarded-Prefix` that pods get", |value, asked| {
        let text = HeaderValue::from_str(value).map_err(|_invalid| "a path")?;
        let name = HeaderName::from_static("x-forwarded-prefix");
        asked.request_headers.push(HeaderEdit::Set(name, HeaderText::Fixed(text)));
        Ok(())
    }),
];

pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.binary_search_by(|key| key.name.cmp(name)).ok().map(|at| &KEYS[at])
}

/// Names of fields or methods, separated by commas, as they are sent on.
fn names(value: &str, field: &mut HeaderValue) -> Read {
    let is_token = |name: &str| name.is_empty() || name == "*" || HeaderName::try_from(name).is_ok();
    if !value.split(',').map(str::trim).all(is_token) {
        return Err("names, separated by commas".into());
    }
    *field = HeaderValue::from_str(value).map_err(|_invalid| "names, separated by commas")?;
    Ok(())
}

fn edits(value: &str, field: &mut HeaderEdits) -> Read {
    let edits = HeaderEdits::parse(value).map_err(|error| format!("a change a line, as `Name: value` ({error})"))?;
    field.extend(edits);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_its_defaults_are_those_that_apply() {
        assert!(KEYS.is_sorted_by_key(|key| key.name));
        for Key { name, default, read, .. } in KEYS.iter().filter(|key| !key.default.is_empty()) {
            let mut asked = Asked::default();
            assert_eq!(read(default, &mut asked), Ok(()), "{name}");
            assert_eq!(asked, Asked::default(), "{name}");
        }
    }

    /// `UPDATE_EXPECT=1` rewrites the page.
    #[test]
    fn the_page_of_annotations_lists_the_table() {
        let mut page = "# Annotations\n\n\
            What an Ingress asks for by annotations. Each is written with the prefix `nginx.ingress.kubernetes.io/`, or with\n\
            `xdp-ingress.io/`, which goes before it. Where a value cannot be read, an event says what to write, and what\n\
            applies is the default or, for keys marked *, that the rules answer 503: without them they would be unsafe, or\n\
            lead to somewhere else than was meant. The defaults of some can be set for all Ingresses: see\n\
            [settings](settings.md).\n\n\
            | annotation | default | meaning |\n|---|---|---|\n"
            .to_owned();
        for Key { name, default, meaning, names: _, otherwise, read: _ } in &KEYS {
            let default = if default.is_empty() { "none".to_owned() } else { format!("`{default}`") };
            let mark = if *otherwise == Otherwise::Refuse { " *" } else { "" };
            page += &format!("| `{name}`{mark} | {default} | {meaning} |\n");
        }
        expect_test::expect_file!["../../../../../docs/annotations.md"].assert_eq(&page);
    }

    #[test]
    fn values_are_read_or_refused() {
        for (key, good, bad) in [
            ("allowlist-source-range", "10.0.0.0/8, 192.0.2.1", "10.0.0.0/99"),
            ("app-root", "/app", "app"),
            ("backend-protocol", "https", "gopher"),
            ("cors-allow-credentials", "false", "no"),
            ("cors-allow-headers", "X-A, X-B", "X A"),
            ("cors-allow-methods", "GET", "GET;"),
            ("cors-allow-origin", "https://a.test", "a.test"),
            ("cors-expose-headers", "*", "\u{e9}"),
            ("cors-max-age", "0", "-1"),
            ("denylist-source-range", "::/0", "x"),
            ("permanent-redirect", "https://b.test$request_uri", "https://b.test$nope"),
            ("permanent-redirect-code", "308", "200"),
            ("proxy-body-size", "8m", "8 megabytes"),
            ("proxy-buffer-size", "16k", "2m"),
            ("proxy-connect-timeout", "1", "0"),
            ("proxy-read-timeout", "3600", "1h"),
            ("proxy-send-timeout", "3600s", ""),
            ("request-headers", "X-A: 1\n-X-B", "Host: b"),
            ("response-headers", "X-A: 1", "X-A"),
            ("rewrite-target", "/$2", "https://b.test/"),
            ("temporal-redirect", "/x", "javascript:x"),
            ("temporal-redirect-code", "307", "30x"),
            ("upstream-vhost", "b.test:8080", "u@b.test"),
            ("use-regex", "true", "yes"),
            ("whitelist-source-range", "::1", "::x"),
            ("x-forwarded-prefix", "/app", "\u{1}"),
        ] {
            let Key { read, .. } = find(key).expect(key);
            let mut asked = Asked::default();
            assert_eq!(read(good, &mut asked), Ok(()), "{key}: {good}");
            assert_ne!(asked, Asked::default(), "{key}: {good} changes nothing");
            let mut asked = Asked::default();
            assert!(read(bad, &mut asked).is_err(), "{key}: {bad}");
            assert_eq!(asked, Asked::default(), "{key}: {bad} changes something");
        }
    }
}
