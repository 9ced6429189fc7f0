//! Trusted proxies, and the sources of client addresses.

use http::{HeaderName, header};

use super::row::{Row, key};
use crate::{
    outcome::Reason,
    translate::values::{Read, boolean, networks, seconds},
};
use ingress_model::Trust;

/// Sorted by name.
pub(super) const SETTINGS: &[Row<Trust>] = &[
    key(
        "compute-full-forwarded-for",
        "whether pods get all addresses of `forwarded-for-header` and the peer's, with `use-forwarded-headers`; \
         otherwise only the client's",
    )
    .default("false")
    .reads(|value, trust| boolean(value, &mut trust.keeps_chain)),
    key(
        "enable-real-ip",
        "whether `forwarded-for-header` from the networks of `proxy-real-ip-cidr` names the client, even without \
         `use-forwarded-headers`",
    )
    .default("false")
    .reads(|value, trust| boolean(value, &mut trust.address)),
    key("forwarded-for-header", "field in which the proxies in front of this one name their clients")
        .default("X-Forwarded-For")
        .reads(|value, trust| chain_field(value, &mut trust.field)),
    key("proxy-protocol-header-timeout", "time limit for the header of the PROXY protocol, in seconds")
        .default("5")
        .reads(|value, trust| seconds(value, &mut trust.proxy_protocol_timeout)),
    key(
        "proxy-real-ip-cidr",
        "networks of the proxies in front of this one, separated by commas; information about clients is trusted only \
         from them",
    )
    .nginx("0.0.0.0/0")
    .reads(|value, trust| networks(value, &mut trust.trusted_proxies)),
    key(
        "use-forwarded-headers",
        "whether `X-Forwarded-*` from the networks of `proxy-real-ip-cidr` applies: the client, its scheme, port and \
         host",
    )
    .default("false")
    .reads(|value, trust| boolean(value, &mut trust.forwarded)),
    key(
        "use-proxy-protocol",
        "whether connections begin with a header of the PROXY protocol, version 1 or 2; others are closed. With \
         `proxy-real-ip-cidr`, connections from elsewhere are closed, too. A change applies to new connections",
    )
    .default("false")
    .reads(|value, trust| boolean(value, &mut trust.proxy_protocol)),
];

/// Returns contradictions between the settings of trusted proxies.
pub(crate) fn contradictions(trust: &Trust) -> impl Iterator<Item = (Reason, &'static str)> {
    let Trust {
        trusted_proxies,
        forwarded,
        address,
        field: _,
        keeps_chain: _,
        proxy_protocol,
        proxy_protocol_timeout: _,
    } = trust;
    let (is_without_proxies, trusts_peers) = (trusted_proxies.is_empty(), *forwarded || *address);
    [
        (
            trusts_peers && is_without_proxies,
            Reason::InvalidSetting,
            "`use-forwarded-headers` or `enable-real-ip` is on, but `proxy-real-ip-cidr` is empty: no peer is trusted; list the networks of the proxies in front of this one",
        ),
        (
            trusts_peers && !proxy_protocol && trusted_proxies.holds_every_v4(),
            Reason::UnsafeSetting,
            "`proxy-real-ip-cidr` contains every address: limits and lists believe a client's own `X-Forwarded-For`; \
             list the networks of the proxies in front of this one",
        ),
        (
            *proxy_protocol && (is_without_proxies || trusted_proxies.holds_every_v4()),
            Reason::UnsafeSetting,
            "`use-proxy-protocol` is on, and `proxy-real-ip-cidr` is empty or contains every address: any client can \
             claim any address; list the networks of the load balancers",
        ),
    ]
    .into_iter()
    .filter(|(is_so, ..)| *is_so)
    .map(|(_, reason, message)| (reason, message))
}

/// Reads the name of a field with a list of addresses. `Forwarded` has its own syntax, which is not supported.
fn chain_field(value: &str, field: &mut HeaderName) -> Read {
    let name = HeaderName::try_from(value).ok().filter(|name| *name != header::FORWARDED && *name != header::HOST);
    *field = name.ok_or("the name of a field that holds addresses, as `X-Forwarded-For`")?;
    Ok(())
}
