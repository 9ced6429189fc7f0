//! `xdp-ingress top` on a terminal: redraws everything after each interval and each key.
//!
//! The screen uses only features that terminals have had for decades: raw mode, the size, and six control sequences of
//! ECMA-48 and xterm. Keys that send their own sequences are not used.

use std::{
    io::{self, Write as _},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    termios::{OptionalActions, Termios, Winsize, tcgetattr, tcgetwinsize, tcsetattr},
};

use super::{
    controls::{Controls, Next, Show},
    selection::Selection,
    table,
};
use crate::reading::{Amounts, Reading};

/// Switches to the alternate screen, which preserves the previous content, and hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
/// Ends a line; raw mode adds no carriage return.
const LINE_END: &str = "\x1b[K\r\n";
/// Clears the rest of the previous frame.
const CLEAR_BELOW: &str = "\x1b[K\x1b[J";
const INVERSE: &str = "\x1b[7m";
const PLAIN: &str = "\x1b[0m";

/// Size if the terminal does not report one.
const USUAL: ScreenSize = ScreenSize { rows: 24, columns: 80 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ScreenSize {
    rows: usize,
    columns: usize,
}

/// Shows the result of `read`, each `interval`, until the user quits. `title` is shown on top.
///
/// # Errors
/// Fails if the first reading or the terminal does. Failures of later readings are shown on the screen.
pub fn run(
    title: &str,
    interval: Duration,
    selection: Selection,
    read: impl Fn() -> anyhow::Result<Reading>,
) -> anyhow::Result<()> {
    let mut latest = read()?;
    let mut rates: Option<Amounts> = None;
    let mut problem: Option<String> = None;
    let mut controls = Controls::new(selection);
    let terminal = Terminal::open().context("cannot use the terminal")?;
    let mut due = Instant::now() + interval;
    loop {
        let whole;
        let amounts = match (controls.show, &rates) {
            (Show::Rates, Some(rates)) => rates,
            // Rates are not available yet, or not selected.
            _ => {
                whole = latest.whole();
                &whole
            }
        };
        let frame = frame(title, problem.as_deref(), amounts, &controls, terminal.size());
        terminal.write(&frame).context("cannot write to the terminal")?;
        match terminal.wait(due).context("cannot read from the terminal")? {
            Input::Keys(keys) => {
                if keys.into_iter().any(|key| controls.press(key) == Next::Quit) {
                    return Ok(());
                }
            }
            Input::Gone => return Ok(()),
            Input::None => {
                due = Instant::now() + interval;
                if controls.paused {
                    continue;
                }
                match read() {
                    Ok(reading) => {
                        rates = Some(reading.since(&latest));
                        latest = reading;
                        problem = None;
                    }
                    Err(error) => problem = Some(format!("{error:#}")),
                }
            }
        }
    }
}

/// Returns the whole screen with its control sequences.
fn frame(title: &str, problem: Option<&str>, amounts: &Amounts, controls: &Controls, size: ScreenSize) -> String {
    let ScreenSize { rows, columns } = size;
    let state = match (problem, controls.paused) {
        (Some(problem), _) => format!("  {problem}"),
        (None, true) => "  paused".to_owned(),
        (None, false) => String::new(),
    };
    // Lines for the title, the head of the table, and the keys.
    let room = rows.saturating_sub(1 + table::HEAD + 1);
    let limit = controls.selection.limit.map_or(room, |limit| limit.min(room));
    let selection = Selection { limit: Some(limit), ..controls.selection.clone() };
    let lines = table::lines(amounts, &selection, Some(columns));

    let cut = |line: &str| line.chars().take(columns).collect::<String>();
    let mut frame = HOME.to_owned() + &cut(&table::printable(&format!("xdp-ingress top  {title}{state}"))) + LINE_END;
    for (index, line) in lines.iter().take(rows.saturating_sub(2)).enumerate() {
        let line = cut(line);
        // Column names.
        frame += &if index + 1 == table::HEAD { format!("{INVERSE}{line}{PLAIN}") } else { line };
        frame += LINE_END;
    }
    frame + &cut(controls.help()) + CLEAR_BELOW
}

/// Keyboard input.
enum Input {
    Keys(Vec<u8>),
    /// No input until the deadline.
    None,
    /// The terminal is gone.
    Gone,
}

/// The terminal in raw mode; its previous state is restored on drop.
struct Terminal {
    stdin: io::Stdin,
    before: Termios,
}

// === impl Terminal ===

impl Terminal {
    fn open() -> io::Result<Self> {
        let stdin = io::stdin();
        let before = tcgetattr(&stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Flush, &raw)?;
        // From here on, dropping restores the terminal.
        let terminal = Self { stdin, before };
        terminal.write(ENTER)?;
        Ok(terminal)
    }

    fn size(&self) -> ScreenSize {
        match tcgetwinsize(io::stdout()) {
            Ok(Winsize { ws_row: rows @ 1.., ws_col: columns @ 1.., .. }) => {
                ScreenSize { rows: rows.into(), columns: columns.into() }
            }
            _ => USUAL,
        }
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    }

    /// Waits for keys until `due`.
    fn wait(&self, due: Instant) -> io::Result<Input> {
        let left = due.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(&self.stdin, PollFlags::IN)];
        match poll(&mut fds, Some(&left)) {
            Ok(0) | Err(Errno::INTR) => return Ok(Input::None),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        // Not read through `Stdin`: `poll` does not see data in its buffer.
        let mut keys = [0; 64];
        match rustix::io::read(&self.stdin, &mut keys) {
            Ok(0) | Err(Errno::IO) => Ok(Input::Gone),
            Ok(count) => Ok(Input::Keys(keys.into_iter().take(count).collect())),
            Err(Errno::INTR) => Ok(Input::None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Errors are ignored: a terminal that cannot be restored is gone.
        let _gone = self.write(LEAVE).is_err();
        let _gone = tcsetattr(&self.stdin, OptionalActions::Flush, &self.before).is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        reading::tests::{host, reading},
        top::selection::TopColumn,
    };

    fn controls(limit: Option<usize>) -> Controls {
        Controls::new(Selection { sort: TopColumn::Host, reversed: false, filter: String::new(), limit })
    }

    #[test]
    fn a_frame_fits_the_screen() {
        let hosts = (0..100).map(|id| host(&format!("host-{id:02}.example.com"), id, 1)).collect();
        let amounts = reading(Instant::now(), hosts).whole();
        for (rows, columns, limit, drawn) in
            [(24, 80, None, 24), (24, 80, Some(5), 11), (6, 20, None, 6), (2, 1, None, 2)]
        {
            let frame = frame("/bpf", None, &amounts, &controls(limit), ScreenSize { rows, columns });
            let plain = [HOME, INVERSE, PLAIN, CLEAR_BELOW]
                .into_iter()
                .fold(frame.clone(), |frame, sequence| frame.replace(sequence, ""));
            let lines: Vec<_> = plain.split(LINE_END).collect();
            assert!(lines.iter().all(|line| line.len() <= columns), "{columns} columns: {lines:#?}");
            assert_eq!(lines.len(), drawn, "{rows} rows");
            assert_eq!(
                frame.matches("\r\n").count(),
                frame.matches(LINE_END).count(),
                "every line removes an older one"
            );
        }
    }

    #[test]
    fn the_title_shows_the_problem() {
        let amounts = reading(Instant::now(), Vec::new()).whole();
        let title = |problem, paused| {
            let controls = Controls { paused, ..controls(None) };
            let frame = frame("/bpf", problem, &amounts, &controls, USUAL);
            frame.split(LINE_END).next().and_then(|line| line.strip_prefix(HOME)).map(str::to_owned)
        };
        assert_eq!(title(None, false).as_deref(), Some("xdp-ingress top  /bpf"));
        assert_eq!(title(None, true).as_deref(), Some("xdp-ingress top  /bpf  paused"));
        assert_eq!(
            title(Some("nothing\nis pinned"), true).as_deref(),
            Some("xdp-ingress top  /bpf  nothing?is pinned")
        );
    }
}
