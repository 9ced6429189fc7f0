//! Packets that one client may send to a node.

use super::row::{Row, key};
use crate::translate::values::{boolean, count};
use ingress_model::ClientLimitSettings;

/// Sorted by name.
pub(super) const SETTINGS: &[Row<ClientLimitSettings>] = &[
    key(
        "client-limits-dry-run",
        "whether packets above `client-syns-per-second` and `client-packets-per-second` are only counted and pass. \
         Specific to xdp-ingress",
    )
    .default("false")
    .reads(|value, limits| boolean(value, &mut limits.is_dry_run)),
    key(
        "client-packet-burst",
        "packets that a client may send at once after a pause, with `client-packets-per-second`; `0` for the number \
         of one second. Specific to xdp-ingress",
    )
    .default("0")
    .reads(|value, limits| count(value, PACKETS_MAX, &mut limits.packets.burst)),
    key(
        "client-packets-per-second",
        "packets per second that each client, an IPv4 address or a /64, may send to the proxy's ports of one node; \
         XDP drops the rest. `0` for any number. Specific to xdp-ingress",
    )
    .default("0")
    .reads(|value, limits| count(value, PACKETS_MAX, &mut limits.packets.per_second)),
    key(
        "client-syn-burst",
        "TCP connections that a client may open at once after a pause, with `client-syns-per-second`; `0` for the \
         number of one second. Specific to xdp-ingress",
    )
    .default("0")
    .reads(|value, limits| count(value, PACKETS_MAX, &mut limits.syns.burst)),
    key(
        "client-syns-per-second",
        "TCP connections per second that each client, an IPv4 address or a /64, may open; repeated SYNs count, and \
         XDP drops the rest. `0` for any number. Specific to xdp-ingress",
    )
    .default("0")
    .reads(|value, limits| count(value, PACKETS_MAX, &mut limits.syns.per_second)),
];

/// Upper bound of packets per second and of bursts for one client; the kernel part counts in nanoseconds.
const PACKETS_MAX: u32 = 1_000_000;
