//! `cargo xtask bench proxy`: the proxy beside nginx and haproxy in one interleaved run, with the goals of each case.
//!
//! Every figure is measured in rounds. Within a round each peer is measured once, in direct succession, in an order
//! that shifts from round to round. Ratios are formed within a round, and the printed figure is the median over rounds.
//! CPU is user plus system time of all processes of a peer, which remains stable when throughput does not.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use clap::ValueEnum;

use crate::{
    Case,
    changes::{self, Changes},
    credentials::Credentials,
    goal::Figure,
    load::{self, Sample},
    machine::{self, Loads},
    network,
    pace::{GOAL_RATE, Pace},
    peers::{self, Peer, Programs, Running, Setting, Stage},
    record::Part,
    report::{Results, Row},
    subject::Subject,
};
use ingress_lab::client::block_on;
use xtask_tools::progress;

pub(super) const AFTER_HELP: &str = "\
The proxy runs with all default features. With one worker, load and backend are pinned to CPU 0, the proxy to CPU 1;
with more, nothing is pinned. As root the run has a network namespace of its own, so that ports never clash.

All cases and latency take some twenty minutes. Latency is that of 4,000 requests per second, and of 20,000 or 70 % of
what the slowest peer can do, whichever is lower. A goal is a ratio to nginx; that one is missed is printed, and is no
failure.

The cases of HTTP/3, and those of TCP beside them, need other peers with HTTP/3. Where this machine's nginx or haproxy
has none, and for caddy, Debian's newer programs are unpacked once into ~/.cache/xdp-ingress (130 MB). A peer that
cannot be had is named, and the others are measured.

Exit codes: 0 measured; 1 something did not start, or gave no figures; 2 the command line was not understood.

Examples:
  cargo xtask bench proxy --quick                # some minutes, for review
  cargo xtask bench proxy --case h1 --rounds 9   # one case, with more certainty
  cargo xtask bench proxy --case h1,https,h2 --workers 2
  cargo xtask bench proxy --case h1 --changes    # h1, and latency, also while routes change
  cargo xtask bench proxy --case h3,h364k --peer nginx,xdp-ingress,again
  cargo xtask bench proxy --pgo --record         # everything, written to docs/benchmarks.md
  cargo xtask bench kernel                       # what the kernel part costs, beside nft; as root
  cargo xtask bench routes                       # how long a change takes among many hosts
  cargo xtask bench memory                       # what connections, routes and certificates take
  cargo xtask bench --quick                      # the same as the first";

/// The part of a document that `--record` writes.
pub(super) const PART: Part = Part { path: "docs/benchmarks.md", command: "cargo xtask bench proxy --record" };

/// Measure the proxy beside nginx and haproxy in one interleaved run
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
// The command itself has these arguments, too, and a group of this name.
#[group(skip)]
pub(super) struct Args {
    /// Cases to measure; all by default, and latency.
    #[arg(long = "case", value_enum, value_delimiter = ',')]
    cases: Vec<Case>,
    /// Also measure latency if `--case` is given.
    #[arg(long)]
    latency: bool,
    /// Also measure latency while routes change, 100 times a second, as `--record` does.
    #[arg(long)]
    changes: bool,
    /// Peers; the first is the reference of all ratios. Default: nginx, haproxy, caddy for HTTP/3 only, xdp-ingress.
    #[arg(long = "peer", value_enum, value_delimiter = ',')]
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
    /// Worker threads or processes of each peer. Default: 1, and then 2 for h1, https and h2 unless `--case` or
    /// `--quick` is given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: Option<u32>,
    #[command(flatten)]
    subject: Subject,
    /// An earlier build of the product, to be measured in the same rounds as the peer `before`.
    #[arg(long, conflicts_with = "record")]
    before: Option<PathBuf>,
    /// Write the results to docs/benchmarks.md.
    #[arg(long, conflicts_with_all = ["quick", "cases", "workers", "peers"])]
    record: bool,
}

/// Peers that run at the same time, and their measurements.
#[derive(Debug, PartialEq, Eq)]
struct Session {
    setting: Setting,
    cases: Vec<Case>,
    latency: Latency,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Latency {
    None,
    Quiet,
    /// Without route changes, and then during changes.
    QuietAndAmidChanges,
}

/// Extent of a measurement.
#[derive(Clone, Copy, Debug)]
struct Extent {
    rounds: u32,
    length: Duration,
}

/// Runs the measurement and prints Markdown.
///
/// # Errors
/// Fails if a required program is unavailable, or a peer does not start.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    xtask_setup::packages(&["nginx", "wrk", "nghttp2-client", "haproxy", "iproute2", "util-linux"], "bench")?;
    let binary = args.subject.program()?;
    // The namespace that comes next has no network.
    let programs = args.programs();
    network::own()?;
    measure(args, &binary, &programs)
}

fn measure(args: &Args, binary: &Path, programs: &Programs) -> anyhow::Result<()> {
    let extent = if args.quick {
        Extent { rounds: 2, length: Duration::from_secs(2) }
    } else {
        Extent { rounds: args.rounds, length: Duration::from_secs(args.seconds) }
    };
    let Extent { rounds, length } = extent;
    let folder = tempfile::Builder::new().prefix("xdp-ingress-bench-").tempdir().context("cannot make a folder")?;
    let credentials = Credentials::write(folder.path())?;
    let before = args.before.as_deref();
    let stage = Stage { folder: folder.path(), credentials: &credentials, binary, before, programs };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut loads = Loads::default();
    let sessions = sessions(args, cpus);
    let mut described = args.peers(false);
    if sessions.iter().all(|session| session.setting.http3) {
        // The table below has the versions of the others.
        described.retain(|peer| peer.is_ours());
    }
    let mut text = format!("{}{}\n\n", machine::description(&described, binary, programs)?, args.subject.remark());
    for session in sessions {
        eprintln!("{rounds} rounds of {length:?} each: {session:?}");
        write!(text, "{}", session.measure(&args.peers(session.setting.http3), stage, extent, &mut loads)?)?;
    }
    let legend = if args.has_changes() { changes::LEGEND } else { "" };
    writeln!(
        text,
        "{rounds} rounds of {} s. Medians over rounds; ratios within a round; spread is of CPU per request. {legend}{}",
        length.as_secs(),
        loads.said()
    )?;
    print!("{text}");
    if args.record {
        PART.write(&text)?;
    }
    Ok(())
}

/// Returns the sessions: the requested measurements, grouped by the peers that must run at the same time.
fn sessions(args: &Args, cpus: usize) -> Vec<Session> {
    let is_whole = args.cases.is_empty();
    let cases = if is_whole { Case::value_variants() } else { &args.cases };
    let workers = args.workers.unwrap_or(1);
    let latency = match (is_whole || args.latency, args.has_changes()) {
        (_, true) => Latency::QuietAndAmidChanges,
        (true, false) => Latency::Quiet,
        (false, false) => Latency::None,
    };
    let session = |workers, access_log, cases: Vec<Case>, latency| {
        let setting = Setting { workers, pin: workers == 1 && cpus > 1, access_log, http3: false };
        Session { setting, cases, latency }
    };
    let (http3, others): (Vec<Case>, Vec<Case>) = cases.iter().copied().partition(|case| case.is_http3());
    let (logged, quiet): (Vec<Case>, Vec<Case>) = others.into_iter().partition(|case| case.has_access_log());
    let mut sessions = vec![session(workers, false, quiet, latency), session(workers, true, logged, Latency::None)];
    if is_whole && !args.quick && args.workers.is_none() {
        sessions.push(session(2, false, Case::WITH_TWO_WORKERS.to_vec(), Latency::None));
    }
    let beside: Vec<Case> = http3.iter().filter_map(|case| case.by_tcp()).chain(http3.iter().copied()).collect();
    let mut over_quic = session(workers, false, beside, Latency::None);
    over_quic.setting.http3 = true;
    sessions.push(over_quic);
    sessions.retain(|session| !session.cases.is_empty() || session.latency != Latency::None);
    sessions
}

// === impl Args ===

impl Args {
    /// Returns `true` if route changes are measured, too. A recorded run includes them, because the document would lose
    /// their rows otherwise.
    fn has_changes(&self) -> bool {
        self.changes || self.record
    }

    /// Returns the peers of a session.
    fn peers(&self, http3: bool) -> Vec<Peer> {
        match (self.peers.is_empty(), http3) {
            (false, _) => self.peers.clone(),
            (true, false) => vec![Peer::Nginx, Peer::Haproxy, Peer::XdpIngress],
            (true, true) => vec![Peer::Nginx, Peer::Haproxy, Peer::Caddy, Peer::XdpIngress],
        }
    }

    /// Finds the programs that this machine may lack.
    fn programs(&self) -> Programs {
        let has_http3 = self.cases.is_empty() || self.cases.iter().any(|case| case.is_http3());
        let peers = self.peers(has_http3).into_iter().filter(|peer| has_http3 || *peer == Peer::Caddy);
        Programs::with_http3(&peers.collect::<Vec<_>>())
    }
}

// === impl Session ===

impl Session {
    /// Starts all peers, measures, and returns a section of Markdown.
    fn measure(&self, peers: &[Peer], stage: Stage<'_>, extent: Extent, loads: &mut Loads) -> anyhow::Result<String> {
        let Self { setting, cases, latency: _ } = self;
        let missing = stage.programs.missing(peers, setting.http3);
        let peers: Vec<Peer> = peers.iter().copied().filter(|peer| stage.programs.has(*peer, setting.http3)).collect();
        if peers.is_empty() {
            return Ok(format!("{}\n\n{missing}", self.title()));
        }
        let about = if setting.http3 { about_http3(&peers, stage)? } else { String::new() };
        let mut backend = peers::backend(stage.folder, setting.pin)?;
        let mut running = peers
            .iter()
            .zip(0_u16..)
            .map(|(peer, index)| Running::start(*peer, index, stage, *setting))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let mut results = Results::new(peers.clone(), *setting);
        for case in cases {
            // The failure of a peer costs no figures of the others.
            let mut failed = BTreeSet::new();
            let mut ask = |index: usize, peer: &Running, length| {
                if failed.contains(&index) {
                    return Ok(None);
                }
                match load::run(*case, stage.target(peer, *setting), length) {
                    Err(error) if !peers[index].is_ours() => {
                        progress::warn(&format!("`{case}` has no figures of {}: {error:#}", peers[index]));
                        failed.insert(index);
                        Ok(None)
                    }
                    sample => sample.map(Some),
                }
            };
            for (index, peer) in running.iter().enumerate() {
                // Warm-up: caches and pools are cold.
                ask(index, peer, Duration::from_secs(1))?;
            }
            for (round, index) in turns(extent.rounds, running.len()) {
                let before = running[index].cpu()?;
                let Some(sample) = ask(index, &running[index], extent.length)? else { continue };
                let Sample { requests, errors, seconds } = sample;
                let row = Row { requests, errors, seconds, cpu: running[index].cpu()? - before, times: None };
                results.add(*case, round, index, row);
                loads.look()?;
                if setting.access_log {
                    running[index].forget_logs()?;
                }
            }
            failed.into_iter().for_each(|index| results.leave_out(*case, index));
            eprintln!("{case} done");
        }
        let mut latencies = Results::new(peers.clone(), *setting);
        for pace in self.paces(&running, &results, stage)? {
            for (round, index) in turns(extent.rounds, running.len()) {
                let row = paced(pace, peers[index], &running[index], stage, *setting, extent.length)?;
                latencies.add(pace, round, index, row);
                loads.look()?;
            }
            eprintln!("{pace:?} done");
        }
        for peer in &mut running {
            peer.stop()?;
        }
        backend.stop()?;
        let tables = [results.to_string(), latencies.to_string()].into_iter().filter(|table| !table.is_empty());
        Ok(tables.fold(format!("{}\n\n{about}{missing}", self.title()), |text, table| text + &table + "\n"))
    }

    /// Returns the rates; the higher one is the highest that all compared peers can sustain.
    fn paces(&self, running: &[Running], results: &Results<Case>, stage: Stage<'_>) -> anyhow::Result<Vec<Pace>> {
        let changes: &[bool] = match self.latency {
            Latency::None => return Ok(Vec::new()),
            Latency::Quiet => &[false],
            Latency::QuietAndAmidChanges => &[false, true],
        };
        let mut capacities = results.medians(Case::H1, Figure::Rate);
        if capacities.is_empty() {
            for running in running {
                let sample = load::run(Case::H1, stage.target(running, self.setting), Duration::from_secs(2))?;
                capacities.push(sample.requests as f64 / sample.seconds);
            }
        }
        let rates = [GOAL_RATE, Pace::high_rate(capacities)];
        let paces = rates.iter().flat_map(|&rate| changes.iter().map(move |&amid_changes| Pace { rate, amid_changes }));
        Ok(paces.collect())
    }

    fn title(&self) -> String {
        let Setting { workers, pin, access_log, http3 } = self.setting;
        format!(
            "**{workers} worker{}, {}{}{}**",
            if workers == 1 { "" } else { "s" },
            if pin { "pinned" } else { "not pinned" },
            if access_log { ", access log on" } else { "" },
            if http3 { ", HTTP/3 on" } else { "" }
        )
    }
}

/// Returns paragraphs about the other peers with HTTP/3: their programs are newer than in other sessions.
fn about_http3(peers: &[Peer], stage: Stage<'_>) -> anyhow::Result<String> {
    let others = peers.iter().filter(|peer| !peer.is_ours());
    let versions = others.map(|peer| machine::version(*peer, stage.binary, stage.programs, true));
    let versions = versions.collect::<anyhow::Result<Vec<_>>>()?;
    if versions.is_empty() {
        return Ok(String::new());
    }
    Ok(format!("Here the others are {}.\n\n{}", versions.join(", "), peers::remark_on_buffers()?))
}

/// Returns the rounds, each with every peer in turn: the order shifts.
fn turns(rounds: u32, peers: usize) -> impl Iterator<Item = (u32, usize)> {
    (0..rounds).flat_map(move |round| (0..peers).map(move |turn| (round, (turn + round as usize) % peers)))
}

/// Measures once at a fixed rate.
fn paced(
    pace: Pace,
    peer: Peer,
    running: &Running,
    stage: Stage<'_>,
    setting: Setting,
    length: Duration,
) -> anyhow::Result<Row> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, running.ports().http));
    let start = || Changes::start(peer, running, stage.folder);
    let changes = if pace.amid_changes { load::beside_the_pod(setting.pin, start)? } else { None };
    let before = running.cpu()?;
    let (sample, times) = load::beside_the_pod(setting.pin, || block_on(pace.run(address, length)))?;
    let cpu = running.cpu()? - before;
    if let Some(changes) = changes {
        eprintln!("{peer}: {} changes", changes.end()?);
    }
    let Sample { requests, errors, seconds } = sample;
    Ok(Row { requests, errors, seconds, cpu, times: Some(times) })
}

#[cfg(test)]
mod tests;
