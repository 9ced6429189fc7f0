//! Converted values as a file for Helm, a table and Markdown.

use std::fmt::Write as _;

use anyhow::Result;

use super::convert::{Converted, Here, Row};
use crate::{
    palette::{Palette, Tone},
    print::one_line,
    table::{Cell, TableColumn, coloured},
};

/// Characters of a text in the narrow table.
const SHORT: usize = 60;
const TITLES: [&str; 5] = ["VERDICT", "VALUE", "HERE", "WHAT CHANGES", "INSTEAD"];

/// Formats a file of values. Comments name what is not copied as it was.
pub(super) fn values(converted: &Converted, file: &str) -> Result<String> {
    let Converted { values, rows } = converted;
    let mut text = format!("# Values of the chart of xdp-ingress, converted from {}.\n", one_line(file));
    for Row { value, verdict, here, what, instead, is_lost: _ } in rows {
        if what.is_empty() && *here == Here::Copied {
            continue;
        }
        let what = if what.is_empty() { String::new() } else { format!(": {what}") };
        let instead = if instead.is_empty() { String::new() } else { format!("; {instead}") };
        let _written =
            writeln!(text, "# {verdict}, {}: {}", here.words(), one_line(&format!("{value}{what}{instead}")));
    }
    Ok(text + &serde_saphyr::to_string(values)?)
}

/// Formats the verdicts as a table. A narrow one shortens texts.
pub(super) fn table(converted: &Converted, is_wide: bool, palette: Palette) -> String {
    let shown = |text: &str| if is_wide { one_line(text) } else { shorten(&one_line(text)) };
    let row = |row: &Row| {
        let Row { value, verdict, here, what, instead, is_lost } = row;
        let verdict = Cell::new(*verdict, if *is_lost { Tone::Error } else { Tone::Plain });
        [verdict, one_line(value).into(), here.words().to_owned().into(), shown(what).into(), shown(instead).into()]
    };
    let rows: Vec<_> = converted.rows.iter().map(row).collect();
    counts(converted) + "\n\n" + &coloured(TITLES.map(TableColumn::Words), &rows, palette)
}

/// Formats the verdicts as Markdown.
pub(super) fn markdown(converted: &Converted) -> String {
    let mut text = format!("# Values\n\n{}\n\n", counts(converted));
    text += "| verdict | value | here | what changes | instead |\n|---|---|---|---|---|\n";
    for Row { value, verdict, here, what, instead, is_lost: _ } in &converted.rows {
        let cells = [*verdict, &format!("`{value}`"), here.words(), what, instead];
        let cells = cells.map(|cell| one_line(cell).replace('|', "\\|").replace('<', "&lt;"));
        let _written = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}

/// Returns the line with the numbers of values.
fn counts(converted: &Converted) -> String {
    let count = |wanted: Here| converted.rows.iter().filter(|row| row.here == wanted).count();
    let lost = converted.rows.iter().filter(|row| row.is_lost).count();
    let parts = [Here::Copied, Here::Changed, Here::LeftOut, Here::NotSet].map(|here| (here.words(), count(here)));
    let parts = parts.into_iter().filter(|(_, count)| *count > 0).map(|(words, count)| format!("{count} {words}"));
    parts.chain([format!("{lost} with a lost effect")]).collect::<Vec<_>>().join(" · ")
}

/// Cuts a long text behind a word.
fn shorten(text: &str) -> String {
    let Some((end, _)) = text.char_indices().nth(SHORT) else { return text.to_owned() };
    let end = text[..end].rfind(' ').unwrap_or(end);
    format!("{}…", text[..end].trim_end())
}
