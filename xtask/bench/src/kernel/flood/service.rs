//! The service that legitimate clients get from a node, quiet or flooded.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use anyhow::ensure;

use super::senders::{Aim, Flood, Senders};
use crate::{
    http3::{self, Asked, Paced},
    kernel::node::{Node, POD_HOST, TLS_HOST},
    report::{Times, median},
};
use ingress_lab::{
    client::{Ask, Protocol},
    load::{self, Connections, Load, Target},
    topology::{CLIENT_V4, CLIENT_V6, Family, node_addr},
};

/// Number of legitimate clients, each with its own address (of IPv6: its own network) and a new connection for each request.
const CLIENTS: u32 = 32;
/// Pause of each client between two requests, so that it stays below the limit of connections.
const PAUSE: Duration = Duration::from_millis(60);
/// Clients of [`Senders::Mixed`], each with its own address, from a network for measurements (RFC 2544).
const ATTACKERS: u32 = 100;
const ATTACKER: u32 = 0xc612_0101;

/// Measured service, or the median of several measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Service {
    /// Answers per second.
    pub(super) goodput: f64,
    /// 99th percentile of the time of a request, in milliseconds, including its connection.
    pub(super) p99: f64,
    /// Requests without an answer, per second.
    pub(super) failed: f64,
    /// Packets of the flood per second.
    pub(super) flood: f64,
}

/// Protocol of the legitimate clients. A flood of SYNs goes to the same port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(in crate::kernel) enum Clients {
    #[default]
    Http,
    Https,
    Http3,
}

/// A measurement of the service: its clients, and the flood meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    pub(super) family: Family,
    pub(super) clients: Clients,
    pub(super) length: Duration,
    pub(super) flood: Option<Senders>,
    /// Packets of the flood per second; `None` is as many as a thread can send.
    pub(super) rate: Option<u32>,
}

/// Assigns the clients of a node, and those of the router, their addresses.
pub(super) fn prepare(node: &Node) -> anyhow::Result<()> {
    let further = |family, link: &str| {
        let addresses = clients(family).skip(1);
        addresses.map(|address| format!("addr add {address}/{link}\n")).collect::<String>()
    };
    node.topology.client.ip(&(further(Family::V4, "24 dev eth0") + &further(Family::V6, "128 dev lo")))?;
    node.topology.router.ip(&attackers().map(|address| format!("addr add {address}/32 dev lo\n")).collect::<String>())
}

impl Trial {
    /// Lets the clients send requests to a node, flooded or not.
    ///
    /// # Errors
    /// Fails if no request is answered, or the flood cannot be sent.
    pub(super) fn run(self, node: &Node) -> anyhow::Result<Service> {
        let addr = SocketAddr::new(node_addr(self.family), self.clients.port());
        let attack = if self.flood == Some(Senders::Mixed) {
            let attack = self.clients.load(node, addr, ATTACKERS, attackers().collect(), Duration::ZERO);
            Some(Load::of(&node.topology.router, attack)?)
        } else {
            None
        };
        let from: Vec<IpAddr> = clients(self.family).collect();
        let (times, [answered, failed], seconds, flood) = if self.clients == Clients::Http3 {
            let paced = Paced { target: addr, host: TLS_HOST, from, pause: PAUSE, trust: node.trust.clone() };
            let serve = || node.topology.client.run(|| http3::paced(&paced, self.length));
            let (Asked { times, answered, failed }, flood) = self.flooded(node, addr.port(), serve)?;
            (times, [answered, failed], self.length.as_secs_f64(), flood)
        } else {
            let load = Load::of(&node.topology.client, self.clients.load(node, addr, CLIENTS, from, PAUSE))?;
            let counts = || [load.answered(), load.failed()];
            let ((during, seconds), flood) = self.flooded(node, addr.port(), || {
                let (began, before) = (Instant::now(), counts());
                thread::sleep(self.length);
                let after = counts();
                Ok(([0, 1].map(|which| after[which] - before[which]), began.elapsed().as_secs_f64()))
            })?;
            (load.stop()?.times, during, seconds, flood)
        };
        drop(attack);
        ensure!(!times.is_empty(), "nothing was answered");
        let p99 = Times::of(times).p99.as_secs_f64() * 1e3;
        let [goodput, failed] = [answered, failed].map(|count| count as f64 / seconds);
        Ok(Service { goodput, p99, failed, flood })
    }

    /// Floods a node while `serve` runs. Returns the packets of the flood per second as well.
    fn flooded<T>(
        &self,
        node: &Node,
        port: u16,
        serve: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, f64)> {
        let port = if self.flood.is_some_and(Senders::is_quic) { Clients::Http3.port() } else { port };
        let aim = Aim { port, rate: self.rate, cpu: None };
        let flood = self.flood.map(|senders| Flood::start(&node.topology.router, senders, aim)).transpose()?;
        let began = Instant::now();
        let served = serve()?;
        let sent = flood.map(Flood::finish).transpose()?.unwrap_or_default();
        Ok((served, sent as f64 / began.elapsed().as_secs_f64()))
    }
}

// === impl Clients ===

impl Clients {
    const fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https | Self::Http3 => 443,
        }
    }

    /// Returns clients that connect over TCP for each request.
    fn load(self, node: &Node, addr: SocketAddr, count: u32, from: Vec<IpAddr>, pause: Duration) -> load::Clients {
        let (host, protocol) = match self {
            Self::Http => (POD_HOST, Protocol::Http1),
            Self::Https | Self::Http3 => (TLS_HOST, Protocol::Https1),
        };
        load::Clients {
            target: Target { addr, protocol, trust: node.trust.clone() },
            ask: Ask::get(host, "/"),
            count: count as usize,
            from,
            connections: Connections::New,
            pause,
        }
    }
}

fn clients(family: Family) -> impl Iterator<Item = IpAddr> {
    (0..CLIENTS).map(move |number| match family {
        Family::V4 => Ipv4Addr::from(u32::from(CLIENT_V4) + number).into(),
        // Limits apply to networks of 64 bits.
        Family::V6 => Ipv6Addr::from(u128::from(CLIENT_V6) + (u128::from(number) << 64)).into(),
    })
}

fn attackers() -> impl Iterator<Item = IpAddr> {
    (0..ATTACKERS).map(|number| Ipv4Addr::from(ATTACKER + number).into())
}

// === impl Service ===

impl Service {
    /// Returns the median of each figure.
    pub(super) fn median(of: &[Self]) -> Self {
        let middle = |figure: fn(&Self) -> f64| median(of.iter().map(figure));
        Self {
            goodput: middle(|service| service.goodput),
            p99: middle(|service| service.p99),
            failed: middle(|service| service.failed),
            flood: middle(|service| service.flood),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::node::SYNS_PER_SECOND;

    #[test]
    fn benign_clients_stay_within_limits() {
        assert!(PAUSE * SYNS_PER_SECOND > Duration::from_secs(1));
        let last = |family| clients(family).last().map(|address| address.to_string());
        assert_eq!(clients(Family::V4).next(), Some(CLIENT_V4.into()));
        assert_eq!(last(Family::V4).as_deref(), Some("192.0.2.33"));
        assert_eq!(last(Family::V6).as_deref(), Some("2001:db8:1:1f::2"));
    }

    #[test]
    fn each_figure_has_its_own_median() {
        let service = |goodput, p99| Service { goodput, p99, failed: 0.0, flood: 1.0 };
        let middle = Service::median(&[service(1.0, 30.0), service(2.0, 10.0), service(3.0, 20.0)]);
        assert_eq!(middle, service(2.0, 20.0));
    }
}
