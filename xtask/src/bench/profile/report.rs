//! What was counted, as Markdown.

use super::{counts::PerRequest, samples::Folded};
use crate::bench::{case::Case, peers::Peer};

/// Rows of the tables of functions and symbols.
const ROWS: usize = 30;
/// A call that not even one request in a hundred makes is not shown.
const LEAST_CALLS: f64 = 0.01;

/// What one case makes of one peer.
#[derive(Debug)]
pub(super) struct Profile {
    pub(super) case: Case,
    pub(super) peer: Peer,
    /// By function, in user mode.
    pub(super) instructions: PerRequest,
    /// By system call.
    pub(super) calls: PerRequest,
    pub(super) samples: Option<Folded>,
}

/// All of a run.
#[derive(Debug)]
pub(super) struct Report {
    requests: u32,
    peers: Vec<Peer>,
    profiles: Vec<Profile>,
}

impl Report {
    pub(super) fn new(requests: u32, peers: Vec<Peer>) -> Self {
        Self { requests, peers, profiles: Vec::new() }
    }

    pub(super) fn add(&mut self, profile: Profile) {
        self.profiles.push(profile);
    }

    /// Instructions and system calls of each case, by peer, with what each is of the first peer's.
    pub(super) fn table(&self) -> String {
        let first = self.peers[0];
        let mut text = format!(
            "| case | peer | instructions | × {first} | system calls | × {first} | which |\n\
             |---|---|---:|---:|---:|---:|---|\n"
        );
        for profile in self.by_case() {
            let Profile { case, peer, instructions, calls, samples: _ } = profile;
            let reference = self.profiles.iter().find(|other| other.case == *case && other.peer == first);
            let ratio = |of: fn(&Profile) -> f64| reference.map_or(f64::NAN, |other| of(profile) / of(other));
            let which: Vec<String> =
                calls.sorted(LEAST_CALLS).into_iter().map(|(name, count)| format!("{name} {count:.2}")).collect();
            line(
                &mut text,
                format_args!(
                    "| {case} | {peer} | {:.0} | {:.2} | {:.2} | {:.2} | {} |",
                    instructions.total(),
                    ratio(|profile| profile.instructions.total()),
                    calls.total(),
                    ratio(|profile| profile.calls.total()),
                    which.join(", ")
                ),
            );
        }
        let requests = self.requests;
        line(
            &mut text,
            format_args!(
                "\nPer request, one worker: what {requests} requests added to {requests} others, a tenth of that of \
                 handshakes, a twentieth of 10 MiB. Instructions in user mode by callgrind, system calls by strace."
            ),
        );
        text
    }

    /// Which functions the instructions are in.
    pub(super) fn functions(&self) -> String {
        let mut text = String::new();
        for Profile { case, peer, instructions, calls: _, samples: _ } in self.by_case() {
            line(&mut text, format_args!("### {case}, {peer}: instructions of each function\n"));
            line(&mut text, format_args!("| instructions | of all | function |\n|---:|---:|---|"));
            let total = instructions.total();
            for (function, count) in instructions.sorted(0.0).into_iter().take(ROWS) {
                line(&mut text, format_args!("| {count:.0} | {:.1} % | `{function}` |", 100.0 * count / total));
            }
            text.push('\n');
        }
        text
    }

    /// Which symbols the time is in.
    pub(super) fn samples(&self) -> String {
        let mut text = String::new();
        for Profile { case, peer, instructions: _, calls: _, samples } in self.by_case() {
            let Some(folded) = samples else { continue };
            let part = |seen: u64| 100.0 * seen as f64 / folded.samples as f64;
            line(
                &mut text,
                format_args!(
                    "### {case}, {peer}: {} samples, {:.0} % of them within the kernel\n",
                    folded.samples,
                    part(folded.kernel)
                ),
            );
            line(&mut text, format_args!("| itself | with what it calls | symbol |\n|---:|---:|---|"));
            for (symbol, seen) in folded.most(ROWS) {
                line(&mut text, format_args!("| {:.1} % | {:.1} % | `{symbol}` |", part(seen.own), part(seen.all)));
            }
            text.push('\n');
        }
        text
    }

    /// Peers of a case side by side, cases in their order.
    fn by_case(&self) -> Vec<&Profile> {
        let mut all: Vec<&Profile> = self.profiles.iter().collect();
        // Stable, so that peers keep theirs.
        all.sort_by_key(|profile| profile.case);
        all
    }
}

fn line(text: &mut String, words: std::fmt::Arguments<'_>) {
    text.push_str(&words.to_string());
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_stand_side_by_side_with_ratios_to_the_first() {
        let mut report = Report::new(2000, vec![Peer::Nginx, Peer::XdpIngress]);
        for (peer, instructions) in [(Peer::Nginx, 20_000.0), (Peer::XdpIngress, 15_000.0)] {
            for case in [Case::H1, Case::H2] {
                report.add(Profile {
                    case,
                    peer,
                    instructions: PerRequest::from_pairs(&[("poll", instructions)]),
                    calls: PerRequest::from_pairs(&[("epoll_wait", 0.25), ("read", 2.0), ("stat", 0.001)]),
                    samples: None,
                });
            }
        }
        let table = report.table();
        let rows: Vec<&str> = table.lines().skip(2).take(4).collect();
        assert_eq!(
            rows,
            [
                "| h1 | nginx | 20000 | 1.00 | 2.25 | 1.00 | read 2.00, epoll_wait 0.25 |",
                "| h1 | xdp-ingress | 15000 | 0.75 | 2.25 | 1.00 | read 2.00, epoll_wait 0.25 |",
                "| h2 | nginx | 20000 | 1.00 | 2.25 | 1.00 | read 2.00, epoll_wait 0.25 |",
                "| h2 | xdp-ingress | 15000 | 0.75 | 2.25 | 1.00 | read 2.00, epoll_wait 0.25 |",
            ]
        );
        assert!(report.functions().contains("\n| 15000 | 100.0 % | `poll` |\n"));
        assert_eq!(report.samples(), "");
    }
}
