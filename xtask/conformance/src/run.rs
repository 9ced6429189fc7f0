//! Runs the program of the suite in the client's network, shows each test as it ends, and keeps its output and report.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, ErrorKind, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::install::CLASS;
use super::output::{self, Ended, Failures, Verdict, Verdicts};
use super::suite::Suite;
use xtask_kube_lab::Cluster;
use xtask_tools::progress::{Tone, paint};
use xtask_tools::{progress, workspace};

const PROFILES: &str = "GATEWAY-HTTP,GATEWAY-GRPC,GATEWAY-TLS,GATEWAY-TCP,GATEWAY-UDP";
/// Number of tests beside each other, of those that allow it. More would need more addresses for Gateways than there are.
const PARALLEL: &str = "-test.parallel=4";
/// The program ends itself then.
const LIMIT: &str = "-test.timeout=40m";
/// Longest wait of a test for a condition. The default of up to 180 s gives slow cloud balancers time; here each failure
/// would cost as much.
const PATIENCE: &str = "60s";
/// The settings of the suite that take [`PATIENCE`].
const WAITS: [&str; 14] = [
    "gatewayMustHaveAddress",
    "gatewayMustHaveCondition",
    "gatewayStatusMustHaveListeners",
    "gatewayListenersMustHaveConditions",
    "listenerSetMustHaveCondition",
    "listenerSetListenersMustHaveConditions",
    "gwcMustBeAccepted",
    "httpRouteMustNotHaveParents",
    "httpRouteMustHaveCondition",
    "tlsRouteMustHaveCondition",
    "tcpRouteMustHaveCondition",
    "udpRouteMustHaveCondition",
    "routeMustHaveParents",
    "latestObservedGenerationSet",
];
/// An address of the nodes' link that the product may give to a Gateway that asks for it: one of the pool in `product/`, in which
/// no machine of the cluster has an address.
const USABLE: &str = "10.99.0.190";
/// An address for documentation (RFC 5737), which no Gateway can have.
const UNUSABLE: &str = "192.0.2.1";
/// Longest wait for all pods and Gateways, by which many tests begin. The default is 300 s; the 23 pods of the suite were
/// ready after 22 s on two busy cores.
const READY: &str = "60s";

/// The results of a run.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub(super) verdicts: Verdicts,
    pub(super) failures: Failures,
    /// Whether the program says that all is well.
    pub(super) has_succeeded: bool,
}

/// Runs the `chosen` ones of all `tests`.
///
/// # Errors
/// Fails if the program cannot be started, or ends before its first test.
pub(super) fn run(
    cluster: &Cluster,
    suite: &Suite,
    tests: &BTreeSet<String>,
    chosen: &BTreeSet<String>,
) -> Result<Run> {
    let dir = directory();
    fs::create_dir_all(&dir).with_context(|| format!("cannot make `{}`", dir.display()))?;
    let options = dir.join("options.json");
    fs::write(&options, options_text()).with_context(|| format!("cannot write `{}`", options.display()))?;
    // A run that ends early writes none, and that of an earlier one must not be taken for it.
    match fs::remove_file(report()) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove `{}`", report().display()));
        }
        _ => {}
    }
    let left_out: Vec<&str> = tests.difference(chosen).map(String::as_str).collect();
    let mut program = Command::new(suite.program());
    // The program has tests of its own options, too, which need files of its sources.
    program.args(["-test.v=test2json", "-test.run=^TestConformance$", PARALLEL, LIMIT]);
    program.arg(format!("-gateway-class={CLASS}")).arg(format!("-conformance-profiles={PROFILES}"));
    program.arg(format!("-conformance-options-file={}", options.display()));
    program.arg(format!("-report-output={}", report().display()));
    program.arg(format!("-skip-tests={}", left_out.join(",")));
    program.current_dir(&dir).env("KUBECONFIG", cluster.places().kubeconfig()).stdin(Stdio::null());
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    program.stdout(writer.try_clone().context("cannot share a pipe")?).stderr(writer);
    let mut child = cluster.client()?.run(|| program.spawn().context("cannot start the conformance tests"))?;
    // The command holds the other end of the pipe, which would then never end.
    drop(program);
    let mut run = follow(reader, chosen, &log())?;
    run.has_succeeded = child.wait().context("cannot wait for the conformance tests")?.success();
    if run.verdicts.is_empty() {
        let reasons: Vec<&str> = run.failures.before_tests().collect();
        bail!("no test was reached: {}; the whole output is in `{}`", reasons.join("; "), log().display());
    }
    Ok(run)
}

/// Returns the file with the whole output of the last run.
pub(super) fn log() -> PathBuf {
    directory().join("output.txt")
}

/// Returns the file with the last report in the form in which projects hand it in.
pub(super) fn report() -> PathBuf {
    directory().join("report.yaml")
}

fn directory() -> PathBuf {
    workspace::target_dir().join("gateway-conformance")
}

// === impl Run ===

impl Run {
    /// Returns `true` if the test passed. One that was skipped or not reached did not.
    pub(super) fn passed(&self, name: &str) -> bool {
        self.verdicts.get(name) == Some(&Verdict::Passed)
    }
}

/// Copies the output into the file `log`, and shows the ends of `chosen` tests.
fn follow(output: impl Read, chosen: &BTreeSet<String>, log: &Path) -> Result<Run> {
    let shown = || format!("cannot write `{}`", log.display());
    let mut file = File::create(log).with_context(shown)?;
    let mut run = Run::default();
    let mut lines = BufReader::new(output);
    let mut bytes = Vec::new();
    while lines.read_until(b'\n', &mut bytes).context("cannot read the output of the conformance tests")? > 0 {
        file.write_all(&bytes).with_context(shown)?;
        let line = String::from_utf8_lossy(&bytes);
        run.failures.take(&line);
        if let Some(Ended { name, verdict, took }) = output::ended(&line)
            && chosen.contains(name)
        {
            let tone = if verdict == Verdict::Passed { Tone::Good } else { Tone::Bad };
            progress::note(&format!("{} {:6.1} s  {name}", paint(tone, verdict.word()), took.as_secs_f64()));
            run.verdicts.insert(name.to_owned(), verdict);
        }
        bytes.clear();
    }
    Ok(run)
}

/// Returns the options of the suite. Its format is YAML, which includes JSON.
fn options_text() -> String {
    let address = |value: &str| json!([{"type": "IPAddress", "value": value}]);
    let mut waits: serde_json::Map<String, Value> =
        WAITS.iter().map(|name| ((*name).to_owned(), PATIENCE.into())).collect();
    waits.insert("namespacesMustBeReady".to_owned(), READY.into());
    let options = json!({
        "timeoutConfig": waits,
        "usableNetworkAddresses": address(USABLE),
        "unusableNetworkAddresses": address(UNUSABLE),
        // The suite writes no report without these. Addresses in the domain example.com are placeholders.
        "implementation": {
            "organization": "xdp-ingress",
            "project": "xdp-ingress",
            "url": "https://xdp-ingress.example.com",
            "version": env!("CARGO_PKG_VERSION"),
            "contact": ["https://git.example.com/xdp-ingress"],
        },
    });
    format!("{options:#}\n")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn output_is_kept_and_only_chosen_tests_count() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let output = "=== RUN   TestConformance\n\u{16}    --- PASS: TestConformance/A (0.10s)\n--- SKIP: TestConformance/B (0.00s)\n\
            --- FAIL: TestConformance/C (0.00s)\nlast";
        let chosen = ["A", "C"].map(str::to_owned).into();
        let verdicts = follow(output.as_bytes(), &chosen, &log).unwrap().verdicts;
        assert_eq!(
            verdicts.into_iter().collect::<Vec<_>>(),
            [("A".to_owned(), Verdict::Passed), ("C".to_owned(), Verdict::Failed)]
        );
        assert_eq!(fs::read(log).unwrap(), output.as_bytes());
    }

    #[test]
    fn the_pool_has_the_usable_address_and_none_of_a_machine_of_the_cluster() {
        let product =
            fs::read_to_string(workspace::root().join("xtask/conformance/product/kustomization.yaml")).unwrap();
        let pools = product.lines().filter_map(|line| line.split_once("--gateway-addresses=")).map(|(_, pool)| pool);
        let pool = pools.into_iter().next().expect("a pool");
        let (network, length) = pool.trim().split_once('/').expect("a network");
        let network = network.parse::<Ipv4Addr>().expect("an address").to_bits();
        let mask = u32::MAX << (32 - length.parse::<u32>().expect("a prefix length"));
        let has = |address: Ipv4Addr| address.to_bits() & mask == network;
        let nodes = xtask_kube_lab::Plan::new(xtask_kube_lab::plan::MOST_NODES, xtask_kube_lab::Services::Unrouted);
        let mut taken: Vec<_> = nodes.unwrap().nodes().into_iter().map(|node| node.v4()).collect();
        taken.extend([xtask_kube_lab::plan::CLIENT_V4, xtask_kube_lab::plan::CONTROL_V4]);
        assert!(!taken.iter().any(|address| has(*address)), "{taken:?}");
        assert!(has(USABLE.parse().unwrap()) && !has(UNUSABLE.parse().unwrap()));
    }
}
