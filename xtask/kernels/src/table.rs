//! The findings as tables, for a terminal and for `docs/kernels.md` alike.

use std::collections::BTreeSet;

use super::flood::Cookies;
use super::scenario::Findings;
use super::{Hooks, NICS, Support};

/// Returns the table in Markdown, with a row for each release.
pub(super) fn table(rows: &[(String, Findings)]) -> String {
    let mut head = vec!["kernel".to_owned(), "programs".to_owned()];
    head.extend(NICS.iter().map(|nic| format!("{}: receives, transmits", nic.driver)));
    head.extend([
        "requests".to_owned(),
        "steered".to_owned(),
        "SYN cookies sent, confirmed".to_owned(),
        "fallback".to_owned(),
    ]);
    let mut lines = vec![head];
    lines.extend(rows.iter().map(|(release, findings)| cells(release, findings)));
    markdown(&lines)
}

/// Returns the table of verified instructions in Markdown, with a row for each release and a column for each program;
/// `None` if no kernel gives them.
pub(super) fn verified(rows: &[(String, Findings)]) -> Option<String> {
    let programs: BTreeSet<&String> = rows.iter().flat_map(|(_, findings)| findings.verified.keys()).collect();
    if programs.is_empty() {
        return None;
    }
    let mut lines = vec![vec!["verified instructions".to_owned()]];
    lines[0].extend(programs.iter().map(|program| format!("`{program}`")));
    lines.extend(rows.iter().map(|(release, findings)| {
        let of = |program: &&String| findings.verified.get(*program).map_or_else(|| "–".to_owned(), u32::to_string);
        std::iter::once(release.clone()).chain(programs.iter().map(of)).collect()
    }));
    Some(markdown(&lines))
}

/// Returns the lines, the head first, in Markdown.
fn markdown(lines: &[Vec<String>]) -> String {
    let widths: Vec<usize> = (0..lines[0].len())
        .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default())
        .collect();
    let show = |line: &Vec<String>| {
        let cells = line.iter().zip(&widths).map(|(cell, &width)| format!(" {cell:width$} "));
        format!("|{}|", cells.collect::<Vec<_>>().join("|"))
    };
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(width + 2)).collect();
    let mut shown: Vec<String> = lines.iter().map(show).collect();
    shown.insert(1, format!("|{}|", rule.join("|")));
    shown.join("\n")
}

fn cells(release: &str, findings: &Findings) -> Vec<String> {
    let Findings { support, requests, steered, cookies, verified: _ } = findings;
    let mut cells = vec![release.to_owned()];
    match support {
        Support::Programs(attached) => {
            cells.push("run".to_owned());
            cells.extend(attached.iter().map(|Hooks { receives, transmits }| format!("{receives}, {transmits}")));
        }
        Support::Refused(_) => {
            cells.push("refused".to_owned());
            cells.extend(NICS.iter().map(|_| "–".to_owned()));
        }
    }
    let cookies = cookies.map_or_else(|| "–".to_owned(), |Cookies { sent, confirmed }| format!("{sent}, {confirmed}"));
    cells.extend([requests.to_string(), steered.to_string(), cookies, fallback(support)]);
    // A bar would begin another cell.
    cells.into_iter().map(|cell| cell.replace('|', "\\|")).collect()
}

/// Returns the fallback that the product uses instead of its preferred mode.
fn fallback(support: &Support) -> String {
    match support {
        Support::Refused(reason) => format!("`--steer bind --xdp-mode off`, for {reason}"),
        Support::Programs(attached) => {
            let mut instead = Vec::new();
            for (nic, Hooks { receives, .. }) in NICS.iter().zip(attached) {
                if receives != "native" {
                    instead.push(format!("XDP {receives} on {}", nic.driver));
                }
            }
            let transmits = &attached[0].transmits;
            if transmits != "tcx" {
                instead.push(format!("{transmits} for tcx"));
            }
            if instead.is_empty() { "none".to_owned() } else { instead.join("; ") }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn hooks(receives: &str, transmits: &str) -> Hooks {
        Hooks { receives: receives.to_owned(), transmits: transmits.to_owned() }
    }

    #[test]
    fn a_row_shows_programs_and_their_fallback() {
        let rows = [
            (
                "4.19".to_owned(),
                Findings {
                    support: Support::Refused("it is too old | x".to_owned()),
                    requests: 16,
                    steered: 0,
                    cookies: None,
                    verified: BTreeMap::new(),
                },
            ),
            (
                "6.1".to_owned(),
                Findings {
                    support: Support::Programs([hooks("native", "clsact"), hooks("generic", "clsact")]),
                    requests: 16,
                    steered: 16,
                    cookies: Some(Cookies { sent: 1500, confirmed: 8 }),
                    verified: BTreeMap::from([("ingress_xdp".to_owned(), 524_406)]),
                },
            ),
        ];
        let table = table(&rows);
        let cells =
            |line: &str| line.split(" | ").map(|cell| cell.trim_matches(['|', ' ']).to_owned()).collect::<Vec<_>>();
        let lines: Vec<&str> = table.lines().collect();
        let width = lines[0].chars().count();
        assert!(lines.len() == 4 && lines.iter().all(|line| line.chars().count() == width), "{table}");
        assert!(lines[1].chars().all(|char| matches!(char, '|' | '-')), "{table}");
        assert_eq!(
            cells(lines[2]),
            ["4.19", "refused", "–", "–", "16", "0", "–", "`--steer bind --xdp-mode off`, for it is too old \\| x"]
        );
        assert_eq!(
            cells(lines[3]),
            [
                "6.1",
                "run",
                "native, clsact",
                "generic, clsact",
                "16",
                "16",
                "1500, 8",
                "XDP generic on e1000; clsact for tcx"
            ]
        );
        assert_eq!(
            verified(&rows).as_deref(),
            Some(
                "| verified instructions | `ingress_xdp` |\n\
                 |-----------------------|---------------|\n\
                 | 4.19                  | –             |\n\
                 | 6.1                   | 524406        |"
            )
        );
        assert_eq!(verified(&rows[..1]), None);
    }

    #[test]
    fn the_best_modes_need_no_fallback() {
        assert_eq!(fallback(&Support::Programs([hooks("native", "tcx"), hooks("native", "tcx")])), "none");
    }
}
