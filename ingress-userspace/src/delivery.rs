//! Tells whether connections that XDP lets in come to sk_lookup. Where somebody else's rule (a DNAT, a firewall) takes
//! them in between, they never do, and nothing else here would show it. Pure.
//!
//! The rules themselves are not read: nftables and iptables have interfaces of their own, each would need a library or
//! a program that the image does not have, and a rule that is there says less than connections that do not arrive.

use ingress_common::Total;

/// Requests without a single lookup that are worth telling. A client that gets no answer asks some six times, of which
/// only the first is looked up, so a few of them may be nothing.
pub(crate) const LOST_MIN: u64 = 16;

/// What to do about it.
pub(crate) const ADVICE: &str = "a rule of netfilter takes or drops them before: look for port 80 or 443 (with \
                                 `--steer rewrite` for what that makes of them, 10080 or 10443 unless \
                                 `--rewrite-offset` says otherwise) in `nft list ruleset` and `iptables-save` on the \
                                 node (a pod's `hostPort`, a load balancer, a firewall), and remove it, give one of \
                                 the two other ports, or go past a DNAT rule with `--steer rewrite`";

/// How far lookups have followed requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivery {
    /// As of the latest lookup that was noticed.
    decided: u64,
    looked_up: u64,
    told: bool,
}

impl Delivery {
    /// The number of requests since the latest lookup, if they are many and have not been told of.
    pub(crate) fn lost(&mut self, packets: impl Fn(Total) -> u64) -> Option<u64> {
        let (decided, looked_up) = (packets(Total::Decided), looked_up(packets));
        if looked_up != self.looked_up {
            *self = Self { decided, looked_up, told: false };
            return None;
        }
        let lost = decided.saturating_sub(self.decided);
        let is_news = lost >= LOST_MIN && !self.told;
        self.told |= is_news;
        is_news.then_some(lost)
    }
}

/// Lookups of connections that came in by an interface with a program. Not those of the default rule, which are the
/// node's own and its pods'.
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
    fn requests_without_lookups_are_told_of_once() {
        let mut delivery = Delivery::default();
        let mut lost = |decided, delivered, default| {
            delivery.lost(|total| match total {
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
    fn a_lookup_with_any_outcome_shows_that_requests_come_through() {
        for outcome in
            [Total::LookupDecided, Total::LookupLate, Total::Undecided, Total::SlotEmpty, Total::AssignFailed]
        {
            let lost = Delivery::default().lost(|total| match total {
                Total::Decided => 1000,
                _ => u64::from(total == outcome),
            });
            assert_eq!(lost, None, "{outcome:?}");
        }
    }
}
