//! The table of `xdp-ingress top` as lines of text. Terminals are handled elsewhere.

use std::{fmt::Write as _, time::Duration};

use ingress_common::{Total, Traffic};

use super::selection::{Selection, TopColumn};
use crate::{
    print::quantity,
    reading::{Amounts, HostReading},
};

/// Width of a column of numbers.
const NUMBER: usize = 9;
/// Minimum width of the host column.
const NAME_MIN: usize = 16;
/// Number of lines before the first host.
pub(super) const HEAD: usize = 4;

/// Returns `HEAD` lines of head, of which the last has the column names, and a line for each selected host. Host
/// names are shortened if lines would be longer than `width`.
pub fn lines(amounts: &Amounts, selection: &Selection, width: Option<usize>) -> Vec<String> {
    let hosts = selection.of(amounts);
    let names: Vec<String> = hosts.iter().map(|host| printable(&host.name)).collect();
    let longest = names.iter().map(String::len).max().unwrap_or(0).max(NAME_MIN);
    let numbers = (TopColumn::ALL.len() - 1) * (NUMBER + 1);
    let room = width.map_or(longest, |width| width.saturating_sub(numbers).clamp(NAME_MIN, longest));

    let mut lines = vec![summary(amounts, selection, hosts.len()), node(amounts), String::new()];
    let headings = TopColumn::ALL.map(|column| column.heading(amounts.within));
    lines.push(line(headings[0], room, headings[1..].iter().copied()));
    lines.extend(hosts.iter().zip(&names).map(|(host, name)| {
        let numbers = numbers_of(host, amounts.within);
        line(name, room, numbers.iter().map(String::as_str))
    }));
    lines
}

fn numbers_of(host: &HostReading, within: Option<Duration>) -> Vec<String> {
    let number = |column: &TopColumn| {
        let value = column.value(&host.counts)?;
        Some(quantity(value, within.filter(|_| column.is_rate())))
    };
    TopColumn::ALL.iter().filter_map(number).collect()
}

fn line<'a>(name: &str, room: usize, numbers: impl Iterator<Item = &'a str>) -> String {
    let mut line = if name.len() > room {
        // The name is ASCII, see `printable`.
        format!("{}~", name.get(..room.saturating_sub(1)).unwrap_or_default())
    } else {
        format!("{name:room$}")
    };
    for number in numbers {
        write!(line, " {number:>NUMBER$}").unwrap_or_default();
    }
    line
}

fn summary(amounts: &Amounts, selection: &Selection, shown: usize) -> String {
    let Selection { sort, reversed, filter, limit: _ } = selection;
    let mut text = format!("{shown} of {} hosts by {}", amounts.hosts.len(), sort.name());
    if *reversed {
        text += ", reversed";
    }
    if !filter.is_empty() {
        text += ", with `";
        text += &printable(filter);
        text += "`";
    }
    match amounts.within {
        None => text + "; counted since the maps were created",
        Some(within) => format!("{text}; per second, within {:.1} s", within.as_secs_f64()),
    }
}

/// Returns the verdicts of XDP on the packets of the node.
fn node(amounts: &Amounts) -> String {
    let accepted = amounts.sum(|total| total == Total::Accepted);
    // Drops happen before the host is known, so there is one sum for the node.
    let dropped = amounts.sum(Total::is_drop);
    let answered = amounts.sum(|total| total == Total::SynCookieSent);
    let is_other = |total: Total| total.is_drop() || matches!(total, Total::Accepted | Total::SynCookieSent);
    let passed = amounts.sum(|total| total.is_verdict() && !is_other(total));
    let traffic = |name: &str, Traffic { packets, bytes }| {
        let [packets, bytes] = [packets, bytes].map(|count| quantity(count, amounts.within));
        format!("{name} {packets} packets {bytes} bytes")
    };
    let mut parts = vec![traffic("accepted", accepted), traffic("dropped", dropped), traffic("passed on", passed)];
    // Off by default.
    if answered.packets > 0 {
        parts.push(traffic("SYNs answered", answered));
    }
    parts.join(", ")
}

/// Replaces characters that a terminal may interpret: names come from a map with arbitrary content.
pub(super) fn printable(name: &str) -> String {
    name.chars().map(|char| if char.is_ascii_graphic() || char == ' ' { char } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use expect_test::expect;

    use super::*;
    use crate::reading::{
        ReasonCount,
        tests::{host, reading},
    };

    const ALL: Selection = Selection { sort: TopColumn::Requests, reversed: false, filter: String::new(), limit: None };

    #[test]
    fn the_table_shows_totals_without_a_previous_reading() {
        let now = reading(Instant::now(), vec![host("(unattributed)", 0, 1), host("shop.example.com", 1, 40)]);
        expect![[r"
            2 of 2 hosts by requests; counted since the maps were created
            accepted 4.1k packets 369k bytes, dropped 4.1k packets 369k bytes, passed on 0 packets 0 bytes

            HOST              REQUESTS       4XX    ERRORS    ACTIVE   PACKETS     BYTES      IN B     OUT B
            shop.example.com       800       120       200        40      4.0k      360k     40.0k      2.0M
            (unattributed)          20         3         5         1       100      9.0k      1.0k     50.0k"]]
        .assert_eq(&lines(&now.whole(), &ALL, None).join("\n"));
    }

    #[test]
    fn answers_by_syn_cookies_are_shown_if_there_are_some() {
        let mut now = reading(Instant::now(), vec![host("a.test", 1, 1)]);
        let traffic = Traffic { packets: 3, bytes: 180 };
        now.totals.push(ReasonCount { total: Total::SynCookieSent, name: "syn_cookie_sent", traffic });
        let text = lines(&now.whole(), &ALL, None).join("\n");
        assert!(text.contains(", passed on 0 packets 0 bytes, SYNs answered 3 packets 180 bytes\n"), "{text}");
    }

    #[test]
    fn a_narrow_table_of_rates_shortens_names() {
        let start = Instant::now();
        let name = "a-very-long-name-of-a-host.example.com";
        let before = reading(start, vec![host(name, 1, 1)]);
        let now = reading(start + Duration::from_secs(2), vec![host(name, 1, 4), host("b\x1b[2J.test", 2, 0)]);
        let selection = Selection { filter: "test".into(), reversed: true, ..ALL };
        let narrow = |selection: &Selection| lines(&now.since(&before), selection, Some(100)).join("\n");
        expect![[r"
            2 of 2 hosts by requests; per second, within 2.0 s
            accepted 150 packets 13.5k bytes, dropped 150 packets 13.5k bytes, passed on 0 packets 0 bytes

            HOST                     REQ/s     4XX/s     ERR/s    ACTIVE     PKT/s       B/s    IN B/s   OUT B/s
            a-very-long-name-of~      30.0       4.5       7.5         4       150     13.5k      1.5k     75.0k
            b?[2J.test                   0         0         0         0         0         0         0         0"]]
        .assert_eq(&narrow(&ALL));
        assert!(narrow(&selection).starts_with("1 of 2 hosts by requests, reversed, with `test`; per second"));
        assert_eq!(narrow(&selection).lines().count(), HEAD + 1);
    }
}
