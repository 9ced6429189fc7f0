//! Interprets a machine's console output: the lines of `init.sh`, and log and error lines of the product. Pure.

use std::collections::BTreeMap;

/// Number of lines that an error repeats.
const TAIL: usize = 20;

/// Progress of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stage {
    /// The machine still boots.
    Starting,
    /// The programs run.
    Programs,
    /// The product serves with ordinary listeners, because the programs failed to load for this reason.
    Listeners(String),
    /// The machine has failed and will not progress.
    Failed(String),
}

/// Returns the stage that `console` shows.
pub(super) fn stage(console: &str) -> Stage {
    let told = |line: &str| {
        Some(match line.trim_end().strip_prefix("guest: ")? {
            "serves by programs" => Stage::Programs,
            "serves by listeners" => Stage::Listeners(refusal(console).unwrap_or_else(|| "unknown".to_owned())),
            other => Stage::Failed(other.strip_prefix("failed: ").unwrap_or(other).to_owned()),
        })
    };
    // The last line may still be incomplete.
    let whole = console.rsplit_once('\n').map_or("", |(lines, _)| lines);
    whole.lines().find_map(told).unwrap_or(Stage::Starting)
}

/// Returns the product's own reason for its end, without its recommendations, and with only the last line of the
/// verifier's log.
fn refusal(console: &str) -> Option<String> {
    let (_, rest) = console.split_once("xdp-ingress: ")?;
    let line = rest.lines().next()?;
    let reason = line.split_once("runs without it): ").map_or(line, |(_, reason)| reason);
    let Some((reason, _)) = reason.split_once(" Verifier output:") else { return Some(reason.to_owned()) };
    // The verifier's log ends with statistics; the line before them has the reason.
    let last = rest.split_once("\nverification time").and_then(|(log, _)| log.lines().next_back());
    Some(last.map_or_else(|| reason.to_owned(), |last| format!("{reason} {}", last.trim_end())))
}

/// Returns the verified instructions of each program that the product has loaded, by the name of the program.
pub(super) fn verified(console: &str) -> BTreeMap<String, u32> {
    let program = |line: &str| {
        let (_, fields) = line.split_once(": program loaded name=\"")?;
        let (name, fields) = fields.split_once("\" verified_instructions=")?;
        Some((name.to_owned(), fields.split_whitespace().next()?.parse().ok()?))
    };
    console.lines().filter_map(program).collect()
}

/// Returns the last lines.
pub(super) fn tail(console: &str) -> String {
    let lines: Vec<&str> = console.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: &str =
        "xdp-ingress: cannot set up the kernel part (`--steer bind --xdp-mode off` runs without it): ";

    #[test]
    fn the_console_shows_the_progress_of_a_machine() {
        let old = format!("{REFUSED}kernel `5.10.0-46-amd64` is too old\r\nguest: serves by listeners\r\n");
        let verifier = format!(
            "{REFUSED}the kernel refuses `ingress_xdp`: Invalid argument. Verifier output: 0: R1=ctx()\r\n\
             0: (bf) r7 = r1\r\nmath is not allowed\r\nverification time 30376 usec\r\n\
             stack depth 376+0\r\nguest: serves by listeners\r\n"
        );
        let refused = |reason: &str| Stage::Listeners(reason.to_owned());
        for (console, expect) in [
            ("", Stage::Starting),
            ("Run /init as init process\r\nguest", Stage::Starting),
            ("2026 INFO ready\r\nguest: serves by programs\r\n", Stage::Programs),
            (old.as_str(), refused("kernel `5.10.0-46-amd64` is too old")),
            (verifier.as_str(), refused("the kernel refuses `ingress_xdp`: Invalid argument. math is not allowed")),
            ("guest: failed: cannot load e1000.ko\r\n", Stage::Failed("cannot load e1000.ko".to_owned())),
        ] {
            assert_eq!(stage(console), expect, "{console}");
        }
    }

    #[test]
    fn the_log_names_the_verified_instructions_of_each_program() {
        let loaded = |fields: &str| {
            format!("2026-11-28T11:21:46.240367Z  INFO ingress_node::daemon::kernel: program loaded name={fields}\r\n")
        };
        let console = [
            "guest: starts\r\n".to_owned(),
            loaded("\"ingress_lookup\" verified_instructions=416395 translated_instructions=1242"),
            loaded("\"ingress_xdp\" verified_instructions=524406"),
            // Before Linux 5.16.
            loaded("\"ingress_tc_out\" translated_instructions=1216"),
        ]
        .concat();
        let expect = [("ingress_lookup", 416_395), ("ingress_xdp", 524_406)];
        assert_eq!(verified(&console), expect.map(|(name, verified)| (name.to_owned(), verified)).into());
    }

    #[test]
    fn an_error_quotes_the_last_lines() {
        let all = (0..30).map(|line| line.to_string()).collect::<Vec<_>>().join("\r\n");
        let end = tail(&all);
        assert!(end.starts_with("10\n") && end.ends_with("\n29"), "{end}");
        assert_eq!(tail("one"), "one");
    }
}
