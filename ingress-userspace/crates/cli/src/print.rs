//! Output of commands to standard output: a table, JSON or YAML, once or after each change. The content is unknown here.

use std::{
    io::{self, IsTerminal as _, Write},
    thread,
    time::Duration,
};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::palette::{Palette, Tone};

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Columns that fit a terminal.
    #[value(alias = "text")]
    Table,
    /// All columns.
    Wide,
    Json,
    Yaml,
}

// No doc comment: clap would show it in place of the description of each command.
#[derive(Clone, Copy, Debug, Args)]
pub struct OutputArgs {
    /// Form of the output; `wide` is `table` where there are no more columns to show.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    pub output: Format,

    /// Print again whenever the output changes, until you interrupt the command.
    #[arg(short, long)]
    pub watch: bool,

    /// Print without colours. Colours are for terminals only, and the environment variable NO_COLOR turns them off, too.
    #[arg(long)]
    pub no_color: bool,
}

/// The wanted form, and the colours of text.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    pub format: Format,
    pub palette: Palette,
}

/// Time between two readings with `--watch`.
const INTERVAL: Duration = Duration::from_secs(2);
/// Moves the cursor to the first line and clears the screen (ECMA-48).
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Prints what `render` makes of each reading: the first one, and with `--watch` those with another result. Returns the
/// last reading.
///
/// # Errors
/// Fails if the first reading does, or standard output cannot be written. Later failures are told on standard error.
pub fn show<T>(
    args: &OutputArgs,
    mut read: impl FnMut() -> anyhow::Result<T>,
    render: impl Fn(&T, Style) -> anyhow::Result<String>,
) -> anyhow::Result<T> {
    let style = Style::of(args);
    let mut latest = read()?;
    let mut shown = render(&latest, style)?;
    let is_screen = args.watch && io::stdout().is_terminal();
    let mut out = io::stdout();
    let before = if is_screen { CLEAR } else { "" };
    let mut reader = write(&mut out, &format!("{before}{shown}"))?;
    let mut problem = String::new();
    while args.watch && reader == Reader::Present {
        thread::sleep(INTERVAL);
        match read().and_then(|reading| Ok((render(&reading, style)?, reading))) {
            Ok((text, reading)) => {
                latest = reading;
                problem.clear();
                if text != shown {
                    let before = if is_screen { CLEAR } else { style.format.separator() };
                    reader = write(&mut out, &(before.to_owned() + &text))?;
                    shown = text;
                }
            }
            Err(error) => {
                let text = format!("{error:#}");
                if text != problem {
                    eprintln!("{}", Palette::of_stderr().paint(Tone::Error, &text));
                    problem = text;
                }
            }
        }
    }
    Ok(latest)
}

/// Prints all of `text`. A closed pipe is not an error: readers such as `head` may close it early.
///
/// # Errors
/// Fails if standard output cannot be written for another reason.
pub fn text(text: &str) -> anyhow::Result<()> {
    write(&mut io::stdout().lock(), text).map(drop)
}

/// Prints remarks beside the output, for people.
///
/// # Errors
/// Fails if standard error cannot be written.
pub fn remark(text: &str) -> anyhow::Result<()> {
    io::stderr().lock().write_all(text.as_bytes()).context("cannot write to standard error")
}

/// Returns a text in one line without control characters, which could move the cursor of a terminal.
#[must_use]
pub fn one_line(text: &str) -> String {
    text.split_whitespace().map(|word| word.replace(char::is_control, "")).collect::<Vec<_>>().join(" ")
}

/// The reader of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    Present,
    /// The reader has closed the pipe.
    Gone,
}

fn write(out: &mut impl Write, text: &str) -> anyhow::Result<Reader> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        written => written.map(|()| Reader::Present).context("cannot write to standard output"),
    }
}

// === impl Format ===

impl Format {
    /// Returns the text between two outputs of `--watch`, where these do not replace each other on a screen.
    const fn separator(self) -> &'static str {
        match self {
            Self::Table | Self::Wide => "\n",
            // Documents in a row are a stream already.
            Self::Json => "",
            Self::Yaml => "---\n",
        }
    }
}

// === impl Style ===

impl Style {
    /// Returns the style that the options and standard output ask for.
    #[must_use]
    pub fn of(OutputArgs { output, watch: _, no_color }: &OutputArgs) -> Self {
        Self { format: *output, palette: Palette::of_stdout(*no_color) }
    }

    #[must_use]
    pub fn is_wide(self) -> bool {
        self.format == Format::Wide
    }

    /// Returns `document` as JSON or YAML, or the text of `table`.
    ///
    /// # Errors
    /// Fails if the document has no such form.
    pub fn render(self, document: &impl Serialize, table: impl FnOnce() -> String) -> anyhow::Result<String> {
        match self.format {
            Format::Table | Format::Wide => Ok(table()),
            Format::Json => Ok(format!("{:#}\n", serde_json::to_value(document)?)),
            Format::Yaml => Ok(serde_saphyr::to_string(document)?),
        }
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
    use std::{cell::Cell, fs::File, io::Read as _};

    use super::*;

    #[test]
    fn a_closed_pipe_is_no_error_and_a_full_disk_is_one() {
        let (mut reader, mut writer) = io::pipe().expect("a pipe");
        assert_eq!(write(&mut writer, "read\n").expect("written"), Reader::Present);
        let mut read = [0; 5];
        reader.read_exact(&mut read).expect("what was written");
        assert_eq!(&read, b"read\n");
        drop(reader);
        assert_eq!(write(&mut writer, "not read\n").expect("nobody reads"), Reader::Gone);

        let mut full = File::options().write(true).open("/dev/full").expect("a full device");
        let error = write(&mut full, "lost\n").expect_err("no space");
        assert_eq!(error.to_string(), "cannot write to standard output");
    }

    #[test]
    fn a_command_without_watch_reads_once() {
        let readings = Cell::new(0);
        let read = || {
            readings.set(readings.get() + 1);
            Ok(readings.get())
        };
        let args = OutputArgs { output: Format::Json, watch: false, no_color: true };
        let last = show(&args, read, |reading, style| style.render(reading, || unreachable!("no table is wanted")));
        assert_eq!((last.expect("shown"), readings.get()), (1, 1));
        assert_eq!(Format::Yaml.separator(), "---\n");
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
