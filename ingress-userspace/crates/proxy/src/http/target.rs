//! The request target of a rendered URL.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// Escapes characters in a rendered target that a request line must not contain.
pub(crate) fn target(rendered: &str) -> String {
    const NOT_THERE: &AsciiSet = &CONTROLS
        .add(b' ')
        .add(b'"')
        .add(b'#')
        .add(b'<')
        .add(b'>')
        .add(b'\\')
        .add(b'^')
        .add(b'`')
        .add(b'{')
        .add(b'|')
        .add(b'}');
    utf8_percent_encode(rendered, NOT_THERE).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_escaped_for_the_request_line() {
        for (rendered, expect) in [
            ("/auth?rd=%2Fx&u=a", "/auth?rd=%2Fx&u=a"),
            ("/auth/a b\r\nx: y", "/auth/a%20b%0D%0Ax:%20y"),
            ("/é#|", "/%C3%A9%23%7C"),
        ] {
            assert_eq!(target(rendered), expect);
        }
    }
}
