//! Tells bpf-linker which instructions are allowed; does nothing for builds on the host.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("bpf") {
        // allows-misaligned-mem-access (LLVM 22): without it, addresses in packets, which lie at odd multiples of two,
        // would be copied byte by byte. The verifier accepts such accesses on every CPU that handles them well
        // (`CONFIG_HAVE_EFFICIENT_UNALIGNED_ACCESS`: x86-64, arm64).
        println!("cargo::rustc-link-arg-bins=--cpu-features=+allows-misaligned-mem-access");
    }
}
