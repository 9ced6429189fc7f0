//! The one normal form of a request's path, used both to match and to forward, so that no backend sees another path
//! than the one that was matched. It does not look at the query.
//!
//! - Escapes of letters, digits and `-._~` are decoded (RFC 3986, 6.2.2.2): `/%61dmin` is `/admin`.
//! - `.` and `..` segments are resolved (RFC 3986, 5.2.4), after that, so also when a dot is written `%2e`; above the
//!   root → 400.
//! - Runs of `/` become one.
//! - `%00` → 400, and so is a `%` that two hexadecimal digits do not follow.
//! - Every other escape stays as it was sent. In particular `%2f` is data, never a separator: `/a%2fb` is one segment.
//!   Many pods decode it, though, so a path that would be another rule's then is refused (400).

use std::borrow::Cow;

use crate::model::path::decode_unreserved;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("path does not begin with a slash")]
    NotAbsolute,
    #[error("path leads above the root")]
    AboveRoot,
    #[error("path holds an escaped NUL")]
    Nul,
    #[error("path holds an incomplete escape")]
    Escape,
}

/// The normal form of `path`; borrowed if it is that already.
///
/// # Errors
/// If the path has none: see [`PathError`].
pub fn normalise(path: &str) -> Result<Cow<'_, str>, PathError> {
    if !path.starts_with('/') {
        return Err(PathError::NotAbsolute);
    }
    check_escapes(path.as_bytes())?;
    let path = decode_unreserved(path);
    if is_resolved(&path) {
        return Ok(path);
    }
    resolve(&path).map(Cow::Owned)
}

/// The normal form of `path`, and what is that to a pod that decodes escaped slashes, if it has any.
pub(super) fn forms(path: &str) -> Result<(Cow<'_, str>, Option<String>), PathError> {
    if is_plain(path) {
        return Ok((path.into(), None));
    }
    let path = normalise(path)?;
    let decoded = with_escaped_slashes(&path);
    Ok((path, decoded))
}

/// Whether there is nothing in it that has more than one form. It never stops half-way, so that the compiler looks at
/// many bytes at once.
fn is_plain(path: &str) -> bool {
    let [b'/', rest @ ..] = path.as_bytes() else { return false };
    let is_odd = |before: u8, byte: u8| (byte == b'%') | ((before == b'/') & matches!(byte, b'/' | b'.'));
    !path.bytes().zip(rest).fold(false, |odd, (before, &byte)| odd | is_odd(before, byte))
}

fn check_escapes(path: &[u8]) -> Result<(), PathError> {
    for at in memchr::memchr_iter(b'%', path) {
        match path.get(at + 1..at + 3) {
            Some(b"00") => return Err(PathError::Nul),
            Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => {}
            _ => return Err(PathError::Escape),
        }
    }
    Ok(())
}

/// Whether no segment is empty, but for the last, or made of one or two dots.
fn is_resolved(path: &str) -> bool {
    let irregular =
        |rest: &[u8]| matches!(rest, [b'/', ..] | [b'.'] | [b'.', b'/', ..] | [b'.', b'.'] | [b'.', b'.', b'/', ..]);
    let bytes = path.as_bytes();
    !memchr::memchr_iter(b'/', bytes).any(|at| irregular(&bytes[at + 1..]))
}

fn resolve(path: &str) -> Result<String, PathError> {
    let mut out = String::with_capacity(path.len());
    let mut segments = path.split('/').filter(|segment| !segment.is_empty()).peekable();
    // A path that ends in `/`, `/.` or `/..` names a directory: the slash stays.
    let mut directory = true;
    while let Some(segment) = segments.next() {
        directory = segments.peek().is_some();
        match segment {
            "." => directory = true,
            ".." => {
                out.truncate(out.rfind('/').ok_or(PathError::AboveRoot)?);
                directory = true;
            }
            _ => {
                out.push('/');
                out.push_str(segment);
            }
        }
    }
    if directory || path.ends_with('/') {
        out.push('/');
    }
    Ok(out)
}

/// `path` as a pod has it that decodes escaped slashes, of both kinds, and then makes it normal; `None` if it has none.
fn with_escaped_slashes(path: &str) -> Option<String> {
    let escapes = ["%2F", "%2f", "%5C", "%5c"];
    if !path.contains('%') || !escapes.iter().any(|escape| path.contains(escape)) {
        return None;
    }
    let decoded = escapes.iter().fold(path.to_owned(), |path, escape| path.replace(escape, "/"));
    // One that leads out of the root leads nowhere.
    Some(normalise(&decoded).map_or_else(|_outside| "/".to_owned(), Cow::into_owned))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(path: &str, expect: Result<&str, PathError>) {
        let got = normalise(path);
        assert_eq!(got.as_deref().map_err(|error| *error), expect, "{path}");
        if expect == Ok(path) {
            assert!(matches!(got, Ok(Cow::Borrowed(_))), "{path} was copied");
        }
    }

    #[test]
    fn paths_have_one_normal_form() {
        use PathError::{AboveRoot, Escape, NotAbsolute, Nul};
        for (path, expect) in [
            ("/", Ok("/")),
            ("/a", Ok("/a")),
            ("/a/", Ok("/a/")),
            ("/a/b.c/..d/.e/...", Ok("/a/b.c/..d/.e/...")),
            ("/a%2fb", Ok("/a%2fb")),
            ("/a%2F..%2Fb", Ok("/a%2F..%2Fb")),
            ("/%2541", Ok("/%2541")),
            ("/%2ehidden", Ok("/.hidden")),
            ("/%61dmin", Ok("/admin")),
            ("/x%2F/%61/%7E%2d%5F%30", Ok("/x%2F/a/~-_0")),
            ("/%25%36%31", Ok("/%2561")),
            ("/a%20b%3f%C3%a9", Ok("/a%20b%3f%C3%a9")),
            ("//", Ok("/")),
            ("//a", Ok("/a")),
            ("/a//b///c", Ok("/a/b/c")),
            ("/a//", Ok("/a/")),
            ("/.", Ok("/")),
            ("/./a", Ok("/a")),
            ("/a/.", Ok("/a/")),
            ("/a/./b", Ok("/a/b")),
            ("/a/..", Ok("/")),
            ("/a/../b", Ok("/b")),
            ("/a/b/..", Ok("/a/")),
            ("/a/b/../", Ok("/a/")),
            ("/a/%2e%2E/b", Ok("/b")),
            ("/a/.%2e/b", Ok("/b")),
            ("/a/%2E/b", Ok("/a/b")),
            ("/a//../b", Ok("/b")),
            ("/..", Err(AboveRoot)),
            ("/../a", Err(AboveRoot)),
            ("/a/../../b", Err(AboveRoot)),
            ("/%2e%2e/a", Err(AboveRoot)),
            ("/a%00", Err(Nul)),
            ("/a%", Err(Escape)),
            ("/a%2", Err(Escape)),
            ("/a%zz", Err(Escape)),
            ("a", Err(NotAbsolute)),
            ("*", Err(NotAbsolute)),
            ("", Err(NotAbsolute)),
        ] {
            check(path, expect);
        }
    }

    #[test]
    fn escaped_slashes_are_seen_where_they_are() {
        for (path, expect) in [
            ("/a/b.c", None),
            ("/a%20b", None),
            ("/a%2fb", Some("/a/b")),
            ("/a%5C..%2f.%2fb", Some("/b")),
            ("/x/../a%2Fb", Some("/a/b")),
            ("/%2e%2e%2fa", Some("/")),
        ] {
            assert_eq!(forms(path).map(|(_, decoded)| decoded), Ok(expect.map(str::to_owned)), "{path}");
        }
    }

    proptest! {
        #[test]
        fn plain_paths_are_no_exception(path in "[/.%a2f]{0,40}|/[/.%a2f]{0,40}") {
            prop_assert_eq!(forms(&path).map(|(path, _)| path), normalise(&path));
            if is_plain(&path) {
                prop_assert_eq!(normalise(&path), Ok(Cow::Borrowed(&*path)));
                prop_assert_eq!(with_escaped_slashes(&path), None);
            }
        }

        #[test]
        fn the_normal_form_is_a_fixed_point(
            path in "(/|/\\.|/\\.\\.|/%2e|/%2E\\.|/a|/b%2f|/\\.\\.c|%25|%61|%32|%7e|%c3|25|61|2e){0,12}/?",
        ) {
            if let Ok(normal) = normalise(&path) {
                prop_assert_eq!(normalise(&normal), Ok(Cow::Borrowed(&*normal)));
                prop_assert!(normal.starts_with('/'));
                for sequence in ["//", "/./", "/../"] {
                    prop_assert!(!normal.contains(sequence), "{}", normal);
                }
                prop_assert!(["%61", "%32", "%7e", "%2e", "%2E"].iter().all(|escape| !normal.contains(escape)), "{}", normal);
                prop_assert!(!normal.ends_with("/.") && !normal.ends_with("/.."));
            }
        }

        #[test]
        fn arbitrary_text_never_panics(path in "\\PC{0,40}") {
            drop(normalise(&path));
        }
    }
}
