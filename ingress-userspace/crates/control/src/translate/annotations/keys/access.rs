//! Access control and rate limits.

use super::super::super::values::{Read, boolean, limit_scope, networks, number, secret};
use crate::{
    change::Kind,
    translate::{
        annotations::row::{Key, key},
        parsed_annotations::{Layout, Wish},
    },
};
use ingress_model::Demand;

/// Sorted by name.
pub(super) const KEYS: &[Key] = &[
    key(
        "allowlist-source-range",
        "networks whose requests are allowed, separated by commas; all others get 403",
        |value, parsed| networks(value, &mut parsed.access.allow),
    )
    .or_refuse(),
    key(
        "auth-always-set-cookie",
        "whether cookies that the service of `auth-url` sets reach clients with errors, too",
        |value, parsed| parsed.authentication.ext_authz.always_set_cookie(value),
    )
    .default("false"),
    key(
        "auth-cache-duration",
        "how long answers of the service of `auth-url` are cached, by status: statuses and a time of at most a day, \
         and more of these after commas",
        |value, parsed| parsed.authentication.ext_authz.cache_duration(value),
    )
    .default("200 202 401 5m"),
    key(
        "auth-cache-key",
        "cache key: requests with the same value share one cached answer, with variables, as \
         `$cookie_session$http_authorization`; without it, or where it is empty, the service is asked about each \
         request. Answers with cookies, or with `Cache-Control` against it, are not kept",
        |value, parsed| parsed.authentication.ext_authz.cache_key(value),
    ),
    key("auth-method", "method of requests to the service of `auth-url`", |value, parsed| {
        parsed.authentication.ext_authz.method(value)
    })
    .default("GET")
    .or_refuse(),
    key(
        "auth-proxy-set-headers",
        "a ConfigMap whose data are header fields for the service of `auth-url`",
        |value, parsed| parsed.authentication.ext_authz.proxy_set_headers(value),
    )
    .naming(Kind::ConfigMap)
    .or_refuse(),
    key("auth-realm", "the realm that browsers show when they ask for a password", |value, parsed| {
        let quotable = |c: char| !c.is_control();
        if !value.chars().all(quotable) || value.len() > 256 {
            return Err("a text of at most 256 bytes without control characters".into());
        }
        value.clone_into(&mut parsed.authentication.basic.realm);
        Ok(())
    })
    .default("Authentication Required"),
    key(
        "auth-request-redirect",
        "`X-Auth-Request-Redirect` that the service of `auth-url` gets, with variables; without it, path and query of \
         the request",
        |value, parsed| parsed.authentication.ext_authz.request_redirect(value),
    ),
    key(
        "auth-response-headers",
        "fields of the answer from the service of `auth-url` that pods get, separated by commas; those of clients \
         never reach pods",
        |value, parsed| parsed.authentication.ext_authz.response_headers(value),
    )
    .or_refuse(),
    key(
        "auth-secret",
        "a Secret with users and hashes of their passwords (bcrypt, SHA-crypt, apr1, MD5-crypt, `{SHA}`, `{SSHA}`), \
         as one of whom clients must authenticate. It applies without `auth-type`, too",
        |value, parsed| {
            parsed.authentication.basic.secret = Some(value.to_owned());
            Ok(())
        },
    )
    .naming(Kind::Secret)
    .or_refuse(),
    key(
        "auth-secret-type",
        "contents of `auth-secret`: `auth-file`, the text of an htpasswd file under `auth`, or `auth-map`, a hash \
         under the name of each user",
        |value, parsed| {
            parsed.authentication.basic.layout = match value {
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
        "location to which clients are redirected, with 302, when the service of `auth-url` answers 401; with \
         variables",
        |value, parsed| parsed.authentication.ext_authz.sign_in(value),
    ),
    key(
        "auth-signin-redirect-param",
        "query argument of `auth-signin` with the URL that the client asked for, added if it is missing",
        |value, parsed| parsed.authentication.ext_authz.redirect_param(value),
    )
    .default("rd"),
    key(
        "auth-tls-pass-certificate-to-upstream",
        "whether pods get the certificate of the client, as PEM with percent-escapes in `ssl-client-cert`",
        |value, parsed| boolean(value, &mut parsed.clients.passed),
    )
    .default("false"),
    key(
        "auth-tls-secret",
        "a Secret whose `ca.crt` issues certificates of clients, and whose `ca.crl`, if there is one, revokes them. It \
         is for all paths of the hosts, whichever Ingress has them; where two differ, the older one's. Pods get \
         `ssl-client-verify` (`SUCCESS`, `NONE` or `FAILED:` and why), `ssl-client-subject-dn` and \
         `ssl-client-issuer-dn`",
        |value, parsed| secret(value, &mut parsed.clients.secret),
    )
    .naming(Kind::Secret)
    .or_refuse(),
    key(
        "auth-tls-verify-client",
        "`on`: without a valid certificate, 400; `optional`: also without any; `optional_no_ca`: also with one of an \
         unknown issuer; `off`: none is asked for. Over plain HTTP, 403 or a redirect. Without it, `on` if there is \
         `auth-tls-secret`",
        |value, parsed| {
            parsed.clients.verify = match value {
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
        |value, parsed| {
            number(value, 0..=100, &mut parsed.clients.depth).ok_or("a number up to 100")?;
            Ok(())
        },
    )
    .default("1")
    .or_refuse(),
    key(
        "auth-type",
        "`basic`: clients must show name and password (RFC 7617), which pods do not get",
        |value, parsed| {
            match value {
                "basic" => parsed.authentication.basic.is_wanted = true,
                "digest" => {
                    return Err("`basic`, with TLS (digest is refused: it needs hashes as good as passwords)".into());
                }
                _ => return Err("`basic`".into()),
            }
            Ok(())
        },
    )
    .or_refuse(),
    key(
        "auth-url",
        "a service that is asked about each request, without its body: 2xx lets it in, 401 and 403 are passed on, all \
         else, and no answer within 10 s or `proxy-read-timeout`, is 500. A Service as \
         `http://NAME.NAMESPACE.svc.cluster.local/PATH`, of another namespace only if a \
         ReferenceGrant there or `--allow-cross-namespace-services` allows it, what the rules of the same host have \
         for a path as `https://$host/PATH`, or another host under the rules for external names; its certificate is \
         not verified",
        |value, parsed| parsed.authentication.ext_authz.url(value),
    )
    .or_refuse(),
    key(
        "denylist-source-range",
        "networks that get 403, separated by commas, even if they are allowed otherwise",
        |value, parsed| networks(value, &mut parsed.access.deny),
    )
    .or_refuse(),
    key(
        "enable-global-auth",
        "whether `global-auth-url` of the settings holds where there is no `auth-url`",
        |value, parsed| boolean(value, &mut parsed.authentication.takes_global),
    )
    .default("true"),
    key(
        "jwt-audience",
        "audiences, separated by commas, of which the token must be for one (`aud`); without it, any",
        |value, parsed| parsed.authentication.token.audiences(value),
    )
    .or_refuse(),
    key(
        "jwt-claims-to-headers",
        "claims that pods get as fields, as `sub=X-User, realm_access.roles=X-Roles`; those of clients never reach \
         pods",
        |value, parsed| parsed.authentication.token.passed(value),
    )
    .or_refuse(),
    key("jwt-cookie", "the cookie that holds the token, instead of `Authorization: Bearer`", |value, parsed| {
        parsed.authentication.token.cookie(value)
    })
    .or_refuse(),
    key(
        "jwt-header",
        "the field that holds the token, by itself, instead of `Authorization: Bearer`",
        |value, parsed| parsed.authentication.token.header(value),
    )
    .or_refuse(),
    key(
        "jwt-issuer",
        "issuers, separated by commas, of which the token must be from one (`iss`); without it, any",
        |value, parsed| parsed.authentication.token.issuers(value),
    )
    .or_refuse(),
    key(
        "jwt-jwks-ca-secret",
        "a Secret whose `ca.crt` holds the authorities of which one must have issued the certificate of the host of \
         `jwt-jwks-url`, instead of public ones. Specific to xdp-ingress",
        |value, parsed| secret(value, &mut parsed.authentication.token.authorities),
    )
    .naming(Kind::Secret)
    .or_refuse(),
    key(
        "jwt-jwks-secret",
        "a Secret whose `jwks` is the JSON Web Key Set (RFC 7517) that signs tokens (RFC 7519), of which clients must \
         show a valid one, with an end, that is not over by 30 s. Without one, or with another, 401. See \
         [tokens.md](tokens.md)",
        |value, parsed| secret(value, &mut parsed.authentication.token.secret),
    )
    .naming(Kind::Secret)
    .or_refuse(),
    key(
        "jwt-jwks-url",
        "where the key set is instead, as `https://login.test/jwks`, under the rules for external names, with a \
         certificate of a public authority or of one in `jwt-jwks-ca-secret`; or \
         `http://NAME.NAMESPACE.svc.cluster.local/PATH` of a Service, of another namespace only if a \
         ReferenceGrant there or `--allow-cross-namespace-services` allows it. It is fetched again as its \
         `Cache-Control` says. 503 as long as it never came. Specific to xdp-ingress",
        |value, parsed| parsed.authentication.token.url(value),
    )
    .or_refuse(),
    key(
        "jwt-required-claims",
        "claims that the token must have, else 403, as `email_verified=true, scope=read, sub`: the value, in a text, a \
         list or the words of `scope`, or one of several with bars between them; or any value",
        |value, parsed| parsed.authentication.token.demands(value),
    )
    .or_refuse(),
    key("limit-allowlist", "the same as `limit-whitelist`", |value, parsed| networks(value, &mut parsed.limits.exempt))
        .or_refuse(),
    key(
        "limit-burst-multiplier",
        "burst that a client may send after a pause, as a multiple of `limit-rps` or `limit-rpm`; from 1 to 1000",
        |value, parsed| {
            number(value, 1..=1000, &mut parsed.limits.burst_multiplier).ok_or("a number from 1 to 1000")?;
            Ok(())
        },
    )
    .default("5")
    .or_refuse(),
    key(
        "limit-connections",
        "requests that one client may have in flight at one time, on each node; `0` for any. See \
         [clients.md](clients.md)",
        |value, parsed| count(value, &mut parsed.limits.in_flight),
    )
    .default("0")
    .or_refuse(),
    key("limit-rpm", "requests that one client may make per minute, on each node; `0` for any", |value, parsed| {
        count(value, &mut parsed.limits.per_minute)
    })
    .default("0")
    .or_refuse(),
    key("limit-rps", "requests that one client may make per second, on each node; `0` for any", |value, parsed| {
        count(value, &mut parsed.limits.per_second)
    })
    .default("0")
    .or_refuse(),
    key(
        "limit-scope",
        "`node`: each node counts by itself; `cluster`: it grants its share of the limits, divided by the number of \
         nodes that are ready. Specific to xdp-ingress",
        |value, parsed| limit_scope(value, &mut parsed.limits.of_cluster),
    )
    .default("node")
    .or_refuse(),
    key("limit-whitelist", "networks whose clients have no limits, separated by commas", |value, parsed| {
        networks(value, &mut parsed.limits.exempt)
    })
    .or_refuse(),
    key(
        "satisfy",
        "`all`: clients must come from an allowed network and authenticate; `any`: one of these is enough",
        |value, parsed| {
            parsed.authentication.satisfy_any = match value {
                "all" => false,
                "any" => true,
                _ => return Err("`all` or `any`".into()),
            };
            Ok(())
        },
    )
    .default("all"),
    key("whitelist-source-range", "the same as `allowlist-source-range`", |value, parsed| {
        networks(value, &mut parsed.access.allow)
    })
    .or_refuse(),
];

/// Reads a limit of requests; 0 means unlimited.
fn count(value: &str, field: &mut u32) -> Read {
    number(value, 0..=1_000_000, field).ok_or_else(|| "a number up to 1000000".into())
}
