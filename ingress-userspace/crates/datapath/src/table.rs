//! Pinned maps with typed keys and values, read and changed by system calls through a shared reference.

use std::{
    io,
    marker::PhantomData,
    ops::AddAssign,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use aya::Pod;

use super::{
    error::Error,
    pins::Pins,
    sys::{self, LPM_TRIE, MapInfo, PinAccess},
};

/// Elements per system call of a scan: enough to make the call cheap per element, 1 MiB at 64 CPUs.
const BATCH: usize = 512;

/// A map with one value per key.
#[derive(Debug)]
pub(super) struct MapTable<K, V> {
    fd: OwnedFd,
    name: &'static str,
    entries: u32,
    types: PhantomData<fn() -> (K, V)>,
}

/// A map keyed by prefixes; lookups by programs return the value of the longest match.
#[derive(Debug)]
pub(super) struct Trie<K, V>(MapTable<K, V>);

/// A map with one value per key and CPU, and integer keys.
#[derive(Debug)]
pub(super) struct PerCpu<V> {
    fd: OwnedFd,
    name: &'static str,
    cpus: usize,
    entries: u32,
    id: u32,
    types: PhantomData<fn() -> V>,
}

// === impl MapTable ===

impl<K: Pod, V: Pod> MapTable<K, V> {
    /// Opens the pinned map `name`.
    pub(super) fn open(pins: &Pins, name: &'static str, access: PinAccess) -> Result<Self, Error> {
        Self::open_kind(pins, name, access, false)
    }

    fn open_kind(pins: &Pins, name: &'static str, access: PinAccess, is_trie: bool) -> Result<Self, Error> {
        let (fd, info) = open(pins, name, access, is_trie, (size_of::<K>(), size_of::<V>()))?;
        Ok(Self { fd, name, entries: info.max_entries, types: PhantomData })
    }

    /// Returns the maximum number of entries.
    pub(super) const fn capacity(&self) -> u32 {
        self.entries
    }

    pub(super) const fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn get(&self, key: &K) -> Result<Option<V>, Error>
    where
        V: Default,
    {
        let mut value = [V::default()];
        let found = sys::lookup(self.fd(), key, &mut value).map_err(|e| self.error("read", e))?;
        Ok(found.then_some(value[0]))
    }

    pub(super) fn set(&self, key: &K, value: &V) -> Result<(), Error> {
        self.try_set(key, value).map_err(|e| self.error("write", e))
    }

    /// Same as [`MapTable::set`], for callers that handle a full map themselves.
    #[inline]
    pub(super) fn try_set(&self, key: &K, value: &V) -> io::Result<()> {
        sys::update(self.fd(), key, std::slice::from_ref(value))
    }

    /// Sets the value of a key; `false` if the map is full.
    pub(super) fn set_if_room(&self, key: &K, value: &V) -> Result<bool, Error> {
        match self.try_set(key, value) {
            Ok(()) => Ok(true),
            // Hashes return the first error, tries the second.
            Err(error) if matches!(error.raw_os_error(), Some(libc::E2BIG | libc::ENOSPC)) => Ok(false),
            Err(source) => Err(self.error("write", source)),
        }
    }

    #[inline]
    pub(super) fn remove(&self, key: &K) -> Result<bool, Error> {
        sys::delete(self.fd(), key).map_err(|e| self.error("delete from", e))
    }

    /// Returns all elements. Elements added or removed meanwhile may or may not be included.
    pub(super) fn entries(&self) -> Result<Vec<(K, V)>, Error>
    where
        K: Default,
        V: Default,
    {
        let mut all = Vec::new();
        self.scan(|key, value| all.push((*key, *value)))?;
        Ok(all)
    }

    /// Same as [`MapTable::entries`], but visits one at a time.
    pub(super) fn scan(&self, mut visit: impl FnMut(&K, &V)) -> Result<(), Error>
    where
        K: Default,
        V: Default,
    {
        let read = scan::<K, V, u32>(self.fd(), 1, usize::MAX, |key, values| visit(key, &values[0]));
        read.map_err(|e| self.error("read", e))
    }

    /// Returns the number of elements. Reads all of them, because the kernel keeps no count.
    pub(super) fn count(&self) -> Result<usize, Error>
    where
        K: Default,
        V: Default,
    {
        let mut count = 0;
        self.scan(|_, _| count += 1)?;
        Ok(count)
    }

    /// Replaces the content by `wanted`: first additions and changes, then removals. If there is no room for both,
    /// removals make room.
    pub(super) fn replace(&self, wanted: &[(K, V)]) -> Result<(), Error>
    where
        K: Default + PartialEq,
        V: Default + PartialEq,
    {
        let present = self.entries()?;
        let mut unwanted = present.iter().filter(|(key, _)| !wanted.iter().any(|(other, _)| other == key));
        for (key, value) in wanted.iter().filter(|entry| !present.contains(entry)) {
            while !self.set_if_room(key, value)? {
                let Some((gone, _)) = unwanted.next() else {
                    // No element is left to remove: returns the kernel's error.
                    self.set(key, value)?;
                    break;
                };
                self.remove(gone)?;
            }
        }
        for (key, _) in unwanted {
            self.remove(key)?;
        }
        Ok(())
    }

    fn error(&self, operation: &'static str, source: io::Error) -> Error {
        Error::kernel(operation, format!("map {}", self.name), source)
    }
}

impl<V: Pod + Default> MapTable<u32, V> {
    /// Returns the first `count` values of an array.
    pub(super) fn values(&self, count: u32) -> Result<Vec<V>, Error> {
        let mut all = vec![V::default(); usize::try_from(count).unwrap_or(0)];
        let read = scan::<u32, V, u32>(self.fd(), 1, all.len(), |key, values| {
            if let Some(value) = usize::try_from(*key).ok().and_then(|key| all.get_mut(key)) {
                *value = values[0];
            }
        });
        read.map_err(|source| self.error("read", source))?;
        Ok(all)
    }
}

// === impl Trie ===

impl<K: Pod + Default, V: Pod + Default> Trie<K, V> {
    /// Opens the pinned trie `name`.
    pub(super) fn open(pins: &Pins, name: &'static str, access: PinAccess) -> Result<Self, Error> {
        MapTable::open_kind(pins, name, access, true).map(Self)
    }

    /// Returns the maximum number of prefixes.
    pub(super) const fn capacity(&self) -> u32 {
        self.0.capacity()
    }

    /// Returns all elements. Elements added or removed meanwhile may or may not be included, and others may occur
    /// twice.
    pub(super) fn entries(&self) -> Result<Vec<(K, V)>, Error> {
        let Self(table) = self;
        let mut all = Vec::new();
        let read = scan::<K, V, K>(table.fd(), 1, usize::MAX, |key, values| all.push((*key, values[0])));
        read.map(|()| all).map_err(|source| table.error("read", source))
    }

    /// Sets the value of a prefix; `false` if the trie is full.
    pub(super) fn set(&self, key: &K, value: &V) -> Result<bool, Error> {
        self.0.set_if_room(key, value)
    }

    pub(super) fn remove(&self, key: &K) -> Result<bool, Error> {
        self.0.remove(key)
    }
}

// === impl PerCpu ===

impl<V: Pod + Default + AddAssign> PerCpu<V> {
    /// Opens the pinned per-CPU array or hash `name`.
    pub(super) fn open(pins: &Pins, name: &'static str, access: PinAccess) -> Result<Self, Error> {
        let (fd, info) = open(pins, name, access, false, (size_of::<u32>(), size_of::<V>()))?;
        let cpus = aya::util::nr_cpus().map_err(|(path, source)| Error::kernel("read", path.to_owned(), source))?;
        Ok(Self { fd, name, cpus, entries: info.max_entries, id: info.id, types: PhantomData })
    }

    /// Returns the number of entries, for a hash the maximum.
    pub(super) const fn capacity(&self) -> u32 {
        self.entries
    }

    /// Returns the kernel's id of this map, which is not reused before the next boot.
    pub(super) const fn id(&self) -> u32 {
        self.id
    }

    /// Returns the first `count` entries of an array, each summed over the CPUs.
    pub(super) fn sums(&self, count: u32) -> Result<Vec<V>, Error> {
        let mut all = vec![V::default(); usize::try_from(count).unwrap_or(0)];
        let read = scan::<u32, V, u32>(self.fd.as_fd(), self.cpus, all.len(), |key, values| {
            if let Some(sum) = usize::try_from(*key).ok().and_then(|key| all.get_mut(key)) {
                values.iter().for_each(|value| *sum += *value);
            }
        });
        read.map_err(|source| self.error("read", source))?;
        Ok(all)
    }

    /// Returns one entry, summed over the CPUs; zero if there is none.
    pub(super) fn sum(&self, key: u32) -> Result<V, Error> {
        let mut sum = V::default();
        self.read(key)?.into_iter().flatten().for_each(|value| sum += value);
        Ok(sum)
    }

    /// Returns every entry of a hash with its key, summed over the CPUs.
    pub(super) fn entries(&self) -> Result<Vec<(u32, V)>, Error> {
        let mut all = Vec::new();
        let read = scan::<u32, V, u32>(self.fd.as_fd(), self.cpus, usize::MAX, |key, values| {
            let mut sum = V::default();
            values.iter().for_each(|value| sum += *value);
            all.push((*key, sum));
        });
        read.map_err(|source| self.error("read", source))?;
        Ok(all)
    }

    /// Creates the entry `key` of a hash with the value zero, unless it exists.
    pub(super) fn ensure(&self, key: u32) -> Result<(), Error> {
        if self.read(key)?.is_some() {
            return Ok(());
        }
        self.write(key, &self.zeros())
    }

    /// Removes an entry of a hash.
    pub(super) fn remove(&self, key: u32) -> Result<(), Error> {
        sys::delete(self.fd.as_fd(), &key).map(drop).map_err(|e| self.error("delete from", e))
    }

    /// Changes the first CPU's value of an entry that no program writes.
    pub(super) fn change_first(&self, key: u32, change: impl FnOnce(&mut V)) -> Result<(), Error> {
        let mut values = self.read(key)?.unwrap_or_else(|| self.zeros());
        if let Some(first) = values.first_mut() {
            change(first);
        }
        self.write(key, &values)
    }

    /// Sets an entry to zero on every CPU. Concurrent additions by a program may be lost.
    pub(super) fn reset(&self, key: u32) -> Result<(), Error> {
        self.write(key, &self.zeros())
    }

    /// Returns the value of each CPU, or `None` if the entry does not exist.
    fn read(&self, key: u32) -> Result<Option<Vec<V>>, Error> {
        let mut values = self.zeros();
        let is_found = sys::lookup(self.fd.as_fd(), &key, &mut values).map_err(|e| self.error("read", e))?;
        Ok(is_found.then_some(values))
    }

    fn write(&self, key: u32, values: &[V]) -> Result<(), Error> {
        sys::update(self.fd.as_fd(), &key, values).map_err(|e| self.error("write", e))
    }

    fn zeros(&self) -> Vec<V> {
        vec![V::default(); self.cpus]
    }

    fn error(&self, operation: &'static str, source: io::Error) -> Error {
        Error::kernel(operation, format!("map {}", self.name), source)
    }
}

/// Opens a pinned map. Checks that its kind (trie or not) and the sizes of keys and values match our types: every later
/// call relies on both.
fn open(
    pins: &Pins,
    name: &'static str,
    access: PinAccess,
    is_trie: bool,
    (key, value): (usize, usize),
) -> Result<(OwnedFd, MapInfo), Error> {
    let path = pins.map(name);
    let fd =
        sys::open_pin(&path, access).map_err(|source| Error::kernel("open", path.display().to_string(), source))?;
    let info: MapInfo =
        sys::info(fd.as_fd()).map_err(|source| Error::kernel("inspect", path.display().to_string(), source))?;
    if (info.kind == LPM_TRIE) != is_trie {
        let found = format!("a map of kind {}", info.kind);
        let expected = if is_trie { "a trie" } else { "no trie" };
        return Err(Error::Layout { path, found, expected: expected.to_owned() });
    }
    let found = (usize::try_from(info.key_size).ok(), usize::try_from(info.value_size).ok());
    if found != (Some(key), Some(value)) {
        let found = format!("{} → {} bytes", info.key_size, info.value_size);
        return Err(Error::Layout { path, found, expected: format!("{key} → {value} bytes") });
    }
    Ok((fd, info))
}

/// Visits the elements, of arrays in their order, and not many more than `limit`; `T` as in [`sys::lookup_batch`].
fn scan<K: Pod + Default, V: Pod + Default, T: Pod + Default>(
    map: BorrowedFd<'_>,
    per_key: usize,
    limit: usize,
    mut visit: impl FnMut(&K, &[V]),
) -> io::Result<()> {
    let mut batch = BATCH;
    let mut left = limit;
    let mut from: Option<T> = None;
    while left > 0 {
        let mut keys = vec![K::default(); batch];
        let mut values = vec![V::default(); batch * per_key];
        let step = match sys::lookup_batch(map, from, &mut keys, &mut values, per_key) {
            Ok(step) => step,
            // A hash bucket holds more than a batch; such hashes are degenerate, but readable.
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) && batch < 1 << 20 => {
                batch *= 2;
                continue;
            }
            // The error occurs at the first batch, before any element was visited.
            Err(error) if error.raw_os_error() == Some(sys::ENOTSUPP) => return walk(map, per_key, limit, visit),
            // A trie element was removed between the reads of its key and its value.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        keys.iter().zip(values.chunks_exact(per_key)).take(step.count).for_each(|(key, values)| visit(key, values));
        left = left.saturating_sub(step.count);
        from = step.next;
        if from.is_none() {
            break;
        }
    }
    Ok(())
}

/// Same as [`scan`], with two system calls for each element.
fn walk<K: Pod + Default, V: Pod + Default>(
    map: BorrowedFd<'_>,
    per_key: usize,
    limit: usize,
    mut visit: impl FnMut(&K, &[V]),
) -> io::Result<()> {
    let mut values = vec![V::default(); per_key];
    let mut from: Option<K> = None;
    for _ in 0..limit {
        let Some(key) = sys::next_key(map, from.as_ref())? else { break };
        // The element may have been removed meanwhile.
        if sys::lookup(map, &key, &mut values)? {
            visit(&key, &values);
        }
        from = Some(key);
    }
    Ok(())
}
