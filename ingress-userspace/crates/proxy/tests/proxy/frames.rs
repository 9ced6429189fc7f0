//! HTTP/2 frame by frame: a client that sends any frames, valid or not.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::mpsc,
};

use ingress_proxy_testing::{DEADLINE, Proxy};

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const NONE: u8 = 0;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// `GET http://a.test/` or `POST`, from the static table of HPACK, without `:authority`, which is `a.test`.
pub(crate) fn fields(method: u8) -> Vec<u8> {
    // `:method`, `:scheme: http`, `:path: /`, and a literal `:authority` that is not indexed.
    [&[method, 0x86, 0x84, 0x01, 6][..], b"a.test"].concat()
}

pub(crate) const GET: u8 = 0x82;
pub(crate) const POST: u8 = 0x83;

pub(crate) fn get(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &fields(GET))
}

/// A client that sends exactly the given frames.
pub(crate) struct Raw<S = TcpStream>(pub(crate) S);

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Raw {
    pub(crate) fn connect(proxy: &Proxy) -> Self {
        let stream = TcpStream::connect(proxy.http).expect("connected");
        stream.set_read_timeout(Some(DEADLINE)).expect("timeout set");
        stream.set_write_timeout(Some(DEADLINE)).expect("timeout set");
        stream.set_nodelay(true).expect("set");
        Self(stream)
    }

    /// A client that has sent a valid preface.
    pub(crate) fn begun(proxy: &Proxy, settings: &[u8]) -> Self {
        let mut client = Self::connect(proxy);
        client.send(&[PREFACE, &frame(SETTINGS, NONE, 0, settings)].concat());
        client
    }

    /// Returns whether the proxy closes the connection within `rounds` of `round`, while its answers are read.
    pub(crate) fn ended_by(mut self, rounds: u32, round: impl Fn(u32) -> Vec<u8>) -> bool {
        let mut reader = self.0.try_clone().expect("cloned");
        let (tell, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 64 * 1024];
            while matches!(reader.read(&mut bytes), Ok(1..)) {}
            tell.send(()).unwrap_or_default();
        });
        (0..rounds).any(|number| self.0.write_all(&round(number)).is_err()) || ended.recv_timeout(DEADLINE / 2).is_ok()
    }
}

impl<S: Read + Write> Raw<S> {
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("sent");
        self.0.flush().expect("sent");
    }

    /// Reads the next frame; `None` at the end of the connection.
    pub(crate) fn next(&mut self) -> Option<Frame> {
        let mut header = [0; 9];
        self.0.read_exact(&mut header).ok()?;
        let [high, middle, low, kind, flags, stream @ ..] = header;
        let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
        self.0.read_exact(&mut payload).ok()?;
        Some(Frame { kind, flags, stream: u32::from_be_bytes(stream), payload })
    }

    pub(crate) fn until(&mut self, kind: u8) -> Frame {
        std::iter::from_fn(|| self.next()).find(|frame| frame.kind == kind).expect("such a frame")
    }
}
