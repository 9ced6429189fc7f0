//! Answers neighbours that ask for the link-layer address of a held address, or drops the question so that the stack keeps
//! quiet. Every node holds such an address, but only one may answer. It also has the last step of forwarding: the frame gets
//! the Ethernet addresses that `sockets.rs` decided on, and leaves.
//!
//! A node whose proxy hangs or has ended keeps quiet, so that another one can announce its addresses.

use core::hint::black_box;

use aya_ebpf::{helpers::generated::bpf_redirect, programs::TcContext};
use ingress_common::{
    NicMac, Total,
    steer::{ADDR_ANNOUNCED, ADDR_HELD, HEARTBEAT_STALE_NS, fresh},
};
use ingress_ebpf::{
    announce::{FrameMut, Question, answer},
    forward::{ETHERNET_ADDRESSES, send_on},
    node_facts::Node as _,
    parse::Frame,
};

use crate::{
    count,
    maps::NIC_MACS,
    node::Maps,
    receive::{PacketAction, Received},
};

/// Acts on a question for a held address, and counts it; returns `None` for other packets.
#[inline(always)]
pub(crate) fn asked(packet: &impl Received, verdict: Total, bytes: u64) -> Option<PacketAction> {
    // Forgets what the parser knew of the frame: the compiler would use it again, and the verifier walk the rest once for
    // each of the parser's paths.
    let packet = black_box(packet);
    let question = packet.question(verdict)?;
    let flags = Maps.address_flags(&question.target)?;
    if flags & ADDR_HELD == 0 {
        return None;
    }
    if flags & ADDR_ANNOUNCED != 0
        && fresh(Maps.now_ns(), Maps.heartbeat_ns(), HEARTBEAT_STALE_NS)
        && let Some(NicMac { mac, pad: _ }) = mac(packet.nic())
        && packet.answer(&question, &mac)
    {
        count::total(Total::Announced, bytes);
        return Some(PacketAction::Transmit);
    }
    count::total(Total::Unannounced, bytes);
    Some(PacketAction::Drop)
}

/// Writes the answer into a packet of the stack, and has it sent.
#[inline(always)]
pub(crate) fn by_tc(ctx: &TcContext, question: &Question, mac: &[u8; 6]) -> bool {
    answer(&mut StackPacket(ctx), question, mac) && redirect(ctx)
}

/// Sends a packet of the stack on, with these Ethernet addresses, on the interface that received it.
#[inline(always)]
pub(crate) fn send_by_tc(ctx: &TcContext, addresses: &[u8; ETHERNET_ADDRESSES]) -> bool {
    send_on(&mut StackPacket(ctx), addresses) && redirect(ctx)
}

/// Has a packet of the stack sent on the interface that received it.
#[inline(always)]
fn redirect(ctx: &TcContext) -> bool {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_redirect(Received::nic(ctx), 0) == REDIRECTED }
}

/// A packet of the stack, written by a helper, which copies memory that others share. Pointers into the packet read
/// before a write are invalid afterwards, so they are computed anew for each read.
struct StackPacket<'a>(&'a TcContext);

impl Frame for StackPacket<'_> {
    #[inline(always)]
    fn bytes<const N: usize>(&self, offset: usize) -> Option<&[u8; N]> {
        let Self(ctx) = self;
        let at = ctx.data() + offset;
        // Exactly this form, as in `Linear`.
        if at + N > ctx.data_end() {
            return None;
        }
        // SAFETY: `N` bytes from `at` lie within the packet; byte arrays have no alignment.
        Some(unsafe { &*(at as *const [u8; N]) })
    }
}

impl FrameMut for StackPacket<'_> {
    #[inline(always)]
    fn write<const N: usize>(&mut self, offset: usize, bytes: &[u8; N]) -> bool {
        let Self(ctx) = self;
        ctx.store(offset, bytes, 0).is_ok()
    }
}

/// The helper's answer for a packet of the stack: TC_ACT_REDIRECT.
const REDIRECTED: i64 = 7;

/// Returns the address of an interface; `None` for one that is not Ethernet's.
#[inline(always)]
pub(crate) fn mac(nic: u32) -> Option<NicMac> {
    // SAFETY: programs never write this map; a concurrent update by userspace replaces the whole element.
    unsafe { NIC_MACS.get(&nic) }.copied()
}
