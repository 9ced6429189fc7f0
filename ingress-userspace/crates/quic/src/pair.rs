//! Client and server of one connection for tests, without a network.

use std::{
    collections::{HashMap, VecDeque},
    iter,
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig, TransportConfig,
    crypto::rustls::QuicClientConfig,
};
use rustls::{RootCertStore, crypto::aws_lc_rs, version::TLS13};

use crate::{
    Keys, Limits,
    amplification::{Arrival, Unproven},
    config,
    conn::Conn,
    connection::State,
    shared::{Counters, Peer, Shared},
};

const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 443);

pub(crate) fn client_at(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Client and server of one connection, without a network. Time is that of the test.
pub(crate) struct Pair {
    pub(crate) now: Instant,
    pub(crate) client: (Endpoint, ConnectionHandle, Connection),
    pub(crate) server: Endpoint,
    pub(crate) handle: ConnectionHandle,
    pub(crate) conn: Rc<Conn>,
    /// Bytes of the client's first datagrams.
    pub(crate) received: usize,
}

/// The beginning of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    /// Names in the server's certificate.
    pub(crate) names: usize,
    /// Length of the client's datagrams.
    pub(crate) length: u16,
}

/// The way in which the server's timers end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timers {
    OfState,
    OfQuinn,
}

fn shared(limits: Limits) -> Rc<Shared> {
    Rc::new(Shared {
        limits: std::cell::RefCell::new(Rc::new(limits)),
        opened: Box::new(|_| Some(Rc::new(()))),
        moved: Box::new(|_| {}),
        counters: Counters::default(),
        keys: Keys::derive(b"secret", "node").expect("keys"),
        dirty: Default::default(),
        waker: Default::default(),
        is_driving: Default::default(),
        drain: Default::default(),
        handshakes: std::cell::RefCell::new(HashMap::new()),
        injected: std::cell::RefCell::new(VecDeque::new()),
        replaced: Default::default(),
    })
}

impl Pair {
    /// Returns a connection on which nothing is in flight.
    pub(crate) fn connected() -> Self {
        let mut pair = Self::begun(&Begun { names: 1, length: 1200 });
        // MTU discovery and delayed ACKs have ended then.
        for _ in 0..200 {
            pair.exchange();
        }
        pair
    }

    /// Returns a connection of which the server has the first packets.
    pub(crate) fn begun(begun: &Begun) -> Self {
        let Begun { names, length } = *begun;
        let now = Instant::now();
        let others = (1..names).map(|number| format!("{number}.example.com"));
        let names: Vec<_> = iter::once("localhost".to_owned()).chain(others).collect();
        let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
        let key = made.signing_key.serialize_der().try_into().expect("a key");
        let provider = Arc::new(aws_lc_rs::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .expect("TLS 1.3")
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .expect("a TLS configuration");
        // The timers of the tests are those of probes alone.
        let limits = Limits { idle_timeout: Duration::from_secs(600), ..Limits::default() };
        let shared = shared(limits);
        let limits = shared.limits.borrow().clone();
        let server = config::server(tls, &shared.keys, &limits).expect("a configuration");
        let mut server = Endpoint::new(Arc::new(EndpointConfig::default()), Some(server), true, None);
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).expect("a certificate");
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .expect("TLS 1.3")
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).expect("a configuration")));
        let mut transport = TransportConfig::default();
        transport.initial_mtu(length).min_mtu(length);
        config.transport_config(Arc::new(transport));
        let mut client = Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None);
        let (client_handle, mut connection) = client.connect(now, config, SERVER, "localhost").expect("a connection");
        let mut conn = None;
        let mut received = 0;
        let mut hello = Vec::new();
        while let Some(transmit) = connection.poll_transmit(now, 1, &mut hello) {
            let data = BytesMut::from(&hello[..transmit.size]);
            hello.clear();
            received += data.len();
            let arrival = Arrival::of(&data);
            let event = server.handle(now, client_at(1), Some(SERVER.ip()), None, data, &mut Vec::new());
            match (event, &conn) {
                (Some(DatagramEvent::NewConnection(incoming)), None) => {
                    let (handle, quic) = server.accept(incoming, now, &mut Vec::new(), None).expect("a connection");
                    let peer = Rc::new(Peer::new(client_at(1), Some(SERVER.ip())));
                    let unproven = Some(Unproven::new(arrival));
                    let state = State::new(quic, Rc::clone(&shared), Rc::clone(&peer), unproven, now);
                    let made = Conn::new(handle.0, Rc::clone(&peer), Rc::clone(&shared), state);
                    peer.belongs_to(&made);
                    conn = Some((handle, made));
                }
                (Some(DatagramEvent::ConnectionEvent(_, event)), Some((_, conn))) => {
                    conn.with(|state| state.take(event, arrival, client_at(1)));
                }
                _ => panic!("a first packet"),
            }
        }
        let (handle, conn) = conn.expect("a connection");
        Self { now, client: (client, client_handle, connection), server, handle, conn, received }
    }

    /// Lets both sides send once, over a path that loses nothing, and 10 ms pass.
    pub(crate) fn exchange(&mut self) {
        self.turn(Timers::OfState);
        let sent = self.server_sends();
        self.client_takes(sent);
        self.client.2.handle_timeout(self.now);
        while self.client.2.poll().is_some() {}
        for datagram in self.client_sends() {
            self.server_takes(datagram, 1);
        }
        self.now += Duration::from_millis(10);
    }

    /// Gives the server its turn.
    pub(crate) fn turn(&mut self, timers: Timers) {
        let (now, conn) = (self.now, Rc::clone(&self.conn));
        conn.with(|state| {
            if timers == Timers::OfQuinn && state.quic.poll_timeout().is_some_and(|deadline| deadline <= now) {
                state.quic.handle_timeout(now);
            }
            state.turn(&conn, now);
        });
        while let Some(event) = conn.with(|state| state.quic.poll_endpoint_events()) {
            if let Some(event) = self.server.handle_event(self.handle, event) {
                conn.with(|state| state.quic.handle_event(event));
            }
        }
    }

    pub(crate) fn server_sends(&self) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        iter::from_fn(|| {
            let transmit = self.conn.with(|state| state.poll_transmit(self.now, 1, &mut out))?;
            let datagram = out[..transmit.size].to_vec();
            out.clear();
            Some(datagram)
        })
        .collect()
    }

    pub(crate) fn client_takes(&mut self, datagrams: Vec<Vec<u8>>) {
        let (endpoint, handle, connection) = &mut self.client;
        for datagram in datagrams {
            let data = BytesMut::from(&datagram[..]);
            if let Some(DatagramEvent::ConnectionEvent(_, event)) =
                endpoint.handle(self.now, SERVER, None, None, data, &mut Vec::new())
            {
                connection.handle_event(event);
            }
        }
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
    }

    pub(crate) fn client_sends(&mut self) -> Vec<Vec<u8>> {
        let (now, connection) = (self.now, &mut self.client.2);
        let mut out = Vec::new();
        iter::from_fn(|| {
            let transmit = connection.poll_transmit(now, 1, &mut out)?;
            let datagram = out[..transmit.size].to_vec();
            out.clear();
            Some(datagram)
        })
        .collect()
    }

    pub(crate) fn server_takes(&mut self, datagram: Vec<u8>, port: u16) {
        let (data, arrival) = (BytesMut::from(&datagram[..]), Arrival::of(&datagram));
        let event = self.server.handle(self.now, client_at(port), Some(SERVER.ip()), None, data, &mut Vec::new());
        if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
            self.conn.with(|state| state.take(event, arrival, client_at(port)));
        }
    }

    /// Lets the client speak from another port, and send the beginning of a request so long that the server may answer.
    pub(crate) fn client_moves(&mut self, port: u16, length: usize) {
        /// An unknown frame of 16 KiB - 1.
        const FRAME: [u8; 3] = [0x21, 0x7f, 0xff];
        let connection = &mut self.client.2;
        connection.ping();
        if length > 0 {
            let stream = connection.streams().open(quinn_proto::Dir::Bi).expect("a stream");
            let bytes = [&FRAME[..], &vec![0; length]].concat();
            connection.send_stream(stream).write(&bytes).expect("written");
        }
        for datagram in self.client_sends() {
            self.server_takes(datagram, port);
        }
        assert_eq!(self.conn.with(|state| state.quic.remote_address()), client_at(port));
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.conn.with(|state| state.quic.poll_timeout()).expect("a timer")
    }
}
