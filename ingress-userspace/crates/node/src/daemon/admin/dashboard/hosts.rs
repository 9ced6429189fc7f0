//! The list of hosts with their counters: filtered by name, sorted, and in parts.

use std::{borrow::Cow, cmp::Reverse};

use ingress_common::{HostL7, HostNet, RawHostId};
use maud::html;

use super::{
    PREFIX, Page, PageError,
    format::{host_path, path},
    overview::{errors, requests},
    table::{self, Column, Rows, byte_count, counter, number, rate, table, text},
};
use crate::daemon::admin::{AdminSource, api::ApiError, numbered, query::Query};

/// Order of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HostSort {
    #[default]
    Name,
    Requests,
    Errors,
    Active,
    Packets,
    Bytes,
}

pub(super) fn page(source: &dyn AdminSource, query: &Query) -> Result<Page, PageError> {
    let (sort, rows) = (HostSort::of(query)?, Rows::of(query)?);
    let name = query.text("name").unwrap_or_default();
    let names = source.host_names();
    let all = names.len() + 1;
    let wanted = name.to_ascii_lowercase();
    let is_wanted = |(host, _): &(&str, RawHostId)| wanted.is_empty() || host.contains(&wanted);
    // All counters of packets are read only to sort by them.
    let net = if sort.is_by_net() { source.all_host_net() } else { Vec::new() };
    let net = |id: RawHostId| net.get(id as usize).copied().unwrap_or_else(|| source.host_net(id));
    let mut hosts: Vec<_> = numbered(&names).filter(is_wanted).collect();
    if sort != HostSort::Name {
        // The sort is stable, so hosts with the same value stay in order of their names.
        hosts.sort_by_cached_key(|(_, id)| Reverse(sort.value(&source.host_l7(*id), || net(*id))));
    }
    let parameters = [("name", Cow::from(name)), ("sort", sort.parameter().into())];
    let columns = columns(name, sort);
    let found = hosts.len();
    let body = html! {
        @for (host, id) in rows.cut(hosts.iter()) {
            @let (l7, net) = (source.host_l7(*id), net(*id));
            tr data-key=(host) {
                th scope="row" { a href=(host_path(host)) { (host) } }
                (counter(requests(&l7)))
                (rate(&format!("r:{id}"), requests(&l7)))
                (counter(l7.requests.client_error))
                (counter(errors(&l7)))
                (counter(l7.active))
                (counter(net.rx_packets))
                (rate(&format!("p:{id}"), net.rx_packets))
                (byte_count(net.rx_bytes))
                (byte_count(net.tx_bytes))
            }
        }
        @if found == 0 { (table::empty(&columns, "No host has this text in its name.")) }
    };
    let main = html! {
        h1 { "Hosts" }
        form.filter action={ (PREFIX) "/hosts" } method="get" role="search" {
            label for="name" { "Name contains" }
            input #name name="name" type="search" value=(name) autocomplete="off" spellcheck="false";
            input type="hidden" name="sort" value=(sort.parameter());
            button { "Filter" }
        }
        (table("hosts", &caption(found, all), &columns, &body))
        (rows.pager(found, "hosts", &parameters))
        p.note {
            "Counters are those since the counters of the node were created. Packets and bytes are those of the network, "
            "with all headers. The entry (unattributed) has the traffic before the host is known."
        }
    };
    Ok(Page::new("Hosts", main))
}

fn caption(found: usize, all: usize) -> String {
    if found == all {
        "Hosts with their counters".to_owned()
    } else {
        format!("{found} of {all} hosts with their counters")
    }
}

fn columns(name: &str, sort: HostSort) -> [Column; 10] {
    let sorted = |column: Column, by: HostSort| {
        let href = path("hosts", &[("name", name.into()), ("sort", by.parameter().into())]);
        column.sorted(&href, by == sort, if by == HostSort::Name { "ascending" } else { "descending" })
    };
    [
        sorted(text("Host"), HostSort::Name),
        sorted(number("Requests"), HostSort::Requests),
        number("Requests/s"),
        number("4xx"),
        sorted(number("Errors"), HostSort::Errors),
        sorted(number("Active"), HostSort::Active),
        sorted(number("Packets in"), HostSort::Packets),
        number("Packets/s"),
        sorted(number("Bytes in"), HostSort::Bytes),
        number("Bytes out"),
    ]
}

// === impl HostSort ===

impl HostSort {
    const ALL: [Self; 6] = [Self::Name, Self::Requests, Self::Errors, Self::Active, Self::Packets, Self::Bytes];

    fn of(query: &Query) -> Result<Self, ApiError> {
        let Some(text) = query.text("sort") else { return Ok(Self::default()) };
        Self::ALL.into_iter().find(|sort| sort.as_str() == text).ok_or_else(|| {
            let known = Self::ALL.map(Self::as_str).join(", ");
            ApiError::Parameter(format!("`sort` is `{text}`; give one of {known}"))
        })
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Requests => "requests",
            Self::Errors => "errors",
            Self::Active => "active",
            Self::Packets => "packets",
            Self::Bytes => "bytes",
        }
    }

    /// Returns the value of the parameter, empty for the default.
    fn parameter(self) -> &'static str {
        if self == Self::Name { "" } else { self.as_str() }
    }

    fn is_by_net(self) -> bool {
        matches!(self, Self::Packets | Self::Bytes)
    }

    fn value(self, l7: &HostL7, net: impl Fn() -> HostNet) -> u64 {
        match self {
            Self::Name => 0,
            Self::Requests => requests(l7),
            Self::Errors => errors(l7),
            Self::Active => l7.active,
            Self::Packets => net().rx_packets,
            Self::Bytes => net().rx_bytes,
        }
    }
}
