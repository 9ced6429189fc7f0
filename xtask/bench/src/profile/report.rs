//! The counts as Markdown.

use std::collections::BTreeMap;

use super::{counts::PerRequest, samples::Folded};
use crate::{case::Case, peers::Peer};

/// Rows of the tables of functions and symbols.
const ROWS: usize = 30;
/// Calls made by fewer than one request in a hundred are not shown.
const LEAST_CALLS: f64 = 0.01;

/// The counts of one peer in one case.
#[derive(Debug)]
pub(super) struct Profile {
    pub(super) case: Case,
    pub(super) peer: Peer,
    /// Instructions by function, in user mode.
    pub(super) instructions: PerRequest,
    /// Calls by system call.
    pub(super) calls: PerRequest,
    pub(super) samples: Option<Folded>,
}

/// All counts of a run.
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

    /// Returns instructions and system calls of each case, by peer, each with its ratio to the first peer.
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
                "\nPer request, one worker: the cost that {requests} requests add to {requests} others, with a tenth as \
                 many handshakes and a twentieth as many of 10 MiB. Instructions in user mode by callgrind, system calls by \
                 strace."
            ),
        );
        text
    }

    /// Returns the modules and functions that contain the instructions.
    pub(super) fn functions(&self) -> String {
        let mut text = String::new();
        for Profile { case, peer, instructions, calls: _, samples: _ } in self.by_case() {
            let (total, all) = (instructions.total(), instructions.sorted(0.0));
            let mut table = |what: &str, rows: &[(&str, f64)]| {
                line(&mut text, format_args!("### {case}, {peer}: instructions of each {what}\n"));
                line(&mut text, format_args!("| instructions | of all | {what} |\n|---:|---:|---|"));
                for (name, count) in rows {
                    line(&mut text, format_args!("| {count:.0} | {:.1} % | `{name}` |", 100.0 * count / total));
                }
                text.push('\n');
            };
            // Programs without modules have only functions.
            let modules = modules(&all);
            if modules.len() > 1 {
                table("module", &modules);
            }
            table("function", &all[..all.len().min(ROWS)]);
        }
        text
    }

    /// Returns the symbols that take the time.
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

    /// Returns the profiles by case in their order, with the peers of a case side by side.
    fn by_case(&self) -> Vec<&Profile> {
        let mut all: Vec<&Profile> = self.profiles.iter().collect();
        // A stable sort, so that peers keep their order.
        all.sort_by_key(|profile| profile.case);
        all
    }
}

/// Returns the sums by module, the largest first.
fn modules<'f>(functions: &[(&'f str, f64)]) -> Vec<(&'f str, f64)> {
    let mut sums = BTreeMap::new();
    for (function, count) in functions {
        *sums.entry(module(function)).or_default() += count;
    }
    let mut sums: Vec<(&str, f64)> = sums.into_iter().collect();
    sums.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    sums
}

/// Returns the crate of a function, or of its generic parameters. Crates of this project take precedence and include
/// the module below; the standard library comes last. Functions without a path, such as those of C, form one group.
fn module(function: &str) -> &str {
    const OURS: &str = "ingress_";
    if let Some(begin) = function.find(OURS) {
        let path = &function[begin..];
        let end = path.match_indices("::").nth(1).map_or(path.len(), |(end, _)| end);
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        return path[..end].split(|c| !is_name(c)).next().unwrap_or(path);
    }
    let crates = function.match_indices("::").filter_map(|(end, _)| {
        let name = function[..end].rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()?;
        let is_first = !function[..end - name.len()].ends_with("::");
        (is_first && !name.is_empty()).then_some(name)
    });
    let mut standard = None;
    for name in crates {
        if !matches!(name, "core" | "alloc" | "std") {
            return name;
        }
        standard = Some("std");
    }
    standard.unwrap_or(if function.trim_start_matches('_').starts_with("mi_") { "mimalloc" } else { "C" })
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

    #[test]
    fn functions_are_summed_by_module() {
        for (function, expect) in [
            ("ingress_proxy::upstream::head::Reader::read", "ingress_proxy::upstream"),
            ("ingress_model::route::Table::find", "ingress_model::route"),
            (
                "ingress_proxy::request::<impl ingress_proxy::request::matching::Matching>::act",
                "ingress_proxy::request",
            ),
            ("core::ptr::drop_in_place<ingress_proxy::downstream::park::Stage>", "ingress_proxy::downstream"),
            ("<hyper::proto::h1::role::Server as hyper::proto::h1::Http1Transaction>::encode", "hyper"),
            ("core::ptr::drop_in_place<http::header::map::HeaderMap>", "http"),
            ("tokio::runtime::io::registration::Registration::poll_ready", "tokio"),
            ("<alloc::collections::vec_deque::iter::Iter<T> as core::iter::traits::iterator::Iterator>::fold", "std"),
            ("mi_heap_malloc_aligned_at", "mimalloc"),
            ("__memcpy_avx_unaligned_erms", "C"),
        ] {
            assert_eq!(module(function), expect, "{function}");
        }
        let sums = modules(&[("tokio::a", 3.0), ("memcpy", 2.0), ("tokio::b", 1.5), ("recv", 1.0)]);
        assert_eq!(sums, [("tokio", 4.5), ("C", 3.0)]);
    }
}
