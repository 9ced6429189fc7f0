//! Rules of HTTP/3 as tables of cases, and laws. Each case names the section of RFC 9114, or of another RFC.

mod laws;
mod qpack;
mod request_sections;
mod request_streams;
mod responses;
mod uni_streams;

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    control::{PeerStreams, UniEvent, UniStream},
    error::{Code, Error, Scope},
    frame::{self, Event, FrameDecoder},
    qpack::{begin, write_line},
    varint,
};

// === input ===

/// The limit of sections in tests, in bytes.
const SECTION_MAX: usize = 400;

fn integer(value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    varint::write(value, &mut out);
    out
}

fn a_frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::write_head(kind, payload.len() as u64, &mut out);
    out.put_slice(payload);
    out
}

/// A section of literal lines, whose names and values may be invalid.
fn section(lines: &[(&str, &str)]) -> Bytes {
    raw_section(&lines.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect::<Vec<_>>())
}

fn raw_section(lines: &[(&[u8], &[u8])]) -> Bytes {
    let mut out = BytesMut::new();
    begin(&mut out);
    for (name, value) in lines {
        match str::from_utf8(name) {
            Ok(name) => write_line(name, value, false, &mut out),
            // A literal name of less than 7 bytes, and a short value, both plain.
            Err(_) => {
                out.put_u8(0x20 | name.len() as u8);
                out.put_slice(name);
                out.put_u8(value.len() as u8);
                out.put_slice(value);
            }
        }
    }
    out.freeze()
}

// === output ===

/// The end of a stream or connection.
type Failure = (Scope, Code);

fn failure(Error { scope, code, reason }: Error) -> Failure {
    assert!(!reason.is_empty());
    (scope, code)
}

const fn connection(code: Code) -> Failure {
    (Scope::Connection, code)
}

const fn stream(code: Code) -> Failure {
    (Scope::Stream, code)
}

/// Splits `bytes` at `cuts`, which may be in any order and beyond the end.
fn chunks(bytes: &[u8], cuts: &[usize]) -> Vec<Bytes> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| (*cut).min(bytes.len())).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|ends| Bytes::copy_from_slice(&bytes[ends[0]..ends[1]])).collect()
}

/// Reads a request stream in chunks. Returns its events, with neighbouring data put together, and how it ended; `ends`
/// tells whether the peer finished it.
fn read_request(bytes: &[u8], cuts: &[usize], ends: bool) -> (Vec<Event>, Result<(), Failure>) {
    let mut decoder = FrameDecoder::new(SECTION_MAX);
    let mut events: Vec<Event> = Vec::new();
    for mut chunk in chunks(bytes, cuts) {
        loop {
            match decoder.decode(&mut chunk) {
                Err(error) => return (events, Err(failure(error))),
                Ok(None) => break,
                Ok(Some(Event::Data(more))) if matches!(events.last(), Some(Event::Data(_))) => {
                    let Some(Event::Data(data)) = events.last_mut() else { unreachable!("checked before") };
                    *data = [&data[..], &more].concat().into();
                }
                Ok(Some(event)) => events.push(event),
            }
        }
        assert!(chunk.is_empty() && decoder.buffered() <= SECTION_MAX);
    }
    let end = if ends { decoder.finish().map_err(failure) } else { Ok(()) };
    (events, end)
}

/// Reads unidirectional streams of one connection, each in chunks.
fn read_streams(streams: &[Vec<u8>], cuts: &[usize]) -> (Vec<UniEvent>, Result<(), Failure>) {
    let mut peer = PeerStreams::default();
    let mut events = Vec::new();
    for bytes in streams {
        let mut stream = UniStream::default();
        for mut chunk in chunks(bytes, cuts) {
            loop {
                match stream.decode(&mut peer, &mut chunk) {
                    Err(error) => return (events, Err(failure(error))),
                    Ok(None) => break,
                    Ok(Some(event)) => events.push(event),
                }
            }
            assert!(chunk.is_empty());
        }
    }
    (events, Ok(()))
}

/// All positions at which `bytes` can be split.
fn everywhere(bytes: &[u8]) -> Vec<usize> {
    (0..bytes.len()).collect()
}
