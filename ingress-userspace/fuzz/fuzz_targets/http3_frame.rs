//! Streams of HTTP/3 from hostile bytes, and valid frames among them. The events must not depend on how the bytes are
//! split. The parts of a request come in order. The decoder keeps no more than its limit.
#![no_main]

use arbitrary::Arbitrary;
use bytes::Bytes;
use ingress_http3::{
    Error, Event, FrameDecoder, PeerStreams, UniEvent, UniStream,
    frame::{DATA, HEADERS, SETTINGS, write_head},
};
use libfuzzer_sys::fuzz_target;

const SECTION_MAX: usize = 300;
/// Maximum number of items per input; no fault needs more of them.
const MAX_ITEMS: usize = 64;

#[derive(Arbitrary, Debug)]
struct Input {
    /// The type of a unidirectional stream; without it, the stream is one of a request.
    of_type: Option<u8>,
    items: Vec<Item>,
    cuts: Vec<u16>,
    is_finished: bool,
}

#[derive(Arbitrary, Debug)]
enum Item {
    Data(Vec<u8>),
    Headers(Vec<u8>),
    Settings(Vec<u8>),
    /// A frame of any type.
    Frame(u8, Vec<u8>),
    /// The head of a long frame.
    Head(u32, u32),
    Bytes(Vec<u8>),
}

impl Item {
    fn write(&self, out: &mut Vec<u8>) {
        let (kind, payload) = match self {
            Self::Data(payload) => (DATA, payload),
            Self::Headers(payload) => (HEADERS, payload),
            Self::Settings(payload) => (SETTINGS, payload),
            Self::Frame(kind, payload) => (u64::from(*kind), payload),
            Self::Head(kind, length) => return write_head((*kind).into(), (*length).into(), out),
            Self::Bytes(bytes) => return out.extend_from_slice(bytes),
        };
        write_head(kind, payload.len() as u64, out);
        out.extend_from_slice(payload);
    }
}

/// Reads a request stream; neighbouring data is put together.
fn request(chunks: &[Bytes], is_finished: bool) -> (Vec<Event>, Option<Error>) {
    let mut decoder = FrameDecoder::new(SECTION_MAX);
    let mut events: Vec<Event> = Vec::new();
    for mut chunk in chunks.iter().cloned() {
        loop {
            match decoder.decode(&mut chunk) {
                Err(error) => return (events, Some(error)),
                Ok(None) => break,
                Ok(Some(Event::Data(more))) => match events.last_mut() {
                    Some(Event::Data(data)) => *data = [&data[..], &more].concat().into(),
                    _ => events.push(Event::Data(more)),
                },
                Ok(Some(event)) => events.push(event),
            }
        }
        assert!(chunk.is_empty() && decoder.buffered() <= SECTION_MAX);
    }
    let error = if is_finished { decoder.finish().err() } else { None };
    (events, error)
}

/// Reads a unidirectional stream.
fn other(chunks: &[Bytes]) -> (Vec<UniEvent>, Option<Error>) {
    let (mut peer, mut stream, mut events) = (PeerStreams::default(), UniStream::default(), Vec::new());
    for mut chunk in chunks.iter().cloned() {
        loop {
            match stream.decode(&mut peer, &mut chunk) {
                Err(error) => return (events, Some(error)),
                Ok(None) => break,
                Ok(Some(event)) => events.push(event),
            }
        }
        assert!(chunk.is_empty());
    }
    (events, stream.finish().err())
}

fn check_order(events: &[Event], bytes: usize) {
    let place = |event: &Event| match event {
        Event::Headers(_) | Event::HeadersTooLarge => 0,
        Event::Data(_) => 1,
        Event::Trailers(_) | Event::TrailersTooLarge => 2,
    };
    let places: Vec<u8> = events.iter().map(place).collect();
    // Neighbouring data is one event, so all places differ.
    assert!(places.is_sorted_by(|a, b| a < b) && places.first().is_none_or(|first| *first == 0), "{events:?}");
    let length = |event: &Event| match event {
        Event::Headers(payload) | Event::Trailers(payload) => {
            assert!(payload.len() <= SECTION_MAX);
            payload.len()
        }
        Event::Data(payload) => payload.len(),
        Event::HeadersTooLarge | Event::TrailersTooLarge => 0,
    };
    assert!(events.iter().map(length).sum::<usize>() <= bytes);
}

fuzz_target!(|input: Input| {
    let Input { of_type, items, cuts, is_finished } = input;
    let mut bytes: Vec<u8> = of_type.iter().map(|kind| kind % 0x40).collect();
    items.iter().take(MAX_ITEMS).for_each(|item| item.write(&mut bytes));
    let mut ends: Vec<usize> = cuts.iter().map(|cut| usize::from(*cut).min(bytes.len())).collect();
    ends.extend([0, bytes.len()]);
    ends.sort_unstable();
    let bytes = Bytes::from(bytes);
    let parts: Vec<Bytes> = ends.windows(2).map(|ends| bytes.slice(ends[0]..ends[1])).collect();
    let single: Vec<Bytes> = (0..bytes.len()).map(|at| bytes.slice(at..=at)).collect();
    let whole = [bytes.clone()];
    if of_type.is_some() {
        let expect = other(&whole);
        assert_eq!(other(&parts), expect);
        assert_eq!(other(&single), expect);
    } else {
        let expect = request(&whole, is_finished);
        assert_eq!(request(&parts, is_finished), expect);
        assert_eq!(request(&single, is_finished), expect);
        check_order(&expect.0, bytes.len());
    }
});
