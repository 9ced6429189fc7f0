//! `xdp-ingress clients`: shows the limits of clients on this node, and the clients above them, from the pinned maps.
//! Changes nothing.

use std::time::Duration;

use ingress_cli::{
    print,
    table::{TableColumn, table},
};
use ingress_datapath::{ClientLimits, LimitedClient, PacketRate, Pinned};
use serde_json::{Value, json};

use crate::commands::arguments::{ClientsArgs, PinArgs, ShowArgs};

/// Writes the requested output to standard output.
///
/// # Errors
/// Fails if nothing is pinned, the pins cannot be read, or standard output cannot be written.
pub(crate) fn run(args: ClientsArgs) -> anyhow::Result<()> {
    let ClientsArgs { show: ShowArgs { pins: PinArgs { bpffs }, output }, limit } = args;
    let read = || {
        let pinned = Pinned::open(&bpffs)?;
        Ok((pinned.maps().client_limits()?, pinned.maps().limited_clients()?))
    };
    print::show(&output, read, |(limits, clients), style| {
        let shown = &clients[..clients.len().min(limit)];
        style.render(&json(*limits, shown, clients.len()), || text(*limits, shown, clients.len()))
    })?;
    Ok(())
}

/// Describes the limits in words.
pub(crate) fn words(limits: ClientLimits) -> String {
    let ClientLimits { syns, packets, is_dry_run } = limits;
    let rate = |what: &str, rate: Option<PacketRate>| {
        rate.map(|PacketRate { per_second, burst }| format!("{per_second} {what} per second, {burst} at once"))
    };
    let limits: Vec<_> = [rate("SYNs", syns), rate("packets", packets)].into_iter().flatten().collect();
    match (limits.is_empty(), is_dry_run) {
        (true, _) => "clients are not limited".to_owned(),
        (false, false) => format!("each client may send {}", limits.join("; ")),
        (false, true) => format!("dry run, nothing is dropped: each client could send {}", limits.join("; ")),
    }
}

fn text(limits: ClientLimits, shown: &[LimitedClient], all: usize) -> String {
    format!(
        "{}\n{} of {all} clients sent more since these limits apply\n{}",
        words(limits),
        shown.len(),
        table(COLUMNS, &shown.iter().map(cells).collect::<Vec<_>>())
    )
}

const COLUMNS: [TableColumn; 4] = [
    TableColumn::Words("CLIENT"),
    TableColumn::Numbers("SYNS", 12),
    TableColumn::Numbers("PACKETS", 12),
    TableColumn::Numbers("AGO", 8),
];

/// Returns the cells in the order of [`COLUMNS`].
fn cells(client: &LimitedClient) -> [String; COLUMNS.len()] {
    let LimitedClient { client, syns, packets, ago } = client;
    [client.to_string(), syns.to_string(), packets.to_string(), seconds(*ago)]
}

fn seconds(ago: Duration) -> String {
    format!("{} s", ago.as_secs())
}

/// Returns the limits as JSON.
pub(crate) fn limits(limits: ClientLimits) -> Value {
    let ClientLimits { syns, packets, is_dry_run } = limits;
    let rate = |rate: Option<PacketRate>| {
        rate.map(|PacketRate { per_second, burst }| json!({ "per_second": per_second, "burst": burst }))
    };
    json!({ "syns": rate(syns), "packets": rate(packets), "dry_run": is_dry_run })
}

fn json(in_force: ClientLimits, shown: &[LimitedClient], all: usize) -> Value {
    let client = |client: &LimitedClient| {
        let LimitedClient { client, syns, packets, ago } = client;
        let ago = ago.as_secs_f64();
        json!({ "client": client.to_string(), "syns": syns, "packets": packets, "seconds_ago": ago })
    };
    json!({
        "limits": limits(in_force),
        "limited_clients": all,
        "clients": shown.iter().map(client).collect::<Value>(),
    })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn rate(per_second: u32, burst: u32) -> Option<PacketRate> {
        Some(PacketRate { per_second: NonZeroU32::new(per_second)?, burst: NonZeroU32::new(burst)? })
    }

    fn limited(client: &str, syns: u64, packets: u64) -> LimitedClient {
        let client = client.parse().expect("a network");
        LimitedClient { client, syns, packets, ago: Duration::from_millis(2500) }
    }

    #[test]
    fn the_table_shows_limits_and_limited_clients() {
        let limits = ClientLimits { syns: rate(50, 100), packets: None, is_dry_run: false };
        let clients = [limited("2001:db8:1:2::/64", 1200, 3), limited("192.0.2.7/32", 4, 0)];
        let expect = "\
each client may send 50 SYNs per second, 100 at once
2 of 7 clients sent more since these limits apply
CLIENT                     SYNS       PACKETS       AGO
2001:db8:1:2::/64          1200             3       2 s
192.0.2.7/32                  4             0       2 s
";
        assert_eq!(text(limits, &clients, 7), expect);
    }

    #[test]
    fn limits_are_described_in_words() {
        for (limits, expect) in [
            (ClientLimits::default(), "clients are not limited"),
            (
                ClientLimits { syns: rate(1, 2), packets: rate(30, 40), is_dry_run: false },
                "each client may send 1 SYNs per second, 2 at once; 30 packets per second, 40 at once",
            ),
            (
                ClientLimits { syns: None, packets: rate(30, 40), is_dry_run: true },
                "dry run, nothing is dropped: each client could send 30 packets per second, 40 at once",
            ),
        ] {
            assert_eq!(words(limits), expect);
        }
    }

    #[test]
    fn json_holds_numbers_or_null() {
        let limits = ClientLimits { syns: rate(50, 100), packets: None, is_dry_run: true };
        let expect = json!({
            "limits": { "syns": { "per_second": 50, "burst": 100 }, "packets": null, "dry_run": true },
            "limited_clients": 3,
            "clients": [{ "client": "192.0.2.7/32", "syns": 4, "packets": 0, "seconds_ago": 2.5 }],
        });
        assert_eq!(json(limits, &[limited("192.0.2.7/32", 4, 0)], 3), expect);
    }
}
