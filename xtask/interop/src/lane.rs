//! The lane: each client runs its cases; all of them must pass. Clients that cannot be had here are skipped loudly.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum as _;
use xtask_setup::build::{self, Profile};
use xtask_tools::summary::Outcome;
use xtask_tools::{process, progress};

use crate::clients::{Case, Client, Kind, Results};
use crate::confirmed;
use crate::half_open;
use crate::impaired::{self, Choice, Impaired};
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
Cases on paths with faults run with quic-go and aioquic; with XDP_INGRESS_INTEROP=all they run with all clients.

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
    let choice = Choice::from_environment()?;
    let kinds = if args.client.is_empty() { Kind::value_variants().to_vec() } else { args.client.clone() };
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
    let (mut report, mut on_paths) = (Report::new(), Report::new());
    let asked = ask_all(choice, &clients, &stage, &mut report, &mut on_paths);
    print!("{report}\n{on_paths}");
    let left_out: Vec<String> =
        clients.iter().filter(|client| !choice.has(client.kind)).map(|client| client.kind.to_string()).collect();
    if !left_out.is_empty() {
        let names = left_out.join(", ");
        println!("No case on a path with faults ran for {names}; {}=all runs them, too.", impaired::VARIABLE);
    }
    let error = asked.err().map(|error| format!("{error:#}"));
    let failures: Vec<String> = report.failures().into_iter().chain(on_paths.failures()).chain(error).collect();
    if !failures.is_empty() {
        progress::warn(&format!("the log of the product ends with:\n{}", stage.log_tail()));
        bail!("{}", failures.join("\n"));
    }
    stage.end()?;
    if missing.is_empty() { Ok(Outcome::Passed) } else { Ok(Outcome::Skipped(missing.join(", "))) }
}

/// Runs the cases of all clients, and after that those on paths with faults. An error ends this; results so far are kept.
fn ask_all(
    choice: Choice,
    clients: &[Client],
    stage: &Stage,
    report: &mut Report<Case>,
    on_paths: &mut Report<Impaired>,
) -> Result<()> {
    for client in clients {
        ask(client, stage, report).with_context(|| format!("{} cannot be judged", client.kind))?;
    }
    for client in clients {
        impaired::ask(choice, client, stage, on_paths)
            .with_context(|| format!("{} cannot be judged on paths", client.kind))?;
    }
    Ok(())
}

/// Runs all cases of a client, the one with Retry at last: half-open connections of this address disturb others.
fn ask(client: &Client, stage: &Stage, report: &mut Report<Case>) -> Result<()> {
    let passed =
        |results: Results| results.into_iter().map(|(case, result)| (case, result.map(|()| "passed".to_owned())));
    let (kind, cases) = (client.kind, client.kind.cases());
    let (last, others): (Vec<Case>, Vec<Case>) = cases.into_iter().partition(|case| *case == Case::Retry);
    let (alone, others): (Vec<Case>, Vec<Case>) = others.into_iter().partition(|case| confirmed::is_alone(*case));
    let logged = stage.logged();
    report.add(kind, passed(client.run(stage, stage.address(), &others)?));
    // The client believes that it has spoken HTTP/3; the log must agree.
    stage.wait_for_log(logged)?;
    for case in alone {
        report.add(kind, passed(confirmed::run(client, stage, case)?));
    }
    if !last.is_empty() {
        for attempt in 1..=ATTEMPTS {
            let half_open = half_open::fill(stage)?;
            let before = stage.retries()?;
            let mut results = client.run(stage, stage.address(), &last)?;
            let is_sent = stage.wait_for_retries(before).is_ok();
            drop(half_open);
            stage.wait_for_rest()?;
            if is_sent || attempt == ATTEMPTS {
                if !is_sent {
                    results.iter_mut().for_each(|(_, result)| *result = Err("no Retry was sent".into()));
                }
                report.add(kind, passed(results));
                break;
            }
        }
    }
    Ok(())
}
