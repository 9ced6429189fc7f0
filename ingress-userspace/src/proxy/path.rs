//! The one normal form of a request's path, used both to match and to forward, so that no backend sees another path than
//! the one that was matched. It does not look at the query.
//!
//! - `.` and `..` segments are resolved (RFC 3986, 5.2.4), also when a dot is written `%2e`; above the root → 400.
//! - Runs of `/` become one.
//! - `%00` → 400, and so is a `%` that two hexadecimal digits do not follow.
//! - Every other escape stays as it was sent. In particular `%2f` is data, never a separator: `/a%2fb` is one segment.

use std::borrow::Cow;

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
    if is_normal(path) {
        return Ok(path.into());
    }
    resolve(path).map(Cow::Owned)
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

fn is_normal(path: &str) -> bool {
    let bytes = path.as_bytes();
    memchr::memchr_iter(b'/', bytes).all(|at| match bytes.get(at + 1) {
        Some(b'/') => false,
        Some(b'.' | b'%') => {
            let rest = &path[at + 1..];
            dots(rest.split_once('/').map_or(rest, |(segment, _)| segment)) == Dots::None
        }
        _ => true,
    })
}

fn resolve(path: &str) -> Result<String, PathError> {
    let mut out = String::with_capacity(path.len());
    let mut segments = path.split('/').filter(|segment| !segment.is_empty()).peekable();
    // A path that ends in `/`, `/.` or `/..` names a directory: the slash stays.
    let mut directory = true;
    while let Some(segment) = segments.next() {
        directory = segments.peek().is_some();
        match dots(segment) {
            Dots::None => {
                out.push('/');
                out.push_str(segment);
            }
            Dots::One => directory = true,
            Dots::Two => {
                out.truncate(out.rfind('/').ok_or(PathError::AboveRoot)?);
                directory = true;
            }
        }
    }
    if directory || path.ends_with('/') {
        out.push('/');
    }
    Ok(out)
}

#[derive(PartialEq, Eq)]
enum Dots {
    None,
    One,
    Two,
}

/// Whether a segment consists of one or two dots, each written `.`, `%2e` or `%2E`.
fn dots(segment: &str) -> Dots {
    let strip = |text: &str| -> Option<usize> {
        match text.as_bytes() {
            [b'.', ..] => Some(1),
            [b'%', b'2', b'e' | b'E', ..] => Some(3),
            _ => None,
        }
    };
    let Some(first) = strip(segment) else { return Dots::None };
    let rest = &segment[first..];
    if rest.is_empty() {
        return Dots::One;
    }
    match strip(rest) {
        Some(second) if second == rest.len() => Dots::Two,
        _ => Dots::None,
    }
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
            ("/%2ehidden", Ok("/%2ehidden")),
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

    proptest! {
        #[test]
        fn the_normal_form_is_a_fixed_point(path in "(/|/\\.|/\\.\\.|/%2e|/%2E\\.|/a|/b%2f|/\\.\\.c){0,12}/?") {
            if let Ok(normal) = normalise(&path) {
                prop_assert_eq!(normalise(&normal), Ok(Cow::Borrowed(&*normal)));
                prop_assert!(normal.starts_with('/'));
                for sequence in ["//", "/./", "/../"] {
                    prop_assert!(!normal.contains(sequence), "{}", normal);
                }
                prop_assert!(!normal.ends_with("/.") && !normal.ends_with("/.."));
            }
        }

        #[test]
        fn arbitrary_text_never_panics(path in "\\PC{0,40}") {
            drop(normalise(&path));
        }
    }
}
