//! One host: its counters, rules with backends and pods, certificate, and the problems of its Ingresses.

use std::{collections::BTreeSet, sync::Arc};

use ingress_control::Outcome;
use ingress_inspect::{ActionDocument, BackendDocument, RouteDocument, certificate_choice, leaf, routes_of};
use ingress_model::{HostPattern, RouteTable};
use ingress_proxy::UpstreamView;
use maud::{Markup, html};

use super::{
    Page, PageError, ROWS, Target,
    configuration::problem_table,
    format::{bytes, count, path, plural, time},
    overview::{errors, quantile, rate_tile, requests, tile},
    table::{Rows, number, table, text},
};
use crate::daemon::admin::{AdminSource, HostCounters, api};

/// Number of addresses of pods in a cell.
const ADDRESSES: usize = 5;

pub(super) fn page(source: &dyn AdminSource, target: &Target) -> Result<Page, PageError> {
    let name = target.name.to_ascii_lowercase();
    let rows = Rows::of(&target.query)?;
    let translation = source.translation();
    let table = &translation.table;
    let pattern = HostPattern::parse(&name).ok();
    let rules: Vec<_> = pattern.iter().flat_map(|pattern| routes_of(table, pattern)).collect();
    let counters = source.host(&name);
    if counters.is_none() && rules.is_empty() {
        return Err(PageError::NoHost(name));
    }
    let documents: Vec<_> = rows.cut(rules.iter()).map(|rule| rule.document()).collect();
    let owners: BTreeSet<_> = rules.iter().filter_map(|rule| rule.ingress().split_once('/')).collect();
    let is_of_host = |outcome: &Outcome| {
        let object = &outcome.object;
        &*object.kind == "Ingress" && owners.contains(&(&*object.namespace, &*object.name))
    };
    let problems = source.problems();
    let problems: Vec<(&Arc<Outcome>, &i64)> =
        problems.iter().filter(|(outcome, _)| is_of_host(outcome)).take(ROWS).collect();
    let main = html! {
        h1 { (name) }
        @match &counters {
            Some(counters) => (traffic(counters)),
            None => p.note { "The host has no counters of its own; its traffic counts for (unattributed)." },
        }
        section {
            h2 { "Rules" }
            (route_table(&documents, |key| source.upstream(key), rows.offset()))
            (rows.pager(rules.len(), &page_path(&name), &[]))
            @if pattern.is_some() && !name.starts_with('*') {
                p { a href=(path("explain", &[("url", format!("https://{name}/").into())])) { "Explain a URL of this host" } }
            }
        }
        @if pattern.is_some() && !rules.is_empty() { (certificate(table, &name)) }
        section {
            h2 { "Problems" }
            (problem_table("Problems of the Ingresses of this host", &problems))
        }
    };
    Ok(Page::new(name, main))
}

/// Returns the path of the page of a host, below that of the dashboard.
fn page_path(name: &str) -> String {
    let path = super::format::host_path(name);
    path.strip_prefix(super::PREFIX).unwrap_or(&path).trim_start_matches('/').to_owned()
}

fn traffic(counters: &HostCounters) -> Markup {
    let HostCounters { host: _, id, l7, durations, net } = counters;
    let key = |name: &str| format!("{name}:{id}");
    html! {
        section aria-labelledby="traffic-title" {
            h2 #traffic-title { "Traffic" }
            dl.tiles {
                (rate_tile("Requests per second", &key("r"), requests(l7)))
                (rate_tile("Errors per second", &key("e"), errors(l7)))
                (rate_tile("Packets in per second", &key("p"), net.rx_packets))
                (rate_tile("Packets out per second", &key("t"), net.tx_packets))
                (tile("Requests", &count(requests(l7))))
                (tile("Responses 2xx / 3xx", &format!("{} / {}", count(l7.requests.success), count(l7.requests.redirect))))
                (tile("Responses 4xx / 5xx", &format!("{} / {}", count(l7.requests.client_error), count(l7.requests.server_error))))
                (tile("Aborted requests", &count(l7.requests.aborted)))
                (tile("Requests in progress", &count(l7.active)))
                (tile("Median / 99th percentile", &format!("{} / {}", quantile(durations, 50), quantile(durations, 99))))
                (tile("Bodies in / out", &format!("{} / {}", bytes(l7.bytes_in), bytes(l7.bytes_out))))
                (tile("Network in / out", &format!("{} / {}", bytes(net.rx_bytes), bytes(net.tx_bytes))))
            }
        }
    }
}

fn route_table(documents: &[RouteDocument], upstream: impl Fn(&str) -> Option<UpstreamView>, before: usize) -> Markup {
    let columns = [number("#"), text("Path"), text("Type"), text("Ingress"), text("Filters"), text("Action")];
    let rows = html! {
        @for (index, route) in documents.iter().enumerate() {
            @let RouteDocument { listener: _, host: _, path, path_type, conditions: _, ingress, filters, action: to, settings } = route;
            tr data-key={ (path_type.as_str()) " " (path_text(path.as_deref())) } {
                td.n { (before + index + 1) }
                th scope="row" { code { (path_text(path.as_deref())) } }
                td { (path_type.as_str()) }
                td { (ingress) }
                td {
                    @if !filters.is_empty() { ul { @for filter in filters { li { code { (filter) } } } } }
                    @if !settings.is_empty() { code.settings { (settings) } }
                }
                td { (action(to)) (health(to, &upstream)) }
            }
        }
        @if documents.is_empty() {
            (super::table::empty(&columns, "No rule: the host was removed, or it is a port of a TCP or UDP service."))
        }
    };
    table("routes", "Rules in order of precedence", &columns, &rows)
}

/// Returns the path of a rule as text.
pub(super) fn path_text(path: Option<&str>) -> &str {
    path.unwrap_or("(all other paths)")
}

/// Returns the treatment of a request by a rule.
pub(super) fn action(action: &ActionDocument) -> Markup {
    html! {
        @match action {
            ActionDocument::Forward { backends } => {
                @for BackendDocument { upstream, protocol, condition, endpoints } in backends {
                    div.backend {
                        (upstream)
                        @if !protocol.is_empty() { " (" (protocol) ")" }
                        @if let Some(condition) = condition { " if " code { (condition) } }
                        ": " (plural(endpoints.len(), "pod", "pods"))
                        @if !endpoints.is_empty() {
                            details {
                                summary { "Addresses" }
                                ul {
                                    @for address in endpoints.iter().take(ADDRESSES) { li { (address) } }
                                    @if endpoints.len() > ADDRESSES { li { (endpoints.len() - ADDRESSES) " more" } }
                                }
                            }
                        }
                    }
                }
            },
            ActionDocument::Refuse { status, reason } => strong.bad { "answers " (status) ": " (reason) },
            ActionDocument::Redirect { status, location } => { "redirects to " code { (location) } " with " (status) },
        }
    }
}

/// Returns the pods that get no requests, and the retries, of the backends of a rule.
fn health(action: &ActionDocument, upstream: impl Fn(&str) -> Option<UpstreamView>) -> Markup {
    let ActionDocument::Forward { backends } = action else { return html! {} };
    let views = backends.iter().filter_map(|backend| upstream(&backend.upstream));
    html! {
        @for UpstreamView { healthy, ejected, unhealthy, retries, refused, .. } in views {
            div.health {
                (healthy) " healthy"
                @if ejected > 0 { ", " strong.bad { (ejected) " ejected" } }
                @if unhealthy > 0 { ", " strong.bad { (unhealthy) " failing checks" } }
                @if retries > 0 { ", retries: " (count(retries)) }
                @let refused: u64 = refused.iter().sum();
                @if refused > 0 { ", " strong.bad { "refused requests: " (count(refused)) } }
            }
        }
    }
}

fn certificate(table: &RouteTable, name: &str) -> Markup {
    let choice = certificate_choice(table, name);
    let leaf = choice.secret.as_deref().and_then(|secret| leaf(table, secret, api::now()));
    html! {
        section {
            h2 { "Certificate" }
            dl.facts {
                div {
                    dt { "Secret" }
                    dd {
                        (choice.secret.as_deref().unwrap_or("none: clients get the self-signed certificate of the process"))
                        @if choice.is_fallback && choice.secret.is_some() { " (fallback)" }
                    }
                }
                @if let Some(leaf) = leaf {
                    div { dt { "Issuer" } dd { (leaf.issuer) } }
                    div { dt { "Valid until" } dd { (time(&leaf.not_after)) " (" (leaf.days_left) " days left)" } }
                    div { dt { "DNS names" } dd { (leaf.dns_names.join(", ")) } }
                }
            }
        }
    }
}
