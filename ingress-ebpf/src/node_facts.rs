//! Facts about this node that decisions ask for: its ports, addresses, workers, share and deny list. Maps answer in the
//! kernel, a fake in tests.

use ingress_common::{DenyRule, PortKey, PortRule, Share, WorkerLoad};

/// The state that decisions depend on. Queried lazily, cheapest question first; each answer describes the present
/// moment.
pub trait Node {
    /// Returns the rule of a steered port.
    fn rule(&self, port: &PortKey) -> Option<PortRule>;
    /// Returns the flags of `addr` (IPv4 as v4-mapped), bits of `ADDR_*`; `None` if it is not an address of this node.
    fn address_flags(&self, addr: &[u8; 16]) -> Option<u32>;
    /// Returns `true` if `addr` (IPv4 as v4-mapped) is an address of this node.
    #[inline(always)]
    fn holds(&self, addr: &[u8; 16]) -> bool {
        self.address_flags(addr).is_some()
    }
    /// Looks `addr` (IPv4 as v4-mapped) up in the deny list. Returns the entry of the longest prefix: a rule or
    /// [`DENY_PASS`](ingress_common::steer::DENY_PASS).
    fn deny_entry(&self, addr: &[u8; 16]) -> Option<DenyRule>;
    /// Returns the load of a worker, by its index in the map of workers; `None` beyond the end of the map.
    fn worker(&self, index: u32) -> Option<WorkerLoad>;
    /// Returns the share of the clients whose connections are taken. Default: all.
    #[inline(always)]
    fn share(&self) -> Share {
        Share::default()
    }
    /// Returns the time of the proxy's latest heartbeat; 0 for none.
    fn heartbeat_ns(&self) -> u64;
    /// Returns the time on `CLOCK_MONOTONIC`.
    fn now_ns(&self) -> u64;
    /// Returns the number of the CPU that runs the program.
    fn cpu(&self) -> u32;
}
