//! The kernel programs `ingress_xdp`, `ingress_tc_in`, `ingress_lookup`, `ingress_quic` and `ingress_tc_out`: connect
//! the pure half of the crate to packets, maps and counters. `ingress_xdp_cookies` replaces `ingress_xdp` if SYN
//! cookies are on. Kernels before 5.18 use variants of two of them, `ingress_xdp_linear` and `ingress_lookup_blind`.
#![cfg_attr(target_arch = "bpf", no_std, no_main, feature(core_intrinsics))]
#![cfg_attr(
    target_arch = "bpf",
    allow(
        internal_features,
        reason = "`core::sync::atomic` has no additions for this target, the kernel has (client_limits.rs)"
    )
)]

#[cfg(target_arch = "bpf")]
mod client_limits;
#[cfg(target_arch = "bpf")]
mod count;
#[cfg(target_arch = "bpf")]
mod deny;
#[cfg(target_arch = "bpf")]
mod handoffs;
#[cfg(target_arch = "bpf")]
mod linear;
#[cfg(target_arch = "bpf")]
mod lookup;
#[cfg(target_arch = "bpf")]
mod maps;
#[cfg(target_arch = "bpf")]
mod neighbours;
#[cfg(target_arch = "bpf")]
mod node;
#[cfg(target_arch = "bpf")]
mod quic_checks;
#[cfg(target_arch = "bpf")]
mod receive;
#[cfg(target_arch = "bpf")]
mod reuseport;
#[cfg(target_arch = "bpf")]
mod rewrite;
#[cfg(target_arch = "bpf")]
mod sockets;
#[cfg(target_arch = "bpf")]
mod syn_cookies;
#[cfg(target_arch = "bpf")]
mod syn_helpers;
#[cfg(target_arch = "bpf")]
mod syn_rate;
#[cfg(target_arch = "bpf")]
mod tc_in;
#[cfg(target_arch = "bpf")]
mod tc_out;
#[cfg(target_arch = "bpf")]
mod xdp;

#[cfg(not(target_arch = "bpf"))]
fn main() {}

/// Several helpers are available to GPL-compatible programs only.
#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // The verifier refuses a program that could reach this loop.
    loop {}
}
