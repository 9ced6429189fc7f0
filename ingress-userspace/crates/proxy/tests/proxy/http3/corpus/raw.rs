//! Frames of HTTP/3 as a client writes them, right or wrong, on streams of quinn.

use quinn::{Connection, RecvStream, SendStream, VarInt};

const DATA: u64 = 0;
const HEADERS: u64 = 1;

fn varint(value: u64, out: &mut Vec<u8>) {
    let length = match value {
        0..0x40 => 0,
        0x40..0x4000 => 1,
        0x4000..0x4000_0000 => 2,
        _ => 3,
    };
    let bytes = (value | length << ((8 << length) - 2)).to_be_bytes();
    out.extend_from_slice(&bytes[8 - (1 << length)..]);
}

fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint(kind, &mut out);
    varint(payload.len() as u64, &mut out);
    out.extend_from_slice(payload);
    out
}

/// An integer behind the flags of its first byte (RFC 7541, 5.1).
fn integer(flags: u8, bits: u8, value: usize, out: &mut Vec<u8>) {
    let max = (1 << bits) - 1;
    if value < max {
        return out.push(flags | value as u8);
    }
    out.push(flags | max as u8);
    let mut rest = value - max;
    while rest >= 0x80 {
        out.push(0x80 | (rest % 0x80) as u8);
        rest /= 0x80;
    }
    out.push(rest as u8);
}

/// HEADERS with these lines as literals, whatever they contain.
pub(crate) fn headers<N: AsRef<[u8]>, V: AsRef<[u8]>>(lines: &[(N, V)]) -> Vec<u8> {
    let mut section = vec![0, 0];
    for (name, value) in lines {
        integer(0x20, 3, name.as_ref().len(), &mut section);
        section.extend_from_slice(name.as_ref());
        integer(0, 7, value.as_ref().len(), &mut section);
        section.extend_from_slice(value.as_ref());
    }
    frame(HEADERS, &section)
}

pub(crate) fn data(bytes: &[u8]) -> Vec<u8> {
    frame(DATA, bytes)
}

/// A connection with a control stream.
pub(crate) struct Raw {
    quic: Connection,
    _control: SendStream,
}

/// A stream for one request.
pub(crate) struct Stream {
    sender: SendStream,
    receiver: RecvStream,
    buffer: Vec<u8>,
    /// Bytes of DATA that were not asked for.
    content: Vec<u8>,
}

impl Raw {
    pub(crate) async fn new(quic: &Connection) -> Self {
        let mut control = quic.open_uni().await.expect("a stream");
        control.write_all(&[0, 4, 0]).await.expect("sent");
        Self { quic: quic.clone(), _control: control }
    }

    pub(crate) async fn open(&self) -> Stream {
        let (sender, receiver) = self.quic.open_bi().await.expect("a stream");
        Stream { sender, receiver, buffer: Vec::new(), content: Vec::new() }
    }

    /// Sends one request and returns the status of its response; `None` if the stream is reset.
    ///
    /// # Errors
    /// If the connection is closed.
    pub(crate) async fn request(&self, bytes: &[u8]) -> Result<Option<(u16, Vec<u8>)>, quinn::ConnectionError> {
        let (sender, receiver) = self.quic.open_bi().await?;
        let mut stream = Stream { sender, receiver, buffer: Vec::new(), content: Vec::new() };
        let _may_be_stopped = stream.sender.write_all(bytes).await;
        stream.finish();
        loop {
            match stream.frame().await {
                Ok(Some((HEADERS, section))) => {
                    let status = status(&section);
                    let rest = stream.until_finished().await;
                    if let Some(reason) = self.quic.close_reason() {
                        return Err(reason);
                    }
                    return Ok(rest.ok().map(|()| (status, stream.content)));
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return self.quic.close_reason().map_or(Ok(None), Err),
            }
        }
    }
}

impl Stream {
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.sender.write_all(bytes).await.expect("sent");
    }

    pub(crate) fn finish(&mut self) {
        // It may have been stopped.
        let _ended = self.sender.finish();
    }

    /// Returns the next frame, `None` at the end.
    async fn frame(&mut self) -> Result<Option<(u64, Vec<u8>)>, quinn::ReadError> {
        loop {
            if let Some((kind, at)) = number(&self.buffer, 0)
                && let Some((length, at)) = number(&self.buffer, at)
                && let Some(payload) = self.buffer.get(at..at + length as usize)
            {
                let payload = payload.to_vec();
                self.buffer.drain(..at + length as usize);
                return Ok(Some((kind, payload)));
            }
            match self.receiver.read_chunk(usize::MAX, true).await? {
                Some(chunk) => self.buffer.extend_from_slice(&chunk.bytes),
                None => return Ok(None),
            }
        }
    }

    /// Returns the status of the response.
    pub(crate) async fn head(&mut self) -> u16 {
        loop {
            match self.frame().await.expect("a response").expect("a response") {
                (HEADERS, section) => return status(&section),
                (_unknown, _) => {}
            }
        }
    }

    /// Returns the next `count` bytes of the response's content.
    pub(crate) async fn data(&mut self, count: usize) -> Vec<u8> {
        while self.content.len() < count {
            if let (DATA, data) = self.frame().await.expect("data").expect("data") {
                self.content.extend_from_slice(&data);
            }
        }
        self.content.drain(..count).collect()
    }

    /// Reads to the end.
    ///
    /// # Errors
    /// If the stream is reset before it.
    pub(crate) async fn until_finished(&mut self) -> Result<(), quinn::ReadError> {
        while let Some((kind, data)) = self.frame().await? {
            if kind == DATA {
                self.content.extend_from_slice(&data);
            }
        }
        Ok(())
    }
}

/// Returns the variable-length integer at `at`, and the position behind it.
fn number(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let length = 1 << (bytes.get(at)? >> 6);
    let bytes = bytes.get(at..at + length)?;
    let value = bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
    Some((value & VarInt::MAX.into_inner() >> (62 - (8 * length - 2)), at + length))
}

/// Returns the status of a section: its first line, by an index of the static table or as text.
fn status(section: &[u8]) -> u16 {
    const KNOWN: [(usize, u16); 14] = [
        (24, 103),
        (25, 200),
        (26, 304),
        (27, 404),
        (28, 503),
        (63, 100),
        (64, 204),
        (65, 206),
        (66, 302),
        (67, 400),
        (68, 403),
        (69, 421),
        (70, 425),
        (71, 500),
    ];
    let (bits, rest) = (section[2], &section[3..]);
    if bits & 0xc0 == 0xc0 {
        let index = if bits & 0x3f == 0x3f { 0x3f + usize::from(rest[0]) } else { usize::from(bits & 0x3f) };
        return KNOWN.iter().find(|(known, _)| *known == index).expect("a status").1;
    }
    // A literal with the name of an entry from 15 on, so that the index has a second byte.
    let (flags, value) = (rest[1], &rest[2..]);
    let value = &value[..usize::from(flags & 0x7f)];
    let digits = if flags & 0x80 == 0 { value.to_vec() } else { huffman(value) };
    str::from_utf8(&digits).expect("digits").parse().expect("a status")
}

/// Decodes digits in Huffman's code (RFC 7541, appendix B): 0 to 2 have five bits, and 3 to 9 have six.
fn huffman(bytes: &[u8]) -> Vec<u8> {
    let bits: Vec<u8> = bytes.iter().flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1)).collect();
    let (mut at, mut digits) = (0, Vec::new());
    let number = |range: std::ops::Range<usize>| Some(bits.get(range)?.iter().fold(0, |number, bit| number << 1 | bit));
    loop {
        let short = number(at..at + 5).filter(|number| *number < 3);
        let long = number(at..at + 6).and_then(|number| number.checked_sub(0b01_1001)).filter(|number| *number < 7);
        let (digit, length) = match (short, long) {
            (Some(digit), _) => (digit, 5),
            (None, Some(digit)) => (digit + 3, 6),
            (None, None) => return digits,
        };
        digits.push(b'0' + digit);
        at += length;
    }
}
