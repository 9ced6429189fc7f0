//! Packets and connections that were not served, by reason, as the kernel programs and the proxy count them.
//!
//! Addresses of clients are not shown. The page names the commands that show them.

use ingress_common::{Total, Traffic};
use ingress_proxy::{Refusal, StatsView};
use maud::{Markup, html};

use super::{
    Page,
    format::count,
    overview::tile,
    table::{byte_count, counter, number, rate, spark, table, text},
};
use crate::daemon::admin::AdminSource;

/// Reasons for which programs drop packets, or connections are refused, with their meaning.
const DROPS: [(&str, &str); 10] = [
    ("denied", "The sender is on the deny list."),
    ("limited_syn", "The client opens connections faster than its limit."),
    ("limited_packet", "The client sends packets faster than its limit."),
    ("rewritten_port", "A connection to a port that replaces another one on this node."),
    ("hidden_port", "The port is unreadable while limits hold."),
    ("syn_cookie_invalid", "A TCP segment of no connection, during a flood of connection requests."),
    ("quic_unknown", "A packet of QUIC that belongs to no connection of this node."),
    ("quic_short", "A first packet of QUIC in a datagram under 1200 bytes."),
    ("slot_empty", "No process listens; the kernel refuses the connection."),
    ("lookup_denied", "The sender is on the deny list, and the packet passed no program; the kernel refuses it."),
];

/// All other reasons that the kernel part counts.
const OTHERS: [(&str, &str); 34] = [
    ("accepted", "For an address of the node and a served port."),
    ("transmitted", "Sent from served ports."),
    ("not_ip", "Neither IPv4 nor IPv6; passed on."),
    ("malformed", "Headers that are too short or contradict each other; passed on."),
    ("fragment", "A later fragment, which has no port; passed on."),
    ("other_protocol", "Neither TCP nor UDP; passed on."),
    ("other_port", "A port that is not served; passed on."),
    ("transit", "For another machine; passed on."),
    ("announced", "Questions for a Gateway's address that this node answered."),
    ("unannounced", "Questions for a Gateway's address that another node answers; dropped."),
    ("forwarded", "Segments of connections of the node that had a Gateway's address before; sent to that node."),
    ("syn_cookie_sent", "Connection requests of a flood that XDP answered by SYN cookies."),
    ("syn_cookie_valid", "Connections that began with a SYN cookie of XDP."),
    ("would_send_syn_cookie", "Connection requests that XDP would answer by SYN cookies (dry run)."),
    ("decided", "Connection requests and SYN cookies for which XDP chose a worker."),
    ("lookup_decided", "Connections delivered to the worker that XDP chose."),
    ("lookup_default", "Connections from this node or its pods, delivered by the default rule."),
    ("lookup_late", "Segments after the end of their connection."),
    ("undecided", "Connections that XDP saw and left no choice for."),
    ("assign_failed", "Listeners that the kernel did not take."),
    ("left", "Connection requests of clients outside the share; another listener takes them."),
    ("lookup_left", "Connections that the share leaves to another listener."),
    ("quic_by_id", "QUIC packets delivered by their connection ID."),
    ("quic_new", "First packets of QUIC connections."),
    ("quic_noted", "Further first packets of QUIC connections."),
    ("quic_gone", "QUIC packets of a process that has ended."),
    ("quic_other", "UDP packets for QUIC without a known connection ID."),
    ("quic_unchosen", "UDP packets for QUIC that the kernel delivered by hash."),
    ("heartbeat_stale", "Connection requests while the process gave no sign of life."),
    ("host_out_of_range", "Packets of hosts without counters of their own."),
    ("clients_full", "Packets of clients that found no room among the limits."),
    ("flows_full", "Connections whose packets count for no host."),
    ("would_limit_syn", "Connection requests above a limit that is only tried (dry run)."),
    ("would_limit_packet", "Packets above a limit that is only tried (dry run)."),
];

/// Returns whether packets of this reason were dropped by a program.
pub(super) fn is_drop(reason: &str) -> bool {
    Total::ALL.iter().any(|(total, name)| *name == reason && total.is_drop())
}

/// Returns whether the reason is one of SYN cookies, which are off by default, and never occurred.
fn is_hidden(reason: &str, traffic: Traffic) -> bool {
    reason.contains("syn_cookie") && traffic.packets == 0
}

pub(super) fn page(source: &dyn AdminSource) -> Page {
    let totals = source.totals();
    let main = html! {
        h1 { "Drops" }
        @if totals.is_empty() {
            p.note { "The kernel part is off, so no packets are counted or dropped by reason." }
        }
        section {
            h2 { "Dropped by the kernel part" }
            (reasons("drops", "Dropped packets and refused connections by reason", &DROPS, &totals))
        }
        (denied(source))
        section {
            h2 { "Refused by the proxy" }
            (refusals(&source.proxy()))
        }
        section {
            h2 { "Other packets" }
            (reasons("packets", "Packets that were served or passed on, and events", &OTHERS, &totals))
        }
    };
    Page::new("Drops", main)
}

fn reasons(id: &str, caption: &str, known: &[(&str, &str)], totals: &[(&'static str, Traffic)]) -> Markup {
    let columns =
        [text("Reason"), text("Meaning"), number("Packets/s"), text("Last minute"), number("Packets"), number("Bytes")];
    let traffic = |reason: &str| {
        totals.iter().find(|(name, _)| *name == reason).map_or_else(Traffic::default, |(_, traffic)| *traffic)
    };
    let rows = html! {
        @for (reason, meaning) in known.iter().filter(|(reason, _)| !is_hidden(reason, traffic(reason))) {
            @let Traffic { packets, bytes } = traffic(reason);
            tr data-key=(reason) {
                th scope="row" { code { (reason) } }
                td { (meaning) }
                (rate(reason, packets))
                td { (spark(reason)) }
                (counter(packets))
                (byte_count(bytes))
            }
        }
    };
    table(id, caption, &columns, &rows)
}

fn denied(source: &dyn AdminSource) -> Markup {
    let denied = source.denied();
    let limited = source.limited_clients();
    html! {
        section aria-labelledby="lists-title" {
            h2 #lists-title { "Deny list and limits" }
            dl.facts {
                @if let Some(denied) = &denied {
                    (tile("Rules of the deny list", &count(denied.rules.len() as u64)))
                    @for (origin, number) in &denied.denials {
                        (tile(&format!("Active denials by {origin}"), &count(*number as u64)))
                    }
                    (tile("Networks without room", &count(denied.left_out as u64)))
                }
                @if let Some((limits, clients)) = &limited {
                    (tile("Clients above their limits", &count(clients.len() as u64)))
                    (tile("Limits", if limits.is_dry_run { "dry run: packets pass" } else { "in effect" }))
                }
            }
            p.note {
                "Addresses of clients are not shown here. In the pod, " code { "xdp-ingress deny list" }
                " lists the denied networks with their packets, and " code { "xdp-ingress clients" }
                " the clients above their limits."
            }
        }
    }
}

fn refusals(stats: &StatsView) -> Markup {
    let refused = Refusal::ALL.iter().zip(stats.refused).map(|(refusal, count)| match refusal {
        Refusal::ProxyProtocol => ("Invalid or missing PROXY header", count),
        Refusal::Connections => ("Limit of connections of a worker", count),
        Refusal::ClientConnections => ("Limit of connections of a client", count),
        Refusal::Memory => ("Connections without memory", count),
        Refusal::NoListener => ("No listener at the address of a Gateway", count),
    });
    let rest = [
        ("Failed TLS handshakes", stats.handshake_errors),
        ("Connections lost at accept", stats.accept_errors),
        ("Ambiguous framing", stats.refused_framing),
        ("Floods of HTTP/2 frames", stats.flooded),
        ("Connections without progress", stats.timed_out),
        ("Slow request bodies", stats.slow_bodies),
        ("Slow readers of responses", stats.slow_reads),
        ("Connections closed for memory", stats.evicted),
        ("HTTP/2 streams reset for memory", stats.evicted_streams),
        ("Paths too costly to match", stats.costly_paths),
    ];
    let columns = [text("Reason"), number("Per second"), text("Last minute"), number("Count")];
    let rows = html! {
        @for (reason, count) in refused.chain(rest) {
            tr data-key=(reason) {
                th scope="row" { (reason) }
                (rate(reason, count))
                td { (spark(reason)) }
                (counter(count))
            }
        }
    };
    table("refusals", "Connections and requests that the proxy refused or closed", &columns, &rows)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_reason_of_the_kernel_part_has_a_meaning() {
        let shown: BTreeSet<_> = DROPS.iter().chain(&OTHERS).map(|(name, _)| *name).collect();
        let counted: BTreeSet<_> = Total::ALL.iter().map(|(_, name)| *name).collect();
        assert_eq!(shown, counted);
        assert_eq!(shown.len(), DROPS.len() + OTHERS.len(), "each is in one table");
    }
}
