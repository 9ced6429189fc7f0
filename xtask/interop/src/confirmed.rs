//! Cases that a client runs alone, because the product or the path to it must confirm what the client says.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ingress_lab::until_within;

use crate::clients::{Case, Client, Results};
use crate::path::{Fault, Path, Plan};
use crate::stage::{COUNTED, Stage};

/// NAT that changes ports: after more datagrams than a handshake has, and four times or more amid the response.
const NAT: Plan =
    Plan { delay: Duration::ZERO, rate: None, fault: Fault::Rebinding { every: 150, keeps_address: true } };
/// Fewest changes of the port amid the request.
const MOVES: u64 = 3;
/// Time until workers have counted for metrics whatever came before.
const SETTLED: Duration = Duration::from_millis(1200);

/// Count of the product that must grow: its meaning, its source and its fewest steps.
type Sign = (&'static str, fn(&Stage) -> Result<u64>, u64);

/// Returns whether a client runs `case` alone.
pub(crate) fn is_alone(case: Case) -> bool {
    // A client may need another start for a cipher.
    sign(case).is_some() || case == Case::Chacha20
}

fn sign(case: Case) -> Option<Sign> {
    match case {
        Case::Migration => Some(("a new address of the client", Stage::migrations, 1)),
        Case::Rebinding => Some(("new addresses of the client", Stage::migrations, MOVES)),
        Case::Multiconnect => Some(("20 handshakes", Stage::handshakes, 20)),
        Case::Ipv6 => Some(("a request from ::1", Stage::logged_v6, 1)),
        _ => None,
    }
}

/// Runs `case`, which passes only if it is confirmed.
///
/// # Errors
/// Fails if the client cannot be started, or the product does not tell its counts.
pub(crate) fn run(client: &Client, stage: &Stage, case: Case) -> Result<Results> {
    let Some((what, count, least)) = sign(case) else { return client.run(stage, stage.address(), &[case]) };
    if case != Case::Ipv6 {
        thread::sleep(SETTLED);
    }
    let before = count(stage)?;
    let nat = (case == Case::Rebinding).then(|| Path::start(stage.address(), NAT, 1, 1)).transpose()?;
    let at = match (&nat, case) {
        (Some(path), _) => *path.ports.first().context("a path without a port")?,
        (None, Case::Ipv6) => stage.address_v6(),
        (None, _) => stage.address(),
    };
    let mut results = client.run(stage, at, &[case])?;
    let is_counted = until_within(COUNTED, what, || (count(stage).ok()? >= before + least).then_some(())).is_ok();
    let ports = nat.map_or(Ok(MOVES), |path| path.end().map(|counts| counts.answered))?;
    for (_, result) in &mut results {
        if result.is_ok() && !is_counted {
            *result = Err(format!("the product has not counted {what}"));
        } else if result.is_ok() && ports < MOVES {
            *result = Err(format!("the product has answered at {ports} new ports"));
        }
    }
    Ok(results)
}
