//! Output of commands to standard output: text, JSON or a table. The content is unknown here.

use std::{
    array,
    io::{self, Write},
    iter,
    time::Duration,
};

use anyhow::Context as _;
use clap::ValueEnum;
use serde_json::Value;

/// Output format of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Text for people.
    #[value(alias = "table")]
    Text,
    /// JSON for programs.
    Json,
    /// YAML with the same content.
    Yaml,
}

/// A column of a table, with its title.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableColumn {
    /// Left-aligned.
    Words(&'static str),
    /// Right-aligned, with a minimum width in characters.
    Numbers(&'static str, usize),
}

/// Prints all of `text`. A closed pipe is not an error: readers such as `head` may close it early.
///
/// # Errors
/// Fails if standard output cannot be written for another reason.
pub fn text(text: &str) -> anyhow::Result<()> {
    write(&mut io::stdout().lock(), text)
}

/// Prints `value` on several lines, indented.
///
/// # Errors
/// Fails like [`text()`].
pub fn json(value: &Value) -> anyhow::Result<()> {
    text(&format!("{value:#}\n"))
}

/// Prints the same content in the wanted form: the text, or the value as JSON or YAML.
///
/// # Errors
/// Fails like [`text()`].
pub fn either(form: Output, as_text: impl FnOnce() -> String, value: impl FnOnce() -> Value) -> anyhow::Result<()> {
    match form {
        Output::Text => text(&as_text()),
        Output::Json => json(&value()),
        Output::Yaml => text(&serde_saphyr::to_string(&value())?),
    }
}

/// Formats a line of titles and one per row; each column is as wide as its longest cell. Lines have no trailing spaces.
pub fn table<const N: usize>(columns: [TableColumn; N], rows: &[[String; N]]) -> String {
    let titles = columns.map(|column| match column {
        TableColumn::Words(title) | TableColumn::Numbers(title, _) => title.to_owned(),
    });
    let lines = || iter::once(&titles).chain(rows);
    let widths: [usize; N] = array::from_fn(|at| {
        let least = match columns[at] {
            TableColumn::Words(_) => 0,
            TableColumn::Numbers(_, least) => least,
        };
        lines().map(|cells| cells[at].chars().count()).fold(least, usize::max)
    });
    let mut text = String::new();
    for cells in lines() {
        let cells: [String; N] = array::from_fn(|at| {
            let (cell, width) = (&cells[at], widths[at]);
            match columns[at] {
                TableColumn::Words(_) => format!("{cell:<width$}"),
                TableColumn::Numbers(..) => format!("{cell:>width$}"),
            }
        });
        text += cells.join("  ").trim_end();
        text += "\n";
    }
    text
}

fn write(out: &mut impl Write, text: &str) -> anyhow::Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

/// Formats a count, or a rate per second; `k`, `M`, … are powers of 1000.
pub fn quantity(count: u64, within: Option<Duration>) -> String {
    match within {
        None if count < 1000 => count.to_string(),
        None => scaled(count as f64),
        Some(within) => scaled(per_second(count, within)),
    }
}

/// Returns the rate of `count` events within a time; zero if no time has passed.
pub fn per_second(count: u64, within: Duration) -> f64 {
    if within.is_zero() { 0.0 } else { count as f64 / within.as_secs_f64() }
}

fn scaled(mut value: f64) -> String {
    let mut prefixes = ["k", "M", "G", "T", "P", "E"].into_iter();
    let mut prefix = "";
    // From this value on, rounding would give 1000.
    while value >= 999.5
        && let Some(next) = prefixes.next()
    {
        value /= 1000.0;
        prefix = next;
    }
    let decimals = usize::from(value > 0.0 && value < 99.95);
    format!("{value:.decimals$}{prefix}")
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Read as _};

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
    fn a_closed_pipe_is_no_error_and_a_full_disk_is_one() {
        let (mut reader, mut writer) = io::pipe().expect("a pipe");
        write(&mut writer, "read\n").expect("written");
        let mut read = [0; 5];
        reader.read_exact(&mut read).expect("what was written");
        assert_eq!(&read, b"read\n");
        drop(reader);
        write(&mut writer, "not read\n").expect("nobody reads");

        let mut full = File::options().write(true).open("/dev/full").expect("a full device");
        let error = write(&mut full, "lost\n").expect_err("no space");
        assert_eq!(error.to_string(), "cannot write to standard output");
    }

    #[test]
    fn quantities_keep_three_figures() {
        for (count, expected) in [
            (0, "0"),
            (999, "999"),
            (1000, "1.0k"),
            (12_345, "12.3k"),
            (99_949, "99.9k"),
            (99_950, "100k"),
            (999_499, "999k"),
            (999_500, "1.0M"),
            (1_500_000_000, "1.5G"),
            (u64::MAX, "18.4E"),
        ] {
            assert_eq!(quantity(count, None), expected, "{count}");
        }
        for (count, millis, expected) in
            [(0, 1000, "0"), (1, 1000, "1.0"), (1, 3000, "0.3"), (250, 1000, "250"), (999, 500, "2.0k"), (7, 0, "0")]
        {
            assert_eq!(quantity(count, Some(Duration::from_millis(millis))), expected, "{count} in {millis} ms");
        }
    }
}
