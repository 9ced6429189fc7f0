//! Flags that all ports have alike, each part its own: they tell the programs what to look into at all.

use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use ingress_common::{PortKey, PortRule};

use super::{error::Error, table::Table};

/// Bits of `ingress_common::steer::PORT_*` that belong to one part, and those of them that are set.
#[derive(Debug)]
pub(super) struct PortFlags {
    own: u16,
    set: AtomicU16,
}

// === impl PortFlags ===

impl PortFlags {
    /// `own` are the bits of the part, `set` those that it wants.
    pub(super) const fn new(own: u16, set: u16) -> Self {
        Self { own, set: AtomicU16::new(set) }
    }

    /// The flags of a port, with what the part wants of it.
    pub(super) fn apply(&self, flags: u16) -> u16 {
        changed(flags, self.own, self.set.load(Relaxed))
    }

    /// Sets exactly these of the part's bits, of all ports that there are and of those that come.
    pub(super) fn set(&self, set: u16, ports: &Table<PortKey, PortRule>) -> Result<(), Error> {
        self.learn(set);
        write(ports, self.own, set)
    }

    /// Has the ports that come have these; those that there are have them already.
    pub(super) fn learn(&self, set: u16) {
        self.set.store(set & self.own, Relaxed);
    }
}

/// Sets exactly these of a part's `own` bits, of all ports that there are.
pub(super) fn write(ports: &Table<PortKey, PortRule>, own: u16, set: u16) -> Result<(), Error> {
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
