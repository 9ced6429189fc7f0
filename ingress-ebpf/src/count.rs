//! Adds to the per-CPU counters. An update is two plain additions: the value belongs to this CPU, and a program is not
//! interrupted by another on the same CPU (both run with bottom halves disabled).

use ingress_common::{DenyRule, HostId, HostNet, Total, Traffic, flow::UNATTRIBUTED};

use crate::maps::{DENY_HITS, HOST_NET, TOTALS};

/// Counts one packet for `total`.
#[inline(always)]
pub(crate) fn total(total: Total, bytes: u64) {
    if let Some(entry) = TOTALS.get_ptr_mut(total as u32) {
        // SAFETY: the verifier checked `entry` against null; it points to this CPU's value of the map.
        add(unsafe { &mut *entry }, bytes);
    }
}

/// Counts one packet as denied, and for the rule that denies it.
#[inline(always)]
pub(crate) fn denied(rule: DenyRule, bytes: u64) {
    total(Total::Denied, bytes);
    if let Some(entry) = DENY_HITS.get_ptr_mut(rule) {
        // SAFETY: as in `total`.
        add(unsafe { &mut *entry }, bytes);
    }
}

#[inline(always)]
const fn add(traffic: &mut Traffic, length: u64) {
    let Traffic { packets, bytes } = traffic;
    *packets += 1;
    *bytes += length;
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
