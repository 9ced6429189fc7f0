//! `xdp-ingress status`: shows the owner of a node, its links with their attachments, the fill level of its maps, its
//! totals, and problems. Pure except for [`run`] and [`NodeState::read`].

mod attention;

use std::{fmt::Write as _, net::Ipv6Addr, ops::Range, path::Path, process::ExitCode, time::Duration};

use ingress_cli::{
    FINDINGS, counters,
    palette::{Palette, Tone},
    print::{self, quantity},
    reading::ReasonCount,
};
use ingress_common::{
    NodeAddr, SynCookies,
    flow::{PROTO_TCP, PROTO_UDP},
    map,
    steer::{NIC_TRANSMITS, PORT_COUNT_ONLY, PORT_QUIC},
    syn_cookies::SYN_COOKIES_DRY_RUN,
};
use ingress_datapath::{
    ClientLimits, Fill, Hook, LimitedClient, LinkState, NicMode, Pinned, PinnedLink, Process, Role,
};
use serde_json::{Value, json};

use crate::commands::{
    arguments::{PinArgs, ShowArgs, StateArgs},
    clients,
};

/// Shows the state of the node.
///
/// # Errors
/// Fails if nothing is pinned, the pins cannot be read, or standard output cannot be written.
pub(crate) fn run(args: StateArgs) -> anyhow::Result<ExitCode> {
    let StateArgs { show: ShowArgs { pins: PinArgs { bpffs }, output }, exit_code } = args;
    let read = || Ok(NodeState::read(&bpffs, &Pinned::open(&bpffs)?)?);
    let state = print::show(&output, read, |state, style| style.render(&state.json(), || state.text(style.palette)))?;
    Ok(if exit_code && !state.attention().is_empty() { FINDINGS.into() } else { ExitCode::SUCCESS })
}

/// The state of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeState {
    /// Directory of the pins.
    pins: String,
    processes: Vec<Process>,
    links: Vec<PinnedLink>,
    /// Indices of interfaces with a clsact filter on received packets, which has no link.
    filters: Vec<u32>,
    /// Indices of interfaces with programs on received but not on sent packets, so that no port is rewritten there.
    one_way: Vec<u32>,
    ports: Vec<PortRow>,
    /// Epochs of the processes with sockets of HTTP/3, the newest first.
    quic: Vec<u32>,
    /// Addresses, each with the index of its interface.
    addresses: Vec<(String, u32)>,
    fills: Vec<Fill>,
    /// Whether there is a flood of SYNs, with the settings of SYN cookies; `None` while they are off.
    syn_flood: Option<(bool, SynCookies)>,
    limits: ClientLimits,
    /// Clients that exceeded their limits within [`LATELY`].
    limited: Vec<LimitedClient>,
    totals: Vec<ReasonCount>,
}

/// A steered port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PortRow {
    number: u16,
    proto: &'static str,
    /// Slots of listeners; an empty range means that packets are counted but not steered.
    slots: Range<u32>,
    /// Number of sockets of HTTP/3 that get new connections.
    quic_sockets: u32,
    /// Rewritten port of the packets on this node.
    rewritten: Option<u16>,
}

/// Time after which clients above their limits are no longer reported.
const LATELY: Duration = Duration::from_mins(1);

// === impl NodeState ===

impl NodeState {
    pub(crate) fn read(bpffs: &Path, pinned: &Pinned) -> Result<Self, ingress_datapath::Error> {
        let maps = pinned.maps();
        let mut ports: Vec<_> = maps
            .ports()?
            .into_iter()
            // A replacement port is shown with its public port.
            .filter(|(_, rule)| rule.public().is_none())
            .map(|(key, rule)| PortRow {
                number: u16::from_be(key.port_be),
                proto: match key.proto {
                    PROTO_TCP => "tcp",
                    PROTO_UDP => "udp",
                    _ => "unknown",
                },
                slots: if rule.flags & PORT_COUNT_ONLY == 0 {
                    rule.first_slot..rule.first_slot.saturating_add(rule.workers)
                } else {
                    0..0
                },
                quic_sockets: if rule.flags & PORT_QUIC == 0 { 0 } else { rule.workers },
                rewritten: rule.rewritten().map(u16::from_be),
            })
            .collect();
        ports.sort_by_key(|port| (port.number, port.proto));
        let mut addresses: Vec<_> = maps.node_addrs()?;
        addresses.sort_by_key(|(address, _)| *address);
        let address =
            |(octets, addr): ([u8; 16], NodeAddr)| (Ipv6Addr::from(octets).to_canonical().to_string(), addr.ifindex);
        let nics = maps.nics()?;
        let with = |is_meant: fn(NicMode, u32) -> bool| -> Vec<u32> {
            let nics = nics
                .iter()
                .filter(|(_, nic)| NicMode::from_code(nic.mode).is_some_and(|mode| is_meant(mode, nic.flags)));
            nics.map(|(index, _)| *index).collect()
        };
        let mut limited = maps.limited_clients()?;
        limited.retain(|client| client.ago <= LATELY);
        Ok(Self {
            pins: bpffs.join(map::LAYOUT).display().to_string(),
            processes: pinned.processes()?,
            links: pinned.links()?,
            filters: with(|mode, _| mode == NicMode::Clsact),
            one_way: with(|_, flags| flags & NIC_TRANSMITS == 0),
            ports,
            quic: pinned.quic_epochs()?,
            addresses: addresses.into_iter().map(address).collect(),
            fills: pinned.fills()?,
            syn_flood: pinned.syn_flood()?,
            limits: maps.client_limits()?,
            limited,
            totals: ReasonCount::all(maps.totals()?.iter()),
        })
    }

    /// Formats the state, one item per line after a label.
    pub(crate) fn text(&self, palette: Palette) -> String {
        let Self {
            pins,
            processes,
            links,
            filters,
            one_way: _,
            ports,
            quic,
            addresses,
            fills,
            syn_flood,
            limits,
            limited: _,
            totals,
        } = self;
        let mut text = LabelledLines::default();
        text.line("pins", pins);
        for process in processes {
            let Process { epoch, role: _, silence, lives } = process;
            let lives = match lives {
                Some(true) => "lives",
                Some(false) => "has ended",
                None => "may be alive: the pins are changing",
            };
            text.line(
                role(process),
                format_args!("process {epoch}, heartbeat {:.1} s ago, {lives}", silence.as_secs_f64()),
            );
        }
        for PinnedLink { hook, state, link_id, program_id } in links {
            let (label, place) = match hook {
                Hook::Lookup => ("sk_lookup", "network namespace".to_owned()),
                Hook::Xdp { interface, mode } => ("xdp", format!("{interface}, {}", mode_name(*mode))),
                Hook::TcIn { interface } => ("tcx", format!("{interface}, received packets")),
                Hook::TcOut { interface } => ("tcx", format!("{interface}, sent packets")),
            };
            let state = state_name(*state);
            text.line(label, format_args!("{place}: {state} (link {link_id}, program {program_id})"));
        }
        if !links.iter().any(|link| matches!(link.hook, Hook::Lookup)) {
            text.line("sk_lookup", "off");
        }
        for index in filters {
            text.line("clsact", format_args!("interface {index}, received packets"));
        }
        if filters.is_empty() && !links.iter().any(|link| matches!(link.hook, Hook::Xdp { .. } | Hook::TcIn { .. })) {
            text.line("xdp", "off");
        }
        for PortRow { number, proto, slots, quic_sockets, rewritten } in ports {
            if *quic_sockets > 0 {
                text.line("port", format_args!("{number}/{proto}: HTTP/3, {quic_sockets} sockets by connection ID"));
                continue;
            }
            let rewritten = rewritten.map_or_else(String::new, |port| format!(", rewritten to {port}"));
            match slots.clone().next_back() {
                None => text.line("port", format_args!("{number}/{proto}: counted, not steered{rewritten}")),
                Some(last) => {
                    text.line("port", format_args!("{number}/{proto}: listeners {} to {last}{rewritten}", slots.start));
                }
            }
        }
        if !quic.is_empty() {
            let epochs: Vec<_> = quic.iter().map(u32::to_string).collect();
            text.line("http3", format_args!("sockets of process {}", epochs.join(", ")));
        }
        for (address, interface) in addresses {
            text.line("address", format_args!("{address} on interface {interface}"));
        }
        for fill in fills {
            let Fill { map, entries, capacity } = fill;
            text.line("map", format_args!("{map}: {entries} of {capacity} ({} %)", percent(fill)));
        }
        if let Some((is_flood, settings)) = syn_flood {
            let state = if *is_flood { "flood" } else { "no flood" };
            let dry_run = if settings.flags & SYN_COOKIES_DRY_RUN == 0 { "" } else { " (dry run)" };
            let threshold = settings.per_second;
            text.line(
                "cookies",
                format_args!("{state}; from {threshold} SYNs per second on, XDP answers them{dry_run}"),
            );
        }
        if limits.is_on() {
            text.line("limits", clients::words(*limits));
        }
        for ReasonCount { total: _, name, traffic } in totals.iter().filter(|counted| counted.traffic.packets > 0) {
            let bytes = quantity(traffic.bytes, None);
            text.line("total", format_args!("{name}: {} packets, {bytes} bytes", traffic.packets));
        }
        for sentence in self.attention() {
            text.line("attention", palette.paint(Tone::Warning, &sentence));
        }
        text.0
    }

    pub(crate) fn json(&self) -> Value {
        let Self {
            pins,
            processes,
            links,
            filters,
            one_way,
            ports,
            quic,
            addresses,
            fills,
            syn_flood,
            limits,
            limited,
            totals,
        } = self;
        let syn_flood = syn_flood.map(|(is_flood, settings)| {
            let dry_run = settings.flags & SYN_COOKIES_DRY_RUN != 0;
            json!({ "flood": is_flood, "threshold": settings.per_second, "dry_run": dry_run })
        });
        let process = |process: &Process| {
            let Process { epoch, role: _, silence, lives } = process;
            let silence = silence.as_secs_f64();
            json!({ "epoch": epoch, "role": role(process), "heartbeat_seconds_ago": silence, "lives": lives })
        };
        let link = |link: &PinnedLink| {
            let PinnedLink { hook, state, link_id, program_id } = link;
            let (hook, direction, interface, mode) = match hook {
                Hook::Lookup => ("sk_lookup", None, None, None),
                Hook::Xdp { interface, mode } => ("xdp", Some("received"), Some(interface), Some(mode_name(*mode))),
                Hook::TcIn { interface } => ("tcx", Some("received"), Some(interface), Some(NicMode::Tcx.as_str())),
                Hook::TcOut { interface } => ("tcx", Some("transmitted"), Some(interface), None),
            };
            json!({
                "hook": hook, "direction": direction, "interface": interface, "mode": mode,
                "state": state_name(*state), "link_id": link_id, "program_id": program_id,
            })
        };
        let port = |port: &PortRow| {
            let PortRow { number, proto, slots, quic_sockets, rewritten } = port;
            json!({
                "port": number, "proto": proto, "first_slot": slots.start, "slots": slots.len(),
                "quic_sockets": quic_sockets, "rewritten_to": rewritten,
            })
        };
        let address = |(address, interface): &(String, u32)| json!({ "address": address, "interface": interface });
        let fill =
            |Fill { map, entries, capacity }: &Fill| json!({ "map": map, "entries": entries, "capacity": capacity });
        json!({
            "pins": pins,
            "processes": processes.iter().map(process).collect::<Value>(),
            "links": links.iter().map(link).collect::<Value>(),
            "filters": filters,
            "one_way": one_way,
            "ports": ports.iter().map(port).collect::<Value>(),
            "quic_epochs": quic,
            "addresses": addresses.iter().map(address).collect::<Value>(),
            "maps": fills.iter().map(fill).collect::<Value>(),
            "syn_cookies": syn_flood,
            "limits": clients::limits(*limits),
            "clients_limited_lately": limited.len(),
            "totals": counters::totals(totals.iter().map(|counted| (counted.name, counted.traffic))),
            "attention": self.attention(),
        })
    }
}

/// Builder for labelled lines.
#[derive(Debug, Default)]
struct LabelledLines(String);

impl LabelledLines {
    fn line(&mut self, label: &str, what: impl std::fmt::Display) {
        writeln!(self.0, "{label:<10} {what}").unwrap_or_default();
    }
}

const fn role(process: &Process) -> &'static str {
    match process.role {
        Role::Owner => "owner",
        Role::Offering => "offering",
        Role::Draining => "draining",
    }
}

const fn state_name(state: LinkState) -> &'static str {
    match state {
        LinkState::Attached => "attached",
        LinkState::Elsewhere => "elsewhere",
        LinkState::Detached => "detached",
    }
}

const fn mode_name(mode: Option<NicMode>) -> &'static str {
    match mode {
        Some(mode) => mode.as_str(),
        None => "unknown",
    }
}

fn percent(fill: &Fill) -> usize {
    fill.entries.saturating_mul(100) / usize::try_from(fill.capacity).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use ingress_common::{Total, Traffic};
    use ingress_datapath::PacketRate;

    use super::*;

    pub(super) fn process(role: Role, silence: Duration, lives: Option<bool>) -> Process {
        Process { epoch: 4, role, silence, lives }
    }

    pub(super) fn well() -> NodeState {
        let link = |hook| PinnedLink { hook, state: LinkState::Attached, link_id: 7, program_id: 8 };
        let native = Hook::Xdp { interface: "eth0".into(), mode: Some(NicMode::Native) };
        let total = |total, name, packets, bytes| ReasonCount { total, name, traffic: Traffic { packets, bytes } };
        NodeState {
            pins: "/sys/fs/bpf/xdp-ingress/v1".into(),
            processes: vec![
                process(Role::Owner, Duration::from_millis(640), Some(true)),
                Process { epoch: 3, ..process(Role::Draining, Duration::from_millis(100), None) },
            ],
            links: vec![link(Hook::Lookup), link(native), link(Hook::TcOut { interface: "eth0".into() })],
            filters: Vec::new(),
            one_way: Vec::new(),
            ports: vec![
                PortRow { number: 80, proto: "tcp", slots: 0..2, quic_sockets: 0, rewritten: None },
                PortRow { number: 5353, proto: "udp", slots: 0..0, quic_sockets: 0, rewritten: None },
            ],
            quic: Vec::new(),
            addresses: vec![("192.0.2.7".into(), 2)],
            fills: vec![
                Fill { map: map::FLOWS, entries: 12_000, capacity: map::FLOWS_MAX },
                Fill { map: map::DENY4, entries: 3, capacity: map::DENY_MAX },
            ],
            syn_flood: None,
            limits: ClientLimits::default(),
            limited: Vec::new(),
            totals: vec![total(Total::Accepted, "accepted", 29, 2318), total(Total::Denied, "denied", 0, 0)],
        }
    }

    pub(super) fn limited() -> Vec<LimitedClient> {
        let client = |client: &str, syns| {
            let client = client.parse().expect("a network");
            LimitedClient { client, syns, packets: 0, ago: Duration::from_secs(3) }
        };
        vec![client("192.0.2.7/32", 9), client("2001:db8:1:2::/64", 1)]
    }

    #[test]
    fn limits_are_shown_if_configured() {
        let rate = |count| PacketRate { per_second: count, burst: count };
        let packets = std::num::NonZeroU32::new(500).map(rate);
        let limits = ClientLimits { packets, ..ClientLimits::default() };
        let limited = NodeState { limits, limited: limited(), ..well() };
        let line = "\nlimits     each client may send 500 packets per second, 500 at once\n";
        assert!(limited.text(Palette::NONE).contains(line), "{}", limited.text(Palette::NONE));
        let json = limited.json();
        assert_eq!(json["limits"]["packets"], json!({ "per_second": 500, "burst": 500 }));
        assert_eq!((&json["limits"]["syns"], &json["clients_limited_lately"]), (&Value::Null, &json!(2)));
    }

    #[test]
    fn rewritten_ports_and_one_way_interfaces_are_shown() {
        let port = |rewritten| PortRow { number: 80, proto: "tcp", slots: 0..2, quic_sockets: 0, rewritten };
        let rewriting = NodeState { ports: vec![port(Some(10_080))], one_way: vec![3], ..well() };
        let text = rewriting.text(Palette::NONE);
        assert!(text.contains("\nport       80/tcp: listeners 0 to 1, rewritten to 10080\n"), "{text}");
        assert!(text.contains("\nattention  ports of packets that interface 3 receives are not rewritten"), "{text}");
        assert_eq!(rewriting.json()["ports"][0]["rewritten_to"], 10_080);
        let steering = NodeState { ports: vec![port(None)], one_way: vec![3], ..well() };
        assert_eq!(steering.attention(), Vec::<String>::new(), "nobody misses anything");
    }

    #[test]
    fn syn_cookies_are_shown_while_they_are_on() {
        let settings = SynCookies::new(5000, SYN_COOKIES_DRY_RUN, 7);
        let flooded = NodeState { syn_flood: Some((true, settings)), ..well() };
        let text = flooded.text(Palette::NONE);
        let line = "\ncookies    flood; from 5000 SYNs per second on, XDP answers them (dry run)\n";
        assert!(text.contains(line), "{text}");
        assert_eq!(flooded.json()["syn_cookies"], json!({ "flood": true, "threshold": 5000, "dry_run": true }));
        assert_eq!(well().json()["syn_cookies"], Value::Null);
    }

    #[test]
    fn sockets_of_http3_are_shown() {
        let port = PortRow { number: 443, proto: "udp", slots: 0..0, quic_sockets: 2, rewritten: None };
        let serving = NodeState { ports: vec![port], quic: vec![4, 3], ..well() };
        let text = serving.text(Palette::NONE);
        assert!(text.contains("\nport       443/udp: HTTP/3, 2 sockets by connection ID\n"), "{text}");
        assert!(text.contains("\nhttp3      sockets of process 4, 3\n"), "{text}");
        let json = serving.json();
        assert_eq!((&json["ports"][0]["quic_sockets"], &json["quic_epochs"]), (&json!(2), &json!([4, 3])));
    }

    #[test]
    fn a_healthy_node_is_shown_in_full() {
        expect![[r"
            pins       /sys/fs/bpf/xdp-ingress/v1
            owner      process 4, heartbeat 0.6 s ago, lives
            draining   process 3, heartbeat 0.1 s ago, may be alive: the pins are changing
            sk_lookup  network namespace: attached (link 7, program 8)
            xdp        eth0, native: attached (link 7, program 8)
            tcx        eth0, sent packets: attached (link 7, program 8)
            port       80/tcp: listeners 0 to 1
            port       5353/udp: counted, not steered
            address    192.0.2.7 on interface 2
            map        flows: 12000 of 1048576 (1 %)
            map        deny4: 3 of 100000 (0 %)
            total      accepted: 29 packets, 2.3k bytes
        "]]
        .assert_eq(&well().text(Palette::NONE));
        let json = well().json();
        assert_eq!(json["processes"][0]["role"], "owner");
        assert_eq!(json["processes"][1]["lives"], Value::Null);
        assert_eq!(json["links"][1]["mode"], "native");
        assert_eq!(json["links"][0]["interface"], Value::Null);
        assert_eq!(
            json["ports"][0],
            json!({ "port": 80, "proto": "tcp", "first_slot": 0, "slots": 2, "quic_sockets": 0, "rewritten_to": null })
        );
        assert_eq!(json["totals"]["accepted"], json!({ "packets": 29, "bytes": 2318 }));
        assert_eq!(json["totals"]["denied"]["packets"], 0, "programs see what people need not");
        assert_eq!(json["attention"], json!([]));
    }

    #[test]
    fn disabled_hooks_and_clsact_filters_are_shown() {
        let filtered = NodeState { links: Vec::new(), filters: vec![3], ..well() };
        assert!(
            filtered.text(Palette::NONE).contains("\nsk_lookup  off\nclsact     interface 3, received packets\nport"),
            "{}",
            filtered.text(Palette::NONE)
        );
        assert_eq!(filtered.json()["filters"], json!([3]));
        let off = NodeState { links: Vec::new(), ..well() }.text(Palette::NONE);
        assert!(off.contains("\nsk_lookup  off\nxdp        off\n"), "{off}");
    }
}
