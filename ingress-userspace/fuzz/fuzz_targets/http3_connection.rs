//! Datagrams and streams of hostile clients to a driver of QUIC and HTTP/3. A client's datagrams are cut, doubled, lost
//! or changed, its streams have any bytes, and there are datagrams that belong to no connection. The target checks that
//! nothing panics, and that another client is served meanwhile.
//!
//! The other client is the clock, too: when it has its answer, the driver has seen what came before.
#![no_main]

use std::{
    cell::RefCell,
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
    rc::Rc,
    sync::{Arc, LazyLock, mpsc},
    time::{Duration, Instant},
};

use arbitrary::Arbitrary;
use bytes::BytesMut;
use http::Response;
use ingress_http3::{
    frame::{HEADERS, write_head},
    qpack::{begin, write_line},
};
use ingress_quic::{Driver, ID_LENGTH, ID_NONCE, Ids, Keys, Limits, Options, Owner, Pressure};
use libfuzzer_sys::fuzz_target;
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, StreamId,
    crypto::rustls::QuicClientConfig,
};
use rustls::{RootCertStore, crypto::aws_lc_rs, pki_types::CertificateDer, version::TLS13};

/// Longest time for the other client's answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// Items of each kind; no fault needs more of them.
const MAX_ITEMS: usize = 16;
/// Turns of the hostile client: two for its handshake, two for its streams.
const TURNS: usize = 4;

#[derive(Arbitrary, Debug)]
struct Input {
    /// Whether the client must prove its address.
    proves: bool,
    faults: Vec<Fault>,
    packets: Vec<Packet>,
    streams: Vec<Stream>,
}

/// A fault of the client's datagram with this number.
#[derive(Arbitrary, Debug)]
struct Fault {
    datagram: u8,
    kind: Kind,
}

#[derive(Arbitrary, Debug)]
enum Kind {
    Lost,
    Doubled,
    /// Bits of one byte.
    Flipped(u16, u8),
    Cut(u16),
    Longer(Vec<u8>),
    /// Another one comes before it.
    Behind(Packet),
}

/// A datagram of no connection.
#[derive(Arbitrary, Debug)]
enum Packet {
    Long { first: u8, version: u8, destination: Id, source: Vec<u8>, rest: Vec<u8>, is_padded: bool },
    Short { first: u8, destination: Id, rest: Vec<u8> },
    Bytes(Vec<u8>),
}

/// A connection ID.
#[derive(Arbitrary, Debug)]
enum Id {
    Own([u8; ID_NONCE]),
    OfSibling([u8; ID_NONCE]),
    OfEnded([u8; ID_NONCE]),
    Bytes(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
struct Stream {
    is_request: bool,
    /// Whether a good head comes before the bytes.
    has_head: bool,
    bytes: Vec<u8>,
    end: End,
}

#[derive(Arbitrary, Debug)]
enum End {
    Finished,
    Reset(u16),
    Stopped(u16),
    Open,
}

// === the server ===

#[derive(Debug)]
struct Plain;

const WORKER: u8 = 0;
const SIBLING: u8 = 1;
const ENDED: u8 = 64;

fn id_of(worker: u8, nonce: [u8; ID_NONCE]) -> [u8; ID_LENGTH] {
    let mut id = [7; ID_LENGTH];
    id[..ID_NONCE].copy_from_slice(&nonce);
    id[ID_NONCE] = worker;
    id
}

impl Ids for Plain {
    fn issue(&self, nonce: [u8; ID_NONCE]) -> [u8; ID_LENGTH] {
        id_of(WORKER, nonce)
    }

    fn owner(&self, id: &[u8; ID_LENGTH]) -> Owner {
        match id[ID_NONCE] {
            _ if id[ID_NONCE + 1..] != [7; ID_LENGTH - ID_NONCE - 1] => Owner::Unknown,
            WORKER => Owner::Own,
            ENDED.. => Owner::Gone,
            worker => Owner::Sibling(worker),
        }
    }
}

struct Bench {
    server: SocketAddr,
    config: ClientConfig,
}

static BENCH: LazyLock<Bench> = LazyLock::new(|| {
    let made = rcgen::generate_simple_self_signed(["a.test".into()]).expect("a certificate");
    let certificate = made.cert.der().clone();
    let key = made.signing_key.serialize_der().try_into().expect("a key");
    let tls = rustls::ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .expect("TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .expect("a TLS configuration");
    let (started, address) = mpsc::channel();
    // The server runs as long as the process, and a panic of it ends the process.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, async move {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
            started.send(socket.local_addr().expect("an address")).expect("the bench waits");
            let options = Options {
                socket,
                tls,
                tls_at: Box::new(|_| None),
                tls_of: Box::new(|address| panic!("no TLS of {address}")),
                keys: Keys::derive(b"secret", "node").expect("keys"),
                ids: Arc::new(Plain),
                // Handshakes that broke must not keep later clients away, and silent clients take memory.
                limits: Limits {
                    half_open_max: 1 << 16,
                    handshake_timeout: Duration::from_millis(200),
                    idle_timeout: Duration::from_secs(1),
                    section_max: 2000,
                    ..Limits::default()
                },
                pressure: Box::new(|first| match first.remote.ip() {
                    ip if ip == std::net::Ipv4Addr::new(127, 0, 0, 2) => Pressure::Prove,
                    _ => Pressure::None,
                }),
                opened: Box::new(|_| Some(Rc::new(()))),
                moved: Box::new(|_| {}),
                forward: Box::new(|_, _| ()),
            };
            let echo = |request: http::Request<_>, _| async { Response::new(request.into_body()) };
            let (driver, _handle) = Driver::new(options, echo).expect("a driver");
            driver.run().await.expect("it runs");
        });
    });
    Bench { server: address.recv().expect("it starts"), config: client_config(certificate) }
});

fn client_config(certificate: CertificateDer<'static>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("a certificate");
    let mut tls = rustls::ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).expect("a configuration")))
}

// === clients ===

struct Client {
    socket: UdpSocket,
    endpoint: Endpoint,
    handle: ConnectionHandle,
    connection: Connection,
    /// Number of datagrams made so far.
    made: usize,
}

impl Client {
    fn new(address: &str) -> Self {
        let socket = UdpSocket::bind((address, 0)).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("set");
        let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None);
        let (handle, connection) =
            endpoint.connect(Instant::now(), BENCH.config.clone(), BENCH.server, "a.test").expect("an address");
        Self { socket, endpoint, handle, connection, made: 0 }
    }

    /// Sends what the connection has, with faults.
    fn send(&mut self, faults: &[Fault]) {
        let mut buffer = Vec::new();
        while let Some(transmit) = self.connection.poll_transmit(Instant::now(), 1, &mut buffer) {
            let mut datagram = buffer[..transmit.size].to_vec();
            let mut times = 1;
            let number = self.made;
            for fault in faults.iter().take(MAX_ITEMS).filter(|fault| usize::from(fault.datagram) == number) {
                match &fault.kind {
                    Kind::Lost => times = 0,
                    Kind::Doubled => times = 2,
                    Kind::Flipped(at, bits) => {
                        let at = usize::from(*at) % datagram.len();
                        datagram[at] ^= bits;
                    }
                    Kind::Cut(length) => datagram.truncate(usize::from(*length).max(1)),
                    Kind::Longer(more) => datagram.extend(more.iter().take(200)),
                    Kind::Behind(packet) => {
                        let mut merged = packet.bytes();
                        merged.append(&mut datagram);
                        merged.truncate(1472);
                        datagram = merged;
                    }
                }
            }
            for _ in 0..times {
                self.put(&datagram);
            }
            self.made += 1;
            buffer.clear();
        }
    }

    fn put(&self, datagram: &[u8]) {
        // A full buffer loses datagrams, as networks do.
        let _sent = self.socket.send_to(datagram, BENCH.server);
    }

    /// Takes one datagram; returns `false` if there is none in time.
    fn receive(&mut self) -> bool {
        let mut bytes = [0; 2048];
        let length = match self.socket.recv(&mut bytes) {
            Ok(length) => length,
            // libFuzzer's clock is a signal.
            Err(error) if error.kind() == ErrorKind::Interrupted => return true,
            Err(_) => return false,
        };
        let (now, datagram, mut reply) = (Instant::now(), BytesMut::from(&bytes[..length]), Vec::new());
        if let Some(DatagramEvent::ConnectionEvent(_, event)) =
            self.endpoint.handle(now, BENCH.server, None, None, datagram, &mut reply)
        {
            self.connection.handle_event(event);
        }
        true
    }

    fn turn(&mut self) {
        if self.connection.poll_timeout().is_some_and(|due| due <= Instant::now()) {
            self.connection.handle_timeout(Instant::now());
        }
        while let Some(event) = self.connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(self.handle, event) {
                self.connection.handle_event(event);
            }
        }
        while self.connection.poll().is_some() {}
    }

    /// Takes everything that is there, without waiting.
    fn receive_all(&mut self) {
        self.socket.set_nonblocking(true).expect("set");
        while self.receive() {}
        self.socket.set_nonblocking(false).expect("set");
        self.turn();
    }

    /// Asks, and waits for the whole response; returns `false` if the connection has ended.
    fn ask(&mut self) -> bool {
        let began = Instant::now();
        let mut stream = None;
        while !self.connection.is_closed() {
            assert!(began.elapsed() < DEADLINE, "the other client has no answer in {DEADLINE:?}");
            if stream.is_none() && !self.connection.is_handshaking() {
                stream = self.connection.streams().open(Dir::Bi);
                if let Some(stream) = stream {
                    let written = self.connection.send_stream(stream).write(&head());
                    assert!(written.is_ok_and(|length| length == head().len()));
                    self.connection.send_stream(stream).finish().expect("an open stream");
                }
            }
            self.send(&[]);
            if stream.is_some_and(|stream| self.has_answer(stream)) {
                self.send(&[]);
                return true;
            }
            self.receive();
            self.turn();
        }
        false
    }

    fn has_answer(&mut self, stream: StreamId) -> bool {
        let mut received = self.connection.recv_stream(stream);
        let Ok(mut chunks) = received.read(true) else { return true };
        let has_ended = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(_)) => {}
                Ok(None) => break true,
                Err(quinn_proto::ReadError::Blocked) => break false,
                Err(reset) => panic!("the other client was answered with {reset:?}"),
            }
        };
        let _transmits = chunks.finalize();
        has_ended
    }

    /// Opens a stream with its bytes.
    fn open(&mut self, stream: &Stream) {
        let dir = if stream.is_request { Dir::Bi } else { Dir::Uni };
        let Some(id) = self.connection.streams().open(dir) else { return };
        let bytes = if stream.has_head { [head(), stream.bytes.clone()].concat() } else { stream.bytes.clone() };
        let mut sender = self.connection.send_stream(id);
        let _written = sender.write(&bytes);
        match stream.end {
            End::Finished => drop(sender.finish()),
            End::Reset(code) => drop(sender.reset(u32::from(code).into())),
            End::Stopped(code) if stream.is_request => {
                drop(self.connection.recv_stream(id).stop(u32::from(code).into()));
            }
            End::Stopped(_) | End::Open => {}
        }
    }
}

/// HEADERS of a good request.
fn head() -> Vec<u8> {
    let mut section = BytesMut::new();
    begin(&mut section);
    for (name, value) in [(":method", "POST"), (":scheme", "https"), (":authority", "a.test"), (":path", "/")] {
        write_line(name, value.as_bytes(), false, &mut section);
    }
    let mut frame = Vec::new();
    write_head(HEADERS, section.len() as u64, &mut frame);
    frame.extend_from_slice(&section);
    frame
}

impl Id {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Own(nonce) => id_of(WORKER, *nonce).to_vec(),
            Self::OfSibling(nonce) => id_of(SIBLING, *nonce).to_vec(),
            Self::OfEnded(nonce) => id_of(ENDED, *nonce).to_vec(),
            Self::Bytes(bytes) => bytes.iter().copied().take(40).collect(),
        }
    }
}

impl Packet {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.iter().copied().take(1472).collect(),
            Self::Short { first, destination, rest } => [&[first & 0x7f][..], &destination.bytes(), rest].concat(),
            Self::Long { first, version, destination, source, rest, is_padded } => {
                let version = [1_u32, 0x6b33_43cf, 0, 0x0a0a_0a0a][usize::from(*version) % 4];
                let mut bytes = [&[first | 0x80][..], &version.to_be_bytes()].concat();
                for id in [destination.bytes(), source.iter().copied().take(40).collect()] {
                    bytes.push(id.len() as u8);
                    bytes.extend(id);
                }
                bytes.extend(rest.iter().take(1200));
                if *is_padded {
                    bytes.resize(bytes.len().max(1200), 0);
                }
                bytes
            }
        }
    }
}

thread_local! {
    static OTHER: RefCell<Option<Client>> = const { RefCell::new(None) };
}

/// Asks by the other client, which connects again after a pause of the fuzzer.
fn ask_by_other() {
    OTHER.with_borrow_mut(|other| {
        if !other.get_or_insert_with(|| Client::new("127.0.0.1")).ask() {
            assert!(other.insert(Client::new("127.0.0.1")).ask(), "a new connection of the other client has ended");
        }
    });
}

fuzz_target!(|input: Input| {
    let Input { proves, faults, packets, streams } = input;
    let mut client = Client::new(if proves { "127.0.0.2" } else { "127.0.0.3" });
    let mut packets = packets.iter().take(MAX_ITEMS);
    let mut is_asked = false;
    for _ in 0..TURNS {
        client.send(&faults);
        if let Some(packet) = packets.next() {
            client.put(&packet.bytes());
        }
        ask_by_other();
        client.receive_all();
        if !is_asked && !client.connection.is_handshaking() && !client.connection.is_closed() {
            is_asked = true;
            streams.iter().take(MAX_ITEMS).for_each(|stream| client.open(stream));
        }
    }
    packets.for_each(|packet| client.put(&packet.bytes()));
    // A client that says goodbye leaves no state for the next input.
    client.connection.close(Instant::now(), 0_u32.into(), bytes::Bytes::new());
    client.send(&faults);
    ask_by_other();
});
