//! A release, as its users get it: image and chart from a registry, and the manifests in one file.

use std::{
    env, fs,
    process::Command,
    time::{Duration, Instant},
};

use xtask_image::Platform;
use xtask_kube_lab::plan::REGISTRY;
use xtask_release::{
    Plan, Release, Transport,
    key::Key,
    make,
    registry::CHART,
    source::{Modified, Source},
};
use xtask_setup::build::Profile;
use xtask_tools::process;

use crate::{
    objects::{pods, site},
    packaging::{Restored, await_nothing, deploy, helm},
    reader::Reader,
    stage::{Scope, Stage, stage, until},
};

/// Host of the Ingress that is served.
const HOST: &str = "release.test";
/// Longest time from a command to the first answer.
const GOAL: Duration = Duration::from_secs(300);

#[test]
fn a_release_is_installed_from_a_registry_with_one_command() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let scope = stage.scope("release");
    scope.apply(&(pods("web", 1) + &site("web", HOST, "web")));
    scope.await_pods(&["web"]);
    let dir = tempfile::tempdir().expect("a directory");
    let release = make(&Plan {
        out: dir.path().join("release"),
        registry: format!("{REGISTRY}/team").parse().expect("a registry"),
        key: Some(key()),
        platforms: vec![Platform::this_machine().expect("a platform")],
        macos: false,
        profile: Profile::Dev,
        source: Source::read(Modified::Allow).expect("a commit"),
        builder: "https://xdp-ingress.test/builder".to_owned(),
    })
    .expect("a release");
    // The network of the control plane has no way to Debian's packages.
    xtask_setup::packages(&["skopeo"], "release").expect("skopeo is installed");
    stage.cluster.registry().expect("a registry runs");
    let pushed = stage.cluster.control().and_then(|control| control.run(|| release.push(Transport::Http)));
    pushed.expect("image and chart are pushed");
    verify(&scope, &release);
    let _restored = Restored(stage);
    stage.kubectl(&["delete", "--kustomize", &deploy("base"), "--wait"]);
    await_nothing(stage, HOST);

    let began = Instant::now();
    let chart = format!("oci://{REGISTRY}/team/{CHART}");
    helm(stage, &["install", "xdp-ingress", &chart, "--plain-http", "--create-namespace"]).expect("it is installed");
    await_first_answer(stage, "helm install", began);
    helm(stage, &["uninstall", "xdp-ingress", "--wait", "--timeout=180s"]).expect("it is removed");
    await_nothing(stage, HOST);

    let began = Instant::now();
    let manifests = release.dir.join("install.yaml").display().to_string();
    stage.kubectl(&["apply", "--filename", &manifests]);
    await_first_answer(stage, "kubectl apply", began);
    stage.kubectl(&["delete", "--filename", &manifests, "--wait"]);
    await_nothing(stage, HOST);
}

/// Waits for an answer of every node, whose packets XDP has counted for the host.
fn await_first_answer(stage: &Stage, what: &str, began: Instant) {
    stage.await_status(HOST, "/", 200);
    let took = began.elapsed();
    println!("{what}: first 200 from every node after {:.1} s", took.as_secs_f64());
    assert!(took < GOAL, "{what} took {took:?}");
    let counted = format!("xdp_ingress_host_received_packets_total{{host=\"{HOST}\"}} ");
    for node in stage.nodes() {
        until("XDP has counted the packets", || {
            let metrics = stage.metrics(node);
            let line = metrics.lines().find_map(|line| line.strip_prefix(&counted));
            line.filter(|count| *count != "0").map(drop).ok_or_else(|| format!("{line:?} on {}", node.name()))
        });
    }
    let images = ["get", "pods", "--namespace=xdp-ingress", "--output=jsonpath={.items[*].spec.containers[0].image}"];
    let images = stage.kubectl(&images);
    assert!(
        images.split(' ').all(|image| image.starts_with(&format!("{REGISTRY}/team/xdp-ingress@sha256:"))),
        "{images}"
    );
}

/// Verifies the release with the commands of docs/install/releases.md, where no other network than the cluster's can be
/// reached. Those of cosign run if it is in the cache; with `XDP_INGRESS_COSIGN` it is built.
fn verify(scope: &Scope<'_>, release: &Release) {
    let reader = Reader::open(scope, "install/releases.md");
    let enter = format!("cd '{}'\n", release.dir.display());
    let placeholder = "registry.example.com/xdp-ingress";
    let run = |script: &str| reader.shell(&(enter.clone() + &script.replace(placeholder, &format!("{REGISTRY}/team"))));
    println!("{}", run(&reader.commands("## Verify checksums")));
    let cosign = match env::var_os("XDP_INGRESS_COSIGN") {
        Some(_) => Some(xtask_setup::cosign().expect("cosign is built")),
        None => xtask_setup::cosign_if_built().expect("a cache"),
    };
    let Some(cosign) = cosign else {
        println!("SKIPPED the commands of cosign: set XDP_INGRESS_COSIGN=1, which builds it once");
        return;
    };
    reader.command("cosign", &cosign);
    let commands = reader.commands("## Verify signatures with cosign");
    println!("{}", run(&format!("{{ {commands} }} 2>&1")));

    // The commands must be able to fail.
    let other = key().public_pem().expect("a public key");
    fs::write(release.dir.join("other.pub"), other).expect("written");
    for command in commands.lines().filter(|line| line.starts_with("cosign ")) {
        let wrong = command.replace("cosign.pub", "other.pub");
        assert_ne!(wrong, command, "the command names no key");
        let said = run(&format!("if {wrong} 2>&1; then echo VERIFIED; else echo REFUSED; fi"));
        assert!(said.trim_end().ends_with("REFUSED"), "{wrong}\n{said}");
    }
    fs::remove_file(release.dir.join("other.pub")).expect("removed");
}

/// Makes a key as the help of the command says. Its file is gone when the function returns.
fn key() -> Key {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("release.key");
    let mut openssl = Command::new("openssl");
    openssl.args(["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out"]).arg(&path);
    process::capture(&mut openssl).expect("a key is made");
    Key::read(&path).expect("the key signs")
}
