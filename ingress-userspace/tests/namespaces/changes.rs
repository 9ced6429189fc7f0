//! Changes of the configuration under load.

use std::time::{Duration, Instant};

use ingress_lab::{
    client::{Ask, Connection, Protocol, Trust, block_on},
    load::{Connections, Load},
    topology::Family,
};

use crate::net::{Net, http};

const CHANGES: usize = 1000;

#[test]
fn a_thousand_manifest_changes_fail_no_request() {
    let Some((net, proxy)) = Net::serving("changes") else { return };
    net.write("moving.yaml", &net.site("moving", &[0]));
    let load = Load::start(&net.topology.client, http(Family::V4), Ask::get("web.test", "/"), 4, Connections::Kept)
        .expect("load starts");

    let mut took = net.topology.client.run(|| block_on(change(&net))).expect("every change takes effect");
    let generation = proxy.generation().expect("metrics tell the generation");
    let report = load.stop().expect("load ends");

    took.sort();
    let at = |percent: usize| took[took.len() * percent / 100].as_secs_f64() * 1000.0;
    println!(
        "{CHANGES} changes: live after {:.1} ms (median), {:.1} ms (p99); {} requests meanwhile, {} failed",
        at(50),
        at(99),
        report.answered,
        report.failed
    );
    assert!(generation > CHANGES as u64, "every change was a snapshot of its own: {generation}");
    assert_eq!(report.failed, 0, "{:?}", report.reasons);
}

/// Moves `moving.test` from pod to pod. Returns the time from each write to the first answer by the new pod.
async fn change(net: &Net) -> anyhow::Result<Vec<Duration>> {
    let ask = Ask::get("moving.test", "/");
    let mut connection = Connection::open(http(Family::V4), Protocol::Http1, "moving.test", &Trust::none()).await?;
    let mut took = Vec::new();
    for number in 0..=CHANGES {
        let pod = number % net.topology.pods.len();
        let name = net.topology.pods[pod].name;
        net.write("moving.yaml", &net.site("moving", &[pod]));
        let written = Instant::now();
        while connection.send(&ask).await?.pod() != Some(name) {
            anyhow::ensure!(written.elapsed() < Duration::from_secs(10), "change {number} has no effect");
        }
        // The first also waits for the host to appear.
        if number > 0 {
            took.push(written.elapsed());
        }
    }
    connection.close().await?;
    Ok(took)
}
