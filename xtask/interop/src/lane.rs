//! The lane: each client runs its cases; all of them must pass. Clients that cannot be had here are skipped loudly.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use xtask_setup::build::{self, Profile};
use xtask_tools::summary::Outcome;
use xtask_tools::{process, progress};

use crate::clients::{Case, Client, Kind};
use crate::confirmed;
use crate::half_open;
use crate::report::Report;
use crate::stage::Stage;

/// Attempts to connect while the product sends Retry: on a busy machine, half-open connections may end before the client
/// has started.
const ATTEMPTS: u8 = 6;

/// Text below the options in `--help`.
pub const AFTER_HELP: &str = "\
Go builds the client on quic-go, and pip fetches aioquic, qh3 and libcurl; all are kept in the cache. The
browsers and the client of ngtcp2 are Debian's packages. A client that cannot be had here is skipped; with
REQUIRE_INTEROP=1 that is an error.

Examples:
  cargo xtask test interop
  cargo xtask test interop -- quic-go chromium";

/// Ask the product by HTTP/3 with clients from elsewhere
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The clients; all without
    #[arg(value_enum)]
    client: Vec<Kind>,
    /// A build of the product other than this checkout's
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Runs the lane, and prints a table of cases and clients.
///
/// # Errors
/// Fails if the product cannot be built or started, or a case does not pass.
pub fn run(args: &Args) -> Result<Outcome> {
    let kinds = if args.client.is_empty() { Kind::ALL.to_vec() } else { args.client.clone() };
    let (mut clients, mut missing) = (Vec::new(), Vec::new());
    for kind in kinds {
        match kind.prepare() {
            Ok(client) => clients.push(client),
            Err(error) if process::is_required("REQUIRE_INTEROP") => {
                return Err(error.context(format!("{kind} must run because `REQUIRE_INTEROP=1` is set")));
            }
            Err(error) => {
                progress::warn(&format!("{kind} cannot be had here: {error:#}"));
                missing.push(kind.to_string());
            }
        }
    }
    if clients.is_empty() {
        return Ok(Outcome::Skipped("no client can be had here, see above".to_owned()));
    }
    let binary = match &args.binary {
        Some(binary) => binary.clone(),
        None => build::userspace(Profile::Dev)?,
    };
    let scratch = tempfile::tempdir().context("cannot make a directory for logs and manifests")?;
    let mut stage = Stage::start(&binary, scratch.path())?;
    let mut report = Report::default();
    for client in &clients {
        if let Err(error) = ask(client, &stage, &mut report) {
            print!("{report}");
            progress::warn(&format!("the log of the product ends with:\n{}", stage.log_tail()));
            return Err(error.context(format!("{} cannot be judged", client.kind)));
        }
    }
    print!("{report}");
    let failures = report.failures();
    if !failures.is_empty() {
        progress::warn(&format!("the log of the product ends with:\n{}", stage.log_tail()));
        bail!("{}", failures.join("\n"));
    }
    stage.end()?;
    if missing.is_empty() { Ok(Outcome::Passed) } else { Ok(Outcome::Skipped(missing.join(", "))) }
}

/// Runs all cases of a client, the one with Retry at last: half-open connections of this address disturb others.
fn ask(client: &Client, stage: &Stage, report: &mut Report) -> Result<()> {
    let (kind, cases) = (client.kind, client.kind.cases());
    let (last, others): (Vec<Case>, Vec<Case>) = cases.into_iter().partition(|case| *case == Case::Retry);
    let (alone, others): (Vec<Case>, Vec<Case>) = others.into_iter().partition(|case| confirmed::is_alone(*case));
    let logged = stage.logged();
    report.add(kind, client.run(stage, stage.address(), &others)?);
    // The client believes that it has spoken HTTP/3; the log must agree.
    stage.wait_for_log(logged)?;
    for case in alone {
        report.add(kind, confirmed::run(client, stage, case)?);
    }
    if !last.is_empty() {
        for attempt in 1..=ATTEMPTS {
            let _sockets = half_open::fill(stage)?;
            let before = stage.retries()?;
            let mut results = client.run(stage, stage.address(), &last)?;
            let is_sent = stage.wait_for_retries(before).is_ok();
            stage.wait_for_rest()?;
            if is_sent || attempt == ATTEMPTS {
                if !is_sent {
                    results.iter_mut().for_each(|(_, result)| *result = Err("no Retry was sent".into()));
                }
                report.add(kind, results);
                break;
            }
        }
    }
    Ok(())
}
