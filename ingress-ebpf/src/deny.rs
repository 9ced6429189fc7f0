//! Looks addresses up in the deny list. A lookup in a long list costs more than all other work on a packet, and most
//! senders send more than one packet. Each CPU therefore caches the verdicts on the addresses that it saw last.

use aya_ebpf::btf_maps::lpm_trie::Key;
use ingress_common::{
    DenyRule, DenyVerdict,
    flow::unmapped,
    map::DENY_CHANGED_ALL,
    steer::{DENY_NONE, deny_verdict_place},
};

use crate::maps::{DENY_CHANGED, DENY_VERDICTS, DENY4, DENY6};

/// Returns the entry of the longest prefix that contains `addr` (IPv4 as v4-mapped): a rule or `DENY_PASS`.
#[inline(always)]
pub(crate) fn entry(addr: &[u8; 16]) -> Option<DenyRule> {
    // Read before the list: a verdict from before a change must not be taken for one from after it.
    let changed_ns = changed_ns();
    let Some(verdict) = DENY_VERDICTS.get_ptr_mut(deny_verdict_place(addr)) else { return asked(addr) };
    // SAFETY: the verifier checked the pointer against null. The value belongs to this CPU, and no other program runs
    // on it until this one has ended (`count.rs`).
    let verdict = unsafe { &mut *verdict };
    if verdict.changed_ns != changed_ns || changed_ns == 0 || verdict.addr != *addr {
        let rule = asked(addr).unwrap_or(DENY_NONE);
        *verdict = DenyVerdict { addr: *addr, changed_ns, rule, pad: 0 };
    }
    let rule = verdict.rule;
    (rule != DENY_NONE).then_some(rule)
}

/// Returns the time of the latest change of the list.
#[inline(always)]
fn changed_ns() -> u64 {
    let Some(changed_ns) = DENY_CHANGED.get_ptr(DENY_CHANGED_ALL) else { return 0 };
    // SAFETY: checked against null and aligned; volatile because userspace writes it at any time, in one store.
    unsafe { changed_ns.read_volatile() }
}

/// Looks `addr` up like [`entry`], without the cache.
#[inline(always)]
pub(crate) fn asked(addr: &[u8; 16]) -> Option<DenyRule> {
    match unmapped(addr) {
        Some(addr) => {
            let Key4 { key } = &Key4 { key: Key::new(32, addr) };
            DENY4.get(key).copied()
        }
        None => {
            let Key6 { _pad: _, key } = &Key6 { _pad: 0, key: Key::new(128, *addr) };
            DENY6.get(key).copied()
        }
    }
}

/// A key on the stack of the program. The verifier demands aligned access there, and the compiler would give aya's
/// packed key no alignment.
#[repr(C, align(8))]
struct Key4 {
    key: Key<[u8; 4]>,
}

/// Like [`Key4`]; padded so that the address, which is copied in words of eight bytes, starts at a multiple of eight.
#[repr(C, align(8))]
struct Key6 {
    _pad: u32,
    key: Key<[u8; 16]>,
}
