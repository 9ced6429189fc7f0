//! TLS handshakes with clients: versions, tickets, and names without a certificate.

use super::row::{Row, key};
use crate::translate::values::{Read, boolean, span};
use ingress_model::{Handshakes, Versions};

/// Sorted by name.
pub(super) const SETTINGS: &[Row<Handshakes>] = &[
    key(
        "ssl-protocols",
        "versions of TLS: `TLSv1.2`, `TLSv1.3` or both; older ones are unsafe and not supported. A change applies to \
         new connections, as with the other settings of TLS",
    )
    .differs("TLS 1.2 and 1.3 alone")
    .default("TLSv1.2 TLSv1.3")
    .reads(|value, handshakes| versions(value, &mut handshakes.versions)),
    key(
        "ssl-reject-handshake",
        "whether handshakes fail with the alert `unrecognized_name` if no rule and no certificate has the server \
         name, or if the client sends none; otherwise clients get the fallback certificate",
    )
    .default("false")
    .reads(|value, handshakes| boolean(value, &mut handshakes.rejects_unknown_names)),
    key(
        "ssl-session-tickets",
        "whether clients get tickets for session resumption; the proxy itself keeps no sessions, so all handshakes \
         are full ones without tickets",
    )
    .differs("the default is `true`, because there is no cache of sessions")
    .default("true")
    .reads(|value, handshakes| boolean(value, &mut handshakes.tickets)),
    key(
        "ssl-session-timeout",
        "lifetime of a ticket, up to a day (`10m`, `12h`); at most 12 h with keys of only this process, see \
         `--tls-ticket-secret`",
    )
    .differs("at most 12 h with keys of one process; sessions are resumed by tickets alone")
    .default("12h")
    .nginx("10m")
    .reads(|value, handshakes| span(value, &mut handshakes.session_timeout)),
];

/// Reads versions of TLS, as nginx writes them.
pub(super) fn versions(value: &str, field: &mut Versions) -> Read {
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
