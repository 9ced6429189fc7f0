//! Sends packets for addresses that moved here on to the node that has their connections, and asks the kernel for the
//! connections of this node.

use core::hint::black_box;

use aya_ebpf::{
    bindings::{bpf_sock, bpf_sock_tuple},
    helpers::generated::{bpf_sk_release, bpf_skc_lookup_tcp, bpf_tcp_check_syncookie},
};
use ingress_common::{FlowKey, Move, MoveKey, NicMac, Total, flow::unmapped, map::PROBING_ONLY};
use ingress_ebpf::{
    forward::{ETHERNET_ADDRESSES, Forwarder, forwarded},
    parse::Segment,
};

use crate::{
    count,
    maps::{MOVES, PROBING},
    neighbours,
    node::Maps,
    receive::Received,
};

/// Words of a TCP header without options.
const TCP_WORDS: usize = 5;
/// Bytes of a TCP header without options.
pub(crate) const TCP_LENGTH: u32 = 4 * TCP_WORDS as u32;

/// A TCP header without options. Aligned because the compiler copies words of eight bytes, and the verifier demands their
/// alignment on the stack.
#[repr(C, align(8))]
pub(crate) struct TcpHeader([u32; TCP_WORDS]);

/// An IP header of which only the version and the addresses count, for helpers that read no more. With pointers into the
/// packet, the verifier would have to know their ranges.
#[repr(C, align(8))]
pub(crate) struct IpHeader {
    words: [u32; IP_WORDS],
    length: u32,
}

/// Words of the two addresses and the ports of IPv6.
const TUPLE_WORDS: usize = 9;
/// Words of the header of IPv6.
const IP_WORDS: usize = 10;
/// Numbers of states in the kernel (`include/net/tcp_states.h`). Sockets in FIN_WAIT2 that no process has are in
/// TIME_WAIT, too.
const TCP_TIME_WAIT: u32 = 6;
const TCP_LISTEN: u32 = 10;
/// Namespace of the interface (`BPF_F_CURRENT_NETNS`).
const SAME_NAMESPACE: u64 = u64::MAX;

/// Sends a packet to the node that announced its address before, if that one has the connection, and counts it. Returns
/// `false` for other packets, which are unchanged. `rewritten` is the port that replaces the local one, `flags` are those
/// of the local address.
#[inline(always)]
pub(crate) fn forward(
    packet: &impl Received,
    rewritten: Option<u16>,
    flags: u32,
    segment: &Segment,
    bytes: u64,
) -> bool {
    // Forgets what the parser knew, as in `neighbours.rs`.
    let (packet, segment) = (black_box(packet), black_box(segment));
    let Some(addresses) = forwarded(&Maps, &Moving { packet, rewritten, segment }, flags, segment) else {
        return false;
    };
    let is_sent = packet.send_to(&addresses);
    if is_sent {
        count::total(Total::Forwarded, bytes);
    }
    is_sent
}

/// Returns `true` if a program of an interface looks up a socket on this CPU, so that the lookup runs in its middle. No other
/// lookup comes between on this CPU: programs of interfaces do not sleep, and run with bottom halves disabled.
#[inline(always)]
pub(crate) fn are_probed() -> bool {
    let Some(probing) = PROBING.get_ptr(PROBING_ONLY) else { return false };
    // SAFETY: checked against null; volatile because another program writes it on this CPU.
    unsafe { probing.read_volatile() != 0 }
}

/// A packet for an address that moved here.
struct Moving<'a, P> {
    packet: &'a P,
    rewritten: Option<u16>,
    segment: &'a Segment,
}

impl<P: Received> Forwarder for Moving<'_, P> {
    #[inline(always)]
    fn moved(&self, addr: &[u8; 16]) -> Option<Move> {
        let key = MoveKey { addr: *addr, nic: self.packet.nic(), pad: 0 };
        // SAFETY: programs never write this map; an element freed meanwhile stays readable until the program ends (RCU).
        unsafe { MOVES.get(&key) }.copied()
    }

    #[inline(always)]
    fn own_mac(&self) -> Option<[u8; 6]> {
        let NicMac { mac, pad: _ } = neighbours::mac(self.packet.nic())?;
        Some(mac)
    }

    #[inline(always)]
    fn ethernet(&self) -> Option<[u8; ETHERNET_ADDRESSES]> {
        self.packet.ethernet()
    }

    #[inline(always)]
    fn is_known(&self, flow: &FlowKey, counts_ended: bool) -> bool {
        let Self { packet, rewritten, segment } = self;
        // The port that the stack sees.
        let port_be = match rewritten {
            Some(port_be) if packet.is_rewritten() => *port_be,
            _ => flow.local_port_be,
        };
        let ports = u32::from(flow.remote_port_be) | u32::from(port_be) << 16;
        let socket = look_up(*packet, flow, ports);
        if socket.is_null() {
            return false;
        }
        // SAFETY: not null, and held until it is released below.
        let state = unsafe { (*socket).state };
        let is_known = match state {
            TCP_TIME_WAIT => counts_ended,
            TCP_LISTEN => is_cookie(*packet, socket, flow, ports, segment.offset),
            _ => true,
        };
        // SAFETY: the lookup returned it, and it is not used afterwards.
        unsafe { bpf_sk_release(socket.cast()) };
        is_known
    }
}

/// Returns the socket that the stack would find, or null. The caller releases it.
#[inline(always)]
pub(crate) fn look_up(packet: &impl Received, flow: &FlowKey, ports: u32) -> *mut bpf_sock {
    let mut tuple = [0_u32; TUPLE_WORDS];
    let length = match (unmapped(&flow.remote_addr), unmapped(&flow.local_addr)) {
        (Some(remote), Some(local)) => {
            tuple[0] = u32::from_ne_bytes(remote);
            tuple[1] = u32::from_ne_bytes(local);
            tuple[2] = ports;
            12
        }
        _ => {
            let (remote, local) = (words(&flow.remote_addr), words(&flow.local_addr));
            tuple = [remote[0], remote[1], remote[2], remote[3], local[0], local[1], local[2], local[3], ports];
            36
        }
    };
    let Some(probing) = PROBING.get_ptr_mut(PROBING_ONLY) else { return core::ptr::null_mut() };
    let tuple: *mut bpf_sock_tuple = (&raw mut tuple).cast();
    // SAFETY: checked against null; volatile because `ingress_lookup` reads it on this CPU.
    unsafe { probing.write_volatile(1) };
    // SAFETY: the context is the one this program was called with, and the tuple has as many bytes.
    let socket = unsafe { bpf_skc_lookup_tcp(packet.as_ptr(), tuple, length, SAME_NAMESPACE, 0) };
    // SAFETY: as above.
    unsafe { probing.write_volatile(0) };
    socket
}

/// Returns `true` if a packet confirms a SYN cookie of this node. The listener tells whether it sends cookies.
#[inline(always)]
fn is_cookie(packet: &impl Received, listener: *mut bpf_sock, flow: &FlowKey, ports: u32, offset: usize) -> bool {
    let mut tcp = TcpHeader::new();
    if !packet.read_tcp_header(offset, &mut tcp) {
        return false;
    }
    tcp.set_ports(ports);
    let IpHeader { words: mut ip, length } = ip_header(flow);
    // SAFETY: the socket is held by the caller, and the headers have as many bytes.
    let checked = unsafe {
        bpf_tcp_check_syncookie(listener.cast(), (&raw mut ip).cast(), length, (&raw mut tcp).cast(), TCP_LENGTH)
    };
    checked == 0
}

/// Returns the header of a packet of this connection.
#[inline(always)]
pub(crate) fn ip_header(flow: &FlowKey) -> IpHeader {
    let mut ip = [0_u32; IP_WORDS];
    let length = match (unmapped(&flow.remote_addr), unmapped(&flow.local_addr)) {
        (Some(remote), Some(local)) => {
            ip[0] = 0x45;
            ip[3] = u32::from_ne_bytes(remote);
            ip[4] = u32::from_ne_bytes(local);
            20
        }
        _ => {
            let (remote, local) = (words(&flow.remote_addr), words(&flow.local_addr));
            ip = [0x60, 0, remote[0], remote[1], remote[2], remote[3], local[0], local[1], local[2], local[3]];
            40
        }
    };
    IpHeader { words: ip, length }
}

impl TcpHeader {
    #[inline(always)]
    pub(crate) const fn new() -> Self {
        Self([0; TCP_WORDS])
    }

    /// Replaces both ports, in the byte order of the packet.
    #[inline(always)]
    pub(crate) const fn set_ports(&mut self, ports: u32) {
        self.0[0] = ports;
    }
}

impl IpHeader {
    #[inline(always)]
    pub(crate) const fn words(&self) -> &[u32; IP_WORDS] {
        &self.words
    }

    /// Returns the bytes that a helper reads.
    #[inline(always)]
    pub(crate) const fn length(&self) -> u32 {
        // The verifier knows no bounds of a number in a map.
        if self.is_v4() { 20 } else { 40 }
    }

    #[inline(always)]
    pub(crate) const fn is_v4(&self) -> bool {
        self.length == 20
    }
}

/// Returns the words of an address, in the byte order of the packet.
#[inline(always)]
fn words(addr: &[u8; 16]) -> [u32; 4] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *addr;
    [[a, b, c, d], [e, f, g, h], [i, j, k, l], [m, n, o, p]].map(u32::from_ne_bytes)
}
