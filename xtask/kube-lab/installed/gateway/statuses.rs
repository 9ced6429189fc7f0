//! Statuses of many routes: counts that are right soon, few writes, and none while nothing changes.
//! `XDP_INGRESS_ROUTES=1000` has more routes, and `XDP_INGRESS_IDLE=600` waits longer (seconds). With another number of routes
//! than the usual one, times and writes must keep their limits.

use std::time::{Duration, Instant};

use anyhow::ensure;
use ingress_lab::{
    Lab,
    client::{Ask, Connection, Protocol, Trust, block_on},
};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ListParams},
};
use serde_json::{Value, json};

use super::{
    api, apply, between, condition, gateway, leader, object,
    product::{Away, HTTP, Product},
    programmed, put_all, route, settled, writes,
};
use crate::{
    scale::refusing,
    stage::{number, stage, until},
};

/// Usual number of routes.
const ROUTES: usize = 200;
/// Limits: until all routes are counted after the last one was written, until none is after they were deleted, and writes of
/// the Gateway's status meanwhile.
const COUNTED: Duration = Duration::from_secs(1);
const GONE: Duration = Duration::from_secs(2);
const GATEWAY_WRITES: u64 = 20;
/// Pause between two readings of a count.
const LOOK: Duration = Duration::from_millis(10);

/// Waits until a Gateway counts so many routes. Returns all counts that were seen.
async fn counted(gateways: &Api<DynamicObject>, expect: usize) -> anyhow::Result<Vec<u64>> {
    let (began, mut seen) = (Instant::now(), Vec::new());
    loop {
        let found = gateways.get("g").await?;
        let count = found.data["status"]["listeners"][0]["attachedRoutes"].as_u64();
        seen.extend(count.filter(|count| seen.last() != Some(count)));
        if count == Some(expect as u64) {
            return Ok(seen);
        }
        ensure!(began.elapsed() < Duration::from_secs(300), "{count:?} routes are counted, and not {expect}");
        tokio::time::sleep(LOOK).await;
    }
}

#[test]
fn routes_are_counted_soon_and_each_status_is_written_once() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let _away = Away::begin(stage);
    let scope = stage.scope("counts");
    let lab = Lab::open("counts").expect("a place for logs");
    let count = number("XDP_INGRESS_ROUTES", ROUTES);
    scope.apply(&refusing());
    apply(&scope, &object("Gateway", "g", &gateway(HTTP.port())));
    let product = Product::start(&scope, &lab).expect("it starts");
    let before = settled(stage);
    let host = |number: usize| format!("r{number}.counts.test");
    let measured = stage.cluster.control().expect("the control plane's namespace").run(|| {
        block_on(async {
            let (gateways, routes) = (&api(&scope, "Gateway").await?, &api(&scope, "HTTPRoute").await?);
            let parent = json!({"name": "g"});
            let objects = (0..count)
                .map(|number| object("HTTPRoute", &format!("r{number}"), &route(&parent, &host(number), "web")));
            let written = async {
                put_all(routes, objects).await?;
                anyhow::Ok(Instant::now())
            };
            let all = async {
                let seen = counted(gateways, count).await?;
                anyhow::Ok((Instant::now(), seen))
            };
            let (written, all) = tokio::join!(written, all);
            let (written, (all, seen)) = (written?, all?);
            Ok((all.saturating_duration_since(written), seen))
        })
    });
    let (took, seen) = measured.expect("all are counted");
    assert!(seen.is_sorted(), "the count went up and down: {seen:?}");
    let after = settled(stage);
    let [of_gateways, of_routes] = ["gateways", "httproutes"].map(|resource| between(&before, &after, resource));

    let gone = stage.cluster.control().expect("the control plane's namespace").run(|| {
        block_on(async {
            let (gateways, routes) = (&api(&scope, "Gateway").await?, &api(&scope, "HTTPRoute").await?);
            routes.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
            let deleted = Instant::now();
            counted(gateways, 0).await?;
            let ask = Ask::get(&host(count - 1), "/");
            let mut connection = Connection::open(HTTP, Protocol::Http1, &ask.host, &Trust::none()).await?;
            while connection.send(&ask).await?.status != 404 {
                ensure!(deleted.elapsed() < Duration::from_secs(60), "a deleted route is served");
                tokio::time::sleep(LOOK).await;
            }
            Ok(deleted.elapsed())
        })
    });
    let gone = gone.expect("they go");
    println!(
        "{count} routes: counted {took:?} after the last one was written, {of_gateways} writes of the Gateway's status, \
         {of_routes} of the routes'; gone {gone:?} after they were deleted; RSS {} MB",
        product.resident()
    );
    if count != ROUTES {
        assert!(took <= COUNTED && gone <= GONE, "{took:?}, {gone:?}");
        assert_eq!(of_routes, count as u64, "each route once");
    }
    assert!(of_gateways <= GATEWAY_WRITES, "{of_gateways}");
    assert!((count as u64..=2 * count as u64).contains(&of_routes), "{of_routes} of {count}");
}

#[test]
fn no_status_is_written_while_nothing_changes_nor_by_the_next_leader() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let scope = stage.scope("idle");
    let idle = Duration::from_secs(number("XDP_INGRESS_IDLE", 20));
    scope.apply(&refusing());
    let address = programmed(&scope);
    for number in 0..20 {
        let parent = json!({"name": "g"});
        let host = format!("r{number}.idle.test");
        apply(&scope, &object("HTTPRoute", &format!("r{number}"), &route(&parent, &host, "web")));
    }
    let ask = Ask::get("r19.idle.test", "/");
    until("the last route is served", || {
        let answer =
            stage.try_ask(address, Protocol::Http1, &Trust::none(), &ask).map_err(|error| format!("{error:#}"))?;
        if answer.status == 502 { Ok(()) } else { Err(answer.status.to_string()) }
    });
    // The status of a route changes again when a node answers late, which the leader asks after pauses of up to 30 s.
    until("all nodes say that they serve the routes", || {
        let routes = scope.json(&["get", "httproutes"])["items"].take();
        let is_served = |route: &Value| {
            condition(&route["status"]["parents"][0]["conditions"], "xdp-ingress.io/Served") == Some(true)
        };
        let waiting = routes.as_array().into_iter().flatten().filter(|route| !is_served(route)).collect::<Vec<_>>();
        match waiting.first() {
            None => Ok(()),
            Some(route) => Err(format!("{} routes wait, such as {}", waiting.len(), route["status"])),
        }
    });
    // While objects of earlier tests go one by one, the statuses of those that are left change.
    until("the namespaces of earlier tests are gone", || {
        let namespaces = scope.json(&["get", "namespaces"])["items"].take();
        let is_going = |namespace: &&Value| namespace["metadata"].get("deletionTimestamp").is_some();
        match namespaces.as_array().into_iter().flatten().find(is_going) {
            None => Ok(()),
            Some(namespace) => Err(namespace["metadata"]["name"].to_string()),
        }
    });
    let before = settled(stage);
    std::thread::sleep(idle / 2);
    assert_eq!(writes(stage), before, "one leader all the time");
    let first = leader(stage);
    stage.kubectl(&["--namespace=xdp-ingress", "delete", "pod", &first, "--wait=true"]);
    let second = until("another leader", || {
        let now = leader(stage);
        if now == first || now.is_empty() { Err(now) } else { Ok(now) }
    });
    stage.await_rollout();
    std::thread::sleep(idle / 2);
    assert_eq!(writes(stage), before, "`{second}` leads after `{first}`");
    println!("no status was written in {idle:?}, with a change of the leader");
}
