//! `xdp-ingress unload`: removes the programs, links and maps that a process left pinned in the kernel.

use std::collections::BTreeSet;

use anyhow::Context as _;

use super::arguments::PinArgs;
use crate::node::HeldRoutes;

/// Removes all pins, and the routes of held addresses, and lists them on standard error.
///
/// # Errors
/// Fails if a pin or a route cannot be removed.
pub(crate) fn run(PinArgs { bpffs }: PinArgs) -> anyhow::Result<()> {
    let removed = ingress_datapath::unload(&bpffs)?;
    if removed.is_empty() {
        eprintln!("nothing of xdp-ingress is pinned under {}", bpffs.display());
    }
    for pin in removed {
        eprintln!("removed {pin}");
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    let (_, routes) = runtime.block_on(async { HeldRoutes::open()?.replace(&BTreeSet::new()).await })?;
    if routes > 0 {
        eprintln!("removed {routes} routes of addresses that no interface has");
    }
    Ok(())
}
