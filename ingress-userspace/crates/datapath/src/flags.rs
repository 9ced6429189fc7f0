//! Port flags shared by all ports. Each part of the datapath has its own bits, which enable lookups in the programs.

use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use ingress_common::{PortKey, PortRule};

use super::{error::Error, table::MapTable};

/// Bits of `ingress_common::steer::PORT_*` that belong to one part, and the subset that is set.
#[derive(Debug)]
pub(super) struct PortFlags {
    own: u16,
    set: AtomicU16,
}

// === impl PortFlags ===

impl PortFlags {
    /// Creates the flags of a part: `own` are its bits, `set` the enabled ones.
    pub(super) const fn new(own: u16, set: u16) -> Self {
        Self { own, set: AtomicU16::new(set) }
    }

    /// Adds the enabled bits to the flags of a port.
    pub(super) fn apply(&self, flags: u16) -> u16 {
        changed(flags, self.own, self.set.load(Relaxed))
    }

    /// Sets exactly these bits of the part, on all current and future ports.
    pub(super) fn set(&self, set: u16, ports: &MapTable<PortKey, PortRule>) -> Result<(), Error> {
        self.learn(set);
        write(ports, self.own, set)
    }

    /// Records these bits for future ports; current ports have them already.
    pub(super) fn learn(&self, set: u16) {
        self.set.store(set & self.own, Relaxed);
    }
}

/// Sets exactly these of a part's `own` bits on all current ports.
pub(super) fn write(ports: &MapTable<PortKey, PortRule>, own: u16, set: u16) -> Result<(), Error> {
    for (key, rule) in ports.entries()? {
        let flags = changed(rule.flags, own, set);
        if flags != rule.flags {
            ports.set(&key, &PortRule { flags, ..rule })?;
        }
    }
    Ok(())
}

const fn changed(flags: u16, own: u16, set: u16) -> u16 {
    flags & !own | set & own
}
