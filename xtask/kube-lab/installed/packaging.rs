//! The Helm chart: installed, served by, updated and removed. Most other tests use the manifests of `deploy/base`.

use std::process::Command;

use xtask_tools::{process, workspace};

use crate::{
    objects::{pods, site},
    stage::{Stage, mended, stage, until},
};

/// Restores `deploy/base` in any case.
pub(crate) struct Restored<'s>(pub(crate) &'s Stage);

impl Drop for Restored<'_> {
    fn drop(&mut self) {
        let Self(stage) = self;
        // The rest of a release would be in the way; a missing release is fine.
        let cleared = helm(stage, &["uninstall", "xdp-ingress", "--ignore-not-found", "--wait"]);
        let applied = stage.cluster.kubectl(&["apply", "--kustomize", &deploy("base")]);
        // Longer than the grace period of pods that were removed without a wait, and that hold the ports until then.
        let ready = ["--namespace=xdp-ingress", "rollout", "status", "daemonset/xdp-ingress", "--timeout=300s"];
        let ready = stage.cluster.kubectl(&ready);
        mended("putting `deploy/base` back", cleared.and(applied).and(ready).map(drop));
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
    stage.kubectl(&["delete", "--kustomize", &deploy("base"), "--wait"]);
    await_nothing(stage, "chart.test");
    let chart = &deploy("chart");
    let said = helm(stage, &["install", "xdp-ingress", chart, "--create-namespace", "--wait", "--timeout=180s"])
        .expect("the chart is installed");
    println!("{said}");
    stage.await_status("chart.test", "/", 200);
    let upgrade = ["upgrade", "xdp-ingress", chart, "--set=controller.log=debug", "--wait", "--timeout=300s"];
    helm(stage, &upgrade).expect("the release is updated");
    stage.await_status("chart.test", "/", 200);
    helm(stage, &["uninstall", "xdp-ingress", "--wait", "--timeout=180s"]).expect("the release is removed");
    await_nothing(stage, "chart.test");
    let kinds = "daemonsets,configmaps,services,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,ingressclasses";
    let left = ["get", kinds, "--all-namespaces", "--selector=app.kubernetes.io/name=xdp-ingress", "--output=name"];
    assert_eq!(stage.kubectl(&left), "", "what the chart has made is gone");
}

/// Waits until no node answers at all.
pub(crate) fn await_nothing(stage: &Stage, host: &str) {
    for node in stage.nodes() {
        until("nothing serves the node", || match stage.get(node, host, "/") {
            Err(_) => Ok(()),
            Ok(answer) => Err(answer.status.to_string()),
        });
    }
}

/// Returns a directory of `deploy/`.
pub(crate) fn deploy(name: &str) -> String {
    workspace::root().join("deploy").join(name).display().to_string()
}

/// Runs Helm in the namespace of the product.
pub(crate) fn helm(stage: &Stage, args: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(xtask_setup::packagers()?.helm);
    command.args(args).args(["--namespace", "xdp-ingress"]).env("KUBECONFIG", stage.cluster.places().kubeconfig());
    stage.cluster.control()?.run(|| process::capture(&mut command))
}
