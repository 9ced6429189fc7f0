//! The table of cases and clients.

use std::collections::BTreeMap;
use std::fmt;

use crate::clients::{Case, Kind, Results};

/// Results of all clients.
#[derive(Debug, Default)]
pub(crate) struct Report {
    results: BTreeMap<Kind, BTreeMap<Case, Result<(), String>>>,
}

impl Report {
    pub(crate) fn add(&mut self, kind: Kind, results: Results) {
        self.results.entry(kind).or_default().extend(results);
    }

    /// Returns a line for each case that failed.
    pub(crate) fn failures(&self) -> Vec<String> {
        let of = |(kind, results): (&Kind, &BTreeMap<Case, Result<(), String>>)| {
            let failed = results.iter().filter_map(|(case, result)| Some((case, result.as_ref().err()?)));
            failed.map(|(case, why)| format!("{kind}: `{case}` failed: {why}")).collect::<Vec<_>>()
        };
        self.results.iter().flat_map(of).collect()
    }
}

impl fmt::Display for Report {
    /// Writes the table as Markdown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<String> = self.results.keys().map(Kind::to_string).collect();
        writeln!(f, "| case | of the QUIC Interop Runner | {} |", kinds.join(" | "))?;
        writeln!(f, "|---|---|{}", "---|".repeat(kinds.len()))?;
        for case in Case::ALL {
            let cells: Vec<String> = self
                .results
                .iter()
                .map(|(kind, results)| match (results.get(&case), kind.cannot(case)) {
                    (Some(Ok(())), _) => "passed".to_owned(),
                    (Some(Err(_)), _) => "**failed**".to_owned(),
                    (None, Some(why)) => format!("cannot: {why}"),
                    (None, None) => "not run".to_owned(),
                })
                .collect();
            let name = case.runner_name().unwrap_or("–");
            writeln!(f, "| `{case}` | {name} | {} |", cells.join(" | "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_is_named_and_has_its_place_in_the_table() {
        let mut report = Report::default();
        report.add(Kind::QuicGo, vec![(Case::Get, Ok(())), (Case::Post, Err("reset".into()))]);
        assert_eq!(report.failures(), ["quic-go: `post` failed: reset"]);
        report.add(Kind::Curl, Vec::new());
        let table = report.to_string();
        for line in [
            "| case | of the QUIC Interop Runner | quic-go | curl |",
            "| `get` | handshake | passed | not run |",
            "| `post` | transfer | **failed** | not run |",
            "| `keys` | keyupdate | not run | cannot: it cannot be told to |",
        ] {
            assert!(table.contains(line), "{table}");
        }
    }
}
