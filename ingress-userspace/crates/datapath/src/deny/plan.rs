//! The wanted content of the deny list, and the steps to reach it from the current content. Pure.

use std::collections::{BTreeMap, BTreeSet};

use ingress_common::{DenyRule, map::DENY_RULES_MAX, steer::DENY_OTHERS};
use ipnet::IpNet;

use super::DenyEntry;

/// Effect on packets from a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DenyEffect {
    /// The packets pass, although a shorter prefix is denied.
    Pass,
    /// The packets are dropped.
    Deny,
}

/// The wanted content of the deny list. Of all entries that contain a sender, the longest prefix decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DenyEntries(BTreeMap<IpNet, DenyEffect>);

/// The entries in the kernel: prefixes, with the rules of denied ones.
pub(super) type Present = BTreeMap<IpNet, Option<DenyRule>>;

/// Selection of trusted networks that get an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrustedEntries {
    /// Only those that would be denied otherwise.
    Denied,
    /// All of them, even if no denial covers them: an entry also exempts from the limits
    /// ([`super::super::ClientLimiter`]).
    All,
}

/// The steps from the current to the wanted entries, each list in this order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DenyPlan {
    /// Passing entries first, so that no trusted proxy is dropped by an entry that comes before its own.
    pub(super) additions: Vec<DenyEntry>,
    /// Removals follow the additions, so that networks stay denied meanwhile. Passing entries are last.
    pub(super) removals: Vec<IpNet>,
}

// === impl DenyEntries ===

impl DenyEntries {
    /// Denies `denied` except for `trusted`: only the proxy can identify the clients behind a trusted proxy. Prefixes
    /// of both lists may contain each other.
    pub(super) fn new(
        passing: TrustedEntries,
        denied: impl IntoIterator<Item = IpNet>,
        trusted: impl IntoIterator<Item = IpNet>,
    ) -> Self {
        let denied = denied.into_iter().map(|prefix| (prefix.trunc(), DenyEffect::Deny));
        let trusted = trusted.into_iter().map(|prefix| (prefix.trunc(), DenyEffect::Pass));
        // Each prefix comes after those that contain it, and trust before denial of the same prefix.
        let all: BTreeSet<_> = denied.chain(trusted).collect();
        let (mut entries, mut around) = (BTreeMap::new(), Vec::<(IpNet, DenyEffect)>::new());
        for (prefix, effect) in all {
            while around.pop_if(|(outer, _)| !outer.contains(&prefix)).is_some() {}
            match (around.last().map(|(_, effect)| *effect), effect) {
                // Trust takes precedence over denials within it.
                (Some(DenyEffect::Pass), _) => continue,
                // No denial covers the prefix.
                (None, DenyEffect::Pass) if passing == TrustedEntries::Denied => {}
                (None | Some(DenyEffect::Deny), _) => {
                    entries.insert(prefix, effect);
                }
            }
            around.push((prefix, effect));
        }
        Self(entries)
    }

    /// Returns the entries that fit in tries with `capacity` entries, and the number of denied prefixes that do not.
    pub(super) fn fitting(&self, capacity: usize) -> (BTreeMap<IpNet, DenyEffect>, usize) {
        let (v4, v6): (Vec<_>, Vec<_>) =
            self.0.iter().map(|(prefix, effect)| (*prefix, *effect)).partition(|(prefix, _)| is_v4(*prefix));
        let (mut fitting, mut left_out) = (BTreeMap::new(), 0);
        for family in [v4, v6] {
            let (passed, denied): (Vec<_>, Vec<_>) =
                family.into_iter().partition(|(_, effect)| *effect == DenyEffect::Pass);
            // If some passing prefix does not fit, its denied parent must not be denied either, so nothing is.
            let room = capacity.saturating_sub(passed.len());
            left_out += denied.len().saturating_sub(room);
            if room > 0 {
                fitting.extend(passed);
                fitting.extend(denied.into_iter().take(room));
            }
        }
        (fitting, left_out)
    }
}

const fn is_v4(prefix: IpNet) -> bool {
    matches!(prefix, IpNet::V4(_))
}

// === impl DenyPlan ===

impl DenyPlan {
    pub(super) fn new(present: &Present, wanted: &BTreeMap<IpNet, DenyEffect>) -> Self {
        let taken: BTreeSet<DenyRule> = present.values().copied().flatten().collect();
        let mut free = (DENY_OTHERS + 1..DENY_RULES_MAX).filter(|rule| !taken.contains(rule));
        let (mut passed, mut denied) = (Vec::new(), Vec::new());
        for (&prefix, effect) in wanted {
            match (effect, present.get(&prefix)) {
                (DenyEffect::Pass, Some(None)) => {}
                (DenyEffect::Deny, Some(Some(rule))) if *rule < DENY_RULES_MAX => {}
                (DenyEffect::Pass, _) => passed.push(DenyEntry { prefix, rule: None }),
                (DenyEffect::Deny, _) => {
                    denied.push(DenyEntry { prefix, rule: Some(free.next().unwrap_or(DENY_OTHERS)) });
                }
            }
        }
        let mut removals: Vec<_> = present.iter().filter(|(prefix, _)| !wanted.contains_key(*prefix)).collect();
        removals.sort_by_key(|(_, rule)| rule.is_none());
        Self {
            additions: [passed, denied].concat(),
            removals: removals.into_iter().map(|(prefix, _)| *prefix).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use proptest::prelude::*;

    use super::*;

    fn nets(text: &str) -> Vec<IpNet> {
        text.split_whitespace().map(|net| net.parse().expect("a network")).collect()
    }

    /// Formats entries as text, with a `+` for passing ones.
    fn shown(entries: &BTreeMap<IpNet, DenyEffect>) -> String {
        let shown = entries.iter().map(|(prefix, effect)| match effect {
            DenyEffect::Pass => format!("+{prefix}"),
            DenyEffect::Deny => prefix.to_string(),
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    #[track_caller]
    fn check(passing: TrustedEntries, cases: &[(&str, &str, &str)]) {
        for (denied, trusted, expect) in cases {
            let entries = DenyEntries::new(passing, nets(denied), nets(trusted));
            assert_eq!(shown(&entries.0), *expect, "{denied}, trusted {trusted}");
        }
    }

    #[test]
    fn trusted_proxies_are_never_denied() {
        let cases = [
            ("", "", ""),
            ("", "10.0.0.0/8", ""),
            ("10.0.0.0/8 2001:db8::/32", "", "10.0.0.0/8 2001:db8::/32"),
            ("10.0.0.0/8", "192.0.2.0/24", "10.0.0.0/8"),
            ("10.0.0.0/8", "10.1.0.0/16", "10.0.0.0/8 +10.1.0.0/16"),
            ("10.1.0.0/16", "10.0.0.0/8", ""),
            ("10.0.0.0/8", "10.0.0.0/8", ""),
            // A trusted network with a denied one inside: the proxy identifies the clients.
            ("10.0.0.0/8 10.1.2.0/24", "10.1.0.0/16", "10.0.0.0/8 +10.1.0.0/16"),
            ("10.0.0.0/8 10.1.0.0/16", "10.1.0.0/16 10.1.2.0/24", "10.0.0.0/8 +10.1.0.0/16"),
            ("10.0.0.0/8 10.1.0.0/16", "10.1.2.3/32", "10.0.0.0/8 10.1.0.0/16 +10.1.2.3/32"),
            ("10.0.0.0/8 10.2.0.0/16", "10.0.0.0/16", "10.0.0.0/8 +10.0.0.0/16 10.2.0.0/16"),
            ("0.0.0.0/0 ::/0", "2001:db8::1/128", "0.0.0.0/0 ::/0 +2001:db8::1/128"),
            ("0.0.0.0/0 ::/0", "0.0.0.0/0", "::/0"),
            ("0.0.0.0/0 ::/0", "0.0.0.0/0 ::/0", ""),
            ("10.1.2.3/8", "", "10.0.0.0/8"),
        ];
        check(TrustedEntries::Denied, &cases);
    }

    #[test]
    fn all_trusted_networks_have_entries_if_required() {
        let cases = [
            ("", "", ""),
            ("", "10.0.0.0/8 2001:db8::/32", "+10.0.0.0/8 +2001:db8::/32"),
            ("10.0.0.0/8", "10.1.0.0/16 192.0.2.0/24", "10.0.0.0/8 +10.1.0.0/16 +192.0.2.0/24"),
            // Nested networks, and a denied one inside a trusted one, as before.
            ("10.1.2.0/24", "10.0.0.0/8 10.1.0.0/16", "+10.0.0.0/8"),
            ("192.0.2.0/24", "0.0.0.0/0 ::/0", "+0.0.0.0/0 +::/0"),
        ];
        check(TrustedEntries::All, &cases);
    }

    #[test]
    fn entries_beyond_capacity_are_counted_and_never_trusted_proxies() {
        let entries = DenyEntries::new(
            TrustedEntries::Denied,
            nets("10.0.0.0/8 11.0.0.0/8 13.0.0.0/8 2001:db8::/32"),
            nets("10.0.0.1/32 13.0.0.1/32 2001:db8::1/128"),
        );
        for (capacity, expect, left_out) in [
            (5, "10.0.0.0/8 +10.0.0.1/32 11.0.0.0/8 13.0.0.0/8 +13.0.0.1/32 2001:db8::/32 +2001:db8::1/128", 0),
            (4, "10.0.0.0/8 +10.0.0.1/32 11.0.0.0/8 +13.0.0.1/32 2001:db8::/32 +2001:db8::1/128", 1),
            (3, "10.0.0.0/8 +10.0.0.1/32 +13.0.0.1/32 2001:db8::/32 +2001:db8::1/128", 2),
            (2, "2001:db8::/32 +2001:db8::1/128", 3),
            (1, "", 4),
        ] {
            let (fitting, count) = entries.fitting(capacity);
            assert_eq!((shown(&fitting).as_str(), count), (expect, left_out), "{capacity}");
        }
    }

    fn apply(present: &mut Present, DenyPlan { additions, removals }: DenyPlan) {
        present.extend(additions.into_iter().map(|DenyEntry { prefix, rule }| (prefix, rule)));
        present.retain(|prefix, _| !removals.contains(prefix));
    }

    fn plan(present: &Present, denied: &str, trusted: &str) -> DenyPlan {
        DenyPlan::new(present, &DenyEntries::new(TrustedEntries::Denied, nets(denied), nets(trusted)).0)
    }

    #[test]
    fn prefixes_keep_their_rules_and_free_rules_are_reused() {
        let rule = |present: &Present, prefix: &str| present.get(&nets(prefix)[0]).copied();
        let mut present = Present::new();
        let first = plan(&present, "10.0.0.0/8 11.0.0.0/8 12.0.0.0/8", "11.0.0.1/32");
        apply(&mut present, first);
        assert_eq!(present.values().flatten().copied().collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(rule(&present, "11.0.0.1/32"), Some(None));

        let second = plan(&present, "9.0.0.0/8 11.0.0.0/8 12.0.0.0/8", "");
        assert_eq!(second.removals, nets("10.0.0.0/8 11.0.0.1/32"), "those that pass go last");
        apply(&mut present, second);
        let rules = ["9.0.0.0/8", "11.0.0.0/8", "12.0.0.0/8"].map(|prefix| rule(&present, prefix));
        assert_eq!(rules, [Some(Some(4)), Some(Some(2)), Some(Some(3))]);

        let third = plan(&present, "9.0.0.0/8 13.0.0.0/8", "");
        apply(&mut present, third);
        assert_eq!(rule(&present, "13.0.0.0/8"), Some(Some(1)));
        assert_eq!(plan(&present, "9.0.0.0/8 13.0.0.0/8", ""), DenyPlan::default(), "nothing changes, nothing is done");
        let trusted = plan(&present, "9.0.0.0/8 12.0.0.0/7", "13.0.0.0/8");
        assert_eq!(trusted.additions[0], DenyEntry { prefix: nets("13.0.0.0/8")[0], rule: None });
        assert!(trusted.removals.is_empty());
    }

    #[test]
    fn prefixes_without_their_own_rule_share_one() {
        let wanted = (0..5000_u32).map(|n| IpNet::from(IpAddr::from(Ipv4Addr::from(n))));
        let plan = DenyPlan::new(&Present::new(), &DenyEntries::new(TrustedEntries::Denied, wanted, []).0);
        let rules: Vec<_> = plan.additions.iter().filter_map(|entry| entry.rule).collect();
        assert_eq!(rules.len(), 5000);
        let own: BTreeSet<_> = rules.iter().filter(|rule| **rule != DENY_OTHERS).collect();
        assert_eq!((own.len(), rules.iter().filter(|rule| **rule == DENY_OTHERS).count()), (4095, 905));
        assert!(own.iter().all(|rule| **rule < DENY_RULES_MAX));
    }

    const SPACE: u32 = 32;

    fn prefixes() -> impl Strategy<Value = Vec<IpNet>> {
        let prefix = (0..SPACE, 26..=32_u8);
        let net =
            |(addr, length): (u32, u8)| IpNet::new(Ipv4Addr::from(addr).into(), length).expect("a length").trunc();
        proptest::collection::vec(prefix.prop_map(net), 0..6)
    }

    fn denied(present: &Present) -> Vec<bool> {
        let entries: Vec<_> = present.iter().map(|(&prefix, &rule)| DenyEntry { prefix, rule }).collect();
        let deciding = |addr| DenyEntry::deciding(&entries, IpAddr::from(Ipv4Addr::from(addr)));
        (0..SPACE).map(|addr| deciding(addr).is_some_and(|entry| entry.rule.is_some())).collect()
    }

    proptest! {
        #[test]
        fn listed_addresses_are_denied_unless_trusted(list in prefixes(), trusted in prefixes()) {
            let mut present = Present::new();
            apply(&mut present, DenyPlan::new(&Present::new(), &DenyEntries::new(TrustedEntries::Denied, list.clone(), trusted.clone()).0));
            let holds = |nets: &[IpNet], addr: IpAddr| nets.iter().any(|net| net.contains(&addr));
            for (addr, is_denied) in (0..SPACE).map(|addr| IpAddr::from(Ipv4Addr::from(addr))).zip(denied(&present)) {
                prop_assert_eq!(is_denied, holds(&list, addr) && !holds(&trusted, addr), "{}", addr);
            }
        }

        #[test]
        fn updates_never_change_unaffected_addresses_in_between(
            lists in [prefixes(), prefixes()],
            trusted in [prefixes(), prefixes()],
        ) {
            let [old, new] = [0, 1].map(|n| DenyEntries::new(TrustedEntries::Denied, lists[n].clone(), trusted[n].clone()).0);
            let mut present = Present::new();
            apply(&mut present, DenyPlan::new(&Present::new(), &old));
            let before = denied(&present);
            let DenyPlan { additions, removals } = DenyPlan::new(&present, &new);
            let mut stages = Vec::new();
            for DenyEntry { prefix, rule } in additions {
                present.insert(prefix, rule);
                stages.push(denied(&present));
            }
            for prefix in removals {
                present.remove(&prefix);
                stages.push(denied(&present));
            }
            prop_assert!(present.keys().eq(new.keys()));
            let after = denied(&present);
            for (addr, (before, after)) in before.iter().zip(&after).enumerate().filter(|(_, (b, a))| b == a) {
                prop_assert!(stages.iter().all(|stage| stage[addr] == *before), "{} {}", addr, after);
            }
        }
    }
}
