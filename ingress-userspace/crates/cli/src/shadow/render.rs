//! The result of a replay as a table.

use std::fmt::Write as _;

use super::compare::{Difference, ShadowReport};
use crate::{
    palette::{Palette, Tone},
    table::{Cell, TableColumn, coloured},
};

/// Characters of a text in the narrow table.
const SHORT: usize = 48;

/// Formats the report. A narrow table shortens texts and leaves out Ingresses.
pub(super) fn table(report: &ShadowReport, is_wide: bool, palette: Palette) -> String {
    let ShadowReport { lines, alike, different, undecided, differences, unlisted } = report;
    let unclear: u64 = undecided.values().sum();
    let shown = |count: u64, name: &str, tone| {
        let text = format!("{name} {count}");
        if count == 0 { text } else { palette.paint(tone, &text) }
    };
    let mut text = format!(
        "{lines} lines\nALIKE {alike}   {}   {}\n",
        shown(*different, "DIFFERENT", Tone::Error),
        shown(unclear, "UNDECIDED", Tone::Warning)
    );
    if !differences.is_empty() {
        text += "\n";
        text += &rows(differences, is_wide, palette);
    }
    if *unlisted > 0 {
        let _written = writeln!(text, "{unlisted} requests differ for further causes, which are not listed.");
    }
    if unclear > lines / 2 {
        text += "\nMost lines are undecided, so the numbers say little about the whole log.\n";
    }
    if !undecided.is_empty() {
        text += "\nUndecided lines:\n";
        for (reason, count) in undecided {
            let _written = writeln!(text, "{count:>8}  {reason}");
        }
    }
    text
}

fn rows(differences: &[Difference], is_wide: bool, palette: Palette) -> String {
    let cell = |text: &str| -> Cell {
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        match text.char_indices().nth(SHORT) {
            Some((end, _)) if !is_wide => format!("{}…", &text[..end]).into(),
            _ => text.into(),
        }
    };
    let count = |difference: &Difference| Cell::from(difference.count.to_string());
    if is_wide {
        let columns = [
            TableColumn::Numbers("REQUESTS", 0),
            TableColumn::Words("HOST"),
            TableColumn::Words("INGRESS"),
            TableColumn::Words("NGINX"),
            TableColumn::Words("HERE"),
            TableColumn::Numbers("LINE", 0),
            TableColumn::Words("EXAMPLE"),
        ];
        let row = |d: &Difference| {
            let line = Cell::from(d.line.to_string());
            [count(d), cell(&d.host), cell(&d.ingress), cell(&d.nginx), cell(&d.here), line, cell(&d.example)]
        };
        return coloured(columns, &differences.iter().map(row).collect::<Vec<_>>(), palette);
    }
    let columns = [
        TableColumn::Numbers("REQUESTS", 0),
        TableColumn::Words("HOST"),
        TableColumn::Words("NGINX"),
        TableColumn::Words("HERE"),
        TableColumn::Words("EXAMPLE"),
    ];
    let row = |d: &Difference| [count(d), cell(&d.host), cell(&d.nginx), cell(&d.here), cell(&d.example)];
    coloured(columns, &differences.iter().map(row).collect::<Vec<_>>(), palette)
}
