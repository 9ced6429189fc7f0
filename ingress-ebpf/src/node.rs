//! Answers the questions of `decide` from maps and helpers.

use aya_ebpf::helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns};
use ingress_common::{PortKey, PortRule, map::ALIVE_CURRENT};
use ingress_ebpf::decide::Node;

use crate::maps::{ALIVE, NODE_ADDRS, PORTS};

/// This node as its maps describe it.
pub(crate) struct Maps;

impl Node for Maps {
    #[inline(always)]
    fn rule(&self, port: &PortKey) -> Option<PortRule> {
        // SAFETY: the program never writes this map; a concurrent update by userspace replaces the whole element.
        unsafe { PORTS.get(port) }.copied()
    }

    #[inline(always)]
    fn holds(&self, addr: &[u8; 16]) -> bool {
        NODE_ADDRS.get_ptr(addr).is_some()
    }

    #[inline(always)]
    fn heartbeat_ns(&self) -> u64 {
        let Some(alive) = ALIVE.get_ptr(ALIVE_CURRENT) else { return 0 };
        // SAFETY: the verifier checked `alive` against null.
        let heartbeat = unsafe { &raw const (*alive).heartbeat_ns };
        // SAFETY: aligned and in bounds; volatile because userspace writes the word at any time, in one store.
        unsafe { heartbeat.read_volatile() }
    }

    #[inline(always)]
    fn now_ns(&self) -> u64 {
        // SAFETY: the helper takes no arguments and always succeeds.
        unsafe { bpf_ktime_get_ns() }
    }

    #[inline(always)]
    fn cpu(&self) -> u32 {
        // SAFETY: as `now_ns`.
        unsafe { bpf_get_smp_processor_id() }
    }
}
