//! Flows (connections) and the host that each belongs to.

use crate::text;

/// Number of a virtual host in [`crate::map::HOST_NET`] and [`crate::map::HOST_L7`].
///
/// [`crate::map::HOST_IDS`] has the name of each id that was ever assigned, or marks the id as free ([`FREE`]). An id
/// is free only when its counters are zero and no process or flow counts for it.
pub type RawHostId = u32;

/// Host 0: packets before the first parsed request, requests that match no route's host, and hosts beyond the capacity.
pub const UNATTRIBUTED: RawHostId = 0;

/// IP protocol number of TCP.
pub const PROTO_TCP: u8 = 6;
/// IP protocol number of UDP.
pub const PROTO_UDP: u8 = 17;

/// A TCP connection or UDP flow, named as in packets towards the node.
///
/// IPv4 addresses are v4-mapped (`::ffff:a.b.c.d`), ports are in network byte order, both as they are in the packet.
///
/// Aligned to 8, because kernel programs build it on their stack, where the verifier demands aligned access to each
/// word.
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
    /// Padding, 0. In two fields, because LLVM stores three bytes at an odd address by an unaligned access, which the
    /// verifier refuses.
    pub pad: u8,
    pub pad_end: u16,
}

impl FlowKey {
    /// Returns the same connection as named in packets of the other direction.
    #[must_use]
    #[inline(always)]
    pub const fn reversed(&self) -> Self {
        let Self { remote_addr, local_addr, remote_port_be, local_port_be, proto, pad, pad_end } = *self;
        Self {
            remote_addr: local_addr,
            local_addr: remote_addr,
            remote_port_be: local_port_be,
            local_port_be: remote_port_be,
            proto,
            pad,
            pad_end,
        }
    }
}

/// Value of [`crate::map::FLOWS`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Flow {
    /// Host of the latest request on this connection.
    pub host_id: RawHostId,
    /// Epoch of the process that owns the connection ([`crate::Alive::epoch`]). Garbage collection keeps flows of live
    /// epochs.
    pub epoch: u32,
}

/// Name in [`crate::map::HOST_IDS`] of the number that collects the counts of hosts after their numbers were given
/// back. Flows never refer to this number, so programs never write it.
pub const GONE: &str = "(gone)";

/// Prefix of the names in [`crate::map::HOST_IDS`] of free numbers; the number itself follows.
pub const FREE: &str = "(free) ";

/// Longest host name that [`HostName`] can hold: RFC 1035's limit in text form.
pub const HOST_NAME_MAX: usize = 253;

/// Key of [`crate::map::HOST_IDS`]: a route's host as ASCII text (`example.com`, `*.example.com`, `*`), zero-padded.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HostName {
    pub name: [i8; 256],
}

impl HostName {
    /// Creates the key for `name`. Returns `None` if it is not ASCII or longer than [`HOST_NAME_MAX`] plus a wildcard
    /// label.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        text::padded(name).map(|name| Self { name })
    }

    /// Returns `true` if counters belong to this name, which is then a host or [`GONE`]. Free numbers and the empty
    /// name, which holds the latest number, have none.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        let begins_as = |text: &str| self.name.iter().zip(text.bytes()).all(|(&own, byte)| own.cast_unsigned() == byte);
        *self != Self::default() && !begins_as(FREE)
    }
}

impl Default for HostName {
    fn default() -> Self {
        Self { name: [0; 256] }
    }
}

impl core::fmt::Display for HostName {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        text::show(&self.name, f)
    }
}

impl core::fmt::Debug for HostName {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "HostName({self})")
    }
}

/// Returns `a.b.c.d` as `::ffff:a.b.c.d` (RFC 4291, 2.5.5.2).
#[must_use]
#[inline(always)]
pub const fn v4_mapped(addr: [u8; 4]) -> [u8; 16] {
    let [a, b, c, d] = addr;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// The inverse of [`v4_mapped`]; returns `None` for a native IPv6 address.
#[must_use]
#[inline(always)]
pub const fn unmapped(addr: &[u8; 16]) -> Option<[u8; 4]> {
    const MARK: u32 = u32::from_ne_bytes([0, 0, 0xff, 0xff]);
    let &[a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, v4 @ ..] = addr;
    // Two word comparisons instead of twelve byte comparisons, because kernel programs do this for every packet.
    let is_mapped =
        u64::from_ne_bytes([a0, a1, a2, a3, a4, a5, a6, a7]) == 0 && u32::from_ne_bytes([b0, b1, b2, b3]) == MARK;
    if is_mapped { Some(v4) } else { None }
}

const _: () = assert!(size_of::<FlowKey>() == 40 && align_of::<FlowKey>() == 8);
const _: () = assert!(size_of::<Flow>() == 8 && align_of::<Flow>() == 4);
const _: () = assert!(size_of::<HostName>() == 256 && align_of::<HostName>() == 1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bookkeeping_entries_are_not_counted_as_hosts() {
        for (name, is_counted) in
            [("", false), ("(free) 7", false), (GONE, true), ("*", true), ("a.test", true), ("(free)", true)]
        {
            assert_eq!(HostName::new(name).expect("a key").is_counted(), is_counted, "{name}");
        }
    }

    #[test]
    fn ipv4_mapped_addresses_are_recognised() {
        assert_eq!(unmapped(&v4_mapped([192, 0, 2, 1])), Some([192, 0, 2, 1]));
        for at in 0..12 {
            let mut addr = v4_mapped([192, 0, 2, 1]);
            addr[at] ^= 1;
            assert_eq!(unmapped(&addr), None, "byte {at}");
        }
    }
}
