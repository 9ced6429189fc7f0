//! Access control and rate limits.

use super::super::super::values::{Read, boolean, count, limit_scope, namespaces, networks, number};
use crate::translate::settings::row::{Setting, prefixes, setting};
use ingress_model::{Texts, path::ACME_CHALLENGE};

/// Sorted by name.
pub(super) const SETTINGS: &[Setting] = &[
    setting(
        "block-cidrs",
        "networks that get nothing, separated by commas: XDP drops their packets to all ports of the proxy, TCP and UDP; of \
         hosts they get 403 where it does not see them or a trusted proxy stands between",
        |value, globals| networks(value, &mut globals.blocked.networks),
    ),
    setting(
        "block-referers",
        "values of `Referer` that get 403 from every host, separated by commas: the whole value, behind `~` a \
         regular expression for something in it, behind `~*` one whatever the case",
        |value, globals| texts(value, &mut globals.blocked.referers),
    ),
    setting(
        "block-user-agents",
        "values of `User-Agent` that get 403 from every host, separated by commas: the whole value, behind `~` a \
         regular expression for something in it, behind `~*` one whatever the case",
        |value, globals| texts(value, &mut globals.blocked.agents),
    ),
    setting(
        "client-limits-dry-run",
        "whether packets above the limits of `client-syns-per-second` and `client-packets-per-second` are counted and \
         let through. Specific to xdp-ingress",
        |value, globals| boolean(value, &mut globals.settings.client_limits.is_dry_run),
    )
    .default("false"),
    setting(
        "client-packet-burst",
        "packets that a client may send at once after a pause, with `client-packets-per-second`; `0` for as many as in \
         a second. Specific to xdp-ingress",
        |value, globals| count(value, PACKETS_MAX, &mut globals.settings.client_limits.packets.burst),
    )
    .default("0"),
    setting(
        "client-packets-per-second",
        "packets that each client, an IPv4 address or a /64, may send to the proxy's ports of one node; XDP drops the \
         rest. `0` for any number. Specific to xdp-ingress",
        |value, globals| count(value, PACKETS_MAX, &mut globals.settings.client_limits.packets.per_second),
    )
    .default("0"),
    setting(
        "client-syn-burst",
        "TCP connections that a client may open at once after a pause, with `client-syns-per-second`; `0` for as many \
         as in a second. Specific to xdp-ingress",
        |value, globals| count(value, PACKETS_MAX, &mut globals.settings.client_limits.syns.burst),
    )
    .default("0"),
    setting(
        "client-syns-per-second",
        "TCP connections that each client, an IPv4 address or a /64, may open in a second; repeated SYNs count, and \
         XDP drops the rest. `0` for any number. Specific to xdp-ingress",
        |value, globals| count(value, PACKETS_MAX, &mut globals.settings.client_limits.syns.per_second),
    )
    .default("0"),
    setting(
        "denylist-source-range",
        "networks that get 403 where an Ingress does not say, separated by commas",
        |value, globals| networks(value, &mut globals.parsed.access.deny),
    ),
    setting(
        "global-auth-always-set-cookie",
        "as annotation `auth-always-set-cookie`, for `global-auth-url`",
        |value, globals| globals.parsed.authentication.global.always_set_cookie(value),
    )
    .default("false"),
    setting("global-auth-cache-duration", "as annotation `auth-cache-duration`", |value, globals| {
        globals.parsed.authentication.global.cache_duration(value)
    })
    .default("200 202 401 5m"),
    setting("global-auth-cache-key", "as annotation `auth-cache-key`", |value, globals| {
        globals.parsed.authentication.global.cache_key(value)
    }),
    setting("global-auth-method", "as annotation `auth-method`", |value, globals| {
        globals.parsed.authentication.global.method(value)
    })
    .default("GET"),
    setting("global-auth-request-redirect", "as annotation `auth-request-redirect`", |value, globals| {
        globals.parsed.authentication.global.request_redirect(value)
    }),
    setting("global-auth-response-headers", "as annotation `auth-response-headers`", |value, globals| {
        globals.parsed.authentication.global.response_headers(value)
    }),
    setting("global-auth-signin", "as annotation `auth-signin`", |value, globals| {
        globals.parsed.authentication.global.sign_in(value)
    }),
    setting("global-auth-signin-redirect-param", "as annotation `auth-signin-redirect-param`", |value, globals| {
        globals.parsed.authentication.global.redirect_param(value)
    })
    .default("rd"),
    setting(
        "global-auth-url",
        "as annotation `auth-url`, for rules of Ingresses that have none; where one of `global-auth-…` cannot be read, \
         these answer 503",
        |value, globals| globals.parsed.authentication.global.url(value),
    ),
    setting(
        "host-sharing",
        "what an Ingress may ask for a host whose oldest Ingress is of another namespace: `paths`, further paths alone; \
         `owner`, nothing; `granted`, paths where `share-hosts-with` or `host-sharing-grants` names its namespace; \
         `open`, anything that no older Ingress claims. Instead of `--host-sharing`. Each IngressClass has its own; \
         that of the host's owner decides. Specific to xdp-ingress",
        |value, globals| {
            globals.sharing.mode = value.parse().map_err(|expected: &str| expected)?;
            Ok(())
        },
    )
    .default("paths"),
    setting(
        "host-sharing-grants",
        "namespaces, separated by commas, whose Ingresses may add paths to hosts of any other, with `host-sharing: \
         granted`. Each IngressClass has its own; that of the host's owner decides. Specific to xdp-ingress",
        |value, globals| {
            globals.sharing.grants = namespaces(value)?;
            Ok(())
        },
    ),
    setting(
        "limit-conn-status-code",
        "status of the answer to a request above the limit of requests in flight, from 400 to 599",
        |value, globals| error_status(value, &mut globals.parsed.limits.in_flight_status),
    )
    .default("503"),
    setting(
        "limit-req-status-code",
        "status of the answer to a request above the limit of requests per second or minute, from 400 to 599",
        |value, globals| error_status(value, &mut globals.parsed.limits.rate_status),
    )
    .default("503"),
    setting(
        "limit-scope",
        "as the annotation, where an Ingress does not say. Specific to xdp-ingress",
        |value, globals| {
            limit_scope(value, &mut globals.parsed.limits.of_cluster)
        },
    )
    .default("node"),
    setting(
        "no-auth-locations",
        "paths of rules, separated by commas, that need no authentication, nor do paths below them",
        |value, globals| {
            globals.unauthenticated = prefixes(value)?;
            Ok(())
        },
    )
    .default(ACME_CHALLENGE),
    setting(
        "whitelist-source-range",
        "networks whose requests are allowed where an Ingress does not say, separated by commas; all others get 403",
        |value, globals| networks(value, &mut globals.parsed.access.allow),
    ),
];

/// Upper bound of packets per second and of bursts for one client; the kernel part counts in nanoseconds.
const PACKETS_MAX: u32 = 1_000_000;

fn error_status(value: &str, field: &mut u16) -> Read {
    number(value, 400..=599, field).ok_or_else(|| "a number from 400 to 599".into())
}

fn texts(value: &str, field: &mut Texts) -> Read {
    *field = Texts::parse(value).map_err(|error| format!("texts, separated by commas ({error})"))?;
    Ok(())
}
