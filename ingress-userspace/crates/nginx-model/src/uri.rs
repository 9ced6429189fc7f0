//! nginx' normal form of a request's path, which locations are compared with.
//!
//! Every escape is decoded once, including `%2F`. Then runs of `/` become one, and `.` and `..` segments are resolved.

/// Returns the normal form of `path`, which has no query. Returns `None` if nginx answers 400: for a path that does not
/// begin with `/` or leads above the root, and for an escape that is incomplete or of NUL.
#[must_use]
pub fn normalise(path: &str) -> Option<Vec<u8>> {
    let rest = decode(path.strip_prefix('/')?.as_bytes())?;
    let mut segments: Vec<&[u8]> = Vec::new();
    // Whether the path ends in a slash, or in a segment that stands for a directory.
    let mut is_directory = true;
    for segment in rest.split(|&byte| byte == b'/') {
        is_directory = matches!(segment, b"" | b"." | b"..");
        match segment {
            b"" | b"." => {}
            b".." => drop(segments.pop()?),
            segment => segments.push(segment),
        }
    }
    let mut path = Vec::with_capacity(rest.len() + 1);
    for segment in segments {
        path.push(b'/');
        path.extend_from_slice(segment);
    }
    if is_directory {
        path.push(b'/');
    }
    Some(path)
}

fn decode(path: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [byte, tail @ ..] = rest {
        rest = tail;
        if *byte != b'%' {
            decoded.push(*byte);
            continue;
        }
        let [high, low, tail @ ..] = rest else { return None };
        let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let value = digit(*high)? << 4 | digit(*low)?;
        if value == 0 {
            return None;
        }
        decoded.push(value);
        rest = tail;
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_decoded_before_segments_are_resolved() {
        for (path, expect) in [
            ("/", Some("/")),
            ("//", Some("/")),
            ("/a//b/", Some("/a/b/")),
            ("/a%2Fb", Some("/a/b")),
            ("/a%2f%2fb", Some("/a/b")),
            ("/a/./b/.", Some("/a/b/")),
            ("/a/b/..", Some("/a/")),
            ("/a/..", Some("/")),
            ("/a%2F..%2Fb", Some("/b")),
            ("/%2e%2E/a", None),
            ("/..", None),
            ("/a/../..", None),
            ("/a%252fb", Some("/a%2fb")),
            ("/a%3fb%23", Some("/a?b#")),
            ("/a%", None),
            ("/a%0", None),
            ("/a%00", None),
            ("/a%zz", None),
            ("a", None),
            ("%2Fa", None),
        ] {
            let normal = normalise(path).map(|path| String::from_utf8(path).expect("text"));
            assert_eq!(normal.as_deref(), expect, "{path}");
        }
    }
}
