//! Layout of the demo's results: aligned tables of at most 120 columns, colour only on a terminal. It decides nothing.

use std::{
    env, fmt,
    io::{self, IsTerminal as _, Write as _},
};

use ingress_common::{HostL7, HostNet};

use super::{
    run::{self, Outcome},
    steps::Step,
    tally::{self, Check, Tally},
};
use ingress_lab::maps::Counts;

/// Width of the column of hosts: a host of a Gateway is named with its listener.
const HOST_WIDTH: usize = 46;

/// Standard output with or without colour.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    colour: bool,
}

const GREEN: &str = "32";
const RED: &str = "31";
const BOLD: &str = "1";
const DIM: &str = "2";

impl Page {
    pub(super) fn new() -> Self {
        // https://no-color.org: set and not empty.
        let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { colour: io::stdout().is_terminal() && !refused }
    }

    /// Prints a line. Errors are ignored, because a closed output must not stop the clean-up.
    pub(super) fn line(self, text: impl fmt::Display) {
        writeln!(io::stdout().lock(), "{text}").ok();
    }

    pub(super) fn title(self, text: &str) {
        self.line(format_args!("\n{}", self.paint(BOLD, text)));
    }

    pub(super) fn note(self, text: &str) {
        self.line(self.paint(DIM, text));
    }

    pub(super) fn step(self, step: &Step, outcome: &Outcome, has_v6: bool) {
        let Outcome { requests, connections, took, problems } = outcome;
        self.line(format_args!(
            "  {} {:<11} {:<40} {:>3} req {:>3} conn {:>6} ms",
            self.mark(problems.is_empty()),
            run::kind(step, has_v6),
            step.title,
            requests,
            connections,
            took.as_millis(),
        ));
        for problem in problems {
            self.line(format_args!("      {}", self.paint(RED, problem)));
        }
    }

    /// Prints the number of answers by host and by server.
    pub(super) fn served(self, tally: &Tally) {
        let columns = ["pod-a", "pod-b", "pod-c", "the proxy"];
        self.line(
            self.paint(
                DIM,
                &format!("  {:<HOST_WIDTH$}{}", "host", columns.map(|name| format!("{name:>11}")).concat()),
            ),
        );
        for (host, by) in &tally.served {
            let cells = columns.map(|name| format!("{:>11}", cell(by.get(name).copied().unwrap_or_default())));
            self.line(format_args!("  {host:<HOST_WIDTH$}{}", cells.concat()));
        }
    }

    /// Prints two lines per host, the client's counts and the proxy's. Returns the names of hosts for which they
    /// differ.
    pub(super) fn hosts(self, tally: &Tally, counts: &Counts, source: &str) -> Vec<String> {
        let heads = ["2xx", "3xx", "4xx", "5xx", "abrt"].map(|name| format!("{name:>5}")).concat();
        self.line(self.paint(
            DIM,
            &format!("  {:<HOST_WIDTH$}{:<7}{heads}{:>12}{:>12}{:>9}", "host", "", "bytes in", "bytes out", "rx pkts"),
        ));
        let mut differing = Vec::new();
        for name in tally.all_hosts(counts) {
            let client = tally.hosts.get(&name).copied().unwrap_or_default();
            let (l7, net) = counts.hosts.get(&name).map(|host| (host.l7, host.net)).unwrap_or_default();
            // A configured host without requests has no figures to show.
            if client == l7 && l7 == HostL7::default() && net == HostNet::default() {
                continue;
            }
            let holds = tally::equals(&client, &l7);
            self.host_line(&name, "client", &client, "", "");
            self.host_line("", source, &l7, &net.rx_packets.to_string(), &self.mark(holds));
            if !holds {
                differing.push(name);
            }
        }
        differing
    }

    fn host_line(self, name: &str, who: &str, l7: &HostL7, packets: &str, mark: &str) {
        let HostL7 { requests, bytes_in, bytes_out, active } = *l7;
        let classes = requests.to_array().map(|count| format!("{:>5}", cell(count))).concat();
        let active = if active == 0 { String::new() } else { format!(" {active} still active") };
        self.line(format_args!(
            "  {name:<HOST_WIDTH$}{who:<7}{classes}{:>12}{:>12}{packets:>9} {mark}{active}",
            cell(bytes_in),
            cell(bytes_out)
        ));
    }

    pub(super) fn check(self, check: &Check) {
        let Check { name, expected, found, holds } = check;
        self.line(format_args!(
            "  {} {name:<44} {found:>12}   {}",
            self.mark(*holds),
            self.paint(DIM, &format!("expected {expected}"))
        ));
    }

    pub(super) fn mark(self, holds: bool) -> String {
        if holds { self.paint(GREEN, "✓") } else { self.paint(RED, "✗") }
    }

    pub(super) fn paint(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Formats a figure with grouped thousands. Zero is a dot, so that other values stand out in a table.
pub(super) fn cell(value: u64) -> String {
    if value == 0 {
        return "·".into();
    }
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::cell;

    #[test]
    fn figures_are_grouped_by_thousands() {
        for (value, expect) in [(0, "·"), (7, "7"), (999, "999"), (1000, "1 000"), (10_488_002, "10 488 002")] {
            assert_eq!(cell(value), expect);
        }
    }
}
