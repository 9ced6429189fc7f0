//! Detects whether connections accepted by XDP reach sk_lookup. If a foreign netfilter rule (a DNAT, a firewall) takes
//! them in between, they never do, and no other counter shows it. Pure.
//!
//! The rules themselves are not read. nftables and iptables have different interfaces, and each would need a library or
//! a program that the image lacks. Connections that do not arrive are also better evidence than the existence of a
//! rule.

use ingress_common::Total;

/// Number of requests without a single lookup that triggers a warning. A client without an answer retries some six
/// times, and only the first SYN is looked up, so a few of them may be harmless.
pub(crate) const LOST_MIN: u64 = 16;

/// Advice to the operator.
pub(crate) const ADVICE: &str = "a rule of netfilter takes or drops them first. Look for port 80 or 443 in `nft list \
 ruleset` and `iptables-save` on the node (with `--steer rewrite` for the rewritten ports, 10080 or 10443 by default): \
 a pod's `hostPort`, a load balancer or a firewall. Remove the rule, give one of the two other ports, or bypass a DNAT \
 rule with `--steer rewrite`";

/// Progress of lookups relative to requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NetfilterCheck {
    /// Counters at the last observed lookup.
    decided: u64,
    looked_up: u64,
    is_reported: bool,
}

impl NetfilterCheck {
    /// Returns the number of requests since the last lookup if it is large and was not reported yet.
    pub(crate) fn lost(&mut self, packets: impl Fn(Total) -> u64) -> Option<u64> {
        let (decided, looked_up) = (packets(Total::Decided), looked_up(packets));
        if looked_up != self.looked_up {
            *self = Self { decided, looked_up, is_reported: false };
            return None;
        }
        let lost = decided.saturating_sub(self.decided);
        let is_news = lost >= LOST_MIN && !self.is_reported;
        self.is_reported |= is_news;
        is_news.then_some(lost)
    }
}

/// Returns the lookups of connections through an interface with a program. Those of the default rule are excluded: they
/// come from the node itself and its pods.
fn looked_up(packets: impl Fn(Total) -> u64) -> u64 {
    [Total::LookupDecided, Total::LookupLate, Total::Undecided, Total::SlotEmpty, Total::AssignFailed]
        .into_iter()
        .map(packets)
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_without_lookups_are_reported_once() {
        let mut netfilter_check = NetfilterCheck::default();
        let mut lost = |decided, delivered, default| {
            netfilter_check.lost(|total| match total {
                Total::Decided => decided,
                Total::LookupDecided => delivered,
                Total::LookupDefault => default,
                _ => 0,
            })
        };
        assert_eq!(lost(0, 0, 0), None);
        assert_eq!(lost(LOST_MIN - 1, 0, 50), None, "retransmissions, perhaps");
        assert_eq!(lost(LOST_MIN, 0, 60), Some(LOST_MIN), "whatever comes from the node itself");
        assert_eq!(lost(90, 0, 60), None, "said already");
        assert_eq!(lost(100, 1, 60), None, "one came through");
        assert_eq!(lost(100 + LOST_MIN - 1, 1, 60), None);
        assert_eq!(lost(120, 1, 60), Some(20), "and then no more");
        assert_eq!(lost(130, 9, 60), None);
        assert_eq!(lost(5, 0, 0), None, "other maps, which count from 0");
        assert_eq!(lost(5 + LOST_MIN, 0, 0), Some(LOST_MIN));
    }

    #[test]
    fn any_lookup_proves_that_packets_pass_netfilter() {
        for outcome in
            [Total::LookupDecided, Total::LookupLate, Total::Undecided, Total::SlotEmpty, Total::AssignFailed]
        {
            let lost = NetfilterCheck::default().lost(|total| match total {
                Total::Decided => 1000,
                _ => u64::from(total == outcome),
            });
            assert_eq!(lost, None, "{outcome:?}");
        }
    }
}
