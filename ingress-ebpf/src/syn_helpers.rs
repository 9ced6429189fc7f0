//! Helpers of the kernel for SYN cookies, on headers in a map: the verifier knows no ranges of their values there.

use aya_ebpf::{
    EbpfContext as _,
    bindings::{iphdr, ipv6hdr, tcphdr},
    helpers::generated::{
        bpf_check_mtu, bpf_sk_release, bpf_tcp_gen_syncookie, bpf_tcp_raw_check_syncookie_ipv4,
        bpf_tcp_raw_check_syncookie_ipv6, bpf_tcp_raw_gen_syncookie_ipv4, bpf_tcp_raw_gen_syncookie_ipv6,
    },
    programs::XdpContext,
};
use ingress_common::FlowKey;
use ingress_ebpf::{
    parse::{ACK, RST, SYN, Segment},
    syn_answer::{MSS_DEFAULT, Offer},
};

use crate::{
    receive::Received as _,
    sockets::{IpHeader, TCP_LENGTH, TcpHeader, ip_header, look_up},
};

/// Number of the state of a listener in the kernel (`include/net/tcp_states.h`).
const TCP_LISTEN: u32 = 10;
/// Bytes of a TCP header with the option of the MSS only.
const SYN_LENGTH: u32 = TCP_LENGTH + 4;
/// The same in words.
const SYN_WORDS: usize = SYN_LENGTH as usize / 4;

/// A SYN with no other option than the MSS, in the form that the helpers read.
pub(crate) type Syn = [u32; SYN_WORDS];

/// Has the kernel note that the listener sends cookies. Returns `false` if there is none, or if its queue is not full
/// while the kernel sends cookies only then (`tcp_syncookies` of 1).
#[inline(always)]
pub(crate) fn ask(packet: &XdpContext, flow: &FlowKey, port_be: u16, ip: &IpHeader, syn: &mut Syn) -> bool {
    let listener = look_up(packet, flow, ports(flow, port_be));
    if listener.is_null() {
        return false;
    }
    // SAFETY: not null, and held until it is released below.
    let state = unsafe { (*listener).state };
    let mut is_noted = false;
    if state == TCP_LISTEN {
        let ip_start = ip.words().as_ptr().cast_mut().cast();
        // SAFETY: the socket is held, and the headers have as many bytes.
        let made = unsafe {
            bpf_tcp_gen_syncookie(listener.cast(), ip_start, ip.length(), syn.as_mut_ptr().cast(), SYN_LENGTH)
        };
        is_noted = made >= 0;
    }
    // SAFETY: the lookup returned it, and it is not used afterwards.
    unsafe { bpf_sk_release(listener.cast()) };
    is_noted
}

/// Leaves no other option than the MSS in the header of a SYN.
#[inline(always)]
pub(crate) fn simplify(syn: &mut Syn, is_v4: bool, offer: &Offer) {
    const LENGTH_AND_FLAGS: u32 = u32::from_ne_bytes([(SYN_WORDS << 4) as u8, 2, 0xff, 0xff]);
    let default = if is_v4 { MSS_DEFAULT[0] } else { MSS_DEFAULT[1] };
    let [high, low] = (if offer.mss == 0 { default } else { offer.mss }).to_be_bytes();
    syn[3] = LENGTH_AND_FLAGS;
    syn[5] = u32::from_ne_bytes([2, 4, high, low]);
}

/// Returns the kernel's cookie for a SYN.
#[inline(always)]
pub(crate) fn cookie(ip: &IpHeader, syn: &mut Syn) -> Option<u32> {
    let start = ip.words().as_ptr().cast_mut();
    let tcp: *mut tcphdr = syn.as_mut_ptr().cast();
    let made = if ip.is_v4() {
        // SAFETY: the headers have as many bytes as the helper reads.
        unsafe { bpf_tcp_raw_gen_syncookie_ipv4(start.cast::<iphdr>(), tcp, SYN_LENGTH) }
    } else {
        // SAFETY: as above.
        unsafe { bpf_tcp_raw_gen_syncookie_ipv6(start.cast::<ipv6hdr>(), tcp, SYN_LENGTH) }
    };
    (made >= 0).then_some(made as u32)
}

/// Returns `true` if a segment confirms a cookie of this node.
#[inline(always)]
pub(crate) fn is_confirmed(packet: &XdpContext, segment: &Segment, port_be: u16) -> bool {
    let mut tcp = TcpHeader::new();
    if segment.tcp_flags & (SYN | RST | ACK) != ACK || !packet.read_tcp_header(segment.offset, &mut tcp) {
        return false;
    }
    let flow = &segment.flow;
    tcp.set_ports(ports(flow, port_be));
    let ip = ip_header(flow);
    let start = ip.words().as_ptr().cast_mut();
    let tcp: *mut tcphdr = (&raw mut tcp).cast();
    let checked = if ip.is_v4() {
        // SAFETY: the headers have as many bytes as the helper reads.
        unsafe { bpf_tcp_raw_check_syncookie_ipv4(start.cast::<iphdr>(), tcp) }
    } else {
        // SAFETY: as above.
        unsafe { bpf_tcp_raw_check_syncookie_ipv6(start.cast::<ipv6hdr>(), tcp) }
    };
    checked == 0
}

/// Returns `true` if a socket other than a listener has the connection.
#[inline(always)]
pub(crate) fn is_connection(packet: &XdpContext, flow: &FlowKey, port_be: u16) -> bool {
    let socket = look_up(packet, flow, ports(flow, port_be));
    if socket.is_null() {
        return false;
    }
    // SAFETY: not null, and held until it is released below.
    let state = unsafe { (*socket).state };
    // SAFETY: the lookup returned it, and it is not used afterwards.
    unsafe { bpf_sk_release(socket.cast()) };
    state != TCP_LISTEN
}

#[inline(always)]
pub(crate) fn ports(flow: &FlowKey, port_be: u16) -> u32 {
    u32::from(flow.remote_port_be) | u32::from(port_be) << 16
}

/// Returns the largest segment that fits into the packets of the interface.
#[inline(always)]
pub(crate) fn own_mss(packet: &XdpContext, is_v4: bool) -> u16 {
    const HEADERS: [u32; 2] = [20 + TCP_LENGTH, 40 + TCP_LENGTH];
    let mut mtu = 0_u32;
    // SAFETY: the context is the one this program was called with. The helper writes the MTU, also of a longer frame.
    unsafe { bpf_check_mtu(packet.as_ptr(), 0, &raw mut mtu, 0, 0) };
    let (headers, least) = if is_v4 { (HEADERS[0], MSS_DEFAULT[0]) } else { (HEADERS[1], MSS_DEFAULT[1]) };
    (mtu.saturating_sub(headers).min(u32::from(u16::MAX)) as u16).max(least)
}
