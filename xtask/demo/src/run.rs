//! Performs the steps: sends, compares each answer with what the step expects, and keeps the client's count.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    time::{Duration, Instant},
};

use super::{
    stage::Stage,
    steps::{Asked, Connections, Expect, Step, To},
    tally::Tally,
};
use ingress_lab::{
    client::{Answer, Ask, Connection, Protocol, Trust, block_on},
    topology::Family,
};

/// Result of one step.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) requests: u64,
    pub(super) connections: u64,
    pub(super) took: Duration,
    pub(super) problems: Vec<String>,
}

/// Runs one step from the namespace that it names.
pub(super) fn perform(stage: &Stage, step: &Step, tally: &mut Tally) -> Outcome {
    let began = Instant::now();
    let mut outcome = Outcome::default();
    let mut run = Run {
        step,
        addr: stage.addr(step.to, step.family, step.protocol),
        trust: &stage.trust,
        tally,
        outcome: &mut outcome,
    };
    let result = stage.place(step.from).run(|| block_on(run.all()));
    if let Err(error) = result {
        outcome.problems.push(format!("{error:#}"));
    }
    outcome.took = began.elapsed();
    outcome
}

struct Run<'a> {
    step: &'a Step,
    addr: SocketAddr,
    trust: &'a Trust,
    tally: &'a mut Tally,
    outcome: &'a mut Outcome,
}

impl Run<'_> {
    async fn all(&mut self) -> anyhow::Result<()> {
        let mut kept = None;
        for asked in self.step.asks {
            let mut pods = BTreeSet::new();
            for _ in 0..asked.times {
                let mut connection = match kept.take() {
                    Some(connection) => connection,
                    None => self.open(asked.host).await?,
                };
                let answer = connection.send(&ask(asked)).await?;
                self.take(asked, &answer, connection.local);
                pods.extend(answer.pod().map(str::to_owned));
                match self.step.connections {
                    Connections::One => kept = Some(connection),
                    Connections::EachItsOwn => connection.close().await?,
                }
            }
            self.check_spread(asked, &pods);
        }
        if let Some(connection) = kept {
            connection.close().await?;
        }
        Ok(())
    }

    async fn open(&mut self, host: &str) -> anyhow::Result<Connection> {
        let connection = Connection::open(self.addr, self.step.protocol, host, self.trust).await?;
        self.outcome.connections += 1;
        self.tally.connection(self.step.from, self.step.to);
        Ok(connection)
    }

    /// Counts an answer and compares it with the expected one.
    fn take(&mut self, asked: &Asked, answer: &Answer, local: SocketAddr) {
        self.outcome.requests += 1;
        let server = answer.pod().unwrap_or("the proxy");
        match self.step.to {
            To::Proxy => {
                let (sent, received) = (asked.upload, answer.body.received());
                self.tally.answer(asked.counted_as, server, answer.status.as_u16(), sent, received);
            }
            To::FirstPod => self.tally.served("(past the node)", server),
        }
        let mut problems = problems(asked, answer);
        if self.step.to == To::Proxy && matches!(asked.expect, Expect::Served(_)) && problems.is_empty() {
            problems.extend(forwarded(asked, answer, self.addr, local, self.step.protocol));
        }
        let name = format!("{}{}", asked.host, asked.path);
        self.outcome.problems.extend(problems.into_iter().map(|problem| format!("{name}: {problem}")));
    }

    /// Checks the spread over pods. Round robin over one connection reaches every pod; over several connections each
    /// worker has its own round.
    fn check_spread(&mut self, asked: &Asked, seen: &BTreeSet<String>) {
        let Expect::Served(pods) = asked.expect else { return };
        let enough = self.step.connections == Connections::One && asked.times as usize >= pods.len();
        for pod in pods.iter().filter(|pod| enough && !seen.contains(**pod)) {
            self.outcome.problems.push(format!("{}{}: `{pod}` got no request", asked.host, asked.path));
        }
    }
}

fn ask(asked: &Asked) -> Ask {
    match asked.upload {
        0 => Ask::get(asked.host, asked.path),
        bytes => Ask::upload(asked.host, asked.path, bytes),
    }
}

/// Returns the differences between an answer and the expected one.
fn problems(asked: &Asked, answer: &Answer) -> Vec<String> {
    let status = answer.status.as_u16();
    let expected = if let Expect::OwnAnswer(expected) = asked.expect { expected } else { 200 };
    if status != expected {
        let text = String::from_utf8_lossy(&answer.text[..answer.text.len().min(200)]).trim().to_owned();
        return vec![format!("status {status} instead of {expected}: {text}")];
    }
    let mut problems = Vec::new();
    match asked.expect {
        Expect::Served(pods) => {
            if !answer.pod().is_some_and(|pod| pods.contains(&pod)) {
                problems.push(format!("answered by `{}`", answer.pod().unwrap_or("the proxy")));
            }
        }
        Expect::Received { pods, path, protocol, fields } => {
            let seen = answer.json().unwrap_or_default();
            if !answer.pod().is_some_and(|pod| pods.contains(&pod)) {
                problems.push(format!("answered by `{}`", answer.pod().unwrap_or("the proxy")));
            }
            let mut compare = |name: &str, found: Option<&str>, expected: &str| {
                if found != Some(expected) {
                    problems
                        .push(format!("the pod got `{name}: {}` instead of `{expected}`", found.unwrap_or("(none)")));
                }
            };
            compare("path", seen["path"].as_str(), path);
            compare("protocol", seen["protocol"].as_str(), protocol);
            for (name, value) in fields {
                compare(name, seen["headers"][name].as_str(), value);
            }
        }
        Expect::Pattern(len) => {
            if answer.body.received() != len || !answer.body.intact() {
                let state = if answer.body.intact() { "intact" } else { "damaged" };
                problems.push(format!("{} of {len} bytes, {state}", answer.body.received()));
            }
        }
        Expect::Receipt => {
            let receipt = answer.json().unwrap_or_default();
            if receipt["received"].as_u64() != Some(asked.upload) || receipt["intact"].as_bool() != Some(true) {
                problems.push(format!("of {} bytes sent the pod got {}", asked.upload, receipt["received"]));
            }
        }
        Expect::OwnAnswer(_) => {
            if let Some(pod) = answer.pod() {
                problems.push(format!("the request reached `{pod}`"));
            }
            let location = format!("https://{}", asked.host);
            if status == 308 && !answer.header("location").is_some_and(|to| to.starts_with(&location)) {
                problems.push(format!("redirected to {:?}", answer.header("location")));
            }
        }
    }
    problems
}

/// Checks the forwarding headers that the pod received against the real client; returns the differences.
fn forwarded(asked: &Asked, answer: &Answer, to: SocketAddr, local: SocketAddr, protocol: Protocol) -> Vec<String> {
    let seen = answer.json().unwrap_or_default();
    let scheme = if protocol == Protocol::Http1 { "http" } else { "https" };
    let expected = [
        ("host", asked.host.to_owned()),
        ("x-forwarded-for", local.ip().to_string()),
        ("x-forwarded-proto", scheme.to_owned()),
        ("x-forwarded-port", to.port().to_string()),
    ];
    let differs = |(name, expected): (&str, String)| {
        let found = &seen["headers"][name];
        (found.as_str() != Some(&expected)).then(|| format!("the pod got `{name}: {found}` instead of `{expected}`"))
    };
    expected.into_iter().filter_map(differs).collect()
}

/// Returns a label such as `HTTP/2, IPv6`.
pub(super) fn kind(step: &Step, has_v6: bool) -> String {
    let protocol = match step.protocol {
        Protocol::Http1 => "HTTP",
        Protocol::Https1 => "HTTPS",
        Protocol::Https2 => "HTTP/2",
    };
    let family = if step.family == Family::V6 && has_v6 { "IPv6" } else { "IPv4" };
    format!("{protocol:<6} {family}")
}
