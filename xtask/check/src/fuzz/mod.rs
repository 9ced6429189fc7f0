//! `cargo xtask fuzz`: builds the fuzz targets of `ingress-userspace/fuzz` with the pinned compiler and runs them.
//!
//! `cargo fuzz` requires a nightly compiler for AddressSanitizer. The coverage that guides libFuzzer does not: LLVM's
//! pass is selected by `-C passes`, which is stable. AddressSanitizer would find little here, because the only `unsafe`
//! code under test is in libraries.

mod report;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use self::report::Report;
use xtask_setup::build;
use xtask_tools::{process, progress, workspace};

pub const AFTER_HELP: &str = "\
Each target runs for the same time and gets one line: executions, edges covered at the start and at the end, and when
the coverage grew last. Inputs that were worth keeping stay in target/fuzz/corpus/TARGET, and the next run begins with
them. An input that breaks a target is written to target/fuzz/artifacts, and the message names the command that runs
it alone. An input that took too long runs once more, and the target passes with a warning if it is fast then. The targets are built by the compiler of rust-toolchain.toml; libFuzzer needs a C++ compiler.

Exit codes: 0 no target broke; 1 one did, or something failed; 2 the command line was not understood.

Examples:
  cargo xtask fuzz                               # each target for ten seconds, as CI does
  cargo xtask fuzz http2 --minutes 15
  cargo xtask fuzz objects --input target/fuzz/artifacts/objects-crash-…";

/// Run the fuzz targets
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Targets to run; all by default
    targets: Vec<String>,
    /// Seconds for each target
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Minutes for each target, in place of seconds
    #[arg(long, value_name = "N", conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..=1440))]
    minutes: Option<u64>,
    /// Run one target once with this input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seconds", "minutes"])]
    input: Option<PathBuf>,
}

const MANIFEST: &str = "ingress-userspace/fuzz/Cargo.toml";
/// Instrumentation that tells libFuzzer which branches an input took and which values it compared. Build scripts are
/// not instrumented, because `--target` is given.
const COVERAGE: [&str; 5] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];
/// Memory limit of a target in MiB. Most of it is used by libFuzzer itself and the corpus. An input that makes the
/// product keep too much memory fails the target.
const MEMORY_MAX: u32 = 1024;
/// Time limit for one input in seconds.
const INPUT_MAX: u32 = 20;

/// Longest input in bytes.
const INPUT_LENGTH: u32 = 4096;

#[derive(Deserialize)]
struct Manifest {
    bin: Vec<Bin>,
}

#[derive(Deserialize)]
struct Bin {
    name: String,
}

/// Runs `cargo xtask fuzz`.
///
/// # Errors
/// Fails if a target is unknown, does not compile, or finds a bug.
pub fn run(args: &Args) -> Result<()> {
    let Args { targets, seconds, minutes, input } = args;
    let targets = choose(targets, &known()?)?;
    let dir = workspace::target_dir().join("fuzz");
    let programs = build(&targets, &dir)?;
    if let Some(input) = input {
        let [target] = &targets[..] else { bail!("`--input` needs the one target that the input is for") };
        return process::run(limited(target, &programs).arg(input));
    }
    let time = Duration::from_secs(minutes.map_or(*seconds, |minutes| minutes * 60));
    let mut broken = Vec::new();
    progress::note(report::HEAD);
    for target in &targets {
        let (report, succeeded) = fuzz(target, &programs, &dir, time)?;
        progress::note(&report.line(target));
        if let Some(input) = report.timed_out_at().filter(|_| !succeeded)
            && passes(limited(target, &programs).arg(input))
        {
            progress::warn(&format!("`{target}` took over {INPUT_MAX} s for `{input}` once, and not when run again"));
        } else if !succeeded {
            let artifact = report.artifact.as_deref().unwrap_or("FILE");
            progress::note(&report.last_words());
            broken
                .push(format!("`{target}` broke; `cargo xtask fuzz {target} --input {artifact}` runs the input alone"));
        }
    }
    ensure!(broken.is_empty(), "{}", broken.join("\n"));
    // A line in the format that tools which count tests expect.
    println!("{} passed, 0 failed", targets.len());
    Ok(())
}

/// Returns the targets of the manifest.
fn known() -> Result<Vec<String>> {
    let text =
        fs::read_to_string(workspace::root().join(MANIFEST)).with_context(|| format!("cannot read `{MANIFEST}`"))?;
    let manifest: Manifest = toml::from_str(&text).with_context(|| format!("cannot understand `{MANIFEST}`"))?;
    Ok(manifest.bin.into_iter().map(|bin| bin.name).collect())
}

fn choose(wanted: &[String], known: &[String]) -> Result<Vec<String>> {
    if let Some(unknown) = wanted.iter().find(|target| !known.contains(target)) {
        bail!("there is no fuzz target `{unknown}`; there are {}", known.join(", "));
    }
    Ok(if wanted.is_empty() { known.to_vec() } else { wanted.to_vec() })
}

/// Builds the targets; returns the directory of their programs.
fn build(targets: &[String], dir: &Path) -> Result<PathBuf> {
    xtask_setup::fuzz_tools()?;
    let host = host()?;
    let mut cargo = build::cargo();
    cargo.args(["build", "--locked", "--release", "--manifest-path", MANIFEST, "--target", &host]);
    for target in targets {
        cargo.args(["--bin", target]);
    }
    cargo.env("CARGO_TARGET_DIR", dir).env("RUSTFLAGS", COVERAGE.join(" "));
    process::run(&mut cargo)?;
    Ok(dir.join(host).join("release"))
}

/// Returns the compiler's name of this machine.
fn host() -> Result<String> {
    let text = process::capture(Command::new("rustc").arg("-vV").current_dir(workspace::root()))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` names no host")?.to_owned())
}

/// Returns the command of a target with the limits of one input. They are the same for a single input as for a run, so
/// that an input that broke a target breaks it again.
fn limited(target: &str, programs: &Path) -> Command {
    let mut command = Command::new(programs.join(target));
    command.arg(format!("-rss_limit_mb={MEMORY_MAX}")).arg(format!("-timeout={INPUT_MAX}"));
    command
}

/// Runs a target for this time; the second result is `true` if no input broke it.
fn fuzz(target: &str, programs: &Path, dir: &Path, time: Duration) -> Result<(Report, bool)> {
    let (corpus, artifacts) = (dir.join("corpus").join(target), dir.join("artifacts"));
    for dir in [&corpus, &artifacts] {
        fs::create_dir_all(dir).with_context(|| format!("cannot make `{}`", dir.display()))?;
    }
    let mut command = limited(target, programs);
    command
        .arg(&corpus)
        .arg(format!("-artifact_prefix={}/{target}-", artifacts.display()))
        .arg(format!("-max_total_time={}", time.as_secs()))
        .arg("-print_final_stats=1")
        // Objects and connections need some bytes before they have any effect; ten seconds are too short to grow to
        // that length.
        .args(["-len_control=0", &format!("-max_len={INPUT_LENGTH}")])
        .current_dir(workspace::root())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start `{}`", process::show(&command)))?;
    let report = listen(&mut child)?;
    let status = child.wait().context("cannot wait for a fuzz target")?;
    Ok((report, status.success()))
}

/// Returns `true` if this run of a single input succeeds. Time limits are of wall-clock time: a machine that stands still
/// exceeds them.
fn passes(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Reads libFuzzer's output to its end.
fn listen(child: &mut Child) -> Result<Report> {
    let (began, mut report) = (Instant::now(), Report::default());
    let stderr = child.stderr.take().context("the output of a fuzz target is missing")?;
    for line in BufReader::new(stderr).split(b'\n') {
        report.take(&String::from_utf8_lossy(&line?), began.elapsed());
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_its_file_and_every_file_is_a_target() {
        let mut known = known().unwrap();
        known.sort();
        let files = fs::read_dir(workspace::root().join("ingress-userspace/fuzz/fuzz_targets")).unwrap();
        let mut files: Vec<_> =
            files.map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()).collect();
        files.sort();
        assert_eq!(known, files);
    }

    #[test]
    fn a_single_input_passes_by_its_exit_code() {
        assert!(passes(&mut Command::new("true")));
        assert!(!passes(&mut Command::new("false")));
        assert!(!passes(&mut Command::new("/no/such/program")));
    }

    #[test]
    fn a_single_input_has_the_limits_of_a_run() {
        let command = limited("a", Path::new("/programs"));
        let args: Vec<_> = command.get_args().map(|arg| arg.to_str().unwrap()).collect();
        assert_eq!(args, ["-rss_limit_mb=1024", "-timeout=20"]);
    }

    #[test]
    fn the_error_for_a_missing_target_lists_the_known_ones() {
        let known = ["a".to_owned(), "b".to_owned()];
        assert_eq!(choose(&[], &known).unwrap(), known);
        assert_eq!(choose(&["b".to_owned()], &known).unwrap(), ["b"]);
        let error = choose(&["c".to_owned()], &known).unwrap_err().to_string();
        assert!(error.contains("`c`") && error.contains("a, b"), "{error}");
    }
}
