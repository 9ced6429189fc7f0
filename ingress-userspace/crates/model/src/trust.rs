//! Trusted proxies in front of this one, and the fields that they may set. Fields are not read here.

use std::{net::IpAddr, time::Duration};

use http::HeaderName;

use super::Networks;

/// Trusted peers and the extent of their trust. By default, no peer is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    /// Networks of trusted proxies. Default none.
    pub trusted_proxies: Networks,
    /// Whether `X-Forwarded-Proto`, `-Port` and `-Host` of trusted proxies are kept, and the client address that they
    /// report. Default false.
    pub forwarded: bool,
    /// Whether the client address alone is taken from trusted proxies. Default false.
    pub address: bool,
    /// Field that carries the client address. Default `X-Forwarded-For`.
    pub field: HeaderName,
    /// Whether pods get all addresses of `field` and the peer's, instead of only the client's. Default false.
    pub keeps_chain: bool,
    /// Whether a PROXY protocol header is required at the beginning of connections. Default false.
    pub proxy_protocol: bool,
    /// Time limit for that header. Default 5 s.
    pub proxy_protocol_timeout: Duration,
}

impl Trust {
    pub const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

    /// Returns whether fields of requests from `peer` are trusted.
    #[must_use]
    pub fn trusts(&self, peer: IpAddr) -> bool {
        (self.forwarded || self.address) && self.trusted_proxies.contains(peer)
    }

    /// Returns the networks of peers that may report addresses of other clients, in any way. `proxied` is true if some
    /// connections begin with a PROXY protocol header, including those of stream services.
    #[must_use]
    pub fn trusted_peers(&self, proxied: bool) -> Networks {
        let Self { trusted_proxies, forwarded, address, .. } = self;
        if proxied && trusted_proxies.is_empty() {
            Networks::everybody()
        } else if proxied || *forwarded || *address {
            trusted_proxies.clone()
        } else {
            Networks::default()
        }
    }

    /// Returns whether `peer` may report addresses of other clients to hosts, in any way.
    #[must_use]
    pub fn is_trusted_peer(&self, peer: IpAddr) -> bool {
        self.trusts(peer) || self.proxy_protocol && self.admits_proxy(peer)
    }

    /// Returns whether `peer` may send a PROXY protocol header: without a list, every peer may.
    #[must_use]
    pub fn admits_proxy(&self, peer: IpAddr) -> bool {
        self.trusted_proxies.is_empty() || self.trusted_proxies.contains(peer)
    }
}

impl Default for Trust {
    fn default() -> Self {
        Self {
            trusted_proxies: Networks::default(),
            forwarded: false,
            address: false,
            field: Self::FORWARDED_FOR,
            keeps_chain: false,
            proxy_protocol: false,
            proxy_protocol_timeout: Duration::from_secs(5),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_trusted_proxies_may_forward_client_addresses() {
        let trusted_proxies = Networks::parse("10.0.0.0/8").expect("valid");
        let none = Networks::default();
        for (list, forwarded, address, proxied, expect) in [
            (&none, false, false, false, &none),
            (&trusted_proxies, false, false, false, &none),
            (&trusted_proxies, true, false, false, &trusted_proxies),
            (&trusted_proxies, false, true, false, &trusted_proxies),
            (&trusted_proxies, false, false, true, &trusted_proxies),
            (&none, true, true, false, &none),
            (&none, false, false, true, &Networks::everybody()),
        ] {
            let trust = Trust {
                trusted_proxies: list.clone(),
                forwarded,
                address,
                proxy_protocol: proxied,
                ..Trust::default()
            };
            let peers = trust.trusted_peers(proxied);
            assert_eq!(peers, *expect, "{list} {forwarded} {address} {proxied}");
            for peer in ["10.1.2.3", "192.0.2.1", "2001:db8::1"].map(|peer| peer.parse().expect("an address")) {
                assert_eq!(peers.contains(peer), trust.is_trusted_peer(peer), "{peer}");
            }
        }
    }
}
