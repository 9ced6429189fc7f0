//! Valid and invalid HTTP/2 frames on a connection to a complete worker with the strict pod of `tests/proxy`. The target
//! checks that nothing panics, and that the connection ends after the client's last frame. No request may reach the pod
//! that RFC 9113 calls malformed, or that two HTTP/1 parsers could read differently.
//!
//! The library h2 parses HTTP/2. After a failure, the target feeds the same bytes to h2 alone. If h2 fails in the same
//! way, the message blames h2, and otherwise the proxy.
#![no_main]

use std::{
    hash::{BuildHasher, RandomState},
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use arbitrary::Arbitrary;
use ingress_common::HostL7Cell;
use ingress_model::HostId;
use ingress_proxy::{ListenMode, ListenOptions, Options, Server, Shared, Snapshot, bind};
use ingress_proxy_testing::{DEADLINE, Table};
use libfuzzer_sys::fuzz_target;
use socket2::{Domain, Socket, Type};
use tokio::io::AsyncWriteExt as _;

#[allow(dead_code, reason = "a part of it is used here")]
#[path = "../../crates/proxy/tests/proxy/framing/recorder.rs"]
mod recorder;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;
/// Maximum number of items per input; no fault needs more of them.
const MAX_ITEMS: usize = 64;

#[derive(Arbitrary, Debug)]
struct Input {
    /// Whether the connection preface is sent. Without it, the bytes begin with the first item.
    begins: bool,
    items: Vec<Item>,
}

#[derive(Arbitrary, Debug)]
enum Item {
    Request(Request),
    Data { stream: u8, bytes: Vec<u8>, is_end: bool, padding: Option<u8> },
    Trailers { stream: u8, name: u8, value: Vec<u8> },
    Settings { is_ack: bool, values: Vec<(u8, u32)> },
    Known { kind: u8, flags: u8, stream: u8, value: u64 },
    Raw { kind: u8, flags: u8, stream: u32, payload: Vec<u8> },
    Bytes(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
struct Request {
    stream: u8,
    is_end: bool,
    path: Vec<u8>,
    fields: Vec<(u8, Vec<u8>, Indexing)>,
    fault: Option<(Fault, u8)>,
    cuts: Vec<u8>,
    padding: Option<u8>,
    has_priority: bool,
}

/// HPACK representation of a field.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Indexing {
    Incremental,
    Without,
    Never,
}

/// Fault that makes a request malformed.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Fault {
    UpperCase,
    Byte(u8),
    ByteInName(u8),
    ConnectionSpecific(u8),
    Te,
    Late(u8),
    Twice(u8),
    Unknown,
    Missing(u8),
    EmptyPath,
    RelativePath,
    Length,
    HostOfAnother,
}

struct Bench {
    pod: recorder::Recorder,
    proxy: SocketAddr,
    /// Mark in the method or the path of malformed requests; inputs cannot guess it.
    mark: String,
}

static BENCH: LazyLock<Bench> = LazyLock::new(|| {
    let pod = recorder::Recorder::start();
    let cells: &'static [HostL7Cell] = Box::leak((0..16).map(|_| HostL7Cell::default()).collect());
    let shared = Arc::new(Shared::new(cells, None).expect("shared state"));
    let table = Table::default().host("a.test", &[pod.address]);
    shared.publish(Snapshot::compile(None, &table.0, |_| Some(HostId(1))).0);
    let mode = ListenMode::Bind { address: Ipv4Addr::LOCALHOST.into(), http_port: 0, https_port: 0 };
    let listeners = bind(ListenOptions { mode, workers: 1, reuse: false }).expect("listeners");
    let proxy = listeners[0].http.local_addr().expect("an address");
    // The server runs as long as the process.
    std::mem::forget(Server::start(shared, listeners, &Options::default()).expect("a server"));
    let mark = format!("BAD{:016X}", RandomState::new().hash_one(0));
    Bench { pod, proxy, mark }
});

// === frames ===

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Encodes a string by RFC 7541, 5.1 and 5.2, without Huffman.
fn string(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    if text.len() < 127 {
        out.push(text.len() as u8);
    } else {
        let mut rest = text.len() - 127;
        out.push(127);
        while rest >= 128 {
            out.push((rest % 128) as u8 | 128);
            rest /= 128;
        }
        out.push(rest as u8);
    }
    out.extend(text);
    out
}

fn literal(name: &[u8], value: &[u8], indexing: Indexing) -> Vec<u8> {
    let first = match indexing {
        Indexing::Incremental => 0x40,
        Indexing::Without => 0,
        Indexing::Never => 0x10,
    };
    [vec![first], string(name), string(value)].concat()
}

type Field = (Vec<u8>, Vec<u8>, Indexing);

fn field(name: &str, value: &str) -> Field {
    (name.into(), value.into(), Indexing::Never)
}

impl Fault {
    /// Returns whether h2 (0.4.20) may drop such a field and then forget the fault. That happens if the frame ends
    /// within a later field (`HeaderBlock::load` returns `NeedMore` before the check of `malformed`). The request is
    /// then served without the field, so no pod sees it.
    fn is_forgotten(self) -> bool {
        matches!(self, Self::ConnectionSpecific(_) | Self::Te | Self::Late(_) | Self::Twice(_))
    }

    /// Makes the fields of a request malformed; `at` selects the position among fields other than pseudo-header fields.
    fn apply(self, fields: &mut Vec<Field>, at: u8) {
        let regular = 4 + usize::from(at) % (fields.len() - 3);
        let pseudo = |of: u8| usize::from(of) % 4;
        match self {
            Self::UpperCase => fields.insert(regular, field("x-A", "b")),
            Self::Byte(of) => {
                let value = [b"b", &[[0, b'\r', b'\n'][usize::from(of) % 3]][..], b"c: d"].concat();
                fields.insert(regular, (b"x-a".to_vec(), value, Indexing::Never));
            }
            Self::ByteInName(of) => {
                let bytes = b"\0\r\n \t\x7f\xe9:/()";
                let name = [b"x", &[bytes[usize::from(of) % bytes.len()]][..], b"a"].concat();
                fields.insert(regular, (name, b"b".to_vec(), Indexing::Never));
            }
            Self::ConnectionSpecific(of) => {
                let names = ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];
                fields.insert(regular, field(names[usize::from(of) % 5], "chunked"));
            }
            Self::Te => fields.insert(regular, field("te", "trailers, gzip")),
            Self::Late(of) => {
                let late = fields.remove(pseudo(of));
                fields.insert(3, field("x-a", "b"));
                fields.push(late);
            }
            Self::Twice(of) => {
                let again = fields[pseudo(of)].clone();
                fields.insert(4, again);
            }
            Self::Unknown => fields.insert(4, field(":x", "b")),
            Self::Missing(of) => drop(fields.remove(pseudo(of))),
            Self::EmptyPath => fields[3].1.clear(),
            Self::RelativePath => fields[3].1.insert(0, b'x'),
            Self::Length => fields.insert(regular, field("content-length", "3, 3")),
            Self::HostOfAnother => fields.insert(regular, field("host", "b.test")),
        }
    }
}

impl Request {
    fn fields(&self, mark: &str) -> Vec<Field> {
        let visible = |byte: &u8| b'!' + byte % 94;
        let path = self.path.iter().take(64).map(visible).filter(|byte| *byte != b'#');
        let mut path: Vec<u8> = std::iter::once(b'/').chain(path).collect();
        let mut method = ["GET", "POST", "HEAD", "PATCH", "OPTIONS"][self.path.len() % 5];
        match self.fault {
            // Without a method, the mark is in the path.
            Some((Fault::Missing(of), _)) if of % 4 == 0 => path.extend(mark.bytes()),
            Some((fault, _)) if fault.is_forgotten() && !self.cuts.is_empty() => {}
            Some(_) => method = mark,
            None => {}
        }
        let mut fields = vec![field(":method", method), field(":scheme", "http"), field(":authority", "a.test")];
        fields.push((b":path".to_vec(), path, Indexing::Without));
        for (name, value, indexing) in self.fields.iter().take(16) {
            let names =
                ["x-a", "cookie", "accept", "user-agent", "te", "x-forwarded-for", "expect", "range", "forwarded"];
            let name = names[usize::from(*name) % names.len()];
            let value = if name == "te" { b"trailers".to_vec() } else { value.iter().take(300).map(visible).collect() };
            fields.push((name.into(), value, *indexing));
        }
        if let Some((fault, at)) = self.fault {
            fault.apply(&mut fields, at);
        }
        fields
    }

    fn frames(&self, mark: &str) -> Vec<u8> {
        let stream = u32::from(self.stream % 16) * 2 + 1;
        let section: Vec<u8> =
            self.fields(mark).iter().flat_map(|(name, value, indexing)| literal(name, value, *indexing)).collect();
        let (mut pieces, mut rest) = (Vec::new(), &section[..]);
        for cut in self.cuts.iter().take(8) {
            let (piece, later) = rest.split_at(usize::from(*cut).min(rest.len()));
            pieces.push(piece);
            rest = later;
        }
        pieces.push(rest);
        let last = pieces.len() - 1;
        let end = |index: usize| if index == last { END_HEADERS } else { 0 };
        let mut flags = end(0) | if self.is_end { END_STREAM } else { 0 };
        let mut first = Vec::new();
        if let Some(padding) = self.padding {
            flags |= PADDED;
            first.push(padding);
        }
        if self.has_priority {
            flags |= PRIORITY;
            first.extend([0, 0, 0, 0, 7]);
        }
        first.extend(pieces[0]);
        first.resize(first.len() + usize::from(self.padding.unwrap_or_default()), 0);
        let mut out = frame(HEADERS, flags, stream, &first);
        for (index, piece) in pieces.iter().enumerate().skip(1) {
            out.extend(frame(CONTINUATION, end(index), stream, piece));
        }
        out
    }
}

impl Item {
    fn bytes(&self, mark: &str) -> Vec<u8> {
        let id = |stream: &u8| u32::from(stream % 16) * 2 + 1;
        match self {
            Self::Request(request) => request.frames(mark),
            Self::Data { stream, bytes, is_end, padding } => {
                let mut payload: Vec<u8> = padding.iter().copied().chain(bytes.iter().copied()).collect();
                payload.resize(payload.len() + usize::from(padding.unwrap_or_default()), 0);
                let flags = u8::from(*is_end) | if padding.is_some() { PADDED } else { 0 };
                frame(DATA, flags, id(stream), &payload)
            }
            Self::Trailers { stream, name, value } => {
                let names: [&[u8]; 5] = [b"x-a", b"content-length", b"X-A", b":path", b"host"];
                let section = literal(names[usize::from(*name) % names.len()], value, Indexing::Never);
                frame(HEADERS, END_STREAM | END_HEADERS, id(stream), &section)
            }
            Self::Settings { is_ack, values } => {
                let values = values
                    .iter()
                    .flat_map(|(id, value)| [&u16::from(id % 10).to_be_bytes()[..], &value.to_be_bytes()].concat());
                frame(SETTINGS, u8::from(*is_ack), 0, &values.collect::<Vec<_>>())
            }
            Self::Known { kind, flags, stream, value } => {
                // RST_STREAM, PING, GOAWAY, WINDOW_UPDATE, PRIORITY, with their correct lengths.
                let (kind, length, stream) =
                    [(3, 4, id(stream)), (6, 8, 0), (7, 8, 0), (8, 4, 0), (8, 4, id(stream)), (2, 5, id(stream))]
                        [usize::from(*kind) % 6];
                frame(kind, *flags, stream, &value.to_be_bytes()[..length])
            }
            Self::Raw { kind, flags, stream, payload } => frame(*kind, *flags, *stream, payload),
            Self::Bytes(bytes) => bytes.clone(),
        }
    }
}

/// Connects from a distinct local address; otherwise, closed connections would use up the ports of one address.
fn connect(to: SocketAddr) -> TcpStream {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let from = Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 0).to_bits() + NEXT.fetch_add(1, Relaxed) % 65_536);
        socket.bind(&SocketAddr::from((from, 0)).into()).expect("bound");
        match socket.connect(&to.into()) {
            Ok(()) => return TcpStream::from(socket),
            // libFuzzer's clock is a signal.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("cannot connect: {error}"),
        }
    }
}

// === blame ===

/// Requests and end of a connection of h2 alone, for the same bytes.
#[derive(Default)]
struct Library {
    /// Methods and paths of the requests that h2 delivers.
    requests: Vec<String>,
    has_ended: bool,
}

impl Library {
    fn serve(sent: Vec<u8>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let (mut client, server) = tokio::io::duplex(1 << 24);
            client.write_all(&sent).await.expect("room for all");
            let mut library = Self::default();
            let requests = &mut library.requests;
            let serve = async {
                let Ok(mut connection) = h2::server::handshake(server).await else { return };
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    requests.push(format!("{} {}", request.method(), request.uri()));
                    let answered = respond.send_response(http::Response::new(()), true);
                    drop(answered);
                }
            };
            // The end comes last, because h2 delivers no request that arrives together with it.
            let client = tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                client.shutdown().await.map(|()| client)
            });
            let has_ended = tokio::time::timeout(DEADLINE, serve).await.is_ok();
            drop(client);
            Self { has_ended, ..library }
        })
    }

    fn blame(is_alike: bool) -> &'static str {
        if is_alike {
            "to blame is h2, the library, which does so alone, too"
        } else {
            "to blame are we, h2 alone does not"
        }
    }
}

fuzz_target!(|input: Input| {
    let bench = &*BENCH;
    let mut sent = if input.begins { [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat() } else { Vec::new() };
    for item in input.items.iter().take(MAX_ITEMS) {
        sent.extend(item.bytes(&bench.mark));
    }
    let mut client = connect(bench.proxy);
    client.set_read_timeout(Some(DEADLINE)).expect("set");
    client.set_write_timeout(Some(DEADLINE)).expect("set");
    // The server may reset a connection after too many faults.
    let is_open = client.write_all(&sent).is_ok() && client.shutdown(Shutdown::Write).is_ok();
    let mut buffer = [0; 16 * 1024];
    let mut received = 0;
    while is_open {
        match client.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => received += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!(
                    "the connection is open {:?} after its client's end, {received} bytes were received: {}",
                    DEADLINE,
                    Library::blame(!Library::serve(sent).has_ended)
                )
            }
            Err(_) => break,
        }
    }
    assert!(received <= sent.len() * 64 + 64 * 1024, "{received} bytes for {}", sent.len());
    let seen = bench.pod.take();
    // The proxy writes valid frames for any input.
    assert!(seen.faults.is_empty(), "the pod got {:?}: to blame are we, who wrote it", seen.faults);
    if let Some(malformed) = seen.seen.iter().find(|seen| seen.contains(&bench.mark)) {
        let is_alike = Library::serve(sent).requests.iter().any(|request| request.contains(&bench.mark));
        panic!("the pod got what is malformed, {malformed}: {}", Library::blame(is_alike));
    }
});
