//! Cost of one Ingress with many Secrets to the API server, and the delay of other hosts' changes meanwhile.
//! `XDP_INGRESS_SECRETS=N` sets the number of Secrets (2,000).

use std::time::{Duration, Instant};

use anyhow::Context as _;
use ingress_lab::client::{Ask, Connection, Protocol, Trust, block_on};
use serde_json::{Value, json};

use crate::stage::{Scope, Stage, http, number, quantile, stage, until};

/// Number of Secrets that one Ingress may name by default.
const MAX: usize = 256;
/// Changes of another host that are timed.
const CHANGES: usize = 20;

/// Writes an Ingress of this scope's.
fn put(scope: &Scope<'_>, name: &str, spec: &Value) -> anyhow::Result<()> {
    scope.stage.cluster.control()?.run(|| {
        block_on(async {
            let api = scope.stage.api(&scope.name).await?;
            Stage::put(&api, name, spec).await.context("cannot write").map(drop)
        })
    })
}

/// An Ingress of this class that names `secrets` Secrets, for a host of its own.
fn greedy(class: &str, secrets: usize) -> Value {
    let tls: Vec<_> = (0..secrets).map(|number| json!({"secretName": format!("s{number}")})).collect();
    json!({"ingressClassName": class, "tls": tls, "rules": [rule("greedy.watches.test")]})
}

/// A rule that answers 503, as its Service is missing.
fn rule(host: &str) -> Value {
    let backend = json!({"service": {"name": "none", "port": {"number": 80}}});
    json!({"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}})
}

/// Returns the number of Secret watches that the API server serves.
fn watches(scope: &Scope<'_>) -> usize {
    let metrics = scope.stage.kubectl(&["get", "--raw", "/metrics"]);
    let of_secrets = |line: &&str| {
        line.starts_with("apiserver_longrunning_requests{")
            && line.contains("resource=\"secrets\"")
            && line.contains("verb=\"WATCH\"")
    };
    let counts = metrics.lines().filter(of_secrets).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "a number of watches")]
    let sum = counts.sum::<f64>() as usize;
    sum
}

/// Returns the same number once the watches of earlier tests have ended.
fn settled(scope: &Scope<'_>) -> usize {
    until("watches stay as many as they are", || {
        let before = watches(scope);
        std::thread::sleep(Duration::from_secs(5));
        match watches(scope) {
            now if now == before => Ok(now),
            now => Err(format!("{before}, then {now}")),
        }
    })
}

/// Returns the times from the API server's answers to changes of another host until they are live on the first node.
fn delays(scope: &Scope<'_>, what: &str) -> Vec<Duration> {
    let node = scope.stage.nodes()[0];
    let change = |number: usize| {
        let host = format!("{what}{number}.watches.test");
        put(scope, "other", &json!({"ingressClassName": "xdp", "rules": [rule(&host)]})).expect("written");
        let written = Instant::now();
        let seen = scope.stage.client.run(|| {
            block_on(async {
                let mut connection = Connection::open(http(node), Protocol::Http1, &host, &Trust::none()).await?;
                while connection.send(&Ask::get(&host, "/")).await?.status != 503 {
                    anyhow::ensure!(written.elapsed() < Duration::from_secs(30), "`{host}` is not known");
                    tokio::time::sleep(Duration::from_micros(500)).await;
                }
                Ok(written.elapsed())
            })
        });
        seen.expect("it is live")
    };
    (0..CHANGES).map(change).collect()
}

fn say(what: &str, mut delays: Vec<Duration>) {
    println!("{what}: the first of {CHANGES} changes of another host is live after {:?}", delays[0]);
    let (median, most, longest) = (quantile(&mut delays, 0.5), quantile(&mut delays, 0.95), quantile(&mut delays, 1.0));
    println!("{what}: median {median:?}, 95 % within {most:?}, at most {longest:?}");
}

#[test]
fn an_ingress_that_names_many_secrets_opens_few_watches() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let scope = stage.scope("watches");
    let secrets = number("XDP_INGRESS_SECRETS", 2_000);
    say("before", delays(&scope, "before"));
    let before = settled(&scope);

    put(&scope, "greedy", &greedy("not-ours", secrets)).expect("written");
    say("an Ingress of another class", delays(&scope, "foreign"));
    let foreign = watches(&scope);
    assert!(foreign <= before, "{secrets} Secrets of another class: {foreign} watches, {before} before");

    put(&scope, "greedy", &greedy("xdp", secrets)).expect("written");
    say("an Ingress of ours beyond the limit", delays(&scope, "ours"));
    let beyond = watches(&scope);
    assert!(beyond <= before, "{secrets} Secrets beyond the limit: {beyond} watches, {before} before");
    until("an event says that it is too large", || {
        let events = scope.kubectl(&["get", "events", "--field-selector=involvedObject.name=greedy", "--output=json"]);
        if events.contains("TooLarge") { Ok(()) } else { Err(events) }
    });

    put(&scope, "greedy", &greedy("xdp", MAX)).expect("written");
    say("an Ingress of ours within the limit", delays(&scope, "within"));
    let most = before + MAX * stage.nodes().len();
    until("its Secrets are watched", || match watches(&scope) {
        now if now == most => Ok(()),
        now => Err(format!("{now} watches, {before} before")),
    });
}
