//! Selection and order of the shown hosts, and the columns of the table.

use std::time::Duration;

use clap::ValueEnum;

use crate::reading::{Amounts, HostReading, L7Counts};

/// A column of the table. `--sort` and the rates in JSON use the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TopColumn {
    /// Host name.
    Host,
    /// Finished requests of every class.
    Requests,
    /// Requests answered with 4xx.
    #[value(name = "4xx")]
    ClientErrors,
    /// Requests answered with 5xx, and aborted ones.
    Errors,
    /// Requests in flight.
    Active,
    /// Received packets.
    Packets,
    /// Received bytes on the wire.
    Bytes,
    /// Bytes of request bodies.
    In,
    /// Bytes of response bodies.
    Out,
}

/// Filter and order of the shown hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Sort column, in descending order; names ascend.
    pub sort: TopColumn,
    pub reversed: bool,
    /// Part of the names of selected hosts.
    pub filter: String,
    /// `None` for all.
    pub limit: Option<usize>,
}

// === impl TopColumn ===

impl TopColumn {
    pub const ALL: [Self; 9] = [
        Self::Host,
        Self::Requests,
        Self::ClientErrors,
        Self::Errors,
        Self::Active,
        Self::Packets,
        Self::Bytes,
        Self::In,
        Self::Out,
    ];

    /// Returns `None` if the column is not a number.
    pub fn value(self, counts: &L7Counts) -> Option<u64> {
        let L7Counts { l7, net } = counts;
        match self {
            Self::Host => None,
            Self::Requests => Some(l7.requests.to_array().iter().sum()),
            Self::ClientErrors => Some(l7.requests.client_error),
            Self::Errors => Some(l7.requests.server_error + l7.requests.aborted),
            Self::Active => Some(l7.active),
            Self::Packets => Some(net.rx_packets),
            Self::Bytes => Some(net.rx_bytes),
            Self::In => Some(l7.bytes_in),
            Self::Out => Some(l7.bytes_out),
        }
    }

    /// Returns whether the column is a counter, so that it can be shown as a rate.
    pub const fn is_rate(self) -> bool {
        !matches!(self, Self::Host | Self::Active)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Requests => "requests",
            Self::ClientErrors => "4xx",
            Self::Errors => "errors",
            Self::Active => "active",
            Self::Packets => "packets",
            Self::Bytes => "bytes",
            Self::In => "in",
            Self::Out => "out",
        }
    }

    /// Returns the heading with the unit, for totals or for rates per second.
    pub const fn heading(self, within: Option<Duration>) -> &'static str {
        match (self, within) {
            (Self::Host, _) => "HOST",
            (Self::Active, _) => "ACTIVE",
            (Self::Requests, None) => "REQUESTS",
            (Self::Requests, Some(_)) => "REQ/s",
            (Self::ClientErrors, None) => "4XX",
            (Self::ClientErrors, Some(_)) => "4XX/s",
            (Self::Errors, None) => "ERRORS",
            (Self::Errors, Some(_)) => "ERR/s",
            (Self::Packets, None) => "PACKETS",
            (Self::Packets, Some(_)) => "PKT/s",
            (Self::Bytes, None) => "BYTES",
            (Self::Bytes, Some(_)) => "B/s",
            (Self::In, None) => "IN B",
            (Self::In, Some(_)) => "IN B/s",
            (Self::Out, None) => "OUT B",
            (Self::Out, Some(_)) => "OUT B/s",
        }
    }

    /// Returns the column to the right; the first one after the last.
    pub fn next(self) -> Self {
        let after = Self::ALL.iter().skip_while(|column| **column != self).nth(1);
        after.copied().unwrap_or(Self::Host)
    }
}

// === impl Selection ===

impl Selection {
    /// Returns the hosts to show, in order. Hosts with equal numbers are sorted by name.
    pub fn of<'a>(&self, amounts: &'a Amounts) -> Vec<&'a HostReading> {
        let Self { sort, reversed, filter, limit } = self;
        // Host names are in lower case.
        let filter = filter.to_ascii_lowercase();
        let mut hosts: Vec<&HostReading> = amounts.hosts.iter().filter(|host| host.name.contains(&filter)).collect();
        hosts.sort_by(|a, b| {
            let order = sort.value(&b.counts).cmp(&sort.value(&a.counts)).then_with(|| a.name.cmp(&b.name));
            if *reversed { order.reverse() } else { order }
        });
        hosts.truncate(limit.unwrap_or(usize::MAX));
        hosts
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::reading::tests::{host, reading};

    const EVERY: Selection =
        Selection { sort: TopColumn::Requests, reversed: false, filter: String::new(), limit: None };

    #[test]
    fn hosts_are_sorted_filtered_and_limited() {
        let busy = host("busy.example.com", 1, 9);
        let mut quiet = host("quiet.example.com", 2, 1);
        quiet.counts.l7.requests.aborted = 100;
        let same = host("also-busy.example.org", 3, 9);
        let amounts = reading(Instant::now(), vec![host("(unattributed)", 0, 4), busy, quiet, same]).whole();
        let selected = |selection: Selection| -> Vec<String> {
            selection
                .of(&amounts)
                .into_iter()
                .map(|host| host.name.split('.').next().unwrap_or("").to_owned())
                .collect()
        };
        for (what, selection, expected) in [
            ("most first, then by name", EVERY, &["also-busy", "busy", "quiet", "(unattributed)"][..]),
            (
                "reversed",
                Selection { reversed: true, sort: TopColumn::Bytes, ..EVERY },
                &["quiet", "(unattributed)", "busy", "also-busy"],
            ),
            (
                "errors are 5xx and what broke off",
                Selection { sort: TopColumn::Errors, limit: Some(1), ..EVERY },
                &["quiet"],
            ),
            (
                "names from the first",
                Selection { sort: TopColumn::Host, ..EVERY },
                &["(unattributed)", "also-busy", "busy", "quiet"],
            ),
            ("part of the name", Selection { filter: "EXAMPLE.com".into(), ..EVERY }, &["busy", "quiet"]),
            ("host 0 by its name", Selection { filter: "(un".into(), ..EVERY }, &["(unattributed)"]),
            ("limit", Selection { limit: Some(2), ..EVERY }, &["also-busy", "busy"]),
            ("none", Selection { filter: "nobody".into(), ..EVERY }, &[]),
        ] {
            assert_eq!(selected(selection), expected, "{what}");
        }
    }

    #[test]
    fn columns_have_one_name_and_follow_in_a_cycle() {
        let mut column = TopColumn::Host;
        for expected in TopColumn::ALL {
            assert_eq!(column, expected);
            let typed = column.to_possible_value().expect("every column can be typed");
            assert_eq!(typed.get_name(), column.name());
            column = column.next();
        }
        assert_eq!(column, TopColumn::Host);
        assert_eq!(TopColumn::value_variants(), TopColumn::ALL);
    }
}
