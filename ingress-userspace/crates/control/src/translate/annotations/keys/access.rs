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
        "allowed networks, separated by commas; requests from all others get 403",
        |value, parsed| networks(value, &mut parsed.access.allow),
    )
    .or_refuse(),
    key(
        "auth-always-set-cookie",
        "whether clients get the cookies of the service of `auth-url` with error responses, too",
        |value, parsed| parsed.authentication.ext_authz.always_set_cookie(value),
    )
    .default("false"),
    key(
        "auth-cache-duration",
        "how long answers of the service of `auth-url` are cached: a list, separated by commas, of statuses with a \
         time of at most a day",
        |value, parsed| parsed.authentication.ext_authz.cache_duration(value),
    )
    .default("200 202 401 5m"),
    key(
        "auth-cache-key",
        "cache key, a text with variables such as `$cookie_session$http_authorization`: requests with the same value \
         share one cached answer. Without it, or if the value is empty, each request asks the service. Answers with \
         cookies, or with a `Cache-Control` that forbids it, are not cached",
        |value, parsed| parsed.authentication.ext_authz.cache_key(value),
    ),
    key("auth-method", "method of the requests to the service of `auth-url`", |value, parsed| {
        parsed.authentication.ext_authz.method(value)
    })
    .default("GET")
    .or_refuse(),
    key(
        "auth-proxy-set-headers",
        "a ConfigMap with header fields for the requests to the service of `auth-url`",
        |value, parsed| parsed.authentication.ext_authz.proxy_set_headers(value),
    )
    .naming(Kind::ConfigMap)
    .or_refuse(),
    key("auth-realm", "realm that browsers show when they prompt for a password", |value, parsed| {
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
        "value of `X-Auth-Request-Redirect` for the service of `auth-url`, with variables; without it, path and query \
         of the request",
        |value, parsed| parsed.authentication.ext_authz.request_redirect(value),
    ),
    key(
        "auth-response-headers",
        "fields to copy from answers of the service of `auth-url` to requests for pods, separated by commas; pods \
         never get these fields from clients",
        |value, parsed| parsed.authentication.ext_authz.response_headers(value),
    )
    .or_refuse(),
    key(
        "auth-secret",
        "a Secret with users and hashes of their passwords (bcrypt, SHA-crypt, apr1, MD5-crypt, `{SHA}`, `{SSHA}`); \
         clients must authenticate as one of these users. It applies without `auth-type`, too",
        |value, parsed| {
            parsed.authentication.basic.secret = Some(value.to_owned());
            Ok(())
        },
    )
    .naming(Kind::Secret)
    .or_refuse(),
    key(
        "auth-secret-type",
        "format of `auth-secret`: `auth-file`, an htpasswd file under the key `auth`, or `auth-map`, one key with a \
         hash for each user",
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
        "location that clients are redirected to, with 302, if the service of `auth-url` answers 401; with variables",
        |value, parsed| parsed.authentication.ext_authz.sign_in(value),
    ),
    key(
        "auth-signin-redirect-param",
        "query argument of `auth-signin` for the URL of the original request; it is added if it is missing",
        |value, parsed| parsed.authentication.ext_authz.redirect_param(value),
    )
    .default("rd"),
    key(
        "auth-tls-pass-certificate-to-upstream",
        "whether pods get the client certificate in `ssl-client-cert`, as percent-encoded PEM",
        |value, parsed| boolean(value, &mut parsed.clients.passed),
    )
    .default("false"),
    key(
        "auth-tls-secret",
        "a Secret with the authorities for client certificates in `ca.crt`, and optionally revocations in `ca.crl`. \
         It applies to all paths of the hosts, of any Ingress; if two Ingresses differ, the older one decides. Pods \
         get `ssl-client-verify` (`SUCCESS`, `NONE` or `FAILED:` and the reason), `ssl-client-subject-dn` and \
         `ssl-client-issuer-dn`",
        |value, parsed| secret(value, &mut parsed.clients.secret),
    )
    .naming(Kind::Secret)
    .or_refuse(),
    key(
        "auth-tls-verify-client",
        "`on`: requests without a valid certificate get 400; `optional`: clients may omit the certificate; \
         `optional_no_ca`: its issuer may be unknown, too; `off`: the handshake requests none. Over plain HTTP, \
         requests get 403 or a redirect. The default is `on` with `auth-tls-secret`",
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
        "largest number of certificates between the client's and the one in `ca.crt`; never more than 6",
        |value, parsed| {
            number(value, 0..=100, &mut parsed.clients.depth).ok_or("a number up to 100")?;
            Ok(())
        },
    )
    .default("1")
    .or_refuse(),
    key(
        "auth-type",
        "`basic`: clients must authenticate by name and password (RFC 7617); pods do not get these",
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
        "a service that authorizes each request, without its body: 2xx admits the request, 401 and 403 go to the \
         client. Any other status, or no answer within 10 s or `proxy-read-timeout`, becomes 500. The URL names a \
         Service (`http://NAME.NAMESPACE.svc.cluster.local/PATH`; in another namespace only if a ReferenceGrant there \
         or `--allow-cross-namespace-services` allows it), a path of the same host's rules (`https://$host/PATH`), or \
         another host under the rules for external names; that host's certificate is not verified",
        |value, parsed| parsed.authentication.ext_authz.url(value),
    )
    .or_refuse(),
    key(
        "denylist-source-range",
        "networks to answer with 403, separated by commas, even if another list allows them",
        |value, parsed| networks(value, &mut parsed.access.deny),
    )
    .or_refuse(),
    key(
        "enable-global-auth",
        "whether the setting `global-auth-url` applies if there is no `auth-url`",
        |value, parsed| boolean(value, &mut parsed.authentication.takes_global),
    )
    .default("true"),
    key(
        "jwt-audience",
        "accepted audiences (`aud`), separated by commas; the token must name one. Without it, any",
        |value, parsed| parsed.authentication.token.audiences(value),
    )
    .or_refuse(),
    key(
        "jwt-claims-to-headers",
        "claims to send to pods as fields, as `sub=X-User, realm_access.roles=X-Roles`; pods never get these fields \
         from clients",
        |value, parsed| parsed.authentication.token.passed(value),
    )
    .or_refuse(),
    key("jwt-cookie", "cookie with the token, instead of `Authorization: Bearer`", |value, parsed| {
        parsed.authentication.token.cookie(value)
    })
    .or_refuse(),
    key("jwt-header", "field with only the token, instead of `Authorization: Bearer`", |value, parsed| {
        parsed.authentication.token.header(value)
    })
    .or_refuse(),
    key(
        "jwt-issuer",
        "accepted issuers (`iss`), separated by commas; the token must name one. Without it, any",
        |value, parsed| parsed.authentication.token.issuers(value),
    )
    .or_refuse(),
    key(
        "jwt-jwks-ca-secret",
        "a Secret with the authorities, in `ca.crt`, that may issue the certificate for the host of `jwt-jwks-url`, \
         instead of public ones. Specific to xdp-ingress",
        |value, parsed| secret(value, &mut parsed.authentication.token.authorities),
    )
    .naming(Kind::Secret)
    .or_refuse(),
    key(
        "jwt-jwks-secret",
        "a Secret with a JSON Web Key Set (RFC 7517) under `jwks`. Clients must present a valid token (RFC 7519), \
         signed by one of these keys, with an expiry that is not over by 30 s; other requests get 401. See \
         [tokens.md](tokens.md)",
        |value, parsed| secret(value, &mut parsed.authentication.token.secret),
    )
    .naming(Kind::Secret)
    .or_refuse(),
    key(
        "jwt-jwks-url",
        "URL of the key set instead. `https://login.test/jwks` follows the rules for external names, with a \
         certificate of a public authority or of one in `jwt-jwks-ca-secret`. \
         `http://NAME.NAMESPACE.svc.cluster.local/PATH` names a Service; in another namespace only if a \
         ReferenceGrant there or `--allow-cross-namespace-services` allows it. The set is refreshed according to its \
         `Cache-Control`. Requests get 503 until it has arrived once. Specific to xdp-ingress",
        |value, parsed| parsed.authentication.token.url(value),
    )
    .or_refuse(),
    key(
        "jwt-required-claims",
        "claims that the token must have, as `email_verified=true, scope=read, sub`; other requests get 403. A value \
         matches a text, an element of a list or a word of `scope`. Bars separate alternative values; without a \
         value, any value matches",
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
        "largest number of requests in flight for one client, on each node; `0` for any. See [clients.md](clients.md)",
        |value, parsed| count(value, &mut parsed.limits.in_flight),
    )
    .default("0")
    .or_refuse(),
    key("limit-rpm", "requests per minute that one client may send, on each node; `0` for any", |value, parsed| {
        count(value, &mut parsed.limits.per_minute)
    })
    .default("0")
    .or_refuse(),
    key("limit-rps", "requests per second that one client may send, on each node; `0` for any", |value, parsed| {
        count(value, &mut parsed.limits.per_second)
    })
    .default("0")
    .or_refuse(),
    key(
        "limit-scope",
        "`node`: each node applies the limits by itself; `cluster`: each node grants its share, the limits divided by \
         the number of ready nodes. Specific to xdp-ingress",
        |value, parsed| limit_scope(value, &mut parsed.limits.of_cluster),
    )
    .default("node")
    .or_refuse(),
    key("limit-whitelist", "networks without limits for their clients, separated by commas", |value, parsed| {
        networks(value, &mut parsed.limits.exempt)
    })
    .or_refuse(),
    key(
        "satisfy",
        "`all`: clients must come from an allowed network and authenticate; `any`: one of the two is enough",
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
