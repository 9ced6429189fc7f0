//! Whom the proxy believes what it says of the clients behind it. It reads no field.

use std::{net::IpAddr, time::Duration};

use http::HeaderName;

use super::Networks;

/// Which peers are believed, and what. Nobody is, unless an operator says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    /// Where proxies that stand in front of this one have their addresses. Default none.
    pub hops: Networks,
    /// Whether `X-Forwarded-Proto`, `-Port` and `-Host` of hops stand, and the client's address that they note. Default
    /// false.
    pub forwarded: bool,
    /// Whether the address that they note stands by itself. Default false.
    pub address: bool,
    /// The field in which they note it. Default `X-Forwarded-For`.
    pub field: HeaderName,
    /// Whether pods get all addresses of `field`, and the peer's, instead of the client's alone. Default false.
    pub keeps_chain: bool,
    /// Whether connections begin with a header of the PROXY protocol, and no others are served. Default false.
    pub proxy_protocol: bool,
    /// How long a connection may take for that header. Default 5 s.
    pub proxy_protocol_timeout: Duration,
}

impl Trust {
    pub const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

    /// Whether fields of requests from `peer` are believed.
    #[must_use]
    pub fn believes(&self, peer: IpAddr) -> bool {
        (self.forwarded || self.address) && self.hops.contains(peer)
    }

    /// Where peers have their addresses that may speak for others, in whatever way; `proxied` tells whether any
    /// connection begins with a header of the PROXY protocol, be it that of a stream service.
    #[must_use]
    pub fn speakers(&self, proxied: bool) -> Networks {
        let Self { hops, forwarded, address, .. } = self;
        if proxied && hops.is_empty() {
            Networks::everybody()
        } else if proxied || *forwarded || *address {
            hops.clone()
        } else {
            Networks::default()
        }
    }

    /// Whether `peer` may speak for others to hosts, in whatever way.
    #[must_use]
    pub fn may_speak(&self, peer: IpAddr) -> bool {
        self.believes(peer) || self.proxy_protocol && self.admits_proxy(peer)
    }

    /// Whether `peer` may say by the PROXY protocol for whom it speaks: without a list, everybody may.
    #[must_use]
    pub fn admits_proxy(&self, peer: IpAddr) -> bool {
        self.hops.is_empty() || self.hops.contains(peer)
    }
}

impl Default for Trust {
    fn default() -> Self {
        Self {
            hops: Networks::default(),
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
    fn who_may_speak_for_others_is_whoever_is_believed() {
        let hops = Networks::parse("10.0.0.0/8").expect("valid");
        let nobody = Networks::default();
        for (list, forwarded, address, proxied, expect) in [
            (&nobody, false, false, false, &nobody),
            (&hops, false, false, false, &nobody),
            (&hops, true, false, false, &hops),
            (&hops, false, true, false, &hops),
            (&hops, false, false, true, &hops),
            (&nobody, true, true, false, &nobody),
            (&nobody, false, false, true, &Networks::everybody()),
        ] {
            let trust = Trust { hops: list.clone(), forwarded, address, proxy_protocol: proxied, ..Trust::default() };
            let speakers = trust.speakers(proxied);
            assert_eq!(speakers, *expect, "{list} {forwarded} {address} {proxied}");
            for peer in ["10.1.2.3", "192.0.2.1", "2001:db8::1"].map(|peer| peer.parse().expect("an address")) {
                assert_eq!(speakers.contains(peer), trust.may_speak(peer), "{peer}");
            }
        }
    }
}
