//! Key bindings of `xdp-ingress top`. Terminals are handled elsewhere: a key is the byte that a terminal in raw mode
//! sends.

use super::selection::Selection;

/// State that keys can change at runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Controls {
    pub(super) selection: Selection,
    pub(super) show: Show,
    pub(super) paused: bool,
    /// Whether keys edit the filter.
    pub(super) typing: bool,
}

/// Kind of numbers to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Show {
    /// Rates per second over the latest interval.
    Rates,
    /// Totals since the maps were created.
    Counts,
}

/// Next step after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    GoOn,
    Quit,
}

/// Text of the last line.
const HELP: &str = "q quit  s sort by the next column  r reverse  / filter  t rates or totals  p pause";
const HELP_TYPING: &str = "type part of a name; Enter applies it, Esc drops it";

const INTERRUPT: u8 = 3;
const BACKSPACE: u8 = 8;
const ENTER: u8 = b'\r';
const ESCAPE: u8 = 27;
const DELETE: u8 = 127;

impl Controls {
    pub(super) const fn new(selection: Selection) -> Self {
        Self { selection, show: Show::Rates, paused: false, typing: false }
    }

    pub(super) fn press(&mut self, key: u8) -> Next {
        let Self { selection, show, paused, typing } = self;
        match key {
            INTERRUPT => return Next::Quit,
            ENTER | b'\n' if *typing => *typing = false,
            ESCAPE if *typing => {
                *typing = false;
                selection.filter.clear();
            }
            BACKSPACE | DELETE if *typing => {
                selection.filter.pop();
            }
            key if *typing && key.is_ascii_graphic() => selection.filter.push(char::from(key)),
            _ if *typing => {}
            b'q' => return Next::Quit,
            b's' => selection.sort = selection.sort.next(),
            b'r' => selection.reversed = !selection.reversed,
            b'/' => *typing = true,
            b'p' => *paused = !*paused,
            b't' => {
                *show = match *show {
                    Show::Rates => Show::Counts,
                    Show::Counts => Show::Rates,
                }
            }
            _ => {}
        }
        Next::GoOn
    }

    pub(super) const fn help(&self) -> &'static str {
        if self.typing { HELP_TYPING } else { HELP }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::selection::TopColumn;

    /// Returns the controls after these keys, and the effect of the last key.
    fn after(keys: &str) -> (Controls, Next) {
        let mut controls =
            Controls::new(Selection { sort: TopColumn::Out, reversed: false, filter: String::new(), limit: Some(7) });
        let mut next = Next::GoOn;
        for key in keys.bytes() {
            next = controls.press(key);
        }
        (controls, next)
    }

    #[test]
    fn keys_change_the_view() {
        let (unchanged, _) = after("");
        let selection = unchanged.selection.clone();
        for (keys, expected) in [
            (
                "s",
                Controls { selection: Selection { sort: TopColumn::Host, ..selection.clone() }, ..unchanged.clone() },
            ),
            (
                "ss",
                Controls {
                    selection: Selection { sort: TopColumn::Requests, ..selection.clone() },
                    ..unchanged.clone()
                },
            ),
            ("r", Controls { selection: Selection { reversed: true, ..selection.clone() }, ..unchanged.clone() }),
            ("rr", unchanged.clone()),
            ("p", Controls { paused: true, ..unchanged.clone() }),
            ("t", Controls { show: Show::Counts, ..unchanged.clone() }),
            ("tt", unchanged.clone()),
            ("/", Controls { typing: true, ..unchanged.clone() }),
            (
                "/shoq\x7fp\r",
                Controls { selection: Selection { filter: "shop".into(), ..selection }, ..unchanged.clone() },
            ),
            ("/q\x1b", unchanged.clone()),
            ("/\x08\r", unchanged.clone()),
            // Escape sequences of the arrow keys have no effect.
            ("\x1b[A\x1b[B\x1b[C\x1b[D", unchanged),
        ] {
            assert_eq!(after(keys), (expected, Next::GoOn), "{keys:?}");
        }
    }

    #[test]
    fn q_and_ctrl_c_quit() {
        for keys in ["q", "\x03", "/sh\x03", "/shop\rq"] {
            assert_eq!(after(keys).1, Next::Quit, "{keys:?}");
        }
    }
}
