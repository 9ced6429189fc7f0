//! What the deny list has for an address. A walk through a long list costs more than all else that is done to a packet,
//! and who sends one packet mostly sends more: so each CPU remembers the verdicts on those that it saw last.

use aya_ebpf::btf_maps::lpm_trie::Key;
use ingress_common::{
    DenyRule, DenyVerdict,
    flow::unmapped,
    map::DENY_CHANGED_ALL,
    steer::{DENY_NONE, deny_verdict_place},
};

use crate::maps::{DENY_CHANGED, DENY_VERDICTS, DENY4, DENY6};

/// A rule or `DENY_PASS`, by the longest prefix that holds `addr` (IPv4 as v4-mapped).
#[inline(always)]
pub(crate) fn entry(addr: &[u8; 16]) -> Option<DenyRule> {
    // Before the list: a verdict of the list before a change is not to pass for one of the list after it.
    let changed_ns = changed_ns();
    let Some(verdict) = DENY_VERDICTS.get_ptr_mut(deny_verdict_place(addr)) else { return asked(addr) };
    // SAFETY: the verifier checked it against null; the value belongs to this CPU, on which no other program runs until
    // this one has ended (`count.rs`).
    let verdict = unsafe { &mut *verdict };
    if verdict.changed_ns != changed_ns || changed_ns == 0 || verdict.addr != *addr {
        let rule = asked(addr).unwrap_or(DENY_NONE);
        *verdict = DenyVerdict { addr: *addr, changed_ns, rule, pad: 0 };
    }
    let rule = verdict.rule;
    (rule != DENY_NONE).then_some(rule)
}

/// When the list was changed last.
#[inline(always)]
fn changed_ns() -> u64 {
    let Some(changed_ns) = DENY_CHANGED.get_ptr(DENY_CHANGED_ALL) else { return 0 };
    // SAFETY: checked against null and aligned; volatile because userspace writes it at any time, in one store.
    unsafe { changed_ns.read_volatile() }
}

/// As [`entry`], with nothing remembered.
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

/// A key in the stack of the program, where the verifier wants aligned access and the compiler, left to itself, would
/// give aya's packed key no alignment.
#[repr(C, align(8))]
struct Key4 {
    key: Key<[u8; 4]>,
}

/// As [`Key4`]; padded so that the address, which is copied by words of eight bytes, stands at a multiple of eight.
#[repr(C, align(8))]
struct Key6 {
    _pad: u32,
    key: Key<[u8; 16]>,
}
