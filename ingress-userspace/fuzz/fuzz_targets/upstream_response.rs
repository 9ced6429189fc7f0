//! The response reader on hostile bytes. The target checks that it never panics, never consumes a byte behind the
//! framed message, and gives the same result for any split of the bytes.
#![no_main]

use arbitrary::Arbitrary;
use bytes::BytesMut;
use http::{HeaderMap, Method, StatusCode};
use ingress_proxy::upstream::{
    ExchangeError, ExchangeLimits,
    framing::{Decoded, Decoder, Framing},
    head::HeadReader,
};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    head: bool,
    cuts: Vec<u16>,
    bytes: &'a [u8],
}

#[derive(Debug, PartialEq)]
struct Message {
    status: StatusCode,
    headers: HeaderMap,
    framing: Framing,
    keep_alive: bool,
    content: Vec<u8>,
    trailers: Option<HeaderMap>,
    ended: bool,
    /// Bytes left in the buffer, not part of the message.
    rest: Vec<u8>,
}

fuzz_target!(|input: Input<'_>| {
    let Input { head, cuts, bytes } = input;
    let method = if head { Method::HEAD } else { Method::GET };
    let whole = read(&method, &[bytes]);
    let mut at: Vec<usize> = cuts.iter().map(|cut| usize::from(*cut) % (bytes.len() + 1)).collect();
    at.extend([0, bytes.len()]);
    at.sort_unstable();
    let pieces: Vec<&[u8]> = at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
    let split = read(&method, &pieces);
    match (&whole, &split) {
        (Ok(whole), Ok(split)) => assert_eq!(whole, split),
        // A fault is reported at the end of its line or section, so one of the two may still wait for it.
        (Ok(waiting), Err(_)) | (Err(_), Ok(waiting)) => {
            assert!(waiting.as_ref().is_none_or(|message| !message.ended && message.framing == Framing::Chunked));
        }
        (Err(_), Err(_)) => {}
    }
    let Ok(Some(message)) = whole else { return };
    assert!(bytes.ends_with(&message.rest));
    match message.framing {
        Framing::Length(length) => {
            assert!(message.content.len() as u64 <= length);
            assert_eq!(message.ended, message.content.len() as u64 == length);
        }
        Framing::Chunked => assert!(message.content.len() <= bytes.len()),
        Framing::Close => assert!(!message.ended && !message.keep_alive && message.rest.is_empty()),
    }
    if message.ended {
        // Without the following bytes, the message is the same: none of them was used.
        let framed = &bytes[..bytes.len() - message.rest.len()];
        let alone = read(&method, &[framed]).ok().flatten().expect("the message without what follows it");
        assert_eq!(alone, Message { rest: Vec::new(), ..message });
    } else {
        assert!(message.content.len() + message.rest.len() <= bytes.len());
    }
});

/// Returns the exchange's result for `pieces` in this order; `None` without a complete head.
fn read(method: &Method, pieces: &[&[u8]]) -> Result<Option<Message>, ExchangeError> {
    let limits = ExchangeLimits::default();
    let mut reader = HeadReader::new(method, limits);
    let mut buffer = BytesMut::new();
    let mut begun: Option<(Message, Decoder)> = None;
    for piece in pieces {
        buffer.extend_from_slice(piece);
        if begun.is_none() {
            begun = reader.read(&mut buffer)?.map(|head| {
                let decoder = Decoder::new(head.framing, limits.headers_max);
                let message = Message {
                    status: head.status,
                    headers: head.headers,
                    framing: head.framing,
                    keep_alive: head.keep_alive,
                    content: Vec::new(),
                    trailers: None,
                    ended: false,
                    rest: Vec::new(),
                };
                (message, decoder)
            });
        }
        let Some((message, decoder)) = &mut begun else { continue };
        loop {
            match decoder.decode(&mut buffer).map_err(ExchangeError::Malformed)? {
                Decoded::Data(data) => message.content.extend_from_slice(&data),
                Decoded::Trailers(trailers) => assert!(message.trailers.replace(trailers).is_none()),
                Decoded::More | Decoded::End => break,
            }
        }
    }
    Ok(begun.map(|(message, decoder)| Message { ended: decoder.is_end(), rest: buffer.to_vec(), ..message }))
}
