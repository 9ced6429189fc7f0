//! Verdicts about names of ingress-nginx: its annotations, keys of its ConfigMap, flags, and values of its chart. The
//! verdict on an annotation or setting is that of the row that reads it, so it cannot lag behind. This module reads no
//! values and reports no events; `names` holds lists of names only.
//!
//! ```text
//! names/*.txt ──> Surface::names ──┐
//! translate (rows of features) ────┼──> Surface::verdict ──> pages of docs/migrate, `check`
//! flags, values (rows) ────────────┘
//! ```

mod flags;
#[cfg(test)]
mod tests;
mod values;

use crate::translate;

pub use flags::{Flag, Takes, foreign_flags};

/// The result of a name of ingress-nginx here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub kind: Kind,
    /// The difference, or the reason; begins in lower case and has no full stop. Empty for [`Kind::Full`].
    pub text: &'static str,
    /// What to use instead; empty if there is no need or no substitute.
    pub instead: &'static str,
}

/// The kinds of verdicts, from the least to the most work for a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Each valid value has the effect that it has in ingress-nginx.
    Full,
    /// The name is accepted without effect, and the behaviour that it tunes does not exist or cannot be tuned here.
    NoEffect,
    /// The name has its effect, with differences for some values.
    Differs,
    /// The effect is missing. An annotation that protects makes its rules answer 503; otherwise an event or a line of the
    /// log names the loss.
    Refused,
}

/// A place where ingress-nginx is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Surface {
    /// Annotations of Ingresses, without their prefix.
    Annotations,
    /// Keys of the ConfigMap that `--configmap` names.
    Settings,
    /// Flags of the controller, without dashes.
    Flags,
    /// Values of the Helm chart, as paths with dots.
    Values,
}

// === impl Kind ===

impl Kind {
    /// Returns the word for people: `fully`, `no effect`, `differs` or `refused`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Full => "fully",
            Self::NoEffect => "no effect",
            Self::Differs => "differs",
            Self::Refused => "refused",
        }
    }
}

// === impl Verdict ===

impl Verdict {
    /// The verdict on a name with the same effect.
    pub const FULL: Self = Self { kind: Kind::Full, text: "", instead: "" };

    pub(crate) const fn differs(text: &'static str) -> Self {
        Self { kind: Kind::Differs, text, instead: "" }
    }

    pub(crate) const fn no_effect(text: &'static str) -> Self {
        Self { kind: Kind::NoEffect, text, instead: "" }
    }

    pub(crate) const fn refused(text: &'static str, instead: &'static str) -> Self {
        Self { kind: Kind::Refused, text, instead }
    }

    pub(crate) const fn instead(self, instead: &'static str) -> Self {
        Self { instead, ..self }
    }
}

// === impl Surface ===

impl Surface {
    /// Returns the verdict on `name`; `None` if neither ingress-nginx nor this controller knows it. Names of this
    /// controller alone are [`Kind::Full`].
    #[must_use]
    pub fn verdict(self, name: &str) -> Option<Verdict> {
        match self {
            Self::Annotations => translate::annotation_verdict(name),
            Self::Settings => translate::setting_verdict(name),
            Self::Flags => flags::verdict(name),
            Self::Values => values::verdict(name),
        }
    }

    /// Returns the names of ingress-nginx v1.15.1, sorted, each once; for [`Self::Values`] those of the README of its
    /// chart 4.15.7.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let list = match self {
            Self::Annotations => include_str!("names/annotations.txt"),
            Self::Settings => include_str!("names/settings.txt"),
            Self::Flags => include_str!("names/flags.txt"),
            Self::Values => include_str!("names/values.txt"),
        };
        list.lines().filter(|line| !line.starts_with('#'))
    }
}
