//! `cargo xtask soak`: what only shows after hours, or among thousands. Each run starts the product, holds it to a law,
//! prints a line of figures, and fails if the law does not hold.

mod load;
mod pod;
mod product;

use std::{path::PathBuf, process::Command, time::Duration};

use anyhow::bail;
use clap::ValueEnum;

use self::{pod::Pod, product::Product};
use crate::{build, lab::descriptors, process, workspace};

pub const AFTER_HELP: &str = "\
Exit codes: 0 every law held; 1 one did not, or something failed; 2 the command line was not understood.

Examples:
  cargo xtask soak --quick                       # everything, in minutes
  cargo xtask soak                               # everything but the half hour of the trickle
  cargo xtask soak --run trickle --minutes 30
  cargo xtask soak --run idle --connections 10000
  cargo xtask soak --run authorities             # a million requests, see tests/proxy/authorities.rs";

/// Measure what only shows after hours, or among thousands
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// What to run; all but `trickle` by default.
    #[arg(long = "run", value_enum, value_delimiter = ',')]
    runs: Vec<Run>,
    /// Length of the stream of `stream`, in GB.
    #[arg(long, default_value_t = 10)]
    gigabytes: u64,
    /// Time that `trickle` takes.
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    /// Connections of each kind that `idle` opens.
    #[arg(long, default_value_t = 10_000)]
    connections: usize,
    /// WebSockets that `websockets` opens.
    #[arg(long, default_value_t = 1000)]
    websockets: usize,
    /// Changes of the configuration that they survive.
    #[arg(long, default_value_t = 1000)]
    changes: usize,
    /// Requests of `authorities`.
    #[arg(long, default_value_t = 1_000_000)]
    requests: usize,
    /// A tenth of everything, and a minute of the trickle.
    #[arg(long)]
    quick: bool,
    /// A build of the product other than this checkout's.
    #[arg(long)]
    binary: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Run {
    /// A response of many GB: constant memory, no cut
    Stream,
    /// A response of 16 KB each second, as of internet radio: constant memory, no cut
    Trickle,
    /// Idle connections that are kept alive, plain and by TLS: bytes of memory for each
    Idle,
    /// WebSockets through changes of the configuration: none is cut
    Websockets,
    /// Fuzzed requests: the authority that is routed is the one that is forwarded
    Authorities,
}

/// Runs what is asked for.
///
/// # Errors
/// When the product does not start, or a law does not hold.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let Args { runs, gigabytes, minutes, connections, websockets, changes, requests, quick, binary } = args;
    let part = if *quick { 10 } else { 1 };
    let all = [Run::Stream, Run::Idle, Run::Websockets, Run::Authorities];
    let runs = if runs.is_empty() { &all[..] } else { runs };
    if binary.is_none() && runs.iter().any(|run| *run != Run::Authorities) {
        build::userspace(build::Profile::Release)?;
    }
    let binary = binary.clone().unwrap_or_else(|| workspace::target_dir().join("release/xdp-ingress"));
    descriptors::raise(*connections.max(&(3 * websockets)) as u64 + 1000)?;
    let mut failed = Vec::new();
    for run in runs {
        let start = || -> anyhow::Result<(Pod, Product)> {
            let pod = Pod::start()?;
            let product = Product::start(&binary, pod.address)?;
            Ok((pod, product))
        };
        let result = match run {
            Run::Stream => start().and_then(|(_pod, product)| load::stream(&product, gigabytes * 1_000_000_000 / part)),
            Run::Trickle => {
                let minutes = if *quick { 1 } else { *minutes };
                start().and_then(|(_pod, product)| load::trickle(&product, Duration::from_secs(minutes * 60)))
            }
            // Each kind with a product of its own, as what one has freed would be the other's; both, whatever the first
            // is.
            Run::Idle => load::IDLE
                .map(|law| start().and_then(|(_pod, product)| load::idle(&product, law, connections / part as usize)))
                .into_iter()
                .collect(),
            Run::Websockets => start().and_then(|(_pod, product)| {
                load::websockets(&product, websockets / part as usize, changes / part as usize)
            }),
            Run::Authorities => authorities(requests / part as usize),
        };
        if let Err(error) = result {
            eprintln!("{run:?}: {error:#}");
            failed.push(*run);
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("not as it must be: {failed:?}") }
}

fn authorities(requests: usize) -> anyhow::Result<()> {
    let law = "the_authority_that_is_routed_is_the_one_that_is_forwarded";
    let mut command = Command::new("cargo");
    command.args(["test", "--package", "ingress-userspace", "--test", "proxy", law, "--", "--nocapture"]);
    process::run(command.env("XDP_INGRESS_AUTHORITIES", requests.to_string()))
}
