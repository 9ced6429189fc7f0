//! Adds to the per-CPU counters. An update is two plain additions. They need no atomics: the value belongs to this CPU,
//! and programs do not interrupt each other on a CPU, since all run with bottom halves disabled.

use ingress_common::{
    DenyRule, HostNet, NicNet, RawHostId, Total, Traffic,
    flow::UNATTRIBUTED,
    map::{NIC_GONE, NIC_OTHER},
};

use crate::maps::{DENY_HITS, HOST_NET, NIC_NET, TOTALS};

/// Counts one packet for `total`.
#[inline(always)]
pub(crate) fn total(total: Total, bytes: u64) {
    several(total, Traffic { packets: 1, bytes });
}

/// Counts one packet as denied, in total and for the rule that denies it.
#[inline(always)]
pub(crate) fn denied(rule: DenyRule, bytes: u64) {
    total(Total::Denied, bytes);
    if let Some(entry) = DENY_HITS.get_ptr_mut(rule) {
        // SAFETY: as in `several`.
        let sum = unsafe { &mut *entry };
        *sum += Traffic { packets: 1, bytes };
    }
}

/// Counts one received packet as accepted, for its interface and for exactly one host. The hosts therefore always add
/// up to the total.
#[inline(always)]
pub(crate) fn accepted(nic: u32, host: RawHostId, bytes: u64) {
    total(Total::Accepted, bytes);
    if let Some(entry) = by_nic(nic) {
        // SAFETY: as in `several`.
        let NicNet { rx_packets, rx_bytes, .. } = unsafe { &mut *entry };
        *rx_packets += 1;
        *rx_bytes += bytes;
    }
    if received(host, bytes) {
        return;
    }
    total(Total::HostOutOfRange, bytes);
    received(UNATTRIBUTED, bytes);
}

/// Counts packets that leave, for the same three as [`accepted`].
#[inline(always)]
pub(crate) fn transmitted(nic: u32, host: RawHostId, traffic: Traffic) {
    several(Total::Transmitted, traffic);
    if let Some(entry) = by_nic(nic) {
        // SAFETY: as in `several`.
        let NicNet { tx_packets, tx_bytes, .. } = unsafe { &mut *entry };
        *tx_packets += traffic.packets;
        *tx_bytes += traffic.bytes;
    }
    if sent(host, traffic) {
        return;
    }
    several(Total::HostOutOfRange, traffic);
    sent(UNATTRIBUTED, traffic);
}

/// Counts packets for `total`.
#[inline(always)]
fn several(total: Total, traffic: Traffic) {
    if let Some(entry) = TOTALS.get_ptr_mut(total as u32) {
        // SAFETY: the verifier checked `entry` against null; it points to this CPU's value of the map.
        let sum = unsafe { &mut *entry };
        *sum += traffic;
    }
}

/// Returns the counters of an interface. Userspace creates the entry before it attaches a program; an interface without
/// an entry counts as [`NIC_OTHER`].
#[inline(always)]
fn by_nic(nic: u32) -> Option<*mut NicNet> {
    NIC_NET.get_ptr_mut(nic).or_else(|| NIC_NET.get_ptr_mut(NIC_OTHER))
}

/// Counts one received packet for `host`; `false` if the map has no such host.
#[inline(always)]
fn received(host: RawHostId, bytes: u64) -> bool {
    let Some(entry) = HOST_NET.get_ptr_mut(host) else { return false };
    // SAFETY: as in `several`.
    let HostNet { rx_packets, rx_bytes, .. } = unsafe { &mut *entry };
    *rx_packets += 1;
    *rx_bytes += bytes;
    true
}

/// Counts transmitted packets for `host`; `false` if the map has no such host.
#[inline(always)]
fn sent(host: RawHostId, traffic: Traffic) -> bool {
    let Some(entry) = HOST_NET.get_ptr_mut(host) else { return false };
    // SAFETY: as in `several`.
    let HostNet { tx_packets, tx_bytes, .. } = unsafe { &mut *entry };
    *tx_packets += traffic.packets;
    *tx_bytes += traffic.bytes;
    true
}

// The kernel gives this number to no interface (`int ifindex`), so programs never count for it.
const _: () = assert!(NIC_GONE > i32::MAX as u32);
