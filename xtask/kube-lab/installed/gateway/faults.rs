//! Faults while routes are served and change: a leader killed, the API server away, a node cut off. Nothing wrong is served.
//! Two other controllers write their entries of the same statuses all the time, and find them as they wrote them.
//! `XDP_INGRESS_OUTAGE=120` keeps the API server away, and the node cut off, for longer (seconds).

use std::{
    fs,
    net::SocketAddr,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use ingress_lab::client::{Answer, Ask, Connection, Protocol, Trust, block_on};
use serde_json::{Value, json};
use tokio::time::timeout;
use xtask_kube_lab::NodePlan;
use xtask_tools::process;

use super::{
    STEP, apply_all, condition, leader, object,
    other_controllers::{Controller, Entries, entry},
    programmed, route, run, step_filter,
};
use crate::{
    conformance::served_by,
    faults::{Broken, Part, process_on},
    stage::{Scope, Stage, ask_from, number, stage, until},
};

/// Number of routes, each with a host of its own.
const ROUTES: usize = 5;
/// The Service of all routes, with one pod.
const SERVICE: &str = "web";
const OURS: &str = "xdp-ingress.io/gateway-controller";
/// Other controllers. The entry of the first one is before ours, that of the second one behind.
const OTHERS: [&str; 2] = ["one.test/controller", "two.test/controller"];
/// Longest wait for an answer. An address without a node answers nothing until another node has it.
const PATIENCE: Duration = Duration::from_secs(3);
/// Pause between two requests.
const PAUSE: Duration = Duration::from_millis(5);
/// Requests that must be answered after each fault.
const FURTHER: u64 = 50;

fn name(number: usize) -> String {
    format!("r{number}")
}

fn host(number: usize) -> String {
    format!("r{number}.faults.test")
}

/// The requests, and the changes they may see.
#[derive(Debug, Default)]
struct Seen {
    has_ended: AtomicBool,
    /// The last change that every node has served, and the last one that was begun.
    oldest: AtomicU64,
    newest: AtomicU64,
    right: AtomicU64,
    /// Requests without an answer: connections to a killed process or to a node without a link are lost.
    missing: AtomicU64,
}

/// A client that asks on new connections, one after the other, until the value is dropped or stopped.
struct Client {
    seen: Arc<Seen>,
    thread: Option<JoinHandle<anyhow::Result<Vec<String>>>>,
}

/// The routes, and the number of their changes.
struct Routes<'s> {
    scope: &'s Scope<'s>,
    address: SocketAddr,
    began: Instant,
    step: u64,
    seen: Arc<Seen>,
}

// === impl Seen ===

impl Seen {
    fn is_right(&self, answer: &Answer, oldest: u64) -> bool {
        let step = answer.header(STEP).and_then(|step| step.parse().ok());
        let is_known = step.is_some_and(|step| (oldest..=self.newest.load(SeqCst)).contains(&step));
        answer.status == 200 && served_by(answer.pod(), SERVICE) && is_known
    }

    async fn ask(&self, to: SocketAddr) -> Vec<String> {
        let mut wrong = Vec::new();
        for turn in 0.. {
            if self.has_ended.load(SeqCst) {
                break;
            }
            let (host, oldest) = (host(turn % ROUTES), self.oldest.load(SeqCst));
            let ask = async {
                let mut connection = Connection::open(to, Protocol::Http1, &host, &Trust::none()).await?;
                connection.send(&Ask::get(&host, "/")).await
            };
            match timeout(PATIENCE, ask).await {
                Ok(Ok(answer)) if self.is_right(&answer, oldest) => drop(self.right.fetch_add(1, SeqCst)),
                Ok(Ok(answer)) => {
                    let (pod, step) = (answer.pod(), answer.header(STEP));
                    let newest = self.newest.load(SeqCst);
                    wrong.push(format!("{host}: {} from {pod:?}, {step:?} of {oldest} to {newest}", answer.status));
                }
                Ok(Err(_)) | Err(_) => drop(self.missing.fetch_add(1, SeqCst)),
            }
            tokio::time::sleep(PAUSE).await;
        }
        wrong
    }

    /// Waits for further answers.
    fn go_on(&self) {
        let goal = self.right.load(SeqCst) + FURTHER;
        until("requests are answered", || {
            let now = self.right.load(SeqCst);
            if now >= goal { Ok(()) } else { Err(format!("{now} of {goal}")) }
        });
    }
}

// === impl Client ===

impl Client {
    fn start(stage: &Stage, to: SocketAddr, seen: &Arc<Seen>) -> Self {
        let theirs = Arc::clone(seen);
        let thread = stage.client.thread("client", move || block_on(async { Ok(theirs.ask(to).await) }));
        Self { seen: Arc::clone(seen), thread: Some(thread.expect("a client")) }
    }

    /// Returns the wrong answers.
    fn stop(mut self) -> Vec<String> {
        self.seen.has_ended.store(true, SeqCst);
        self.thread.take().expect("it runs").join().expect("no panic").expect("it runs")
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.seen.has_ended.store(true, SeqCst);
    }
}

// === impl Routes ===

impl Routes<'_> {
    /// Changes all routes.
    fn write(&mut self) {
        self.step += 1;
        self.seen.newest.store(self.step, SeqCst);
        let routes = (0..ROUTES).map(|number| {
            let mut spec = route(&json!({"name": "g"}), &host(number), SERVICE);
            spec["rules"][0]["filters"] = json!([step_filter(self.step)]);
            object("HTTPRoute", &name(number), &spec)
        });
        apply_all(self.scope, routes);
    }

    /// Changes all routes, and waits until our statuses are about the change.
    fn change(&mut self, when: &str) {
        self.write();
        let changed = Instant::now();
        until(&format!("the statuses are about the change {when}"), || {
            let routes = self.scope.json(&["get", "httproutes"]);
            let routes = routes["items"].as_array().cloned().unwrap_or_default();
            match routes.iter().find(|route| !is_about_it(route)) {
                None if routes.len() == ROUTES => Ok(()),
                other => Err(format!("{} routes, {other:?}", routes.len())),
            }
        });
        println!(
            "{when}: statuses are about a change {:?} after it, {:?} after the start",
            changed.elapsed(),
            self.began.elapsed()
        );
    }

    /// Waits until every node serves the last change. Later requests must not get an earlier one.
    fn everywhere(&self) {
        self.served(&self.scope.stage.nodes());
        self.seen.oldest.store(self.step, SeqCst);
    }

    /// Waits until these nodes serve the last change.
    fn served(&self, nodes: &[NodePlan]) {
        let stage = self.scope.stage;
        for node in nodes.iter().copied() {
            let inside = stage.cluster.network(node).expect("the node's namespace");
            for number in 0..ROUTES {
                until(&format!("{} serves change {} of r{number}", node.name(), self.step), || {
                    let ask = Ask::get(&host(number), "/");
                    let answer = ask_from(&inside, self.address, Protocol::Http1, &Trust::none(), &ask);
                    let answer = answer.map_err(|error| format!("{error:#}"))?;
                    let found = (answer.status, answer.header(STEP));
                    if self.seen.is_right(&answer, self.step) { Ok(()) } else { Err(format!("{found:?}")) }
                });
            }
        }
    }

    /// Waits until a node has saved the last change, so that a process started there never serves an earlier one.
    fn saved(&self, node: NodePlan) {
        let field = format!("\"name\":\"{STEP}\",\"value\":\"{}\"", self.step);
        until("the change is saved", || {
            let read = || fs::read_to_string("/run/xdp-ingress/snapshot.json").context("cannot read what was saved");
            let text = self.scope.stage.cluster.inside(node, read).map_err(|error| format!("{error:#}"))?;
            let count = text.split_whitespace().collect::<String>().matches(&field).count();
            if count == ROUTES { Ok(()) } else { Err(format!("{count} of {ROUTES} routes")) }
        });
    }
}

/// Returns whether our entry, the only one, is about the generation of the route.
fn is_about_it(route: &Value) -> bool {
    let parents = route["status"]["parents"].as_array().into_iter().flatten();
    let ours: Vec<&Value> = parents.filter(|parent| parent["controllerName"] == OURS).collect();
    let [ours] = ours[..] else { return false };
    let generation = &route["metadata"]["generation"];
    let mut conditions = ours["conditions"].as_array().into_iter().flatten();
    condition(&ours["conditions"], "Accepted") == Some(true)
        && conditions.any(|condition| condition["type"] == "Accepted" && condition["observedGeneration"] == *generation)
}

/// Adds the entries of others around ours.
fn seed(scope: &Scope<'_>) {
    let [first, last] = OTHERS.map(|name| entry(name, 0));
    let patch = json!([
        {"op": "add", "path": "/status/parents/0", "value": first},
        {"op": "add", "path": "/status/parents/-", "value": last},
    ]);
    let patch = patch.to_string();
    for number in 0..ROUTES {
        scope.kubectl(&["patch", "httproute", &name(number), "--subresource=status", "--type=json", "--patch", &patch]);
    }
}

/// Kills the process that leads.
fn kill_leader(stage: &Stage, routes: &Routes<'_>) -> anyhow::Result<()> {
    let pod = leader(stage);
    let node = stage.json(&["--namespace=xdp-ingress", "get", "pod", &pod])["spec"]["nodeName"].clone();
    let node = stage.nodes().into_iter().find(|each| node == each.name()).context("no node of the leader")?;
    routes.saved(node);
    let pid = process_on(stage, node).context("no process on the node")?;
    let kill = || process::run(Command::new("kill").args(["-KILL", &pid.to_string()]));
    stage.cluster.inside(node, kill)
}

#[test]
fn faults_serve_nothing_wrong_and_lose_no_foreign_status() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let scope = stage.scope("gateway-faults");
    run(&scope, &[SERVICE]);
    let address = programmed(&scope);
    let seen = Arc::new(Seen::default());
    let mut routes = Routes { scope: &scope, address, began: Instant::now(), step: 0, seen: Arc::clone(&seen) };
    routes.change("at first");
    seed(&scope);
    routes.everywhere();
    let controllers =
        OTHERS.map(|name| Controller::start(stage, &scope.name, name, (0..ROUTES).map(self::name).collect()));
    let client = Client::start(stage, address, &seen);
    seen.go_on();
    routes.change("before");
    routes.everywhere();

    kill_leader(stage, &routes).expect("the leader is killed");
    routes.change("with the leader killed");
    seen.go_on();
    stage.await_rollout();
    routes.everywhere();

    let outage = Duration::from_secs(number("XDP_INGRESS_OUTAGE", 5));
    let missing = seen.missing.load(SeqCst);
    let away = Broken::begin(stage, Part::ApiServer);
    std::thread::sleep(outage);
    seen.go_on();
    drop(away);
    routes.change("with the API server back");
    routes.everywhere();
    assert_eq!(seen.missing.load(SeqCst), missing, "requests without an answer while the API server was away");

    // The node without the pod, so that each request has a pod to go to.
    let pods = scope.json(&["get", "pods", &format!("--selector=app={SERVICE}")]);
    let with_pod = &pods["items"][0]["spec"]["nodeName"];
    let (reachable, others): (Vec<NodePlan>, _) = stage.nodes().into_iter().partition(|each| *with_pod == each.name());
    let cut = Broken::begin(stage, Part::Link(others[0]));
    // Statuses may have to wait for the end of the lease, if the node has the leader.
    routes.write();
    routes.served(&reachable);
    std::thread::sleep(outage);
    seen.go_on();
    drop(cut);
    routes.change("with the node back");
    routes.everywhere();
    seen.go_on();
    stage.kubectl(&["wait", "--for=condition=Ready", "node", "--all", "--timeout=120s"]);

    let wrong = client.stop();
    let (right, missing) = (seen.right.load(SeqCst), seen.missing.load(SeqCst));
    println!("{right} right answers, {missing} requests without one, {} wrong answers", wrong.len());
    let entries = controllers.map(Controller::stop);
    for Entries { name, writes, conflicts, lost, .. } in &entries {
        println!("{name}: {writes} writes, {conflicts} refused, {} lost or changed entries", lost.len());
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let judged = entries.iter().try_for_each(|Entries { name, writes, lost, .. }| {
        ensure!(lost.is_empty(), "{name}: {lost:#?}");
        ensure!(*writes > ROUTES as u64, "{name}: {writes} writes");
        Ok(())
    });
    judged.expect("entries stay as they were written");
    for route in scope.json(&["get", "httproutes"])["items"].as_array().expect("routes") {
        let parents = route["status"]["parents"].as_array().into_iter().flatten();
        let order: Vec<&Value> = parents.map(|parent| &parent["controllerName"]).collect();
        assert_eq!(order, [OTHERS[0], OURS, OTHERS[1]], "each keeps its place: {route}");
    }
}
