//! `xdp-ingress unload`: removes the programs, links and maps that a process left pinned in the kernel.

use super::arguments::PinArgs;

/// Removes all pins and lists them on standard error.
///
/// # Errors
/// Fails if a pin cannot be removed.
pub(crate) fn run(PinArgs { bpffs }: PinArgs) -> anyhow::Result<()> {
    let removed = ingress_datapath::unload(&bpffs)?;
    if removed.is_empty() {
        eprintln!("nothing of xdp-ingress is pinned under {}", bpffs.display());
    }
    for pin in removed {
        eprintln!("removed {pin}");
    }
    Ok(())
}
