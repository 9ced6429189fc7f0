//! Laws for any input: splitting it changes no event, nothing panics, and what is written is read the same.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    frame::{DATA, HEADERS},
    qpack::{Line, Lines},
    response, section,
};

/// Frames of any type, mostly those that are known.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![4 => Just(DATA), 4 => Just(HEADERS), 2 => 0_u64..0x10, 1 => Just(0x21), 1 => Just(0xf_0700)];
    let one = (kind, vec(any::<u8>(), 0..24)).prop_map(|(kind, payload)| a_frame(kind, &payload));
    (vec(one, 0..8), vec(any::<u8>(), 0..4)).prop_map(|(frames, rest)| [frames.concat(), rest].concat())
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z][a-z0-9-]{0,20}",
        Just("content-type".to_owned()),
        Just("vary".to_owned()),
        Just("age".to_owned())
    ]
}

proptest! {
    #[test]
    fn splitting_a_request_stream_changes_nothing(bytes in frames(), cuts in vec(0_usize..200, 0..8)) {
        let whole = read_request(&bytes, &[], true);
        prop_assert_eq!(&read_request(&bytes, &cuts, true), &whole);
        prop_assert_eq!(&read_request(&bytes, &everywhere(&bytes), true), &whole);
    }

    #[test]
    fn splitting_other_streams_changes_nothing(kind in 0_u64..5, bytes in frames(), begins: bool, cuts in vec(0_usize..200, 0..8)) {
        let settings = if begins { a_frame(4, b"") } else { Vec::new() };
        let stream = [integer(kind), settings, bytes].concat();
        let streams = [stream.clone(), stream];
        let whole = read_streams(&streams, &[]);
        prop_assert_eq!(&read_streams(&streams, &cuts), &whole);
        prop_assert_eq!(&read_streams(&streams, &everywhere(&streams[0])), &whole);
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..64), has_prefix: bool, max in 0_usize..300) {
        drop(read_request(&bytes, &[], true));
        drop(read_streams(std::slice::from_ref(&bytes), &[]));
        let section = Bytes::from(if has_prefix { [&[0, 0], &bytes[..]].concat() } else { bytes });
        drop(section::request(section.clone(), max, true));
        drop(section::trailers(section, max));
    }

    #[test]
    fn lines_are_read_as_they_were_written(lines in vec((name(), vec(any::<u8>(), 0..40), any::<bool>()), 0..8)) {
        let mut out = BytesMut::new();
        begin(&mut out);
        for (name, value, is_sensitive) in &lines {
            write_line(name, value, *is_sensitive, &mut out);
        }
        let size = lines.iter().map(|(name, value, _)| name.len() + value.len() + 32).sum();
        let mut read = Lines::new(out.freeze(), size).expect("a prefix");
        for (name, value, never_indexed) in lines {
            let expect = Line { name: name.into(), value: value.into(), never_indexed };
            prop_assert_eq!(read.next(), Ok(Some(expect)));
        }
        prop_assert_eq!(read.next(), Ok(None));
    }

    #[test]
    fn responses_are_read_as_they_were_written(fields in vec((name(), "[!-~]([ -~]{0,30}[!-~])?"), 0..8), status in 200_u16..1000) {
        let mut headers = HeaderMap::new();
        for (name, value) in &fields {
            // These are not sent.
            if !matches!(name.as_str(), "te" | "upgrade" | "connection" | "keep-alive" | "cookie") {
                let value = HeaderValue::from_str(value).expect("valid");
                headers.append(HeaderName::try_from(name).expect("valid"), value);
            }
        }
        let mut out = BytesMut::new();
        response::head(StatusCode::from_u16(status).expect("valid"), &headers, &mut out).expect("sendable");
        let mut chunk = out.freeze();
        let mut decoder = FrameDecoder::new(usize::MAX);
        let Ok(Some(Event::Headers(section))) = decoder.decode(&mut chunk) else { panic!("HEADERS") };
        let mut lines = Lines::new(section, usize::MAX).expect("a prefix");
        let first = lines.next().expect("valid").expect("a line");
        let status = status.to_string();
        prop_assert_eq!((&first.name[..], &first.value[..]), (&b":status"[..], status.as_bytes()));
        // Behind the status, the fields are those of trailers.
        let mut rest = BytesMut::new();
        begin(&mut rest);
        while let Some(Line { name, value, .. }) = lines.next().expect("valid") {
            write_line(str::from_utf8(&name).expect("ascii"), &value, false, &mut rest);
        }
        prop_assert_eq!(section::trailers(rest.freeze(), usize::MAX), Ok(headers));
    }
}
