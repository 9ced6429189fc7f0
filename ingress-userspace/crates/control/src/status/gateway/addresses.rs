//! Addresses of Gateways that have none of their own: those at which Ingresses are served, too.

use std::{net::IpAddr, sync::Arc};

use crate::{
    gateway::{self, AddressKind},
    object_status::{Condition, ConditionStatus, GatewayAddress, ObjectStatus, StatusBody},
    status::addresses::Address,
};

/// Largest number of addresses in the status of a Gateway.
const LIMIT: usize = 16;

/// Returns `addresses` as a Gateway shows them, as far as there is room.
pub(super) fn shown(addresses: &[Address]) -> Vec<GatewayAddress> {
    if addresses.len() > LIMIT {
        tracing::warn!(
            addresses = addresses.len(),
            "the status of a Gateway has room for {LIMIT} addresses; choose them with `--publish-status-address`"
        );
    }
    addresses.iter().take(LIMIT).map(GatewayAddress::from).collect()
}

/// Returns `status` with the addresses of a Gateway that is programmed and has none of its own: `known`, or if they are
/// not known, those that it shows already. Without any, it is not programmed. A Gateway that lacks addresses which it
/// asks for, or any of a pool, is not programmed in `status`, and gets none.
pub(super) fn addressed(
    status: &Arc<ObjectStatus>,
    present: &gateway::GatewayStatus,
    known: Option<&[GatewayAddress]>,
) -> Arc<ObjectStatus> {
    let mut status = Arc::clone(status);
    let is_programmed =
        |condition: &Condition| condition.kind == "Programmed" && condition.status == ConditionStatus::True;
    let lacks_addresses = matches!(&status.body, StatusBody::Gateway { conditions, addresses, .. }
        if addresses.is_empty() && conditions.iter().any(is_programmed));
    if lacks_addresses && let StatusBody::Gateway { conditions, addresses, .. } = &mut Arc::make_mut(&mut status).body {
        let before = || present.addresses.iter().filter_map(GatewayAddress::parse).collect();
        *addresses = known.map_or_else(before, <[_]>::to_vec);
        if addresses.is_empty() {
            conditions.iter_mut().filter(|condition| is_programmed(condition)).for_each(|condition| {
                *condition = Condition::unmet(
                    "Programmed",
                    "AddressNotAssigned",
                    "no address is known at which this Gateway is served; run the controller on a Ready node, or give `--publish-status-address`".to_owned(),
                );
            });
        }
    }
    status
}

// === impl GatewayAddress ===

impl From<&Address> for GatewayAddress {
    fn from(address: &Address) -> Self {
        match address {
            Address::Ip(ip) => Self::Ip(*ip),
            Address::Name(name) => Self::Name(name.as_str().into()),
        }
    }
}

impl GatewayAddress {
    /// Returns `None` for an address that this controller would not write.
    fn parse(address: &gateway::GatewayAddress) -> Option<Self> {
        let gateway::GatewayAddress { kind, value } = address;
        match kind {
            AddressKind::Ip => value.parse::<IpAddr>().ok().map(Self::Ip),
            AddressKind::Hostname => Some(Self::Name((&**value).into())),
            AddressKind::Named | AddressKind::Other(_) => None,
        }
    }
}

impl From<&GatewayAddress> for gateway::GatewayAddress {
    fn from(address: &GatewayAddress) -> Self {
        match address {
            GatewayAddress::Ip(ip) => Self { kind: AddressKind::Ip, value: ip.to_string().into() },
            GatewayAddress::Name(name) => Self { kind: AddressKind::Hostname, value: (&**name).into() },
        }
    }
}
