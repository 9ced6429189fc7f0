//! The first page: problems of the process and the node, the traffic of the last minute, and the busiest hosts.

use std::{
    cmp::Reverse,
    time::{Duration, SystemTime},
};

use ingress_common::{HostL7, RawHostId};
use ingress_proxy::{DURATION_BOUNDS, DurationsView};
use maud::{Markup, html};

use super::{
    PREFIX, Page,
    drops::is_drop,
    format::{bytes, count, duration, host_path, plural},
    table::{self, counter, number, rate, spark, table, text},
};
use crate::daemon::admin::{AdminSource, numbered};

/// Number of hosts in the table.
const HOSTS: usize = 10;
/// Time before the end of a certificate at which it is a problem.
const EXPIRES: Duration = Duration::from_hours(14 * 24);
/// Fill level of a kernel map that is a problem, in percent.
const FULL: usize = 90;
/// Time without a sign of life after which a thread is a problem. All report every second.
const SILENT: Duration = Duration::from_secs(3);

/// A host with its number and its requests.
type HostRow<'n> = (&'n str, RawHostId, HostL7);

pub(super) fn page(source: &dyn AdminSource) -> Page {
    let names = source.host_names();
    let hosts: Vec<_> = numbered(&names).map(|(host, id)| (host, id, source.host_l7(id))).collect();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let main = html! {
        h1 { "Overview" }
        (attention_list(&attention(source, now)))
        (traffic(source, &hosts))
        (busiest(hosts))
        (process(source))
    };
    Page::new("Overview", main)
}

/// A problem of the node, and the page about it.
struct Attention {
    text: String,
    link: Option<(&'static str, &'static str)>,
}

fn attention(source: &dyn AdminSource, now: Duration) -> Vec<Attention> {
    let control = source.control();
    let plain = |text: String| Attention { text, link: None };
    let mut list: Vec<_> = [source.live(), source.ready()].into_iter().filter_map(Result::err).map(plain).collect();
    if control.serves_saved {
        list.push(plain("the saved configuration is served, because the API server has not answered yet".to_owned()));
    }
    let mut add = |is_there: bool, text: String, link| {
        if is_there {
            list.push(Attention { text, link: Some(link) });
        }
    };
    let warnings = plural(control.warnings, "problem", "problems");
    add(control.warnings > 0, format!("the configuration has {warnings}"), ("configuration", "Configuration"));
    let uncounted = plural(control.hosts_over_capacity, "host has", "hosts have");
    add(
        control.hosts_over_capacity > 0,
        format!("{uncounted} no counters of their own; raise `--host-capacity`"),
        ("hosts", "Hosts"),
    );
    let certificates = source.certificates();
    let soon = certificates.ends.iter().filter(|(_, end)| *end < now + EXPIRES).count();
    let soon_text = plural(soon, "certificate expires", "certificates expire");
    add(soon > 0, format!("{soon_text} within 14 days"), ("certificates", "Certificates"));
    let fallback = certificates.names_on_fallback;
    let fallback_text = plural(fallback, "name gets", "names get");
    add(fallback > 0, format!("{fallback_text} the fallback certificate"), ("certificates", "Certificates"));
    for interface in source.interfaces() {
        let is_off = !interface.receives.is_there && interface.receives.how != "off";
        let text = format!("no program receives on interface `{}`: {}", interface.name, interface.receives.how);
        add(is_off, text, ("workers", "Workers"));
    }
    for worker in source.workers() {
        let text = format!("thread `{}` has been silent for {}", worker.name, duration(worker.silence));
        add(worker.silence > SILENT, text, ("workers", "Workers"));
    }
    for fill in source.fills() {
        let percent = fill.entries.saturating_mul(100).checked_div(fill.capacity).unwrap_or_default();
        add(percent >= FULL, format!("kernel map `{}` is {percent} % full", fill.map), ("drops", "Drops"));
    }
    list
}

fn attention_list(list: &[Attention]) -> Markup {
    html! {
        section #attention aria-labelledby="attention-title" aria-live="polite" {
            h2 #attention-title { "Attention" }
            @if list.is_empty() {
                p.good { "No problem is known." }
            } @else {
                ul {
                    @for Attention { text, link } in list {
                        li data-key=(text) {
                            (super::format::marked(text))
                            @if let Some((page, label)) = link { " " a href={ (PREFIX) "/" (page) } { (label) } }
                        }
                    }
                }
            }
        }
    }
}

fn traffic(source: &dyn AdminSource, hosts: &[HostRow<'_>]) -> Markup {
    let sum = |of: fn(&HostL7) -> u64| hosts.iter().map(|(_, _, l7)| of(l7)).sum::<u64>();
    let totals = source.totals();
    let packets = |is_wanted: fn(&str) -> bool| -> u64 {
        totals.iter().filter(|(reason, _)| is_wanted(reason)).map(|(_, traffic)| traffic.packets).sum()
    };
    let durations = source.total_durations();
    let stats = source.proxy();
    html! {
        section aria-labelledby="traffic-title" {
            h2 #traffic-title { "Traffic" }
            dl.tiles {
                (rate_tile("Requests per second", "requests", sum(requests)))
                (rate_tile("Errors per second", "errors", sum(errors)))
                (rate_tile("Packets per second", "packets", packets(|reason| reason == "accepted")))
                (rate_tile("Dropped packets per second", "dropped", packets(is_drop)))
                (tile("Requests in progress", &count(sum(|l7| l7.active))))
                (tile("Open connections", &count(stats.connections as u64)))
                (tile("Median duration", &quantile(&durations, 50)))
                (tile("99th percentile", &quantile(&durations, 99)))
            }
            p.note {
                "Errors are responses of class 5xx and requests that were broken off. Durations are upper bounds over "
                "all requests since the start."
            }
        }
    }
}

/// Returns a value with its name.
pub(super) fn tile(name: &str, value: &str) -> Markup {
    html! { div { dt { (name) } dd { (value) } } }
}

/// Returns the rate of a counter, with its last minute as a line.
pub(super) fn rate_tile(name: &str, key: &str, value: u64) -> Markup {
    html! {
        div {
            dt { (name) }
            dd { span data-rate=(key) data-value=(value) { "–" } (spark(key)) }
        }
    }
}

/// Returns the bound that this percentage of the requests has not exceeded.
pub(super) fn quantile(durations: &DurationsView, percent: u64) -> String {
    let total: u64 = durations.buckets.iter().sum();
    if total == 0 {
        return "–".to_owned();
    }
    let wanted = (u128::from(total) * u128::from(percent)).div_ceil(100);
    let mut sum = 0;
    let bucket = durations.buckets.iter().position(|count| {
        sum += u128::from(*count);
        sum >= wanted
    });
    match bucket.and_then(|bucket| DURATION_BOUNDS.get(bucket)) {
        Some(bound) => format!("≤\u{a0}{}", bound_text(*bound)),
        None => format!(">\u{a0}{}", bound_text(DURATION_BOUNDS[DURATION_BOUNDS.len() - 1])),
    }
}

fn bound_text(bound: Duration) -> String {
    if bound < Duration::from_secs(1) {
        format!("{}\u{a0}ms", bound.as_millis())
    } else {
        format!("{}\u{a0}s", bound.as_secs_f64())
    }
}

fn busiest(mut hosts: Vec<HostRow<'_>>) -> Markup {
    hosts.retain(|(_, _, l7)| requests(l7) > 0);
    let rank = |&(host, _, l7): &HostRow<'_>| (Reverse(requests(&l7)), host.to_owned());
    if hosts.len() > HOSTS {
        hosts.select_nth_unstable_by_key(HOSTS - 1, |(_, _, l7)| Reverse(requests(l7)));
        hosts.truncate(HOSTS);
    }
    hosts.sort_unstable_by_key(rank);
    let columns = [text("Host"), number("Requests"), number("Requests/s"), text("Last minute"), number("Errors")];
    let rows = html! {
        @for (host, id, l7) in &hosts {
            @let key = format!("h:{id}");
            tr data-key=(host) {
                th scope="row" { a href=(host_path(host)) { (host) } }
                (counter(requests(l7)))
                (rate(&key, requests(l7)))
                td { (spark(&key)) }
                (counter(errors(l7)))
            }
        }
        @if hosts.is_empty() { (table::empty(&columns, "No request has been finished yet.")) }
    };
    html! {
        section {
            h2 { "Busiest hosts" }
            (table("busiest", "The ten hosts with the most requests since the start", &columns, &rows))
            p { a href={ (PREFIX) "/hosts?sort=requests" } { "All hosts" } }
        }
    }
}

fn process(source: &dyn AdminSource) -> Markup {
    let control = source.control();
    let leader = source.status().map(|status| if status.is_leader { "yes" } else { "no" });
    let state = if source.ready().is_ok() { "owns the node" } else { "not ready" };
    let received: u64 = source.interfaces().iter().map(|interface| interface.net.rx_bytes).sum();
    html! {
        section aria-labelledby="process-title" {
            h2 #process-title { "Process" }
            dl.facts {
                (tile("State", state))
                (tile("Generation of the configuration", &count(control.generation)))
                (tile("Hosts", &count(control.hosts as u64)))
                (tile("Upstreams", &count(control.upstreams as u64)))
                @if let Some(age) = control.age { (tile("Last answer of the API server", &format!("{} ago", duration(age)))) }
                @if let Some(leader) = leader { (tile("Writes statuses (leader)", leader)) }
                (tile("Received by interfaces with a program", &bytes(received)))
            }
        }
    }
}

/// Returns the finished requests of a host.
pub(super) fn requests(l7: &HostL7) -> u64 {
    l7.requests.to_array().iter().sum()
}

/// Returns the requests of a host that failed on the side of the server, or were broken off.
pub(super) fn errors(l7: &HostL7) -> u64 {
    l7.requests.server_error + l7.requests.aborted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_bound_of_its_bucket() {
        let of = |buckets| quantile(&DurationsView { buckets, sum: Duration::ZERO }, 99);
        assert_eq!(of([0; 12]), "–");
        assert_eq!(of([99, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]), "≤\u{a0}5\u{a0}ms");
        assert_eq!(of([98, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]), "≤\u{a0}25\u{a0}ms");
        assert_eq!(of([0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]), "≤\u{a0}2.5\u{a0}s");
        assert_eq!(of([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, u64::MAX]), ">\u{a0}10\u{a0}s");
    }
}
