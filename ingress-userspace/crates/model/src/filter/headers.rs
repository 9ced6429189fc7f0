//! Edits of header fields.

use std::fmt;

use http::{HeaderName, HeaderValue};

use crate::{Template, TemplateError, Variable};

/// A list of edits, applied in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderEdits(Vec<HeaderEdit>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderEdit {
    /// Replaces all fields of the name by one with this value.
    Set(HeaderName, HeaderText),
    /// Adds a field.
    Add(HeaderName, HeaderText),
    /// Removes all fields of the name.
    Remove(HeaderName),
}

/// Value of a field, constant or with variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderText {
    Fixed(HeaderValue),
    Template(Template),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderEditError {
    #[error("`{0}` is no name of a header field")]
    Name(String),
    #[error("`{0}` has no `:` after the name")]
    NoValue(String),
    #[error("field `{0}` belongs to the connection, which the proxy makes itself")]
    Reserved(HeaderName),
    #[error("the value of field `{0}` holds characters that no value may have")]
    Value(HeaderName),
    #[error("in the value of field `{name}`: {error}")]
    Template { name: HeaderName, error: TemplateError },
    #[error("the value of field `{0}` names a group, but there is no regular expression here")]
    Group(HeaderName),
}

/// Fields that control message framing or the connection, which configuration must not change.
const RESERVED: [&str; 14] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "sec-websocket-accept",
    "sec-websocket-key",
];

// === impl HeaderEdits ===

impl HeaderEdits {
    /// Parses one edit per line: `Name: value` sets, `+Name: value` adds, `-Name` removes.
    ///
    /// # Errors
    /// Fails if a line is not a valid edit, or names a reserved field.
    pub fn parse(text: &str) -> Result<Self, HeaderEditError> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.map(HeaderEdit::parse).collect::<Result<_, _>>().map(Self)
    }

    /// Builds edits that set each of `fields`; a field with an empty value is removed.
    ///
    /// # Errors
    /// Fails if a field must not be set.
    pub fn setting<'f>(fields: impl IntoIterator<Item = (&'f str, &'f str)>) -> Result<Self, HeaderEditError> {
        let edit = |(field, value): (&str, &str)| {
            let name = name(field)?;
            Ok(match value.trim() {
                "" => HeaderEdit::Remove(name),
                value => HeaderEdit::Set(name.clone(), HeaderText::parse(&name, value)?),
            })
        };
        fields.into_iter().map(edit).collect::<Result<_, _>>().map(Self)
    }

    /// Builds edits from lists, which are applied in the order of the arguments. Values are literal: `$` begins no
    /// variable. Only the first field of each name counts in a list, whatever its case, as Gateway API's `HTTPHeader`
    /// wants.
    ///
    /// # Errors
    /// Fails if a name or a value is not valid, or a field is reserved.
    pub fn literal<'f>(
        set: impl IntoIterator<Item = (&'f str, &'f str)>,
        add: impl IntoIterator<Item = (&'f str, &'f str)>,
        remove: impl IntoIterator<Item = &'f str>,
    ) -> Result<Self, HeaderEditError> {
        let mut edits = Self::default();
        for (field, value) in set {
            edits.push_first(HeaderEdit::Set(name(field)?, HeaderText::literal(field, value)?));
        }
        for (field, value) in add {
            edits.push_first(HeaderEdit::Add(name(field)?, HeaderText::literal(field, value)?));
        }
        for field in remove {
            edits.push_first(HeaderEdit::Remove(name(field)?));
        }
        Ok(edits)
    }

    /// Appends an edit, unless there is one of the same kind for the same field.
    fn push_first(&mut self, edit: HeaderEdit) {
        let kind = std::mem::discriminant(&edit);
        if !self.iter().any(|known| std::mem::discriminant(known) == kind && known.name() == edit.name()) {
            self.push(edit);
        }
    }

    pub fn push(&mut self, edit: HeaderEdit) {
        self.0.push(edit);
    }

    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub fn iter(&self) -> std::slice::Iter<'_, HeaderEdit> {
        self.0.iter()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'e> IntoIterator for &'e HeaderEdits {
    type Item = &'e HeaderEdit;
    type IntoIter = std::slice::Iter<'e, HeaderEdit>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

// === impl HeaderEdit ===

impl HeaderEdit {
    fn parse(line: &str) -> Result<Self, HeaderEditError> {
        if let Some(field) = line.strip_prefix('-') {
            return name(field.trim()).map(Self::Remove);
        }
        let (adds, line) = line.strip_prefix('+').map_or((false, line), |line| (true, line));
        let (field, value) = line.split_once(':').ok_or_else(|| HeaderEditError::NoValue(line.to_owned()))?;
        let name = name(field.trim())?;
        let text = HeaderText::parse(&name, value.trim())?;
        Ok(if adds { Self::Add(name, text) } else { Self::Set(name, text) })
    }

    #[must_use]
    pub fn name(&self) -> &HeaderName {
        match self {
            Self::Set(name, _) | Self::Add(name, _) | Self::Remove(name) => name,
        }
    }

    /// Returns whether the edit removes existing fields of the name.
    #[must_use]
    pub fn replaces(&self) -> bool {
        match self {
            Self::Set(..) | Self::Remove(_) => true,
            Self::Add(..) => false,
        }
    }
}

fn name(text: &str) -> Result<HeaderName, HeaderEditError> {
    let name = HeaderName::try_from(text).map_err(|_invalid| HeaderEditError::Name(text.to_owned()))?;
    if RESERVED.contains(&name.as_str()) { Err(HeaderEditError::Reserved(name)) } else { Ok(name) }
}

impl HeaderText {
    fn literal(field: &str, value: &str) -> Result<Self, HeaderEditError> {
        let value = HeaderValue::from_str(value.trim_matches([' ', '\t']));
        value.map(Self::Fixed).map_err(|_invalid| match name(field) {
            Ok(name) => HeaderEditError::Value(name),
            Err(error) => error,
        })
    }

    fn parse(name: &HeaderName, value: &str) -> Result<Self, HeaderEditError> {
        // The text around the variables must be a valid field value by itself.
        let fixed = HeaderValue::from_str(value).map_err(|_invalid| HeaderEditError::Value(name.clone()))?;
        let template =
            Template::parse(value).map_err(|error| HeaderEditError::Template { name: name.clone(), error })?;
        if template.variables().any(|variable| matches!(variable, Variable::Group(_))) {
            return Err(HeaderEditError::Group(name.clone()));
        }
        Ok(if template.literal().is_some() { Self::Fixed(fixed) } else { Self::Template(template) })
    }
}

impl fmt::Display for HeaderEdits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, edit) in self.0.iter().enumerate() {
            let space = if n == 0 { "" } else { ", " };
            match edit {
                HeaderEdit::Set(name, text) => write!(f, "{space}{name}: {text}")?,
                HeaderEdit::Add(name, text) => write!(f, "{space}+{name}: {text}")?,
                HeaderEdit::Remove(name) => write!(f, "{space}-{name}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for HeaderText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(value) => f.write_str(&String::from_utf8_lossy(value.as_bytes())),
            Self::Template(template) => write!(f, "{template}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_header_edit() {
        let edits = HeaderEdits::parse("X-A: 1\n\n +x-b: b: c\n-Server\nX-C: $host!").expect("valid");
        assert_eq!(edits.to_string(), "x-a: 1, +x-b: b: c, -server, x-c: $host!");
        let edits = HeaderEdits::setting([("X-A", "1"), ("X-B", "")]).expect("valid");
        assert_eq!(edits.to_string(), "x-a: 1, -x-b");
    }

    #[test]
    fn lists_are_applied_in_order_and_literally() {
        let set = [("X-A", "$host"), ("X-B", "1"), ("x-a", "second")];
        let edits = HeaderEdits::literal(set, [("X-A", "a, b"), ("x-c", " $1 ")], ["X-B", "x-b", "Server"]);
        let edits = edits.expect("valid");
        assert_eq!(edits.to_string(), "x-a: $host, x-b: 1, +x-a: a, b, +x-c: $1, -x-b, -server");
        let fixed = |edit: &HeaderEdit| matches!(edit, HeaderEdit::Set(_, HeaderText::Fixed(_)));
        assert!(edits.iter().take(2).all(fixed), "{edits:?}");
        assert!(HeaderEdits::literal([], [], []).expect("valid").is_empty());
    }

    #[test]
    fn invalid_and_protected_fields_of_lists_are_refused() {
        let error = |edits: Result<HeaderEdits, HeaderEditError>| edits.expect_err("refused");
        let host = HeaderEditError::Reserved(http::header::HOST);
        assert_eq!(error(HeaderEdits::literal([("Host", "b.test")], [], [])), host);
        assert_eq!(error(HeaderEdits::literal([], [("hOST", "b.test")], [])), host);
        assert_eq!(error(HeaderEdits::literal([], [], ["Host"])), host);
        let length = HeaderEditError::Reserved(http::header::CONTENT_LENGTH);
        assert_eq!(error(HeaderEdits::literal([], [], ["Content-Length"])), length);
        assert_eq!(error(HeaderEdits::literal([("a b", "1")], [], [])), HeaderEditError::Name("a b".into()));
        let name = HeaderName::from_static("x-a");
        assert_eq!(error(HeaderEdits::literal([("X-A", "a\r\nb: c")], [], [])), HeaderEditError::Value(name));
    }

    #[test]
    fn invalid_and_protected_headers_are_refused() {
        for (text, expect) in [
            ("x a: 1", "no name"),
            ("x-a", "no `:`"),
            ("Connection: close", "belongs to the connection"),
            ("-transfer-encoding", "belongs to the connection"),
            ("Host: a.test", "belongs to the connection"),
            ("x-a: a\u{1}", "characters"),
            ("x-a: $nope", "no variable"),
            ("x-a: $1", "no regular expression"),
        ] {
            let error = HeaderEdits::parse(text).expect_err(text).to_string();
            assert!(error.contains(expect), "{text}: {error}");
        }
    }
}
