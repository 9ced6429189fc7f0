//! Adds to the per-CPU counters. An update is two plain additions: the value belongs to this CPU, and a program is not
//! interrupted by another on the same CPU (both run with bottom halves disabled).

use ingress_common::{HostId, HostNet, Total, Traffic, flow::UNATTRIBUTED};

use crate::maps::{HOST_NET, TOTALS};

/// Counts one packet for `total`.
#[inline(always)]
pub(crate) fn total(total: Total, bytes: u64) {
    if let Some(entry) = TOTALS.get_ptr_mut(total as u32) {
        // SAFETY: the verifier checked `entry` against null; it points to this CPU's value of the map.
        let Traffic { packets, bytes: sum } = unsafe { &mut *entry };
        *packets += 1;
        *sum += bytes;
    }
}

/// Counts one received packet as accepted and for exactly one host, so that the hosts always add up to the total.
#[inline(always)]
pub(crate) fn accepted(host: HostId, bytes: u64) {
    total(Total::Accepted, bytes);
    if received(host, bytes) {
        return;
    }
    total(Total::HostOutOfRange, bytes);
    received(UNATTRIBUTED, bytes);
}

/// Counts one received packet for `host`; `false` if the map has no such host.
#[inline(always)]
fn received(host: HostId, bytes: u64) -> bool {
    let Some(entry) = HOST_NET.get_ptr_mut(host) else { return false };
    // SAFETY: as in `total`.
    let HostNet { rx_packets, rx_bytes, .. } = unsafe { &mut *entry };
    *rx_packets += 1;
    *rx_bytes += bytes;
    true
}
