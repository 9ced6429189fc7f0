//! Compares the answers in a log with those of the route table, and counts the differences by their cause.

use std::collections::{BTreeMap, HashMap};

use ingress_control::cluster::Cluster;
use ingress_inspect::{LoggedRequest, Replay, Replayed, ReplayedAnswer, without_queries};
use ingress_model::{RouteTable, UpstreamKey};
use serde::Serialize;

use super::line::{LogLine, Unreadable};

/// Maximum number of causes that are listed; requests of further ones are only counted.
const CAUSES_MAX: usize = 1_000;
/// Characters of a path in an example.
const EXAMPLE_MAX: usize = 200;
/// Name of the upstream for requests without a rule, in ingress-nginx.
const DEFAULT_UPSTREAM: &str = "upstream-default-backend";

/// The result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ShadowReport {
    /// Number of lines; each is exactly one of the next three.
    pub lines: u64,
    pub alike: u64,
    pub different: u64,
    /// Lines about which nothing can be said, by reason.
    pub undecided: BTreeMap<String, u64>,
    /// Differences by cause, the most frequent first.
    pub differences: Vec<Difference>,
    /// Different requests whose cause is not listed, because there are too many causes.
    pub unlisted: u64,
}

/// Requests that are answered differently for one cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub count: u64,
    /// The host of the configuration; `*` for requests that no host matches.
    pub host: String,
    /// The Ingress whose rule answers here, as `namespace/name`; empty if none does.
    pub ingress: String,
    pub nginx: String,
    pub here: String,
    /// The first such request, without its query, and its line.
    pub example: String,
    pub line: u64,
}

/// A replay in progress.
pub(super) struct Comparison<'t> {
    replay: Replay<'t>,
    names: UpstreamNames,
    tells_pods: bool,
    report: ShadowReport,
    causes: HashMap<Cause, usize>,
}

/// Host, Ingress, nginx' answer and the one here.
type Cause = (String, String, String, String);

/// Names of upstreams in ingress-nginx: `namespace-service-port`, where the port is a name or a number.
struct UpstreamNames(HashMap<String, UpstreamKey>);

/// An answer of nginx.
enum Logged<'l> {
    /// A pod of this upstream answered, if the log names it.
    Pod(Option<&'l str>),
    /// nginx itself.
    Own,
}

// === impl Comparison ===

impl<'t> Comparison<'t> {
    pub(super) fn new(table: &'t RouteTable, cluster: &Cluster, tells_pods: bool) -> Self {
        let names = UpstreamNames::of(cluster);
        let replay = Replay::new(table);
        Self { replay, names, tells_pods, report: ShadowReport::default(), causes: HashMap::new() }
    }

    /// Adds a line.
    pub(super) fn add(&mut self, line: Result<LogLine<'_>, Unreadable>) {
        self.report.lines += 1;
        let line = match line {
            Ok(line) => line,
            Err(reason) => return self.undecided(reason.as_str()),
        };
        // nginx refuses these before it has a rule, and so does this controller.
        if matches!(line.status, 400 | 408 | 414 | 431 | 444 | 494) && line.upstream.is_none() {
            return self.undecided("nginx refused the request before it had a rule");
        }
        let replayed = self.replayed(&line, line.is_secure.unwrap_or(true));
        if self.is_same(&line, &replayed) {
            self.report.alike += 1;
            return;
        }
        // Without `$scheme`, both are possible.
        if line.is_secure.is_none() {
            let plain = self.replayed(&line, false);
            if self.is_same(&line, &plain) {
                self.report.alike += 1;
                return;
            }
        }
        self.different(&line, &replayed);
    }

    pub(super) fn finish(mut self) -> ShadowReport {
        self.report.differences.sort_by(|a, b| b.count.cmp(&a.count).then(a.line.cmp(&b.line)));
        self.report
    }

    fn undecided(&mut self, reason: &str) {
        match self.report.undecided.get_mut(reason) {
            Some(count) => *count += 1,
            None => drop(self.report.undecided.insert(reason.to_owned(), 1)),
        }
    }

    fn replayed(&mut self, line: &LogLine<'_>, is_secure: bool) -> Replayed<'t> {
        self.replay.answer(&LoggedRequest {
            host: line.host.as_deref().unwrap_or_default(),
            is_secure,
            method: &line.method,
            target: &line.target,
            fields: line.headers.clone(),
            client: line.client.as_deref().and_then(|client| client.parse().ok()),
        })
    }

    /// Returns nginx' answer. Without `$upstream_addr`, statuses that nginx has of its own are taken for its own.
    fn logged<'l>(&self, line: &'l LogLine<'_>) -> Logged<'l> {
        let is_pod = match (self.tells_pods, &line.upstream_address) {
            (true, address) => address.is_some(),
            (false, _) => {
                line.upstream.is_some()
                    && !matches!(line.status, 301 | 302 | 307 | 308 | 401 | 403 | 404 | 413 | 429 | 499 | 502..=504)
            }
        };
        if is_pod { Logged::Pod(line.upstream.as_deref()) } else { Logged::Own }
    }

    fn is_same(&self, line: &LogLine<'_>, replayed: &Replayed<'_>) -> bool {
        let leads_to = |name: &str, upstreams: &[&UpstreamKey]| upstreams.iter().any(|key| self.names.is(name, key));
        match (self.logged(line), &replayed.answer) {
            (_, ReplayedAnswer::Passthrough) => true,
            (Logged::Pod(Some(DEFAULT_UPSTREAM)), ReplayedAnswer::DefaultBackend(_)) => true,
            (Logged::Pod(Some(DEFAULT_UPSTREAM)), ReplayedAnswer::Refused(status, _)) => *status == line.status,
            (Logged::Pod(None), ReplayedAnswer::Upstream(_) | ReplayedAnswer::DefaultBackend(_)) => true,
            (Logged::Pod(Some(name)), ReplayedAnswer::Upstream(keys) | ReplayedAnswer::DefaultBackend(keys)) => {
                leads_to(name, keys)
            }
            (Logged::Pod(_), _) => false,
            // The client went, or the pods failed: only the choice of the rule can be compared.
            (Logged::Own, ReplayedAnswer::Upstream(keys)) if matches!(line.status, 499 | 500 | 502..=504) => {
                line.upstream.as_deref().is_none_or(|name| leads_to(name, keys))
            }
            (Logged::Own, ReplayedAnswer::DefaultBackend(_)) => matches!(line.status, 404 | 499 | 502..=504),
            (Logged::Own, ReplayedAnswer::Redirect(status)) => *status == line.status,
            (Logged::Own, ReplayedAnswer::Refused(status, _)) => {
                *status == line.status || replayed.may_answer(line.status)
            }
            (Logged::Own, ReplayedAnswer::Preflight) => line.status == 204,
            (Logged::Own, ReplayedAnswer::Upstream(_)) => replayed.may_answer(line.status),
        }
    }

    fn different(&mut self, line: &LogLine<'_>, replayed: &Replayed<'_>) {
        self.report.different += 1;
        let host = replayed.host.as_ref().map_or_else(|| "*".to_owned(), ToString::to_string);
        let ingress = replayed.rule.map_or_else(String::new, |rule| rule.owner.to_string());
        let nginx = match self.logged(line) {
            Logged::Pod(Some(DEFAULT_UPSTREAM)) => "default backend".to_owned(),
            Logged::Pod(Some(name)) => format!("pod of {name}"),
            Logged::Pod(None) => "a pod".to_owned(),
            Logged::Own => match &line.upstream {
                Some(name) if matches!(line.status, 499 | 500 | 502..=504) => format!("{} for {name}", line.status),
                _ => line.status.to_string(),
            },
        };
        let here = match &replayed.answer {
            ReplayedAnswer::Upstream(keys) => format!("pod of {}", joined(keys)),
            ReplayedAnswer::DefaultBackend(keys) => format!("default backend, {}", joined(keys)),
            ReplayedAnswer::Redirect(status) => format!("redirect {status}"),
            ReplayedAnswer::Refused(status, reason) => format!("{status}: {reason}"),
            ReplayedAnswer::Preflight => "204 for a preflight".to_owned(),
            ReplayedAnswer::Passthrough => "passthrough".to_owned(),
        };
        let cause = (host, ingress, nginx, here);
        if let Some(at) = self.causes.get(&cause) {
            self.report.differences[*at].count += 1;
            return;
        }
        if self.causes.len() == CAUSES_MAX {
            self.report.unlisted += 1;
            return;
        }
        self.causes.insert(cause.clone(), self.report.differences.len());
        let (host, ingress, nginx, here) = cause;
        let target: String = without_queries(&line.target).chars().take(EXAMPLE_MAX).collect();
        let example = format!("{} {}{target}", line.method, line.host.as_deref().unwrap_or_default());
        self.report.differences.push(Difference {
            count: 1,
            host,
            ingress,
            nginx,
            here,
            example,
            line: self.report.lines,
        });
    }
}

fn joined(keys: &[&UpstreamKey]) -> String {
    let names: Vec<_> = keys
        .iter()
        .map(|key| match key.service() {
            Some((service, port)) => format!("{}/{service}:{port}", key.namespace()),
            None => key.to_string(),
        })
        .collect();
    names.join(" or ")
}

// === impl UpstreamNames ===

impl UpstreamNames {
    fn of(cluster: &Cluster) -> Self {
        let mut names = HashMap::new();
        for (name, stored) in cluster.services.iter() {
            for port in &stored.object.ports {
                let (namespace, service) = (&name.namespace, &name.name);
                let number = port.port.to_string();
                for port in [Some(number.as_str()), port.name.as_deref()].into_iter().flatten() {
                    names
                        .insert(format!("{namespace}-{service}-{port}"), UpstreamKey::new(namespace, service, &number));
                }
            }
        }
        Self(names)
    }

    /// Returns whether ingress-nginx calls the upstream `name`.
    fn is(&self, name: &str, key: &UpstreamKey) -> bool {
        let Some((service, port)) = key.service() else { return false };
        let text = format!("{}-{service}-{port}", key.namespace());
        match (self.0.get(name), self.0.get(&text)) {
            (Some(one), Some(other)) => one == other,
            _ => text == name,
        }
    }
}
