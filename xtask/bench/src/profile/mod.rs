//! `cargo xtask profile`: the work of a proxy for a request, counted rather than timed, so that a busy machine does not
//! affect it: instructions in user mode by callgrind, system calls by strace. `--sample` also shows where the time
//! goes.
//!
//! ```text
//! load (an exact number of requests) ──┐
//! callgrind ── its dumps ───── counts ─┴─ windows ── per request ─┬── report
//! strace    ── its summary ─── counts ─┘                          │
//! samples (perf) ── stacks, folded ───────────────────────────────┘
//! ```

mod callgrind;
mod counts;
mod load;
mod report;
mod samples;
mod strace;

use std::{path::Path, process::Command};

use anyhow::Context;
use clap::ValueEnum;

use self::{
    callgrind::Callgrind,
    counts::PerRequest,
    load::Load,
    report::{Profile, Report},
    samples::Folded,
    strace::Strace,
};
use super::{
    case::Case,
    credentials::Credentials,
    machine, network,
    peers::{self, Peer, Programs, Running, Setting, Stage},
    record::Part,
    subject::Subject,
};
use xtask_tools::process;

const AFTER_HELP: &str = "\
Each peer runs with one worker: under callgrind, which counts instructions in user mode of all its threads, and again
without it, under strace. Each counts while nothing is asked, during N requests, and during twice as many: what the
second N have added, less what the peer does by itself, is what N requests cost. Opening the connections, handshakes
and whatever is done once are in neither, but for `h1close` and the cases of handshakes, where they belong to the
request. Of handshakes N is a tenth of what --requests says, and of responses of 10 MiB a twentieth.

callgrind's processor has AVX2 and no AVX-512, so that cryptography and copies may take other instructions than they
do outside of it; they do so for all peers. The kernel's instructions are not counted: `--sample` shows its part of
the time. Needs valgrind, strace, nginx and h2load, and perf for `--sample`; as root it installs what is missing, and
has a network namespace of its own.

Exit codes: 0 everything was counted; 1 something failed; 2 the command line was not understood.

Examples:
  cargo xtask profile                                     # all cases, beside nginx; about six minutes
  cargo xtask profile --case h1 --functions               # which functions take the instructions
  cargo xtask profile --case h2 --peer xdp-ingress --sample
  cargo xtask profile --case h3,h364k                     # beside Debian's newer nginx
  cargo xtask profile --pgo --record                      # and write docs/benchmarks.md";

/// The part of a document that `--record` writes.
pub(super) const PART: Part = Part { path: "docs/benchmarks.md", command: "cargo xtask profile --record" };

/// Count instructions and system calls per request, beside nginx
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Cases to count; all by default.
    #[arg(long = "case", value_enum, value_delimiter = ',')]
    cases: Vec<Case>,
    /// Peers; the first is the reference of all ratios.
    #[arg(long = "peer", value_enum, value_delimiter = ',', default_value = "nginx,xdp-ingress")]
    peers: Vec<Peer>,
    /// Requests of the smaller of two counts, N above.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(200..=1_000_000))]
    requests: u32,
    /// Also print the modules and functions that take most instructions.
    #[arg(long)]
    functions: bool,
    /// Also sample the peers without callgrind and strace, including the kernel, and print the symbols that take most
    /// time.
    #[arg(long)]
    sample: bool,
    /// Write the table to docs/benchmarks.md.
    #[arg(long, conflicts_with_all = ["cases", "peers", "requests"])]
    record: bool,
    #[command(flatten)]
    subject: Subject,
}

/// Counts, and prints Markdown.
///
/// # Errors
/// Fails if a required program is unavailable, a peer does not start, or a request fails.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let has_caddy = args.peers.contains(&Peer::Caddy);
    anyhow::ensure!(!has_caddy, "callgrind cannot count caddy, a program in Go; leave it out of `--peer`");
    let mut packages = vec!["iproute2", "nghttp2-client", "nginx", "strace", "util-linux", "valgrind"];
    packages.extend(args.peers.contains(&Peer::Haproxy).then_some("haproxy"));
    packages.extend(args.sample.then_some(["linux-perf", "wrk"]).into_iter().flatten());
    xtask_setup::packages(&packages, "profile")?;
    let binary = args.subject.program()?;
    let others = if args.cases.iter().any(|case| case.is_http3()) { args.peers.as_slice() } else { &[] };
    // The namespace that comes next has no network.
    let programs = Programs::with_http3(others);
    if let Some(peer) = others.iter().find(|peer| !programs.has(**peer, true)) {
        anyhow::bail!("there is no {peer} with HTTP/3 here; leave it out of `--peer`");
    }
    network::own()?;
    count(args, &binary, &programs)
}

fn count(args: &Args, binary: &Path, programs: &Programs) -> anyhow::Result<()> {
    let Args { cases, peers, requests, functions, sample, record, subject } = args;
    let of_tcp: Vec<Case> = Case::value_variants().iter().copied().filter(|case| !case.is_http3()).collect();
    let cases = if cases.is_empty() { &of_tcp } else { cases };
    let folder = tempfile::Builder::new().prefix("xdp-ingress-profile-").tempdir().context("cannot make a folder")?;
    let credentials = Credentials::write(folder.path())?;
    let stage = Stage { folder: folder.path(), credentials: &credentials, binary, before: None, programs };
    let pin = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1);
    let mut backend = peers::backend(stage.folder, pin)?;
    let mut report = Report::new(*requests, peers.clone());
    for (peer, index) in peers.iter().zip(0..) {
        for (access_log, http3) in [(false, false), (true, false), (false, true)] {
            let setting = Setting { workers: 1, pin, access_log, http3 };
            let run = Run { peer: *peer, index, stage, setting, requests: *requests, sample: *sample };
            let is_of = |case: &Case| case.has_access_log() == access_log && case.is_http3() == http3;
            let cases = cases.iter().copied().filter(is_of);
            run.add_to(&mut report, &cases.collect::<Vec<_>>())?;
        }
    }
    backend.stop()?;
    let table = report.table();
    println!("{table}");
    if *functions {
        println!("{}", report.functions());
    }
    if *sample {
        println!("{}", report.samples());
    }
    if *record {
        PART.write(&format!("{}.{}\n\n{table}", versions(peers)?, subject.remark()))?;
    }
    Ok(())
}

/// Returns the versions of the counting tools and of the peers: instructions differ with the libraries that a peer
/// uses.
fn versions(peers: &[Peer]) -> anyhow::Result<String> {
    let mut packages: Vec<String> = vec!["valgrind".into(), "strace".into()];
    packages.extend(peers.iter().filter(|peer| !peer.is_ours()).map(ToString::to_string));
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat", "${Package} ${Version}, "]).args(packages);
    let packages = process::capture(&mut query).context("cannot ask for the versions of Debian's packages")?;
    Ok(format!("{} Linux {}", packages.trim_end(), machine::kernel_version()?))
}

/// The counts of a peer that runs in one way.
struct Run<'s> {
    peer: Peer,
    index: u16,
    stage: Stage<'s>,
    setting: Setting,
    requests: u32,
    sample: bool,
}

impl Run<'_> {
    fn add_to(&self, report: &mut Report, cases: &[Case]) -> anyhow::Result<()> {
        if cases.is_empty() {
            return Ok(());
        }
        let instructions = self.instructions(cases)?;
        let rest = self.calls_and_samples(cases)?;
        for ((case, instructions), (calls, samples)) in cases.iter().zip(instructions).zip(rest) {
            report.add(Profile { case: *case, peer: self.peer, instructions, calls, samples });
        }
        Ok(())
    }

    fn start(&self, under: &[String]) -> anyhow::Result<Running> {
        Running::start_alone(under, self.peer, self.index, self.stage, self.setting)
    }

    fn load(&self, case: Case, running: &Running) -> Load<'_> {
        Load { case, target: self.stage.target(running, self.setting) }
    }

    /// Returns the instructions of each case.
    fn instructions(&self, cases: &[Case]) -> anyhow::Result<Vec<PerRequest>> {
        let Self { peer, requests, stage: Stage { folder, .. }, .. } = self;
        let mut running = self.start(&callgrind::words(folder))?;
        let mut counter = Callgrind::of(running.pid(), folder);
        let mut all = Vec::new();
        for case in cases {
            let counted = PerRequest::take(&mut counter, self.load(*case, &running), *requests);
            all.push(counted.with_context(|| format!("instructions of {peer}, {case}"))?);
            eprintln!("{peer}: instructions of {case} counted");
        }
        running.stop()?;
        Ok(all)
    }

    /// Returns the system calls of each case, and samples if the run samples.
    fn calls_and_samples(&self, cases: &[Case]) -> anyhow::Result<Vec<(PerRequest, Option<Folded>)>> {
        let Self { peer, requests, sample, stage: Stage { folder, .. }, .. } = self;
        let mut running = self.start(&[])?;
        let mut counter = Strace::of(running.pid(), folder);
        let mut all = Vec::new();
        for case in cases {
            let load = self.load(*case, &running);
            let calls = PerRequest::take(&mut counter, load, *requests);
            let calls = calls.with_context(|| format!("system calls of {peer}, {case}"))?;
            let samples = sample.then(|| samples::take(running.pid(), load)).transpose()?;
            all.push((calls, samples));
            eprintln!("{peer}: system calls of {case} counted");
        }
        running.stop()?;
        Ok(all)
    }
}
