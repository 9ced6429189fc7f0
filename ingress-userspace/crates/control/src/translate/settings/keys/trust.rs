//! Trusted proxies, and the sources of client addresses.

use http::{HeaderName, header};

use super::super::super::values::{Read, boolean, networks, seconds};
use crate::translate::settings::row::{Setting, setting};

/// Sorted by name.
pub(super) const SETTINGS: &[Setting] = &[
    setting(
        "compute-full-forwarded-for",
        "whether pods get all addresses of `forwarded-for-header` and the peer's, with `use-forwarded-headers`; \
         otherwise only the client's",
        |value, globals| boolean(value, &mut globals.settings.trust.keeps_chain),
    )
    .default("false"),
    setting(
        "enable-real-ip",
        "whether `forwarded-for-header` from the networks of `proxy-real-ip-cidr` names the client, even without \
         `use-forwarded-headers`",
        |value, globals| boolean(value, &mut globals.settings.trust.address),
    )
    .default("false"),
    setting(
        "forwarded-for-header",
        "field in which the proxies in front of this one name their clients",
        |value, globals| chain_field(value, &mut globals.settings.trust.field),
    )
    .default("X-Forwarded-For"),
    setting(
        "proxy-protocol-header-timeout",
        "time limit for the header of the PROXY protocol, in seconds",
        |value, globals| seconds(value, &mut globals.settings.trust.proxy_protocol_timeout),
    )
    .default("5"),
    setting(
        "proxy-real-ip-cidr",
        "networks of the proxies in front of this one, separated by commas; information about clients is trusted only \
         from them",
        |value, globals| networks(value, &mut globals.settings.trust.trusted_proxies),
    )
    .nginx("0.0.0.0/0"),
    setting(
        "use-forwarded-headers",
        "whether `X-Forwarded-*` from the networks of `proxy-real-ip-cidr` applies: the client, its scheme, port and \
         host",
        |value, globals| boolean(value, &mut globals.settings.trust.forwarded),
    )
    .default("false"),
    setting(
        "use-proxy-protocol",
        "whether connections begin with a header of the PROXY protocol, version 1 or 2; others are closed. With \
         `proxy-real-ip-cidr`, connections from elsewhere are closed, too. A change applies to new connections",
        |value, globals| boolean(value, &mut globals.settings.trust.proxy_protocol),
    )
    .default("false"),
];

/// Reads the name of a field with a list of addresses. `Forwarded` has its own syntax, which is not supported.
fn chain_field(value: &str, field: &mut HeaderName) -> Read {
    let name = HeaderName::try_from(value).ok().filter(|name| *name != header::FORWARDED && *name != header::HOST);
    *field = name.ok_or("the name of a field that holds addresses, as `X-Forwarded-For`")?;
    Ok(())
}
