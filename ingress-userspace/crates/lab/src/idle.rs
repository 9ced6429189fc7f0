//! Thousands of connections that each made one request and then wait, and the memory that each of them costs the
//! server.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, ensure};
use rustls::{ClientConfig, ClientConnection, StreamOwned, pki_types::ServerName};
use tokio::runtime::Runtime;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

use super::{
    client::{Ask, Connection, Protocol, Trust},
    head, memory,
};

/// Address of a server, and the host name for requests.
#[derive(Clone, Debug)]
pub struct Server {
    pub http: SocketAddr,
    pub https: SocketAddr,
    pub host: String,
    /// Authority that has signed the server's certificate.
    pub trust: Trust,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// HTTP/1.1.
    Plain,
    /// HTTP/1.1 over TLS.
    Tls,
    /// HTTP/2 over TLS.
    Http2,
    /// A WebSocket without messages.
    WebSocket,
}

/// A waiting connection; calling it sends another request.
type Held<'o> = Box<dyn FnMut() -> anyhow::Result<()> + 'o>;

/// Number of connections that are opened before anything is measured. By then pools and the allocator have grown, and
/// memory left over from the start has been returned, which an allocator does when it is used again.
const FIRST: usize = 100;
/// Time for which a server may keep a connection warm after its last request.
const SETTLE: Duration = Duration::from_secs(3);
/// Longest silence on a connection.
const SILENCE: Duration = Duration::from_secs(5);

/// Returns the bytes that each of `count` waiting connections costs a server that reports its memory through `memory`,
/// beyond the cost of the connections before them.
///
/// # Errors
/// Fails if a connection fails or is closed while it waits, or the memory cannot be read.
pub fn weigh(
    kind: Kind,
    server: &Server,
    count: usize,
    memory: impl Fn() -> anyhow::Result<u64>,
) -> anyhow::Result<u64> {
    let opener = Opener::new(kind, server)?;
    let mut connections = opener.open(FIRST)?;
    opener.pass(SETTLE);
    let before = memory()?;
    connections.extend(opener.open(count)?);
    opener.pass(SETTLE);
    let each = memory::each(before, memory()?, count)?;
    // A connection that the server has closed would weigh nothing.
    for connection in &mut connections {
        connection().context("a connection did not wait until it was weighed")?;
    }
    Ok(each)
}

/// Opens a WebSocket.
///
/// # Errors
/// Fails if the server does not accept it.
pub fn web_socket(address: SocketAddr, host: &str, path: &str) -> anyhow::Result<WebSocket<TcpStream>> {
    let stream = connect(address)?;
    let (socket, _) = tungstenite::client(format!("ws://{host}{path}"), stream).context("no WebSocket")?;
    Ok(socket)
}

/// Connects with a time-out of [`SILENCE`] on reads and writes.
fn connect(address: SocketAddr) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

struct Opener<'s> {
    kind: Kind,
    server: &'s Server,
    /// Shared, so that all handshakes except the first resume a session, like those of a returning client.
    tls: Arc<ClientConfig>,
    runtime: Runtime,
}

// === impl Opener ===

impl<'s> Opener<'s> {
    fn new(kind: Kind, server: &'s Server) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("cannot make a runtime")?;
        Ok(Self { kind, server, tls: server.trust.config(b"http/1.1")?, runtime })
    }

    fn open(&self, count: usize) -> anyhow::Result<Vec<Held<'_>>> {
        (0..count).map(|_| self.one()).collect()
    }

    fn one(&self) -> anyhow::Result<Held<'_>> {
        let Server { http, https, host, trust } = self.server;
        let held: Held<'_> = match self.kind {
            Kind::Plain => {
                let mut stream = connect(*http)?;
                ask(&mut stream, host)?;
                Box::new(move || ask(&mut stream, host))
            }
            Kind::Tls => {
                let name = ServerName::try_from(host.clone())?;
                let connection = ClientConnection::new(Arc::clone(&self.tls), name)?;
                let mut stream = StreamOwned::new(connection, connect(*https)?);
                ask(&mut stream, host)?;
                Box::new(move || ask(&mut stream, host))
            }
            Kind::Http2 => {
                let opening = Connection::open(*https, Protocol::Https2, host, trust);
                let mut connection = self.runtime.block_on(opening)?;
                let mut again = move || {
                    self.runtime.block_on(async {
                        let answer = connection.send(&Ask::get(host, "/")).await?;
                        ensure!(answer.status.is_success(), "answered {}", answer.status);
                        anyhow::Ok(())
                    })
                };
                again()?;
                Box::new(again)
            }
            Kind::WebSocket => {
                let mut socket = web_socket(*http, host, "/websocket")?;
                Box::new(move || {
                    let said = Message::text("still there?");
                    socket.send(said.clone())?;
                    let answer = socket.read()?;
                    ensure!(answer == said, "a WebSocket answered {answer:?}");
                    anyhow::Ok(())
                })
            }
        };
        Ok(held)
    }

    /// Lets time pass, in which HTTP/2 connections respond to frames from the server.
    fn pass(&self, time: Duration) {
        // Created within the runtime that it belongs to.
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }
}

/// Sends one request and reads the response; the connection is idle afterwards.
fn ask(stream: &mut (impl Read + Write), host: &str) -> anyhow::Result<()> {
    stream.write_all(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())?;
    let (mut answer, mut bytes) = (Vec::new(), [0; 4096]);
    while !is_whole(&answer)? {
        let count = stream.read(&mut bytes)?;
        ensure!(count > 0, "no answer: {}", answer.escape_ascii());
        answer.extend_from_slice(&bytes[..count]);
    }
    Ok(())
}

/// Returns `true` if `answer` is a complete response with status 200 and a known length.
pub(super) fn is_whole(answer: &[u8]) -> anyhow::Result<bool> {
    let Some((status, length)) = head::parse(answer)? else { return Ok(false) };
    ensure!(status == 200, "answered {status}");
    Ok(answer.len() >= length)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{Namespace, echo::Echo, free_port};

    #[test]
    fn a_response_is_complete_with_its_last_byte() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\npod";
        for length in 0..whole.len() {
            assert!(!is_whole(&whole[..length]).expect("no error"), "{length}");
        }
        assert!(is_whole(whole).expect("no error"));
        for bad in ["HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"] {
            assert!(is_whole(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn connections_idle_after_a_response_or_a_handshake() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().expect("a port")));
        let pod = Echo::start(&Namespace::current(), "pod", &[address]).expect("a pod");
        let server = Server { http: address, https: address, host: "a.test".into(), trust: Trust::none() };
        let openers = [Kind::Plain, Kind::WebSocket].map(|kind| Opener::new(kind, &server).expect("a runtime"));
        let mut held: Vec<Held<'_>> = openers.iter().flat_map(|opener| opener.open(3).expect("answers")).collect();
        assert_eq!(held.len(), 6);
        for connection in &mut held {
            connection().expect("another answer");
        }
        drop(pod);
        assert!(held.iter_mut().all(|connection| connection().is_err()), "none waits at a pod that has gone");
        for kind in [Kind::Plain, Kind::Tls, Kind::Http2, Kind::WebSocket] {
            let opener = Opener::new(kind, &server).expect("a runtime");
            assert!(opener.open(1).is_err(), "{kind:?}");
        }
    }
}
