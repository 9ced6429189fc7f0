//! Turns repeated refusals by the proxy into denials, and logs denials as they begin and end. The thresholds are
//! elsewhere.

use ingress_common::Reason;
use ingress_userspace::{
    datapath::{Denial, Entered, Origin, Rejection},
    model::Escalation,
    proxy::{Escalated, Offender, Shared},
};
use tracing::{info, warn};

use super::Kernel;

/// Maximum number of violators logged individually per call. The list of denials names them all.
const TOLD_MAX: usize = 16;

impl Kernel {
    /// Ends expired denials, and denies clients that the proxy refused too often since the last call. Denials are
    /// pinned, so the owner of the node does not matter.
    pub(super) fn escalate(&self, shared: &Shared) {
        // Runs first, so that clients removed from the list are also forgiven their earlier violations.
        match self.datapath.deny_list().sweep() {
            Ok(gone) => {
                for (network, origin) in gone {
                    // Before the log line, so that the line is true when it is read.
                    if origin == Origin::Escalation {
                        shared.forgive(network);
                    }
                    info!(%network, origin = origin.as_str(), "a denial has ended or was removed");
                }
            }
            Err(error) => {
                warn!(error = &error as &dyn std::error::Error, "cannot end denials whose time is over; trying again");
            }
        }
        let (tried, offenders): (Vec<_>, Vec<_>) =
            shared.take_offenders().into_iter().partition(|offender| offender.escalation.dry_run);
        let results = tried.into_iter().map(|offender| (offender, Escalated::DryRun));
        let results: Vec<_> = results.chain(self.deny(offenders)).collect();
        for (offender, result) in results.iter().take(TOLD_MAX) {
            tell(offender, *result);
        }
        if let Some(more @ 1..) = results.len().checked_sub(TOLD_MAX) {
            warn!(more, "more clients were refused too often; `xdp-ingress deny list` shows who is denied");
        }
        results.iter().for_each(|(_, result)| shared.escalated(*result));
    }

    /// Denies violators; returns the result for each.
    fn deny(&self, offenders: Vec<Offender>) -> Vec<(Offender, Escalated)> {
        if offenders.is_empty() {
            return Vec::new();
        }
        let denials: Vec<_> = offenders.iter().map(denial).collect();
        let entered = self.datapath.deny_list().deny(&denials).unwrap_or_else(|error| {
            let error = &error as &dyn std::error::Error;
            warn!(error, "cannot deny clients that were refused too often; trying again at their next refusal");
            Vec::new()
        });
        let results = entered.into_iter().map(result).chain(std::iter::repeat(Escalated::Failed));
        offenders.into_iter().zip(results).collect()
    }
}

fn denial(offender: &Offender) -> Denial {
    let Offender { network, offence, escalation: Escalation { after, within, lasts, dry_run: _, also: _ } } = offender;
    let reason = format!("refused {after} times in {} s: {}", within.as_secs(), offence.as_str());
    let (network, lasts) = (*network, Some(*lasts));
    Denial { network, origin: Origin::Escalation, lasts, reason: Reason::new(&reason).unwrap_or_default() }
}

fn result(entered: Entered) -> Escalated {
    match entered {
        Entered::Enforced => Escalated::Denied,
        Entered::Rejected(Rejection::Trusted { .. }) => Escalated::Trusted,
        Entered::LeftOut | Entered::Rejected(Rejection::Full) => Escalated::Failed,
    }
}

fn tell(offender: &Offender, result: Escalated) {
    let Offender { network, offence, escalation: Escalation { after, within, lasts, dry_run: _, also: _ } } = offender;
    let (last, within, lasts) = (offence.as_str(), within.as_secs(), lasts.as_secs());
    match result {
        Escalated::Denied => {
            warn!(%network, after, within, last, lasts, "denied a client that was refused too often");
        }
        Escalated::DryRun => {
            warn!(%network, after, within, last, lasts, "would deny a client that was refused too often (dry run)");
        }
        Escalated::Trusted => {
            info!(%network, after, within, last, "a peer was refused too often, but may speak for others; not denied");
        }
        Escalated::Failed => {
            warn!(
                %network, after, within, last,
                "could not deny a client that was refused too often; unless an error stands above, there is no room: remove \
                 denials, or merge networks of `block-cidrs`"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{num::NonZeroU32, time::Duration};

    use ingress_userspace::{model::FurtherOffences, proxy::Offence};

    use super::*;

    #[test]
    fn the_longest_reason_fits() {
        for offence in Offence::ALL {
            let escalation = Escalation {
                after: NonZeroU32::new(1_000_000).expect("some"),
                within: Duration::from_secs(604_800),
                lasts: Duration::from_secs(600),
                dry_run: false,
                also: FurtherOffences::default(),
            };
            let network = "192.0.2.1/32".parse().expect("a network");
            let Denial { reason, lasts, .. } = denial(&Offender { network, offence, escalation });
            let expect = format!("refused 1000000 times in 604800 s: {}", offence.as_str());
            assert_eq!((reason.to_string(), lasts), (expect, Some(escalation.lasts)));
        }
    }
}
