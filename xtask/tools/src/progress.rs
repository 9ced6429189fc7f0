//! Progress output of long work: one line that counts seconds on a terminal, a plain line now and then elsewhere. It
//! goes to standard error only, so that standard output stays free for results.

use std::env;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often the counting line is redrawn on a terminal.
const REDRAW: Duration = Duration::from_millis(200);
/// How often a sign of life is printed without a terminal.
const SIGN_OF_LIFE: Duration = Duration::from_secs(20);

/// Progress display of one piece of long work.
#[derive(Debug)]
pub struct Progress {
    label: String,
    began: Instant,
    shown: Option<Instant>,
    terminal: bool,
}

impl Progress {
    /// Starts the display of work called `label`, such as `building bpf-linker 0.10.4`.
    pub fn begin(label: impl Into<String>) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let mut progress = Self { label: label.into(), began: Instant::now(), shown: None, terminal };
        progress.tick();
        progress
    }

    /// Returns the time since the work began.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Shows that the work still goes on. Callers may call this as often as is convenient.
    pub fn tick(&mut self) {
        let pause = if self.terminal { REDRAW } else { SIGN_OF_LIFE };
        if self.shown.is_some_and(|at| at.elapsed() < pause) {
            return;
        }
        match (self.terminal, self.shown) {
            (true, _) => self.line(&format!("\r{} … {} s", self.label, self.elapsed().as_secs())),
            (false, None) => self.line(&format!("{} …\n", self.label)),
            (false, Some(_)) => {
                self.line(&format!("{} … still at it after {} s\n", self.label, self.elapsed().as_secs()))
            }
        }
        self.shown = Some(Instant::now());
    }

    /// Ends the display; `outcome` is one or two words, such as `done`.
    pub fn end(self, outcome: &str) {
        let start = if self.terminal { "\r\x1b[K" } else { "" };
        self.line(&format!("{start}{}: {outcome} in {:.1} s\n", self.label, self.elapsed().as_secs_f64()));
    }

    fn line(&self, text: &str) {
        let mut err = std::io::stderr().lock();
        // A failure to show progress must not fail the work.
        drop(err.write_all(text.as_bytes()).and_then(|()| err.flush()));
    }
}

/// Prints a heading between steps.
pub fn heading(text: &str) {
    eprintln!("{}", paint(Tone::Strong, &format!("== {text}")));
}

/// Prints a warning that the reader should not miss.
pub fn warn(text: &str) {
    eprintln!("{}", paint(Tone::Warn, &format!("warning: {text}")));
}

/// Prints a line of information.
pub fn note(text: &str) {
    eprintln!("{text}");
}

/// Appearance of a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Bold.
    Strong,
    /// Green.
    Good,
    /// Red.
    Bad,
    /// Yellow.
    Warn,
}

/// Returns `true` if output should have colours; for programs that take an explicit setting.
pub fn colours() -> bool {
    std::io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Returns `text` in colour if standard error is a terminal and `NO_COLOR` is unset or empty (no-color.org).
pub fn paint(tone: Tone, text: &str) -> String {
    if !colours() {
        return text.to_owned();
    }
    let code = match tone {
        Tone::Strong => 1,
        Tone::Bad => 31,
        Tone::Good => 32,
        Tone::Warn => 33,
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}
