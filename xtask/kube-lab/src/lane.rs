//! The lane `cluster`: creates the cluster, installs the product with the scripts that VMs use, and lets cargo run the
//! tests against it. Tests are selected by target, not by name.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::{Cluster, Plan, Services, plan, programs};
use xtask_setup::build::Profile;
use xtask_setup::{Purpose, build};
use xtask_tools::summary::Outcome;
use xtask_tools::{cargo_test, process, progress, workspace};

/// Number of nodes: the fewest that show differences between nodes.
const NODES: u8 = 2;

/// Leaves out the tests of Gateway API, whose custom resources this lane does not install: the lane `gateway` runs them.
const WITHOUT_GATEWAY: &str = "--skip=gateway::";

/// Runs the lane. A cluster that was already running is reused and stays; a new one is removed afterwards.
///
/// # Errors
/// Fails if a part cannot be created or installed, or a test fails.
pub fn run(pass_on: &[String]) -> Result<Outcome> {
    if !programs::required_or_skip("cargo xtask test cluster")? {
        return Ok(Outcome::Skipped("Kubernetes cannot be run here, see above".to_owned()));
    }
    xtask_setup::ensure(Purpose::Demo)?;
    // Asked for now: the tests below build this program with other features, in its place.
    let xtask = std::env::current_exe().context("cannot find the program that runs")?;
    let images = xtask_image::make(Profile::Dev, &xtask_image::directory(), env!("CARGO_PKG_VERSION"))?;
    let ran_before = Cluster::running()?.is_some();
    // These tests have an API server of their own.
    let mut outcome = test("guide", pass_on)?;
    if !ran_before && pass_on.is_empty() {
        // These tests create and remove the cluster itself.
        outcome = outcome.and(test("cluster", pass_on)?);
    }
    let cluster = Cluster::up(Plan::new(NODES, Services::Unrouted)?)?;
    let result = install(&cluster, &xtask, [&images.xdp_ingress.file, &images.echo_server.file])
        .and_then(|()| test("installed", &[&[WITHOUT_GATEWAY.to_owned()], pass_on].concat()));
    if ran_before {
        progress::note("the cluster ran before and stays; `cargo xtask cluster down` removes it");
    } else {
        let removed = Cluster::down();
        // A failure of the tests takes precedence over one of the removal.
        outcome = outcome.and(result?);
        return removed.map(|()| outcome);
    }
    result.map(|of_tests| outcome.and(of_tests))
}

/// Runs the provisioning of the VMs, unchanged: this environment replaces that of a VM.
fn install(cluster: &Cluster, xtask: &Path, images: [&Path; 2]) -> Result<()> {
    let xtask = xtask.to_str().context("the program's path is not UTF-8")?;
    let images = images.map(|path| path.display().to_string()).join(" ");
    let scripts = workspace::root().join("deploy/vagrant");
    progress::note("$ deploy/vagrant/install.sh");
    let mut install = Command::new(scripts.join("install.sh"));
    install
        .env("IMAGES", images)
        .env("IMPORT", format!("{xtask} cluster import"))
        .env("KUBECTL", format!("{xtask} cluster kubectl"));
    process::run(&mut install)?;
    let addresses: Vec<String> =
        cluster.nodes().iter().flat_map(|node| node.addresses()).map(|address| address.to_string()).collect();
    progress::note("$ deploy/vagrant/smoke.sh");
    let mut smoke = Command::new(scripts.join("smoke.sh"));
    smoke
        .env("NODE_ADDRESSES", addresses.join(" "))
        .env("CURL", format!("ip netns exec {} curl", plan::CLIENT))
        // Counters of this machine, if there are any, do not belong to the nodes.
        .env("BPFTOOL", "")
        .env("KUBECTL", format!("{xtask} cluster kubectl"));
    process::run(&mut smoke)
}

fn test(target: &str, pass_on: &[String]) -> Result<Outcome> {
    // Measurements of the tests are printed even if the tests pass.
    let harness: Vec<&str> = ["--show-output"].into_iter().chain(pass_on.iter().map(String::as_str)).collect();
    cargo_test::run(|| build::test(&[target]), &harness)
}
