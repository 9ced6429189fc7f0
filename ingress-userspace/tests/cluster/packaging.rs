//! The chart, where everything else uses the manifests of `deploy/base`: installed, served by, updated, removed.

use std::{path::Path, process::Command};

use xtask::{process, setup};

use crate::{
    objects::{pods, site},
    stage::{Stage, stage, until},
};

/// Puts `deploy/base` back, whatever happens.
struct Restored<'s>(&'s Stage);

impl Drop for Restored<'_> {
    fn drop(&mut self) {
        let Self(stage) = self;
        let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/base");
        // What is left of the release would be in the way; a release that is gone is not.
        helm(stage, &["uninstall", "xdp-ingress", "--wait"]).ok();
        stage.kubectl(&["apply", "--kustomize", base.to_str().expect("a path in UTF-8")]);
        stage.kubectl(&["--namespace=xdp-ingress", "rollout", "status", "daemonset/xdp-ingress", "--timeout=180s"]);
    }
}

#[test]
fn the_chart_serves_as_the_manifests_do() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let scope = stage.scope("chart");
    scope.apply(&(pods("web", 1) + &site("web", "chart.test", "web")));
    scope.await_pods(&["web"]);
    stage.await_status("chart.test", "/", 200);
    let _restored = Restored(stage);
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/base");
    stage.kubectl(&["delete", "--kustomize", base.to_str().expect("a path in UTF-8"), "--wait"]);
    for node in stage.nodes() {
        until("nothing serves the node", || match stage.get(node, "chart.test", "/") {
            Err(_) => Ok(()),
            Ok(answer) => Err(answer.status.to_string()),
        });
    }
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/chart");
    let chart = chart.to_str().expect("a path in UTF-8");
    let said = helm(stage, &["install", "xdp-ingress", chart, "--create-namespace", "--wait", "--timeout=180s"])
        .expect("the chart is installed");
    println!("{said}");
    stage.await_status("chart.test", "/", 200);
    let upgrade = ["upgrade", "xdp-ingress", chart, "--set=controller.log=debug", "--wait", "--timeout=300s"];
    helm(stage, &upgrade).expect("the release is updated");
    stage.await_status("chart.test", "/", 200);
}

fn helm(stage: &Stage, args: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(setup::helm()?);
    command.args(args).args(["--namespace", "xdp-ingress"]).env("KUBECONFIG", stage.cluster.places().kubeconfig());
    stage.cluster.control()?.run(|| process::capture(&mut command))
}
