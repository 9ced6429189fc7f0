//! Which connection belongs to which host.

/// Number of a virtual host in [`crate::map::HOST_NET`] and [`crate::map::HOST_L7`].
///
/// Ids are handed out once per name and kept in [`crate::map::HOST_IDS`]; an id is not used for another name while
/// its counters live.
pub type HostId = u32;

/// Host 0: packets before the first parsed request, requests no route's host matched, and hosts beyond the capacity.
pub const UNATTRIBUTED: HostId = 0;

/// IP protocol number of TCP.
pub const PROTO_TCP: u8 = 6;
/// IP protocol number of UDP.
pub const PROTO_UDP: u8 = 17;

/// One TCP connection or UDP flow as a packet towards the node names it.
///
/// IPv4 addresses are v4-mapped (`::ffff:a.b.c.d`), ports are in network byte order, both as they stand in the packet.
///
/// Aligned to 8, so that kernel programs build it in their stack, where the verifier wants aligned access, word by word.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct FlowKey {
    /// The client.
    pub remote_addr: [u8; 16],
    /// The node.
    pub local_addr: [u8; 16],
    pub remote_port_be: u16,
    pub local_port_be: u16,
    /// [`PROTO_TCP`] or [`PROTO_UDP`].
    pub proto: u8,
    pub pad: [u8; 3],
}

/// Value of [`crate::map::FLOWS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Flow {
    /// Host of the latest request on this connection.
    pub host_id: HostId,
    /// Epoch of the process that owns the connection ([`crate::Alive::epoch`]); a sweep spares live epochs.
    pub epoch: u32,
}

/// Longest host name that [`HostName`] can hold: RFC 1035's limit in text form.
pub const HOST_NAME_MAX: usize = 253;

/// Key of [`crate::map::HOST_IDS`]: a route's host as text (`example.com`, `*.example.com`, `*`), zero-padded.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HostName {
    pub name: [u8; 256],
}

impl HostName {
    /// The key for `name`, or `None` if it is longer than [`HOST_NAME_MAX`] plus a wildcard label.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let mut key = Self { name: [0; 256] };
        key.name.get_mut(..name.len()).filter(|_| name.len() < 256)?.copy_from_slice(name.as_bytes());
        Some(key)
    }

    /// The name without its padding; `None` if it is not UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        let end = self.name.iter().position(|&byte| byte == 0).unwrap_or(self.name.len());
        core::str::from_utf8(&self.name[..end]).ok()
    }
}

impl Default for HostName {
    fn default() -> Self {
        Self { name: [0; 256] }
    }
}

impl core::fmt::Debug for HostName {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "HostName({:?})", self.as_str())
    }
}

/// `a.b.c.d` as `::ffff:a.b.c.d` (RFC 4291, 2.5.5.2).
#[must_use]
#[inline(always)]
pub const fn v4_mapped(addr: [u8; 4]) -> [u8; 16] {
    let [a, b, c, d] = addr;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

const _: () = assert!(size_of::<FlowKey>() == 40 && align_of::<FlowKey>() == 8);
const _: () = assert!(size_of::<Flow>() == 8 && align_of::<Flow>() == 4);
const _: () = assert!(size_of::<HostName>() == 256 && align_of::<HostName>() == 1);
