//! Frames as the kernel programs read them: no panic, and no datagram of which the stack learns a flow that the program
//! took for nothing. The other side is a stack of its own: it puts the fragments together and follows all headers.
#![no_main]

use arbitrary::Arbitrary;
use ingress_common::{Total, flow::v4_mapped};
use ingress_ebpf::parse::{Ends, Frame, ends, is_icmp, parse, quoted};
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

/// A datagram, and how it is sent.
#[derive(Arbitrary, Debug)]
struct Datagram {
    is_v6: bool,
    tags: u8,
    is_udp: bool,
    /// Words of IPv4 options.
    options: u8,
    /// Kinds and lengths of IPv6 extension headers, before the fragment header and after it.
    before: Vec<(u8, u8)>,
    after: Vec<(u8, u8)>,
    /// What TCP or UDP has, from its header on, made as long as a header is if `is_sound`.
    transport: Vec<u8>,
    is_sound: bool,
    /// Lengths of the fragments but the last, in units of 8 bytes; none for a whole datagram.
    cuts: Vec<u8>,
    /// Behind each datagram, in its frame.
    padding: Vec<u8>,
}

/// What a stack learns: both addresses and ports, and the protocol.
type Delivered = ([u8; 16], [u8; 16], [u8; 2], [u8; 2], u8);

const FROM: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const TO: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];

fn kind(of: u8) -> u8 {
    [0, 43, 60, 51][usize::from(of) % 4]
}

/// A chain of extension headers, of which the last one names `next`; and what names the first.
fn chain(kinds: &[(u8, u8)], next: u8) -> (u8, Vec<u8>) {
    let mut bytes = Vec::new();
    for (index, &(of, length)) in kinds.iter().enumerate() {
        let (length, unit) = (length % 4, if kind(of) == 51 { 4 } else { 8 });
        bytes.extend([kinds.get(index + 1).map_or(next, |(of, _)| kind(*of)), length]);
        bytes.resize(bytes.len() + 6 + usize::from(length) * unit, 0);
    }
    (kinds.first().map_or(next, |(of, _)| kind(*of)), bytes)
}

impl Datagram {
    fn proto(&self) -> u8 {
        if self.is_udp { UDP } else { TCP }
    }

    fn transport(&self) -> Vec<u8> {
        let mut transport = self.transport.clone();
        if self.is_sound {
            transport.resize(transport.len().max(60), 0);
            transport[12] = (5 + transport[12] % 11) << 4;
        }
        transport
    }

    /// The pieces of `whole`: where each begins, and whether more follow.
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
        let (inner, after) = chain(&self.after, self.proto());
        let whole = [after, self.transport()].concat();
        let is_fragmented = !self.cuts.is_empty();
        let (first, before) = chain(&self.before, if is_fragmented { FRAGMENT } else { inner });
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

/// The datagram in a frame: addresses, protocol, where it stands in its whole and whether more follow, and what it has.
struct Part<'f> {
    ends: ([u8; 16], [u8; 16]),
    proto: u8,
    at: usize,
    more: bool,
    bytes: &'f [u8],
}

/// Reads a frame as a stack does; `None` for what it drops.
fn part(frame: &[u8]) -> Option<Part<'_>> {
    let mut rest = frame.get(12..)?;
    while rest.starts_with(&[0x81, 0]) {
        rest = rest.get(4..)?;
    }
    match *rest.first_chunk()? {
        [8, 0] => {
            let packet = &rest[2..];
            let header = usize::from(packet.first()? & 15) * 4;
            let packet = packet.get(..usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?])))?;
            let place = u16::from_be_bytes([packet[6], packet[7]]);
            let addr = |at: usize| packet[at..].first_chunk().map(|addr| v4_mapped(*addr));
            let ends = (addr(12)?, addr(16)?);
            let (at, more) = (usize::from(place & 0x1fff) * 8, place & 0x2000 != 0);
            Some(Part { ends, proto: packet[9], at, more, bytes: packet.get(header..)? })
        }
        [0x86, 0xdd] => {
            let packet = &rest[2..];
            let length = usize::from(u16::from_be_bytes([*packet.get(4)?, *packet.get(5)?]));
            let ends = (*packet.get(8..)?.first_chunk()?, *packet.get(24..)?.first_chunk()?);
            let (proto, bytes) = follow(packet[6], packet.get(40..40 + length)?)?;
            if proto != FRAGMENT {
                return Some(Part { ends, proto, at: 0, more: false, bytes });
            }
            let place = usize::from(u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]));
            Some(Part { ends, proto: bytes[0], at: place & !7, more: place & 1 != 0, bytes: bytes.get(8..)? })
        }
        _ => None,
    }
}

/// Goes through extension headers, however many, up to something else.
fn follow(mut proto: u8, mut bytes: &[u8]) -> Option<(u8, &[u8])> {
    while let 0 | 43 | 60 | 51 = proto {
        let length = usize::from(*bytes.get(1)?);
        let whole = if proto == 51 { 8 + length * 4 } else { 8 + length * 8 };
        proto = bytes[0];
        bytes = bytes.get(whole..)?;
    }
    Some((proto, bytes))
}

/// What the stack has once all of it has come.
fn delivered(frames: &[Vec<u8>]) -> Option<Delivered> {
    let (mut whole, mut first) = (Vec::new(), None);
    for frame in frames {
        let part = part(frame)?;
        if part.at != whole.len() {
            return None;
        }
        whole.extend(part.bytes);
        first = first.or(Some((part.ends, part.proto)));
        if !part.more {
            break;
        }
    }
    let ((remote, local), proto) = first?;
    let is_v4 = remote[..12] == v4_mapped([0; 4])[..12];
    let (proto, bytes) = if is_v4 { (proto, &*whole) } else { follow(proto, &whole)? };
    let is_whole = match proto {
        TCP => bytes.len() >= 20 && bytes[12] >> 4 >= 5 && bytes.len() >= usize::from(bytes[12] >> 4) * 4,
        UDP => bytes.len() >= 8,
        _ => false,
    };
    is_whole.then(|| (remote, local, [bytes[0], bytes[1]], [bytes[2], bytes[3]], proto))
}

fuzz_target!(|input: Input| {
    let datagram = match input {
        Input::Raw(bytes) => {
            let frame = Bytes(&bytes);
            if let Ok(segment) = parse(&frame) {
                assert!(segment.offset + 8 <= bytes.len());
            }
            is_icmp(&frame);
            quoted(&frame);
            ends(&frame);
            return;
        }
        Input::Sent(datagram) => datagram,
    };
    let frames = datagram.frames();
    let Some((remote, local, remote_port, local_port, proto)) = delivered(&frames) else { return };
    match parse(&Bytes(&frames[0])) {
        Ok(segment) => {
            let flow = segment.flow;
            assert_eq!((flow.remote_addr, flow.local_addr, flow.proto), (remote, local, proto));
            assert_eq!(flow.remote_port_be.to_ne_bytes(), remote_port);
            assert_eq!(flow.local_port_be.to_ne_bytes(), local_port);
        }
        Err(Total::HiddenPort) => {
            assert_eq!(ends(&Bytes(&frames[0])), Some(Ends { remote_addr: remote, local_addr: local }));
        }
        Err(verdict) => panic!("{verdict:?} of a datagram that the stack delivers"),
    }
});
