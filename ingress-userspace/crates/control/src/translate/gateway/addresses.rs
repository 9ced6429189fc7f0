//! Allots the addresses of the pool to Gateways. Listeners are not known here.

use std::{collections::BTreeSet, net::IpAddr};

use super::report::Flaw;
use crate::{
    address_pool::AddressPool,
    change::ObjectName,
    gateway::{AddressKind, Gateway, GatewayAddress},
    hash::fnv,
    translate::text::shorten,
};

/// The addresses of one Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allotted {
    /// Addresses of the pool, in order. Empty without a pool: the Gateway has those of the nodes.
    pub(super) addresses: BTreeSet<IpAddr>,
    /// The reason for which the Gateway as a whole is refused.
    pub(super) refused: Option<Flaw>,
    /// The reason for which it lacks an address.
    pub(super) lacks: Option<Flaw>,
}

/// The addresses that a Gateway asks for.
struct Request<'g> {
    gateway: &'g Gateway,
    /// These addresses, or any if it names none.
    named: Vec<&'g str>,
    allotted: Allotted,
}

/// Allots addresses to `gateways`, which are in order of precedence, each with the reason for which it is refused, if it
/// is: such a one gets none. A Gateway keeps the addresses in its status. Then those that ask for certain addresses get
/// them, and at last those that ask for any: the first free one of each family, from a place in the pool that the
/// Gateway's name decides. A Gateway that is created a moment later thus seldom has a claim on an address that was
/// assigned already but is not in the status yet.
pub(super) fn allot<'g>(
    pool: &AddressPool,
    gateways: impl Iterator<Item = (&'g Gateway, Option<Flaw>)>,
) -> Vec<Allotted> {
    let mut requests: Vec<_> = gateways.map(|(gateway, refused)| Request::of(gateway, refused)).collect();
    if pool.is_empty() {
        return requests.into_iter().map(Request::without_pool).collect();
    }
    let families: [Vec<IpAddr>; 2] =
        [true, false].map(|is_v4| pool.addresses().filter(|address| address.is_ipv4() == is_v4).collect());
    let mut taken = BTreeSet::new();
    for request in &mut requests {
        request.keep(pool, &mut taken);
    }
    for request in &mut requests {
        request.take_named(pool, &mut taken);
    }
    requests.into_iter().map(|request| request.take_any(&families, &mut taken)).collect()
}

// === impl Allotted ===

impl Allotted {
    /// Returns whether connections reach the Gateway.
    pub(super) fn is_reachable(&self) -> bool {
        self.refused.is_none() && (self.lacks.is_none() || !self.addresses.is_empty())
    }
}

// === impl Request ===

impl<'g> Request<'g> {
    fn of(gateway: &'g Gateway, refused: Option<Flaw>) -> Self {
        let mut allotted = Allotted { refused, ..Allotted::default() };
        let mut named = Vec::new();
        for GatewayAddress { kind, value } in &gateway.spec.addresses {
            match kind {
                AddressKind::Ip if value.is_empty() => {}
                AddressKind::Ip => named.push(&**value),
                other => {
                    let message =
                        format!("addresses of type `{}` are not supported; use `IPAddress`", shorten(other.as_str()));
                    allotted.refused.get_or_insert(Flaw::new("UnsupportedAddress", message));
                }
            }
        }
        Self { gateway, named, allotted }
    }

    fn without_pool(self) -> Allotted {
        let Self { gateway: _, named, mut allotted } = self;
        if let Some(named) = named.first() {
            let message = format!(
                "address `{}` cannot be assigned, because there is no pool of addresses; remove it, or name a pool by \
                 `--gateway-addresses`",
                shorten(named)
            );
            allotted.lacks = Some(Flaw::new("AddressNotUsable", message));
        }
        allotted
    }

    /// Takes those addresses of the Gateway's status that it still asks for.
    fn keep(&mut self, pool: &AddressPool, taken: &mut BTreeSet<IpAddr>) {
        if self.allotted.refused.is_some() {
            return;
        }
        let shown = self.gateway.status.addresses.iter().filter_map(|address| address.value.parse::<IpAddr>().ok());
        for address in shown.filter(|address| pool.contains(address)) {
            let wanted = if self.named.is_empty() {
                !self.has_family_of(&address)
            } else {
                self.named.iter().any(|named| named.parse() == Ok(address))
            };
            if wanted && taken.insert(address) {
                self.allotted.addresses.insert(address);
            }
        }
    }

    fn take_named(&mut self, pool: &AddressPool, taken: &mut BTreeSet<IpAddr>) {
        if self.allotted.refused.is_some() {
            return;
        }
        for named in &self.named {
            let problem = match named.parse::<IpAddr>() {
                Err(_) => "is no IP address",
                Ok(address) if self.allotted.addresses.contains(&address) => continue,
                Ok(address) if !pool.contains(&address) => "is not in the pool",
                Ok(address) if !taken.insert(address) => "belongs to another Gateway",
                Ok(address) => {
                    self.allotted.addresses.insert(address);
                    continue;
                }
            };
            let message = format!("address `{}` {problem}; name a free one of the pool, or none", shorten(named));
            self.allotted.lacks.get_or_insert(Flaw::new("AddressNotUsable", message));
        }
    }

    fn take_any(self, families: &[Vec<IpAddr>], taken: &mut BTreeSet<IpAddr>) -> Allotted {
        let mut request = self;
        if request.allotted.refused.is_none() && request.named.is_empty() {
            for family in families {
                let (before, from) = family.split_at(request.start_in(family));
                for address in from.iter().chain(before) {
                    if !request.has_family_of(address) && taken.insert(*address) {
                        request.allotted.addresses.insert(*address);
                    }
                }
            }
            if request.allotted.addresses.is_empty() {
                let message =
                    "all addresses of the pool are in use; enlarge `--gateway-addresses`, or remove a Gateway";
                request.allotted.lacks = Some(Flaw::new("AddressNotAssigned", message));
            }
        }
        request.allotted
    }

    /// Returns the index in `family` from which the Gateway looks for a free address.
    fn start_in(&self, family: &[IpAddr]) -> usize {
        let ObjectName { namespace, name } = &self.gateway.metadata.name;
        let size = family.len().max(1) as u64;
        usize::try_from(fnv(format!("{namespace}/{name}").as_bytes()) % size).unwrap_or_default()
    }

    fn has_family_of(&self, address: &IpAddr) -> bool {
        self.allotted.addresses.iter().any(|own| own.is_ipv4() == address.is_ipv4())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a Gateway from the addresses that it asks for, each with its type, and those of its status. Its name decides for
    /// the first address of small pools.
    fn gateway(spec: &[&str], status: &[&str]) -> Gateway {
        let mut gateway = Gateway::default();
        let address = |text: &&str| {
            let (kind, value) = text.split_once(' ').unwrap_or(("IPAddress", text));
            GatewayAddress { kind: kind.into(), value: value.into() }
        };
        gateway.spec.addresses = spec.iter().map(address).collect();
        gateway.status.addresses = status.iter().map(address).collect();
        gateway
    }

    fn allotted(pool: &[&str], gateways: &[Gateway]) -> Vec<String> {
        let networks = pool.iter().map(|network| AddressPool::parse_network(network).expect("a network"));
        let pool = AddressPool::new(networks).expect("a pool");
        let text = |Allotted { addresses, refused, lacks }| {
            let mut words: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            words.extend([refused, lacks].into_iter().flatten().map(|flaw| flaw.reason.to_owned()));
            words.join(" ")
        };
        allot(&pool, gateways.iter().map(|gateway| (gateway, None))).into_iter().map(text).collect()
    }

    #[test]
    fn each_gateway_gets_an_address_of_each_family() {
        let any = || gateway(&[], &[]);
        let pool = ["192.0.2.1", "192.0.2.2", "2001:db8::1"];
        assert_eq!(
            allotted(&pool, &[any(), any(), any()]),
            ["192.0.2.1 2001:db8::1", "192.0.2.2", "AddressNotAssigned"]
        );
    }

    #[test]
    fn a_new_gateway_leaves_others_their_addresses_before_they_are_in_a_status() {
        let named = |name: &str| {
            let mut gateway = gateway(&[], &[]);
            gateway.metadata.name.name = name.into();
            gateway
        };
        let alone = allotted(&["192.0.2.0/24"], &[named("exact")]);
        let both = allotted(&["192.0.2.0/24"], &[named("empty"), named("exact")]);
        assert_eq!(both[1], alone[0]);
        assert_ne!(both[0], both[1]);
    }

    #[test]
    fn addresses_in_a_status_are_kept() {
        let pool = ["192.0.2.1", "192.0.2.2", "192.0.2.3"];
        let (old, new) = (gateway(&[], &[]), gateway(&[], &["192.0.2.1", "192.0.2.2", "198.51.100.1"]));
        assert_eq!(allotted(&pool, &[old, new]), ["192.0.2.2", "192.0.2.1"]);
        // Of two with one address, the first keeps it.
        let twice = || gateway(&[], &["192.0.2.1"]);
        assert_eq!(allotted(&pool, &[twice(), twice()]), ["192.0.2.1", "192.0.2.2"]);
    }

    #[test]
    fn requested_addresses_come_before_any() {
        let pool = ["192.0.2.1", "192.0.2.2", "2001:db8::1"];
        let (any, one) = (gateway(&["IPAddress "], &[]), gateway(&["192.0.2.1"], &["192.0.2.2"]));
        assert_eq!(allotted(&pool, &[any, one]), ["192.0.2.2 2001:db8::1", "192.0.2.1"]);
        let (holder, late) = (gateway(&[], &["192.0.2.1"]), gateway(&["192.0.2.1", "192.0.2.2"], &[]));
        assert_eq!(allotted(&pool, &[late, holder]), ["192.0.2.2 AddressNotUsable", "192.0.2.1 2001:db8::1"]);
    }

    #[test]
    fn a_gateway_that_is_refused_gets_no_address() {
        let pool = AddressPool::new([AddressPool::parse_network("192.0.2.1").expect("an address")]).expect("a pool");
        let refused = Flaw::new("InvalidParameters", "none");
        for first in [gateway(&[], &[]), gateway(&["192.0.2.1"], &[]), gateway(&[], &["192.0.2.1"])] {
            let second = gateway(&[], &[]);
            let found = allot(&pool, [(&first, Some(refused.clone())), (&second, None)].into_iter());
            let [first, second] = &*found else { panic!("not one for each Gateway: {found:?}") };
            assert_eq!((first.addresses.len(), first.refused.as_ref()), (0, Some(&refused)));
            assert_eq!((second.addresses.len(), &second.lacks), (1, &None));
        }
    }

    #[test]
    fn other_types_and_addresses_are_refused() {
        let named = gateway(&["test/fake fake", "192.0.2.1"], &[]);
        let outside = gateway(&["198.51.100.1"], &[]);
        let found = allotted(&["192.0.2.0/30"], &[named.clone(), outside.clone(), gateway(&["x"], &[])]);
        assert_eq!(found, ["UnsupportedAddress", "AddressNotUsable", "AddressNotUsable"]);
        let found = allotted(&[], &[named, outside, gateway(&["IPAddress "], &[]), gateway(&[], &[])]);
        assert_eq!(found, ["UnsupportedAddress AddressNotUsable", "AddressNotUsable", "", ""]);
    }
}
