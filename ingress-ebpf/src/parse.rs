//! Finds the connection that a frame belongs to; reads headers only, never the payload.

use ingress_common::{
    FlowKey, Total,
    flow::{PROTO_TCP, PROTO_UDP, v4_mapped},
};

/// Maximum number of VLAN tags before the frame counts as [`Total::NotIp`] (802.1ad: one service tag, one customer
/// tag).
const VLAN_TAGS_MAX: usize = 2;
/// Maximum number of IPv6 extension headers before the frame counts as [`Total::HiddenPort`]: RFC 8200, 4.1 lists six
/// that may precede TCP or UDP (hop-by-hop, destination, routing, fragment, authentication, destination).
const EXTENSIONS_MAX: usize = 6;

/// A frame, starting at its link header.
pub trait Frame {
    /// Returns the `N` bytes at `offset`, or `None` if the frame ends before them.
    fn bytes<const N: usize>(&self, offset: usize) -> Option<&[u8; N]>;
}

/// Flow, flags and header offset of a TCP or UDP packet. In the order of C, because a map has it as a value.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub flow: FlowKey,
    /// Offset of the TCP or UDP header in the frame.
    pub offset: usize,
    /// The flags of a TCP header, 0 for UDP.
    pub tcp_flags: u8,
}

/// Source and destination address of a packet, IPv4 as v4-mapped. Aligned because the verifier demands it on the stack.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    pub remote_addr: [u8; 16],
    pub local_addr: [u8; 16],
}

/// Offsets in a frame of a port and of the checksum that covers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldOffsets {
    pub port: usize,
    pub checksum: usize,
}

/// The TCP segment that an ICMP error quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// Source address of the segment; IPv4 as v4-mapped.
    pub sender: [u8; 16],
    /// Source port of the segment, as it is in the packet.
    pub port_be: u16,
    /// Offsets of that port and of the checksum of the error.
    pub place: FieldOffsets,
}

/// Flags of a TCP segment (RFC 9293, 3.1).
pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;

impl Segment {
    /// Returns `true` for a connection request: SYN without ACK, RST or FIN.
    #[must_use]
    #[inline(always)]
    pub const fn is_request(&self) -> bool {
        self.tcp_flags & (FIN | SYN | RST | ACK) == SYN
    }

    /// Returns the place of the source port of a TCP segment.
    #[must_use]
    #[inline(always)]
    pub const fn source_port(&self) -> FieldOffsets {
        FieldOffsets { port: self.offset, checksum: self.offset + TCP_CHECKSUM }
    }

    /// Returns the place of the destination port of a TCP segment.
    #[must_use]
    #[inline(always)]
    pub const fn destination_port(&self) -> FieldOffsets {
        FieldOffsets { port: self.offset + 2, checksum: self.offset + TCP_CHECKSUM }
    }
}

/// Offset of the checksum in a TCP header (RFC 9293, 3.1).
const TCP_CHECKSUM: usize = 16;

pub(crate) const IPV4: u16 = 0x0800;
pub(crate) const IPV6: u16 = 0x86dd;
const ICMP: u8 = 1;
pub(crate) const ICMPV6: u8 = 58;

/// Result of the network layer: protocol, addresses and the place of the transport header.
struct TransportHeader {
    proto: u8,
    offset: usize,
    /// Bytes from `offset` to the end of the datagram according to its own header; [`UNANNOUNCED`] if the header has no
    /// length.
    length: usize,
    remote_addr: [u8; 16],
    local_addr: [u8; 16],
}

/// Length of a datagram above 64 KiB, with 0 in its header (BIG TCP: IPv6 kernel commit 0fe79f28bfaf, IPv4
/// b1a78b9b9886).
const UNANNOUNCED: usize = usize::MAX;

/// Reads the headers of `frame`.
///
/// # Errors
/// Returns the verdict for a frame that belongs to no TCP or UDP flow: [`Total::NotIp`], [`Total::Malformed`],
/// [`Total::Fragment`] or [`Total::OtherProtocol`]. Returns [`Total::HiddenPort`] if the frame may belong to a flow,
/// but only the stack can find the port: in further fragments, behind further extension headers, or beyond the bytes
/// that the program can read.
#[inline(always)]
pub fn parse(frame: &impl Frame) -> Result<Segment, Total> {
    let (ethertype, offset) = link(frame)?;
    let transport = match ethertype {
        IPV4 => ipv4(frame, offset)?,
        IPV6 => ipv6(frame, offset)?,
        _ => return Err(Total::NotIp),
    };
    segment(frame, &transport)
}

/// Returns the source and destination address of an IP frame.
#[inline(always)]
pub fn ends(frame: &impl Frame) -> Option<Ends> {
    let (ethertype, offset) = link(frame).ok()?;
    match ethertype {
        IPV4 => {
            let &[a, b, c, d, e, f, g, h] = frame.bytes(offset + 12)?;
            Some(Ends { remote_addr: v4_mapped([a, b, c, d]), local_addr: v4_mapped([e, f, g, h]) })
        }
        IPV6 => Some(Ends { remote_addr: *frame.bytes(offset + 8)?, local_addr: *frame.bytes(offset + 24)? }),
        _ => None,
    }
}

/// Returns `true` for a frame with ICMP. This is a cheap test before more of the frame is read.
#[inline(always)]
pub fn is_icmp(frame: &impl Frame) -> bool {
    let Ok((ethertype, offset)) = link(frame) else { return false };
    match ethertype {
        IPV4 => frame.bytes::<1>(offset + 9).is_some_and(|proto| *proto == [ICMP]),
        IPV6 => frame.bytes::<1>(offset + 6).is_some_and(|next| *next == [ICMPV6]),
        _ => false,
    }
}

/// Reads an ICMP error about a TCP segment; returns `None` for everything else. IPv6 extension headers are not
/// followed: routers do not put them before their errors, and this node does not put them before its segments.
#[inline(always)]
pub fn quoted(frame: &impl Frame) -> Option<Quoted> {
    let (ethertype, offset) = link(frame).ok()?;
    match ethertype {
        IPV4 => quoted_by_icmp(frame, offset),
        IPV6 => quoted_by_icmpv6(frame, offset),
        _ => None,
    }
}

/// Reads an error of RFC 792 or RFC 1191.
#[inline(always)]
fn quoted_by_icmp(frame: &impl Frame, offset: usize) -> Option<Quoted> {
    const UNREACHABLE: u8 = 3;
    const REDIRECT: u8 = 5;
    const TIME_EXCEEDED: u8 = 11;
    const PARAMETER_PROBLEM: u8 = 12;
    let outer = ipv4(frame, offset).ok()?;
    if outer.proto != ICMP {
        return None;
    }
    let [kind, ..] = frame.bytes::<ICMP_HEADER>(outer.offset)?;
    if !matches!(*kind, UNREACHABLE | REDIRECT | TIME_EXCEEDED | PARAMETER_PROBLEM) {
        return None;
    }
    let inner = ipv4(frame, outer.offset + ICMP_HEADER).ok()?;
    quoted_segment(frame, outer.offset, inner.offset, inner.proto, inner.remote_addr)
}

/// Reads an error of RFC 4443.
#[inline(always)]
fn quoted_by_icmpv6(frame: &impl Frame, offset: usize) -> Option<Quoted> {
    const HEADER: usize = 40;
    let (proto, _) = plain_ipv6(frame, offset)?;
    let message = offset + HEADER;
    let [kind, ..] = frame.bytes::<ICMP_HEADER>(message)?;
    // RFC 4443, 2.1: types below 128 are errors.
    if proto != ICMPV6 || *kind >= 128 {
        return None;
    }
    let inner = message + ICMP_HEADER;
    let (proto, sender) = plain_ipv6(frame, inner)?;
    quoted_segment(frame, message, inner + HEADER, proto, sender)
}

/// Bytes of an ICMP error before the quoted packet, in both families.
const ICMP_HEADER: usize = 8;

/// Returns the next header and the source address of an IPv6 packet.
#[inline(always)]
fn plain_ipv6(frame: &impl Frame, offset: usize) -> Option<(u8, [u8; 16])> {
    let start: &[u8; 8] = frame.bytes(offset)?;
    let source: &[u8; 16] = frame.bytes(offset + 8)?;
    (start[0] >> 4 == 6).then_some((start[6], *source))
}

/// Returns the segment quoted at `offset` in the error at `message`. The error need not contain more than the first
/// eight bytes of the segment.
#[inline(always)]
fn quoted_segment(frame: &impl Frame, message: usize, offset: usize, proto: u8, sender: [u8; 16]) -> Option<Quoted> {
    const ICMP_CHECKSUM: usize = 2;
    let port: &[u8; 2] = frame.bytes(offset)?;
    let place = FieldOffsets { port: offset, checksum: message + ICMP_CHECKSUM };
    (proto == PROTO_TCP).then_some(Quoted { sender, port_be: u16::from_ne_bytes(*port), place })
}

/// Returns the EtherType behind the VLAN tags, and the offset of the network header.
#[inline(always)]
pub(crate) fn link(frame: &impl Frame) -> Result<(u16, usize), Total> {
    const CUSTOMER_TAG: u16 = 0x8100;
    const SERVICE_TAG: u16 = 0x88a8;
    let mut ethertype = u16::from_be_bytes(*frame.bytes(12).ok_or(Total::Malformed)?);
    let mut offset = 14;
    for _ in 0..VLAN_TAGS_MAX {
        if ethertype != CUSTOMER_TAG && ethertype != SERVICE_TAG {
            break;
        }
        ethertype = u16::from_be_bytes(*frame.bytes(offset + 2).ok_or(Total::Malformed)?);
        offset += 4;
    }
    Ok((ethertype, offset))
}

/// Reads an IPv4 header (RFC 791, 3.1).
#[inline(always)]
fn ipv4(frame: &impl Frame, offset: usize) -> Result<TransportHeader, Total> {
    const HEADER_MIN: usize = 20;
    const FRAGMENT_OFFSET: u16 = 0x1fff;
    let header: &[u8; HEADER_MIN] = frame.bytes(offset).ok_or(Total::Malformed)?;
    let header_length = usize::from(header[0] & 0x0f) * 4;
    let total_length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header[0] >> 4 != 4 || header_length < HEADER_MIN {
        return Err(Total::Malformed);
    }
    let length = match total_length {
        0 => UNANNOUNCED,
        _ if total_length < header_length => return Err(Total::Malformed),
        _ => total_length - header_length,
    };
    if u16::from_be_bytes([header[6], header[7]]) & FRAGMENT_OFFSET != 0 {
        return Err(Total::Fragment);
    }
    Ok(TransportHeader {
        proto: header[9],
        offset: offset + header_length,
        length,
        remote_addr: v4_mapped([header[12], header[13], header[14], header[15]]),
        local_addr: v4_mapped([header[16], header[17], header[18], header[19]]),
    })
}

/// Reads an IPv6 header and its extension headers (RFC 8200, 3 and 4).
#[inline(always)]
fn ipv6(frame: &impl Frame, offset: usize) -> Result<TransportHeader, Total> {
    const HEADER: usize = 40;
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const AUTHENTICATION: u8 = 51;
    const DESTINATION: u8 = 60;

    let start: &[u8; 8] = frame.bytes(offset).ok_or(Total::Malformed)?;
    let remote_addr: &[u8; 16] = frame.bytes(offset + 8).ok_or(Total::Malformed)?;
    let local_addr: &[u8; 16] = frame.bytes(offset + 24).ok_or(Total::Malformed)?;
    if start[0] >> 4 != 6 {
        return Err(Total::Malformed);
    }
    let payload_length = usize::from(u16::from_be_bytes([start[4], start[5]]));
    let mut proto = start[6];
    let mut extensions = 0;
    for _ in 0..EXTENSIONS_MAX {
        let at = offset + HEADER + extensions;
        // Lengths: RFC 8200, 4.3–4.6 (units of 8 beyond the first 8), RFC 4302, 2.2 (units of 4 beyond the first 8).
        // Computed with shifts, because the verifier of Linux 6.1 (unlike that of 6.12) forgets the bounds of a product
        // unless its second factor is a constant, and the compiler chooses the order of the factors.
        let shift = match proto {
            HOP_BY_HOP | ROUTING | DESTINATION => Some(3_u32),
            AUTHENTICATION => Some(2),
            FRAGMENT => None,
            _ => break,
        };
        let extension: &[u8; 8] = frame.bytes(at).ok_or(Total::HiddenPort)?;
        let rest = match shift {
            Some(shift) => usize::from(extension[1]) << shift,
            None if u16::from_be_bytes([extension[2], extension[3]]) & 0xfff8 != 0 => {
                return Err(Total::Fragment);
            }
            None => 0,
        };
        proto = extension[0];
        extensions += 8 + rest;
    }
    if matches!(proto, HOP_BY_HOP | ROUTING | DESTINATION | AUTHENTICATION | FRAGMENT) {
        return Err(Total::HiddenPort);
    }
    let length = match payload_length {
        0 => UNANNOUNCED,
        _ if payload_length < extensions => return Err(Total::HiddenPort),
        _ => payload_length - extensions,
    };
    Ok(TransportHeader {
        proto,
        offset: offset + HEADER + extensions,
        length,
        remote_addr: *remote_addr,
        local_addr: *local_addr,
    })
}

/// Reads a TCP or UDP header (RFC 9293, 3.1 and RFC 768).
#[inline(always)]
fn segment(frame: &impl Frame, transport: &TransportHeader) -> Result<Segment, Total> {
    const TCP_HEADER_MIN: usize = 20;
    const UDP_HEADER: usize = 8;
    let &TransportHeader { proto, offset, length, remote_addr, local_addr } = transport;
    let (ports, tcp_flags) = match proto {
        PROTO_TCP => {
            let header: &[u8; TCP_HEADER_MIN] = frame.bytes(offset).ok_or(Total::HiddenPort)?;
            let header_length = usize::from(header[12] >> 4) * 4;
            if header_length < TCP_HEADER_MIN || header_length > length {
                return Err(Total::HiddenPort);
            }
            ([header[0], header[1], header[2], header[3]], header[13])
        }
        PROTO_UDP => {
            let header: &[u8; UDP_HEADER] = frame.bytes(offset).ok_or(Total::HiddenPort)?;
            if length < UDP_HEADER {
                return Err(Total::HiddenPort);
            }
            ([header[0], header[1], header[2], header[3]], 0)
        }
        _ => return Err(Total::OtherProtocol),
    };
    let flow = FlowKey {
        remote_addr,
        local_addr,
        remote_port_be: u16::from_ne_bytes([ports[0], ports[1]]),
        local_port_be: u16::from_ne_bytes([ports[2], ports[3]]),
        proto,
        pad: 0,
        pad_end: 0,
    };
    Ok(Segment { flow, tcp_flags, offset })
}

#[cfg(test)]
mod tests;
