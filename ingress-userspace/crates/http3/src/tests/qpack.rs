//! QPACK: examples of RFC 9204, and sections that cannot be decoded.

use super::*;
use crate::{
    Refusal,
    qpack::{Lines, write_status},
};

/// Decodes a section to `name: value` with `!` behind lines for no table.
fn read(section: &[u8], max: usize) -> Result<Vec<String>, Refusal> {
    let mut lines = Lines::new(Bytes::copy_from_slice(section), max)?;
    let mut out = Vec::new();
    while let Some(line) = lines.next()? {
        let end = if line.never_indexed { "!" } else { "" };
        out.push(format!("{}: {}{end}", line.name.escape_ascii(), line.value.escape_ascii()));
    }
    Ok(out)
}

#[test]
fn sections_without_a_dynamic_table_are_read() {
    for (rule, section, expect) in [
        // Appendix B.1: a literal with a name of the static table.
        ("B.1", &b"\x00\x00\x51\x0b/index.html"[..], &[":path: /index.html"][..]),
        ("4.5.2", b"\x00\x00\xd1\xd7\xc1", &[":method: GET", ":scheme: https", ":path: /"]),
        ("4.5.2", b"\x00\x00\xff\x23", &["x-frame-options: sameorigin"]),
        ("4.5.4", b"\x00\x00\x5f\x4a\x01x", &["if-range: x"]),
        ("4.5.4", b"\x00\x00\x71\x02/a", &[":path: /a!"]),
        ("4.5.6", b"\x00\x00\x23x-a\x01b", &["x-a: b"]),
        ("4.5.6", b"\x00\x00\x33x-a\x01b", &["x-a: b!"]),
        (
            "4.5.6",
            b"\x00\x00\x2f\x01\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f\x89\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf",
            &["custom-key: custom-value"],
        ),
        ("4.5.6", b"\x00\x00\x20\x00", &[": "]),
        ("4.5.1.2", b"\x00\x05\xc1", &[":path: /"]),
        ("4.5.1.2", b"\x00\x7f\x05\xc1", &[":path: /"]),
        ("4.5", b"\x00\x00", &[]),
    ] {
        let expect: Vec<_> = expect.iter().map(|line| (*line).to_owned()).collect();
        assert_eq!(read(section, 4096), Ok(expect), "RFC 9204, {rule}: {section:02x?}");
    }
}

#[test]
fn sections_that_cannot_be_decoded_end_the_connection() {
    for (rule, name, section) in [
        ("B.2", "a section that needs two insertions", &[0x03, 0x81, 0x10, 0x11][..]),
        ("B.4", "one that needs four", &[0x05, 0x00, 0x80, 0xc1, 0x81]),
        ("4.5.1.1", "one that needs one insertion", &[0x02, 0x00, 0xc1]),
        ("4.5.1.2", "a negative base", &[0x00, 0x80, 0xc1]),
        ("4.5.1.2", "a negative base of -2", &[0x00, 0x81, 0xc1]),
        ("4.5.1", "an empty section", &[]),
        ("4.5.1", "half a prefix", &[0x00]),
        ("4.5.1", "an unfinished integer", &[0xff]),
        ("4.5.1", "an unfinished base", &[0x00, 0x7f, 0x80]),
        ("4.5.2", "the dynamic table", &[0x00, 0x00, 0x80]),
        ("4.5.2", "an index behind the static table", &[0x00, 0x00, 0xff, 0x24]),
        ("4.5.2", "an index far behind it", &[0x00, 0x00, 0xff, 0xff, 0xff, 0xff, 0x7f]),
        ("4.5.3", "an index behind the base", &[0x00, 0x00, 0x10]),
        ("4.5.4", "a name of the dynamic table", &[0x00, 0x00, 0x40, 0x01, b'a']),
        ("4.5.4", "a name behind the static table", &[0x00, 0x00, 0x5f, 0x54, 0x01, b'a']),
        ("4.5.5", "a name behind the base", &[0x00, 0x00, 0x00, 0x01, b'a']),
        ("4.5.4", "no value", &[0x00, 0x00, 0x51]),
        ("4.5.4", "a truncated value", &[0x00, 0x00, 0x51, 0x02, b'/']),
        ("4.5.6", "a truncated name", &[0x00, 0x00, 0x23, b'x']),
        ("4.5.6", "a name without a value", &[0x00, 0x00, 0x21, b'x']),
        (
            "4.1.2",
            "a length beyond all bytes",
            &[0x00, 0x00, 0x51, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f],
        ),
        (
            "4.1.1",
            "an integer above 62 bits",
            &[0x00, 0x00, 0x51, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
        ),
        (
            "4.1.1",
            "an integer without end",
            &[0x00, 0x00, 0x51, 0x7f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00],
        ),
        ("RFC 7541, 5.2", "eight bits of padding", &[0x00, 0x00, 0x51, 0x82, 0x1f, 0xff]),
        ("RFC 7541, 5.2", "padding with a bit 0", &[0x00, 0x00, 0x51, 0x81, 0x1e]),
        ("RFC 7541, 5.2", "the end of a string within it", &[0x00, 0x00, 0x51, 0x84, 0xff, 0xff, 0xff, 0xff]),
        ("RFC 7541, 5.2", "padding of a name", &[0x00, 0x00, 0x29, 0x1e, 0x00]),
    ] {
        let got = read(section, 4096).map_err(|refusal| match refusal {
            Refusal::Error(error) => failure(error),
            Refusal::TooLarge => panic!("{name}: too large"),
        });
        assert_eq!(got, Err(connection(Code::QpackDecompressionFailed)), "RFC 9204, {rule}: {name}");
    }
}

#[test]
fn decoding_stops_at_the_limit() {
    // Each byte 0 of Huffman code is more than one `0`.
    let bomb = [&[0x00, 0x00, 0x51, 0xff, 0x81, 0x07][..], &[0; 1024]].concat();
    assert_eq!(read(&bomb, 1000), Err(Refusal::TooLarge));
    let many = [&[0x00, 0x00][..], &[0xc1; 1024]].concat();
    assert_eq!(read(&many, 1024 * (32 + 6)).map(|lines| lines.len()), Ok(1024));
    assert_eq!(read(&many, 1024 * (32 + 6) - 1), Err(Refusal::TooLarge));
}

#[test]
fn lines_are_written_in_a_short_form() {
    let long = "a".repeat(32);
    // 32 times the five bits 00011.
    let encoded = [&b"\x23x-a\x94"[..], &b"\x18\xc6\x31\x8c\x63".repeat(4)].concat();
    let raw = [b"\x23x-a\x1f", &long.as_bytes()[1..]].concat();
    let incompressible = [&b"\x23x-a\x20"[..], &[b'~'; 32]].concat();
    let tildes = "~".repeat(32);
    for (name, value, is_sensitive, expect) in [
        (":path", "/", false, &b"\xc1"[..]),
        // Huffman code begins with 32 bytes, if it is shorter; B.1 has none, either.
        (":path", "/index.html", false, b"\x51\x0b/index.html"),
        ("x-a", &long, false, &encoded),
        ("x-a", &long[1..], false, &raw),
        ("x-a", &tildes, false, &incompressible),
        ("x-frame-options", "sameorigin", false, b"\xff\x23"),
        ("x-frame-options", "deny", false, b"\xff\x22"),
        ("content-type", "text/html; charset=utf-8", false, b"\xf4"),
        ("age", "0", true, b"\x72\x010"),
        ("x-a", "~", false, b"\x23x-a\x01~"),
        ("x-a", "~", true, b"\x33x-a\x01~"),
    ] {
        let mut out = BytesMut::new();
        write_line(name, value.as_bytes(), is_sensitive, &mut out);
        assert_eq!(&out[..], expect, "{name}: {value}");
    }
    for (status, expect) in [(200, &b"\xd9"[..]), (103, b"\xd8"), (500, b"\xff\x08"), (418, b"\x5f\x09\x03418")] {
        let mut out = BytesMut::new();
        write_status(status, &mut out);
        assert_eq!(&out[..], expect, "{status}");
    }
}
