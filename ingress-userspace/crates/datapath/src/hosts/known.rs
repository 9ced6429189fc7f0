//! Host ids known to a process, and the steps by which an id becomes free. The caller chooses the ids.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use ingress_common::{
    HostName, HostNet, RawHostId,
    flow::{FREE, GONE, UNATTRIBUTED},
};

use crate::error::Error;

/// Key of the latest assigned id.
pub(super) const LATEST: HostName = HostName { name: [0; 256] };

/// The maps of the node with names, ids and counters. The caller holds the lock of the pins.
pub(super) trait HostMaps {
    fn id(&self, name: &HostName) -> Result<Option<RawHostId>, Error>;
    fn set(&self, name: &HostName, id: RawHostId) -> Result<(), Error>;
    /// Removes a name; `false` if it has no id.
    fn remove(&self, name: &HostName) -> Result<bool, Error>;
    fn visit(&self, visit: impl FnMut(&HostName, RawHostId)) -> Result<(), Error>;
    /// Returns the packets and bytes counted by the programs.
    fn net(&self, id: RawHostId) -> Result<HostNet, Error>;
    fn add_net(&self, id: RawHostId, net: HostNet) -> Result<(), Error>;
    fn reset_net(&self, id: RawHostId) -> Result<(), Error>;
    /// Moves the counters of the proxy.
    fn move_requests(&self, from: RawHostId, to: RawHostId);
}

/// Ids known to this process. Ids become free only while no other process is alive, so `free` is complete. Another
/// process may have taken some of them since.
#[derive(Debug, Default)]
pub(super) struct KnownIds {
    pub(super) ids: HashMap<Box<str>, RawHostId>,
    pub(super) free: BTreeSet<RawHostId>,
    /// Ids without activity at the last check.
    pub(super) quiet: HashSet<RawHostId>,
    /// Ids without a name that are not free yet, because the kernel refused a step.
    pub(super) nameless: BTreeMap<RawHostId, Burial>,
}

/// Progress of an id between its name and being free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Burial {
    #[default]
    Begun,
    /// The counters of the programs are already added to [`GONE`].
    Added,
}

/// Result of [`super::HostIds::give_back`].
#[derive(Debug, Default)]
pub struct Given {
    /// Ids that have lost their names.
    pub ids: Vec<RawHostId>,
    /// Number of ids that became free: out of `ids`, and out of those that lost their names earlier.
    pub freed: usize,
    /// The first error, because of which an id kept its name or is not free yet. The next call tries again.
    pub error: Option<Error>,
}

// === impl KnownIds ===

impl KnownIds {
    pub(super) fn read(ledger: &impl HostMaps) -> Result<Self, Error> {
        let mut known = Self::default();
        ledger.visit(|name, id| {
            if name.is_counted() {
                known.ids.insert(name.to_string().into_boxed_str(), id);
            } else if *name != LATEST {
                known.free.insert(id);
            }
        })?;
        Ok(known)
    }

    /// Frees every id up to the latest one that has no name: a process may have been killed before writing it.
    pub(super) fn mend(&mut self, ledger: &impl HostMaps) -> Result<(), Error> {
        let latest = ledger.id(&LATEST)?.unwrap_or(UNATTRIBUTED);
        let named: HashSet<_> = self.ids.values().chain(&self.free).copied().collect();
        let mut nameless = (UNATTRIBUTED + 1..=latest).filter(|id| !named.contains(id));
        nameless.try_for_each(|id| self.bury(ledger, id).map(drop))
    }

    /// Takes the ids of `names` and frees them, at most `most` in all; ids left over from an earlier call come first.
    /// After an error, the id concerned is skipped, and the others continue.
    pub(super) fn give_back<'n>(
        &mut self,
        ledger: &impl HostMaps,
        names: impl IntoIterator<Item = (&'n str, RawHostId)>,
        most: usize,
    ) -> Given {
        let mut given = Given::default();
        let unfinished: Vec<_> = self.nameless.keys().copied().take(most).collect();
        let left = most - unfinished.len();
        for id in unfinished {
            given.note(self.bury(ledger, id));
        }
        for (name, id) in names.into_iter().take(left) {
            // The order matters: an id without a name is freed at the next start, even if this process dies here.
            match key(name).and_then(|key| ledger.remove(&key)) {
                Ok(_) => {
                    self.ids.remove(name);
                    self.quiet.remove(&id);
                    given.ids.push(id);
                    given.note(self.bury(ledger, id));
                }
                Err(error) => given.note(Err(error)),
            }
        }
        given
    }

    /// Moves the counters of an id without a name to [`GONE`], and frees the id. If [`GONE`] has no id yet, it gets
    /// this one. Returns whether the id is free. After an error, the id is kept in `nameless`, and another call
    /// resumes.
    fn bury(&mut self, ledger: &impl HostMaps, id: RawHostId) -> Result<bool, Error> {
        let burial = self.nameless.entry(id).or_default();
        let Some(&gone) = self.ids.get(GONE) else {
            ledger.set(&key(GONE)?, id)?;
            self.ids.insert(GONE.into(), id);
            self.nameless.remove(&id);
            return Ok(false);
        };
        if *burial == Burial::Begun {
            ledger.add_net(gone, ledger.net(id)?)?;
            *burial = Burial::Added;
        }
        ledger.reset_net(id)?;
        ledger.move_requests(id, gone);
        ledger.set(&free(id)?, id)?;
        self.nameless.remove(&id);
        self.free.insert(id);
        Ok(true)
    }

    /// Takes a free id.
    pub(super) fn take_free(&mut self, ledger: &impl HostMaps) -> Result<Option<RawHostId>, Error> {
        while let Some(id) = self.free.pop_first() {
            // `false`: another process has taken it.
            if ledger.remove(&free(id)?)? {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }
}

impl Given {
    fn note(&mut self, buried: Result<bool, Error>) {
        match buried {
            Ok(is_free) => self.freed += usize::from(is_free),
            Err(error) => {
                self.error.get_or_insert(error);
            }
        }
    }
}

pub(super) fn key(name: &str) -> Result<HostName, Error> {
    HostName::new(name).ok_or_else(|| Error::HostName(name.to_owned()))
}

fn free(id: RawHostId) -> Result<HostName, Error> {
    key(&format!("{FREE}{id}"))
}

#[cfg(test)]
mod tests {
    use std::{
        cell::{Cell, RefCell},
        io,
    };

    use super::*;

    /// Names and packets by id, with the number of steps before a failure.
    #[derive(Default)]
    struct Book {
        names: RefCell<BTreeMap<String, RawHostId>>,
        packets: RefCell<BTreeMap<RawHostId, u64>>,
        requests: RefCell<BTreeMap<RawHostId, u64>>,
        until_failure: Cell<Option<usize>>,
    }

    impl Book {
        /// Creates hosts `h1`, `h2`, … with as many packets and requests as their number.
        fn with_hosts(count: RawHostId) -> Self {
            let book = Self::default();
            book.names.borrow_mut().extend((1..=count).map(|id| (format!("h{id}"), id)));
            for counts in [&book.packets, &book.requests] {
                counts.borrow_mut().extend((1..=count).map(|id| (id, u64::from(id))));
            }
            book
        }

        fn step(&self) -> Result<(), Error> {
            match self.until_failure.get() {
                Some(0) => {
                    self.until_failure.set(None);
                    Err(Error::kernel("refuse", String::new(), io::Error::other("provoked")))
                }
                left => {
                    self.until_failure.set(left.map(|left| left - 1));
                    Ok(())
                }
            }
        }
    }

    impl HostMaps for Book {
        fn id(&self, name: &HostName) -> Result<Option<RawHostId>, Error> {
            self.step()?;
            Ok(self.names.borrow().get(&name.to_string()).copied())
        }

        fn set(&self, name: &HostName, id: RawHostId) -> Result<(), Error> {
            self.step()?;
            self.names.borrow_mut().insert(name.to_string(), id);
            Ok(())
        }

        fn remove(&self, name: &HostName) -> Result<bool, Error> {
            self.step()?;
            Ok(self.names.borrow_mut().remove(&name.to_string()).is_some())
        }

        fn visit(&self, mut visit: impl FnMut(&HostName, RawHostId)) -> Result<(), Error> {
            self.step()?;
            self.names.borrow().iter().for_each(|(name, id)| visit(&key(name).expect("a key"), *id));
            Ok(())
        }

        fn net(&self, id: RawHostId) -> Result<HostNet, Error> {
            self.step()?;
            let rx_packets = self.packets.borrow().get(&id).copied().unwrap_or_default();
            Ok(HostNet { rx_packets, ..HostNet::default() })
        }

        fn add_net(&self, id: RawHostId, net: HostNet) -> Result<(), Error> {
            self.step()?;
            *self.packets.borrow_mut().entry(id).or_default() += net.rx_packets;
            Ok(())
        }

        fn reset_net(&self, id: RawHostId) -> Result<(), Error> {
            self.step()?;
            self.packets.borrow_mut().remove(&id);
            Ok(())
        }

        fn move_requests(&self, from: RawHostId, to: RawHostId) {
            let mut requests = self.requests.borrow_mut();
            let moved = requests.remove(&from).unwrap_or_default();
            *requests.entry(to).or_default() += moved;
        }
    }

    const NAMES: [(&str, RawHostId); 4] = [("h1", 1), ("h2", 2), ("h3", 3), ("h4", 4)];

    #[test]
    fn an_error_at_any_step_delays_one_id_and_is_repaired() {
        let mut steps = 0;
        loop {
            let book = Book::with_hosts(4);
            let mut known = KnownIds::read(&book).expect("readable");
            book.until_failure.set(Some(steps));
            let first = known.give_back(&book, NAMES, usize::MAX);
            if first.error.is_none() {
                break;
            }
            // All others were released, and the caller gets their ids.
            assert!(first.ids.len() >= NAMES.len() - 1, "{steps}: {first:?}");
            assert!(first.ids.iter().all(|id| !book.names.borrow().contains_key(&format!("h{id}"))), "{steps}");
            let left = NAMES.into_iter().filter(|(name, _)| known.ids.contains_key(*name));
            let second = known.give_back(&book, left.collect::<Vec<_>>(), usize::MAX);
            assert!(second.error.is_none(), "{steps}: {second:?}");
            let mut ids = [first.ids, second.ids].concat();
            ids.sort_unstable();
            assert_eq!(ids, [1, 2, 3, 4], "{steps}: each once");
            // The remaining id is that of `GONE`.
            assert_eq!((first.freed + second.freed, known.free.len(), known.nameless.len()), (3, 3, 0), "{steps}");
            let gone = known.ids[GONE];
            assert_eq!(*book.packets.borrow(), BTreeMap::from([(gone, 10)]), "{steps}: counted once");
            assert_eq!(*book.requests.borrow(), BTreeMap::from([(gone, 10)]), "{steps}");
            steps += 1;
        }
        assert!(steps >= 15, "only {steps} steps could fail");
    }

    #[test]
    fn each_call_frees_a_limited_number_of_ids() {
        let book = Book::with_hosts(4);
        let mut known = KnownIds::read(&book).expect("readable");
        assert_eq!(known.give_back(&book, NAMES, 3).ids, [1, 2, 3]);
        // Unfinished ids come first, and count towards the limit.
        known.nameless.insert(2, Burial::Added);
        let given = known.give_back(&book, [("h4", 4)], 1);
        assert_eq!((given.ids.as_slice(), given.freed), (&[][..], 1));
        assert_eq!(known.give_back(&book, [("h4", 4)], 1).ids, [4]);
    }
}
