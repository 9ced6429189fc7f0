//! Floods of QUIC beside good clients: short packets with unknown connection IDs, and first packets from one source and
//! from forged ones. In CI they prove an order and bounds, which do not depend on the speed of the build: open connections
//! go on, new clients get in, and half-open connections and memory are bounded. With `XDP_INGRESS_HTTP3_FLOOD=SECONDS` they
//! are sent as fast as possible, for that long each, and the good clients must keep 90 % of their goodput.

use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use ingress_lab::{
    client::{Ask, block_on},
    memory,
    topology::{Family, node_addr},
};
use quinn_proto::{ClientConfig, Endpoint, EndpointConfig, crypto::rustls::QuicClientConfig};
use rustls::{RootCertStore, crypto::aws_lc_rs, version::TLS13};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{
    http3::{metric, network, start},
    http3_client::{Client, MovingLoad},
    net::{Net, http},
};

/// First packets of different connections: more than all workers take without proof of the address.
const FIRSTS: usize = 1500;
/// Half-open connections of unproven addresses: a quarter of 1,024 for each of two workers. The good clients come on top.
const HALF_OPEN_MAX: u64 = 2 * 256 + 16;
/// The series that counts them.
const HALF_OPEN: &str = "xdp_ingress_http3_connections{state=\"handshake\"}";
/// Memory of half-open connections, of their packets, and of allocators that keep some.
const GROWTH_MAX: u64 = 100 << 20;
/// The network of the floods' sources (RFC 2544), which the router drops. Answers to silent addresses on the node's own
/// link would wait for these, in its kernel.
const FORGED: [u8; 4] = [198, 18, 0, 0];
/// Handshakes that a new client may begin until one succeeds. Forged first packets crowd its own out, by chance.
const TRIES: usize = 3;
/// Share of the goodput that good clients keep.
const KEPT: f64 = 0.9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flood {
    /// Short packets with IDs that no node issued.
    UnknownIds,
    /// First packets of one source.
    OneSource,
    /// First packets of 200 sources that do not exist.
    Forged,
}

impl Flood {
    /// Returns the pause after ten datagrams. A development build needs a millisecond for a Retry.
    fn pause(self) -> Duration {
        Duration::from_millis(if self == Self::Forged { 5 } else { 1 })
    }

    /// Returns a socket of the source with this number. Its address belongs to no machine.
    fn socket(self, number: usize) -> std::io::Result<UdpSocket> {
        let last = if self == Self::Forged { number % 200 } else { 0 };
        let [first, second, third, _] = FORGED;
        let address = Ipv4Addr::new(first, second, third, u8::try_from(last).unwrap_or(0) + 1);
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_ip_transparent_v4(true)?;
        socket.bind(&SocketAddr::from((address, 0)).into())?;
        Ok(socket.into())
    }

    /// Sends until `stop`; adds the datagrams to `sent`.
    fn send(self, firsts: &[Vec<u8>], is_paced: bool, stop: &AtomicBool, sent: &AtomicU64) -> std::io::Result<()> {
        let to = SocketAddr::new(node_addr(Family::V4), 443);
        let mut random = fastrand::Rng::with_seed(7);
        for (number, first) in firsts.chunks(10).cycle().enumerate() {
            if stop.load(Relaxed) {
                return Ok(());
            }
            let socket = self.socket(number)?;
            for first in first {
                let result = match self {
                    Self::UnknownIds => {
                        let mut short = [0; 60];
                        random.fill(&mut short);
                        short[0] = 0x40;
                        socket.send_to(&short, to)
                    }
                    Self::OneSource | Self::Forged => socket.send_to(first, to),
                };
                // Full queues lose datagrams.
                sent.fetch_add(u64::from(result.is_ok()), Relaxed);
            }
            if is_paced {
                thread::sleep(self.pause());
            }
        }
        Ok(())
    }
}

/// A running flood, until the value is dropped.
struct Sender {
    is_over: Arc<AtomicBool>,
    /// Number of datagrams.
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Sender {
    fn start(net: &Net, flood: Flood, firsts: &Arc<Vec<Vec<u8>>>) -> Self {
        let (is_over, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (firsts, theirs, count) = (Arc::clone(firsts), Arc::clone(&is_over), Arc::clone(&sent));
        let is_paced = measured().is_none();
        let work = move || Ok(flood.send(&firsts, is_paced, &theirs, &count)?);
        let thread = net.topology.client.thread("http3-flood", work).expect("a thread");
        Self { is_over, sent, thread: Some(thread) }
    }

    /// Ends the flood. Returns the number of datagrams.
    fn end(mut self) -> u64 {
        self.is_over.store(true, Relaxed);
        let thread = self.thread.take().expect("it runs");
        thread.join().expect("no panic").expect("it sends");
        self.sent.load(Relaxed)
    }
}

impl Drop for Sender {
    /// Other tests follow, also after a failure.
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        let _after_a_failure = self.thread.take().map(JoinHandle::join);
    }
}

/// Returns first packets, one for each connection.
fn firsts() -> Vec<Vec<u8>> {
    let mut provider = aws_lc_rs::default_provider();
    // A hello of one packet.
    provider.kx_groups = vec![aws_lc_rs::kx_group::X25519];
    let mut tls = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).expect("a configuration")));
    let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None);
    let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 443).into();
    let mut first = || {
        let now = Instant::now();
        let (_, mut connection) = endpoint.connect(now, config.clone(), to, "web.test").expect("an address");
        let mut datagram = Vec::new();
        let transmit = connection.poll_transmit(now, 1, &mut datagram).expect("a first packet");
        datagram.truncate(transmit.size);
        datagram
    };
    (0..FIRSTS).map(|_| first()).collect()
}

/// Seconds of each phase, if the floods are measured.
fn measured() -> Option<Duration> {
    let seconds = std::env::var("XDP_INGRESS_HTTP3_FLOOD").ok()?;
    Some(Duration::from_secs(seconds.parse().expect("XDP_INGRESS_HTTP3_FLOOD is a number of seconds")))
}

/// Returns the responses in a second, and the most half-open connections meanwhile.
fn goodput(net: &Net, load: &MovingLoad) -> (f64, u64) {
    let (began, before, mut half_open) = (Instant::now(), load.answered(), 0);
    let is_over = || match measured() {
        Some(length) => began.elapsed() >= length,
        None => load.answered() >= before + 100,
    };
    while !is_over() {
        load.pass(10);
        half_open = half_open.max(metric(net, HALF_OPEN).unwrap_or(0));
    }
    ((load.answered() - before) as f64 / began.elapsed().as_secs_f64(), half_open)
}

/// Returns the number of first packets with this result.
fn attempts(net: &Net, result: &str) -> u64 {
    metric(net, &format!("xdp_ingress_http3_connection_attempts_total{{result=\"{result}\"}}")).unwrap_or(0)
}

#[test]
fn floods_of_quic_leave_good_clients_and_tcp_alone() {
    let Some((net, trust)) = network("h3-flood") else { return };
    let route = format!("route add blackhole {}/24", Ipv4Addr::from(FORGED));
    net.topology.router.ip(&route).expect("the router drops the answers");
    let process = start(&net, "first");
    let pid = process.process.pid().cast_unsigned();
    let firsts = Arc::new(firsts());
    let load = MovingLoad::start(&net, &trust, 4);
    assert!(metric(&net, HALF_OPEN).is_some(), "half-open connections are counted");
    let (quiet, _) = goodput(&net, &load);
    let memory_before = memory::of(pid).expect("it runs");
    for flood in [Flood::UnknownIds, Flood::OneSource, Flood::Forged] {
        let before = ["retry", "dropped"].map(|result| attempts(&net, result));
        let sender = Sender::start(&net, flood, &firsts);
        // All of them once.
        ingress_lab::until("the flood", || (sender.sent.load(Relaxed) >= FIRSTS as u64).then_some(()))
            .expect("it is sent");
        let (during, half_open) = goodput(&net, &load);
        let (answer, _) = net.ask(&net.topology.client, http(Family::V4), &Ask::get("web.test", "/"));
        assert!(answer.status.is_success(), "{flood:?}: TCP answers {}", answer.status);
        let connected = || net.topology.client.run(|| block_on(Client::connect(&trust, Family::V4)));
        let tries = (1..=TRIES).find(|_try| connected().is_ok());
        assert!(tries.is_some(), "{flood:?}: no new client gets in");
        if flood == Flood::Forged {
            for (result, before) in ["retry", "dropped"].into_iter().zip(before) {
                ingress_lab::until(result, || (attempts(&net, result) > before).then_some(()))
                    .expect("clients must prove their addresses, and the rooms are bounded");
            }
            assert!(half_open > 0, "the flood begins handshakes");
        }
        let sent = sender.end();
        let growth = memory::of(pid).expect("it runs").saturating_sub(memory_before);
        println!(
            "{flood:?}: {} datagrams, goodput {during:.0}/s of {quiet:.0}/s, {half_open} half-open, {tries:?} handshakes of \
             a new client, {} KiB more memory",
            sent,
            growth >> 10
        );
        assert!(half_open <= HALF_OPEN_MAX, "{flood:?}: {half_open} half-open connections");
        assert!(growth <= GROWTH_MAX, "{flood:?}: {growth} bytes more memory");
        if measured().is_some() {
            assert!(during >= KEPT * quiet, "{flood:?}: {during:.0}/s of {quiet:.0}/s");
        }
    }
    println!("{} answered by Retry, {} dropped", attempts(&net, "retry"), attempts(&net, "dropped"));
    let report = load.stop();
    assert!(report.failures.is_empty(), "{:#?}", report.failures);
    assert_eq!(metric(&net, "xdp_ingress_http3_panics_total"), Some(0));
}
