//! A row of the tables of settings: a key, its default, its documentation, and the reading of its value.

use std::sync::Arc;

use super::globals::Globals;
use crate::translate::values::Read;
use ingress_model::PathMatch;

/// A row: one key.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    /// The value if the key is not set, as it would be written.
    pub(crate) default: &'static str,
    /// The same for classes that are taken over from ingress-nginx.
    pub(crate) nginx: &'static str,
    /// For people: the effect of the key, with its unit and limits.
    pub(crate) meaning: &'static str,
    /// Sets the value, or returns a description of valid values.
    pub(crate) apply: fn(&str, &mut Globals) -> Read,
}

/// Makes a row for a key without a default.
pub(crate) const fn setting(
    name: &'static str,
    meaning: &'static str,
    apply: fn(&str, &mut Globals) -> Read,
) -> Setting {
    Setting { name, default: "", nginx: "", meaning, apply }
}

pub(crate) fn prefixes(value: &str) -> Read<Arc<[PathMatch]>> {
    let paths = elements(value).map(PathMatch::prefix).collect::<Result<Vec<_>, _>>();
    paths.map(Into::into).map_err(|_invalid| "paths, separated by commas".into())
}

pub(crate) fn elements(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|element| !element.is_empty())
}

impl Setting {
    /// Sets the default for both kinds of classes.
    pub(crate) const fn default(self, default: &'static str) -> Self {
        Self { default, nginx: default, ..self }
    }

    pub(crate) const fn nginx(self, nginx: &'static str) -> Self {
        Self { nginx, ..self }
    }
}
