//! The answers of a route table to requests of an access log.
//!
//! The lookup and the filters are those of the request path. Some filters need facts that a log does not have: whether a
//! client authenticated, how many requests it sent before, whether its certificate was valid. They are taken to let the
//! request through, and [`Replayed::may_answer`] tells which statuses they could have answered.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr},
};

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use ingress_model::{
    Action, Filter, Host, HostPattern, RouteTable, Rule, UpstreamKey,
    route::filter::{Edits, Shown, Subject, Verdict, apply},
};

use crate::{
    lookup::{Found, Lookup},
    route::status_of,
};

/// A request, as an access log tells of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoggedRequest<'l> {
    /// Host, with or without a port.
    pub host: &'l str,
    /// Whether the client used TLS.
    pub is_secure: bool,
    pub method: &'l str,
    /// Path and query as the client sent them.
    pub target: &'l str,
    /// Names and values of known fields.
    pub fields: Vec<(String, String)>,
    /// The client's address; `None` if the log does not have it.
    pub client: Option<IpAddr>,
}

/// Answers to requests of a log.
pub struct Replay<'t> {
    table: &'t RouteTable,
    /// Lookups by pattern, made when they are first needed; `None` inside is a host with TLS passthrough.
    lookups: HashMap<Option<HostPattern>, Option<Lookup<'t>>>,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed<'t> {
    /// The host of the table whose rules were asked; `None` if none matches.
    pub host: Option<HostPattern>,
    /// The rule that answers.
    pub rule: Option<&'t Rule>,
    pub answer: ReplayedAnswer<'t>,
}

/// How a request is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayedAnswer<'t> {
    /// A pod answers, of one of these upstreams.
    Upstream(Vec<&'t UpstreamKey>),
    /// A pod of the default backend answers, because no rule matches.
    DefaultBackend(Vec<&'t UpstreamKey>),
    /// A redirect answers.
    Redirect(u16),
    /// An error of this controller answers, with the reason.
    Refused(u16, String),
    /// A preflight of CORS gets 204.
    Preflight,
    /// A pod answers: the connection is passed through.
    Passthrough,
}

// === impl Replay ===

impl<'t> Replay<'t> {
    #[must_use]
    pub fn new(table: &'t RouteTable) -> Self {
        Self { table, lookups: HashMap::new() }
    }

    /// Returns the answer to `request`.
    #[must_use]
    pub fn answer(&mut self, request: &LoggedRequest<'_>) -> Replayed<'t> {
        let table = self.table;
        let name = request.host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
        let (name, port) = name.map_or((request.host, None), |(name, port)| (name, port.parse().ok()));
        // Addresses, and names that no rule can have, are for rules without a host.
        let host = Host::parse(name).ok();
        let pattern = match &host {
            Some(host) => Lookup::pattern(table, host.as_str()),
            None => Some(HostPattern::Any).filter(|any| table.hosts.contains_key(any)),
        };
        let lookup =
            self.lookups.entry(pattern.clone()).or_insert_with_key(|pattern| Lookup::of(table, pattern.as_ref()));
        let refused = |reason: String| Replayed {
            host: pattern.clone(),
            rule: None,
            answer: ReplayedAnswer::Refused(400, reason),
        };
        let Some(lookup) = lookup else {
            return Replayed { host: pattern, rule: None, answer: ReplayedAnswer::Passthrough };
        };
        let (path, query) = match request.target.split_once('?') {
            Some((path, _)) => (path, &request.target[path.len()..]),
            None => (request.target, ""),
        };
        let Some(host) = host.or_else(|| Host::parse("_").ok()) else { return refused("it names no host".to_owned()) };
        let Ok(method) = Method::from_bytes(request.method.as_bytes()) else {
            return refused("its method is invalid".to_owned());
        };
        let (path, found) = match lookup.find(&host, path) {
            Ok(found) => found,
            Err(reason) => return refused(reason),
        };
        let rule = match found {
            Found::Rule(rule) | Found::Fallback(rule) => rule,
            Found::Nothing => return Replayed { host: pattern, rule: None, answer: default_answer(table) },
        };
        let target = format!("{path}{query}");
        let subject = Subject {
            method: &method,
            host: name,
            port,
            target: &target,
            headers: &fields(&request.fields),
            secure: request.is_secure,
            certificate: Shown::Valid,
            client: request.client.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            https_port: 443,
            listener_port: if request.is_secure { 443 } else { 80 },
        };
        let answer = filtered(rule, &subject, request.client.is_some()).unwrap_or_else(|| action(&rule.action));
        Replayed { host: pattern, rule: Some(rule), answer }
    }
}

/// Returns the answer of a filter; `None` if all let the request through.
fn filtered<'t>(rule: &'t Rule, subject: &Subject<'_>, knows_client: bool) -> Option<ReplayedAnswer<'t>> {
    let mut edits = Edits::default();
    let filters = rule.filters.iter().filter(|filter| knows_client || !matches!(filter, Filter::Access(_)));
    filters.into_iter().find_map(|filter| match apply(filter, subject, &mut edits) {
        Verdict::Continue | Verdict::Limit(_) | Verdict::Authenticate(_) => None,
        Verdict::Redirect { status, location: _ } => Some(ReplayedAnswer::Redirect(status)),
        Verdict::Unproven(_) => {
            let reason = "the rule requires client certificates, and the request came over plain HTTP";
            Some(ReplayedAnswer::Refused(403, reason.to_owned()))
        }
        Verdict::Deny => Some(ReplayedAnswer::Refused(403, "the client's address is not allowed".to_owned())),
        Verdict::Refuse { status } => {
            Some(ReplayedAnswer::Refused(status, "`deny-paths` or `redirect-rules` refuse it".to_owned()))
        }
        Verdict::Preflight => Some(ReplayedAnswer::Preflight),
    })
}

/// Returns the answer of the action of a rule.
fn action(action: &Action) -> ReplayedAnswer<'_> {
    match action {
        Action::Redirect(redirect) => ReplayedAnswer::Redirect(redirect.status),
        Action::Refuse(reason) => ReplayedAnswer::Refused(status_of(*reason), reason.to_string()),
        Action::Forward(_) | Action::Split(_) | Action::Weighted(_) => {
            ReplayedAnswer::Upstream(action.upstreams().collect())
        }
    }
}

/// Returns the answer to requests without a rule.
fn default_answer(table: &RouteTable) -> ReplayedAnswer<'_> {
    match &table.default {
        Some(default) => match action(default) {
            ReplayedAnswer::Upstream(upstreams) => ReplayedAnswer::DefaultBackend(upstreams),
            other => other,
        },
        None => ReplayedAnswer::Refused(404, "no rule matches".to_owned()),
    }
}

fn fields(known: &[(String, String)]) -> HeaderMap {
    let field =
        |(name, value): &(String, String)| Some((HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?));
    known.iter().filter_map(field).collect()
}

// === impl Replayed ===

impl Replayed<'_> {
    /// Returns whether a part of the rule that a log cannot decide about may answer with `status` instead: authentication,
    /// limits, certificates, or the size of a body.
    #[must_use]
    pub fn may_answer(&self, status: u16) -> bool {
        let Some(rule) = self.rule else { return false };
        let has = |wanted: fn(&Filter) -> bool| rule.filters.iter().any(wanted);
        match status {
            // A service for authentication may redirect to a page for logging in, and may answer any of these.
            302 | 401 => has(|filter| matches!(filter, Filter::Authentication(_))),
            403 => has(|filter| {
                matches!(filter, Filter::Authentication(_) | Filter::Access(_) | Filter::ClientCertificate(_))
            }),
            400 => has(|filter| matches!(filter, Filter::ClientCertificate(_))),
            413 => rule.forwarding.body_max.is_some(),
            429 | 503 => has(|filter| matches!(filter, Filter::Limit(_))),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
