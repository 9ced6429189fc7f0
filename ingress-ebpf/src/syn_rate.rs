//! The rate of SYNs, by which a flood begins and ends (ADR 0063). Programs on all CPUs count without locks.

use core::intrinsics::{AtomicOrdering, atomic_xadd};

use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use ingress_common::{
    map::{SYN_COOKIES_ONLY, SYN_COUNTS_ONLY, SYN_FLOOD_ONLY},
    syn_cookies::{BATCH, begun, counted},
};

use crate::maps::{SYN_COOKIES, SYN_COUNTS, SYN_FLOOD};

/// Returns `true` if there is a flood.
#[inline(always)]
pub(crate) fn is_flood(is_request: bool) -> bool {
    let Some(flood) = SYN_FLOOD.get_ptr_mut(SYN_FLOOD_ONLY) else { return false };
    // SAFETY: checked against null, and a field of the value.
    let until = unsafe { &raw mut (*flood).until_ns };
    if is_request {
        // SAFETY: as above.
        count_request(until, unsafe { &raw mut (*flood).window });
    }
    // SAFETY: as above; volatile because programs on other CPUs write it.
    let until_ns = unsafe { until.read_volatile() };
    if until_ns == 0 {
        return false;
    }
    if now_ns() <= until_ns {
        return true;
    }
    // Spares the next packets the clock.
    // SAFETY: as above.
    unsafe { until.write_volatile(0) };
    false
}

/// Counts a request on this CPU, and each batch in the shared window.
#[inline(always)]
fn count_request(until: *mut u64, window: *mut u64) {
    let Some(count) = SYN_COUNTS.get_ptr_mut(SYN_COUNTS_ONLY) else { return };
    // SAFETY: checked against null; the value belongs to this CPU.
    let count = unsafe { &mut *count };
    *count = count.wrapping_add(1);
    if *count % u64::from(BATCH) != 0 {
        return;
    }
    let Some(settings) = SYN_COOKIES.get(SYN_COOKIES_ONLY) else { return };
    let now = now_ns();
    // SAFETY: the caller's pointer to a field; volatile because programs on other CPUs write it.
    let counted = counted(unsafe { window.read_volatile() }, now);
    let count = if let Some(count) = counted {
        // SAFETY: as above. An addition loses no batch, unless another CPU begins the next window meanwhile.
        unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(window, u64::from(BATCH)) };
        count + BATCH
    } else {
        // SAFETY: as above.
        unsafe { window.write_volatile(begun(now)) };
        BATCH
    };
    // SAFETY: as above.
    if let Some(end) = settings.flood_until(count, unsafe { until.read_volatile() }, now) {
        // SAFETY: as above.
        unsafe { until.write_volatile(end) };
    }
}

#[inline(always)]
pub(crate) fn now_ns() -> u64 {
    // SAFETY: the helper takes no arguments and always succeeds.
    unsafe { bpf_ktime_get_ns() }
}
