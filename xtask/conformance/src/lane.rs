//! The lane `gateway`: creates the cluster, installs the product there, runs the conformance tests of Gateway API from the
//! client's network, and compares the verdicts with `failing.txt`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail, ensure};

use super::listed::{self, Differences, FILE, Listed};
use super::run::Run;
use super::suite::{self, Suite};
use super::{echo, install, run};
use xtask_kube_lab::{Cluster, Plan, Services, programs};
use xtask_setup::Purpose;
use xtask_setup::build::Profile;
use xtask_tools::summary::Outcome;
use xtask_tools::{process, progress};

/// Number of nodes: the fewest that show differences between nodes.
const NODES: u8 = 2;

/// Text below the options in `--help`.
pub const AFTER_HELP: &str = "\
Without names, the tests run that are not in xtask/conformance/failing.txt. The lane fails if one of these does not pass,
and if a listed test that was run passes: then its line must go. A test that is skipped has not passed. The output of the
suite and its report are kept in target/gateway-conformance.

Examples:
  cargo xtask test gateway
  cargo xtask test gateway -- HTTPRouteWeight GatewaySecret   # this test, and all with `GatewaySecret` in their names
  cargo xtask test gateway -- --all                           # the listed ones, too
  cargo xtask test gateway -- --all --update                  # and write the list anew";

/// Run the conformance tests of Gateway API against the product in a Kubernetes
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Names of tests, or parts of names; also of listed ones
    names: Vec<String>,
    /// Run all tests
    #[arg(long)]
    all: bool,
    /// Write the verdicts of this run into the list, in place of comparing them
    #[arg(long)]
    update: bool,
}

/// Runs the lane. A cluster that was already running is reused and stays; a new one is removed afterwards.
///
/// # Errors
/// Fails if a part cannot be created or installed, or the verdicts are not those of the list.
pub fn run(args: &Args) -> Result<Outcome> {
    if !programs::required_or_skip("cargo xtask test gateway")? {
        return Ok(Outcome::Skipped("Kubernetes cannot be run here, see above".to_owned()));
    }
    xtask_setup::ensure(Purpose::Demo)?;
    let (suite, echo) = match programs_of_suite() {
        Ok(programs) => programs,
        Err(error) if process::is_required("REQUIRE_KUBE") => {
            return Err(error.context("`cargo xtask test gateway` must run because `REQUIRE_KUBE=1` is set"));
        }
        Err(error) => return Ok(Outcome::Skipped(format!("the conformance tests cannot be had here: {error:#}"))),
    };
    let tests = suite.tests()?;
    let listed = Listed::read(&tests)?;
    let chosen = args.choose(&tests, &listed)?;
    let images = xtask_image::make(Profile::Dev, &xtask_image::directory(), env!("CARGO_PKG_VERSION"))?;
    let archives: Vec<&Path> = echo.iter().chain([&images.xdp_ingress.file]).map(AsRef::as_ref).collect();
    let ran_before = Cluster::running()?.is_some();
    let cluster = Cluster::up(Plan::new(NODES, Services::Unrouted)?)?;
    let result = install::run(&cluster, &suite, &archives)
        .and_then(|()| judge(args, &cluster, &suite, &tests, &chosen, &listed));
    if ran_before {
        progress::note("the cluster ran before and stays; `cargo xtask cluster down` removes it");
    } else {
        let removed = Cluster::down();
        // A failure of the tests takes precedence over one of the removal.
        result?;
        return removed.map(|()| Outcome::Passed);
    }
    result.map(|()| Outcome::Passed)
}

/// Returns the suite, and the archives with the images of its pods; builds missing programs.
fn programs_of_suite() -> Result<(Suite, Vec<PathBuf>)> {
    let suite = suite::ensure()?;
    let echo = echo::archives(&suite.images()?)?;
    Ok((suite, echo))
}

fn judge(
    args: &Args,
    cluster: &Cluster,
    suite: &Suite,
    tests: &BTreeSet<String>,
    chosen: &BTreeSet<String>,
    listed: &Listed,
) -> Result<()> {
    let began = Instant::now();
    // The suite makes its own Gateways and pods first, which would serve no test.
    let Run { verdicts, failures } =
        if chosen.is_empty() { Run::default() } else { run::run(cluster, suite, tests, chosen)? };
    let passed = chosen.iter().filter(|name| listed::passed(name, &verdicts)).count();
    println!(
        "Gateway API {}: {passed} of {} tests pass; {} ran in {:.0} s, {} are listed as failing",
        suite.version,
        tests.len(),
        chosen.len(),
        began.elapsed().as_secs_f64(),
        listed.len(),
    );
    if !chosen.is_empty() {
        progress::note(&format!("output  {}", run::log().display()));
        progress::note(&format!("report  {}", run::report().display()));
    }
    if args.update {
        let after = listed.after(chosen, &verdicts);
        progress::note(&format!("`{FILE}` has {} tests now, after {}", after.len(), listed.len()));
        return after.write();
    }
    let Differences { worse, better } = listed.compare(chosen, &verdicts);
    if worse.is_empty() && better.is_empty() {
        return Ok(());
    }
    let mut said = Vec::new();
    said.extend(worse.iter().map(|name| {
        let reasons: Vec<&str> = failures.of(name).collect();
        format!(
            "`{name}` did not pass: {}",
            if reasons.is_empty() { "see the output".to_owned() } else { reasons.join("; ") }
        )
    }));
    said.extend(better.iter().map(|name| format!("`{name}` passes: remove this line from `{FILE}`")));
    bail!("the verdicts are not those of the list:\n  {}", said.join("\n  "))
}

// === impl Args ===

impl Args {
    /// Returns the tests to run.
    ///
    /// # Errors
    /// Fails if no test has a name that was given.
    fn choose(&self, tests: &BTreeSet<String>, listed: &Listed) -> Result<BTreeSet<String>> {
        if self.names.is_empty() {
            return Ok(tests.iter().filter(|name| self.all || !listed.has(name)).cloned().collect());
        }
        let mut chosen = BTreeSet::new();
        for part in &self.names {
            let before = chosen.len();
            if tests.contains(part) {
                chosen.insert(part.clone());
                continue;
            }
            chosen.extend(tests.iter().filter(|name| name.contains(part.as_str())).cloned());
            ensure!(chosen.len() > before, "no test of the suite has `{part}` in its name");
        }
        Ok(chosen)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn names_choose_one_test_or_all_that_contain_them() {
        let tests: BTreeSet<String> = ["UDPRoute", "UDPRouteWeight", "Weight"].map(str::to_owned).into();
        let listed = Listed::parse("UDPRoute\nWeight\n", &tests).unwrap();
        let check = |line: &str, expect: &[&str]| {
            let args = Line::parse_from(["lane"].into_iter().chain(line.split_whitespace())).args;
            let found = args.choose(&tests, &listed).unwrap_or_default();
            assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), expect, "{line}");
        };
        check("", &["UDPRouteWeight"]);
        check("--all", &["UDPRoute", "UDPRouteWeight", "Weight"]);
        check("UDPRoute", &["UDPRoute"]);
        check("Route", &["UDPRoute", "UDPRouteWeight"]);
        check("UDPRoute Weight", &["UDPRoute", "Weight"]);
        check("TCPRoute", &[]);
    }
}
