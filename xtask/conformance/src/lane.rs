//! The lane `gateway`: creates the cluster, installs the product there, and runs the conformance tests of Gateway API from
//! the client's network. All of them must pass. Then come our own tests with Gateways in this cluster.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail, ensure};

use super::output::Verdict;
use super::run::Run;
use super::suite::{self, Suite};
use super::{echo, install, run};
use xtask_kube_lab::{Cluster, Plan, Services, programs};
use xtask_setup::Purpose;
use xtask_setup::build::{self, Profile};
use xtask_setup::go::Unavailable;
use xtask_tools::summary::Outcome;
use xtask_tools::{cargo_test, process, progress};

/// Number of nodes: the fewest that show differences between nodes.
const NODES: u8 = 2;

/// The module with our own tests.
const OWN: &str = "gateway::";

/// Our test that is skipped without another build of the product, and how names choose it alone.
const UPDATES: &str = "gateway::earlier::updates_from_an_earlier_build_and_back_fail_no_request";
const UPDATES_FROM: &str = "updates_from";

/// The variable of the environment that names this build.
const BEFORE: &str = "XDP_INGRESS_BEFORE";

/// Text below the options in `--help`.
pub const AFTER_HELP: &str = "\
The lane fails if a test does not pass. A test of the suite that is skipped has not passed. The output of the suite and its
report are kept in target/gateway-conformance. Names in lower case are of tests of the product with Gateways, which run after
the suite: statuses, changes, updates, scale and faults. `updates_from` is skipped without XDP_INGRESS_BEFORE; the lane says
so at the end.

Examples:
  cargo xtask test gateway
  cargo xtask test gateway -- HTTPRouteWeight GatewaySecret   # this test, and all with `GatewaySecret` in their names
  XDP_INGRESS_ROUTES=1000 cargo xtask test gateway -- routes_are_counted
  XDP_INGRESS_IDLE=600 cargo xtask test gateway -- no_status
  XDP_INGRESS_REQUESTS=1000000 cargo xtask test gateway -- no_answer
  XDP_INGRESS_OUTAGE=120 cargo xtask test gateway -- faults_serve
  XDP_INGRESS_BEFORE=PATH cargo xtask test gateway -- updates_from
  XDP_INGRESS_BINARY=PATH XDP_INGRESS_ROUTES=3000 XDP_INGRESS_CHANGES=200 cargo xtask test gateway -- many_routes";

/// Run the conformance tests of Gateway API against the product in a Kubernetes
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Names of tests, or parts of names; all tests without
    names: Vec<String>,
}

/// Runs the lane. A cluster that was already running is reused and stays; a new one is removed afterwards.
///
/// # Errors
/// Fails if a part cannot be created or installed, or a test does not pass.
pub fn run(args: &Args) -> Result<Outcome> {
    if !programs::required_or_skip("cargo xtask test gateway")? {
        return Ok(Outcome::Skipped("Kubernetes cannot be run here, see above".to_owned()));
    }
    xtask_setup::ensure(Purpose::Demo)?;
    let (suite, echo) = match programs_of_suite() {
        Ok(programs) => programs,
        Err(error) if !error.is::<Unavailable>() => return Err(error),
        Err(error) if process::is_required("REQUIRE_KUBE") => {
            return Err(error.context("`cargo xtask test gateway` must run because `REQUIRE_KUBE=1` is set"));
        }
        Err(error) => return Ok(Outcome::Skipped(format!("the conformance tests cannot be had here: {error:#}"))),
    };
    let tests = suite.tests()?;
    let chosen = args.choose(&tests)?;
    let images = xtask_image::make(Profile::Dev, &xtask_image::directory(), env!("CARGO_PKG_VERSION"))?;
    let own_images = [&images.xdp_ingress.file, &images.echo_server.file];
    let archives: Vec<&Path> = echo.iter().chain(own_images).map(AsRef::as_ref).collect();
    let ran_before = Cluster::running()?.is_some();
    let cluster = Cluster::up(Plan::new(NODES, Services::Unrouted)?)?;
    let result = install::run(&cluster, &suite, &archives).and_then(|()| {
        if !chosen.is_empty() {
            judge(&cluster, &suite, &tests, &chosen)?;
        }
        args.own().map_or(Ok(Outcome::Passed), |names| own(&names))
    });
    let result = result.map(|outcome| args.without_skipped(outcome, std::env::var_os(BEFORE).is_some()));
    if ran_before {
        progress::note("the cluster ran before and stays; `cargo xtask cluster down` removes it");
    } else {
        let removed = Cluster::down();
        // A failure of the tests takes precedence over one of the removal.
        let outcome = result?;
        return removed.map(|()| outcome);
    }
    result
}

/// Runs our own tests with these in their names.
fn own(names: &[&str]) -> Result<Outcome> {
    // Measurements of the tests are printed even if the tests pass.
    cargo_test::run(|| build::test(&["installed"]), &[&["--show-output"], names].concat())
}

/// Returns the suite, and the archives with the images of its pods; builds missing programs.
fn programs_of_suite() -> Result<(Suite, Vec<PathBuf>)> {
    let suite = suite::ensure()?;
    let echo = echo::archives(&suite.images()?)?;
    Ok((suite, echo))
}

fn judge(cluster: &Cluster, suite: &Suite, tests: &BTreeSet<String>, chosen: &BTreeSet<String>) -> Result<()> {
    let began = Instant::now();
    let run = run::run(cluster, suite, tests, chosen)?;
    let passed = chosen.iter().filter(|name| run.passed(name)).count();
    println!(
        "Gateway API {}: {passed} of {} tests pass, of {} in all, in {:.0} s",
        suite.version,
        chosen.len(),
        tests.len(),
        began.elapsed().as_secs_f64(),
    );
    progress::note(&format!("output  {}", run::log().display()));
    if run::report().is_file() {
        progress::note(&format!("report  {}", run::report().display()));
    }
    decide(&run, chosen)
}

/// Fails unless all `chosen` tests passed, and the program says so, too.
fn decide(run: &Run, chosen: &BTreeSet<String>) -> Result<()> {
    let failed = chosen.iter().filter(|name| !run.passed(name)).map(|name| {
        let verdict = run.verdicts.get(name).map_or("was not reached", |verdict| match verdict {
            Verdict::Skipped => "was skipped",
            Verdict::Passed | Verdict::Failed => "failed",
        });
        let reasons: Vec<&str> = run.failures.of(name).collect();
        let reasons = if reasons.is_empty() { "see the output".to_owned() } else { reasons.join("; ") };
        format!("`{name}` {verdict}: {reasons}")
    });
    let failed: Vec<String> = failed.collect();
    ensure!(failed.is_empty(), "some tests do not pass:\n  {}", failed.join("\n  "));
    if run.has_succeeded {
        return Ok(());
    }
    let reasons: Vec<&str> = run.failures.before_tests().collect();
    let reasons = if reasons.is_empty() { "see the output".to_owned() } else { reasons.join("; ") };
    bail!("all tests pass, but the suite failed outside of them: {reasons}")
}

// === impl Args ===

impl Args {
    /// Returns the names of our own tests to run, or parts of them; `None` for none. They are in lower case.
    fn own(&self) -> Option<Vec<&str>> {
        let names: Vec<&str> = self.names.iter().map(String::as_str).filter(|name| is_own(name)).collect();
        if self.names.is_empty() { Some(vec![OWN]) } else { (!names.is_empty()).then_some(names) }
    }

    /// Warns if our test of updates was chosen and skipped for lack of an earlier build. The lane is skipped if no other
    /// test was chosen.
    fn without_skipped(&self, outcome: Outcome, has_earlier: bool) -> Outcome {
        let is_chosen = self.own().is_some_and(|names| names.iter().any(|name| UPDATES.contains(name)));
        if has_earlier || !is_chosen {
            return outcome;
        }
        let why = format!("`{UPDATES}`: `{BEFORE}` names no earlier build");
        if !self.names.is_empty() && self.names.iter().all(|name| name.contains(UPDATES_FROM)) {
            return Outcome::Skipped(why);
        }
        progress::warn(&format!("SKIPPED: {why}"));
        outcome
    }

    /// Returns the tests of the suite to run.
    ///
    /// # Errors
    /// Fails if no test has a name that was given.
    fn choose(&self, tests: &BTreeSet<String>) -> Result<BTreeSet<String>> {
        if self.names.is_empty() {
            return Ok(tests.clone());
        }
        let mut chosen = BTreeSet::new();
        for part in self.names.iter().filter(|name| !is_own(name)) {
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

fn is_own(name: &str) -> bool {
    !name.contains(|letter: char| letter.is_ascii_uppercase())
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
        let check = |line: &str, expect: &[&str]| {
            let args = Line::parse_from(["lane"].into_iter().chain(line.split_whitespace())).args;
            let found = args.choose(&tests).unwrap_or_default();
            assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), expect, "{line}");
        };
        check("", &["UDPRoute", "UDPRouteWeight", "Weight"]);
        check("UDPRoute", &["UDPRoute"]);
        check("Route", &["UDPRoute", "UDPRouteWeight"]);
        check("UDPRoute Weight", &["UDPRoute", "Weight"]);
        check("TCPRoute", &[]);
        check("no_status", &[]);
        check("no_status Weight", &["Weight"]);
        let own = |line: &str| Line::parse_from(["lane"].into_iter().chain(line.split_whitespace())).args;
        assert_eq!(own("").own(), Some(vec!["gateway::"]));
        assert_eq!(own("Weight").own(), None);
        assert_eq!(own("no_status Weight no_answer").own(), Some(vec!["no_status", "no_answer"]));
    }

    #[test]
    fn updates_without_an_earlier_build_do_not_pass() {
        let check = |line: &str, has_earlier, expect: bool| {
            let args = Line::parse_from(["lane"].into_iter().chain(line.split_whitespace())).args;
            let outcome = args.without_skipped(Outcome::Passed, has_earlier);
            assert_eq!(matches!(outcome, Outcome::Skipped(_)), expect, "{line}");
        };
        check("updates_from", false, true);
        check("updates_from_an_earlier", false, true);
        check("updates_from", true, false);
        check("updates_from no_answer", false, false);
        check("updates_from Weight", false, false);
        check("no_answer", false, false);
        check("", false, false);
    }

    #[test]
    fn every_test_must_pass_and_the_program_succeed() {
        let chosen: BTreeSet<String> = ["A", "B"].map(str::to_owned).into();
        let check = |of: &[(&str, Verdict)], has_succeeded, expect: &[&str]| {
            let verdicts = of.iter().map(|(name, verdict)| ((*name).to_owned(), *verdict)).collect();
            let run = Run { verdicts, has_succeeded, ..Run::default() };
            let said = decide(&run, &chosen).err().map(|error| error.to_string()).unwrap_or_default();
            assert_eq!(said.is_empty(), expect.is_empty(), "{said}");
            assert!(expect.iter().all(|part| said.contains(part)), "{said}");
        };
        let passed = [("A", Verdict::Passed), ("B", Verdict::Passed)];
        check(&passed, true, &[]);
        check(&passed, false, &["outside of them"]);
        check(&[("A", Verdict::Passed), ("B", Verdict::Skipped)], true, &["`B` was skipped"]);
        check(&[("A", Verdict::Failed)], true, &["`A` failed", "`B` was not reached"]);
    }

    #[test]
    fn only_what_cannot_be_had_skips_the_lane() {
        let absent = anyhow::Error::from(Unavailable::new("no Go")).context("building").context("the suite");
        assert!(absent.is::<Unavailable>());
        assert!(anyhow::anyhow!("no disk").context(Unavailable::new("no modules")).context("x").is::<Unavailable>());
        assert!(!anyhow::anyhow!("it does not compile").context("building").is::<Unavailable>());
    }
}
