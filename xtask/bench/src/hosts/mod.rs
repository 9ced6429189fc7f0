//! Peers that serve many hosts by name, and receive changes: `routes` measures the time of a change and `memory` the
//! memory.
//!
//! ```text
//! objects ──┬─▶ lab::api_server ─┐
//!           └─▶ manifests ───────┼─▶ a peer ──▶ pods a and b
//! conf ─────────▶ signal or map ─┘      ▲
//!                                      ask: the view of a new connection
//! ```
//!
//! `stage` starts the peers, `serving` sends them changes.

mod ask;
mod conf;
mod objects;
mod serving;
mod stage;

use std::{collections::BTreeSet, fmt, net::Ipv4Addr};

use clap::ValueEnum;

pub(super) use self::{serving::Serving, stage::Stage};

/// A peer, and its way to receive changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Way {
    /// A new configuration and SIGHUP
    Nginx,
    /// A new map and SIGUSR2 to the master
    Haproxy,
    /// `set map` over the runtime API
    HaproxyMap,
    /// An API server, as where it is installed
    XdpIngress,
    /// A directory of manifests, a file for each host
    XdpIngressFiles,
    /// The same with HTTPRoutes of a Gateway in place of Ingresses
    XdpIngressGatewayFiles,
}

/// Hosts with a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tls {
    None,
    /// Every tenth, with four certificates in turn.
    OneInTen,
    /// Every host, each with its own certificate.
    Each,
}

/// Hosts that a peer serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) hosts: usize,
    pub(super) tls: Tls,
}

/// Kind of a single change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    /// The endpoint of a host.
    Endpoint,
    /// A new host; its number is not below [`Plan::hosts`].
    Added,
    /// The removal of an added host.
    Removed,
    /// A certificate, which one host in forty uses.
    Certificate,
}

/// Destination of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pod {
    A,
    B,
}

/// Number of certificates if every tenth host has one.
pub(super) const CERTIFICATES: usize = 4;

/// Returns the name of a host.
fn name(host: usize) -> String {
    format!("h{host}.bench.test")
}

// === impl Way ===

impl Way {
    pub(super) const fn is_ours(self) -> bool {
        matches!(self, Self::XdpIngress | Self::XdpIngressFiles | Self::XdpIngressGatewayFiles)
    }

    /// Returns whether the peer reads a directory of manifests.
    pub(super) const fn reads_manifests(self) -> bool {
        matches!(self, Self::XdpIngressFiles | Self::XdpIngressGatewayFiles)
    }

    /// Returns the name of the peer alone.
    pub(super) const fn peer(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Haproxy | Self::HaproxyMap => "haproxy",
            Self::XdpIngress | Self::XdpIngressFiles | Self::XdpIngressGatewayFiles => "xdp-ingress",
        }
    }

    /// Returns the changes that are worth timing: for the other peers, all changes are alike. The one listener of a Gateway
    /// with TLS has one certificate for all hosts, which is not compared.
    pub(super) const fn changes(self) -> &'static [Change] {
        match self {
            Self::Nginx | Self::Haproxy | Self::HaproxyMap => &[Change::Endpoint],
            Self::XdpIngress | Self::XdpIngressFiles => &Change::ALL,
            Self::XdpIngressGatewayFiles => &[Change::Endpoint, Change::Added, Change::Removed],
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nginx => "nginx, reload",
            Self::Haproxy => "haproxy, reload",
            Self::HaproxyMap => "haproxy, `set map`",
            Self::XdpIngress => "xdp-ingress",
            Self::XdpIngressFiles => "xdp-ingress, manifests",
            Self::XdpIngressGatewayFiles => "xdp-ingress, manifests, HTTPRoutes",
        })
    }
}

// === impl Plan ===

impl Plan {
    /// Returns the number of a host's certificate.
    fn certificate(self, host: usize) -> Option<usize> {
        match self.tls {
            Tls::None => None,
            Tls::OneInTen => host.is_multiple_of(10).then_some(host / 10 % CERTIFICATES),
            Tls::Each => Some(host),
        }
    }

    fn certificates(self) -> usize {
        match self.tls {
            Tls::None => 0,
            Tls::OneInTen => CERTIFICATES,
            Tls::Each => self.hosts,
        }
    }
}

// === impl Change ===

impl Change {
    pub(super) const ALL: [Self; 4] = [Self::Endpoint, Self::Added, Self::Removed, Self::Certificate];
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Endpoint => "endpoint changed",
            Self::Added => "host added",
            Self::Removed => "host removed",
            Self::Certificate => "certificate rotated",
        })
    }
}

// === impl Pod ===

impl Pod {
    const fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Self::A, Self::B].into_iter().find(|pod| pod.name() == name)
    }

    /// Returns one of two loopback addresses, so that only the address of an endpoint changes.
    const fn address(self) -> Ipv4Addr {
        match self {
            Self::A => Ipv4Addr::LOCALHOST,
            Self::B => Ipv4Addr::new(127, 0, 0, 2),
        }
    }

    /// Returns the pod that a host leads to.
    fn of(host: usize, moved: &BTreeSet<usize>) -> Self {
        if moved.contains(&host) { Self::B } else { Self::A }
    }
}

#[cfg(test)]
mod tests;
