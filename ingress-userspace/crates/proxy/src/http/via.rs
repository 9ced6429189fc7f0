//! The `Via` field of forwarded requests (RFC 9110, 7.6.3), which records the path of a request and so reveals
//! forwarding loops. It answers nothing.

use std::sync::LazyLock;

use http::Version;

use crate::http::fields::Fields;
use crate::random::random;

/// Pseudonym of this process, the same on all workers: a fixed part and eight random hexadecimal digits.
static PSEUDONYM: LazyLock<String> = LazyLock::new(|| format!("xdp-ingress-{:08x}", random() >> 32));

/// Appends the field: the request's previous elements, then this process.
pub(crate) fn write(out: &mut Vec<u8>, received: Version, fields: &Fields<'_>) {
    out.extend_from_slice(b"via: ");
    for elements in fields.via() {
        out.extend_from_slice(elements.as_bytes());
        out.extend_from_slice(b", ");
    }
    out.extend_from_slice(match received {
        Version::HTTP_3 => b"3.0 ",
        Version::HTTP_2 => b"2.0 ",
        Version::HTTP_10 => b"1.0 ",
        _ => b"1.1 ",
    });
    out.extend_from_slice(PSEUDONYM.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Returns whether this process forwarded the request before, because an endpoint leads back to the node.
pub(crate) fn is_loop(fields: &Fields<'_>) -> bool {
    let holds = |elements: &[u8]| memchr::memmem::find(elements, PSEUDONYM.as_bytes()).is_some();
    fields.via().any(|elements| holds(elements.as_bytes()))
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, header};

    use super::*;

    fn check(sent: &[&'static str], received: Version, expect: &str) {
        let mut headers = HeaderMap::new();
        for elements in sent {
            headers.append(header::VIA, HeaderValue::from_static(elements));
        }
        assert!(!is_loop(&Fields::of(&headers)), "{sent:?}");
        let mut out = Vec::new();
        write(&mut out, received, &Fields::of(&headers));
        let line = String::from_utf8(out).expect("ascii");
        let value = line.strip_prefix("via: ").and_then(|line| line.strip_suffix("\r\n")).expect("one line");
        assert_eq!(value, format!("{expect} {}", *PSEUDONYM));
        headers.insert(header::VIA, HeaderValue::from_str(&format!("{value}, 1.1 other")).expect("valid value"));
        assert!(is_loop(&Fields::of(&headers)), "{value}");
    }

    #[test]
    fn via_ends_with_this_process_and_detects_loops() {
        check(&[], Version::HTTP_11, "1.1");
        check(&[], Version::HTTP_2, "2.0");
        check(&[], Version::HTTP_3, "3.0");
        check(&["1.0 fred"], Version::HTTP_10, "1.0 fred, 1.0");
        check(
            &["1.0 fred, 1.1 p.example", "1.1 xdp-ingress-"],
            Version::HTTP_11,
            "1.0 fred, 1.1 p.example, 1.1 xdp-ingress-, 1.1",
        );
    }
}
