//! Many routes of ListenerSets: start, memory, and the time until a change is served, in quiet and while all others churn.
//! Changes of HTTPRoutes are compared with changes of an Ingress, and with a watch of the API server that does nothing else.
//! `XDP_INGRESS_ROUTES=3000` has more routes, `XDP_INGRESS_LISTENER_SETS=2500` more ListenerSets, `XDP_INGRESS_CHANGES=200`
//! more changes, and `XDP_INGRESS_CHURN=50` other routes churn each second, in place of as many as the API server takes.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    convert::Infallible,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use futures_util::TryStreamExt as _;
use ingress_lab::{
    Lab,
    client::{Ask, Connection, Protocol, Trust, block_on},
};
use k8s_openapi::api::networking::v1::Ingress;
use kube::{
    Api,
    api::{DynamicObject, ListParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};

use super::{
    api, apply, gateway, object,
    product::{Away, CONTROLLER, HTTP, Product},
    put, put_all, route,
};
use crate::{
    scale::refusing,
    stage::{Scope, Stage, number, quantile, stage},
};

/// Ingress and its class, for comparison.
const INGRESS: &str = "gateway-scale";
/// Limit until all statuses are written: two minutes, and more for each object, of which the API server takes some 200 a second.
const STATUSES: Duration = Duration::from_secs(120);
const STATUS: Duration = Duration::from_millis(20);
/// Changes of routes at a time while they churn.
const CHURNING: usize = 4;
/// Pause between two requests.
const LOOK: Duration = Duration::from_micros(500);

/// Routes of one Gateway, spread over its ListenerSets.
struct Routes<'s> {
    scope: &'s Scope<'s>,
    count: usize,
    sets: usize,
}

impl Routes<'_> {
    fn parent(&self, number: usize) -> Value {
        match self.sets {
            0 => json!({"name": "g"}),
            sets => json!({"group": super::GROUP, "kind": "ListenerSet", "name": format!("l{}", number % sets)}),
        }
    }

    /// Returns the host of a route in this state. The listener of its ListenerSet covers it.
    fn host(&self, number: usize, state: usize) -> String {
        format!("r{number}-{state}.{}.scale.test", number.checked_rem(self.sets).unwrap_or_default())
    }

    fn route(&self, number: usize, state: usize) -> Value {
        let spec = route(&self.parent(number), &self.host(number, state), "web");
        object("HTTPRoute", &format!("r{number}"), &spec)
    }

    fn write(&self) -> anyhow::Result<()> {
        let Self { scope, count, sets } = self;
        scope.share(&format!(
            "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {{name: {INGRESS}}}\nspec: {{controller: {CONTROLLER}}}\n"
        ));
        scope.apply(&refusing());
        apply(scope, &object("Gateway", "g", &gateway(HTTP.port())));
        let began = Instant::now();
        scope.stage.cluster.control()?.run(|| {
            block_on(async {
                let listeners = |number: usize| {
                    let listener = json!({
                        "name": "http", "port": HTTP.port(), "protocol": "HTTP",
                        "hostname": format!("*.{number}.scale.test"),
                    });
                    let spec = json!({"parentRef": {"name": "g"}, "listeners": [listener]});
                    object("ListenerSet", &format!("l{number}"), &spec)
                };
                put_all(&api(scope, "ListenerSet").await?, (0..*sets).map(listeners)).await?;
                put_all(&api(scope, "HTTPRoute").await?, (0..*count).map(|number| self.route(number, 0))).await
            })
        })?;
        println!("{count} routes of {sets} ListenerSets written in {:?}", began.elapsed());
        Ok(())
    }

    /// Makes changes while the API server shows them to a watch, too.
    async fn changes(&self, states: std::ops::Range<usize>) -> anyhow::Result<Changes> {
        let routes = &api(self.scope, "HTTPRoute").await?;
        let shown = Shown::default();
        tokio::select! {
            changes = self.timed(routes, &shown, states) => changes,
            ended = watch(routes, &shown) => match ended? {},
        }
    }

    async fn timed(
        &self,
        routes: &Api<DynamicObject>,
        shown: &Shown,
        states: std::ops::Range<usize>,
    ) -> anyhow::Result<Changes> {
        let Self { scope, count, .. } = self;
        let ingresses: &Api<Ingress> = &scope.stage.api(&scope.name).await?;
        let mut changes = Changes::default();
        // The watch begins.
        tokio::time::sleep(Duration::from_millis(500)).await;
        for state in states {
            // The first routes do not churn.
            let number = state % (count / 2).max(1);
            let host = self.host(number, state);
            let (answered, took) = seen(&host, put(routes, &self.route(number, state))).await?;
            changes.routes.push(took);
            let at = loop {
                if let Some(at) = shown.borrow_mut().remove(&host) {
                    break at;
                }
                ensure!(answered.elapsed() < Duration::from_secs(60), "a watch does not show `{host}`");
                tokio::time::sleep(LOOK).await;
            };
            changes.watched.push(at.saturating_duration_since(answered));
            let host = format!("i{state}.ingress.test");
            let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
            let paths = json!([{"path": "/", "pathType": "Prefix", "backend": backend}]);
            let spec = json!({"ingressClassName": INGRESS, "rules": [{"host": host, "http": {"paths": paths}}]});
            let write = async { Ok(Stage::put(ingresses, "i", &spec).await.map(drop)?) };
            changes.ingresses.push(seen(&host, write).await?.1);
        }
        Ok(changes)
    }

    /// Changes the second half of the routes, one after the other, until the end of `stopped`: so many a second, or without a
    /// pause if `rate` is 0. Returns the number of changes.
    async fn churn(&self, stopped: &AtomicBool, rate: u32) -> anyhow::Result<u64> {
        let routes = &api(self.scope, "HTTPRoute").await?;
        let (next, half) = (AtomicU64::new(0), self.count / 2);
        let pause = Duration::from_secs(1).checked_div(rate).unwrap_or_default();
        let began = tokio::time::Instant::now();
        let one = async || {
            while !stopped.load(Relaxed) {
                let turn = next.fetch_add(1, Relaxed);
                tokio::time::sleep_until(began + pause.saturating_mul(u32::try_from(turn)?)).await;
                let turn = usize::try_from(turn)?;
                put(routes, &self.route(half + turn % (self.count - half), 1 + turn / (self.count - half))).await?;
            }
            anyhow::Ok(())
        };
        futures_util::future::try_join_all((0..CHURNING).map(|_| one())).await?;
        Ok(next.into_inner())
    }
}

/// Times from the API server's answers to changes until they are seen.
#[derive(Default)]
struct Changes {
    /// Changes of HTTPRoutes, seen by requests.
    routes: Vec<Duration>,
    /// Changes of an Ingress in turn with those, seen by requests.
    ingresses: Vec<Duration>,
    /// The same changes of HTTPRoutes, seen by a watch that does nothing else; zero if it saw them before the answer.
    watched: Vec<Duration>,
}

/// When a watch first showed an HTTPRoute with this host.
type Shown = RefCell<BTreeMap<String, Instant>>;

/// Notes when a watch of the API server shows a host.
async fn watch(routes: &Api<DynamicObject>, shown: &Shown) -> anyhow::Result<Infallible> {
    let version = routes.list_metadata(&ListParams::default().limit(1)).await?.metadata.resource_version;
    let mut from = version.context("a list without a version")?;
    loop {
        // It ends after some minutes.
        let mut events = std::pin::pin!(routes.watch(&WatchParams::default(), &from).await?);
        while let Some(event) = events.try_next().await? {
            match event {
                WatchEvent::Modified(route) => {
                    if let Some(host) = route.data["spec"]["hostnames"][0].as_str() {
                        shown.borrow_mut().entry(host.to_owned()).or_insert_with(Instant::now);
                    }
                    from = route.metadata.resource_version.unwrap_or(from);
                }
                WatchEvent::Error(error) => bail!("the watch failed: {error:?}"),
                _ => {}
            }
        }
    }
}

/// Makes a change. Returns when it was answered, and the time until a request is answered by the rule of the host: 502,
/// because the endpoint refuses connections.
async fn seen(host: &str, change: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<(Instant, Duration)> {
    let ask = Ask::get(host, "/");
    let mut connection = Connection::open(HTTP, Protocol::Http1, host, &Trust::none()).await?;
    change.await?;
    let written = Instant::now();
    while connection.send(&ask).await?.status != 502 {
        ensure!(written.elapsed() < Duration::from_secs(60), "`{host}` is not served");
        tokio::time::sleep(LOOK).await;
    }
    Ok((written, written.elapsed()))
}

#[test]
fn many_routes_are_read_soon_and_changed_soon_also_while_others_churn() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let _away = Away::begin(stage);
    let scope = stage.scope("gateway-scale");
    let lab = Lab::open("gateway-scale").expect("a place for logs");
    let count = number("XDP_INGRESS_ROUTES", 200).max(2);
    let sets = number("XDP_INGRESS_LISTENER_SETS", 20);
    let changes = number("XDP_INGRESS_CHANGES", 20);
    let churn = u32::try_from(number("XDP_INGRESS_CHURN", 0)).expect("XDP_INGRESS_CHURN is a small number");
    let routes = Routes { scope: &scope, count, sets };
    routes.write().expect("all are written");
    let product = Product::start(&scope, &lab).expect("it starts");
    println!("ready {:?} after its start, RSS {} MB", product.ready, product.resident());
    let control = stage.cluster.control().expect("the control plane's namespace");
    // Statuses are written meanwhile, which costs the API server, not the process, most of the time.
    super::settled_within(stage, STATUSES + STATUS * u32::try_from(count + sets).expect("a small number"));
    let quiet = control.run(|| block_on(routes.changes(1..1 + changes))).expect("changes are seen");
    let stopped = AtomicBool::new(false);
    let (churned, under_churn) = std::thread::scope(|threads| {
        let churning = threads.spawn(|| {
            let began = Instant::now();
            let count = control.run(|| block_on(routes.churn(&stopped, churn)))?;
            anyhow::Ok((count, began.elapsed()))
        });
        let times = control.run(|| block_on(routes.changes(1 + changes..1 + 2 * changes)));
        stopped.store(true, Relaxed);
        (churning.join().expect("no panic").expect("routes churn"), times.expect("changes are seen"))
    });
    let (churned, took) = churned;
    println!("{churned} changes of other routes in {took:?}");
    for (when, Changes { routes, ingresses, watched }) in [("in quiet", quiet), ("while others churn", under_churn)] {
        for (what, mut times) in [
            ("a change of an HTTPRoute is served", routes),
            ("a mere watch shows it", watched),
            ("a change of an Ingress is served", ingresses),
        ] {
            let (median, late) = (quantile(&mut times, 0.5), quantile(&mut times, 0.99));
            println!("{when}, {what} after its write is answered: median {median:?}, p99 {late:?}");
        }
    }
    println!("RSS {} MB at last", product.resident());
    assert!(churned > 0);
}
