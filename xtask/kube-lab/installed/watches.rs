//! Cost of one Ingress with many Secrets to the API server, and the delay of other hosts' changes meanwhile.
//! `XDP_INGRESS_SECRETS=N` sets the number of Secrets (2,000); with another number than that, the delays are not only
//! printed but must also keep their limits.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use ingress_lab::client::{Ask, Connection, Protocol, Trust, block_on};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    objects,
    stage::{Scope, Stage, http, number, quantile, stage, until},
};

/// Number of Secrets that one Ingress may name by default.
const MAX: usize = 256;
/// Watches that may end while the test runs: kubelets watch a Secret as long as a pod of an earlier test uses it.
const ENDING: usize = 8;
/// Changes of another host that are timed.
const CHANGES: usize = 20;
/// Usual number of Secrets.
const SECRETS: usize = 2_000;
/// Limits of a change of another host: until it is live, and in milliseconds, of which in the process.
const LIVE_MAX: Duration = Duration::from_millis(100);
const APPLIED_MAX_MS: f64 = 10.0;
const OTHER: &str = "other.watches.test";

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

/// A Service without pods of its own, its slice with this one endpoint, and an Ingress of its host.
fn other(endpoint: &str) -> String {
    let slice = format!(
        "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: other, labels: {{kubernetes.io/service-name: other}}}}\naddressType: IPv4\n\
         ports: [{{name: http, port: 8080, protocol: TCP}}]\nendpoints: [{{addresses: [{endpoint}]}}]\n"
    );
    let service = objects::service("other", "{name: http, port: 80, targetPort: 8080}");
    service.replace("selector: {app: other}, ", "") + &slice + &objects::site("other", OTHER, "other")
}

/// Two pods that take turns as the endpoint of another host.
struct Turns {
    /// Their addresses and names.
    pods: [(String, String); 2],
}

impl Turns {
    fn begin(scope: &Scope<'_>) -> Self {
        scope.run(&[("echo", 2)]);
        let pods = scope.json(&["get", "pods", "--selector=app=echo"]);
        let pods = [0, 1].map(|number| {
            let text = |value: &Value| value.as_str().expect("a text").to_owned();
            let pod = &pods["items"][number];
            (text(&pod["status"]["podIP"]), text(&pod["metadata"]["name"]))
        });
        scope.apply(&other(&pods[0].0));
        scope.stage.await_status(OTHER, "/", 200);
        Self { pods }
    }

    /// Returns the times from the API server's answers to changes of the endpoint until the first node sends requests
    /// to the new one, and the time that a change takes in its process: the mean, and the longest by its bucket.
    fn measure(&self, scope: &Scope<'_>) -> Delays {
        let node = scope.stage.nodes()[0];
        let before = Applied::read(scope);
        let change = |number: usize| {
            let (address, name) = &self.pods[(number + 1) % 2];
            let patch = json!([{"op": "replace", "path": "/endpoints/0/addresses/0", "value": address}]);
            let patch = Patch::<EndpointSlice>::Json(serde_json::from_value(patch).expect("a patch"));
            let written = scope.stage.cluster.control().and_then(|control| {
                control.run(|| {
                    block_on(async {
                        let slices: Api<EndpointSlice> = scope.stage.api(&scope.name).await?;
                        slices.patch("other", &PatchParams::default(), &patch).await.context("cannot write")?;
                        Ok(Instant::now())
                    })
                })
            });
            let written = written.expect("written");
            let seen = scope.stage.client.run(|| {
                block_on(async {
                    let mut connection = Connection::open(http(node), Protocol::Http1, OTHER, &Trust::none()).await?;
                    while connection.send(&Ask::get(OTHER, "/")).await?.pod() != Some(name) {
                        anyhow::ensure!(written.elapsed() < Duration::from_secs(30), "`{name}` gets no requests");
                        tokio::time::sleep(Duration::from_micros(500)).await;
                    }
                    Ok(written.elapsed())
                })
            });
            seen.expect("it is live")
        };
        let live = (0..CHANGES).map(change).collect();
        Delays { live, applied: Applied::read(scope).since(&before) }
    }
}

/// Results of [`CHANGES`] changes.
struct Delays {
    live: Vec<Duration>,
    applied: Applied,
}

/// The histogram of the durations from the receipt of a change by the first node's process until it is served.
#[derive(Debug)]
struct Applied {
    /// Upper bound in seconds and number of the changes up to it.
    buckets: Vec<(f64, u64)>,
    sum: f64,
}

impl Applied {
    fn read(scope: &Scope<'_>) -> Self {
        const METRIC: &str = "xdp_ingress_configuration_apply_duration_seconds";
        let metrics = scope.stage.metrics(scope.stage.nodes()[0]);
        let value = |line: &str| line.rsplit(' ').next().and_then(|text| text.parse::<f64>().ok());
        let mut applied = Self { buckets: Vec::new(), sum: 0.0 };
        for line in metrics.lines().filter_map(|line| line.strip_prefix(METRIC)) {
            if line.starts_with("_sum") {
                applied.sum = value(line).expect("a number");
            } else if let Some((bound, _)) = line.strip_prefix("_bucket{le=\"").and_then(|line| line.split_once('"')) {
                let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().expect("a bound") };
                let count = line.rsplit(' ').next().and_then(|text| text.parse().ok()).expect("a count");
                applied.buckets.push((bound, count));
            }
        }
        assert!(!applied.buckets.is_empty(), "`{METRIC}` is missing");
        applied
    }

    fn since(&self, before: &Self) -> Self {
        let pairs = self.buckets.iter().zip(&before.buckets);
        let buckets = pairs.map(|((bound, now), (_, before))| (*bound, now - before)).collect();
        Self { buckets, sum: self.sum - before.sum }
    }

    fn count(&self) -> u64 {
        self.buckets.last().map_or(0, |(_, count)| *count)
    }

    /// Returns the smallest bound that no change exceeded, in milliseconds.
    fn longest(&self) -> f64 {
        self.buckets.iter().find(|(_, count)| *count == self.count()).map_or(f64::INFINITY, |(bound, _)| bound * 1e3)
    }
}

impl Delays {
    /// Prints the delays. A proof by hand, with another number of Secrets than CI has, also checks them.
    fn report(mut self, what: &str, secrets: usize) {
        let (first, count) = (self.live[0], self.applied.count());
        let [median, most, longest] = [0.5, 0.95, 1.0].map(|part| quantile(&mut self.live, part));
        println!(
            "{what}: {CHANGES} changes of another host's endpoint are live after {median:.1?} (median), {most:.1?} (95 %), \
             {longest:.1?} (all), the first after {first:.1?}"
        );
        #[expect(clippy::cast_precision_loss, reason = "a number of changes")]
        let mean = self.applied.sum * 1e3 / count as f64;
        let bound = self.applied.longest();
        println!("{what}: of which {mean:.2} ms in the process (mean), at most {bound} ms; {count} changes");
        if secrets != SECRETS {
            assert!(longest <= LIVE_MAX, "{what}: live after {longest:?}, of {LIVE_MAX:?} at most");
            assert!(bound <= APPLIED_MAX_MS, "{what}: {bound} ms in the process, of {APPLIED_MAX_MS} at most");
        }
    }
}

#[test]
fn an_ingress_that_names_many_secrets_opens_few_watches() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let scope = stage.scope("watches");
    let secrets = number("XDP_INGRESS_SECRETS", SECRETS);
    let turns = Turns::begin(&scope);
    turns.measure(&scope).report("before", secrets);
    let before = settled(&scope);

    put(&scope, "greedy", &greedy("not-ours", secrets)).expect("written");
    turns.measure(&scope).report("an Ingress of another class", secrets);
    let foreign = watches(&scope);
    assert!(foreign <= before, "{secrets} Secrets of another class: {foreign} watches, {before} before");

    put(&scope, "greedy", &greedy("xdp", secrets)).expect("written");
    turns.measure(&scope).report("an Ingress of ours beyond the limit", secrets);
    let beyond = watches(&scope);
    assert!(beyond <= before, "{secrets} Secrets beyond the limit: {beyond} watches, {before} before");
    until("an event says that it is too large", || {
        let events = scope.kubectl(&["get", "events", "--field-selector=involvedObject.name=greedy", "--output=json"]);
        if events.contains("TooLarge") { Ok(()) } else { Err(events) }
    });

    put(&scope, "greedy", &greedy("xdp", MAX)).expect("written");
    turns.measure(&scope).report("an Ingress of ours within the limit", secrets);
    let most = before + MAX * stage.nodes().len();
    until("its Secrets are watched", || match watches(&scope) {
        now if (most - ENDING..=most).contains(&now) => Ok(()),
        now => Err(format!("{now} watches, {before} before")),
    });
}
