//! Behaviour in a large cluster: many Ingresses, each with a host of its own. Only the API server is large; the pods
//! are few. `XDP_INGRESS_SCALE=N` sets the number (1,000), `XDP_INGRESS_BINARY=PATH` another build of the product, such
//! as that of the release profile.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use futures_util::{StreamExt as _, TryStreamExt as _, future::ready, stream};
use ingress_lab::{Lab, client::block_on};
use k8s_openapi::api::networking::v1::Ingress;
use kube::Api;
use serde_json::json;

use crate::stage::{Stage, number, product, quantile, stage, until};

/// Concurrent writes to the API server.
const TOGETHER: usize = 32;
/// Changes that are timed once all Ingresses exist.
const CHANGES: usize = 50;

fn count() -> usize {
    number("XDP_INGRESS_SCALE", 1_000)
}

#[test]
fn many_ingresses_are_read_soon_and_changed_soon() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let scope = stage.scope("scale");
    let lab = Lab::open("scale").expect("a place for logs");
    let control = stage.cluster.control().expect("the control plane's namespace");
    scope.share("apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: scale}\nspec: {controller: scale.test/scale}\n");
    // The endpoint refuses connections. A missing one would be a problem to report, 10,000 times.
    scope.apply(&(crate::objects::service("web", "{port: 80}").replace("selector: {app: web}, ", "")
        + "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web, labels: {kubernetes.io/service-name: web}}\n\
           addressType: IPv4\nports: [{port: 1, protocol: TCP}]\nendpoints: [{addresses: [10.99.0.100]}]\n"));
    let kubeconfig = stage.cluster.places().kubeconfig();
    let put = async |api: &Api<Ingress>, number: usize, host: String| {
        let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
        let paths = json!([{"path": "/", "pathType": "Prefix", "backend": backend}]);
        let spec = json!({"ingressClassName": "scale", "rules": [{"host": host, "http": {"paths": paths}}]});
        Stage::put(api, &format!("i{number}"), &spec).await
    };
    let began = Instant::now();
    control
        .run(|| {
            block_on(async {
                let api = &stage.api(&scope.name).await?;
                let numbers = stream::iter(0..count());
                let writes = numbers.map(|number| put(api, number, format!("i{number}.scale.test")));
                writes.buffer_unordered(TOGETHER).try_for_each(|_| ready(Ok(()))).await.context("cannot write them all")
            })
        })
        .expect("all are written");
    println!("{} Ingresses written in {:?}", count(), began.elapsed());

    let binary = std::env::var_os("XDP_INGRESS_BINARY").map_or_else(product, PathBuf::from);
    let mut run = Command::new(binary);
    run.args([
        "run",
        "--steer",
        "bind",
        "--xdp-mode",
        "off",
        "--workers",
        "1",
        "--controller-class",
        "scale.test/scale",
    ])
    .args(["--http-port", "21080", "--https-port", "21443", "--admin-addr", "127.0.0.1:21090"])
    .args(["--update-status=false", "--election-id", "scale", "--host-capacity", "65536", "--kubeconfig"])
    .arg(&kubeconfig)
    .env("POD_NAMESPACE", &scope.name)
    .env("NO_COLOR", "1");
    let began = Instant::now();
    let process = lab.spawn(&control, "scale", run).expect("it starts");
    until("it is ready", || if process.log().contains(" ready ") { Ok(()) } else { Err(process.log_tail(3)) });
    println!(
        "ready {:?} after its start with {} Ingresses, RSS {} MB",
        began.elapsed(),
        count(),
        resident(process.pid())
    );

    // Measured from the API server's answer to a change until a request sees the change.
    let mut delays: Vec<Duration> = control
        .run(|| {
            block_on(async {
                let api = &stage.api(&scope.name).await?;
                let mut delays = Vec::new();
                for change in 0..CHANGES {
                    let host = format!("c{change}.scale.test");
                    let ask = ingress_lab::client::Ask::get(&host, "/");
                    let none = ingress_lab::client::Trust::none();
                    let at = ([127, 0, 0, 1], 21080).into();
                    let mut connection =
                        ingress_lab::client::Connection::open(at, ingress_lab::client::Protocol::Http1, &host, &none)
                            .await?;
                    put(api, change, host.clone()).await?;
                    let written = Instant::now();
                    // The endpoint refuses: 502 says that the host is known.
                    while connection.send(&ask).await?.status != 502 {
                        anyhow::ensure!(written.elapsed() < Duration::from_secs(30), "`{host}` is not known");
                        tokio::time::sleep(Duration::from_micros(500)).await;
                    }
                    delays.push(written.elapsed());
                }
                Ok(delays)
            })
        })
        .expect("changes are seen");
    println!(
        "{} Ingresses: a change is live after its write is answered: median {:?}, p99 {:?}; RSS {} MB",
        count(),
        quantile(&mut delays, 0.5),
        quantile(&mut delays, 0.99),
        resident(process.pid()),
    );
    drop(process);
}

/// Returns the resident memory of a process in MB.
fn resident(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number") / 1024
}
