//! Which hosts are shown, by what they are sorted, and what each column says of them.

use std::time::Duration;

use clap::ValueEnum;

use super::reading::{Amounts, Counts, Host};

/// A column of the table; `--sort` has the same names, and so have the rates in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Column {
    /// The name of the host.
    Host,
    /// Requests that have ended, of every class.
    Requests,
    /// Requests answered 4xx.
    #[value(name = "4xx")]
    ClientErrors,
    /// Requests answered 5xx, and those that broke off.
    Errors,
    /// Requests being served now.
    Active,
    /// Packets received.
    Packets,
    /// Bytes received, as they are on the wire.
    Bytes,
    /// Bytes of the bodies of requests.
    In,
    /// Bytes of the bodies of responses.
    Out,
}

/// Which hosts are shown, and in which order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection {
    /// What comes first has the most of it; of names, the first in the alphabet.
    pub(super) sort: Column,
    pub(super) reversed: bool,
    /// Part of the names of the hosts that are wanted.
    pub(super) filter: String,
    /// `None`: all.
    pub(super) limit: Option<usize>,
}

// === impl Column ===

impl Column {
    pub(super) const ALL: [Self; 9] = [
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

    /// `None` for what is no number.
    pub(super) fn value(self, counts: &Counts) -> Option<u64> {
        let Counts { l7, net } = counts;
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

    /// Whether its numbers grow with time, so that there are so many per second.
    pub(super) const fn is_rate(self) -> bool {
        !matches!(self, Self::Host | Self::Active)
    }

    pub(super) const fn name(self) -> &'static str {
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

    /// What stands above the column, with the unit: of what was counted in all, or per second.
    pub(super) const fn heading(self, within: Option<Duration>) -> &'static str {
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

    /// The column to the right; after the last one, the first.
    pub(super) fn next(self) -> Self {
        let after = Self::ALL.iter().skip_while(|column| **column != self).nth(1);
        after.copied().unwrap_or(Self::Host)
    }
}

// === impl Selection ===

impl Selection {
    /// The hosts to show, in their order. Hosts with the same number are in the order of their names.
    pub(super) fn of<'a>(&self, amounts: &'a Amounts) -> Vec<&'a Host> {
        let Self { sort, reversed, filter, limit } = self;
        // Names of hosts are in lower case.
        let filter = filter.to_ascii_lowercase();
        let mut hosts: Vec<&Host> = amounts.hosts.iter().filter(|host| host.name.contains(&filter)).collect();
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
    use crate::inspect::reading::tests::{host, reading};

    const EVERY: Selection = Selection { sort: Column::Requests, reversed: false, filter: String::new(), limit: None };

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
                Selection { reversed: true, sort: Column::Bytes, ..EVERY },
                &["quiet", "(unattributed)", "busy", "also-busy"],
            ),
            (
                "errors are 5xx and what broke off",
                Selection { sort: Column::Errors, limit: Some(1), ..EVERY },
                &["quiet"],
            ),
            (
                "names from the first",
                Selection { sort: Column::Host, ..EVERY },
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
    fn every_column_has_one_name_and_comes_after_another() {
        let mut column = Column::Host;
        for expected in Column::ALL {
            assert_eq!(column, expected);
            let typed = column.to_possible_value().expect("every column can be typed");
            assert_eq!(typed.get_name(), column.name());
            column = column.next();
        }
        assert_eq!(column, Column::Host);
        assert_eq!(Column::value_variants(), Column::ALL);
    }
}
