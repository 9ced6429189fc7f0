//! Lifetime and number of client connections, and the versions of TLS and HTTP over them.

use super::super::super::values::{Read, boolean, count, number, seconds, span};
use crate::translate::settings::row::{Setting, setting};
use ingress_model::Versions;

/// Sorted by name.
pub(super) const SETTINGS: &[Setting] = &[
    setting(
        "client-body-min-rate",
        "smallest rate of a request body, in bytes per second: an average over the time that the proxy waits for it, \
         from 5 s on. Slower requests get 408. Not for gRPC, nor with `proxy-request-buffering: \"off\"` of an \
         Ingress; `0` for any rate. Specific to xdp-ingress",
        |value, globals| count(value, RATE_MAX, &mut globals.settings.body_min_rate),
    )
    .default("240"),
    setting(
        "client-body-timeout",
        "longest pause within a request body, and longest time during which a client accepts no byte of a response, \
         in seconds",
        |value, globals| seconds(value, &mut globals.settings.stall_timeout),
    )
    .default("60"),
    setting(
        "client-header-timeout",
        "time limit for the head of a request from its first byte to its last, in seconds",
        |value, globals| seconds(value, &mut globals.settings.head_timeout),
    )
    .default("10")
    .nginx("60"),
    setting(
        "client-read-min-rate",
        "smallest rate at which a client reads a response, in bytes per second: an average over the time that its \
         socket is full, from 5 s on. Slower connections end; `0` for any rate. Specific to xdp-ingress",
        |value, globals| count(value, RATE_MAX, &mut globals.settings.read_min_rate),
    )
    .default("240"),
    setting(
        "http2-max-concurrent-streams",
        "largest number of open streams on one HTTP/2 connection, from 1 to 10000",
        |value, globals| {
            number(value, 1..=10_000, &mut globals.settings.streams_max)
                .ok_or_else(|| "a number from 1 to 10000".into())
        },
    )
    .default("128"),
    setting(
        "keep-alive",
        "how long a connection without a request in flight stays open, in seconds",
        |value, globals| seconds(value, &mut globals.settings.idle_timeout),
    )
    .default("75"),
    setting(
        "max-connections",
        "largest number of client connections that each worker has open; further ones are closed; `0` for any number. \
         Specific to xdp-ingress",
        |value, globals| count(value, CONNECTIONS_MAX, &mut globals.settings.connections_max),
    )
    .default("65536"),
    setting(
        "max-connections-per-client",
        "the same for one client on one node. The default is a quarter of the default for a worker, because many \
         clients may share an address; trusted proxies are exempt; `0` for any number. Specific to xdp-ingress",
        |value, globals| count(value, CONNECTIONS_MAX, &mut globals.settings.connections_per_client),
    )
    .default("16384"),
    setting(
        "ssl-protocols",
        "versions of TLS: `TLSv1.2`, `TLSv1.3` or both; older ones are unsafe and not supported. A change applies to \
         new connections, as with the other settings of TLS",
        |value, globals| versions(value, &mut globals.settings.handshakes.versions),
    )
    .default("TLSv1.2 TLSv1.3"),
    setting(
        "ssl-reject-handshake",
        "whether handshakes fail with the alert `unrecognized_name` if no rule and no certificate has the server \
         name, or if the client sends none; otherwise clients get the fallback certificate",
        |value, globals| boolean(value, &mut globals.settings.handshakes.rejects_unknown_names),
    )
    .default("false"),
    setting(
        "ssl-session-tickets",
        "whether clients get tickets for session resumption; the proxy itself keeps no sessions, so all handshakes \
         are full ones without tickets",
        |value, globals| boolean(value, &mut globals.settings.handshakes.tickets),
    )
    .default("true"),
    setting(
        "ssl-session-timeout",
        "lifetime of a ticket, up to a day (`10m`, `12h`); at most 12 h with keys of only this process, see \
         `--tls-ticket-secret`",
        |value, globals| span(value, &mut globals.settings.handshakes.session_timeout),
    )
    .default("12h")
    .nginx("10m"),
    setting(
        "use-http2",
        "whether TLS handshakes offer HTTP/2, and port 80 accepts clients that begin with it",
        |value, globals| boolean(value, &mut globals.settings.http2),
    )
    .default("true"),
];

/// Reads versions of TLS, as nginx writes them.
fn versions(value: &str, field: &mut Versions) -> Read {
    let (mut tls12, mut tls13) = (false, false);
    for version in value.split_whitespace() {
        match version {
            "TLSv1.2" => tls12 = true,
            "TLSv1.3" => tls13 = true,
            _ => return Err(VERSIONS.into()),
        }
    }
    *field = match (tls12, tls13) {
        (true, true) => Versions::Tls12And13,
        (true, false) => Versions::Tls12,
        (false, true) => Versions::Tls13,
        (false, false) => return Err(VERSIONS.into()),
    };
    Ok(())
}

const VERSIONS: &str = "`TLSv1.2`, `TLSv1.3` or both; older versions are unsafe and not implemented";

const CONNECTIONS_MAX: u32 = 10_000_000;
/// Upper bound of minimum rates: some legitimate clients have less than a megabyte per second.
const RATE_MAX: u32 = 1_000_000;
