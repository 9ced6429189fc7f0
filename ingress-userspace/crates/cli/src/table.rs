//! Tables of text.

use std::{array, iter};

use crate::palette::{Palette, Tone};

/// A column of a table, with its title.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableColumn {
    /// Left-aligned.
    Words(&'static str),
    /// Right-aligned, with a minimum width in characters.
    Numbers(&'static str, usize),
}

/// A cell of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    text: String,
    tone: Tone,
}

/// Formats a line of titles and one per row; each column is as wide as its longest cell. Lines have no trailing spaces.
pub fn table<const N: usize>(columns: [TableColumn; N], rows: &[[String; N]]) -> String {
    let rows: Vec<[Cell; N]> = rows.iter().map(|row| row.clone().map(Cell::from)).collect();
    coloured(columns, &rows, Palette::NONE)
}

/// Formats a table like [`table`], with the tones of its cells.
pub fn coloured<const N: usize>(columns: [TableColumn; N], rows: &[[Cell; N]], palette: Palette) -> String {
    let titles = columns.map(|column| match column {
        TableColumn::Words(title) | TableColumn::Numbers(title, _) => Cell::from(title.to_owned()),
    });
    let lines = || iter::once(&titles).chain(rows);
    let widths: [usize; N] = array::from_fn(|at| {
        let least = match columns[at] {
            TableColumn::Words(_) => 0,
            TableColumn::Numbers(_, least) => least,
        };
        lines().map(|cells| cells[at].width()).fold(least, usize::max)
    });
    let mut text = String::new();
    for cells in lines() {
        // Blanks follow only where a later cell has text.
        let last = cells.iter().rposition(|cell| !cell.text.is_empty()).unwrap_or_default();
        for (at, cell) in cells.iter().enumerate().take(last + 1) {
            // Control sequences have no width, so blanks are counted apart.
            let blanks = " ".repeat(widths[at] - cell.width());
            let painted = palette.paint(cell.tone, &cell.text);
            text += if at == 0 { "" } else { "  " };
            match columns[at] {
                TableColumn::Words(_) if at == last => text += &painted,
                TableColumn::Words(_) => text += &(painted + &blanks),
                TableColumn::Numbers(..) => text += &(blanks + &painted),
            }
        }
        text += "\n";
    }
    text
}

// === impl Cell ===

impl Cell {
    #[must_use]
    pub fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: text.into(), tone }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, tone: Tone::Plain }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [TableColumn; 3] =
        [TableColumn::Words("WHO"), TableColumn::Numbers("MANY", 6), TableColumn::Words("WHY")];

    #[test]
    fn columns_are_as_wide_as_their_longest_cells() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned);
        for (rows, expect) in [
            (vec![], "WHO    MANY  WHY\n"),
            (
                vec![row(["a", "1", "because"]), row(["bäcker", "23", ""]), row(["", "", ""])],
                "\
WHO       MANY  WHY
a            1  because
bäcker      23

",
            ),
            (
                vec![row(["a", "1", "x"]), row(["b", "1234567", "y"])],
                "\
WHO     MANY  WHY
a          1  x
b    1234567  y
",
            ),
        ] {
            assert_eq!(table(COLUMNS, &rows), expect);
        }
    }

    #[test]
    fn colours_change_no_width() {
        let rows = [[Cell::new("a", Tone::Error), "1".to_owned().into(), Cell::new("old", Tone::Warning)]];
        let painted = coloured(COLUMNS, &rows, Palette::ON);
        assert!(painted.ends_with("\n\x1b[31ma\x1b[0m         1  \x1b[33mold\x1b[0m\n"), "{painted:?}");
        let plain = ["\x1b[31m", "\x1b[33m", "\x1b[0m"].iter().fold(painted, |text, code| text.replace(code, ""));
        assert_eq!(plain, coloured(COLUMNS, &rows, Palette::NONE));
    }
}
