//! Turns repeated refusals by the proxy into denials, and logs denials as they begin and end. The thresholds are
//! elsewhere.

use ingress_common::DenialReason;
use ingress_datapath::{Denial, DenialOrigin, DenialOutcome, Rejection};
use ingress_model::Escalation;
use ingress_proxy::{Escalated, Shared, Violator};
use tracing::{info, warn};

use super::{Kernel, error_of};

/// Maximum number of violators logged individually per call. The list of denials names them all.
const LOGGED_MAX: usize = 16;

impl Kernel {
    /// Ends expired denials, and denies clients that the proxy refused too often since the last call. Denials are
    /// pinned, so the owner of the node does not matter.
    pub(super) fn escalate(&mut self, shared: &Shared) {
        // Runs first, so that clients removed from the list are also forgiven their earlier violations.
        let expired = self.datapath.deny_list().expire();
        self.failures.note("cannot end expired denials", error_of(&expired));
        for (network, origin) in expired.unwrap_or_default() {
            // Before the log line, so that the line is true when it is read.
            if origin == DenialOrigin::Escalation {
                shared.forgive(network);
            }
            info!(%network, origin = origin.as_str(), "a denial has ended or was removed");
        }
        let (tried, violators): (Vec<_>, Vec<_>) =
            shared.take_violators().into_iter().partition(|violator| violator.escalation.dry_run);
        let results = tried.into_iter().map(|violator| (violator, Escalated::DryRun));
        let results: Vec<_> = results.chain(self.deny(violators)).collect();
        for (violator, result) in results.iter().take(LOGGED_MAX) {
            log(violator, *result);
        }
        if let Some(more @ 1..) = results.len().checked_sub(LOGGED_MAX) {
            warn!(more, "more clients were refused too often; `xdp-ingress deny list` shows the denied ones");
        }
        results.iter().for_each(|(_, result)| shared.escalated(*result));
    }

    /// Denies violators; returns the result for each.
    fn deny(&self, violators: Vec<Violator>) -> Vec<(Violator, Escalated)> {
        if violators.is_empty() {
            return Vec::new();
        }
        let denials: Vec<_> = violators.iter().map(denial).collect();
        let entered = self.datapath.deny_list().deny(&denials).unwrap_or_else(|error| {
            let error = &error as &dyn std::error::Error;
            warn!(error, "cannot deny clients that were refused too often; trying again at their next refusal");
            Vec::new()
        });
        let results = entered.into_iter().map(result).chain(std::iter::repeat(Escalated::Failed));
        violators.into_iter().zip(results).collect()
    }
}

fn denial(violator: &Violator) -> Denial {
    let Violator { network, violation, escalation: Escalation { after, within, lasts, dry_run: _, also: _ } } =
        violator;
    let reason = format!("refused {after} times in {} s: {}", within.as_secs(), violation.as_str());
    let (network, lasts) = (*network, Some(*lasts));
    Denial { network, origin: DenialOrigin::Escalation, lasts, reason: DenialReason::new(&reason).unwrap_or_default() }
}

fn result(entered: DenialOutcome) -> Escalated {
    match entered {
        DenialOutcome::Enforced => Escalated::Denied,
        DenialOutcome::Rejected(Rejection::Trusted { .. }) => Escalated::Trusted,
        DenialOutcome::LeftOut | DenialOutcome::Rejected(Rejection::Full) => Escalated::Failed,
    }
}

fn log(violator: &Violator, result: Escalated) {
    let Violator { network, violation, escalation: Escalation { after, within, lasts, dry_run: _, also: _ } } =
        violator;
    let (last, within, lasts) = (violation.as_str(), within.as_secs(), lasts.as_secs());
    match result {
        Escalated::Denied => {
            warn!(%network, after, within, last, lasts, "denied a client that was refused too often");
        }
        Escalated::DryRun => {
            warn!(%network, after, within, last, lasts, "would deny a client that was refused too often (dry run)");
        }
        Escalated::Trusted => {
            info!(%network, after, within, last, "a peer was refused too often, but is a trusted proxy for others; not \
             denied");
        }
        Escalated::Failed => {
            warn!(
                %network, after, within, last,
                "could not deny a client that was refused too often; without an error above, the list has no room: \
                 remove denials, or merge networks of `block-cidrs`"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{num::NonZeroU32, time::Duration};

    use ingress_model::FurtherViolations;
    use ingress_proxy::Violation;

    use super::*;

    #[test]
    fn the_longest_reason_fits() {
        for violation in Violation::ALL {
            let escalation = Escalation {
                after: NonZeroU32::new(1_000_000).expect("some"),
                within: Duration::from_secs(604_800),
                lasts: Duration::from_secs(600),
                dry_run: false,
                also: FurtherViolations::default(),
            };
            let network = "192.0.2.1/32".parse().expect("a network");
            let Denial { reason, lasts, .. } = denial(&Violator { network, violation, escalation });
            let expect = format!("refused 1000000 times in 604800 s: {}", violation.as_str());
            assert_eq!((reason.to_string(), lasts), (expect, Some(escalation.lasts)));
        }
    }
}
