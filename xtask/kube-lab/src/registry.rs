//! A registry for images and charts in the control plane's namespace. Nodes pull from it only what names its address.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::machine::Machine;
use super::plan::{Places, REGISTRY};
use super::state::State;
use super::{config, control_plane, programs, wait};

/// Name of the process.
pub(super) const NAME: &str = "registry";
const READY_LIMIT: Duration = Duration::from_secs(60);
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Starts the registry and waits until it accepts connections.
///
/// # Errors
/// Fails if the program cannot be obtained here, or does not answer in time.
pub(super) fn start(machine: &Machine, places: &Places, state: &State) -> Result<()> {
    let file = places.data().join("registry.yaml");
    let text = config::registry(&places.data().join(NAME));
    fs::write(&file, text).with_context(|| format!("cannot write `{}`", file.display()))?;
    let mut registry = Command::new(programs::registry()?);
    registry.arg("serve").arg(file);
    let log = places.log(control_plane::NAME, NAME);
    machine.start(NAME, registry, &log, state)?;
    let address: SocketAddr = REGISTRY.parse().context("the registry has an address")?;
    let answers = || machine.run(|| Ok(TcpStream::connect_timeout(&address, CONNECT_LIMIT).is_ok()));
    wait::until("waiting for the registry", READY_LIMIT, answers).with_context(|| wait::log_tail(&log))
}
