//! Compares the answers in a log with those of the route table, and counts the differences by their cause.

use std::collections::{BTreeMap, HashMap};

use ingress_control::translate::Translation;
use ingress_inspect::{LoggedRequest, Replay, Replayed, ReplayedAnswer, path_and_query};
use ingress_model::{Filter, Rule, UpstreamKey};
use serde::Serialize;

use super::{
    line::{LineFormat, LogLine, Unreadable},
    unread::Unread,
    upstreams::{self, UpstreamNames},
};
use crate::check::Installation;

/// Maximum number of causes that are listed; requests of further ones are only counted.
const CAUSES_MAX: usize = 1_000;
/// Characters of a path in an example.
const EXAMPLE_MAX: usize = 200;

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
    unread: Unread<'t>,
    tells_pods: bool,
    /// Whether objects of other namespaces were not read.
    is_partial: bool,
    report: ShadowReport,
    causes: HashMap<Cause, usize>,
}

/// Host, Ingress, nginx' answer and the one here.
type Cause = (String, String, String, String);

/// An answer of nginx.
enum Logged<'l> {
    /// A pod of this upstream answered, if the log names it.
    Pod(Option<&'l str>),
    /// nginx itself.
    Own,
}

// === impl Comparison ===

impl<'t> Comparison<'t> {
    pub(super) fn new(translation: &'t Translation, installation: &Installation, format: &LineFormat) -> Self {
        let Installation { objects, controller: _, is_directory, is_partial } = installation;
        Self {
            replay: Replay::new(&translation.table, format.fields()),
            names: UpstreamNames::of(&objects.cluster),
            unread: Unread::of(translation, *is_directory),
            tells_pods: format.tells_pods(),
            is_partial: *is_partial,
            report: ShadowReport::default(),
            causes: HashMap::new(),
        }
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
        let mut replayed = self.replayed(&line, line.is_secure.unwrap_or(true));
        // Without a scheme, both are possible, except that nginx logs no TLS that it passes through.
        let mut plain = line.is_secure.is_none().then(|| self.replayed(&line, false));
        if replayed.answer == ReplayedAnswer::Passthrough
            && let Some(plain) = plain.take()
        {
            replayed = plain;
        }
        let all = || [Some(&replayed), plain.as_ref()].into_iter().flatten();
        if let Some(reason) = all().find_map(|replayed| self.is_foreign(&line, replayed)) {
            return self.undecided(reason);
        }
        if all().any(|replayed| self.is_same(&line, replayed)) {
            self.report.alike += 1;
            return;
        }
        let reason = all().find_map(|replayed| match &replayed.answer {
            ReplayedAnswer::Undecided(reason) => Some(&**reason),
            ReplayedAnswer::Passthrough => Some("TLS of the host is passed through here, and nginx ended it"),
            _ => self.unread.reason(replayed),
        });
        match reason.map(str::to_owned) {
            Some(reason) => self.undecided(&reason),
            None => self.different(&line, &replayed),
        }
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

    /// Returns why a line is about an Ingress that was not read, if it is.
    fn is_foreign(&self, line: &LogLine<'_>, replayed: &Replayed<'_>) -> Option<&'static str> {
        let is_ours = match &line.upstream {
            _ if !self.is_partial => true,
            Some(name) if !upstreams::is_default(name) => self.names.knows(name),
            _ => replayed.host.is_some(),
        };
        (!is_ours).then_some("another namespace serves the request, and only one is read")
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
            (_, ReplayedAnswer::Passthrough | ReplayedAnswer::Undecided(_)) => false,
            (Logged::Pod(Some(upstreams::DEFAULT)), ReplayedAnswer::DefaultBackend(_)) => true,
            (Logged::Pod(Some(upstreams::DEFAULT)), ReplayedAnswer::Refused(status, _)) => *status == line.status,
            (Logged::Pod(None), ReplayedAnswer::Upstream(_) | ReplayedAnswer::DefaultBackend(_)) => true,
            (Logged::Pod(Some(name)), ReplayedAnswer::Upstream(keys) | ReplayedAnswer::DefaultBackend(keys)) => {
                leads_to(name, keys) || upstreams::is_default(name) && makes_page(replayed.rule, line.status)
            }
            (Logged::Pod(_), _) => false,
            (Logged::Own, ReplayedAnswer::Upstream(keys)) if is_fate(line.status) => {
                replayed.may_answer(&line.method, line.status)
                    || line.upstream.as_deref().is_none_or(|name| leads_to(name, keys))
            }
            (Logged::Own, ReplayedAnswer::DefaultBackend(_)) => line.status == 404 || is_fate(line.status),
            (Logged::Own, ReplayedAnswer::Redirect(status) | ReplayedAnswer::Response(status)) => {
                *status == line.status
            }
            (Logged::Own, ReplayedAnswer::Refused(status, _)) => {
                *status == line.status || replayed.may_answer(&line.method, line.status)
            }
            (Logged::Own, ReplayedAnswer::Preflight) => line.status == 204,
            (Logged::Own, ReplayedAnswer::Upstream(_)) => replayed.may_answer(&line.method, line.status),
        }
    }

    fn different(&mut self, line: &LogLine<'_>, replayed: &Replayed<'_>) {
        self.report.different += 1;
        let host = replayed.host.as_ref().map_or_else(|| "*".to_owned(), ToString::to_string);
        let ingress = replayed.rule.map_or_else(String::new, |rule| rule.owner.to_string());
        let nginx = match self.logged(line) {
            Logged::Pod(Some(upstreams::DEFAULT)) => "default backend".to_owned(),
            Logged::Pod(Some(name)) => format!("pod of {name}"),
            Logged::Pod(None) => "a pod".to_owned(),
            Logged::Own => match &line.upstream {
                Some(name) if is_fate(line.status) => format!("{} for {name}", line.status),
                _ => line.status.to_string(),
            },
        };
        let here = match &replayed.answer {
            ReplayedAnswer::Upstream(keys) => format!("pod of {}", joined(keys)),
            ReplayedAnswer::DefaultBackend(keys) => format!("default backend, {}", joined(keys)),
            ReplayedAnswer::Redirect(status) => format!("redirect {status}"),
            ReplayedAnswer::Response(status) => format!("{status}, as `redirect-rules` demand"),
            ReplayedAnswer::Refused(status, reason) => format!("{status}: {reason}"),
            ReplayedAnswer::Preflight => "204 for a preflight".to_owned(),
            ReplayedAnswer::Passthrough => "passthrough".to_owned(),
            ReplayedAnswer::Undecided(reason) => reason.to_string(),
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
        let (path, query) = path_and_query(&line.target);
        let path: String = path.chars().take(EXAMPLE_MAX).collect();
        let query = if query.is_empty() { "" } else { "?…" };
        let example = format!("{} {}{path}{query}", line.method, line.host.as_deref().unwrap_or_default());
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

/// Returns whether nginx tells by the status that the client went or sent its request too late, or that the pods failed.
/// Only the choice of the rule can be compared then.
fn is_fate(status: u16) -> bool {
    matches!(status, 400 | 408 | 499 | 500 | 502..=504)
}

/// Returns whether the rule has a page in place of a pod's response with this status, or in place of missing pods.
fn makes_page(rule: Option<&Rule>, status: u16) -> bool {
    let mut filters = rule.iter().flat_map(|rule| &rule.filters);
    filters.any(|filter| matches!(filter, Filter::ErrorPages(pages) if pages.replace(status) || pages.stands_in))
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
