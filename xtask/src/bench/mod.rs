//! `cargo xtask bench`: the proxy beside nginx in one interleaved run. Measures; it does not judge.
//!
//! Every figure is taken in rounds. Within a round each peer is measured once, right after the other, in an order that
//! shifts from round to round; ratios are formed within a round, and the median over rounds is what is printed. CPU is
//! user plus system time of all processes of a peer, which holds still where throughput does not.

mod kernel;
mod load;
mod peers;
pub mod profile;
mod record;
mod report;

use std::{fs, net::Ipv4Addr, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, bail};
use clap::ValueEnum;

use self::{
    load::Sample,
    peers::{Peer, Running},
    report::Results,
};
use crate::{build, setup, workspace};

pub const AFTER_HELP: &str = "\
The proxy runs with all default features; load and backend are pinned to CPU 0, the proxy to CPU 1. As root the run has a
network namespace of its own, so that ports never clash.

Examples:
  cargo xtask bench --quick                      # one minute, for review
  cargo xtask bench --case h1 --rounds 9         # one case, with more certainty
  cargo xtask bench --peer nginx,haproxy,xdp-ingress
  cargo xtask bench kernel                       # what the kernel part costs, beside nft; as root";

/// Measure the proxy beside nginx in one interleaved run
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    scope: Option<Scope>,
    /// Cases to measure; all by default.
    #[arg(long = "case", value_enum, value_delimiter = ',')]
    cases: Vec<Case>,
    /// Peers; the first is the reference of all ratios.
    #[arg(long = "peer", value_enum, value_delimiter = ',', default_value = "nginx,xdp-ingress")]
    peers: Vec<Peer>,
    /// Rounds; the medians of fewer than five say little.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Length of one measurement in seconds.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Two rounds of two seconds.
    #[arg(long)]
    quick: bool,
    /// Worker threads or processes of each peer.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// Set by the command itself once it is in its own network namespace.
    #[arg(long, hide = true)]
    in_namespace: bool,
}

/// What is measured by itself.
#[derive(Debug, clap::Subcommand)]
enum Scope {
    Kernel(kernel::Args),
}

/// What the load does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Case {
    /// HTTP/1.1, 64 connections kept alive, 1 KiB responses
    H1,
    /// HTTP/1.1, a new connection for each request
    H1close,
    /// As h1, over TLS
    Https,
    /// HTTP/2 over TLS, 16 connections × 32 streams
    H2,
    /// 64 KiB responses, 32 connections
    Body64k,
    /// 10 MiB responses, 8 connections
    Body10m,
}

/// Runs the measurement and prints Markdown.
///
/// # Errors
/// When a program that it needs cannot be had, or a peer does not start.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(Scope::Kernel(args)) = &args.scope {
        return kernel::run(args);
    }
    if args.in_namespace {
        return measure(args);
    }
    setup::packages(&["nginx", "wrk", "nghttp2-client", "haproxy", "iproute2", "util-linux"], "bench")?;
    build::userspace(build::Profile::Release)?;
    if !nix::unistd::geteuid().is_root() {
        return measure(args);
    }
    again_in_namespace()
}

/// Runs this command once more, in a network namespace of its own, which `--in-namespace` tells it.
fn again_in_namespace() -> anyhow::Result<()> {
    let own = std::env::current_exe().context("cannot find this program again")?;
    let status = Command::new("unshare")
        .args(["--net", "--"])
        .arg(own)
        .args(std::env::args_os().skip(1))
        .arg("--in-namespace")
        .status()
        .context("cannot run `unshare` (package util-linux)")?;
    if !status.success() {
        bail!("the measurement in its own network namespace ended with {status}");
    }
    Ok(())
}

fn measure(args: &Args) -> anyhow::Result<()> {
    let Args { scope: _, cases, peers, rounds, seconds, quick, workers, in_namespace } = args;
    if *in_namespace {
        network()?;
    }
    let (rounds, seconds) = if *quick { (2, 2) } else { (*rounds, *seconds) };
    let cases = if cases.is_empty() { Case::value_variants().to_vec() } else { cases.clone() };
    let folder = Folder::create()?;
    let binary = workspace::target_dir().join("release/xdp-ingress");
    let pin = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1);
    let mut backend = peers::backend(&folder.0, pin)?;
    let mut running = peers
        .iter()
        .zip(0_u16..)
        .map(|(peer, index)| Running::start(*peer, index, &folder.0, &binary, *workers, pin))
        .collect::<anyhow::Result<Vec<_>>>()?;
    eprintln!("{} rounds of {seconds} s for each of {} cases and {} peers", rounds, cases.len(), running.len());
    let mut results = Results::new(peers.clone());
    for case in cases {
        for round in 0..rounds {
            for turn in 0..running.len() {
                let index = (turn + round as usize) % running.len();
                let peer = &mut running[index];
                if round == 0 {
                    load::run(case, Ipv4Addr::LOCALHOST, peer.ports(), Duration::from_secs(1), pin)?;
                }
                let before = peer.cpu()?;
                let Sample { requests, errors, seconds } =
                    load::run(case, Ipv4Addr::LOCALHOST, peer.ports(), Duration::from_secs(seconds), pin)?;
                results.add(case, round, index, report::Row { requests, errors, seconds, cpu: peer.cpu()? - before });
            }
        }
        eprintln!("{case:?} done");
    }
    for peer in &mut running {
        peer.stop()?;
    }
    backend.stop()?;
    println!("{results}");
    Ok(())
}

/// Loopback up, ports enough for a connection per request, and a congestion control without pacing: one that paces even
/// on loopback (BBR) hides the peers' differences on bodies.
fn network() -> anyhow::Result<()> {
    let status = Command::new("ip").args(["link", "set", "lo", "up"]).status().context("cannot run `ip`")?;
    if !status.success() {
        bail!("cannot bring loopback up in the namespace of the bench ({status})");
    }
    fs::write("/proc/sys/net/ipv4/ip_local_port_range", "22000 65000").context("cannot widen the port range")?;
    let cubic = fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "cubic");
    cubic.or_else(|_| fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "reno")).context("no congestion control")
}

/// A temporary folder that goes with the run.
struct Folder(PathBuf);

impl Folder {
    fn create() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("xdp-ingress-bench-{}", std::process::id()));
        fs::create_dir_all(path.join("www")).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}
