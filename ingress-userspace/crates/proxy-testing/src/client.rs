//! A scripted client.

use std::{
    io::{Error, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
};

use super::{
    DEADLINE,
    message::{fill, header, read_body, read_head},
};

/// Sends bytes and reads responses.
pub struct Client {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// The head in lower case.
    pub head: String,
    pub body: Vec<u8>,
}

impl Response {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("connected");
        stream.set_read_timeout(Some(DEADLINE)).expect("timeout set");
        Self { stream, buffer: Vec::new() }
    }

    pub fn local(&self) -> SocketAddr {
        self.stream.local_addr().expect("address")
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.stream.write_all(bytes.as_ref()).expect("sent");
        self
    }

    pub fn get(&mut self, host: &str, path: &str) -> Response {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")).response()
    }

    pub fn response(&mut self) -> Response {
        self.try_response().expect("a response")
    }

    /// Reads a response; `None` if the connection ends before one is complete.
    pub fn try_response(&mut self) -> Option<Response> {
        let head = self.head()?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let body = read_body(&head, status, &mut self.stream, &mut self.buffer)?;
        Some(Response { status, head, body })
    }

    pub fn head(&mut self) -> Option<String> {
        read_head(&mut self.stream, &mut self.buffer)
    }

    /// Returns the next bytes of a body, at least `count`.
    pub fn at_least(&mut self, count: usize) -> Vec<u8> {
        while self.buffer.len() < count {
            assert!(fill(&mut self.stream, &mut self.buffer), "ended early");
        }
        std::mem::take(&mut self.buffer)
    }

    /// Reads to the end. Returns whether the proxy ended the connection (a reset counts).
    pub fn is_closed(&mut self) -> bool {
        while fill(&mut self.stream, &mut self.buffer) {}
        let is_late = |error: Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        !self.stream.read(&mut [0]).is_err_and(is_late)
    }
}
