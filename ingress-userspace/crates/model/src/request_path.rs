//! The canonical form of a request's path. The same form is matched and forwarded, so that no backend sees another path
//! than the one matched. The query is left alone.
//!
//! - Escapes of letters, digits and `-._~` are decoded (RFC 3986, 6.2.2.2): `/%61dmin` is `/admin`.
//! - `.` and `..` segments are resolved after that (RFC 3986, 5.2.4), so also when a dot is written `%2e`; a path above
//!   the root → 400.
//! - Runs of `/` become one.
//! - `%00` → 400, and likewise a `%` without two hexadecimal digits.
//! - Every other escape stays as sent. In particular `%2f` is data, never a separator: `/a%2fb` is one segment. The
//!   same holds for `\` and `%5c`, and a dot segment with parameters (`..;x`) is not a dot segment. Many pods read some
//!   of these otherwise, so a path is refused (400) if such a reading would match another rule.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use crate::{RefusedPaths, path::decode_unreserved};

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestPathError {
    #[error("path does not begin with a slash")]
    NotAbsolute,
    #[error("path leads above the root")]
    AboveRoot,
    #[error("path holds an escaped NUL")]
    Nul,
    #[error("path holds an incomplete escape")]
    Escape,
    #[error("path holds parameters of a segment, which are not allowed here")]
    Parameters,
    #[error("path holds an escaped escape, which is not allowed here")]
    DoubleEscape,
    #[error("path is rewritten to one that leads elsewhere")]
    Rewritten,
}

/// Returns the canonical form of `path`, borrowed if it is unchanged.
///
/// # Errors
/// Fails if the path has no canonical form: see [`RequestPathError`].
pub fn normalise(path: &str) -> Result<Cow<'_, str>, RequestPathError> {
    if !path.starts_with('/') {
        return Err(RequestPathError::NotAbsolute);
    }
    check_escapes(path.as_bytes())?;
    let path = decode_unreserved(path);
    if is_resolved(&path) {
        return Ok(path);
    }
    resolve(&path).map(Cow::Owned)
}

/// Returns the canonical form of `path`, and the other forms in which a pod could read it.
///
/// # Errors
/// Fails like [`normalise`].
pub fn forms(path: &str) -> Result<(Cow<'_, str>, Vec<String>), RequestPathError> {
    if is_plain(path) {
        return Ok((path.into(), Vec::new()));
    }
    let path = normalise(path)?;
    let others = readings(&path).flat_map(|other| canonical(&other)).collect();
    Ok((path, others))
}

/// Returns the other forms in which a pod could read `path`, which is in canonical form: those of [`forms`], and the path
/// with all escapes decoded, or without the parameters of its segments. None is returned for most paths.
#[must_use]
pub fn others(path: &str) -> Vec<String> {
    if is_plain(path) && !path.contains(';') {
        return Vec::new();
    }
    let readings = readings(path).flat_map(|other| canonical(&other));
    // Decoded once, a `%` is a character. Parameters may stand in any segment.
    let bytes: Vec<u8> = percent_decode_str(path).collect();
    let decoded = String::from_utf8_lossy(&bytes).into_owned();
    let name = |segment: &str| segment.split(';').next().unwrap_or_default().to_owned();
    let bare = |path: &str| path.split('/').map(name).collect::<Vec<_>>().join("/");
    let slashed = decoded.replace('\\', "/");
    let decoded = [bare(&decoded), bare(&slashed), decoded, slashed];
    readings.chain(decoded.iter().flat_map(|path| resolved(path))).filter(|other| *other != path).collect()
}

/// Returns the canonical forms of a pod's reading: more than one if it leads above the root.
fn canonical(reading: &str) -> Vec<String> {
    match check_escapes(reading.as_bytes()) {
        Ok(()) => resolved(&decode_unreserved(reading)),
        Err(_) => vec!["/".to_owned()],
    }
}

/// Resolves the dot segments. Pods refuse `..` at the root, take it for the root, or ignore it (WHATWG URL, 4.4).
fn resolved(path: &str) -> Vec<String> {
    let (path, is_within) = resolve_within(path);
    if is_within { vec![path] } else { vec!["/".to_owned(), path] }
}

/// Checks `path`, which is in canonical form, against the settings.
///
/// # Errors
/// Fails if the settings refuse a part of it.
pub fn check(path: &str, refused: RefusedPaths) -> Result<(), RequestPathError> {
    let RefusedPaths { parameters, double_escapes } = refused;
    if parameters && [";", "%3B", "%3b"].iter().any(|mark| path.contains(mark)) {
        return Err(RequestPathError::Parameters);
    }
    let is_escape = |rest: &str| rest.as_bytes().get(..2).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
    if double_escapes && path.split("%25").skip(1).any(is_escape) {
        return Err(RequestPathError::DoubleEscape);
    }
    Ok(())
}

/// Canonicalises the path of a target (path and query) that a rule has rewritten.
///
/// # Errors
/// Fails if the client's part of the target leads elsewhere than the rule says, under any reading, or holds bytes that
/// a target must not have. The rule was matched by the original path, so the check is due here.
pub fn rewritten(target: String) -> Result<String, RequestPathError> {
    if target.bytes().any(|byte| byte <= b' ' || matches!(byte, b'#' | 0x7f)) {
        return Err(RequestPathError::Rewritten);
    }
    let path = &target[..memchr::memchr(b'?', target.as_bytes()).unwrap_or(target.len())];
    if is_plain(path) {
        return Ok(target);
    }
    check_escapes(path.as_bytes())?;
    let decoded = decode_unreserved(path);
    let is_led = |path: &str| path.split('/').any(|segment| matches!(segment, "." | ".."));
    if is_led(&decoded) || readings(&decoded).any(|other| is_led(&decode_unreserved(&other))) {
        return Err(RequestPathError::Rewritten);
    }
    let normal = normalise(path)?;
    Ok(if *normal == *path { target } else { format!("{normal}{}", &target[path.len()..]) })
}

/// Returns whether `path` certainly has just one form. There is no early exit, so that the compiler can vectorise the
/// loop.
fn is_plain(path: &str) -> bool {
    let [b'/', rest @ ..] = path.as_bytes() else { return false };
    let is_odd = |before: u8, byte: u8| matches!(byte, b'%' | b'\\') | ((before == b'/') & matches!(byte, b'/' | b'.'));
    !path.bytes().zip(rest).fold(false, |odd, (before, &byte)| odd | is_odd(before, byte))
}

fn check_escapes(path: &[u8]) -> Result<(), RequestPathError> {
    for at in memchr::memchr_iter(b'%', path) {
        match path.get(at + 1..at + 3) {
            Some(b"00") => return Err(RequestPathError::Nul),
            Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => {}
            _ => return Err(RequestPathError::Escape),
        }
    }
    Ok(())
}

/// Returns whether no segment is `.` or `..`, and none but the last is empty.
fn is_resolved(path: &str) -> bool {
    let irregular =
        |rest: &[u8]| matches!(rest, [b'/', ..] | [b'.'] | [b'.', b'/', ..] | [b'.', b'.'] | [b'.', b'.', b'/', ..]);
    let bytes = path.as_bytes();
    !memchr::memchr_iter(b'/', bytes).any(|at| irregular(&bytes[at + 1..]))
}

/// Resolves the dot segments.
///
/// # Errors
/// Fails for `..` at the root.
fn resolve(path: &str) -> Result<String, RequestPathError> {
    let (path, is_within) = resolve_within(path);
    if is_within { Ok(path) } else { Err(RequestPathError::AboveRoot) }
}

/// Resolves the dot segments, ignoring `..` at the root. Returns the path, and whether it stays below the root.
fn resolve_within(path: &str) -> (String, bool) {
    let mut is_within = true;
    let mut out = String::with_capacity(path.len());
    let mut segments = path.split('/').filter(|segment| !segment.is_empty()).peekable();
    // A path that ends in `/`, `/.` or `/..` names a directory and keeps its slash.
    let mut directory = true;
    while let Some(segment) = segments.next() {
        directory = segments.peek().is_some();
        match segment {
            "." => directory = true,
            ".." => {
                let parent = out.rfind('/');
                is_within &= parent.is_some();
                out.truncate(parent.unwrap_or(0));
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
    (out, is_within)
}

/// A way to read paths that some pods have and this proxy does not.
#[derive(Clone, Copy)]
enum PathReading {
    /// `\` is a slash (WHATWG URL, 4.4).
    Backslash,
    EscapedBackslash,
    EscapedSlash,
    /// Parameters are stripped from dot segments, which are then resolved.
    Parameters,
}

impl PathReading {
    /// Parameters come last, because they may end at a slash that only the pod takes for one.
    const ALL: [Self; 4] = [Self::Backslash, Self::EscapedBackslash, Self::EscapedSlash, Self::Parameters];

    /// Returns whether this way could change `path`.
    fn concerns(self, path: &str) -> bool {
        let marks: &[&str] = match self {
            Self::Backslash => &["\\"],
            Self::EscapedBackslash => &["%5C", "%5c"],
            Self::EscapedSlash => &["%2F", "%2f"],
            Self::Parameters => &[".;", ".%3B", ".%3b"],
        };
        marks.iter().any(|mark| path.contains(mark))
    }

    fn read(self, path: &str) -> String {
        match self {
            Self::Backslash => path.replace('\\', "/"),
            Self::EscapedBackslash => path.replace("%5C", "/").replace("%5c", "/"),
            Self::EscapedSlash => path.replace("%2F", "/").replace("%2f", "/"),
            Self::Parameters => path.split('/').map(without_parameters).collect::<Vec<_>>().join("/"),
        }
    }
}

/// Yields the paths that pods may read in a canonical path: one for each set of the ways that concern it, because the
/// pod's set is unknown. The results are not canonical.
fn readings(path: &str) -> impl Iterator<Item = String> {
    let ways: Vec<PathReading> = PathReading::ALL.into_iter().filter(|way| way.concerns(path)).collect();
    (1..1_usize << ways.len()).map(move |chosen| {
        let chosen = ways.iter().enumerate().filter(|(place, _)| chosen & 1 << place != 0);
        chosen.fold(path.to_owned(), |path, (_, way)| way.read(&path))
    })
}

/// Strips the parameters (escaped ones, too) from a dot segment; other segments are returned unchanged.
fn without_parameters(segment: &str) -> &str {
    let (name, rest) = segment.split_at(segment.find([';', '%']).unwrap_or(segment.len()));
    let has_parameters = [";", "%3B", "%3b"].iter().any(|mark| rest.starts_with(mark));
    if has_parameters && matches!(name, "." | "..") { name } else { segment }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(path: &str, expect: Result<&str, RequestPathError>) {
        let got = normalise(path);
        assert_eq!(got.as_deref().map_err(|error| *error), expect, "{path}");
        if expect == Ok(path) {
            assert!(matches!(got, Ok(Cow::Borrowed(_))), "{path} was copied");
        }
    }

    #[test]
    fn paths_have_one_normal_form() {
        use RequestPathError::{AboveRoot, Escape, NotAbsolute, Nul};
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
    fn alternative_readings_of_paths_are_found() {
        for (path, expect) in [
            ("/a/b.c", &[][..]),
            ("/a%20b", &[]),
            ("/a;x/b;.;y", &[]),
            ("/a/...;x", &["/a/...;x"]),
            ("/a%2fb", &["/a/b"]),
            ("/a%5Cb", &["/a/b"]),
            (r"/a\b", &["/a/b"]),
            (r"/x\..\admin", &["/admin"]),
            ("/x/..;/admin", &["/admin"]),
            ("/x/..;a=b;c/admin", &["/admin"]),
            ("/x/%2e%2E%3bjsessionid=1/admin", &["/admin"]),
            ("/x/.;y/admin", &["/x/admin"]),
            ("/x/..;", &["/"]),
            ("/..;/a", &["/", "/a"]),
            (r"/..\a\..\..\b", &["/", "/b"]),
            ("/x/../a%2Fb", &["/a/b"]),
            ("/%2e%2e%2fa", &["/", "/a"]),
            ("/a%5C..%2f.%2fb", &["/a/..%2f.%2fb", r"/a%5C.././b", "/b"]),
            // A pod that takes one of them for a slash gets to another path than a pod that takes both.
            (r"/x%2Fy\..\admin", &["/admin", r"/x/y\..\admin", "/x/admin"]),
            ("/x%2f..;/admin", &["/x/..;/admin", "/x%2f..;/admin", "/admin"]),
        ] {
            let got = forms(path).expect(path).1;
            let expect: Vec<_> = expect.iter().map(|path| normalise(path).expect("a path").into_owned()).collect();
            assert_eq!(got, expect, "{path}");
        }
    }

    #[test]
    fn parameters_and_double_escapes_are_refused_if_configured() {
        use RequestPathError::{DoubleEscape, Parameters};
        for (path, parameters, double_escapes) in [
            ("/a/b.c", Ok(()), Ok(())),
            ("/a;x", Err(Parameters), Ok(())),
            ("/a%3bx", Err(Parameters), Ok(())),
            ("/a%3Bx", Err(Parameters), Ok(())),
            ("/a%252fb", Ok(()), Err(DoubleEscape)),
            ("/100%25", Ok(()), Ok(())),
            ("/100%25/a", Ok(()), Ok(())),
            ("/100%25of", Ok(()), Ok(())),
            ("/%2525", Ok(()), Err(DoubleEscape)),
            ("/%25%32%66", Ok(()), Err(DoubleEscape)),
        ] {
            let path = normalise(path).expect(path);
            let both = RefusedPaths { parameters: true, double_escapes: true };
            assert_eq!(super::check(&path, RefusedPaths::default()), Ok(()), "{path}");
            assert_eq!(super::check(&path, RefusedPaths { double_escapes: false, ..both }), parameters, "{path}");
            assert_eq!(super::check(&path, RefusedPaths { parameters: false, ..both }), double_escapes, "{path}");
        }
    }

    #[test]
    fn a_rewritten_path_is_normalised_and_cannot_leave_its_prefix() {
        use RequestPathError::{Escape, Nul, Rewritten};
        for (target, expect) in [
            ("/files/a.b?x=../y", Ok("/files/a.b?x=../y")),
            ("/files//a/?x//y", Ok("/files/a/?x//y")),
            ("//evil.test", Ok("/evil.test")),
            ("/files/%61%2fb", Ok("/files/a%2fb")),
            ("/files/..a/b..", Ok("/files/..a/b..")),
            ("/files/../secret", Err(Rewritten)),
            ("/files/..", Err(Rewritten)),
            ("/files/./secret", Err(Rewritten)),
            ("/files/%2e%2E/secret", Err(Rewritten)),
            ("/files/..%2fsecret", Err(Rewritten)),
            ("/files/..%5csecret", Err(Rewritten)),
            (r"/files/..\secret", Err(Rewritten)),
            ("/files/..;/secret", Err(Rewritten)),
            ("/files/.;x/secret", Err(Rewritten)),
            ("/files/..;%2fsecret", Err(Rewritten)),
            ("/files/a b", Err(Rewritten)),
            ("/files?a b", Err(Rewritten)),
            ("/files#a", Err(Rewritten)),
            ("/files/%", Err(Escape)),
            ("/files/%00", Err(Nul)),
        ] {
            assert_eq!(rewritten(target.to_owned()).as_deref(), expect.as_ref().map(|t| *t), "{target}");
        }
    }

    proptest! {
        #[test]
        fn the_fast_path_agrees_with_normalisation(path in r"[/.%a2f;\\]{0,40}|/[/.%a2f;\\]{0,40}") {
            prop_assert_eq!(forms(&path).map(|(path, _)| path), normalise(&path));
            if is_plain(&path) {
                prop_assert_eq!(normalise(&path), Ok(Cow::Borrowed(&*path)));
                let others = readings(&path).map(|other| normalise(&other).map(Cow::into_owned));
                prop_assert!(others.into_iter().all(|other| other.as_deref() == Ok(&*path)), "{}", path);
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
