//! Problems in a node's state, each with advice. Pure.

use std::time::Duration;

use ingress_common::{Total, map, steer::HEARTBEAT_STALE_NS};
use ingress_datapath::{Hook, LinkState, PinnedLink, Process, Role};

use super::{NodeState, percent};
use crate::daemon::netfilter_check::{ADVICE, NetfilterCheck};

/// Fill level from which a map is reported.
const FULL_PERCENT: usize = 90;

impl NodeState {
    /// Returns one sentence per problem; empty if all is well.
    pub(super) fn attention(&self) -> Vec<String> {
        let owner = self.processes.iter().find(|process| process.role != Role::Draining);
        let mut attention: Vec<_> = match owner {
            None => {
                vec!["no process owns this node; see the log of `xdp-ingress run`, if it is running".to_owned()]
            }
            Some(Process { lives: Some(false), .. }) => vec![
                "the process that owns this node has ended; new connections are refused until another takes over: \
                 start `xdp-ingress run`; the end of its log explains why the last one ended"
                    .to_owned(),
            ],
            Some(Process { silence, .. }) if *silence > Duration::from_nanos(HEARTBEAT_STALE_NS) => vec![format!(
                "the process that owns this node has given no heartbeat for {:.1} s: it hangs or gets no CPU; XDP \
                 chooses no workers and limits no clients, the default rule delivers, and clients may wait: restart it \
                 if it does not recover",
                silence.as_secs_f64()
            )],
            Some(_) => Vec::new(),
        };
        attention.extend(self.links.iter().filter_map(loose));
        if self.ports.iter().any(|port| port.rewritten.is_some()) {
            attention.extend(self.one_way.iter().map(|index| {
                format!(
                    "ports of packets that interface {index} receives are not rewritten, because its sent packets are \
                     not seen; the log of `xdp-ingress run` explains why"
                )
            }));
        }
        attention.extend(self.fills.iter().filter(|fill| percent(fill) >= FULL_PERCENT).map(|fill| {
            let what = match fill.map {
                map::HOST_IDS => "further hosts count for host 0; raise `--host-capacity` after `xdp-ingress unload`",
                map::FLOWS => {
                    "packets of further connections count for host 0, but all are served; room returns when \
                     connections end"
                }
                map::DENY4 | map::DENY6 => {
                    "the proxy, not XDP, refuses further denied networks; name larger networks in `block-cidrs`"
                }
                map::DENIALS => "further denials are refused; remove some with `xdp-ingress deny remove`",
                _ => "further entries are left out, and the log of `xdp-ingress run` reports it",
            };
            format!("map `{}` is {} % full: {what}", fill.map, percent(fill))
        }));
        attention.extend(self.limited.first().map(|most| {
            let would = if self.limits.is_dry_run { "would have dropped" } else { "dropped" };
            format!(
                "limits {would} packets of {} clients within the last minute, most of {}; `xdp-ingress clients` lists \
                 them, and `client-limits-dry-run` in the settings lets them through",
                self.limited.len(),
                most.client
            )
        }));
        let packets = |total: Total| {
            let counted = self.totals.iter().find(|counted| counted.total == total);
            counted.map_or(0, |counted| counted.traffic.packets)
        };
        if let Some(requests) = NetfilterCheck::default().lost(packets) {
            attention.push(format!(
                "XDP has chosen workers for {requests} connection requests, but none reached sk_lookup: {ADVICE}"
            ));
        }
        attention
    }
}

/// Returns advice for a link that has no effect on this node.
fn loose(link: &PinnedLink) -> Option<String> {
    match (&link.hook, link.state) {
        (_, LinkState::Attached) => None,
        (Hook::Xdp { interface, .. } | Hook::TcIn { interface } | Hook::TcOut { interface }, _) => Some(format!(
            "interface `{interface}` is gone, and its program with it; `xdp-ingress run` attaches the program when the \
             interface returns, and logs it"
        )),
        (Hook::Lookup, LinkState::Detached) => {
            Some("the network namespace of sk_lookup is gone; run `xdp-ingress unload`".to_owned())
        }
        (Hook::Lookup, LinkState::Elsewhere) => Some(
            "sk_lookup is attached to another network namespace than this command's; run the command in the node's \
             namespace"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use ingress_cli::reading::ReasonCount;
    use ingress_common::Traffic;
    use ingress_datapath::{ClientLimits, Fill};

    use super::*;
    use crate::commands::status::tests::{limited, process, well};

    #[test]
    fn attention_lines_name_the_problem_and_the_remedy() {
        let fresh = Duration::from_millis(500);
        let detached = |hook, state| PinnedLink { hook, state, link_id: 7, program_id: 8 };
        let gone = Hook::Xdp { interface: "eth1".into(), mode: None };
        let total = |total, packets| ReasonCount { total, name: "", traffic: Traffic { packets, bytes: 0 } };
        for (state, expected) in [
            (NodeState { processes: Vec::new(), ..well() }, "no process owns this node"),
            (NodeState { processes: vec![process(Role::Owner, fresh, Some(false))], ..well() }, "has ended"),
            (NodeState { processes: vec![process(Role::Owner, 4 * fresh, Some(true))], ..well() }, ""),
            (
                NodeState { processes: vec![process(Role::Owner, 8 * fresh, Some(true))], ..well() },
                "no heartbeat for 4.0 s: it hangs",
            ),
            (NodeState { processes: vec![process(Role::Draining, fresh, Some(true))], ..well() }, "no process owns"),
            (NodeState { links: vec![detached(gone, LinkState::Detached)], ..well() }, "interface `eth1` is gone"),
            (
                NodeState { links: vec![detached(Hook::Lookup, LinkState::Elsewhere)], ..well() },
                "another network namespace",
            ),
            (NodeState { links: vec![detached(Hook::Lookup, LinkState::Detached)], ..well() }, "xdp-ingress unload"),
            (NodeState { links: Vec::new(), ..well() }, ""),
            (
                NodeState { totals: vec![total(Total::Decided, 40)], ..well() },
                "workers for 40 connection requests, but none reached sk_lookup: a rule of netfilter",
            ),
            (NodeState { totals: vec![total(Total::Decided, 40), total(Total::LookupDecided, 1)], ..well() }, ""),
            (
                NodeState { fills: vec![Fill { map: map::HOST_IDS, entries: 58, capacity: 64 }], ..well() },
                "map `host_ids` is 90 % full: further hosts count for host 0; raise `--host-capacity`",
            ),
            (
                NodeState {
                    fills: vec![Fill { map: map::DENY6, entries: 100_000, capacity: map::DENY_MAX }],
                    ..well()
                },
                "map `deny6` is 100 % full: the proxy, not XDP, refuses further denied networks",
            ),
            (
                NodeState { limited: limited(), ..well() },
                "limits dropped packets of 2 clients within the last minute, most of 192.0.2.7/32; `xdp-ingress",
            ),
            (
                NodeState {
                    limited: limited(),
                    limits: ClientLimits { is_dry_run: true, ..ClientLimits::default() },
                    ..well()
                },
                "limits would have dropped packets of 2 clients",
            ),
        ] {
            let attention = state.attention().join("\n");
            assert!(
                attention.contains(expected) && attention.is_empty() == expected.is_empty(),
                "{expected}: {attention}"
            );
        }
    }

    #[test]
    fn attention_lines_match_the_documentation() {
        const DOCS: &str = include_str!("../../../../../../docs/lifecycle.md");
        let full = |map, capacity: u32| Fill { map, entries: usize::try_from(capacity).expect("some"), capacity };
        let fills = vec![
            full(map::HOST_IDS, map::HOSTS_DEFAULT),
            full(map::FLOWS, map::FLOWS_MAX),
            full(map::DENY4, map::DENY_MAX),
            full(map::DENIALS, map::DENIALS_MAX),
        ];
        let hung = process(Role::Owner, Duration::from_secs(4), Some(true));
        let ended = Process { lives: Some(false), ..hung };
        for state in [
            NodeState { processes: vec![hung], ..well() },
            NodeState { processes: vec![ended], ..well() },
            NodeState { fills, ..well() },
        ] {
            for said in state.attention() {
                assert!(DOCS.contains(&said), "docs/lifecycle.md does not say: {said}");
            }
        }
    }
}
