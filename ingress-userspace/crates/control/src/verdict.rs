//! The verdict on a name of ingress-nginx. Rows of annotations, settings, flags and chart values have one each.

/// The result of a name of ingress-nginx here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub kind: Kind,
    /// The difference, or the reason; begins in lower case and has no full stop. Empty for [`Kind::Full`].
    pub text: &'static str,
    /// The substitute; empty if there is no need or no substitute.
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
