//! Updates from an earlier build of the product, and the way back to it, under load in a cluster. At first the custom
//! resources of Gateway API and the rights on them are missing, as in a cluster that has never had them.
//! `XDP_INGRESS_BEFORE=PATH` names the build. If it knows Gateways, these are under load on the way back, too.

use std::{path::PathBuf, process::Command};

use ingress_lab::{
    capability::skipped,
    client::{Ask, Protocol, Trust},
    load::Load,
};
use serde_json::{Value, json};
use xtask_tools::{process, workspace};

use super::{CLASS, apply, object, programmed, route, run};
use crate::{
    objects::site,
    packaging::deploy,
    stage::{Scope, Stage, demand_no_failure, mended, stage, until},
};

/// Host of an Ingress at the nodes' addresses, and of a route at the Gateway's address.
const HOST: &str = "earlier.test";
const SERVICE: &str = "web";
/// Image of the earlier build.
const IMAGE: &str = "localhost/xdp-ingress:earlier";
/// The product for the lane, relative to the work tree.
const PRODUCT: &str = "xtask/conformance/product";
/// Objects that a cluster without Gateway API does not have.
const RIGHTS: [&str; 3] = ["xdp-ingress-gateway", "xdp-ingress-gateway-class", "xdp-ingress-gateway-services"];
/// Requests that must be answered after each step.
const FURTHER: u64 = 50;

/// The custom resources of the cluster, to be put back. Dropping the value also puts the product back.
struct Resources<'s> {
    stage: &'s Stage,
    list: tempfile::NamedTempFile,
}

/// A build of the product, as a DaemonSet.
struct Build(String);

// === impl Resources ===

impl<'s> Resources<'s> {
    /// Removes them, and the rights on them.
    fn remove(stage: &'s Stage) -> Self {
        let all = stage.json(&["get", "customresourcedefinitions"]);
        let ours = |resource: &&Value| {
            resource["spec"]["group"].as_str().is_some_and(|group| group.ends_with("gateway.networking.k8s.io"))
        };
        let resources: Vec<&Value> = all["items"].as_array().into_iter().flatten().filter(ours).collect();
        let bare = resources.iter().map(|resource| {
            let metadata = &resource["metadata"];
            let metadata = json!({"name": metadata["name"], "annotations": metadata["annotations"]});
            let (version, kind) = (&resource["apiVersion"], &resource["kind"]);
            json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": resource["spec"]})
        });
        let list = json!({"apiVersion": "v1", "kind": "List", "items": bare.collect::<Vec<_>>()});
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), list.to_string()).expect("the file is written");
        let names: Vec<&str> = resources.iter().filter_map(|resource| resource["metadata"]["name"].as_str()).collect();
        assert!(!names.is_empty(), "the lane installs the custom resources of Gateway API");
        // Before anything is removed: if that fails half-way, all is put back.
        let removed = Self { stage, list: file };
        stage.kubectl(&["delete", "gatewayclass", CLASS, "--ignore-not-found"]);
        for kind in ["clusterrolebinding", "clusterrole"] {
            stage.kubectl(&[&["delete", kind, "--ignore-not-found"][..], &RIGHTS].concat());
        }
        stage.kubectl(&[&["delete", "customresourcedefinition", "--wait"][..], &names].concat());
        removed
    }

    fn restore(&self) -> anyhow::Result<()> {
        let Self { stage, list } = self;
        let file = list.path().display().to_string();
        // Their texts are too long for the annotation that `kubectl apply` makes without `--server-side`.
        stage.cluster.kubectl(&["apply", "--server-side", "--force-conflicts", "--filename", &file])?;
        let established = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"];
        stage.cluster.kubectl(&established)?;
        stage.cluster.kubectl(&["apply", "--kustomize", &product()]).map(drop)
    }
}

impl Drop for Resources<'_> {
    fn drop(&mut self) {
        let ready = ["--namespace=xdp-ingress", "rollout", "status", "daemonset/xdp-ingress", "--timeout=300s"];
        let restored = self.restore().and_then(|()| self.stage.cluster.kubectl(&ready).map(drop));
        mended("putting Gateway API back", restored);
    }
}

// === impl Build ===

impl Build {
    /// Reads the DaemonSet of an overlay.
    fn of(stage: &Stage, overlay: &str) -> Self {
        let objects = stage.kubectl(&["kustomize", overlay]);
        let daemonset = objects.split("\n---\n").find(|object| object.contains("\nkind: DaemonSet\n"));
        Self(daemonset.expect("a DaemonSet").to_owned())
    }

    fn with_image(self, image: &str) -> Self {
        let usual = format!("localhost/xdp-ingress:{}", env!("CARGO_PKG_VERSION"));
        assert!(self.0.contains(&usual), "{}", self.0);
        Self(self.0.replace(&usual, image))
    }

    /// Lets this build replace the one that runs, and waits until that is gone on all nodes.
    fn roll(&self, stage: &Stage) {
        stage.apply(&self.0);
        stage.await_rollout();
        stage.await_drained();
    }
}

fn product() -> String {
    workspace::root().join(PRODUCT).display().to_string()
}

/// Returns the path of the earlier build, and whether it knows Gateways.
fn earlier() -> Option<(PathBuf, bool)> {
    let path = PathBuf::from(std::env::var_os("XDP_INGRESS_BEFORE")?);
    let help = process::capture(Command::new(&path).args(["run", "--help"])).expect("the build tells its options");
    Some((path, help.contains("--gateway-addresses")))
}

/// Creates a Gateway and a route, and starts load on them once they are served.
fn gateway(scope: &Scope<'_>) -> Vec<(String, Load)> {
    let to = programmed(scope);
    apply(scope, &object("HTTPRoute", SERVICE, &route(&json!({"name": "g"}), HOST, SERVICE)));
    until("the route is served", || {
        let answer = scope.stage.try_ask(to, Protocol::Http1, &Trust::none(), &Ask::get(HOST, "/"));
        let status = answer.map_err(|error| format!("{error:#}"))?.status;
        if status == 200 { Ok(()) } else { Err(status.to_string()) }
    });
    scope.stage.loads_at(to, HOST, "the Gateway")
}

#[test]
fn updates_from_an_earlier_build_and_back_fail_no_request() {
    let Some(stage) = stage() else { return };
    let Some((path, knows_gateways)) = earlier() else {
        return skipped("updates with Gateways in a cluster", "`XDP_INGRESS_BEFORE` names no earlier build");
    };
    let _alone = stage.alone();
    let dir = tempfile::tempdir().expect("a directory");
    let image = xtask_image::of_program(&path, IMAGE, dir.path()).expect("an image of the earlier build");
    stage.cluster.import_image(&image.file).expect("the image is imported");
    let now = Build::of(stage, &product());
    let before = if knows_gateways { Build::of(stage, &product()) } else { Build::of(stage, &deploy("base")) };
    let before = before.with_image(IMAGE);

    let resources = Resources::remove(stage);
    before.roll(stage);
    let scope = stage.scope("earlier");
    run(&scope, &[SERVICE]);
    scope.apply(&site(SERVICE, HOST, SERVICE));
    stage.await_status(HOST, "/", 200);
    let mut all: Vec<_> = stage.nodes().into_iter().flat_map(|node| stage.loads(node, HOST, None)).collect();
    let go_on = |all: &[(String, Load)]| {
        all.iter().for_each(|(name, load)| load.pass(FURTHER).unwrap_or_else(|error| panic!("{name}: {error:#}")));
    };
    now.roll(stage);
    go_on(&all);

    resources.restore().expect("Gateway API is installed");
    let mut of_gateway = gateway(&scope);
    if knows_gateways {
        all.append(&mut of_gateway);
    } else {
        go_on(&of_gateway);
        demand_no_failure("before the way back", of_gateway);
    }
    before.roll(stage);
    go_on(&all);
    now.roll(stage);
    if !knows_gateways {
        all.append(&mut gateway(&scope));
    }
    go_on(&all);
    demand_no_failure("updates and the way back", all);
}
