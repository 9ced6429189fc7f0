//! Figures that other tests and benches guard: cited, or run and judged.

use std::process::Stdio;

use anyhow::Context as _;

use super::figure::{Row, Verdict};
use xtask_setup::build;
use xtask_tools::{process, progress};

/// A figure and the test or bench that guards it.
struct Holder {
    number: u8,
    figure: &'static str,
    target: &'static str,
    by: By,
    /// Words in the output that precede the figure, and its upper limit.
    says: Option<(&'static str, f64)>,
}

enum By {
    /// Tests of `tests/namespaces`, by name.
    Tests(&'static [&'static str]),
    Bench(&'static str),
}

const HOLDERS: [Holder; 7] = [
    Holder {
        number: 4,
        figure: "program updates under load",
        target: "0 failed; counted = device's packets",
        by: By::Tests(&[
            "updates_fail_no_request_and_lose_no_count",
            "sent_counts_equal_arrivals_under_load_and_during_updates",
        ]),
        says: None,
    },
    Holder {
        number: 5,
        figure: "hand-overs with drain under load",
        target: "0 failed",
        by: By::Tests(&["updates_fail_no_request_and_lose_no_count", "a_roll_back_fails_no_request"]),
        says: None,
    },
    Holder {
        number: 6,
        figure: "kill -9",
        target: "served ≤ 100 ms after restart; refused meanwhile",
        by: By::Tests(&["restart_adopts_pinned_state"]),
        says: Some(("restart: served after ", 100.0)),
    },
    Holder {
        number: 7,
        figure: "any link removed",
        target: "a download completes",
        by: By::Tests(&["a_download_survives_the_removal_of_any_link"]),
        says: None,
    },
    Holder {
        number: 8,
        figure: "small MTU, transit, node-local, pods, UDP",
        target: "served, or untouched",
        by: By::Tests(&[
            "three_megabytes_cross_the_small_mtu_hop_both_ways",
            "transit_and_other_ports_are_untouched",
            "native_xdp_serves_and_counts_clients",
            "generic_xdp_serves_and_counts_clients",
            "tcx_serves_and_counts_clients",
            "sk_lookup_alone_serves_clients",
            "datagrams_are_counted_exactly_and_answered_from_their_address",
        ]),
        says: None,
    },
    Holder {
        number: 9,
        figure: "counters",
        target: "Σ hosts = totals; requests = what clients sent",
        by: By::Tests(&["every_accepted_packet_is_counted_for_exactly_one_host"]),
        says: None,
    },
    Holder {
        number: 10,
        figure: "splice of opaque streams",
        target: "CPU ≤ 0.60 × read and write, every byte",
        by: By::Bench("stream"),
        says: Some(("Median ratio ", 0.6)),
    },
];

/// Returns a row for each figure; with `run`, it contains the measured value.
pub(super) fn rows(run: bool) -> anyhow::Result<Vec<Row>> {
    HOLDERS.iter().map(|holder| if run { holder.measured() } else { Ok(holder.cited()) }).collect()
}

impl Holder {
    fn row(&self, measured: String, verdict: Verdict) -> Row {
        let Self { number, figure, target, by: _, says: _ } = self;
        Row { number: *number, figure: (*figure).to_owned(), target: (*target).to_owned(), measured, verdict }
    }

    fn cited(&self) -> Row {
        let command = match self.by {
            By::Tests(names) => format!("`cargo xtask test kernel -- {}`", names.join(" ")),
            By::Bench(name) => format!("`cargo bench --package ingress-proxy --bench {name}`"),
        };
        self.row(command, Verdict::Elsewhere)
    }

    fn measured(&self) -> anyhow::Result<Row> {
        let mut cargo;
        match self.by {
            By::Tests(names) => {
                cargo = build::test(&["namespaces"]);
                cargo.arg("--").args(names).args(["--nocapture", "--test-threads=1"]).env("REQUIRE_KERNEL", "1");
            }
            By::Bench(name) => {
                cargo = build::cargo();
                cargo.args(["bench", "--package", "ingress-proxy", "--bench", name]);
            }
        }
        progress::note(&format!("$ {}", process::show(&cargo)));
        let said = match process::capture(cargo.stderr(Stdio::inherit())) {
            Ok(said) => said,
            Err(error) => {
                eprintln!("{error:#}");
                return Ok(self.row("failed, see above".to_owned(), Verdict::Missed));
            }
        };
        if let By::Tests(names) = self.by {
            // A stale test name must not pass as a successful test.
            anyhow::ensure!(said.contains(&format!("ok. {} passed", names.len())), "not all of these exist: {names:?}");
        }
        let Some((words, most)) = self.says else { return Ok(self.row("passed".to_owned(), Verdict::Met)) };
        let found = number_after(&said, words).with_context(|| format!("nothing is said after `{words}`"))?;
        Ok(self.row(found.to_string(), if found <= most { Verdict::Met } else { Verdict::Missed }))
    }
}

/// Returns the number directly after these words.
fn number_after(text: &str, words: &str) -> Option<f64> {
    let (_, rest) = text.split_once(words)?;
    let end = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_after_their_label() {
        let said = "kill -9: refused after 3 ms; restart: served after 98 ms\n";
        assert_eq!(number_after(said, "restart: served after "), Some(98.0));
        assert_eq!(number_after("\nMedian ratio 0.55; most memory held 9 kB", "Median ratio "), Some(0.55));
        assert_eq!(number_after(said, "Median ratio "), None);
    }

    #[test]
    fn every_figure_from_4_to_10_has_a_row() {
        let rows = rows(false).expect("nothing is run");
        assert!(rows.iter().map(|row| row.number).eq(4..=10));
        assert!(rows.iter().all(|row| row.verdict == Verdict::Elsewhere && row.measured.starts_with("`cargo ")));
    }
}
