//! A table of cases and clients.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use clap::ValueEnum;

use crate::clients::{Case, Kind};

/// A case that has a row.
pub(crate) trait Row: ValueEnum + Ord + Display + Copy + 'static {
    /// Beginning of the table's first line.
    const HEAD: &'static str;

    /// Returns why the client cannot run the case; `None` if it can.
    fn cannot(self, kind: Kind) -> Option<&'static str>;

    /// Returns the beginning of the case's row.
    fn head(self) -> String;
}

/// Results of the clients, with a text for the table or the reason of a failure.
#[derive(Debug)]
pub(crate) struct Report<C>(BTreeMap<Kind, BTreeMap<C, Result<String, String>>>);

impl<C: Row> Report<C> {
    pub(crate) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Adds results, which replace earlier ones of the same cases. A client without any has a column, too.
    pub(crate) fn add(&mut self, kind: Kind, results: impl IntoIterator<Item = (C, Result<String, String>)>) {
        self.0.entry(kind).or_default().extend(results);
    }

    /// Returns a line for each case that failed.
    pub(crate) fn failures(&self) -> Vec<String> {
        let of = |(kind, results): (&Kind, &BTreeMap<C, Result<String, String>>)| {
            let failed = results.iter().filter_map(|(case, result)| Some((case, result.as_ref().err()?)));
            failed.map(|(case, why)| format!("{kind}: `{case}` failed: {why}")).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of).collect()
    }
}

impl<C: Row> Display for Report<C> {
    /// Writes the table as Markdown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<String> = self.0.keys().map(Kind::to_string).collect();
        writeln!(f, "{} {} |", C::HEAD, kinds.join(" | "))?;
        writeln!(f, "|{}", "---|".repeat(C::HEAD.matches('|').count() - 1 + kinds.len()))?;
        for case in C::value_variants() {
            let cell = |(kind, results): (&Kind, &BTreeMap<C, Result<String, String>>)| match (
                results.get(case),
                case.cannot(*kind),
            ) {
                (Some(Ok(text)), _) => text.clone(),
                (Some(Err(_)), _) => "**failed**".to_owned(),
                (None, Some(why)) => format!("cannot: {why}"),
                (None, None) => "not run".to_owned(),
            };
            let cells: Vec<String> = self.0.iter().map(cell).collect();
            writeln!(f, "{} {} |", case.head(), cells.join(" | "))?;
        }
        Ok(())
    }
}

impl Row for Case {
    const HEAD: &'static str = "| case | of the QUIC Interop Runner |";

    fn cannot(self, kind: Kind) -> Option<&'static str> {
        kind.cannot(self)
    }

    fn head(self) -> String {
        format!("| `{self}` | {} |", self.runner_name().unwrap_or("–"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_is_named_and_has_its_place_in_the_table() {
        let mut report = Report::new();
        report.add(Kind::QuicGo, [(Case::Get, Ok("passed".into())), (Case::Post, Err("reset".into()))]);
        assert_eq!(report.failures(), ["quic-go: `post` failed: reset"]);
        report.add(Kind::Curl, []);
        let table = report.to_string();
        for line in [
            "| case | of the QUIC Interop Runner | quic-go | curl |\n|---|---|---|---|\n",
            "| `get` | handshake | passed | not run |",
            "| `post` | transfer | **failed** | not run |",
            "| `keys` | keyupdate | not run | cannot: it cannot be told to |",
        ] {
            assert!(table.contains(line), "{table}");
        }
    }
}
