//! A row of the tables of annotations: a key, its documentation, and the reading of its value.

use super::ParsedAnnotations;
use crate::{change::Kind, translate::values::Read};

/// A row: one key.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// The value if the key is not set, as it would be written; empty for none.
    pub(crate) default: &'static str,
    /// For people: the effect of the key, with its unit and limits.
    pub(crate) meaning: &'static str,
    /// Kind of the object that the value names, as `name` or `namespace/name`. The object must be in the Ingress's
    /// namespace.
    pub(crate) names: Option<Kind>,
    /// Treatment of rules if the value cannot be read.
    pub(crate) otherwise: Otherwise,
    /// Stores the value, or returns a description of valid values.
    pub(crate) read: fn(&str, &mut ParsedAnnotations) -> Read,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Otherwise {
    /// Rules are served as if the key were not set.
    Default,
    /// Rules answer 503, because serving them would be unsafe, or would lead to an unintended destination.
    Refuse,
}

/// Makes a row for a key without a default that names no object.
pub(crate) const fn key(
    name: &'static str,
    meaning: &'static str,
    read: fn(&str, &mut ParsedAnnotations) -> Read,
) -> Key {
    Key { name, default: "", meaning, names: None, otherwise: Otherwise::Default, read }
}

impl Key {
    pub(crate) const fn default(self, default: &'static str) -> Self {
        Self { default, ..self }
    }

    pub(crate) const fn or_refuse(self) -> Self {
        Self { otherwise: Otherwise::Refuse, ..self }
    }

    pub(crate) const fn naming(self, kind: Kind) -> Self {
        Self { names: Some(kind), ..self }
    }
}
