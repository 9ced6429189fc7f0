//! Finds the listeners that cannot be told apart from others at their addresses and port.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use super::{listener::Shape, report::Flaw};
use ingress_model::{HostPattern, ListenerProtocol, StreamPort};

/// Listeners that stand, by address and port. Without a pool, all Gateways share the addresses of the nodes: `None`.
#[derive(Default)]
pub(super) struct Occupied(HashMap<(Option<IpAddr>, StreamPort), Use>);

/// Use of a port: listeners of one class, which hostnames tell apart.
struct Use {
    class: Class,
    hostnames: BTreeSet<HostPattern>,
}

/// Protocols that a connection does not tell apart before a listener is chosen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Plain,
    /// HTTPS and TLS.
    Tls,
    /// Without a name in the connection.
    Stream,
}

// === impl Class ===

impl Class {
    fn of(protocol: ListenerProtocol) -> Self {
        match protocol {
            ListenerProtocol::Http => Self::Plain,
            ListenerProtocol::Https | ListenerProtocol::TlsPassthrough | ListenerProtocol::TlsTerminate => Self::Tls,
            ListenerProtocol::Tcp | ListenerProtocol::Udp => Self::Stream,
        }
    }
}

// === impl Occupied ===

impl Occupied {
    /// Decides on the listeners of one object. Those that conflict with a listener that stands already fall first. Of
    /// the rest, those that conflict with each other all fall, as the specification says. The others stand. Returns the
    /// conflict of each listener.
    pub(super) fn place(&mut self, addresses: &[Option<IpAddr>], shapes: &[Option<&Shape>]) -> Vec<Option<Flaw>> {
        let with_others = shapes.iter().map(|shape| self.with_others(addresses, (*shape)?));
        let with_others: Vec<_> = with_others.collect();
        let left = |(shape, flaw): (&Option<&Shape>, &Option<Flaw>)| (*shape).filter(|_| flaw.is_none()).cloned();
        let left: Vec<Option<Shape>> = shapes.iter().zip(&with_others).map(left).collect();
        let mut classes: BTreeMap<StreamPort, BTreeSet<Class>> = BTreeMap::new();
        let mut names: BTreeMap<(StreamPort, &HostPattern), usize> = BTreeMap::new();
        for Shape { protocol, port, hostname } in left.iter().flatten() {
            classes.entry(*port).or_default().insert(Class::of(*protocol));
            *names.entry((*port, hostname)).or_default() += 1;
        }
        let among_themselves = |shape: &Shape| {
            if classes.get(&shape.port).is_some_and(|classes| classes.len() > 1) {
                return Some(protocol_conflict(shape, "another listener here"));
            }
            let is_alone = names.get(&(shape.port, &shape.hostname)).is_none_or(|count| *count == 1);
            (!is_alone).then(|| hostname_conflict(shape, "another listener here"))
        };
        let flaws = with_others.into_iter().zip(&left).map(|(flaw, shape)| match shape {
            Some(shape) => among_themselves(shape),
            None => flaw,
        });
        let flaws: Vec<_> = flaws.collect();
        let standing = left.iter().zip(&flaws).filter(|(_, flaw)| flaw.is_none());
        for Shape { protocol, port, hostname } in standing.filter_map(|(shape, _)| shape.as_ref()) {
            let class = Class::of(*protocol);
            for address in addresses {
                let occupied = self.0.entry((*address, *port)).or_insert(Use { class, hostnames: BTreeSet::new() });
                occupied.hostnames.insert(hostname.clone());
            }
        }
        flaws
    }

    fn with_others(&self, addresses: &[Option<IpAddr>], shape: &Shape) -> Option<Flaw> {
        addresses.iter().find_map(|address| {
            let Use { class, hostnames } = self.0.get(&(*address, shape.port))?;
            if *class != Class::of(shape.protocol) {
                return Some(protocol_conflict(shape, "an older listener"));
            }
            hostnames.contains(&shape.hostname).then(|| hostname_conflict(shape, "an older listener"))
        })
    }
}

fn protocol_conflict(shape: &Shape, other: &str) -> Flaw {
    let message = format!("{other} has port `{}` with another protocol; use another port", shape.port.number);
    Flaw::new("ProtocolConflict", message)
}

fn hostname_conflict(shape: &Shape, other: &str) -> Flaw {
    let Shape { protocol, port, hostname } = shape;
    if Class::of(*protocol) == Class::Stream {
        return protocol_conflict(shape, other);
    }
    let message = format!("{other} has hostname `{hostname}` at port `{}`; use another hostname or port", port.number);
    Flaw::new("HostnameConflict", message)
}
