//! Changes under load: how soon they take effect, and that clients notice nothing else.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use ingress_lab::{
    client::{Ask, Connection, Protocol, Trust, block_on},
    credentials::Authority,
};

use crate::{
    objects::{ingress, pods, rule, site},
    stage::{Scope, demand_no_failure, http, https, number, quantile, stage, until},
};

/// Number of changes for which the time to the first right answer is measured; a soak takes more.
fn changes() -> usize {
    number("XDP_INGRESS_CHANGES", 40)
}

#[test]
fn a_change_is_live_soon_after_it_is_applied() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let scope = stage.scope("latency");
    scope.run(&[("web", 1)]);
    let node = stage.nodes()[0];
    let (mut from_start, mut from_end) = (Vec::new(), Vec::new());
    for number in 0..changes() {
        let host = format!("h{number}.latency.test");
        let manifest = site("web", &host, "web");
        // The requests begin before the change, so that the first right answer is seen when it comes.
        let (seen, began, ended) = std::thread::scope(|scope_| {
            let watcher = scope_.spawn(|| {
                stage.client.run(|| {
                    block_on(async {
                        let mut connection =
                            Connection::open(http(node), Protocol::Http1, &host, &Trust::none()).await?;
                        let deadline = Instant::now() + Duration::from_secs(60);
                        loop {
                            let answer = connection.send(&Ask::get(&host, "/")).await?;
                            let now = Instant::now();
                            if answer.status == 200 {
                                return anyhow::Ok(now);
                            }
                            anyhow::ensure!(now < deadline, "`{host}` is not served");
                            tokio::time::sleep(Duration::from_micros(500)).await;
                        }
                    })
                })
            });
            let began = Instant::now();
            scope.apply(&manifest);
            let ended = Instant::now();
            (watcher.join().expect("no panic").expect("the host is served"), began, ended)
        });
        from_start.push(seen.duration_since(began));
        from_end.push(seen.saturating_duration_since(ended));
    }
    println!(
        "{} changes: kubectl apply's start to the first 200: median {:?}, p99 {:?}; from its end: median {:?}, p99 {:?}",
        from_start.len(),
        quantile(&mut from_start, 0.5),
        quantile(&mut from_start, 0.99),
        quantile(&mut from_end, 0.5),
        quantile(&mut from_end, 0.99),
    );
}

#[test]
fn routing_follows_the_readiness_of_pods() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let scope = stage.scope("readiness");
    scope.apply(&pods("web", 2));
    scope.apply(&site("web", "readiness.test", "web"));
    scope.await_pods(&["web"]);
    stage.await_status("readiness.test", "/", 200);
    let pods = scope.json(&["get", "pods"]);
    let pod = &pods["items"][0];
    let (name, address) =
        (pod["metadata"]["name"].as_str().expect("a name"), pod["status"]["podIP"].as_str().expect("an address"));
    let at = format!("{address}:8080").parse().expect("an address");
    let node = stage.nodes()[0];
    let asked = |wanted: bool| {
        until(&format!("{name} is asked: {wanted}"), || {
            let answers = (0..10).map(|_| stage.get(node, "readiness.test", "/").expect("an answer"));
            // Both pods answer whatever their readiness, so there is no excuse for a failure.
            let hits =
                answers.inspect(|answer| assert_eq!(answer.status, 200)).filter(|answer| answer.pod() == Some(name));
            let hits = hits.count();
            if (hits > 0) == wanted { Ok(()) } else { Err(format!("{hits} of 10")) }
        });
    };
    asked(true);
    for (ready, path) in [(false, "/ready/0"), (true, "/ready/1")] {
        let ask = Ask::get("pod", path);
        stage.try_ask(at, Protocol::Http1, &Trust::none(), &ask).expect("the pod obeys");
        // Measured from the moment in which the API server has the change until the proxy follows it.
        let told = until("the API server says so", || {
            let pod = scope.json(&["get", "pod", name]);
            let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let is = conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
            if is == ready { Ok(Instant::now()) } else { Err(format!("ready: {is}")) }
        });
        asked(ready);
        println!("pod ready: {ready}; routing follows within {:?} of kubectl's seeing it", told.elapsed());
    }
}

#[test]
fn backends_roll_without_a_failed_request() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let scope = stage.scope("roll-backends");
    let trust = served(&scope, "roll.test");
    let loads: Vec<_> =
        stage.nodes().into_iter().flat_map(|node| stage.loads(node, "roll.test", Some(&trust))).collect();
    for _ in 0..2 {
        scope.kubectl(&["rollout", "restart", "deployment/web"]);
        scope.await_pods(&["web"]);
    }
    demand_no_failure("two rolling updates of the backends", loads);
}

#[test]
fn a_thousand_changes_fail_no_request() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let scope = stage.scope("thousand");
    let trust = served(&scope, "thousand.test");
    let loads: Vec<_> =
        stage.nodes().into_iter().flat_map(|node| stage.loads(node, "thousand.test", Some(&trust))).collect();
    let began = Instant::now();
    for round in 0..20 {
        let mut manifests = String::new();
        for number in 0..50 {
            write!(manifests, "{}", site(&format!("i{number}"), &format!("i{number}.r{round}.test"), "web"))
                .expect("a string");
        }
        scope.apply(&manifests);
    }
    stage.await_status("i49.r19.test", "/", 200);
    println!("1,000 changes of Ingresses in {:?}", began.elapsed());
    demand_no_failure("1,000 changes of Ingresses", loads);
}

#[test]
fn updates_fail_no_request() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let scope = stage.scope("roll-ourselves");
    let trust = served(&scope, "ourselves.test");
    let loads: Vec<_> =
        stage.nodes().into_iter().flat_map(|node| stage.loads(node, "ourselves.test", Some(&trust))).collect();
    for _ in 0..2 {
        stage.kubectl(&["--namespace=xdp-ingress", "rollout", "restart", "daemonset/xdp-ingress"]);
        stage.await_rollout();
    }
    stage.await_drained();
    demand_no_failure("two rolling updates of ourselves", loads);
}

#[test]
fn a_certificate_is_rotated_in_service() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let scope = stage.scope("rotation");
    let first = served(&scope, "rotation.test");
    let second = Authority::generate().expect("an authority");
    stage.apply(&second.secret(&scope.name, "tls", &["rotation.test"]).expect("a Secret"));
    let second = second.trust().expect("a root");
    for node in stage.nodes() {
        let ask = Ask::get("rotation.test", "/");
        until("the new certificate is served", || {
            stage.try_ask(https(node), Protocol::Https1, &second, &ask).map_err(|error| format!("{error:#}"))
        });
        assert!(stage.try_ask(https(node), Protocol::Https1, &first, &ask).is_err(), "the old one is gone");
    }
}

/// Runs four pods behind a host, over HTTP and HTTPS. Returns the root of its certificate.
fn served(scope: &Scope<'_>, host: &str) -> Trust {
    let authority = Authority::generate().expect("an authority");
    scope.apply(&pods("web", 4));
    scope.stage.apply(&authority.secret(&scope.name, "tls", &[host]).expect("a Secret"));
    scope.await_pods(&["web"]);
    let both = format!("  tls: [{{hosts: [{host}], secretName: tls}}]\n") + &rule(host, &[("Prefix", "/", "web")]);
    let both = ingress("web", &both)
        .replace("{name: web}", "{name: web, annotations: {xdp-ingress.io/ssl-redirect: \"false\"}}");
    scope.apply(&both);
    scope.stage.await_status(host, "/", 200);
    let trust = authority.trust().expect("a root");
    for node in scope.stage.nodes() {
        let ask = Ask::get(host, "/");
        until("the certificate is served", || {
            let answer = scope.stage.try_ask(https(node), Protocol::Https2, &trust, &ask);
            answer.map(drop).map_err(|error| format!("{error:#}"))
        });
    }
    trust
}
