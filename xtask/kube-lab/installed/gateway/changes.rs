//! Requests while routes come, change and go. `XDP_INGRESS_REQUESTS=1000000` sends more of them.
//!
//! Each host passes through steps in turn. A step has one right answer. An answer is right if it is that of a step between
//! two readings: one before the request was sent, and one after the answer was read. A new step counts from its first write
//! to the API server on. The step before it counts until any client has seen the new one. So a request that is sent
//! afterwards must never get the old answer, nor any answer that is of neither step.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    time::{Duration, Instant},
};

use anyhow::ensure;
use futures_util::future::try_join_all;
use ingress_lab::client::{Answer, Ask, Connection, Protocol, Trust, block_on};
use kube::{
    Api,
    api::{DeleteParams, DynamicObject},
};
use serde_json::{Value, json};

use super::{STEP, api, object, programmed, put, route, run, step_filter};
use crate::{
    conformance::served_by,
    stage::{Scope, Stage, number, stage, until},
};

/// Connections for each host. The last one is a new connection for each request.
const CLIENTS: usize = 4;
/// Names of the Services and their Deployments.
const ONE: &str = "one";
const OTHER: &str = "other";
/// Requests of a step after which the next one may follow, all of them sent while the step was the only one that counts.
const HELD: u64 = 10;
/// Longest wait until a step is served.
const LIMIT: Duration = Duration::from_secs(60);
/// Pause between two readings of a counter.
const LOOK: Duration = Duration::from_millis(1);
/// Wrong answers that are printed.
const SHOWN: usize = 10;

/// A host and its steps. After the last one comes the first.
struct Host {
    name: &'static str,
    steps: &'static [Step],
}

struct Step {
    writes: &'static [Write],
    /// The Service that answers; `None` for 404.
    answer: Option<&'static str>,
}

/// A write of a route: name, path type and Service; without these it is deleted.
struct Write(&'static str, Option<(&'static str, &'static str)>);

const PREFIX: &str = "PathPrefix";
const EXACT: &str = "Exact";

static HOSTS: [Host; 5] = [
    Host { name: "stays.test", steps: &[Step { writes: &[Write("stays", Some((PREFIX, ONE)))], answer: Some(ONE) }] },
    Host {
        name: "changes.test",
        steps: &[
            Step { writes: &[Write("changes", Some((PREFIX, ONE)))], answer: Some(ONE) },
            Step { writes: &[Write("changes", Some((PREFIX, OTHER)))], answer: Some(OTHER) },
        ],
    },
    Host {
        name: "comes.test",
        steps: &[
            Step { writes: &[Write("comes", Some((PREFIX, OTHER)))], answer: Some(OTHER) },
            Step { writes: &[Write("comes", None)], answer: None },
        ],
    },
    // A more specific rule comes and goes above another route.
    Host {
        name: "falls.test",
        steps: &[
            Step { writes: &[Write("falls", Some((PREFIX, ONE))), Write("above", None)], answer: Some(ONE) },
            Step { writes: &[Write("above", Some((EXACT, OTHER)))], answer: Some(OTHER) },
        ],
    },
    // Of two routes alike, the older one goes. The host is never without one.
    Host {
        name: "passes.test",
        steps: &[
            Step { writes: &[Write("left", Some((PREFIX, ONE))), Write("right", None)], answer: Some(ONE) },
            Step { writes: &[Write("right", Some((PREFIX, OTHER))), Write("left", None)], answer: Some(OTHER) },
        ],
    },
];

/// Requests of a host, and the step it is at.
#[derive(Debug, Default)]
struct Progress {
    /// Twice the number of the step that all see; one more while the next step is written and not yet seen.
    turn: AtomicU64,
    /// Requests sent and answered within one step.
    within: AtomicU64,
    /// All requests.
    all: AtomicU64,
}

/// State of all requests.
struct Run {
    hosts: [Progress; HOSTS.len()],
    left: AtomicU64,
    has_ended: AtomicBool,
}

// === impl Host ===

impl Host {
    fn step(&self, number: u64) -> &Step {
        &self.steps[usize::try_from(number).unwrap_or_default() % self.steps.len()]
    }

    /// Returns whether an answer is that of a step.
    fn is_of(&self, number: u64, answer: &Answer) -> bool {
        match self.step(number).answer {
            None => answer.status == 404 && answer.pod().is_none(),
            Some(service) => {
                // The field must agree with the pod.
                let is_of_number = answer.header(STEP) == Some(number.to_string().as_str());
                answer.status == 200 && served_by(answer.pod(), service) && is_of_number
            }
        }
    }

    /// Writes a step to the API server.
    async fn write(&self, number: u64, routes: &Api<DynamicObject>) -> anyhow::Result<()> {
        for Write(name, to) in self.step(number).writes {
            match to {
                Some((kind, service)) => put(routes, &self.route(number, name, kind, service)).await?,
                None => match routes.delete(name, &DeleteParams::default()).await {
                    // The first step finds none.
                    Err(kube::Error::Api(status)) if status.code == 404 && number == 0 => {}
                    result => drop(result?),
                },
            }
        }
        Ok(())
    }

    fn route(&self, number: u64, name: &str, kind: &str, service: &str) -> Value {
        let mut spec = route(&json!({"name": "g"}), self.name, service);
        spec["rules"][0]["matches"] = json!([{"path": {"type": kind, "value": "/"}}]);
        spec["rules"][0]["filters"] = json!([step_filter(number)]);
        object("HTTPRoute", name, &spec)
    }
}

// === impl Progress ===

impl Progress {
    /// Judges an answer to a request that was sent at the turn `sent`. Returns whether it is right.
    fn judge(&self, host: &Host, sent: u64, answer: &Answer) -> bool {
        let now = self.turn.load(SeqCst);
        self.all.fetch_add(1, SeqCst);
        if sent == now && now.is_multiple_of(2) {
            self.within.fetch_add(1, SeqCst);
        }
        let newest = now.div_ceil(2);
        // A 404 may be that of an earlier step, unless the request was sent after that.
        if !now.is_multiple_of(2) && sent / 2 + 1 == newest && host.is_of(newest, answer) {
            // Another client may have seen it, too.
            self.turn.compare_exchange(now, now + 1, SeqCst, SeqCst).ok();
        }
        (sent / 2..=newest).any(|step| host.is_of(step, answer))
    }

    /// Waits until enough requests were sent within the step. Returns `false` if the requests have ended.
    async fn is_held(&self, run: &Run, host: &Host) -> anyhow::Result<bool> {
        let (began, mut goal) = (Instant::now(), None);
        while !run.has_ended.load(SeqCst) {
            let turn = self.turn.load(SeqCst);
            if turn.is_multiple_of(2) {
                let within = self.within.load(SeqCst);
                if within >= *goal.get_or_insert(within + HELD) {
                    return Ok(true);
                }
            }
            ensure!(began.elapsed() < LIMIT, "`{}`: step {} is not served", host.name, turn.div_ceil(2));
            tokio::time::sleep(LOOK).await;
        }
        Ok(false)
    }
}

// === impl Run ===

impl Run {
    /// Passes through the steps of a host. Returns their number.
    async fn change(&self, number: usize, routes: &Api<DynamicObject>) -> anyhow::Result<u64> {
        let (host, progress) = (&HOSTS[number], &self.hosts[number]);
        let mut steps = 0;
        if host.steps.len() == 1 {
            return Ok(steps);
        }
        while progress.is_held(self, host).await? {
            steps += 1;
            progress.turn.fetch_add(1, SeqCst);
            host.write(steps, routes).await?;
        }
        Ok(steps)
    }

    /// Sends requests for a host until so many were sent in all. Returns the wrong answers.
    async fn ask(&self, to: SocketAddr, number: usize, is_kept: bool) -> anyhow::Result<Vec<String>> {
        let (host, progress) = (&HOSTS[number], &self.hosts[number]);
        let (ask, mut wrong, mut kept) = (Ask::get(host.name, "/"), Vec::new(), None);
        while self.left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
            let sent = progress.turn.load(SeqCst);
            let exchange = async {
                let mut connection = match kept.take() {
                    Some(connection) => connection,
                    None => Connection::open(to, Protocol::Http1, host.name, &Trust::none()).await?,
                };
                let answer = connection.send(&ask).await?;
                kept = Some(connection).filter(|_| is_kept);
                anyhow::Ok(answer)
            };
            match exchange.await {
                Ok(answer) if progress.judge(host, sent, &answer) => {}
                Ok(answer) => {
                    let (pod, field) = (answer.pod(), answer.header(STEP));
                    let now = progress.turn.load(SeqCst);
                    wrong
                        .push(format!("{}: {} from {pod:?} with {field:?}, {sent} to {now}", host.name, answer.status));
                }
                Err(error) => wrong.push(format!("{}: {error:#}", host.name)),
            }
        }
        Ok(wrong)
    }
}

/// Writes the first step of each host, and waits until it is served.
fn begin(stage: &Stage, scope: &Scope<'_>, to: SocketAddr) -> anyhow::Result<()> {
    stage.cluster.control()?.run(|| {
        block_on(async {
            let routes = &api(scope, "HTTPRoute").await?;
            try_join_all(HOSTS.iter().map(|host| host.write(0, routes))).await.map(drop)
        })
    })?;
    for host in &HOSTS {
        until(&format!("{} is served", host.name), || {
            let answer = stage.try_ask(to, Protocol::Http1, &Trust::none(), &Ask::get(host.name, "/"));
            let answer = answer.map_err(|error| format!("{error:#}"))?;
            if host.is_of(0, &answer) { Ok(()) } else { Err(answer.status.to_string()) }
        });
    }
    Ok(())
}

#[test]
fn no_answer_is_wrong_while_routes_come_change_and_go() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let scope = stage.scope("gateway-changes");
    run(&scope, &[ONE, OTHER]);
    let to = programmed(&scope);
    begin(stage, &scope, to).expect("the first steps are served");
    let requests = number("XDP_INGRESS_REQUESTS", 10_000);
    let run = Run { hosts: Default::default(), left: AtomicU64::new(requests), has_ended: AtomicBool::new(false) };
    let control = stage.cluster.control().expect("the control plane's namespace");
    let began = Instant::now();
    let (steps, wrong) = std::thread::scope(|threads| {
        let changing = threads.spawn(|| {
            let steps = control.run(|| {
                block_on(async {
                    let routes = &api(&scope, "HTTPRoute").await?;
                    try_join_all((0..HOSTS.len()).map(|number| run.change(number, routes))).await
                })
            });
            if steps.is_err() {
                run.left.store(0, SeqCst);
            }
            steps
        });
        let wrong = stage.client.run(|| {
            let clients = (0..HOSTS.len() * CLIENTS).map(|client| {
                let is_kept = client / HOSTS.len() + 1 < CLIENTS;
                run.ask(to, client % HOSTS.len(), is_kept)
            });
            block_on(try_join_all(clients))
        });
        run.has_ended.store(true, SeqCst);
        (changing.join().expect("no panic").expect("routes change"), wrong.expect("requests are sent").concat())
    });
    println!(
        "{requests} requests in {:?} during {} changes of routes, {} wrong",
        began.elapsed(),
        steps.iter().sum::<u64>(),
        wrong.len()
    );
    for ((host, progress), steps) in HOSTS.iter().zip(&run.hosts).zip(&steps) {
        let (all, within) = (progress.all.load(SeqCst), progress.within.load(SeqCst));
        println!("  {}: {steps} changes, {all} answers, {within} of them within one step", host.name);
        assert!(*steps > 0 || host.steps.len() == 1, "{}: nothing changed meanwhile", host.name);
    }
    assert!(wrong.is_empty(), "{} wrong, as {:#?}", wrong.len(), &wrong[..wrong.len().min(SHOWN)]);
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};
    use ingress_lab::{echo::POD_HEADER, pattern::Check};

    use super::*;

    fn answer(step: Option<(&str, &str)>) -> Answer {
        let mut headers = HeaderMap::new();
        if let Some((number, service)) = step {
            headers.insert(POD_HEADER, format!("{service}-1").parse().expect("a value"));
            headers.insert(STEP, number.parse().expect("a value"));
        }
        let status = if step.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND };
        Answer { status, headers, body: Check::default(), text: Vec::new() }
    }

    #[test]
    fn answers_of_two_steps_are_right_only_between_them() {
        let [_, changes, comes, ..] = &HOSTS;
        let [first, second, third] = [Some(("0", ONE)), Some(("1", OTHER)), Some(("2", ONE))];
        // Turn at which the request was sent, turn at which it is answered, answer, right, turn afterwards.
        let cases = [
            (changes, 0, 0, first, true, 0),
            (changes, 0, 0, second, false, 0),
            (changes, 0, 0, None, false, 0),
            (changes, 0, 1, first, true, 1),
            (changes, 0, 1, second, true, 2),
            (changes, 1, 1, second, true, 2),
            (changes, 1, 1, None, false, 1),
            (changes, 1, 1, Some(("1", ONE)), false, 1),
            (changes, 1, 2, first, true, 2),
            (changes, 2, 2, first, false, 2),
            (changes, 2, 3, first, false, 3),
            (changes, 2, 3, second, true, 3),
            (changes, 3, 3, third, true, 4),
            (comes, 0, 0, None, false, 0),
            (comes, 0, 1, None, true, 2),
            (comes, 2, 3, None, true, 3),
            // The 404 of an earlier step is no sign that the new one is served.
            (comes, 2, 5, None, true, 5),
        ];
        for (host, sent, now, step, is_right, after) in cases {
            let progress = Progress { turn: now.into(), ..Progress::default() };
            let found = progress.judge(host, sent, &answer(step));
            let case = format!("{}: {sent} to {now}, {step:?}", host.name);
            assert_eq!((found, progress.turn.load(SeqCst)), (is_right, after), "{case}");
        }
    }
}
