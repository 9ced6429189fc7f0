//! Paths of requests near the boundaries of an Ingress' paths, where rules that look alike decide differently.

use std::collections::BTreeSet;

use crate::HostIngress;

/// Returns the paths of requests, without duplicates, for all paths of `ingresses`. They are each path with and without
/// a slash, with more behind it, in the other case and in other spellings, and its parent. Of an expression, the text
/// before its first operator counts.
#[must_use]
pub fn boundaries(ingresses: &[HostIngress]) -> BTreeSet<String> {
    let mut all = BTreeSet::from(["/".to_owned()]);
    for path in ingresses.iter().flat_map(|ingress| &ingress.paths) {
        all.extend(around(&path.text));
        let literal = literal(&path.text);
        if literal.len() < path.text.len() {
            all.extend(around(literal));
            all.extend([
                format!("/{}7", literal.trim_start_matches('/')),
                format!("/{}a/b", literal.trim_start_matches('/')),
            ]);
        }
    }
    all
}

fn around(path: &str) -> [String; 16] {
    let text = escaped(path);
    let text = text.trim_start_matches('/');
    let bare = text.trim_end_matches('/');
    let start = if bare.is_empty() { String::new() } else { format!("/{bare}") };
    let parent = start.rfind('/').map_or("", |at| &start[..at]);
    [
        format!("/{text}"),
        format!("/{bare}"),
        format!("{start}/"),
        format!("/{bare}x"),
        format!("{start}/x"),
        format!("{start}//x"),
        format!("/{bare}%2Fx"),
        format!("/{bare}%2F"),
        format!("{start}/x/.."),
        format!("{start}/../x"),
        format!("{start}/."),
        format!("{start}/%2e%2E/"),
        format!("{parent}/"),
        format!("{parent}/zz"),
        flipped(&format!("/{text}")),
        encoded_last(&format!("{start}/y")),
    ]
}

/// Returns the text before the first operator of an expression, and before the character that it would apply to.
fn literal(text: &str) -> &str {
    let Some(operator) = text.find(|character| r"\.+*?()|[]{}^$".contains(character)) else { return text };
    let is_about_last = text[operator..].starts_with(['*', '?', '{']);
    let last = text[..operator].char_indices().next_back().map_or(0, |(at, _)| at);
    &text[..if is_about_last { last } else { operator }]
}

/// Returns a path with the characters of expressions escaped, so that it is one of a request.
fn escaped(text: &str) -> String {
    let mut path = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte) {
            path.push(char::from(byte));
        } else {
            path.push_str(&format!("%{byte:02X}"));
        }
    }
    path
}

/// Returns a path with the case of its letters changed.
fn flipped(path: &str) -> String {
    let flip = |character: char| {
        if character.is_ascii_lowercase() { character.to_ascii_uppercase() } else { character.to_ascii_lowercase() }
    };
    path.chars().map(flip).collect()
}

/// Returns a path with its last character as an escape.
fn encoded_last(path: &str) -> String {
    let mut path = path.to_owned();
    let last = path.pop().map_or(0, u32::from);
    format!("{path}%{last:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IngressPath, PathKind};

    #[test]
    fn a_path_has_requests_on_both_sides_of_its_boundary() {
        let path = |text: &str| IngressPath { kind: PathKind::Prefix, text: text.to_owned() };
        let ingress = HostIngress { paths: vec![path("/a/Foo"), path("/api/v?[0-9]+")], ..HostIngress::default() };
        let all = boundaries(&[ingress]);
        for path in
            ["/", "/a/Foo", "/a/Foo/", "/a/Foox", "/a/Foo/x", "/a/Foo//x", "/a/Foo%2Fx", "/A/fOO", "/a/", "/a/zz"]
        {
            assert!(all.contains(path), "{path}");
        }
        for path in ["/api/", "/api/7", "/api/x", "/API/"] {
            assert!(all.contains(path), "{path}");
        }
        assert!(all.iter().all(|path| path.starts_with('/')));
    }
}
