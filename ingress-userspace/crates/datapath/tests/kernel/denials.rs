//! Denials by operators and escalations: they take effect at once from any writer, outlive processes and other
//! settings, expire by themselves, and never hit a trusted proxy.

use std::time::Duration;

use ingress_common::{DenialReason, map::DENIALS_MAX, steer::PORT_DENIES};
use ingress_datapath::{
    Applied, Datapath, Denial, DenialOrigin, DenialOutcome, DenyConfig, DenyEditor, DenyFill, Pinned, Rejection,
    Removed,
};
use ingress_lab::until;
use ipnet::{IpNet, Ipv4Net};

use crate::{
    deny::{deny, is_denied, nets, open_ports, serving},
    sandbox::{Sandbox, sandboxed},
};

/// Far longer than any test.
const HOUR: Option<Duration> = Some(Duration::from_secs(3600));

fn denial(network: &str, origin: DenialOrigin, lasts: Option<Duration>) -> Denial {
    Denial { network: nets(network)[0], origin, lasts, reason: DenialReason::new("a test").expect("a reason") }
}

/// The editor of `xdp-ingress deny`, beside a process or without one.
fn editor(sandbox: &Sandbox) -> DenyEditor {
    DenyEditor::open(&sandbox.bpffs()).expect("pins")
}

fn add(sandbox: &Sandbox, network: &str) -> DenialOutcome {
    editor(sandbox).add(&denial(network, DenialOrigin::Operator, None)).expect("the kernel takes it")
}

fn remove(sandbox: &Sandbox, network: &str) -> Removed {
    editor(sandbox).remove(nets(network)[0]).expect("the kernel takes it")
}

/// Returns networks and origins of the pinned denials.
fn listed(sandbox: &Sandbox) -> Vec<(String, DenialOrigin)> {
    let denials = Pinned::open(&sandbox.bpffs()).expect("pins").maps().denials().expect("readable");
    denials.into_iter().map(|denial| (denial.network.to_string(), denial.origin)).collect()
}

#[test]
fn operator_denials_apply_at_once_and_outlive_processes() {
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        deny(&datapath, "10.0.0.0/8", "");
        assert_eq!(add(sandbox, "192.0.2.0/24"), DenialOutcome::Enforced);
        assert_eq!(add(sandbox, "2001:db8:bad::/48"), DenialOutcome::Enforced);
        let everything = ["10.0.0.1", "192.0.2.7", "2001:db8:bad::1"];
        assert!(everything.iter().all(|from| is_denied(&datapath, from)));
        assert!(!is_denied(&datapath, "192.0.3.7"));

        assert_eq!(deny(&datapath, "11.0.0.0/8", ""), Applied { added: 1, removed: 1, left_out: 0 });
        assert!(!is_denied(&datapath, "10.0.0.1") && is_denied(&datapath, "192.0.2.7"));
        assert_eq!(deny(&datapath, "", ""), Applied { added: 0, removed: 1, left_out: 0 });
        assert!(is_denied(&datapath, "192.0.2.7") && is_denied(&datapath, "2001:db8:bad::1"));
        drop(datapath);

        let second = Datapath::open(&sandbox.options(&[])).expect("opens");
        second.take_over().expect("takes over");
        open_ports(&second);
        assert!(is_denied(&second, "192.0.2.7"), "before it is told anything");
        deny(&second, "", "");
        assert!(is_denied(&second, "192.0.2.7") && is_denied(&second, "2001:db8:bad::1"));
        let removed = Removed {
            network: nets("192.0.2.0/24")[0],
            origins: vec![DenialOrigin::Operator],
            is_configured: false,
            still_denied_by: None,
        };
        assert_eq!(remove(sandbox, "192.0.2.0/24"), removed);
        assert!(!is_denied(&second, "192.0.2.7") && is_denied(&second, "2001:db8:bad::1"));
        remove(sandbox, "2001:db8:bad::/48");
        let flags: Vec<_> = second.maps().ports().expect("ports").iter().map(|(_, rule)| rule.flags).collect();
        assert!(flags.iter().all(|flags| flags & PORT_DENIES == 0), "an empty list is not looked into");
    });
}

#[test]
fn denials_added_by_the_command_survive_a_change_of_ports() {
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        assert_eq!(add(sandbox, "192.0.2.0/24"), DenialOutcome::Enforced);
        assert!(is_denied(&datapath, "192.0.2.7"));
        // The process does the first every second, and the second when its ports change.
        assert!(datapath.deny_list().expire().expect("swept").is_empty());
        let view = datapath.deny_list().view().expect("readable");
        assert_eq!((view.rules.len(), view.denials), (1, [1, 0]));
        assert_eq!(datapath.deny_list().fill(), DenyFill { v4: 1, v6: 0, denials: 1 });
        open_ports(&datapath);
        assert!(is_denied(&datapath, "192.0.2.7"));
        remove(sandbox, "192.0.2.0/24");
        assert_eq!(datapath.deny_list().expire().expect("swept"), [(nets("192.0.2.0/24")[0], DenialOrigin::Operator)]);
        assert_eq!(datapath.deny_list().view().expect("readable").denials, [0, 0]);
        assert_eq!(datapath.deny_list().fill(), DenyFill::default());
    });
}

#[test]
fn a_network_is_admitted_once_no_origin_denies_it() {
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        deny(&datapath, "192.0.2.0/24 10.0.0.0/8", "");
        add(sandbox, "192.0.2.0/24");
        let escalation = denial("192.0.2.0/24", DenialOrigin::Escalation, HOUR);
        assert_eq!(datapath.deny_list().deny(&[escalation]).expect("taken"), [DenialOutcome::Enforced]);
        let network = nets("192.0.2.0/24")[0];
        let removed = remove(sandbox, "192.0.2.0/24");
        let origins = vec![DenialOrigin::Operator, DenialOrigin::Escalation];
        assert_eq!(removed, Removed { network, origins, is_configured: true, still_denied_by: Some(network) });
        assert!(is_denied(&datapath, "192.0.2.7"));
        let removed = remove(sandbox, "192.0.2.0/24");
        assert_eq!((removed.origins, removed.is_configured), (vec![], true), "that is up to the settings");
        assert!(is_denied(&datapath, "192.0.2.7"));
        add(sandbox, "192.0.2.0/24");
        deny(&datapath, "10.0.0.0/8", "");
        assert!(is_denied(&datapath, "192.0.2.7"));
        // A longer one goes, the one around it stays.
        add(sandbox, "192.0.2.7/32");
        let removed = remove(sandbox, "192.0.2.7/32");
        assert_eq!((removed.is_configured, removed.still_denied_by), (false, Some(network)));
        remove(sandbox, "192.0.2.0/24");
        assert!(!is_denied(&datapath, "192.0.2.7"));
    });
}

#[test]
fn denials_of_trusted_proxies_are_rejected() {
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        deny(&datapath, "", "192.0.2.0/24 2001:db8:a::/48");
        for network in ["192.0.2.0/24", "192.0.2.7/32", "2001:db8:a:1::/64", "::ffff:192.0.2.7/128"] {
            let rejected = matches!(add(sandbox, network), DenialOutcome::Rejected(Rejection::Trusted { .. }));
            assert!(rejected, "{network}");
        }
        let escalations =
            ["192.0.2.7/32", "198.51.100.9/32"].map(|network| denial(network, DenialOrigin::Escalation, HOUR));
        let entered = datapath.deny_list().deny(&escalations).expect("taken");
        assert!(
            matches!(entered[..], [DenialOutcome::Rejected(Rejection::Trusted { .. }), DenialOutcome::Enforced]),
            "{entered:?}"
        );
        assert_eq!(listed(sandbox), [("198.51.100.9/32".to_owned(), DenialOrigin::Escalation)]);
        // A wider network may be denied, and the trusted proxy still passes.
        assert_eq!(add(sandbox, "192.0.0.0/16"), DenialOutcome::Enforced);
        assert!(is_denied(&datapath, "192.0.3.7") && !is_denied(&datapath, "192.0.2.7"));
        // A client trusted later passes, too, and is denied again when the trust ends.
        deny(&datapath, "", "198.51.100.0/24");
        assert!(!is_denied(&datapath, "198.51.100.9") && is_denied(&datapath, "192.0.2.7"));
        deny(&datapath, "", "");
        assert!(is_denied(&datapath, "198.51.100.9"));
    });
}

#[test]
fn exempt_networks_stay_exempt_when_the_list_changes() {
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        let hop = nets("203.0.113.0/24")[0];
        datapath.deny_list().set(&DenyConfig::sparing([], [hop])).expect("the list is taken");
        let is_spared = || {
            let entries = Pinned::open(&sandbox.bpffs()).expect("pins").maps().deny_entries().expect("readable");
            entries.iter().any(|entry| entry.prefix == hop && entry.rule.is_none())
        };
        assert!(is_spared());
        assert_eq!(add(sandbox, "192.0.2.0/24"), DenialOutcome::Enforced);
        assert!(is_spared() && is_denied(&datapath, "192.0.2.7"));
        assert!(datapath.deny_list().expire().expect("swept").is_empty());
        remove(sandbox, "192.0.2.0/24");
        assert!(is_spared() && !is_denied(&datapath, "192.0.2.7"));
        deny(&datapath, "", "203.0.113.0/24");
        assert!(!is_spared(), "nobody is limited, and nobody denies it");
    });
}

#[test]
fn a_denial_expires_and_can_be_extended() {
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        let lasts = |network: &str, lasts| denial(network, DenialOrigin::Operator, lasts);
        let short = Some(Duration::from_secs(3));
        let entered = datapath.deny_list().deny(&[lasts("192.0.2.7/32", short), lasts("192.0.2.8/32", short)]);
        assert_eq!(entered.expect("taken"), [DenialOutcome::Enforced, DenialOutcome::Enforced]);
        assert!(is_denied(&datapath, "192.0.2.7"), "until somebody notices that its time is over");
        let pinned = Pinned::open(&sandbox.bpffs()).expect("pins");
        let left = pinned.maps().denials().expect("readable")[0].lasts.expect("a time");
        assert!(left <= Duration::from_secs(3), "{left:?}");
        editor(sandbox).add(&lasts("192.0.2.8/32", HOUR)).expect("taken");
        let gone = until("its time is over", || datapath.deny_list().expire().ok().filter(|gone| !gone.is_empty()));
        assert_eq!(gone.expect("it ends"), [(nets("192.0.2.7/32")[0], DenialOrigin::Operator)]);
        assert!(!is_denied(&datapath, "192.0.2.7") && is_denied(&datapath, "192.0.2.8"));
        assert_eq!(listed(sandbox).len(), 1);
    });
}

#[test]
fn denials_are_limited_and_metrics_name_no_client() {
    sandboxed(|sandbox| {
        let datapath = serving(sandbox);
        let net = |n: u32| IpNet::V4(Ipv4Net::new((0x0a00_0000 + n).into(), 32).expect("a length"));
        let escalations: Vec<_> = (0..=DENIALS_MAX)
            .map(|n| Denial { network: net(n), ..denial("10.0.0.0/32", DenialOrigin::Escalation, HOUR) })
            .collect();
        let entered = datapath.deny_list().deny(&escalations).expect("taken");
        let full = entered.iter().filter(|entered| **entered == DenialOutcome::Rejected(Rejection::Full)).count();
        assert_eq!(
            (full, entered.iter().filter(|entered| **entered == DenialOutcome::Enforced).count()),
            (1, entered.len() - 1)
        );
        assert!(is_denied(&datapath, "10.0.0.1"));
        let view = datapath.deny_list().view().expect("readable");
        assert_eq!(view.denials, [0, DENIALS_MAX as usize]);
        assert!(view.rules.iter().all(|rule| rule.prefix.is_none()), "as many as there are attackers");
        let fills = Pinned::open(&sandbox.bpffs()).expect("pins").fills().expect("fills");
        let fill = fills.iter().find(|fill| fill.map == "denials").expect("it is among them");
        assert_eq!((fill.entries, fill.capacity), (DENIALS_MAX as usize, DENIALS_MAX));
        assert_eq!(add(sandbox, "192.0.2.7/32"), DenialOutcome::Rejected(Rejection::Full));
        remove(sandbox, "10.0.0.1/32");
        assert_eq!(add(sandbox, "192.0.2.7/32"), DenialOutcome::Enforced);
    });
}
