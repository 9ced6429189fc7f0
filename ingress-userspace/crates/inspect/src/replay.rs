//! The answers of a route table to requests of an access log.
//!
//! The lookup and the filters are those of the request path. Some filters need facts that a log does not have: whether a
//! client authenticated, how many requests it sent before, whether its certificate was valid. They are taken to let the
//! request through, and [`Replayed::may_answer`] tells which statuses they could have answered. A rule that asks about a
//! field which the log does not have makes no answer ([`ReplayedAnswer::Undecided`]).

use std::{
    borrow::Cow,
    collections::HashMap,
    net::{IpAddr, Ipv4Addr},
};

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use ingress_model::{
    Action, Filter, HeaderText, Host, HostPattern, RequestSubject, RouteTable, Rule, UpstreamKey, Variable,
    route::filter::{Edits, Shown, Subject, Verdict, apply, undecided_by},
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
    /// The target as the client sent it: path and query, a whole URL, or `*`.
    pub target: &'l str,
    /// Names and values of the fields that the request has, of those that the log tells.
    pub fields: Vec<(String, String)>,
    /// The client's address; `None` if the log does not have it.
    pub client: Option<IpAddr>,
}

/// Answers to requests of a log.
pub struct Replay<'t> {
    table: &'t RouteTable,
    /// Fields that the log tells of each request.
    told: Vec<HeaderName>,
    /// Lookups by pattern, made when they are first needed.
    lookups: HashMap<Option<HostPattern>, Lookup<'t>>,
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
    /// This controller answers with a status from 200 to 299, and perhaps a text, as a rule demands.
    Response(u16),
    /// An error of this controller answers, with the reason. It has no part of the request.
    Refused(u16, Cow<'static, str>),
    /// A preflight of CORS gets 204.
    Preflight,
    /// A pod answers: the connection is passed through.
    Passthrough,
    /// The log does not tell enough, with the reason.
    Undecided(Cow<'static, str>),
}

/// Facts about a request that the log tells.
#[derive(Clone, Copy)]
struct Told<'r> {
    fields: &'r [HeaderName],
    client: bool,
}

// === impl Replay ===

impl<'t> Replay<'t> {
    /// Returns a replay of a log that tells the fields `told` of each request.
    #[must_use]
    pub fn new<'n>(table: &'t RouteTable, told: impl IntoIterator<Item = &'n str>) -> Self {
        let told = told.into_iter().filter_map(|name| name.try_into().ok()).collect();
        Self { table, told, lookups: HashMap::new() }
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
        let answered = |answer| Replayed { host: pattern.clone(), rule: None, answer };
        let refused = |status: StatusCode, reason| answered(ReplayedAnswer::Refused(status.as_u16(), reason));
        if request.is_secure && lookup.passes_tls() {
            return answered(ReplayedAnswer::Passthrough);
        }
        let Some(host) = host.or_else(|| Host::parse("_").ok()) else {
            return refused(StatusCode::BAD_REQUEST, "it names no host".into());
        };
        let Ok(method) = Method::from_bytes(request.method.as_bytes()) else {
            return refused(StatusCode::BAD_REQUEST, "its method is invalid".into());
        };
        if method == Method::TRACE {
            return refused(StatusCode::METHOD_NOT_ALLOWED, "TRACE is not allowed".into());
        }
        let (path, query) = path_and_query(request.target);
        let (path, found) = match path {
            "*" if method == Method::OPTIONS => (Cow::Borrowed(path), lookup.of_server(&host)),
            path => match lookup.find(&host, path) {
                Ok(found) => found,
                Err(path) => return refused(StatusCode::BAD_REQUEST, path.kind()),
            },
        };
        let rule = match found {
            Found::Rule(rule) | Found::Fallback(rule) => rule,
            Found::Nothing => return answered(default_answer(table)),
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
            certificate_fields: "",
            client: request.client.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            https_port: 443,
            listener_port: if request.is_secure { 443 } else { 80 },
            clock: std::time::Duration::default,
        };
        let told = Told { fields: &self.told, client: request.client.is_some() };
        let answer = filtered(rule, &subject, told).unwrap_or_else(|| action(&rule.action));
        Replayed { host: pattern, rule: Some(rule), answer }
    }
}

/// Returns the path and the query of a request target (RFC 9112, section 3.2). The query begins with its `?`. The empty
/// path of a whole URL is `/`. `*` is returned as it is.
#[must_use]
pub fn path_and_query(target: &str) -> (&str, &str) {
    let is_scheme = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    let url = target.split_once("://").filter(|(scheme, _)| !scheme.is_empty() && is_scheme(scheme));
    let target = url.map_or(target, |(_, rest)| rest.find(['/', '?']).map_or("", |at| &rest[at..]));
    let (path, query) = target.split_at(target.find('?').unwrap_or(target.len()));
    (if path.is_empty() && url.is_some() { "/" } else { path }, query)
}

/// Returns the answer of a filter; `None` if all let the request through.
fn filtered<'t>(rule: &'t Rule, subject: &Subject<'_>, told: Told<'_>) -> Option<ReplayedAnswer<'t>> {
    let mut edits = Edits::default();
    let filters = rule.filters.iter().filter(|filter| match filter {
        Filter::Access(_) => told.client,
        // A host of which a part is missing says little about the one that the client asked for.
        Filter::UpstreamHost(HeaderText::Template(host)) => host.variables().all(|variable| told.variable(variable)),
        _ => true,
    });
    let undecided = |filter: &Filter| {
        let Filter::RequestRules(rules) = filter else { return None };
        let asked = undecided_by(rules, subject, |asked| told.text(asked))?;
        Some(ReplayedAnswer::Undecided(
            format!("the rule asks about {}, which the log does not have", name(asked)).into(),
        ))
    };
    filters.into_iter().find_map(|filter| {
        undecided(filter).or_else(|| match apply(filter, subject, &mut edits) {
            Verdict::Continue | Verdict::Limit(_) | Verdict::Authenticate(_) => None,
            Verdict::Redirect { status, location: _ } => Some(ReplayedAnswer::Redirect(status)),
            Verdict::Unproven(_) => {
                let reason = "the rule requires client certificates, and the request came over plain HTTP";
                Some(ReplayedAnswer::Refused(403, reason.into()))
            }
            Verdict::Deny => Some(ReplayedAnswer::Refused(403, "the client's address is not allowed".into())),
            Verdict::Refuse { status } => {
                Some(ReplayedAnswer::Refused(status, "`deny-paths` or `redirect-rules` refuse it".into()))
            }
            Verdict::Respond { status, body: _ } => Some(ReplayedAnswer::Response(status)),
            Verdict::Preflight => Some(ReplayedAnswer::Preflight),
        })
    })
}

/// Returns the text of a request that a condition asks about, in words.
fn name(asked: &RequestSubject) -> String {
    match asked {
        RequestSubject::Header(name) | RequestSubject::Variable(Variable::Header(name)) => {
            format!("the field `{name}`")
        }
        RequestSubject::Variable(Variable::Cookie(name)) => format!("the cookie `{name}`"),
        RequestSubject::Variable(Variable::ClientAddress) => "the client's address".to_owned(),
        RequestSubject::Path | RequestSubject::Variable(_) => "a part of the request".to_owned(),
    }
}

/// Returns the answer of the action of a rule.
fn action(action: &Action) -> ReplayedAnswer<'_> {
    match action {
        Action::Redirect(redirect) => ReplayedAnswer::Redirect(redirect.status),
        Action::Refuse(reason) => ReplayedAnswer::Refused(status_of(*reason), reason.to_string().into()),
        // Those for clients over TLS have the same pods.
        Action::Split(split) => {
            let canaries = split.canaries.iter().map(|canary| &canary.upstream);
            ReplayedAnswer::Upstream(std::iter::once(&split.main).chain(canaries).collect())
        }
        Action::Forward(_) | Action::Weighted(_) => ReplayedAnswer::Upstream(action.upstreams().collect()),
    }
}

/// Returns the answer to requests without a rule.
fn default_answer(table: &RouteTable) -> ReplayedAnswer<'_> {
    match &table.default {
        Some(default) => match action(default) {
            ReplayedAnswer::Upstream(upstreams) => ReplayedAnswer::DefaultBackend(upstreams),
            other => other,
        },
        None => ReplayedAnswer::Refused(404, "no rule matches".into()),
    }
}

fn fields(known: &[(String, String)]) -> HeaderMap {
    let field =
        |(name, value): &(String, String)| Some((HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?));
    known.iter().filter_map(field).collect()
}

// === impl Told ===

impl Told<'_> {
    fn text(self, asked: &RequestSubject) -> bool {
        match asked {
            RequestSubject::Path => true,
            RequestSubject::Header(name) => self.fields.contains(name),
            RequestSubject::Variable(variable) => self.variable(variable),
        }
    }

    fn variable(self, asked: &Variable) -> bool {
        match asked {
            Variable::Header(name) => self.fields.contains(name),
            Variable::Cookie(_) => self.fields.contains(&header::COOKIE),
            Variable::RemoteUser => self.fields.contains(&header::AUTHORIZATION),
            Variable::ClientAddress => self.client,
            Variable::CertificateSubject | Variable::CertificateIssuer | Variable::CertificateResult => false,
            _ => true,
        }
    }
}

// === impl Replayed ===

impl Replayed<'_> {
    /// Returns whether a filter of the rule may answer a request of this method with `status`, although the log does not
    /// tell. Such filters are authentication, limits, client certificates, the size of a body, and CORS: the fields of a
    /// preflight are rarely logged.
    #[must_use]
    pub fn may_answer(&self, method: &str, status: u16) -> bool {
        let Some(rule) = self.rule else { return false };
        let has = |wanted: fn(&Filter) -> bool| rule.filters.iter().any(wanted);
        match status {
            204 => method == Method::OPTIONS.as_str() && has(|filter| matches!(filter, Filter::Cors(_))),
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
