//! The annotations that are honoured, as a table: one row per key. It reads values and reports nothing.
//!
//! Keys are ingress-nginx's, and mean here what they mean there, where a row does not say otherwise.

use std::time::Duration;

use http::{HeaderName, HeaderValue, uri::Authority};
use rustls_pki_types::ServerName;

use super::{
    super::{
        protocol,
        values::{Read, boolean, bytes, limit, location, networks, number, seconds, status, switch},
    },
    Asked,
    authentication::Layout,
    clients::Wish,
};
use crate::{
    control::change::Kind,
    model::{
        AffinityMode, Balance, Demand, HeaderEdit, HeaderEdits, HeaderText, Origins, Pattern, Retry, Rewrite, SameSite,
        Template,
    },
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
const KEYS: &[Key] = &[
    key(
        "affinity",
        "`cookie` keeps a client with a pod by a cookie, which is set with the first response",
        |value, asked| match value {
            "cookie" => {
                asked.has_affinity = true;
                Ok(())
            }
            _ => Err("`cookie`".into()),
        },
    ),
    key(
        "affinity-mode",
        "`balanced`: new pods take over their share of clients; `persistent`: a client stays for as long as its pod is there",
        |value, asked| {
            asked.affinity.mode = match value {
                "balanced" => AffinityMode::Balanced,
                "persistent" => AffinityMode::Persistent,
                _ => return Err("`balanced` or `persistent`".into()),
            };
            Ok(())
        },
    )
    .default("balanced"),
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
        "auth-always-set-cookie",
        "whether cookies that the service of `auth-url` sets reach clients with errors, too",
        |value, asked| asked.authentication.external.always_set_cookie(value),
    )
    .default("false"),
    key(
        "auth-cache-duration",
        "how long its answers hold, by status: statuses and a time of at most a day, and more of these after commas",
        |value, asked| asked.authentication.external.cache_duration(value),
    )
    .default("200 202 401 5m"),
    key(
        "auth-cache-key",
        "what requests have in common that get one answer, with variables, as `$cookie_session$http_authorization`; without it, or where it is empty, the service is asked about each request. Answers with cookies, or with `Cache-Control` against it, are not kept",
        |value, asked| asked.authentication.external.cache_key(value),
    ),
    key(
        "auth-method",
        "method with which it is asked",
        |value, asked| asked.authentication.external.method(value),
    )
    .default("GET")
    .or_refuse(),
    key(
        "auth-proxy-set-headers",
        "a ConfigMap whose data are fields that it gets",
        |value, asked| asked.authentication.external.proxy_set_headers(value),
    )
    .naming(Kind::ConfigMap)
    .or_refuse(),
    key("auth-realm", "what browsers say when they ask for a password", |value, asked| {
        let quotable = |c: char| !c.is_control();
        if !value.chars().all(quotable) || value.len() > 256 {
            return Err("a text of at most 256 bytes without control characters".into());
        }
        value.clone_into(&mut asked.authentication.basic.realm);
        Ok(())
    })
    .default("Authentication Required"),
    key(
        "auth-request-redirect",
        "`X-Auth-Request-Redirect` that it gets, with variables; without it, path and query of the request",
        |value, asked| asked.authentication.external.request_redirect(value),
    ),
    key(
        "auth-response-headers",
        "fields of its answer that pods get, separated by commas; those of clients never reach pods",
        |value, asked| asked.authentication.external.response_headers(value),
    )
    .or_refuse(),
    key(
        "auth-secret",
        "a Secret with users and hashes of their passwords (bcrypt, SHA-crypt, apr1, MD5-crypt, `{SHA}`, `{SSHA}`), of whom clients must be one. Protects by itself, without `auth-type`, too",
        |value, asked| {
            asked.authentication.basic.secret = Some(value.to_owned());
            Ok(())
        },
    )
    .naming(Kind::Secret)
    .or_refuse(),
    key(
        "auth-secret-type",
        "what it holds: `auth-file`, the text of an htpasswd file under `auth`, or `auth-map`, a hash under the name of each user",
        |value, asked| {
            asked.authentication.basic.layout = match value {
                "auth-file" => Layout::File,
                "auth-map" => Layout::Map,
                _ => return Err("`auth-file` or `auth-map`".into()),
            };
            Ok(())
        },
    )
    .default("auth-file")
    .or_refuse(),
    key(
        "auth-signin",
        "where clients are sent, with 302, that it answers 401, with variables",
        |value, asked| asked.authentication.external.sign_in(value),
    ),
    key(
        "auth-signin-redirect-param",
        "argument of that location that says where they came from, added if it is not there",
        |value, asked| asked.authentication.external.redirect_param(value),
    )
    .default("rd"),
    key(
        "auth-tls-pass-certificate-to-upstream",
        "whether pods get the certificate of the client, as PEM with percent-escapes in `ssl-client-cert`",
        |value, asked| boolean(value, &mut asked.clients.passed),
    )
    .default("false"),
    key(
        "auth-tls-secret",
        "a Secret whose `ca.crt` issues certificates of clients, and whose `ca.crl`, if there is one, revokes them. It is for all paths of the hosts, whichever Ingress has them; where two differ, the older one's. Pods get `ssl-client-verify` (`SUCCESS`, `NONE` or `FAILED:` and why), `ssl-client-subject-dn` and `ssl-client-issuer-dn`",
        |value, asked| {
            asked.clients.secret = Some(value.to_owned()).filter(|value| !value.is_empty());
            asked.clients.secret.is_some().then_some(()).ok_or_else(|| "a Secret".into())
        },
    )
    .naming(Kind::Secret)
    .or_refuse(),
    key(
        "auth-tls-verify-client",
        "`on`: without a valid certificate, 400; `optional`: also without any; `optional_no_ca`: also with one of an unknown issuer; `off`: none is asked for. Over plain HTTP, 403 or a redirect. Without it, `on` if there is `auth-tls-secret`",
        |value, asked| {
            asked.clients.verify = match value {
                "on" => Wish::On(Demand::Required),
                "optional" => Wish::On(Demand::Optional),
                "optional_no_ca" => Wish::On(Demand::OfAnyIssuer),
                "off" => Wish::Off,
                _ => return Err("`on`, `off`, `optional` or `optional_no_ca`".into()),
            };
            Ok(())
        },
    )
    .or_refuse(),
    key(
        "auth-tls-verify-depth",
        "most certificates between that of a client and the one in `ca.crt`; more than 6 are never looked at",
        |value, asked| {
            number(value, 0..=100, &mut asked.clients.depth).ok_or("a number up to 100")?;
            Ok(())
        },
    )
    .default("1")
    .or_refuse(),
    key(
        "auth-type",
        "`basic`: clients must show name and password (RFC 7617), which pods do not get",
        |value, asked| {
            match value {
                "basic" => asked.authentication.basic.is_wanted = true,
                "digest" => return Err("`basic`, with TLS (digest is refused: it needs hashes as good as passwords)".into()),
                _ => return Err("`basic`".into()),
            }
            Ok(())
        },
    )
    .or_refuse(),
    key(
        "auth-url",
        "a service that is asked about each request, without its body: 2xx lets it in, 401 and 403 are passed on, all else, and no answer within 10 s or `proxy-read-timeout`, is 500. A Service as `http://NAME.NAMESPACE.svc.cluster.local/PATH`, what the rules of the same host have for a path as `https://$host/PATH`, or another host under the rules for external names; its certificate is not verified",
        |value, asked| asked.authentication.external.url(value),
    )
    .or_refuse(),
    key(
        "backend-protocol",
        "what pods speak: `HTTP`, `HTTPS`, `GRPC` or `GRPCS`; without it, `appProtocol` of the port decides. Their certificates are verified if `proxy-ssl-verify` says so",
        |value, asked| {
            asked.protocol = protocol::of_annotation(value).ok_or("`HTTP`, `HTTPS`, `GRPC` or `GRPCS`")?;
            Ok(())
        },
    ),
    key(
        "canary",
        "whether the Ingress only takes some of the requests from another one's rules for the same host and path, in its namespace. All else, as TLS and other annotations, is that one's",
        |value, asked| boolean(value, &mut asked.is_canary),
    )
    .default("false")
    .or_refuse(),
    key("canary-by-cookie", "a cookie that says `always` or `never`", |value, asked| {
        asked.canary.cookie = attribute(value)?;
        Ok(())
    }),
    key("canary-by-header", "a field that says `always` or `never`; it goes before the cookie, and that before the weight", |value, asked| {
        asked.canary_header = Some(HeaderName::try_from(value).map_err(|_invalid| "the name of a header field")?);
        Ok(())
    })
    .or_refuse(),
    key("canary-by-header-pattern", "a regular expression for what that field holds somewhere instead", |value, asked| {
        let pattern = Pattern::within(value).map_err(|error| format!("a regular expression ({error})"))?;
        asked.canary_pattern = (!value.is_empty()).then_some(pattern);
        Ok(())
    })
    .or_refuse(),
    key("canary-by-header-value", "what that field says instead; it goes before the expression", |value, asked| {
        let value = HeaderValue::from_str(value).map_err(|_invalid| "the value of a header field")?;
        asked.canary_value = Some(value).filter(|value| !value.is_empty());
        Ok(())
    })
    .or_refuse(),
    key("canary-weight", "how many of `canary-weight-total` requests, drawn at random", |value, asked| {
        number(value, 0..=1_000_000_000, &mut asked.canary.weight).ok_or("a number")?;
        Ok(())
    })
    .default("0"),
    key("canary-weight-total", "see `canary-weight`", |value, asked| {
        number(value, 1..=1_000_000_000, &mut asked.canary.total).ok_or("a number from 1")?;
        Ok(())
    })
    .default("100"),
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
    key("enable-access-log", "whether the access log tells of requests, if there is one", |value, asked| {
        boolean(value, &mut asked.forwarding.logged)
    })
    .default("true"),
    key(
        "enable-cors",
        "whether other sites' pages may use the rules. Only real preflights are answered, other `OPTIONS` reach the pods",
        |value, asked| boolean(value, &mut asked.enable_cors),
    )
    .default("false"),
    key("enable-global-auth", "whether `global-auth-url` of the settings holds where there is no `auth-url`", |value, asked| {
        boolean(value, &mut asked.authentication.takes_global)
    })
    .default("true"),
    key("force-ssl-redirect", "whether hosts without TLS are redirected to it, too", |value, asked| {
        boolean(value, &mut asked.force_ssl_redirect)
    })
    .default("false"),
    key("limit-allowlist", "the same as `limit-whitelist`", |value, asked| networks(value, &mut asked.limits.exempt)).or_refuse(),
    key(
        "limit-burst-multiplier",
        "as many times `limit-rps`, or `limit-rpm`, may come before their time; from 1 to 1000",
        |value, asked| {
            number(value, 1..=1000, &mut asked.limits.burst_multiplier).ok_or("a number from 1 to 1000")?;
            Ok(())
        },
    )
    .default("5")
    .or_refuse(),
    key(
        "limit-connections",
        "requests that one client may have in flight at one time, on each node; `0` for any. See [clients.md](clients.md)",
        |value, asked| count(value, &mut asked.limits.in_flight),
    )
    .default("0")
    .or_refuse(),
    key("limit-rpm", "requests that one client may make per minute, on each node; `0` for any", |value, asked| {
        count(value, &mut asked.limits.per_minute)
    })
    .default("0")
    .or_refuse(),
    key("limit-rps", "the same per second", |value, asked| count(value, &mut asked.limits.per_second))
        .default("0")
        .or_refuse(),
    key("limit-whitelist", "networks whose clients have no limits, separated by commas", |value, asked| {
        networks(value, &mut asked.limits.exempt)
    })
    .or_refuse(),
    key("load-balance", "how pods share requests: `round_robin`, `ewma` (the one of two that is expected to answer sooner) or, ours alone, `least_request` (the less busy of two)", |value, asked| {
        asked.forwarding.balance = balance(value)?;
        Ok(())
    })
    .default("round_robin"),
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
        "proxy-next-upstream",
        "when a request goes to another pod: `error`, `timeout`, `invalid_header`, `http_500`, `http_502`, `http_503`, `http_504`, `http_403`, `http_404`, `http_429`, with `non_idempotent` also those that may have had an effect; `off` for never. Only while nothing of its body has been sent",
        |value, asked| retry_when(value, &mut asked.forwarding.retry),
    )
    .default("error"),
    key("proxy-next-upstream-timeout", "no other pod after this time, in seconds; `0` for any", |value, asked| {
        retry_within(value, &mut asked.forwarding.retry)
    })
    .default("0"),
    key("proxy-next-upstream-tries", "pods tried in all, up to 10; `0` for 10", |value, asked| {
        retry_tries(value, &mut asked.forwarding.retry)
    })
    .default("3"),
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
        "proxy-ssl-name",
        "name that certificates of pods must have, and that is sent as server name; without it, that of the service, `NAME.NAMESPACE.svc`, or its external name",
        |value, asked| {
            let name = ServerName::try_from(value.to_owned()).map_err(|_invalid| "a host, as `pod.a.test`")?;
            asked.upstream_tls.name = Some(name);
            Ok(())
        },
    )
    .or_refuse(),
    key(
        "proxy-ssl-secret",
        "a Secret for TLS with pods: `ca.crt` to verify their certificates with, `tls.crt` and `tls.key` to show to them, or all three",
        |value, asked| {
            asked.upstream_tls.secret = Some(value.to_owned()).filter(|value| !value.is_empty());
            asked.upstream_tls.secret.is_some().then_some(()).ok_or_else(|| "a Secret".into())
        },
    )
    .naming(Kind::Secret)
    .or_refuse(),
    key("proxy-ssl-server-name", "whether pods are sent a server name: `on` or `off`", |value, asked| {
        switch(value, &mut asked.upstream_tls.sends_name)
    })
    .default("off"),
    key(
        "proxy-ssl-verify",
        "whether certificates of pods are verified, `on` or `off`. A pod that shows another gets no request",
        |value, asked| switch(value, &mut asked.upstream_tls.verify),
    )
    .default("off")
    .or_refuse(),
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
    key(
        "satisfy",
        "`all`: clients must come from where they may and show who they are; `any`: one of these is enough",
        |value, asked| {
            asked.authentication.satisfy_any = match value {
                "all" => false,
                "any" => true,
                _ => return Err("`all` or `any`".into()),
            };
            Ok(())
        },
    )
    .default("all"),
    key(
        "service-upstream",
        "whether requests go to the address of the Service, so that the cluster chooses the pod",
        |value, asked| boolean(value, &mut asked.through_service),
    )
    .default("false"),
    key(
        "session-cookie-change-on-failure",
        "whether a client stays with the pod that it was sent to because its own failed; for `persistent` alone",
        |value, asked| boolean(value, &mut asked.affinity.follows_failure),
    )
    .default("false"),
    key("session-cookie-domain", "`Domain` of the cookie of `affinity`", |value, asked| {
        asked.affinity.cookie.domain = attribute(value)?;
        Ok(())
    }),
    key("session-cookie-expires", "the same as `session-cookie-max-age`, which goes before it", |value, asked| {
        asked.cookie_expires = Some(age(value)?);
        Ok(())
    }),
    key("session-cookie-max-age", "how long the cookie lasts, in seconds; without it, as long as the browser runs", |value, asked| {
        asked.affinity.cookie.max_age = Some(age(value)?);
        Ok(())
    }),
    key("session-cookie-name", "its name", |value, asked| {
        let is_token = !value.is_empty() && HeaderName::try_from(value).is_ok();
        asked.affinity.cookie.name = Some(value).filter(|_| is_token).ok_or("letters, digits and `-_.`")?.into();
        Ok(())
    })
    .default("INGRESSCOOKIE"),
    key("session-cookie-path", "its `Path`; without it, that of the rule, or `/` where that is a regular expression", |value, asked| {
        asked.affinity.cookie.path = attribute(value)?;
        Ok(())
    }),
    key("session-cookie-samesite", "its `SameSite`: `Strict`, `Lax` or `None`", |value, asked| {
        asked.affinity.cookie.same_site = Some(match value {
            "Strict" => SameSite::Strict,
            "Lax" => SameSite::Lax,
            "None" => SameSite::None,
            _ => return Err("`Strict`, `Lax` or `None`".into()),
        });
        Ok(())
    }),
    key("session-cookie-secure", "whether it is for TLS alone; without it, as the request came", |value, asked| {
        let mut secure = false;
        boolean(value, &mut secure)?;
        asked.affinity.cookie.secure = Some(secure);
        Ok(())
    }),
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
    key(
        "upstream-hash-by",
        "text with variables, as `$request_uri`; requests with the same text go to the same pod, as long as it is there. It goes before `load-balance`",
        |value, asked| {
            let template = Template::parse(value).map_err(|error| format!("a text with variables ({error})"))?;
            asked.hash_by = (!value.is_empty()).then_some(template);
            Ok(())
        },
    ),
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

/// A limit of requests; 0 is none.
fn count(value: &str, field: &mut u32) -> Read {
    number(value, 0..=1_000_000, field).ok_or_else(|| "a number up to 1000000".into())
}

/// `round_robin`, `ewma` or `least_request`.
pub(in crate::control::translate) fn balance(value: &str) -> Read<Balance> {
    Ok(match value {
        "round_robin" => Balance::RoundRobin,
        "ewma" => Balance::Ewma,
        "least_request" => Balance::LeastRequest,
        _ => return Err("`round_robin`, `ewma` or `least_request`".into()),
    })
}

/// What `proxy-next-upstream` lists.
pub(in crate::control::translate) fn retry_when(value: &str, retry: &mut Retry) -> Read {
    let mut wanted = Retry { error: false, statuses: Vec::new(), ..retry.clone() };
    (wanted.timeout, wanted.invalid_header) = (false, false);
    for word in value.split_whitespace() {
        match word {
            "error" => wanted.error = true,
            "timeout" => wanted.timeout = true,
            "invalid_header" => wanted.invalid_header = true,
            "non_idempotent" => wanted.non_idempotent = true,
            "off" => {}
            _ => {
                let status = word.strip_prefix("http_").and_then(|status| status.parse().ok());
                let known = status.filter(|status| [403, 404, 429, 500, 502, 503, 504].contains(status));
                wanted.statuses.push(known.ok_or("words as `error timeout http_502`, or `off`")?);
            }
        }
    }
    if value.is_empty() {
        return Err("words as `error timeout http_502`, or `off`".into());
    }
    *retry = wanted;
    Ok(())
}

/// Seconds after which no other pod is tried.
pub(in crate::control::translate) fn retry_within(value: &str, retry: &mut Retry) -> Read {
    let mut seconds = 0;
    number(value, 0..=604_800, &mut seconds).ok_or("a number of seconds up to 604800")?;
    retry.within = Some(Duration::from_secs(seconds)).filter(|within| !within.is_zero());
    Ok(())
}

/// How many pods are tried.
pub(in crate::control::translate) fn retry_tries(value: &str, retry: &mut Retry) -> Read {
    let mut tries = 0;
    number(value, 0..=1000, &mut tries).ok_or("a number up to 10")?;
    retry.tries = if tries == 0 { Retry::TRIES_MAX } else { tries.min(Retry::TRIES_MAX) };
    Ok(())
}

/// The value of a cookie's attribute.
fn attribute(value: &str) -> Read<Option<Box<str>>> {
    let is_value = value.bytes().all(|b| b.is_ascii_graphic() && b != b';');
    if is_value { Ok(Some(value.into()).filter(|_| !value.is_empty())) } else { Err("text without `;`".into()) }
}

fn age(value: &str) -> Read<u64> {
    let mut seconds = 0;
    number(value, 0..=u64::from(u32::MAX), &mut seconds).ok_or("a number of seconds up to 4294967295")?;
    Ok(seconds)
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
        for Key { name, default, meaning, names: _, otherwise, read: _ } in KEYS {
            let default = if default.is_empty() { "none".to_owned() } else { format!("`{default}`") };
            let mark = if *otherwise == Otherwise::Refuse { " *" } else { "" };
            page += &format!("| `{name}`{mark} | {default} | {meaning} |\n");
        }
        expect_test::expect_file!["../../../../../docs/annotations.md"].assert_eq(&page);
    }

    #[test]
    fn values_are_read_or_refused() {
        for (key, good, bad) in [
            ("affinity", "cookie", "ip"),
            ("affinity-mode", "persistent", "x"),
            ("allowlist-source-range", "10.0.0.0/8, 192.0.2.1", "10.0.0.0/99"),
            ("app-root", "/app", "app"),
            ("auth-always-set-cookie", "true", "1"),
            ("auth-cache-duration", "200 10s, 401 1m", "200 x"),
            ("auth-cache-key", "$http_authorization", "$nope"),
            ("auth-method", "POST", "BREW"),
            ("auth-request-redirect", "https://a.test$request_uri", "$1"),
            ("auth-response-headers", "X-User, X-Email", "X-User, Host"),
            ("auth-signin", "https://$host/start", "start"),
            ("auth-signin-redirect-param", "back", "a&b"),
            ("auth-url", "https://$host/oauth2/auth", "http://$http_x/"),
            ("enable-global-auth", "false", "off"),
            ("auth-realm", "Admins only", "a\u{7}"),
            ("auth-secret-type", "auth-map", "auth-table"),
            ("auth-type", "basic", "digest"),
            ("auth-tls-pass-certificate-to-upstream", "true", "on"),
            ("auth-tls-secret", "default/clients", ""),
            ("auth-tls-verify-client", "optional", "true"),
            ("auth-tls-verify-depth", "2", "-1"),
            ("backend-protocol", "https", "gopher"),
            ("canary", "true", "yes"),
            ("canary-by-cookie", "c", "a;b"),
            ("canary-by-header", "X-Canary", "a b"),
            ("canary-by-header-pattern", "^eu", "("),
            ("canary-by-header-value", "eu", "\u{1}"),
            ("canary-weight", "10", "10%"),
            ("canary-weight-total", "1000", "0"),
            ("cors-allow-credentials", "false", "no"),
            ("cors-allow-headers", "X-A, X-B", "X A"),
            ("cors-allow-methods", "GET", "GET;"),
            ("cors-allow-origin", "https://a.test", "a.test"),
            ("cors-expose-headers", "*", "\u{e9}"),
            ("cors-max-age", "0", "-1"),
            ("denylist-source-range", "::/0", "x"),
            ("load-balance", "ewma", "random"),
            ("enable-access-log", "false", "no"),
            ("permanent-redirect", "https://b.test$request_uri", "https://b.test$nope"),
            ("permanent-redirect-code", "308", "200"),
            ("proxy-body-size", "8m", "8 megabytes"),
            ("proxy-buffer-size", "16k", "2m"),
            ("proxy-connect-timeout", "1", "0"),
            ("proxy-next-upstream", "error timeout http_502 non_idempotent", "error http_200"),
            ("proxy-next-upstream", "off", ""),
            ("proxy-next-upstream-timeout", "5", "5s"),
            ("proxy-next-upstream-tries", "0", "many"),
            ("proxy-read-timeout", "3600", "1h"),
            ("proxy-send-timeout", "3600s", ""),
            ("proxy-ssl-name", "pod.a.test", "https://a.test"),
            ("proxy-ssl-secret", "default/pods", ""),
            ("proxy-ssl-server-name", "on", "true"),
            ("proxy-ssl-verify", "on", "true"),
            ("request-headers", "X-A: 1\n-X-B", "Host: b"),
            ("response-headers", "X-A: 1", "X-A"),
            ("rewrite-target", "/$2", "https://b.test/"),
            ("satisfy", "any", "some"),
            ("service-upstream", "true", "yes"),
            ("session-cookie-change-on-failure", "true", "1"),
            ("session-cookie-domain", "a.test", "a;b"),
            ("session-cookie-expires", "3600", "1h"),
            ("session-cookie-max-age", "3600", "-1"),
            ("session-cookie-name", "route", "a b"),
            ("session-cookie-path", "/app", "/a; Secure"),
            ("session-cookie-samesite", "Lax", "lax"),
            ("session-cookie-secure", "true", "on"),
            ("temporal-redirect", "/x", "javascript:x"),
            ("temporal-redirect-code", "307", "30x"),
            ("upstream-hash-by", "$request_uri", "$nope"),
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
