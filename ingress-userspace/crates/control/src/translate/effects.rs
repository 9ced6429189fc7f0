//! Tracks which Ingresses are in effect. Each host reports the claimants from which it takes nothing. An Ingress is in
//! effect while fewer hosts report it than it claims. This module judges no claim.

use std::collections::{BTreeSet, HashMap};

use crate::change::ObjectName;
use ingress_model::{HostPattern, Tree};

#[derive(Default)]
pub(super) struct Effects {
    /// Ingresses that claim a host in vain, by host. Most hosts have none.
    vain: HashMap<HostPattern, Box<[ObjectName]>>,
    /// Number of hosts that an Ingress claims in vain.
    counts: HashMap<ObjectName, usize>,
    /// Ingresses for which one of the two numbers may have changed.
    touched: BTreeSet<ObjectName>,
    in_effect: Tree<ObjectName, ()>,
}

impl Effects {
    /// Sets the Ingresses that claim the host `pattern` in vain.
    pub(super) fn set(&mut self, pattern: &HostPattern, vain: Box<[ObjectName]>) {
        let before = match vain.is_empty() {
            true => self.vain.remove(pattern),
            false => self.vain.insert(pattern.clone(), vain.clone()),
        };
        for name in &vain {
            *self.counts.entry(name.clone()).or_default() += 1;
        }
        for name in before.iter().flatten() {
            if let Some(count) = self.counts.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(name);
                }
            }
        }
        self.touched.extend(before.into_iter().flatten().chain(vain));
    }

    /// Records that `name` claims other hosts than before.
    pub(super) fn touch(&mut self, name: &ObjectName) {
        self.touched.insert(name.clone());
    }

    /// Returns the Ingresses in effect; `hosts` returns the number of hosts that an Ingress claims.
    pub(super) fn settle(&mut self, hosts: impl Fn(&ObjectName) -> usize) -> Tree<ObjectName, ()> {
        for name in std::mem::take(&mut self.touched) {
            let vain = self.counts.get(&name).copied().unwrap_or_default();
            if hosts(&name) > vain {
                self.in_effect.insert(name, ());
            } else {
                self.in_effect.remove(&name);
            }
        }
        self.in_effect.clone()
    }
}
