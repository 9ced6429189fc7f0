//! Peeks at the ClientHello of a TLS connection to find the server name, and leaves the bytes in the socket. rustls
//! parses it; no handshake takes place here.

use std::{io, os::fd::AsRawFd as _};

use nix::sys::socket::{MsgFlags, recv};
use rustls::server::Acceptor;
use tokio::{io::Interest, net::TcpStream};

/// Longest ClientHello that is parsed, in bytes. Browsers send far less, even with keys for post-quantum cryptography.
/// A connection with a longer one is served as if it had no server name.
pub const HELLO_MAX: usize = 16 * 1024;

/// Parses a ClientHello that arrives in pieces.
#[derive(Default)]
pub struct HelloReader {
    acceptor: Acceptor,
    read: usize,
}

/// The result of parsing the bytes so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParsedHello {
    /// The ClientHello is incomplete.
    Part,
    /// The server name in lower case; empty if there is none.
    Name(String),
    /// The bytes are not a ClientHello, or its server name is not a valid host name.
    Nothing,
}

// === impl HelloReader ===

impl HelloReader {
    /// Parses `bytes`, which must hold all bytes since the connection began. Must not be called again after any other
    /// result than [`ParsedHello::Part`].
    pub fn read(&mut self, bytes: &[u8]) -> ParsedHello {
        let Self { acceptor, read } = self;
        let mut rest = bytes.get(*read..).unwrap_or_default();
        while !rest.is_empty() {
            // The acceptor reads as much as its buffer holds; `accept` makes room.
            match acceptor.read_tls(&mut rest) {
                Ok(1..) => {}
                Ok(0) | Err(_) => return ParsedHello::Nothing,
            }
            match acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    return ParsedHello::Name(
                        accepted.client_hello().server_name().unwrap_or_default().to_ascii_lowercase(),
                    );
                }
                Err(_refused) => return ParsedHello::Nothing,
            }
        }
        *read = bytes.len();
        if bytes.len() < HELLO_MAX { ParsedHello::Part } else { ParsedHello::Nothing }
    }
}

/// Returns the server name that the client of `tcp` sends: empty if it sends none, `None` if the bytes are not a
/// ClientHello. Nothing is taken from the connection. The caller sets a time limit.
///
/// # Errors
/// If the connection fails, or ends too early.
pub(super) async fn server_name(tcp: &TcpStream) -> io::Result<Option<String>> {
    let (mut reader, mut window) = (HelloReader::default(), vec![0; HELLO_MAX]);
    let mut known = 0;
    loop {
        let ready = tcp.ready(Interest::READABLE).await?;
        let peeked = tcp.try_io(Interest::READABLE, || {
            let count = recv(tcp.as_raw_fd(), window.as_mut_slice(), MsgFlags::MSG_PEEK)?;
            // Bytes that were peeked at before count as not ready, so that the runtime waits for more.
            if count > known { Ok(count) } else { Err(io::ErrorKind::WouldBlock.into()) }
        });
        match peeked {
            Ok(count) => known = count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !ready.is_read_closed() => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => return Err(error),
        }
        match reader.read(&window[..known]) {
            ParsedHello::Part => {}
            ParsedHello::Name(name) => return Ok(Some(name)),
            ParsedHello::Nothing => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fastrand::Rng;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;
    use crate::tls::provider::provider;

    fn hello(name: &str, protocols: usize) -> Vec<u8> {
        let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let mut config =
            builder.expect("versions").with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        config.alpn_protocols = vec![vec![b'x'; 200]; protocols];
        config.enable_sni = !name.is_empty();
        let name = if name.is_empty() { "unnamed.test" } else { name };
        let name = rustls_pki_types::ServerName::try_from(name.to_owned()).expect("valid name");
        let mut connection = ClientConnection::new(Arc::new(config), name).expect("a connection");
        let mut bytes = Vec::new();
        while connection.wants_write() {
            connection.write_tls(&mut bytes).expect("written");
        }
        bytes
    }

    /// Splits the message into records of `size` bytes.
    fn in_records(hello: &[u8], size: usize) -> Vec<u8> {
        let (head, message) = hello.split_at(5);
        let record =
            |part: &[u8]| [&head[..3], &u16::try_from(part.len()).expect("short").to_be_bytes(), part].concat();
        message.chunks(size).flat_map(record).collect()
    }

    /// Returns the final result for `bytes` that arrive `step` bytes at a time.
    fn seen(bytes: &[u8], step: usize) -> ParsedHello {
        let mut reader = HelloReader::default();
        let ends = (0..bytes.len()).step_by(step).chain([bytes.len()]);
        ends.map(|end| reader.read(&bytes[..end])).find(|seen| *seen != ParsedHello::Part).unwrap_or(ParsedHello::Part)
    }

    #[test]
    fn the_server_name_is_found_for_any_fragmentation() {
        for (name, expect) in [("a.test", "a.test"), ("WWW.Example.COM", "www.example.com"), ("", "")] {
            let plain = hello(name, 1);
            for bytes in [plain.clone(), in_records(&plain, 1), in_records(&plain, 100)] {
                for step in [1, 7, 1000, usize::MAX] {
                    assert_eq!(seen(&bytes, step), ParsedHello::Name(expect.to_owned()), "by {step}");
                    assert_eq!(seen(&bytes[..bytes.len() - 1], step), ParsedHello::Part, "by {step}");
                }
            }
        }
        assert_eq!(seen(&hello("a.test", 50), 1000), ParsedHello::Name("a.test".to_owned()), "10 KiB");
        assert_eq!(seen(&hello("a.test", 100), 1000), ParsedHello::Nothing, "20 KiB are not looked at");
        for other in
            [&b"GET / HTTP/1.1\r\n"[..], b"\x16\x03\x01\x00\x00", b"SSH-2.0-x\r\n", b"\x15\x03\x01\x00\x02\x01\x00"]
        {
            assert_eq!(seen(other, usize::MAX), ParsedHello::Nothing, "{}", other.escape_ascii());
        }
    }

    #[test]
    fn damaged_hellos_wait_for_no_more_bytes_than_valid_ones() {
        let mut rng = Rng::with_seed(1);
        let whole = [hello("a.test", 1), in_records(&hello("b.test", 2), 50)];
        for _ in 0..20_000 {
            let mut bytes = whole[rng.usize(..whole.len())].clone();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..bytes.len());
                bytes[at] = rng.u8(..);
            }
            bytes.truncate(rng.usize(1..=bytes.len()));
            // If the whole is an incomplete ClientHello, so was each part of it.
            let at_once = seen(&bytes, usize::MAX);
            let by_and_by = seen(&bytes, rng.usize(1..100));
            assert_eq!(at_once == ParsedHello::Part, by_and_by == ParsedHello::Part, "{}", bytes.escape_ascii());
        }
    }
}
