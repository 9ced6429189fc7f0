//! The kernel programs' parser on hostile frames. The target checks that nothing panics, and that a network stack never
//! delivers a datagram to a flow that the parser missed or mistook for another. The stack is etherparse, which reads
//! any number of headers and reassembles the fragments. It is not the kernel: `tests/namespaces/fragments.rs` tests on
//! real links how the kernel delivers fragments.
#![no_main]

use std::net::IpAddr;

use arbitrary::Arbitrary;
use etherparse::{
    IpNumber, Ipv6ExtensionsSlice, NetSlice, SlicedPacket, TcpSlice, TransportSlice, UdpSlice, defrag::IpDefragPool,
};
use ingress_common::{Total, flow::v4_mapped};
use ingress_ebpf::parse::{Ends, Frame, Segment, ends, is_icmp, parse, quoted};
use libfuzzer_sys::fuzz_target;

const TCP: u8 = 6;
const UDP: u8 = 17;
const FRAGMENT: u8 = 44;

struct Bytes<'b>(&'b [u8]);

impl Frame for Bytes<'_> {
    fn bytes<const N: usize>(&self, offset: usize) -> Option<&[u8; N]> {
        self.0.get(offset..)?.first_chunk()
    }
}

#[derive(Arbitrary, Debug)]
enum Input {
    Raw(Vec<u8>),
    Sent(Datagram),
}

/// A datagram, and its fragmentation.
#[derive(Arbitrary, Debug)]
struct Datagram {
    is_v6: bool,
    tags: u8,
    is_udp: bool,
    /// Number of words of IPv4 options.
    options: u8,
    /// Kinds and lengths of IPv6 extension headers, before the fragment header and after it.
    before: Vec<(u8, u8)>,
    after: Vec<(u8, u8)>,
    /// TCP or UDP data from the header on, extended to the length of a header if `is_sound`.
    transport: Vec<u8>,
    is_sound: bool,
    /// Lengths of all fragments but the last, in units of 8 bytes; empty for an unfragmented datagram.
    cuts: Vec<u8>,
    /// Padding behind each datagram in its frame.
    padding: Vec<u8>,
}

/// Delivery by a stack: both addresses, both ports, and the protocol.
type Delivered = ([u8; 16], [u8; 16], [u8; 2], [u8; 2], u8);

const FROM: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const TO: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];

fn kind(of: u8) -> u8 {
    [0, 43, 60, 51][usize::from(of) % 4]
}

/// Returns a chain of extension headers that ends with `next`, and the protocol number of its first header. Hop-by-hop
/// options occur only at the beginning (RFC 8200, 4.1); otherwise no stack delivers the datagram.
fn chain(kinds: &[(u8, u8)], is_first: bool, next: u8) -> (u8, Vec<u8>) {
    let kinds: Vec<_> = kinds
        .iter()
        .enumerate()
        .map(|(index, &(of, length))| match kind(of) {
            0 if index > 0 || !is_first => (60, length % 4),
            kind => (kind, length % 4),
        })
        .collect();
    let mut bytes = Vec::new();
    for (index, &(kind, length)) in kinds.iter().enumerate() {
        // An authentication header has an integrity check value, and therefore at least 12 bytes (RFC 4302, 2).
        let (length, unit) = if kind == 51 { (length + 1, 4) } else { (length, 8) };
        bytes.extend([kinds.get(index + 1).map_or(next, |(kind, _)| *kind), length]);
        bytes.resize(bytes.len() + 6 + usize::from(length) * unit, 0);
    }
    (kinds.first().map_or(next, |(kind, _)| *kind), bytes)
}

impl Datagram {
    fn proto(&self) -> u8 {
        if self.is_udp { UDP } else { TCP }
    }

    fn transport(&self) -> Vec<u8> {
        let mut transport = self.transport.clone();
        if self.is_sound {
            transport.resize(transport.len().max(60), 0);
            if self.is_udp {
                let length = u16::try_from(transport.len()).unwrap_or(u16::MAX);
                transport[4..6].copy_from_slice(&length.to_be_bytes());
            } else {
                transport[12] = (5 + transport[12] % 11) << 4;
            }
        }
        transport
    }

    /// Returns the fragments of `whole`: offset, data, and whether more follow.
    fn pieces<'w>(&self, whole: &'w [u8]) -> Vec<(usize, &'w [u8], bool)> {
        let (mut pieces, mut at) = (Vec::new(), 0);
        for cut in &self.cuts {
            let length = (usize::from(*cut) % 8 + 1) * 8;
            if at + length >= whole.len() {
                break;
            }
            pieces.push((at, &whole[at..at + length], true));
            at += length;
        }
        pieces.push((at, &whole[at..], false));
        pieces
    }

    fn frames(&self) -> Vec<Vec<u8>> {
        let mut link = vec![2; 12];
        for _ in 0..self.tags % 3 {
            link.extend([0x81, 0, 0, 5]);
        }
        if self.is_v6 { self.v6(&link) } else { self.v4(&link) }
    }

    fn v4(&self, link: &[u8]) -> Vec<Vec<u8>> {
        let header = 20 + usize::from(self.options % 11) * 4;
        let frame = |(at, piece, more): (usize, &[u8], bool)| {
            let mut frame = [link, &[8, 0, 0x40 | (header / 4) as u8, 0]].concat();
            frame.extend(((header + piece.len()) as u16).to_be_bytes());
            frame.extend([0, 1]);
            frame.extend((((at / 8) as u16) | if more { 0x2000 } else { 0 }).to_be_bytes());
            frame.extend([64, self.proto(), 0, 0, 192, 0, 2, 1, 198, 51, 100, 7]);
            frame.resize(frame.len() + header - 20, 1);
            [frame, piece.to_vec(), self.padding.clone()].concat()
        };
        self.pieces(&self.transport()).into_iter().map(frame).collect()
    }

    fn v6(&self, link: &[u8]) -> Vec<Vec<u8>> {
        let (inner, after) = chain(&self.after, false, self.proto());
        let whole = [after, self.transport()].concat();
        let is_fragmented = !self.cuts.is_empty();
        let (first, before) = chain(&self.before, true, if is_fragmented { FRAGMENT } else { inner });
        let frame = |(at, piece, more): (usize, &[u8], bool)| {
            let mut body = before.clone();
            if is_fragmented {
                let [high, low] = ((at as u16) | u16::from(more)).to_be_bytes();
                body.extend([inner, 0, high, low, 0, 0, 0, 9]);
            }
            body.extend(piece);
            let mut frame = [link, &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
            frame.extend((body.len() as u16).to_be_bytes());
            frame.extend([first, 64]);
            [frame, FROM.to_vec(), TO.to_vec(), body, self.padding.clone()].concat()
        };
        self.pieces(&whole).into_iter().map(frame).collect()
    }
}

/// Addresses in the form of the kernel programs.
fn ends_of(net: &NetSlice<'_>) -> Option<([u8; 16], [u8; 16])> {
    let mapped = |addr: IpAddr| match addr {
        IpAddr::V4(addr) => v4_mapped(addr.octets()),
        IpAddr::V6(addr) => addr.octets(),
    };
    match net {
        NetSlice::Ipv4(packet) => {
            let header = packet.header();
            Some((mapped(header.source_addr().into()), mapped(header.destination_addr().into())))
        }
        NetSlice::Ipv6(packet) => {
            let header = packet.header();
            Some((mapped(header.source_addr().into()), mapped(header.destination_addr().into())))
        }
        NetSlice::Arp(_) => None,
    }
}

/// Returns the stack's delivery of a complete datagram; `proto` and `bytes` follow the fragment header, or that of IPv4.
fn transport(proto: IpNumber, bytes: &[u8], is_v6: bool) -> Option<([u8; 2], [u8; 2], u8)> {
    let (proto, bytes) = if is_v6 {
        let (_, proto, bytes) = Ipv6ExtensionsSlice::from_slice(proto, bytes).ok()?;
        (proto, bytes)
    } else {
        (proto, bytes)
    };
    let (from, to) = match proto {
        IpNumber::TCP => {
            let segment = TcpSlice::from_slice(bytes).ok()?;
            (segment.source_port(), segment.destination_port())
        }
        IpNumber::UDP => {
            let datagram = UdpSlice::from_slice(bytes).ok()?;
            (datagram.source_port(), datagram.destination_port())
        }
        _ => return None,
    };
    Some((from.to_be_bytes(), to.to_be_bytes(), proto.0))
}

/// Returns the stack's delivery once all frames have arrived.
fn delivered(frames: &[Vec<u8>]) -> Option<Delivered> {
    let mut pool = IpDefragPool::<(), ()>::new();
    for frame in frames {
        let sliced = SlicedPacket::from_ethernet(frame).ok()?;
        let (remote, local) = ends_of(sliced.net.as_ref()?)?;
        let (from, to, proto) = match &sliced.transport {
            Some(TransportSlice::Tcp(segment)) => {
                (segment.source_port().to_be_bytes(), segment.destination_port().to_be_bytes(), TCP)
            }
            Some(TransportSlice::Udp(datagram)) => {
                (datagram.source_port().to_be_bytes(), datagram.destination_port().to_be_bytes(), UDP)
            }
            Some(_) => return None,
            None => {
                let Some(whole) = pool.process_sliced_packet(&sliced, (), ()).ok()? else { continue };
                let is_v6 = matches!(sliced.net, Some(NetSlice::Ipv6(_)));
                transport(whole.ip_number, &whole.payload, is_v6)?
            }
        };
        return Some((remote, local, from, to, proto));
    }
    None
}

/// Asserts that the kernel programs find the same flow as the stack.
fn agree(segment: &Segment, (remote, local, remote_port, local_port, proto): Delivered) {
    let flow = segment.flow;
    assert_eq!((flow.remote_addr, flow.local_addr, flow.proto), (remote, local, proto));
    assert_eq!(flow.remote_port_be.to_ne_bytes(), remote_port);
    assert_eq!(flow.local_port_be.to_ne_bytes(), local_port);
}

fuzz_target!(|input: Input| {
    let datagram = match input {
        Input::Raw(bytes) => {
            let frame = Bytes(&bytes);
            is_icmp(&frame);
            quoted(&frame);
            ends(&frame);
            if let Ok(segment) = parse(&frame) {
                assert!(segment.offset + 8 <= bytes.len());
                if let Some(delivered) = delivered(&[bytes]) {
                    agree(&segment, delivered);
                }
            }
            return;
        }
        Input::Sent(datagram) => datagram,
    };
    let frames = datagram.frames();
    // Later fragments have no TCP or UDP header, even if their bytes look like one.
    for later in &frames[1..] {
        assert!(parse(&Bytes(later)).is_err());
    }
    let Some(delivered) = delivered(&frames) else { return };
    match parse(&Bytes(&frames[0])) {
        Ok(segment) => agree(&segment, delivered),
        Err(Total::HiddenPort) => {
            let (remote_addr, local_addr, ..) = delivered;
            assert_eq!(ends(&Bytes(&frames[0])), Some(Ends { remote_addr, local_addr }));
        }
        Err(verdict) => panic!("{verdict:?} of a datagram that the stack delivers"),
    }
});
