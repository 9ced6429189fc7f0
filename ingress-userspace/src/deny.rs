//! `xdp-ingress deny`: shows the deny list of this node and what it has dropped, from the pinned maps. Changes nothing.

use std::{
    io::{self, Write},
    net::IpAddr,
};

use anyhow::Context as _;
use ingress_common::{
    Traffic,
    steer::{DENY_OTHERS, DenyRule},
};
use ingress_userspace::datapath::{DenyEntry, Pinned};
use serde_json::{Value, json};

use crate::{
    config::inspect::{DenyCommand, DenyListArgs, DenyTestArgs, Output, PinArgs},
    counters::OTHERS,
};

/// A line of the list.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    /// A prefix, or [`OTHERS`].
    prefix: String,
    /// `None` if it passes.
    rule: Option<DenyRule>,
    /// `None` where nothing is counted for this prefix alone.
    dropped: Option<Traffic>,
}

/// Writes what is asked for to standard output.
///
/// # Errors
/// If nothing is pinned, the pins cannot be read, or nobody takes the output.
pub(crate) fn run(command: DenyCommand) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match command {
        DenyCommand::List(DenyListArgs { output, pins: PinArgs { bpffs } }) => {
            let pinned = Pinned::open(&bpffs)?;
            let rows = rows(&pinned.maps().deny_entries()?, &pinned.maps().deny_hits()?);
            match output {
                Output::Text => write_table(&mut out, &rows),
                Output::Json => writeln!(out, "{}", json(&rows)),
            }
        }
        DenyCommand::Test(DenyTestArgs { address, pins: PinArgs { bpffs } }) => {
            let pinned = Pinned::open(&bpffs)?;
            writeln!(out, "{}", verdict(&pinned.maps().deny_entries()?, address))
        }
    }
    .context("cannot write the answer")
}

fn rows(entries: &[DenyEntry], hits: &[Traffic]) -> Vec<Row> {
    let dropped = |rule: DenyRule| hits.get(rule as usize).copied().unwrap_or_default();
    let own = entries.iter().map(|&DenyEntry { prefix, rule }| Row {
        prefix: prefix.to_string(),
        rule,
        dropped: rule.filter(|rule| *rule != DENY_OTHERS).map(dropped),
    });
    // Shown as soon as it counts, and as long as it has counted: what it has dropped is in the totals, too.
    let others = Row { prefix: OTHERS.to_owned(), rule: Some(DENY_OTHERS), dropped: Some(dropped(DENY_OTHERS)) };
    let is_used =
        entries.iter().any(|entry| entry.rule == Some(DENY_OTHERS)) || others.dropped != Some(Traffic::default());
    own.chain(is_used.then_some(others)).collect()
}

fn write_table(out: &mut impl Write, rows: &[Row]) -> io::Result<()> {
    let width = rows.iter().map(|row| row.prefix.len()).chain([PREFIX.len()]).max().unwrap_or_default();
    writeln!(out, "{PREFIX:<width$}  {:>5}  {:>12}  {:>15}", "RULE", "PACKETS", "BYTES")?;
    for Row { prefix, rule, dropped } in rows {
        let rule = rule.map_or_else(|| "pass".to_owned(), |rule| rule.to_string());
        let [packets, bytes] = match dropped {
            Some(Traffic { packets, bytes }) => [packets, bytes].map(u64::to_string),
            None => ["-", "-"].map(str::to_owned),
        };
        writeln!(out, "{prefix:<width$}  {rule:>5}  {packets:>12}  {bytes:>15}")?;
    }
    Ok(())
}

const PREFIX: &str = "PREFIX";

fn json(rows: &[Row]) -> Value {
    let row = |Row { prefix, rule, dropped }: &Row| {
        let effect = if rule.is_some() { "deny" } else { "pass" };
        let (packets, bytes) = (dropped.map(|dropped| dropped.packets), dropped.map(|dropped| dropped.bytes));
        json!({ "prefix": prefix, "effect": effect, "rule": rule, "packets": packets, "bytes": bytes })
    };
    rows.iter().map(row).collect()
}

fn verdict(entries: &[DenyEntry], address: IpAddr) -> String {
    match DenyEntry::deciding(entries, address) {
        Some(DenyEntry { prefix, rule: Some(rule) }) => format!("denied by {prefix} (rule {rule})"),
        Some(DenyEntry { prefix, rule: None }) => {
            format!("passes by {prefix}, a network of trusted proxies")
        }
        None => "passes; no entry of the deny list holds it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(prefix: &str, rule: Option<DenyRule>) -> DenyEntry {
        DenyEntry { prefix: prefix.parse().expect("a prefix"), rule }
    }

    fn list() -> [DenyEntry; 4] {
        [
            entry("10.0.0.0/8", Some(2)),
            entry("10.1.0.0/16", None),
            entry("2001:db8::/32", Some(1)),
            entry("2001:db8:1::/48", Some(DENY_OTHERS)),
        ]
    }

    const HITS: [Traffic; 3] =
        [Traffic { packets: 1, bytes: 60 }, Traffic { packets: 0, bytes: 0 }, Traffic { packets: 12, bytes: 1_000 }];

    #[test]
    fn each_prefix_has_a_line_and_what_is_shared_one_of_its_own() {
        let mut table = Vec::new();
        write_table(&mut table, &rows(&list(), &HITS)).expect("written");
        let expect = "\
PREFIX            RULE       PACKETS            BYTES
10.0.0.0/8           2            12             1000
10.1.0.0/16       pass             -                -
2001:db8::/32        1             0                0
2001:db8:1::/48      0             -                -
(others)             0             1               60
";
        assert_eq!(String::from_utf8(table).expect("text"), expect);
        assert!(rows(&[], &[]).is_empty());
        assert_eq!(rows(&[], &HITS).len(), 1, "what was shared goes on to be shown");
    }

    #[test]
    fn scripts_get_numbers_or_nothing() {
        let json = json(&rows(&list()[..2], &HITS[1..]));
        let expect = json!([
            { "prefix": "10.0.0.0/8", "effect": "deny", "rule": 2, "packets": 0, "bytes": 0 },
            { "prefix": "10.1.0.0/16", "effect": "pass", "rule": null, "packets": null, "bytes": null },
        ]);
        assert_eq!(json, expect);
    }

    #[test]
    fn the_longest_prefix_decides() {
        for (address, expect) in [
            ("10.2.3.4", "denied by 10.0.0.0/8 (rule 2)"),
            ("::ffff:10.2.3.4", "denied by 10.0.0.0/8 (rule 2)"),
            ("10.1.3.4", "passes by 10.1.0.0/16, a network of trusted proxies"),
            ("192.0.2.1", "passes; no entry of the deny list holds it"),
            ("2001:db8:1::1", "denied by 2001:db8:1::/48 (rule 0)"),
            ("2001:db8:2::1", "denied by 2001:db8::/32 (rule 1)"),
        ] {
            assert_eq!(verdict(&list(), address.parse().expect("an address")), expect, "{address}");
        }
    }
}
