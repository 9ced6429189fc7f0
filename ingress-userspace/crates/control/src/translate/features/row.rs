//! Rows of the tables of features: keys of annotations or settings, their documentation, and the reading of their
//! values.

use std::sync::Arc;

use crate::{
    change::{Kind, ObjectName},
    outcome::Reason,
    translate::values::{Expected, Read},
    verdict::Verdict,
};
use ingress_model::PathMatch;

/// A key of annotations or settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// The value if the key is not set, as it would be written; empty for none.
    pub(crate) default: &'static str,
    /// For a setting, the same for classes that are taken over from ingress-nginx.
    pub(crate) nginx: &'static str,
    /// For people: the effect of the key, with its unit and limits.
    pub(crate) meaning: &'static str,
    /// Kind of the object that the value names, as `name` or `namespace/name`. Only settings may name objects outside
    /// the namespace of the Ingress.
    pub(crate) names: Option<Kind>,
    /// Returns the Service that a value leads to, for an Ingress in a namespace.
    pub(crate) leads_to: Option<fn(&str, &str) -> Option<ObjectName>>,
    /// Treatment of rules if the value cannot be read.
    pub(crate) otherwise: Otherwise,
    /// Whether each IngressClass has the setting separately.
    pub(crate) is_per_class: bool,
    /// Explains a value that is read, but has another effect than it says; `None` for other values.
    pub(crate) notes: Option<fn(&str) -> Option<Expected>>,
    /// Reason under which an annotation's note is reported: whether requests are served otherwise than in ingress-nginx.
    pub(crate) note_reason: Reason,
    /// Key that means the same, and counts if both are there.
    pub(crate) same_as: Option<&'static str>,
    /// For people: what does the same for a route of the Gateway API, if the key has no effect there.
    pub(crate) instead_on_routes: Option<&'static str>,
    /// How the key differs from the one of ingress-nginx with the same name; empty if each valid value there has the same
    /// effect here.
    pub(crate) differs: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Otherwise {
    /// Rules are served as if the key were not set.
    Default,
    /// Rules answer 503, because serving them would be unsafe, or would lead to an unintended destination.
    Refuse,
}

/// A key, and the reading of its value into a part `P` of the parsed values: the part of one feature.
#[derive(Debug)]
pub(crate) struct Row<P: 'static> {
    key: Key,
    /// Stores the value, or returns a description of valid values.
    read: fn(&str, &mut P) -> Read,
}

/// The rows of one feature, and the place of its part among all parsed values `A`.
pub(super) struct Table<A: 'static, P: 'static> {
    pub(super) rows: &'static [Row<P>],
    pub(super) part: fn(&mut A) -> &mut P,
}

/// A table of any feature.
pub(crate) trait Rows<A> {
    /// Returns the keys in order of their names.
    fn keys(&self) -> Vec<&'static Key>;

    /// Stores the value of the key `name`, or returns a description of valid values; `None` without such a key.
    fn read(&self, name: &str, value: &str, all: &mut A) -> Option<Read>;

    fn find(&self, name: &str) -> Option<&'static Key>;
}

/// Makes a key without a default that names no object.
pub(super) const fn key(name: &'static str, meaning: &'static str) -> Key {
    Key {
        name,
        default: "",
        nginx: "",
        meaning,
        names: None,
        leads_to: None,
        otherwise: Otherwise::Default,
        is_per_class: false,
        notes: None,
        note_reason: Reason::IneffectiveAnnotation,
        same_as: None,
        instead_on_routes: None,
        differs: "",
    }
}

pub(super) fn prefixes(value: &str) -> Read<Arc<[PathMatch]>> {
    let paths = elements(value).map(PathMatch::prefix).collect::<Result<Vec<_>, _>>();
    paths.map(Into::into).map_err(|_invalid| "paths, separated by commas".into())
}

pub(super) fn elements(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|element| !element.is_empty())
}

// === impl Key ===

impl Key {
    /// Sets the default, for both kinds of classes.
    pub(super) const fn default(self, default: &'static str) -> Self {
        Self { default, nginx: default, ..self }
    }

    pub(super) const fn nginx(self, nginx: &'static str) -> Self {
        Self { nginx, ..self }
    }

    pub(super) const fn or_refuse(self) -> Self {
        Self { otherwise: Otherwise::Refuse, ..self }
    }

    pub(super) const fn naming(self, kind: Kind) -> Self {
        Self { names: Some(kind), ..self }
    }

    pub(super) const fn leading_to(self, service: fn(&str, &str) -> Option<ObjectName>) -> Self {
        Self { leads_to: Some(service), ..self }
    }

    pub(super) const fn notes(self, notes: fn(&str) -> Option<Expected>) -> Self {
        Self { notes: Some(notes), ..self }
    }

    /// Notes values for which requests are served otherwise than in ingress-nginx.
    pub(super) const fn notes_differences(self, notes: fn(&str) -> Option<Expected>) -> Self {
        Self { notes: Some(notes), note_reason: Reason::UnsupportedAnnotation, ..self }
    }

    /// Names the key that means the same, and counts if both are there.
    pub(super) const fn same_as(self, key: &'static str) -> Self {
        Self { same_as: Some(key), ..self }
    }

    /// Takes the effect on routes from the key, and says in the imperative what does the same there.
    pub(super) const fn not_on_routes(self, instead: &'static str) -> Self {
        Self { instead_on_routes: Some(instead), ..self }
    }

    /// Describes the difference from ingress-nginx, in lower case and without a full stop.
    pub(super) const fn differs(self, differs: &'static str) -> Self {
        Self { differs, ..self }
    }

    /// Returns the verdict on the key of ingress-nginx with this name.
    pub(crate) const fn verdict(&self) -> Verdict {
        if self.differs.is_empty() { Verdict::FULL } else { Verdict::differs(self.differs) }
    }

    pub(super) const fn per_class(self) -> Self {
        Self { is_per_class: true, ..self }
    }

    /// Completes the row.
    pub(super) const fn reads<P>(self, read: fn(&str, &mut P) -> Read) -> Row<P> {
        Row { key: self, read }
    }
}

// === impl Table ===

impl<A, P> Rows<A> for Table<A, P> {
    fn keys(&self) -> Vec<&'static Key> {
        self.rows.iter().map(|row| &row.key).collect()
    }

    fn read(&self, name: &str, value: &str, all: &mut A) -> Option<Read> {
        let row = self.rows.iter().find(|row| row.key.name == name)?;
        Some((row.read)(value, (self.part)(all)))
    }

    fn find(&self, name: &str) -> Option<&'static Key> {
        self.rows.iter().map(|row| &row.key).find(|key| key.name == name)
    }
}
