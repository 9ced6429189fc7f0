//! System calls of bpf(2) that aya does not offer: links without netlink fallback and with update in place for every
//! program type, typed access to pinned maps through a shared reference, memory-mapped arrays. Contains no policy.

use std::{
    ffi::{CStr, CString},
    io,
    os::{
        fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
    ptr::NonNull,
    time::Duration,
};

use aya::Pod;
use nix::{
    net::if_::if_nametoindex,
    sys::statfs::{BPF_FS_MAGIC, statfs},
    time::ClockId,
};

/// Attachment type of a link, as in `enum bpf_attach_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum AttachType {
    SkLookup = 36,
    Xdp = 37,
    /// From Linux 6.6 on (kernel commit e420bed02507); before, and without `CONFIG_NET_XGRESS`, such links give EINVAL.
    TcxIngress = 46,
    /// Same requirements as `TcxIngress`.
    TcxEgress = 47,
}

/// The used part of `struct bpf_link_info`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct LinkInfo {
    pub kind: u32,
    pub id: u32,
    pub prog_id: u32,
    pad: u32,
    /// XDP, tcx: interface index, 0 once the device is gone. sk_lookup: inode of the network namespace, 0 once that is
    /// gone.
    pub target: u32,
    rest: [u32; 11],
}

/// The used part of `struct bpf_map_info`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct MapInfo {
    pub kind: u32,
    pub id: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub flags: u32,
    name: [u8; 16],
}

// SAFETY: `repr(C)` of integers without padding; any bit pattern is valid.
unsafe impl Pod for LinkInfo {}
// SAFETY: as above.
unsafe impl Pod for MapInfo {}

#[repr(C)]
struct Element {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct Batch {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    element_flags: u64,
    flags: u64,
}

#[repr(C)]
struct Object {
    path: u64,
    fd: u32,
    flags: u32,
}

#[repr(C)]
struct Info {
    fd: u32,
    length: u32,
    info: u64,
}

#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
struct LinkDetach {
    link_fd: u32,
}

#[repr(C)]
struct LinkUpdate {
    link_fd: u32,
    new_prog_fd: u32,
    flags: u32,
    old_prog_fd: u32,
}

/// Type of maps with keys as batch positions, `BPF_MAP_TYPE_LPM_TRIE`.
pub(super) const LPM_TRIE: u32 = 11;

const MAP_LOOKUP_ELEM: libc::c_int = 1;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const MAP_DELETE_ELEM: libc::c_int = 3;
const MAP_GET_NEXT_KEY: libc::c_int = 4;
const OBJ_PIN: libc::c_int = 6;
const OBJ_GET: libc::c_int = 7;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const MAP_LOOKUP_BATCH: libc::c_int = 24;
const LINK_CREATE: libc::c_int = 28;
const LINK_UPDATE: libc::c_int = 29;
const LINK_DETACH: libc::c_int = 34;

/// Internal error number of the kernel, unknown to libc, for map types without batch commands.
pub(super) const ENOTSUPP: i32 = 524;

/// `BPF_F_RDONLY`.
const READ_ONLY: u32 = 1 << 3;

/// Calls bpf(2).
///
/// # Safety
/// Every address in `attr` must be valid for the accesses of `command`.
unsafe fn bpf<T>(command: libc::c_int, attr: &mut T) -> io::Result<RawFd> {
    // SAFETY: `attr` is valid for reads and writes of its size; the caller guarantees the addresses in it.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
}

fn address<T: ?Sized>(pointer: *const T) -> u64 {
    pointer.cast::<()>() as u64
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

/// Wraps a new descriptor returned by a successful bpf(2) call.
fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just created the descriptor for this process, and no other code knows it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from)
}

// === maps ===

/// Reads the value under `key` into `value` (of all CPUs for a per-CPU map); `false` if there is none.
pub(super) fn lookup<K: Pod, V: Pod>(map: BorrowedFd<'_>, key: &K, value: &mut [V]) -> io::Result<bool> {
    let mut attr =
        Element { map_fd: raw(map), pad: 0, key: address(key), value: address(value.as_mut_ptr()), flags: 0 };
    // SAFETY: `Table` and `PerCpu` check at construction that key and value have the sizes of the map.
    match unsafe { bpf(MAP_LOOKUP_ELEM, &mut attr) } {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Sets the value under `key`.
pub(super) fn update<K: Pod, V: Pod>(map: BorrowedFd<'_>, key: &K, value: &[V]) -> io::Result<()> {
    let mut attr = Element { map_fd: raw(map), pad: 0, key: address(key), value: address(value.as_ptr()), flags: 0 };
    // SAFETY: as in `lookup`.
    unsafe { bpf(MAP_UPDATE_ELEM, &mut attr) }.map(drop)
}

/// Removes `key`; `false` if it did not exist.
pub(super) fn delete<K: Pod>(map: BorrowedFd<'_>, key: &K) -> io::Result<bool> {
    let mut attr = Element { map_fd: raw(map), pad: 0, key: address(key), value: 0, flags: 0 };
    // SAFETY: as in `lookup`.
    match unsafe { bpf(MAP_DELETE_ELEM, &mut attr) } {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A step of an iteration over a map.
pub(super) struct Step<T> {
    /// Number of elements written.
    pub count: usize,
    /// Position of the next step; `None` at the end.
    pub next: Option<T>,
}

/// Returns the key after `from`, or the first one; `None` at the end. Hashes and tries start over if `from` was
/// removed.
pub(super) fn next_key<K: Pod + Default>(map: BorrowedFd<'_>, from: Option<&K>) -> io::Result<Option<K>> {
    let mut next = K::default();
    // The next key is written to the place of a value.
    let mut attr = Element {
        map_fd: raw(map),
        pad: 0,
        key: from.map_or(0, |key| address(std::ptr::from_ref(key))),
        value: address(&raw mut next),
        flags: 0,
    };
    // SAFETY: as in `lookup`; both keys have the size of the map's.
    match unsafe { bpf(MAP_GET_NEXT_KEY, &mut attr) } {
        Ok(_) => Ok(Some(next)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads the next elements after `from` (kernel commit cb4d03ab499d for hashes and arrays; per-CPU arrays and tries
/// support it from Linux 5.13 on, f008d732ab18, and give [`ENOTSUPP`] before).
///
/// `values` has room for `per_key` values per key. `T` is the position type of this kind of map: 4 bytes for arrays and
/// hashes, a key for tries.
pub(super) fn lookup_batch<K: Pod, V: Pod, T: Pod + Default>(
    map: BorrowedFd<'_>,
    from: Option<T>,
    keys: &mut [K],
    values: &mut [V],
    per_key: usize,
) -> io::Result<Step<T>> {
    let mut next = T::default();
    let count = keys.len().min(values.len() / per_key.max(1));
    let mut attr = Batch {
        in_batch: from.as_ref().map_or(0, |token| address(std::ptr::from_ref(token))),
        out_batch: address(&raw mut next),
        keys: address(keys.as_mut_ptr()),
        values: address(values.as_mut_ptr()),
        count: u32::try_from(count).unwrap_or(u32::MAX),
        map_fd: raw(map),
        element_flags: 0,
        flags: 0,
    };
    // SAFETY: key and value sizes as in `lookup`; both buffers hold `count` elements; `table` checks at construction
    // that the kind of the map corresponds to `T`.
    let result = unsafe { bpf(MAP_LOOKUP_BATCH, &mut attr) };
    let count = usize::try_from(attr.count).unwrap_or(0);
    match result {
        Ok(_) => Ok(Step { count, next: Some(next) }),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Step { count, next: None }),
        Err(error) => Err(error),
    }
}

/// Returns the kernel's info about a map or link.
pub(super) fn info<T: Pod + Default>(fd: BorrowedFd<'_>) -> io::Result<T> {
    let mut info = T::default();
    let mut attr =
        Info { fd: raw(fd), length: u32::try_from(size_of::<T>()).unwrap_or(0), info: address(&raw mut info) };
    // SAFETY: `info` has the length given in `attr`, and the kernel writes no more than that.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut attr) }?;
    Ok(info)
}

// === pins and links ===

/// Access mode of an opened pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PinAccess {
    /// Maps only: the kernel refuses changes through such a descriptor (kernel commit 6e71b04a8224), and also `mmap`.
    Read,
    Write,
}

/// Opens a pinned map or link.
pub(super) fn open_pin(path: &Path, access: PinAccess) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let flags = match access {
        PinAccess::Read => READ_ONLY,
        PinAccess::Write => 0,
    };
    let mut attr = Object { path: address(path.as_ptr()), fd: 0, flags };
    // SAFETY: the path ends in NUL and outlives the call.
    unsafe { bpf(OBJ_GET, &mut attr) }.map(owned)
}

/// Pins a link.
pub(super) fn pin(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let mut attr = Object { path: address(path.as_ptr()), fd: raw(fd), flags: 0 };
    // SAFETY: as in `open_pin`.
    unsafe { bpf(OBJ_PIN, &mut attr) }.map(drop)
}

/// Attaches a program to an interface (by index) or a network namespace (by descriptor).
pub(super) fn link_create(
    program: BorrowedFd<'_>,
    target: u32,
    attach_type: AttachType,
    flags: u32,
) -> io::Result<OwnedFd> {
    let mut attr = LinkCreate { prog_fd: raw(program), target, attach_type: attach_type as u32, flags };
    // SAFETY: `attr` holds no addresses.
    unsafe { bpf(LINK_CREATE, &mut attr) }.map(owned)
}

/// Replaces the program of a link atomically: no packet passes without a program.
pub(super) fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = LinkUpdate { link_fd: raw(link), new_prog_fd: raw(program), flags: 0, old_prog_fd: 0 };
    // SAFETY: `attr` holds no addresses.
    unsafe { bpf(LINK_UPDATE, &mut attr) }.map(drop)
}

/// Detaches the program of a link at once; closing the last descriptor or pin only does so some time later.
pub(super) fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = LinkDetach { link_fd: raw(link) };
    // SAFETY: `attr` holds no addresses.
    unsafe { bpf(LINK_DETACH, &mut attr) }.map(drop)
}

// === memory ===

/// A memory-mapped array, shared with the kernel, for the lifetime of this value.
#[derive(Debug)]
pub(super) struct Mapping<T> {
    start: NonNull<T>,
    length: usize,
    bytes: usize,
}

// SAFETY: the mapping is plain shared memory; `as_slice` is the only access and gives `&T`, so `T: Sync` decides.
unsafe impl<T: Sync> Send for Mapping<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Mapping<T> {}

/// Types that other processes and the kernel may change behind a shared reference.
///
/// # Safety
/// The type must consist of atomic integers only, be valid for any bit pattern, and have a size that is a multiple of 8
/// (the stride of array maps).
pub(super) unsafe trait SharedCell: Sync {}

// SAFETY: `repr(C)`, eight `AtomicU64`s; 64 bytes (asserted beside the type).
unsafe impl SharedCell for ingress_common::HostL7Cell {}
// SAFETY: `repr(C)`, three `AtomicU64`s; 24 bytes (asserted beside the type).
unsafe impl SharedCell for ingress_common::WorkerCell {}

impl<T: SharedCell> Mapping<T> {
    /// Maps the first `length` values of an array map created with `BPF_F_MMAPABLE` (kernel commit fc9702273e2e).
    pub(super) fn new(map: BorrowedFd<'_>, length: usize) -> io::Result<Self> {
        let bytes = length * size_of::<T>();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address chosen by the kernel touches no existing memory.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, map.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
        Ok(Self { start, length, bytes })
    }

    pub(super) fn as_slice(&self) -> &[T] {
        // SAFETY: page-aligned, mapped for `length` values until drop, and `SharedCell` values may change at any time.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// Keeps the mapping until the process ends.
    pub(super) fn leak(self) -> &'static [T] {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: as in `as_slice`; never unmapped from here on.
        unsafe { std::slice::from_raw_parts(this.start.as_ptr(), this.length) }
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `new` mapped; the borrow checker ensures that no slice of it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

// === time, files and interfaces ===

/// Returns `CLOCK_MONOTONIC`, the clock of `bpf_ktime_get_ns`.
pub(super) fn now_ns() -> u64 {
    let time = ClockId::CLOCK_MONOTONIC.now().map_or(Duration::ZERO, Duration::from);
    time.as_secs() * 1_000_000_000 + u64::from(time.subsec_nanos())
}

/// Returns whether `path` is on a BPF file system.
pub(super) fn is_bpffs(path: &Path) -> io::Result<bool> {
    Ok(statfs(path)?.filesystem_type() == BPF_FS_MAGIC)
}

/// Returns the index of the interface `name` in this network namespace, or `None` if there is none.
pub(super) fn interface_index(name: &str) -> Option<u32> {
    if_nametoindex(name).ok()
}

/// Returns the name of the interface `index` in this network namespace, or `None` if there is none.
pub(super) fn interface_name(index: u32) -> Option<String> {
    name_of(index).ok()
}

/// Returns whether an interface with this index exists in this network namespace; `true` if the kernel does not say.
pub(super) fn interface_exists(index: u32) -> bool {
    !name_of(index).is_err_and(|error| error.raw_os_error() == Some(libc::ENXIO))
}

/// Calls if_indextoname(3). nix's version up to 0.31 returns an empty name for a missing interface.
fn name_of(index: u32) -> io::Result<String> {
    let mut name = [0_u8; libc::IF_NAMESIZE];
    // SAFETY: the buffer has room for the longest name and its NUL.
    if unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) }.is_null() {
        return Err(io::Error::last_os_error());
    }
    let name = CStr::from_bytes_until_nul(&name).map_err(io::Error::other)?;
    Ok(name.to_string_lossy().into_owned())
}
