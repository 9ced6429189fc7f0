//! The service that legitimate clients get from a node, quiet or flooded, and the ratio of the two.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use anyhow::ensure;

use super::senders::{Flood, Senders};
use crate::{
    kernel::node::{Node, POD_HOST, SERVED},
    report::{Times, median},
};
use ingress_lab::{
    client::Ask,
    load::{Clients, Connections, Load},
    topology::CLIENT_V4,
};

/// Number of legitimate clients, each with its own address and a new connection for each request.
const CLIENTS: u32 = 32;
/// Pause of each client between two requests, so that it stays below the limit of connections.
const PAUSE: Duration = Duration::from_millis(60);

/// Service to clients within one measurement, or the median of several.
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

/// Assigns the clients of a node their addresses.
pub(super) fn prepare(node: &Node) -> anyhow::Result<()> {
    let further = addresses().skip(1).map(|address| format!("addr add {address}/24 dev eth0\n"));
    node.topology.client.ip(&further.collect::<String>())
}

/// Lets the clients send requests to a node, flooded or not.
pub(super) fn measure(node: &Node, length: Duration, flooded: Option<Senders>) -> anyhow::Result<Service> {
    let clients = Clients {
        target: SocketAddr::from(SERVED).into(),
        ask: Ask::get(POD_HOST, "/"),
        count: CLIENTS as usize,
        from: addresses().map(IpAddr::from).collect(),
        connections: Connections::New,
        pause: PAUSE,
    };
    let load = Load::of(&node.topology.client, clients)?;
    let flood = flooded.map(|senders| Flood::start(&node.topology.router, senders)).transpose()?;
    let (began, before) = (Instant::now(), [load.answered(), load.failed()]);
    thread::sleep(length);
    let (after, seconds) = ([load.answered(), load.failed()], began.elapsed().as_secs_f64());
    let sent = flood.map(Flood::finish).transpose()?.unwrap_or_default();
    let times = load.stop()?.times;
    ensure!(!times.is_empty(), "nothing was answered");
    let p99 = Times::of(times).p99.as_secs_f64() * 1e3;
    let per_second = |count: u64| count as f64 / seconds;
    let [goodput, failed] = [0, 1].map(|which| per_second(after[which] - before[which]));
    Ok(Service { goodput, p99, failed, flood: per_second(sent) })
}

fn addresses() -> impl Iterator<Item = Ipv4Addr> {
    (0..CLIENTS).map(|number| Ipv4Addr::from(u32::from(CLIENT_V4) + number))
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
        let addresses: Vec<_> = addresses().collect();
        assert_eq!((addresses[0], addresses[31]), (CLIENT_V4, Ipv4Addr::new(192, 0, 2, 33)));
    }

    #[test]
    fn each_figure_has_its_own_median() {
        let service = |goodput, p99| Service { goodput, p99, failed: 0.0, flood: 1.0 };
        let middle = Service::median(&[service(1.0, 30.0), service(2.0, 10.0), service(3.0, 20.0)]);
        assert_eq!(middle, service(2.0, 20.0));
    }
}
