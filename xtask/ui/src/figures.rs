//! `cargo xtask ui-figures`: measures the dashboard with many hosts against its goals. It is no test, because the
//! figures depend on the machine.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use xtask_setup::build::{self, Profile};
use xtask_tools::progress;

use crate::browser::Browser;
use crate::stage::{Hosts, MANY, Product, Stage};
use crate::{objects, pages};

/// Text below the options in `ui-figures --help`.
pub const AFTER_HELP: &str = "\
Serves 10,000 hosts with a release build, opens the pages in headless Chromium, and prints a table with the goals. It
fails if a goal is missed. Let nothing else run meanwhile.

Examples:
  cargo xtask ui-figures
  cargo xtask ui-figures --seconds 20 --dev      # to try it";

/// Times that each page is loaded.
const LOADS: usize = 20;
/// Goal for the median of the first paint.
const PAINT_MAX: Duration = Duration::from_millis(150);
/// Goal for the CPU time that a viewer costs, in per cent of a core.
const VIEWER_MAX: f64 = 0.3;
/// Goal for the time until a changed object is visible without a reload.
const VISIBLE_MAX: Duration = Duration::from_secs(2);
/// Longest wait for a changed object, to say by how much the goal is missed.
const VISIBLE_WAIT: Duration = Duration::from_secs(30);

/// Measure the dashboard with 10,000 hosts: first paint, and CPU of the process with and without a viewer
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Time for each measurement of CPU, in seconds
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Measure the build that tests use, which is not optimised
    #[arg(long)]
    dev: bool,
    /// Measure a build from elsewhere, such as one of `build --release --pgo`
    #[arg(long, value_name = "PATH", conflicts_with = "dev")]
    binary: Option<PathBuf>,
}

/// Runs `cargo xtask ui-figures`.
///
/// # Errors
/// Fails if a program is missing or does not start, or a goal is missed.
pub fn run(args: &Args) -> Result<()> {
    let tools = xtask_setup::browser()?;
    let (binary, kind) = match &args.binary {
        Some(binary) => (binary.clone(), "a build from elsewhere (`--binary`)"),
        None if args.dev => (build::userspace(Profile::Dev)?, "a development build"),
        None => (build::userspace(Profile::Release)?, "a release build"),
    };
    let scratch = tempfile::tempdir().context("cannot make a directory for logs and manifests")?;
    let stage = Stage::start(&binary, &tools, scratch.path(), &[Hosts::Many])?;
    let product = stage.plan.products.first().context("no product")?;
    let mut missed = Vec::new();
    let mut row = |what: &str, value: String, goal: String, is_met: bool| {
        println!("| {what} | {value} | {goal} | {} |", if is_met { "met" } else { "missed" });
        if !is_met {
            missed.push(what.to_owned());
        }
    };
    println!("{MANY} hosts, {kind}\n");
    println!("| figure | value | goal | |\n|---|---:|---:|---|");
    let time = Duration::from_secs(args.seconds);
    let browser = Browser::open(&stage.plan)?;
    browser.visit("about:blank")?;
    let without = cpu_share(product, time)?;
    row("CPU without a viewer, % of a core", format!("{without:.2}"), String::new(), true);
    for page in pages::all(&objects::nth_host(0)) {
        let median = median_paint(&browser, &product.url(&page.path))?;
        let goal = format!("{} ms", PAINT_MAX.as_millis());
        let name = format!("first paint of `{}`, median of {LOADS}", page.name);
        row(&name, format!("{:.0} ms", median.as_secs_f64() * 1000.0), goal, median <= PAINT_MAX);
    }
    let visible = visible_after(&browser, product)?;
    let goal = format!("{} s", VISIBLE_MAX.as_secs());
    row("a changed object is visible after", format!("{:.2} s", visible.as_secs_f64()), goal, visible <= VISIBLE_MAX);
    for path in ["/dashboard", "/dashboard/hosts"] {
        browser.visit(&product.url(path))?;
        // The first events are larger than others.
        thread::sleep(Duration::from_secs(3));
        let added = cpu_share(product, time)? - without;
        let name = format!("CPU for a viewer of `{path}`, % of a core");
        row(&name, format!("{added:.2}"), format!("{VIEWER_MAX}"), added <= VIEWER_MAX);
    }
    if !missed.is_empty() {
        bail!("goals are missed: {}", missed.join("; "));
    }
    Ok(())
}

/// Returns the median time from the start of a navigation to the first contentful paint (W3C Paint Timing).
fn median_paint(browser: &Browser, url: &str) -> Result<Duration> {
    let mut times = Vec::with_capacity(LOADS);
    for _ in 0..LOADS {
        browser.visit("about:blank")?;
        browser.visit(url)?;
        browser.wait(Duration::from_secs(5), &format!("return {PAINT} !== undefined"))?;
        let milliseconds = browser.run(&format!("return {PAINT}.startTime"))?;
        times.push(milliseconds.as_f64().context("no time of the first paint")?);
    }
    times.sort_by(f64::total_cmp);
    Ok(Duration::from_secs_f64(times[times.len() / 2] / 1000.0))
}

/// Expression of a script: the entry of the first contentful paint.
const PAINT: &str = "performance.getEntriesByName('first-contentful-paint')[0]";

/// Returns the time from the change of a manifest until its problem is shown.
fn visible_after(browser: &Browser, product: &Product) -> Result<Duration> {
    browser.visit(&product.url("/dashboard/configuration"))?;
    let began = Instant::now();
    product.write("late.yaml", &objects::whole_host("many", "late", "late.example.com", "no-such-service"))?;
    browser.wait(VISIBLE_WAIT, "return document.getElementById('problems').textContent.includes('many/late')")?;
    let elapsed = began.elapsed();
    fs::remove_file(product.manifests.join("late.yaml"))?;
    Ok(elapsed)
}

/// Returns the CPU time of the product during `time`, in per cent of a core.
fn cpu_share(product: &Product, time: Duration) -> Result<f64> {
    let pid = Pid::from_raw(product.pid.cast_signed());
    let clock = clock_getcpuclockid(pid).context("the product has ended")?;
    let (began, before) = (Instant::now(), clock_gettime(clock)?);
    progress::note(&format!("measuring CPU for {} s …", time.as_secs()));
    thread::sleep(time);
    let used = Duration::from(clock_gettime(clock)?) - Duration::from(before);
    Ok(used.as_secs_f64() / began.elapsed().as_secs_f64() * 100.0)
}
