//! Timers of QUIC around a change of the client's address. quinn-proto counts packets in flight by address, but keeps the
//! timer of probes for those of the old one. If that ends before a packet was sent to the new address, a debug build takes
//! it for a fault, and a release build waits twice as long for the next probe. So timers wait for packets. A client that is
//! back at its old address counts as one at a new address, for quinn-proto and here.

use std::time::Instant;

use quinn_proto::{ConnectionEvent, Transmit};

use crate::connection::State;

/// Transmissions after a change, of which one is on the new path. The first may be a question to the address before.
const AWAITED: u8 = 2;

impl State {
    /// Takes an event of the endpoint, most of which are datagrams of the client.
    pub(crate) fn take(&mut self, event: ConnectionEvent) {
        let before = self.path();
        self.quic.handle_event(event);
        if self.path() != before {
            self.awaited = AWAITED;
        }
    }

    /// Does the work of QUIC's timers that have ended.
    pub(crate) fn expire_quic(&mut self, now: Instant) {
        if self.quic_deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        let before = self.path();
        self.quic.handle_timeout(now);
        if self.path() != before {
            // The new address did not answer, and the one before counts again. Its probes need a packet, too.
            self.awaited = AWAITED;
            self.quic.ping();
        }
    }

    /// Returns when QUIC's timers end; `None` while they wait for a packet.
    pub(crate) fn quic_deadline(&mut self) -> Option<Instant> {
        if self.awaited > 0 { None } else { self.quic.poll_timeout() }
    }

    /// Writes the next packets, in up to `segments` datagrams.
    pub(crate) fn poll_transmit(&mut self, now: Instant, segments: usize, out: &mut Vec<u8>) -> Option<Transmit> {
        let transmit = self.quic.poll_transmit(now, segments, out);
        self.awaited = if transmit.is_some() { self.awaited.saturating_sub(1) } else { 0 };
        transmit
    }

    /// Returns the identity of the path to the client, for one comparison: that of its congestion control, which each path
    /// has for itself. The address does not tell, as a client may be back at it, on a new path.
    fn path(&self) -> *const () {
        std::ptr::from_ref(self.quic.congestion_state()).cast()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{HashMap, VecDeque},
        net::{Ipv4Addr, SocketAddr},
        panic::{AssertUnwindSafe, catch_unwind},
        rc::Rc,
        sync::Arc,
        time::Duration,
    };

    use bytes::BytesMut;
    use quinn_proto::{
        ClientConfig, Connection, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig,
        crypto::rustls::QuicClientConfig,
    };
    use rustls::{RootCertStore, crypto::aws_lc_rs, version::TLS13};

    use super::*;
    use crate::{
        Keys, Limits, config,
        conn::Conn,
        shared::{Counters, Peer, Shared},
    };

    const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 443);

    fn client_at(port: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, port).into()
    }

    /// Client and server of one connection, without a network. Time is that of the test.
    struct Pair {
        now: Instant,
        client: (Endpoint, ConnectionHandle, Connection),
        server: Endpoint,
        handle: ConnectionHandle,
        conn: Rc<Conn>,
    }

    /// The way in which the server's timers end.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Timers {
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
        fn connected() -> Self {
            let now = Instant::now();
            let made = rcgen::generate_simple_self_signed(["localhost".into()]).expect("a certificate");
            let key = made.signing_key.serialize_der().try_into().expect("a key");
            let provider = Arc::new(aws_lc_rs::default_provider());
            let tls = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
                .with_protocol_versions(&[&TLS13])
                .expect("TLS 1.3")
                .with_no_client_auth()
                .with_single_cert(vec![made.cert.der().clone()], key)
                .expect("a TLS configuration");
            // The timers below are those of probes alone.
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
            let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).expect("a configuration")));
            let mut client = Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None);
            let (client_handle, mut connection) =
                client.connect(now, config, SERVER, "localhost").expect("a connection");
            let mut accepted = None;
            let mut hello = Vec::new();
            while let Some(transmit) = connection.poll_transmit(now, 1, &mut hello) {
                let data = BytesMut::from(&hello[..transmit.size]);
                hello.clear();
                let event = server.handle(now, client_at(1), Some(SERVER.ip()), None, data, &mut Vec::new());
                match (event, &mut accepted) {
                    (Some(DatagramEvent::NewConnection(incoming)), accepted) => {
                        *accepted = server.accept(incoming, now, &mut Vec::new(), None).ok();
                    }
                    (Some(DatagramEvent::ConnectionEvent(_, event)), Some((_, quic))) => quic.handle_event(event),
                    _ => panic!("a first packet"),
                }
            }
            let (handle, quic) = accepted.expect("a connection");
            let peer = Rc::new(Peer::new(client_at(1), Some(SERVER.ip())));
            let state = State::new(quic, Rc::clone(&shared), Rc::clone(&peer), now);
            let conn = Conn::new(handle.0, Rc::clone(&peer), shared, state);
            peer.belongs_to(&conn);
            let mut pair = Self { now, client: (client, client_handle, connection), server, handle, conn };
            // MTU discovery and delayed ACKs have ended then.
            for _ in 0..200 {
                pair.turn(Timers::OfState);
                let sent = pair.server_sends();
                pair.client_takes(sent);
                pair.client.2.handle_timeout(pair.now);
                while pair.client.2.poll().is_some() {}
                for datagram in pair.client_sends() {
                    pair.server_takes(datagram, 1);
                }
                pair.now += Duration::from_millis(10);
            }
            pair
        }

        /// Gives the server its turn.
        fn turn(&mut self, timers: Timers) {
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

        fn server_sends(&self) -> Vec<Vec<u8>> {
            let mut out = Vec::new();
            std::iter::from_fn(|| {
                let transmit = self.conn.with(|state| state.poll_transmit(self.now, 1, &mut out))?;
                let datagram = out[..transmit.size].to_vec();
                out.clear();
                Some(datagram)
            })
            .collect()
        }

        fn client_takes(&mut self, datagrams: Vec<Vec<u8>>) {
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

        fn client_sends(&mut self) -> Vec<Vec<u8>> {
            let (now, connection) = (self.now, &mut self.client.2);
            let mut out = Vec::new();
            std::iter::from_fn(|| {
                let transmit = connection.poll_transmit(now, 1, &mut out)?;
                let datagram = out[..transmit.size].to_vec();
                out.clear();
                Some(datagram)
            })
            .collect()
        }

        fn server_takes(&mut self, datagram: Vec<u8>, port: u16) {
            let data = BytesMut::from(&datagram[..]);
            let event = self.server.handle(self.now, client_at(port), Some(SERVER.ip()), None, data, &mut Vec::new());
            if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
                self.conn.with(|state| state.take(event));
            }
        }

        /// Lets the client speak from another port, and send the beginning of a request so long that the server may answer.
        fn client_moves(&mut self, port: u16, length: usize) {
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

        fn deadline(&self) -> Instant {
            self.conn.with(|state| state.quic.poll_timeout()).expect("a timer")
        }
    }

    /// Ports of a client that moves away from port 1, and of one that is back before the server's turn.
    const AWAY: &[u16] = &[2];
    const BACK: &[u16] = &[2, 1];

    /// The client moves from port to port when a probe of its old address is due.
    fn move_with_a_due_probe(ports: &[u16], timers: Timers) -> Pair {
        let mut pair = Pair::connected();
        pair.conn.with(|state| state.quic.ping());
        assert!(!pair.server_sends().is_empty(), "a packet that is lost");
        pair.now = pair.deadline();
        for port in ports {
            pair.client_moves(*port, 0);
        }
        pair.turn(timers);
        pair
    }

    /// The client moves from port to port, and is not heard of again.
    fn move_without_an_answer(ports: &[u16], timers: Timers) -> Pair {
        let mut pair = Pair::connected();
        for port in ports {
            pair.client_moves(*port, 8_000);
        }
        let begun = pair.now;
        // Each timer is handled less late than the one before it, so that the second probe is due only after the old
        // address counts again.
        let mut late = Duration::from_millis(16);
        while pair.now < begun + Duration::from_secs(20) {
            pair.turn(timers);
            let _lost = pair.server_sends();
            pair.now = pair.now.max(pair.deadline() + late);
            late /= 2;
        }
        assert_eq!(pair.conn.with(|state| state.quic.remote_address()), client_at(1), "the proven address");
        pair
    }

    #[test]
    fn probes_of_an_old_address_are_no_fault() {
        for ports in [AWAY, BACK] {
            let mut pair = move_with_a_due_probe(ports, Timers::OfState);
            let sent = pair.server_sends();
            pair.client_takes(sent);
            assert!(pair.deadline() >= pair.now, "the timers of the new address");
            pair.turn(Timers::OfState);
            assert_eq!(Some(pair.conn.peer.current()), ports.last().map(|port| client_at(*port)));
        }
    }

    #[test]
    fn a_question_to_the_address_before_ends_no_waiting() {
        for ports in [AWAY, BACK] {
            let mut pair = move_with_a_due_probe(ports, Timers::OfState);
            // The socket takes one transmission.
            let first = pair.conn.with(|state| state.poll_transmit(pair.now, 1, &mut Vec::new()));
            assert_eq!(first.map(|sent| sent.destination), Some(client_at(1)), "{ports:?}");
            pair.turn(Timers::OfState);
            assert_eq!(pair.conn.with(State::quic_deadline), None, "{ports:?}");
            assert!(!pair.server_sends().is_empty(), "{ports:?}");
            assert!(pair.conn.with(State::quic_deadline).is_some(), "{ports:?}");
        }
    }

    #[test]
    fn an_address_without_an_answer_is_given_up() {
        for ports in [AWAY, BACK] {
            let pair = move_without_an_answer(ports, Timers::OfState);
            assert_eq!(pair.conn.peer.current(), client_at(1), "{ports:?}");
        }
    }

    /// Tells when quinn-proto needs this file no more.
    #[cfg(debug_assertions)]
    #[test]
    fn quinn_proto_takes_these_probes_for_faults() {
        for (name, scene) in
            [("a due probe", move_with_a_due_probe as fn(_, _) -> _), ("no answer", move_without_an_answer)]
        {
            for ports in [AWAY, BACK] {
                let result = catch_unwind(AssertUnwindSafe(|| scene(ports, Timers::OfQuinn)));
                assert!(result.is_err(), "{name} {ports:?}: quinn-proto mends it");
            }
        }
    }
}
