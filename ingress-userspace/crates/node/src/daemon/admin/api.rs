//! `/api/v1`: the configuration and the node as JSON, for the commands and the dashboard. Read-only.
//!
//! Lists have the form `{"items": […], "total": n, "offset": n, "limit": n}`; errors have the form `{"error": "…"}`.
//! docs/api.md describes each resource, and a test compares its list with [`RESOURCES`].
//!
//! The API is for people on the node, for those who may forward a port of the pod, and for those who authenticate. It is
//! served on loopback, on the socket of the process, and over TLS ([`super::remote`]). On loopback, the request must
//! address an IP or `localhost`, so that no page in a browser can read it through a name that leads to loopback.
//! Addresses of clients are not shown on loopback, because other pods in the network namespace of the host reach it,
//! too.

mod openapi;

use std::{borrow::Cow, fmt, sync::Arc, time::SystemTime};

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use ingress_cli::counters;
use ingress_control::Outcome;
use ingress_datapath::LimitedClient;
use ingress_inspect::{ProblemDocument, RouteFilter, certificates, explain, routes, timestamp};
use ingress_proxy::{CheckResult, Full, StatsView, UpstreamView};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    AdminSource, Answers, ControlState, HostCounters, Reach, StatusState, WorkerState, answers,
    body::AdminBody,
    query::{PageRange, Query},
    selection::ProblemSelection,
    stream::{self, VIEWERS_MAX},
};
use crate::commands::clients;

/// Prefix of all resources.
const PREFIX: &str = "/api/v1";

/// A resource that is not served.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    #[error("{0}")]
    Forbidden(&'static str),
    #[error("there is no `{0}` here; `{PREFIX}` lists what there is")]
    Unknown(String),
    #[error("{0}")]
    Parameter(String),
    #[error("{VIEWERS_MAX} streams are open; close one")]
    TooManyViewers,
}

/// A resource below [`PREFIX`].
struct Resource {
    /// Its name; with a `/` at the end, names below it are resources, too.
    name: &'static str,
    about: &'static str,
    /// Names of parameters in the query.
    parameters: &'static [&'static str],
    /// Whether the resource has addresses of clients.
    is_private: bool,
    answer: fn(&dyn AdminSource, &str, &Query) -> Result<Value, ApiError>,
}

const RESOURCES: [Resource; 15] = [
    public("openapi.json", "this API as an OpenAPI document", &[], |_, _, _| openapi::document()),
    public("node", "state of this process and its node", &[], |source, _, _| Ok(node(source))),
    public("hosts", "counters of hosts", &["name", "sort", "offset", "limit"], |source, _, query| hosts(source, query)),
    public("hosts/", "one host: counters, routes, certificate, problems", &[], |source, name, _| host(source, name)),
    public(
        "routes",
        "rules in order of precedence",
        &["host", "namespace", "ingress", "offset", "limit"],
        |source, _, query| route_list(source, query),
    ),
    public("explain", "why a URL is served as it is", &["url"], |source, _, query| explanation(source, query)),
    public("upstreams", "health and traffic of upstreams", &["name", "offset", "limit"], |source, _, query| {
        upstreams(source, query)
    }),
    public(
        "problems",
        "problems of objects",
        &["namespace", "reason", "severity", "offset", "limit"],
        |source, _, query| problems(source, query),
    ),
    public("certificates", "certificates, first to expire first", &["offset", "limit"], |source, _, query| {
        let translation = source.translation();
        page(certificates(&translation.table, now()).into_iter(), query)
    }),
    public("changes", "the last 100 changes of the configuration", &[], |source, _, _| Ok(changes(source))),
    public("drops", "packets and bytes by reason, as the kernel counts them", &[], |source, _, _| {
        Ok(counters::totals(source.totals()))
    }),
    public("interfaces", "packets and bytes by interface", &[], |source, _, _| Ok(answers::interfaces(source))),
    public("workers", "threads that serve connections", &[], |source, _, _| Ok(workers(source))),
    private("deny", "rules of the deny list with dropped packets", &[], |source, _, _| Ok(answers::denied(source))),
    private("clients", "clients above their limits", &["offset", "limit"], |source, _, query| {
        limited_clients(source, query)
    }),
];

type Answer = fn(&dyn AdminSource, &str, &Query) -> Result<Value, ApiError>;

const fn public(
    name: &'static str,
    about: &'static str,
    parameters: &'static [&'static str],
    answer: Answer,
) -> Resource {
    Resource { name, about, parameters, is_private: false, answer }
}

const fn private(
    name: &'static str,
    about: &'static str,
    parameters: &'static [&'static str],
    answer: Answer,
) -> Resource {
    Resource { name, about, parameters, is_private: true, answer }
}

/// Returns whether `path` is one of the API.
pub(super) fn is_below(path: &str) -> bool {
    path.strip_prefix("/api").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Answers a request for a resource.
pub(super) fn answer<B>(answers: &Answers, request: &Request<B>, reach: Reach) -> Response<AdminBody> {
    let mut response = match find(answers, request, reach) {
        Ok(response) => response,
        Err(error) => json_response(error.status(), &json!({ "error": error.to_string() })),
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn find<B>(answers: &Answers, request: &Request<B>, reach: Reach) -> Result<Response<AdminBody>, ApiError> {
    permit(reach, request.headers())?;
    let path = request.uri().path();
    let unknown = || ApiError::Unknown(path.to_owned());
    let name = path.strip_prefix(PREFIX).ok_or_else(unknown)?;
    let query = |known: &[&str]| Query::parse(request.uri().query().unwrap_or_default(), known);
    let name = match name.strip_prefix('/') {
        None if name.is_empty() => return query(&[]).map(|_| json_response(StatusCode::OK, &index())),
        Some("") => return query(&[]).map(|_| json_response(StatusCode::OK, &index())),
        None => return Err(unknown()),
        Some(name) => name,
    };
    if name == "stream" {
        query(&[])?;
        let events = answers.open(stream::states(Arc::clone(&answers.source)))?;
        let mut response = Response::new(AdminBody::Events(Box::new(events)));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        return Ok(response);
    }
    let below = |resource: &&Resource| match resource.name.strip_suffix('/') {
        Some(_) => name.strip_prefix(resource.name).is_some_and(|rest| !rest.is_empty()),
        None => name == resource.name,
    };
    let resource = RESOURCES.iter().find(below).ok_or_else(unknown)?;
    if resource.is_private && !matches!(reach, Reach::Socket | Reach::Authenticated) {
        return Err(ApiError::Forbidden(
            "addresses of clients are shown on the socket of the process and on --api-addr only; run the command inside the pod",
        ));
    }
    let rest = name.strip_prefix(resource.name).unwrap_or_default();
    let answer = (resource.answer)(&*answers.source, rest, &query(resource.parameters)?)?;
    Ok(json_response(StatusCode::OK, &answer))
}

/// Checks that a request may see the API at all.
pub(super) fn permit(reach: Reach, headers: &HeaderMap) -> Result<(), ApiError> {
    match reach {
        Reach::Socket | Reach::Authenticated => Ok(()),
        Reach::Loopback if is_addressed_by_ip(headers) => Ok(()),
        Reach::Loopback => Err(ApiError::Forbidden("address the API by an IP or as `localhost`")),
        Reach::Network => Err(ApiError::Forbidden(
            "the API is served here on loopback and on the socket of the process only; use `kubectl port-forward`, or authenticate on --api-addr",
        )),
    }
}

/// Returns whether `Host` is an IP address or `localhost`, each with or without a port.
fn is_addressed_by_ip(headers: &HeaderMap) -> bool {
    let Some(Ok(host)) = headers.get(header::HOST).map(HeaderValue::to_str) else { return false };
    let Ok(authority) = host.parse::<http::uri::Authority>() else { return false };
    let name = authority.host();
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse::<std::net::IpAddr>().is_ok()
}

fn json_response(status: StatusCode, value: &Value) -> Response<AdminBody> {
    answers::typed(status, "application/json", value.to_string())
}

fn index() -> Value {
    let resource = |resource: &Resource| {
        let name = resource
            .name
            .strip_suffix('/')
            .map_or(Cow::Borrowed(resource.name), |name| format!("{name}/{{host}}").into());
        json!({ "path": format!("{PREFIX}/{name}"), "about": resource.about, "parameters": resource.parameters })
    };
    let stream = json!({ "path": format!("{PREFIX}/stream"), "about": "the state of the node, each second, as server-sent events", "parameters": [] });
    json!({
        "version": "v1",
        "product": env!("CARGO_PKG_VERSION"),
        "resources": RESOURCES.iter().map(resource).chain([stream]).collect::<Value>(),
    })
}

/// Returns the state of the process.
pub(super) fn node(source: &dyn AdminSource) -> Value {
    let ControlState { generation, hosts, upstreams, warnings, hosts_over_capacity, age, serves_saved, applied: _ } =
        source.control();
    let status = source.status().map(|StatusState { is_leader, .. }| json!({ "is_leader": is_leader }));
    let StatsView { connections, accepted, parked, waiting, handshake_errors, .. } = source.proxy();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "live": source.live().err(),
        "not_ready": source.ready().err(),
        "configuration": {
            "generation": generation, "hosts": hosts, "upstreams": upstreams, "warnings": warnings,
            "hosts_over_capacity": hosts_over_capacity, "serves_saved": serves_saved,
            "seconds_since_contact": age.map(|age| age.as_secs_f64()),
        },
        "connections": {
            "open": connections, "accepted": accepted, "parked": parked, "waiting_requests": waiting,
            "handshake_errors": handshake_errors,
        },
        "status": status,
    })
}

fn hosts(source: &dyn AdminSource, query: &Query) -> Result<Value, ApiError> {
    let mut hosts = source.hosts();
    if let Some(text) = query.text("name") {
        let text = text.to_ascii_lowercase();
        hosts.retain(|host| host.host.contains(&text));
    }
    let requests = |host: &HostCounters| host.l7.requests.to_array().iter().sum::<u64>();
    match query.text("sort") {
        None | Some("name") => hosts.sort_by(|one, other| one.host.cmp(&other.host)),
        Some("requests") => hosts.sort_by_key(|host| std::cmp::Reverse(requests(host))),
        Some("packets") => hosts.sort_by_key(|host| std::cmp::Reverse(host.net.rx_packets)),
        Some(other) => {
            return Err(ApiError::Parameter(format!("`sort` is `{other}`; give name, requests or packets")));
        }
    }
    page(hosts.iter().map(|HostCounters { host, id, l7, net, .. }| counters::host(host, *id, l7, net)), query)
}

fn host(source: &dyn AdminSource, name: &str) -> Result<Value, ApiError> {
    let name = name.to_ascii_lowercase();
    let counted = source.host(&name);
    let translation = source.translation();
    let filter = RouteFilter { host: Some(name.clone()), ..RouteFilter::default() };
    let routes: Vec<_> =
        routes(&translation.table, &filter).map(|entry| entry.document()).filter(|route| route.host == name).collect();
    if counted.is_none() && routes.is_empty() {
        return Err(ApiError::Unknown(format!("host {name}")));
    }
    let is_of_host = |outcome: &Outcome| {
        let object = format!("{}/{}", outcome.object.namespace, outcome.object.name);
        &*outcome.object.kind == "Ingress" && routes.iter().any(|route| route.ingress == object)
    };
    let problems = source.problems();
    let problems = problems.iter().filter(|(outcome, _)| is_of_host(outcome)).map(problem).collect::<Vec<_>>();
    let certificates = certificates(&translation.table, now());
    let certificate = certificates.iter().find(|certificate| certificate.server_names.contains(&name));
    Ok(json!({
        "host": name,
        "counters": counted.map(|HostCounters { host, id, l7, net, .. }| counters::host(&host, id, &l7, &net)),
        "routes": routes,
        "certificate": certificate,
        "problems": problems,
    }))
}

fn route_list(source: &dyn AdminSource, query: &Query) -> Result<Value, ApiError> {
    let text = |name| query.text(name).map(str::to_owned);
    let filter = RouteFilter { host: text("host"), namespace: text("namespace"), ingress: text("ingress") };
    let translation = source.translation();
    let range @ PageRange { offset, limit } = query.page()?;
    let total = routes(&translation.table, &filter).count();
    let items = routes(&translation.table, &filter).skip(offset).take(limit).map(|entry| entry.document());
    Ok(list(items.map(|item| json!(item)).collect(), total, range))
}

fn explanation(source: &dyn AdminSource, query: &Query) -> Result<Value, ApiError> {
    let url = query.required("url")?;
    let explanation = explain(&source.translation().table, url);
    explanation.map(|explanation| json!(explanation)).map_err(|error| ApiError::Parameter(error.to_string()))
}

fn upstreams(source: &dyn AdminSource, query: &Query) -> Result<Value, ApiError> {
    let mut upstreams = source.upstreams();
    if let Some(text) = query.text("name") {
        upstreams.retain(|upstream| upstream.key.as_str().contains(text));
    }
    upstreams.sort_by(|one, other| one.key.cmp(&other.key));
    let document =
        |UpstreamView { key, healthy, ejected, unhealthy, ejections, retries, refused, checks, .. }: UpstreamView| {
            let refused: Value = Full::ALL
                .iter()
                .zip(refused)
                .map(|(full, count)| (full.as_str().to_owned(), json!(count)))
                .collect::<serde_json::Map<_, _>>()
                .into();
            let checks: Value = CheckResult::ALL
                .iter()
                .zip(checks)
                .map(|(result, count)| (result.as_str().to_owned(), json!(count)))
                .collect::<serde_json::Map<_, _>>()
                .into();
            json!({
                "upstream": key.to_string(), "healthy": healthy, "ejected": ejected, "unhealthy": unhealthy,
                "ejections": ejections, "retries": retries, "refused": refused, "checks": checks,
            })
        };
    page(upstreams.into_iter().map(document), query)
}

fn problem((outcome, since): (&Arc<Outcome>, &i64)) -> ProblemDocument {
    ProblemDocument::of(outcome, Some(timestamp(*since)))
}

fn problems(source: &dyn AdminSource, query: &Query) -> Result<Value, ApiError> {
    let selection = ProblemSelection::of(query)?;
    let is_selected = |(outcome, _): &(&Arc<Outcome>, &i64)| selection.takes(outcome);
    let problems = source.problems();
    let range @ PageRange { offset, limit } = query.page()?;
    let total = problems.iter().filter(is_selected).count();
    let items = problems.iter().filter(is_selected).skip(offset).take(limit).map(problem);
    Ok(list(items.map(|item| json!(item)).collect(), total, range))
}

fn changes(source: &dyn AdminSource) -> Value {
    let change = |change: &super::ChangeRecord| {
        let mut document = json!(change);
        document["at"] = timestamp(change.at).into();
        document["milliseconds"] = json!(change.took.as_secs_f64() * 1000.0);
        document
    };
    source.changes().iter().map(change).collect()
}

/// Returns the threads that serve.
pub(super) fn workers(source: &dyn AdminSource) -> Value {
    let worker = |WorkerState { name, silence, connections }: WorkerState| json!({ "name": name, "connections": connections, "seconds_since_sign_of_life": silence.as_secs_f64() });
    source.workers().into_iter().map(worker).collect()
}

fn limited_clients(source: &dyn AdminSource, query: &Query) -> Result<Value, ApiError> {
    let (limits, limited) = source.limited_clients().unzip();
    let client = |LimitedClient { client, syns, packets, ago }: LimitedClient| json!({ "client": client.to_string(), "syns": syns, "packets": packets, "seconds_ago": ago.as_secs_f64() });
    let mut document = page(limited.unwrap_or_default().into_iter().map(client), query)?;
    document["limits"] = json!(limits.map(clients::limits));
    Ok(document)
}

/// Returns the part of `items` that the query names.
fn page(items: impl ExactSizeIterator<Item = impl Serialize>, query: &Query) -> Result<Value, ApiError> {
    let range @ PageRange { offset, limit } = query.page()?;
    let total = items.len();
    Ok(list(items.skip(offset).take(limit).map(|item| json!(item)).collect(), total, range))
}

fn list(items: Vec<Value>, total: usize, PageRange { offset, limit }: PageRange) -> Value {
    json!({ "items": items, "total": total, "offset": offset, "limit": limit })
}

/// Returns the Unix time in seconds.
pub(super) fn now() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

impl ApiError {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::Unknown(_) => StatusCode::NOT_FOUND,
            Self::Parameter(_) => StatusCode::BAD_REQUEST,
            Self::TooManyViewers => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl fmt::Debug for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resource").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
