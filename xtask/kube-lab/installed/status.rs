//! Writes of the controller: addresses in the status of Ingresses, by one leader.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    objects::{pods, site},
    stage::{Scope, stage, until},
};

#[test]
fn the_status_holds_the_addresses_of_the_nodes_and_the_ports() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let scope = stage.scope("status");
    scope.apply(&pods("web", 1));
    scope.apply(&site("web", "status.test", "web"));
    let expected: BTreeSet<String> =
        stage.nodes().iter().flat_map(|node| node.addresses()).map(|address| address.to_string()).collect();
    let entries = until("the status holds every node", || {
        let entries = entries(&scope);
        let found: BTreeSet<_> = entries.iter().filter_map(|entry| entry["ip"].as_str().map(str::to_owned)).collect();
        if found == expected { Ok(entries) } else { Err(format!("{found:?}, expected {expected:?}")) }
    });
    for entry in &entries {
        let ports: Vec<_> =
            entry["ports"].as_array().expect("ports").iter().map(|port| port["port"].as_u64()).collect();
        assert_eq!(ports, [Some(80), Some(443)], "{entry}");
    }
    let shown = scope.kubectl(&["get", "ingress", "web"]);
    println!("{shown}");
    assert!(expected.iter().all(|address| shown.contains(address)), "{shown}");
    // The status is written once, not again and again.
    let version = |scope: &Scope<'_>| scope.json(&["get", "ingress", "web"])["metadata"]["resourceVersion"].clone();
    let before = version(&scope);
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(version(&scope), before, "a status that is right is not written");
}

#[test]
fn another_pod_leads_after_the_leader_stops() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let holder = || {
        let lease = stage.json(&["--namespace=xdp-ingress", "get", "lease", "xdp-ingress-leader"]);
        lease["spec"]["holderIdentity"].as_str().map(str::to_owned).filter(|holder| !holder.is_empty())
    };
    // A leader of another test keeps the lease until it expires, unless it could release the lease at its end.
    let (first, pod) = until("one of the pods leads", || {
        let first = holder().ok_or("no holder")?;
        let pods = stage.kubectl(&["--namespace=xdp-ingress", "get", "pods", "--output=name"]);
        let pod = pods.lines().find(|pod| first.contains(pod.trim_start_matches("pod/"))).map(str::to_owned);
        pod.map(|pod| (first.clone(), pod)).ok_or_else(|| format!("{first} leads, of {pods}"))
    });
    stage.kubectl(&["--namespace=xdp-ingress", "delete", &pod, "--wait=false"]);
    let second = until("another leads", || match holder() {
        Some(holder) if holder != first => Ok(holder),
        other => Err(format!("{other:?} leads")),
    });
    println!("{first} went, {second} leads");
    stage.await_rollout();
    let scope = stage.scope("leader");
    scope.apply(&site("web", "leader.test", "web"));
    until("the new leader writes", || if entries(&scope).is_empty() { Err("no status".into()) } else { Ok(()) });
}

fn entries(scope: &Scope<'_>) -> Vec<Value> {
    let object = scope.json(&["get", "ingress", "web"]);
    object["status"]["loadBalancer"]["ingress"].as_array().cloned().unwrap_or_default()
}
