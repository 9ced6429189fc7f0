//! `cargo xtask soak`: tests for faults that show only after hours, or with thousands of connections. Each run starts
//! the product, checks a law, prints a line of figures, and fails if the law does not hold.

mod cgroup;
mod greedy;
mod load;
mod pod;
mod product;
mod slow_read;
mod verdict;

use std::{path::PathBuf, time::Duration};

use anyhow::bail;
use clap::ValueEnum;

use self::{pod::Pod, product::Product, slow_read::Law};
use ingress_lab::descriptors;
use xtask_setup::build;
use xtask_tools::{process, workspace};

pub const AFTER_HELP: &str = "\
Exit codes: 0 every law held; 1 one did not, or something failed; 2 the command line was not understood.

Examples:
  cargo xtask soak --quick                       # all but trickle and slow-read, in minutes
  cargo xtask soak                               # everything but the half hour of the trickle, and slow-read
  cargo xtask soak --run trickle --minutes 30
  cargo xtask soak --run idle --connections 10000
  cargo xtask soak --run slow-read               # needs root, for a cgroup of 256 MiB; 18 minutes
  cargo xtask soak --run authorities             # a million requests, see tests/proxy/authorities.rs";

/// Test for faults that show only after hours, or with thousands of connections
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Runs to do; all except `trickle` and `slow-read` by default.
    #[arg(long = "run", value_enum, value_delimiter = ',')]
    runs: Vec<Run>,
    /// Length of the stream of `stream`, in GB.
    #[arg(long, default_value_t = 10)]
    gigabytes: u64,
    /// Duration of `trickle`, in minutes.
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    /// Connections of each kind that `idle` opens.
    #[arg(long, default_value_t = 10_000)]
    connections: usize,
    /// WebSockets that `websockets` opens.
    #[arg(long, default_value_t = 1000)]
    websockets: usize,
    /// Configuration changes during `websockets`.
    #[arg(long, default_value_t = 1000)]
    changes: usize,
    /// Requests of `authorities`.
    #[arg(long, default_value_t = 1_000_000)]
    requests: usize,
    /// Rounds of `slow-read`, each with two phases of 20 s for each protocol; medians count.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// A tenth of everything, one minute of `trickle`, and one round of `slow-read` with phases of 5 s.
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
    /// A response of 16 KB each second, like internet radio: constant memory, no cut
    Trickle,
    /// Idle keep-alive connections, plain and over TLS: bytes of memory for each
    Idle,
    /// WebSockets during configuration changes: none is cut
    Websockets,
    /// HTTP/2, TLS and gRPC clients that read nothing, in 256 MiB: no kill, and no harm to other clients
    SlowRead,
    /// Fuzzed requests: the routed authority is the forwarded one
    Authorities,
}

/// Runs `cargo xtask soak`.
///
/// # Errors
/// Fails if the product does not start, or a law does not hold.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let Args { runs, gigabytes, minutes, connections, websockets, changes, requests, rounds, quick, binary } = args;
    let part = if *quick { 10 } else { 1 };
    let all = [Run::Stream, Run::Idle, Run::Websockets, Run::Authorities];
    let runs = if runs.is_empty() { &all[..] } else { runs };
    if binary.is_none() && runs.iter().any(|run| *run != Run::Authorities) {
        build::userspace(build::Profile::Release)?;
    }
    let binary = binary.clone().unwrap_or_else(|| workspace::target_dir().join("release/xdp-ingress"));
    let sockets = runs.iter().map(|run| match run {
        Run::Idle => *connections,
        Run::Websockets => 3 * websockets,
        Run::SlowRead => slow_read::SOCKETS,
        Run::Stream | Run::Trickle | Run::Authorities => 0,
    });
    descriptors::raise(sockets.max().unwrap_or(0) as u64 + 1000)?;
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
            // A separate product for each kind, because memory freed by one would be reused by the other. Both run even
            // if the first fails.
            Run::Idle => load::IDLE
                .map(|law| start().and_then(|(_pod, product)| load::idle(&product, law, connections / part as usize)))
                .into_iter()
                .collect(),
            Run::Websockets => start().and_then(|(_pod, product)| {
                load::websockets(&product, websockets / part as usize, changes / part as usize)
            }),
            Run::SlowRead => {
                // Nearly the whole life of such connections, which `client-body-timeout` ends after 60 s.
                let (rounds, seconds) = if *quick { (1, 5) } else { (*rounds, 55) };
                Law { rounds, phase: Duration::from_secs(seconds) }.hold(&binary)
            }
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
    let law = "the_routed_authority_is_the_forwarded_one";
    let mut command = build::test(&["proxy"]);
    command.args([law, "--", "--nocapture"]);
    process::run(command.env("XDP_INGRESS_AUTHORITIES", requests.to_string()))
}
