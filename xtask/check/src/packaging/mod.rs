//! Checks of `deploy/`: the manifests render, the chart renders the same objects, its schema refuses mistakes, and the
//! files for other tools (scripts, Vagrantfile, Dockerfile) are at least well-formed. It applies nothing to a cluster.

mod chart;
mod effects;
mod files;
mod krew;
mod objects;
mod pod_monitor;
mod values;

use std::ffi::OsStr;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use self::objects::Objects;
use xtask_setup::Packagers;
use xtask_tools::summary::Outcome;
use xtask_tools::{process, progress, workspace};

/// Overlays of `deploy/`, each with the arguments with which the chart must render the same objects.
const TWINS: [(&str, &[&str]); 6] = [
    ("base", &[]),
    ("privileged", &["--set=privileged=true"]),
    ("bind", &["--set=controller.steer=bind"]),
    ("gateway-api", &["--set=gatewayAPI.enabled=true"]),
    ("http3", &["--set=controller.http3.enabled=true"]),
    ("udp", &["--set=controller.udpServicesConfigMap=xdp-ingress/udp-services"]),
];

/// Overlays for the machines of the Vagrantfile.
const VIRTUAL_MACHINES: [&str; 2] = ["vagrant/overlay", "vagrant/emulated/overlay"];

/// Runs all checks. Without Go the parts that need Helm are skipped, unless `REQUIRE_KUBE` is set.
///
/// # Errors
/// Describes the first fault of the packaging, or names the missing tool.
pub(super) fn run() -> Result<Outcome> {
    files::run()?;
    krew::run()?;
    if !xtask_setup::can_have_packagers()? {
        let lacking = "helm and kustomize are built by Go 1.26 or later, and there is no `go`";
        if process::is_required("REQUIRE_KUBE") {
            bail!("{lacking}; install it from https://go.dev/dl");
        }
        progress::warn(&format!("SKIPPED manifests and chart: {lacking}; REQUIRE_KUBE=1 makes this an error"));
        return Ok(Outcome::Skipped(lacking.to_owned()));
    }
    let tools = xtask_setup::packagers()?;
    for (overlay, values) in TWINS {
        let manifests = kustomize(&tools, overlay)?;
        sound(&manifests).with_context(|| format!("in `deploy/{overlay}`"))?;
        let values: Vec<&OsStr> = values.iter().map(OsStr::new).collect();
        let rendered = chart::template(&tools, &values)?;
        let mut differences = objects::differences(&manifests, &rendered);
        // Helm creates the namespace itself (`--create-namespace`).
        differences.retain(|difference| !difference.starts_with("Namespace /xdp-ingress: "));
        ensure!(
            differences.is_empty(),
            "`deploy/{overlay}` and the chart with {values:?} say different things:\n  {}",
            differences.join("\n  ")
        );
    }
    for overlay in VIRTUAL_MACHINES {
        sound(&kustomize(&tools, overlay)?).with_context(|| format!("in `deploy/{overlay}`"))?;
    }
    chart::run(&tools)?;
    Ok(Outcome::Passed)
}

fn kustomize(tools: &Packagers, overlay: &str) -> Result<Objects> {
    let mut command = Command::new(&tools.kustomize);
    command.arg("build").arg(workspace::root().join("deploy").join(overlay));
    objects::parse(&process::capture(&mut command)?).with_context(|| format!("in `deploy/{overlay}`"))
}

/// Checks for faults that would show only later, on a node.
fn sound(manifests: &Objects) -> Result<()> {
    let set = manifests.get("DaemonSet xdp-ingress/xdp-ingress").context("there is no DaemonSet")?;
    let pod = set.pointer("/spec/template/spec").context("the DaemonSet has no pod")?;
    let container = pod.pointer("/containers/0").context("the pod has no container")?;
    ensure!(container.get("ports").is_none(), "ports on the node's network are host ports, and block `maxSurge`");
    let image = concat!("localhost/xdp-ingress:", env!("CARGO_PKG_VERSION"));
    ensure!(container["image"] == image, "the image is {}, not the one of this version, `{image}`", container["image"]);
    let arguments = container["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let drain = arguments.filter_map(|argument| argument.strip_prefix("--drain-timeout=")).next_back();
    let drain: u64 = drain.context("no `--drain-timeout`")?.parse()?;
    let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap_or_default();
    ensure!(drain < grace, "the pod is killed after {grace} s, before it has drained for {drain} s");
    Ok(())
}
