//! HTTP/2 clients that grant every window, send requests on many streams and read nothing.

use std::{
    io::{self, Write},
    net::{SocketAddr, TcpStream},
};

use anyhow::Context;
use rustls::{ClientConnection, StreamOwned, pki_types::ServerName};
use tokio::net::TcpSocket;

use ingress_lab::{client::block_on, idle::Server};

/// Protocol of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// HTTP/2 without TLS.
    Cleartext,
    Tls,
    /// gRPC without TLS.
    Grpc,
}

/// A connection that the client does not read.
pub(super) enum Greedy {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// Receive buffer of a client's socket: the smallest that the kernel allows, so that the server has to keep the rest.
const RECEIVE_BUFFER: u32 = 4096;
const WINDOW_MAX: u32 = 0x7fff_ffff;

/// Types of frames (RFC 9113, 6).
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;

impl Way {
    pub(super) const ALL: [Self; 3] = [Self::Cleartext, Self::Tls, Self::Grpc];

    /// Returns the host of `soak.yaml` that has a pod for this protocol.
    pub(super) const fn host(self) -> &'static str {
        match self {
            Self::Cleartext | Self::Tls => "soak.test",
            Self::Grpc => "grpc.soak.test",
        }
    }

    /// Opens a connection that requests `path` on this number of streams.
    pub(super) fn ask(self, server: &Server, path: &str, streams: u32) -> anyhow::Result<Greedy> {
        let mut greedy = match self {
            Self::Cleartext | Self::Grpc => Greedy::Plain(connect(server.http)?),
            Self::Tls => {
                let name = ServerName::try_from(self.host())?;
                let connection = ClientConnection::new(server.trust.config(b"h2")?, name)?;
                Greedy::Tls(Box::new(StreamOwned::new(connection, connect(server.https)?)))
            }
        };
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let window = WINDOW_MAX.to_be_bytes();
        // SETTINGS_INITIAL_WINDOW_SIZE.
        frame(&mut bytes, SETTINGS, 0, 0, &[&[0, 4], &window[..]].concat());
        // The window of a connection starts at 65,535 bytes.
        frame(&mut bytes, WINDOW_UPDATE, 0, 0, &(WINDOW_MAX - 65_535).to_be_bytes());
        let fields = self.fields(path);
        for number in 0..streams {
            // END_STREAM and END_HEADERS.
            frame(&mut bytes, HEADERS, 5, 1 + 2 * number, &fields);
        }
        greedy.send(&bytes).context("an attacker cannot ask")?;
        Ok(greedy)
    }

    /// Returns the fields of a request in HPACK (RFC 7541), without indexing.
    fn fields(self, path: &str) -> Vec<u8> {
        let (method, scheme) = match self {
            Self::Cleartext => (0x82, 0x86),
            Self::Tls => (0x82, 0x87),
            Self::Grpc => (0x83, 0x86),
        };
        let mut fields = vec![method, scheme];
        // `:authority`, `:path` and `content-type` by their numbers.
        literal(&mut fields, &[0x01], self.host());
        literal(&mut fields, &[0x04], path);
        if self == Self::Grpc {
            literal(&mut fields, &[0x0f, 0x10], "application/grpc");
            fields.push(0);
            literal(&mut fields, b"\x02te", "trailers");
        }
        fields
    }
}

impl Greedy {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.write_all(bytes),
            Self::Tls(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }
}

fn connect(address: SocketAddr) -> anyhow::Result<TcpStream> {
    let stream = block_on(async {
        let socket = TcpSocket::new_v4()?;
        // Before it connects, because the window is negotiated then.
        socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
        Ok(socket.connect(address).await?.into_std()?)
    })?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Appends a field with an encoded name, and a value of less than 127 bytes.
fn literal(out: &mut Vec<u8>, name: &[u8], value: &str) {
    out.extend_from_slice(name);
    out.push(u8::try_from(value.len()).unwrap_or(0));
    out.extend_from_slice(value.as_bytes());
}
