//! Colours of warnings and errors, for terminals only.

use std::io::{self, IsTerminal as _};

use clap::ColorChoice;

/// The option that turns colours off, for every command.
const OPTION: &str = "--no-color";

/// Importance of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Plain,
    /// Yellow.
    Warning,
    /// Red.
    Error,
}

/// The colours of an output: all or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Palette {
    is_on: bool,
}

// === impl Palette ===

impl Palette {
    pub const NONE: Self = Self { is_on: false };
    #[cfg(test)]
    pub(crate) const ON: Self = Self { is_on: true };

    /// Returns the palette of standard output.
    #[must_use]
    pub fn of_stdout(no_color: bool) -> Self {
        let is_forbidden = no_color || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self::of(io::stdout().is_terminal(), is_forbidden)
    }

    /// Returns the palette of standard error, for messages from outside of a command.
    #[must_use]
    pub fn of_stderr() -> Self {
        Self::of(io::stderr().is_terminal(), is_forbidden())
    }

    const fn of(is_terminal: bool, is_forbidden: bool) -> Self {
        Self { is_on: is_terminal && !is_forbidden }
    }

    /// Returns `text` in the colour of `tone`.
    #[must_use]
    pub fn paint(self, tone: Tone, text: &str) -> String {
        // Colours of ECMA-48, which each terminal shows in the shades of its theme.
        let colour = match tone {
            _ if !self.is_on || text.is_empty() => return text.to_owned(),
            Tone::Plain => return text.to_owned(),
            Tone::Warning => 33,
            Tone::Error => 31,
        };
        format!("\x1b[{colour}m{text}\x1b[0m")
    }
}

/// Returns the choice for help texts and errors of the command line, which clap prints before options are known.
#[must_use]
pub fn of_help() -> ColorChoice {
    if is_forbidden() { ColorChoice::Never } else { ColorChoice::Auto }
}

/// Returns whether the environment or the command line turns colours off. <https://no-color.org> gives the rule for
/// the variable.
fn is_forbidden() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || std::env::args_os().any(|argument| argument == OPTION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_terminals_get_colours() {
        for (is_terminal, is_forbidden, expected) in
            [(true, false, "\x1b[33mold\x1b[0m"), (true, true, "old"), (false, false, "old"), (false, true, "old")]
        {
            let palette = Palette::of(is_terminal, is_forbidden);
            assert_eq!(palette.paint(Tone::Warning, "old"), expected, "{is_terminal} {is_forbidden}");
        }
        let colours = Palette::of(true, false);
        assert_eq!(colours.paint(Tone::Error, "dead"), "\x1b[31mdead\x1b[0m");
        assert_eq!(
            (colours.paint(Tone::Plain, "well"), colours.paint(Tone::Error, "")),
            ("well".into(), String::new())
        );
    }
}
