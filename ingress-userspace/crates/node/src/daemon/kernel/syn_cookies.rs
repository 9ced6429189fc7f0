//! SYN cookies of XDP: says whether they are possible, and when a flood begins and ends.

use ingress_datapath::{Datapath, NicMode, NicReport, NicState, SynCookieState, SynFloodView};
use tracing::{info, warn};

use super::{Failures, Kernel, error_of};

/// Facts that have been logged.
#[derive(Debug, Default)]
pub(super) struct SynFloods {
    state: Option<(&'static str, bool, bool)>,
    is_flood: bool,
    /// Interfaces without XDP.
    without: Vec<String>,
}

impl Kernel {
    /// Adopts the stack's settings and the usual rate, and logs changes. For the owner of the node, about each second.
    pub(super) fn tend_syn_cookies(&mut self) {
        let cookies = self.datapath.syn_cookies();
        let state = cookies.state();
        if matches!(state, SynCookieState::Off) {
            return;
        }
        self.syn_floods.say_state(&state);
        if !matches!(state, SynCookieState::Ready { .. } | SynCookieState::Refused) {
            return;
        }
        self.syn_floods.say_interfaces(&self.datapath.interfaces());
        let tended = cookies.tend();
        self.failures.note("cannot adopt the settings of SYN cookies, so the previous ones apply", error_of(&tended));
        if let Ok(view) = tended {
            self.syn_floods.say_flood(view);
        }
    }
}

/// Puts the settings of SYN cookies into effect, or ends the cookies of another process. A failure does not prevent
/// service.
pub(super) fn apply_syn_cookies(datapath: &Datapath, failures: &mut Failures) {
    let applied = datapath.syn_cookies().apply();
    failures.note("cannot set SYN cookies of XDP, so the previous settings apply", error_of(&applied));
}

/// Returns the end of an error's causes: the verifier's log ends with the reason of a refusal, and can be long.
fn reason(error: &dyn std::error::Error) -> String {
    const LENGTH: usize = 500;
    let causes = std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string);
    let text = causes.collect::<Vec<_>>().join(": ");
    let start = text.len().saturating_sub(LENGTH);
    text.char_indices().find(|(at, _)| *at >= start).map_or("", |(at, _)| &text[at..]).trim_end().to_owned()
}

impl SynFloods {
    /// Logs a state that is new.
    fn say_state(&mut self, state: &SynCookieState) {
        let facts = match state {
            SynCookieState::Ready { has_options, fills_queues } => (state.as_str(), *has_options, *fills_queues),
            _ => (state.as_str(), false, false),
        };
        if self.state.replace(facts) == Some(facts) {
            return;
        }
        match state {
            SynCookieState::Off => {}
            SynCookieState::OldKernel { running, needed } => warn!(
                running,
                needed, "this kernel has no SYN cookies for XDP; the stack answers floods of SYNs by its own"
            ),
            SynCookieState::Failed(error) => {
                let reason = reason(&**error);
                warn!(
                    reason,
                    "the kernel refuses the program with SYN cookies; the one without them is attached, and the stack \
                     answers floods of SYNs by its own"
                );
            }
            SynCookieState::Refused => warn!(
                "`net.ipv4.tcp_syncookies` is 0, with which the stack accepts no SYN cookies; XDP sends none until it is 1 or 2"
            ),
            SynCookieState::Ready { has_options, fills_queues } => {
                info!("SYN cookies of XDP are ready");
                if !has_options {
                    info!(
                        "connections from SYN cookies have no window scaling and no SACK; they would with \
                         `net.ipv4.tcp_timestamps=2` on the node"
                    );
                }
                if *fills_queues {
                    info!(
                        "a flood of SYNs fills the listeners' queues before XDP answers; it would not with \
                         `net.ipv4.tcp_syncookies=2` on the node"
                    );
                }
            }
        }
    }

    /// Logs new interfaces whose SYNs the stack answers.
    fn say_interfaces(&mut self, interfaces: &[NicReport]) {
        let has_cookies = |mode: NicMode| mode.has_syn_cookies();
        let lacks = |nic: &&NicReport| !matches!(nic.state, NicState::Attached { mode, .. } if has_cookies(mode));
        let without: Vec<_> = interfaces.iter().filter(lacks).map(|nic| nic.name.clone()).collect();
        for interface in without.iter().filter(|name| !self.without.contains(name)) {
            warn!(interface, "no SYN cookies on this interface, because it has no XDP; the stack answers its SYNs");
        }
        self.without = without;
    }

    fn say_flood(&mut self, SynFloodView { threshold, rate, is_flood }: SynFloodView) {
        if self.is_flood == is_flood {
            return;
        }
        self.is_flood = is_flood;
        let threshold = threshold.unwrap_or(0);
        if is_flood {
            warn!(rate, threshold, "a flood of SYNs has begun");
        } else {
            info!(rate, threshold, "the flood of SYNs has ended");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::reason;

    #[test]
    fn the_end_of_all_causes_is_logged() {
        let cause = |length: usize| std::io::Error::other(format!("{}is refused\n", "é".repeat(length)));
        let error = std::io::Error::other(anyhow::Error::from(cause(1)).context("the program"));
        assert_eq!(reason(&error), "the program: éis refused");
        let long = reason(&cause(1000));
        assert!(long.ends_with("éis refused") && (480..=500).contains(&long.len()), "{long}");
    }
}
