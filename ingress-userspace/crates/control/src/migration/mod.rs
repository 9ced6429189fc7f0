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
mod gateway;
#[cfg(test)]
mod tests;
mod values;

use crate::translate;

pub use crate::{
    boolean::boolean,
    verdict::{Kind, Verdict},
};
pub use flags::{Flag, Takes, foreign_flags};
pub use gateway::{Expressed, GatewayMigration, RowVerdict, to_gateway};

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
