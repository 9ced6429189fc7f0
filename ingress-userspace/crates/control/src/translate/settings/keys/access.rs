//! Access control and rate limits.

use super::super::super::values::{Read, boolean, count, limit_scope, namespaces, networks, number};
use crate::translate::settings::row::{Setting, prefixes, setting};
use ingress_model::{Texts, path::ACME_CHALLENGE};

/// Sorted by name.
pub(super) const SETTINGS: &[Setting] = &[
    setting(
        "block-cidrs",
        "networks to block, separated by commas: XDP drops their packets to all ports of the proxy, TCP and UDP. If \
         XDP does not see these packets, or a trusted proxy stands in between, hosts answer 403",
        |value, globals| networks(value, &mut globals.blocked.networks),
    ),
    setting(
        "block-referers",
        "values of `Referer` that get 403 from every host, separated by commas: the whole value; `~` begins a regular \
         expression that matches a part of it, `~*` one without regard to case",
        |value, globals| texts(value, &mut globals.blocked.referers),
    ),
    setting(
        "block-user-agents",
        "values of `User-Agent` that get 403 from every host, separated by commas: the whole value; `~` begins a \
         regular expression that matches a part of it, `~*` one without regard to case",
        |value, globals| texts(value, &mut globals.blocked.agents),
    ),
    setting(
        "client-limits-dry-run",
        "whether packets above `client-syns-per-second` and `client-packets-per-second` are only counted and pass. \
         Specific to xdp-ingress",
        |value, globals| boolean(value, &mut globals.settings.client_limits.is_dry_run),
    )
    .default("false"),
    setting(
        "client-packet-burst",
        "packets that a client may send at once after a pause, with `client-packets-per-second`; `0` for the number \
         of one second. Specific to xdp-ingress",
        |value, globals| count(value, PACKETS_MAX, &mut globals.settings.client_limits.packets.burst),
    )
    .default("0"),
    setting(
        "client-packets-per-second",
        "packets per second that each client, an IPv4 address or a /64, may send to the proxy's ports of one node; \
         XDP drops the rest. `0` for any number. Specific to xdp-ingress",
        |value, globals| count(value, PACKETS_MAX, &mut globals.settings.client_limits.packets.per_second),
    )
    .default("0"),
    setting(
        "client-syn-burst",
        "TCP connections that a client may open at once after a pause, with `client-syns-per-second`; `0` for the \
         number of one second. Specific to xdp-ingress",
        |value, globals| count(value, PACKETS_MAX, &mut globals.settings.client_limits.syns.burst),
    )
    .default("0"),
    setting(
        "client-syns-per-second",
        "TCP connections per second that each client, an IPv4 address or a /64, may open; repeated SYNs count, and \
         XDP drops the rest. `0` for any number. Specific to xdp-ingress",
        |value, globals| count(value, PACKETS_MAX, &mut globals.settings.client_limits.syns.per_second),
    )
    .default("0"),
    setting(
        "denylist-source-range",
        "networks to answer with 403, separated by commas, unless an Ingress overrides it",
        |value, globals| networks(value, &mut globals.parsed.access.deny),
    ),
    setting(
        "global-auth-always-set-cookie",
        "see the annotation `auth-always-set-cookie`; for `global-auth-url`",
        |value, globals| globals.parsed.authentication.global.always_set_cookie(value),
    )
    .default("false"),
    setting("global-auth-cache-duration", "see the annotation `auth-cache-duration`", |value, globals| {
        globals.parsed.authentication.global.cache_duration(value)
    })
    .default("200 202 401 5m"),
    setting("global-auth-cache-key", "see the annotation `auth-cache-key`", |value, globals| {
        globals.parsed.authentication.global.cache_key(value)
    }),
    setting("global-auth-method", "see the annotation `auth-method`", |value, globals| {
        globals.parsed.authentication.global.method(value)
    })
    .default("GET"),
    setting("global-auth-request-redirect", "see the annotation `auth-request-redirect`", |value, globals| {
        globals.parsed.authentication.global.request_redirect(value)
    }),
    setting("global-auth-response-headers", "see the annotation `auth-response-headers`", |value, globals| {
        globals.parsed.authentication.global.response_headers(value)
    }),
    setting("global-auth-signin", "see the annotation `auth-signin`", |value, globals| {
        globals.parsed.authentication.global.sign_in(value)
    }),
    setting(
        "global-auth-signin-redirect-param",
        "see the annotation `auth-signin-redirect-param`",
        |value, globals| globals.parsed.authentication.global.redirect_param(value),
    )
    .default("rd"),
    setting(
        "global-auth-url",
        "see the annotation `auth-url`; for rules of Ingresses without it. If a `global-auth-…` setting is invalid, \
         these rules answer 503",
        |value, globals| globals.parsed.authentication.global.url(value),
    ),
    setting(
        "host-sharing",
        "rights of an Ingress at a host that another namespace owns by its oldest Ingress: `paths`, only further \
         paths; `owner`, none; `granted`, paths if `share-hosts-with` or `host-sharing-grants` names its namespace; \
         `open`, everything that no older Ingress claims. Replaces `--host-sharing`. Each IngressClass has its own; \
         the one of the host's owner decides. Specific to xdp-ingress",
        |value, globals| {
            globals.sharing.mode = value.parse().map_err(|expected: &str| expected)?;
            Ok(())
        },
    )
    .default("paths"),
    setting(
        "host-sharing-grants",
        "namespaces, separated by commas, that may add paths to hosts of all others, with `host-sharing: granted`. \
         Each IngressClass has its own; the one of the host's owner decides. Specific to xdp-ingress",
        |value, globals| {
            globals.sharing.grants = namespaces(value)?;
            Ok(())
        },
    ),
    setting(
        "limit-conn-status-code",
        "status for requests above the limit of requests in flight, from 400 to 599",
        |value, globals| error_status(value, &mut globals.parsed.limits.in_flight_status),
    )
    .default("503"),
    setting(
        "limit-req-status-code",
        "status for requests above the limit of requests per second or minute, from 400 to 599",
        |value, globals| error_status(value, &mut globals.parsed.limits.rate_status),
    )
    .default("503"),
    setting(
        "limit-scope",
        "see the annotation; applies unless an Ingress overrides it. Specific to xdp-ingress",
        |value, globals| limit_scope(value, &mut globals.parsed.limits.of_cluster),
    )
    .default("node"),
    setting(
        "no-auth-locations",
        "paths, separated by commas; rules at or below them need no authentication",
        |value, globals| {
            globals.unauthenticated = prefixes(value)?;
            Ok(())
        },
    )
    .default(ACME_CHALLENGE),
    setting(
        "whitelist-source-range",
        "allowed networks, separated by commas, unless an Ingress overrides it; requests from all others get 403",
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
