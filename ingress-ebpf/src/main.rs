//! Programs.
#[cfg(not(target_arch = "bpf"))]
fn main() {}
