//! Builds frames, byte for byte, without the code under test.

use std::net::{IpAddr, SocketAddr};

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const ACK: u8 = 0x10;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Description of a frame; the default is a bare SYN.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) remote: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) proto: u8,
    pub(crate) tcp_flags: u8,
    pub(crate) payload: usize,
    /// EtherTypes of the VLAN tags, outer first.
    pub(crate) tags: Vec<u16>,
    /// Bytes of IPv4 options.
    pub(crate) options: usize,
    /// Flags and offset of IPv4.
    pub(crate) fragment: u16,
    /// IPv6 extension headers: kind, and the header after its first byte.
    pub(crate) extensions: Vec<(u8, Vec<u8>)>,
}

impl Packet {
    pub(crate) fn tcp(remote: &str, local: &str, tcp_flags: u8) -> Self {
        Self {
            remote: remote.parse().expect("an address"),
            local: local.parse().expect("an address"),
            proto: TCP,
            tcp_flags,
            payload: 0,
            tags: Vec::new(),
            options: 0,
            fragment: 0,
            extensions: Vec::new(),
        }
    }

    pub(crate) fn udp(remote: &str, local: &str) -> Self {
        Self { proto: UDP, ..Self::tcp(remote, local, 0) }
    }

    pub(crate) fn frame(&self) -> Vec<u8> {
        let mut frame = vec![2; 12];
        for tag in &self.tags {
            frame.extend(tag.to_be_bytes());
            frame.extend([0, 7]);
        }
        match (self.remote.ip(), self.local.ip()) {
            (IpAddr::V4(remote), IpAddr::V4(local)) => {
                let transport = self.transport();
                let header = 20 + self.options;
                frame.extend(0x0800_u16.to_be_bytes());
                frame.extend([0x40 | u8::try_from(header / 4).expect("a header length"), 0]);
                frame.extend(u16::try_from(header + transport.len()).expect("a length").to_be_bytes());
                frame.extend([0, 1]);
                frame.extend(self.fragment.to_be_bytes());
                frame.extend([64, self.proto, 0, 0]);
                frame.extend(remote.octets());
                frame.extend(local.octets());
                frame.resize(frame.len() + self.options, 1);
                frame.extend(transport);
            }
            (IpAddr::V6(remote), IpAddr::V6(local)) => {
                let mut body = Vec::new();
                for (index, (_, rest)) in self.extensions.iter().enumerate() {
                    body.push(self.extensions.get(index + 1).map_or(self.proto, |(kind, _)| *kind));
                    body.extend(rest);
                }
                body.extend(self.transport());
                frame.extend(0x86dd_u16.to_be_bytes());
                frame.extend([0x60, 0, 0, 0]);
                frame.extend(u16::try_from(body.len()).expect("a length").to_be_bytes());
                frame.extend([self.extensions.first().map_or(self.proto, |(kind, _)| *kind), 64]);
                frame.extend(remote.octets());
                frame.extend(local.octets());
                frame.extend(body);
            }
            _ => panic!("families differ"),
        }
        frame
    }

    fn transport(&self) -> Vec<u8> {
        let mut header = Vec::from(self.remote.port().to_be_bytes());
        header.extend(self.local.port().to_be_bytes());
        match self.proto {
            TCP => {
                header.extend([0; 8]);
                header.extend([0x50, self.tcp_flags, 0, 0, 0, 0, 0, 0]);
            }
            _ => header.extend([0, 8, 0, 0]),
        }
        header.resize(header.len() + self.payload, b'x');
        header
    }
}

/// An IPv6 extension header of `8 + 8 × length` bytes, after its first byte.
pub(crate) fn extension(length: u8) -> Vec<u8> {
    let mut rest = vec![length];
    rest.resize(7 + usize::from(length) * 8, 0);
    rest
}

/// An IPv6 fragment header after its first byte; `offset` in units of 8 bytes.
pub(crate) fn fragment(offset: u16) -> Vec<u8> {
    let [high, low] = (offset << 3 | 1).to_be_bytes();
    vec![0, high, low, 0, 0, 0, 9]
}
