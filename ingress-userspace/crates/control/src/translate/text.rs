//! Text of users is shortened here for messages, and a value becomes the name of an object of one namespace.

use crate::change::ObjectName;

/// Returns the object of `namespace` that `value` names, as `name` or `namespace/name`. Returns `None` if it is in
/// another namespace.
pub(crate) fn own_object(value: &str, namespace: &str) -> Option<ObjectName> {
    let name = match value.split_once('/') {
        None => value,
        Some((before, name)) if before == namespace => name,
        Some(_) => return None,
    };
    (!name.is_empty()).then(|| ObjectName::new(namespace, name))
}

/// Returns `true` if `pattern` names `key`; `*` at its end stands for any rest.
pub(crate) fn fits(pattern: &str, key: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => key.starts_with(prefix),
        None => key == pattern,
    }
}

/// Shortens a value for a message.
pub(crate) fn shorten(value: &str) -> String {
    const MAX_CHARS: usize = 64;
    match value.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.into(),
    }
}

/// Returns the text of an error, cut to a maximum length, because it may quote long values.
pub(crate) fn shorten_error(error: &impl std::fmt::Display) -> String {
    const MAX_CHARS: usize = 400;
    let text = error.to_string();
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
