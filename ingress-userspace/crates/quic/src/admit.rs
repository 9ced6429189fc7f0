//! The answer to a client's first packet. Each is accepted, answered with Retry or refused explicitly:
//! quinn-proto keeps state for it until then.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The use of a worker's room, as its owner sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pressure {
    /// There is room for new clients.
    #[default]
    None,
    /// New clients must prove their address, which costs them a round trip.
    Prove,
    /// There is no room for a new connection, such as one of
    /// [`Limits::connection_window`](crate::Limits::connection_window) bytes and more.
    Refuse,
}

/// The first packet of a client. After a Retry there is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstPacket {
    /// Its sender.
    pub remote: SocketAddr,
    /// The address that the client used for us, if known.
    pub local: Option<IpAddr>,
    /// Whether a token proves that the sender is at its address.
    pub is_validated: bool,
}

/// The state of a worker at a client's first packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Connections whose handshake is not complete.
    pub(crate) half_open: usize,
    /// Half-open connections that count for the same share as the client.
    pub(crate) of_share: usize,
    /// Number of half-open connections that a worker may have.
    pub(crate) half_open_max: usize,
    pub(crate) pressure: Pressure,
    /// Whether the worker drains, and takes no connections.
    pub(crate) draining: bool,
    /// Whether a token has proven the client's address.
    pub(crate) validated: bool,
}

/// The answer to a client's first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Begin the handshake.
    Accept,
    /// Ask for proof of the address, which costs the client a round trip and the worker no state.
    Retry,
    /// Answer with CONNECTION_REFUSED.
    Refuse,
}

/// Half-open connections that each share may have, however few a worker may have.
const SHARE_MIN: usize = 8;

/// A network's share of the half-open connections. Connections that began with a token have another one than those
/// that began without: whoever forges the addresses of a network must not use up the share of its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Share {
    network: IpAddr,
    is_validated: bool,
}

impl Share {
    /// Returns the share that a client counts for. `is_validated` tells whether a token has proven its address.
    pub(crate) fn of(client: IpAddr, is_validated: bool) -> Self {
        Self { network: network(client), is_validated }
    }
}

/// Returns the network that shares an allowance: an IPv4 address, or the 64 bits that a site of IPv6 gets (RFC 6177).
pub(crate) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// Decides about a client's first packet. From a quarter of the permitted half-open connections on, clients must prove
/// their address; so forged addresses never take more. A [`Share`] is an eighth of them, and [`SHARE_MIN`] at least.
pub(crate) fn decide(load: Load) -> Admission {
    let Load { half_open, of_share, half_open_max, pressure, draining, validated } = load;
    let is_above_share = of_share >= (half_open_max / 8).max(SHARE_MIN);
    if draining || pressure == Pressure::Refuse {
        return Admission::Refuse;
    }
    match validated {
        true if half_open >= half_open_max || is_above_share => Admission::Refuse,
        true => Admission::Accept,
        false if pressure == Pressure::Prove || half_open >= half_open_max / 4 || is_above_share => Admission::Retry,
        false => Admission::Accept,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Load = Load {
        half_open: 0,
        of_share: 0,
        half_open_max: 1024,
        pressure: Pressure::None,
        draining: false,
        validated: false,
    };

    #[test]
    fn half_open_connections_decide() {
        use Admission::{Accept, Refuse, Retry};
        // Half-open connections of 1,024, those of the client's share, and the answers without and with a token.
        for (half_open, of_share, without, with) in [
            (0, 0, Accept, Accept),
            (255, 0, Accept, Accept),
            (256, 0, Retry, Accept),
            (1023, 0, Retry, Accept),
            (1024, 0, Retry, Refuse),
            (usize::MAX, 0, Retry, Refuse),
            (127, 127, Accept, Accept),
            (128, 128, Retry, Refuse),
        ] {
            for (validated, expected) in [(false, without), (true, with)] {
                let load = Load { half_open, of_share, validated, ..QUIET };
                assert_eq!(decide(load), expected, "{load:?}");
                let draining = Load { draining: true, ..load };
                assert_eq!(decide(draining), Refuse, "{draining:?}");
            }
        }
    }

    #[test]
    fn a_worker_under_pressure_asks_for_proof_or_refuses() {
        let proving = Load { pressure: Pressure::Prove, ..QUIET };
        assert_eq!(decide(proving), Admission::Retry);
        assert_eq!(decide(Load { validated: true, ..proving }), Admission::Accept);
        let full = Load { pressure: Pressure::Refuse, ..QUIET };
        assert_eq!([full, Load { validated: true, ..full }].map(decide), [Admission::Refuse; 2]);
    }

    #[test]
    fn proven_clients_of_a_network_have_a_share_of_their_own() {
        let share = |client: &str, is_validated| Share::of(client.parse().expect("an address"), is_validated);
        assert_eq!(share("2001:db8::1", true), share("2001:db8::2", true));
        assert_ne!(share("2001:db8::1", true), share("2001:db8::1", false));
    }

    #[test]
    fn sites_of_ipv6_are_one_network() {
        let network = |text: &str| network(text.parse().expect("an address")).to_string();
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!([network("192.0.2.1"), network("::ffff:192.0.2.1")], ["192.0.2.1"; 2]);
    }
}
