//! `cargo xtask demo`: the product at work on one machine, shown and checked. It builds the product, sets up the stage,
//! performs the steps, and compares the proxy's counts with those of the client.
//!
//! ```text
//! steps (data) ── run ──> tally (the client's count) ──┐
//!                  │                                   ├── page
//! stage (namespaces or loopback, proxy, copies) ── counts (pinned maps) ──┘
//! ```
#![allow(clippy::print_stdout, reason = "a command-line tool talks on its standard output")]

mod live;
mod manifests;
mod page;
mod run;
mod stage;
mod steps;
mod tally;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Instant,
};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

use ingress_lab::{Closer, Lab};
use page::Page;
use stage::{Scene, Stage};
use steps::STEPS;
use tally::Tally;
use xtask_setup::build;
use xtask_tools::workspace;

/// Name of the demo's lab: namespaces are called `xdp-demo-client` and so on.
const LAB: &str = "xdp-demo";

/// Command line of `cargo xtask demo`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without namespaces, CAP_BPF or CAP_NET_ADMIN the same requests and checks run on loopback, without the kernel part.

Exit codes: 0 every figure is what it must be; 1 one is not, and its line says which; 130 after Ctrl-C.

Examples:
  cargo xtask demo --once        # run every check, print the tables, clean up
  cargo xtask demo               # stay; edit deploy/examples/*.yaml and see it take effect
  cargo xtask demo --no-kernel   # without privileges")]
pub struct Args {
    /// Run every check once, print the result, clean up and exit
    #[arg(long)]
    pub once: bool,

    /// Manifests to serve; the checks apply to the default ones
    #[arg(long, value_name = "DIR")]
    pub examples: Option<PathBuf>,

    /// Use loopback and ordinary listeners even where the kernel part would work
    #[arg(long)]
    pub no_kernel: bool,

    /// Use this `xdp-ingress` instead of building one
    #[arg(long, value_name = "FILE")]
    pub binary: Option<PathBuf>,
}

/// Runs the demonstration.
///
/// # Errors
/// Fails if a count differs from the client's, or the machine lacks a requirement.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let page = Page::new();
    let missing =
        if args.no_kernel { vec!["`--no-kernel` was given".into()] } else { ingress_lab::capability::missing() };
    let binary = match &args.binary {
        Some(binary) => binary.clone(),
        None => {
            if missing.is_empty() {
                xtask_setup::ensure(xtask_setup::Purpose::Demo)?;
            }
            build::userspace(build::Profile::Dev)?
        }
    };
    let examples = args.examples.clone().unwrap_or_else(|| workspace::root().join("deploy/examples"));

    let lab = Lab::open(LAB)?;
    let interrupted = end_on_signal(lab.closer())?;
    let result = play(page, args, lab, &binary, &examples, &missing);
    // Errors caused by the removal of the lab are not reported; the signal's thread ends the process.
    while interrupted.load(Ordering::Acquire) {
        thread::park();
    }
    result
}

fn play(page: Page, args: &Args, lab: Lab, binary: &Path, examples: &Path, missing: &[String]) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut stage = set(page, lab, binary, examples, missing)?;
    page.note(&format!("  ready in {} ms", began.elapsed().as_millis()));

    // Custom manifests are shown, not checked against the figures of the examples.
    let result = if args.once || args.examples.is_none() { check(page, &stage) } else { Ok(()) };
    if args.once {
        return result;
    }
    if let Err(error) = result {
        page.line(format_args!("  {} {error:#}", page.mark(false)));
    }
    live::invite(page, &stage);
    page.title("Waiting for edits (Ctrl-C ends it and removes everything)");
    page.note(&format!("  {}", examples.display()));
    live::follow(page, &mut stage, examples)
}

fn set(page: Page, lab: Lab, binary: &Path, examples: &Path, missing: &[String]) -> anyhow::Result<Stage> {
    if missing.is_empty() {
        page.title("client ── hop ══1400══ hop ── node (XDP, sk_lookup) ── pod-a, pod-b, pod-c");
        return Stage::kernel(lab, binary, examples);
    }
    page.title("loopback, without the kernel part, because:");
    for reason in missing {
        page.line(format_args!("  · {reason}"));
    }
    Stage::loopback(lab, binary, examples)
}

/// Performs every step and compares every figure.
fn check(page: Page, stage: &Stage) -> anyhow::Result<()> {
    let has_v6 = match &stage.scene {
        Scene::Kernel { .. } => true,
        Scene::Loopback(loopback) => loopback.has_v6,
    };
    page.title("Requests");
    let (mut tally, mut problems) = (Tally::default(), 0);
    for step in STEPS {
        let outcome = run::perform(stage, step, &mut tally);
        page.step(step, &outcome, has_v6);
        problems += outcome.problems.len();
    }

    let agree = |counts: &ingress_lab::maps::Counts| {
        let all = tally.all_hosts(counts);
        all.iter().all(|name| {
            let client = tally.hosts.get(name).copied().unwrap_or_default();
            tally::equals(&client, &counts.hosts.get(name).map(|host| host.l7).unwrap_or_default())
        })
    };
    let counts = stage.counts(agree).context("cannot read the counters")?;

    page.title("Who served what");
    page.served(&tally);
    let (title, source) = match &stage.scene {
        Scene::Kernel { .. } => ("Per host: what the client did, and what the pinned BPF maps say", "maps"),
        Scene::Loopback(_) => ("Per host: what the client did, and what the proxy counted", "proxy"),
    };
    page.title(title);
    let differing = page.hosts(&tally, &counts, source);

    let mut failed: Vec<String> = differing.into_iter().map(|host| format!("the counters of `{host}`")).collect();
    if let Scene::Kernel { .. } = &stage.scene {
        page.title("Kernel");
        for check in tally.kernel_checks(&counts) {
            page.check(&check);
            if !check.holds {
                failed.push(format!("{} ({} instead of {})", check.name, check.found, check.expected));
            }
        }
    }
    if problems > 0 {
        failed.insert(0, format!("{problems} answers"));
    }
    anyhow::ensure!(
        failed.is_empty(),
        "not as expected: {}; log:\n{}",
        failed.join(", "),
        stage.controller.process.log_tail(15)
    );
    let total = tally.total();
    page.line(format_args!(
        "\n{} {} requests, {} bytes up and {} bytes down: every figure is what it must be",
        page.mark(true),
        total.requests.to_array().iter().sum::<u64>(),
        page::cell(total.bytes_in),
        page::cell(total.bytes_out)
    ));
    Ok(())
}

/// Removes the lab on Ctrl-C, SIGTERM and a closed terminal, independently of the main thread; the flag tells that
/// thread that the removal has begun.
fn end_on_signal(closer: Closer) -> anyhow::Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&interrupted);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot make a runtime")?;
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for signals")?;
    let mut hangup = signal(SignalKind::hangup()).context("cannot listen for signals")?;
    drop(guard);
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let code = runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => 130,
                    _ = terminate.recv() => 143,
                    _ = hangup.recv() => 129,
                }
            });
            theirs.store(true, Ordering::Release);
            closer.close();
            std::process::exit(code);
        })
        .context("cannot start the thread for signals")?;
    Ok(interrupted)
}
