//! Connections that have asked once and then wait, by the thousand, and what each of them costs whom they wait at.

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

/// Who is connected to, and the host that is asked for.
#[derive(Clone, Debug)]
pub struct Server {
    pub http: SocketAddr,
    pub https: SocketAddr,
    pub host: String,
    /// What has signed its certificate.
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
    /// A WebSocket on which nothing is said.
    WebSocket,
}

/// A connection that waits; when it is called, it asks once more.
type Held<'o> = Box<dyn FnMut() -> anyhow::Result<()> + 'o>;

/// Connections that wait before anything is weighed: by then pools and the allocator have theirs, and what the start
/// took and does not need is given back, which an allocator does when it is used again.
const FIRST: usize = 100;
/// How long a server may keep a connection warm after its last request.
const SETTLE: Duration = Duration::from_secs(3);
/// Longest silence.
const SILENCE: Duration = Duration::from_secs(5);

/// Bytes that each of `count` waiting connections costs a server whose memory is `memory`, beyond what some have cost
/// before.
///
/// # Errors
/// If a connection fails or is closed while it waits, or the memory cannot be told.
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
    // One that the server has closed weighs nothing.
    for connection in &mut connections {
        connection().context("a connection did not wait until it was weighed")?;
    }
    Ok(each)
}

/// Opens a WebSocket.
///
/// # Errors
/// If the server does not agree to it.
pub fn web_socket(address: SocketAddr, host: &str, path: &str) -> anyhow::Result<WebSocket<TcpStream>> {
    let stream = connect(address)?;
    let (socket, _) = tungstenite::client(format!("ws://{host}{path}"), stream).context("no WebSocket")?;
    Ok(socket)
}

/// A connection on which nothing is silent for longer than [`SILENCE`].
fn connect(address: SocketAddr) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

struct Opener<'s> {
    kind: Kind,
    server: &'s Server,
    /// Shared, so that all but the first handshake resume a session, as those of a client that comes again do.
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

    /// Lets time pass, in which connections of HTTP/2 answer what they are asked.
    fn pass(&self, time: Duration) {
        // Made within the runtime, which it belongs to.
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }
}

/// Asks once and reads the answer, after which a connection is idle.
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

/// Whether this is all of a good answer whose length is told.
pub(super) fn is_whole(answer: &[u8]) -> anyhow::Result<bool> {
    let Some((status, length)) = head::parse(answer)? else { return Ok(false) };
    ensure!(status == 200, "answered {status}");
    Ok(answer.len() >= length)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::lab::{Namespace, echo::Echo, free_port};

    #[test]
    fn an_answer_is_whole_with_its_last_byte() {
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
    fn connections_wait_after_an_answer_or_a_handshake() {
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
