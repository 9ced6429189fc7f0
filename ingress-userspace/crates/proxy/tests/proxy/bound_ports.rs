//! TCP services without kernel steering: their ports are bound, and come and go with their rows.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream},
    sync::Arc,
    thread::{self, JoinHandle},
};

use ingress_common::HostL7Cell;
use ingress_model::{Endpoint, HostId, ProxyVersion, StreamPort, StreamService, Transport, Upstream, UpstreamKey};
use ingress_proxy::{
    ListenMode, ListenOptions, Options, PortStatsView, Server, Shared, Snapshot, keep_stream_ports_open,
};
use tokio::sync::oneshot;

use ingress_proxy_testing::free_ports::free_port;
use ingress_proxy_testing::{DEADLINE, Origin, Table, wait_until};

/// The table in which `ports` lead to `pod`.
fn table(ports: &[u16], pod: &Origin, proxy_header: Option<ProxyVersion>) -> Table {
    let mut table = Table::default();
    let upstream = UpstreamKey::new("default", "db", "5432");
    let endpoints = vec![Endpoint { address: pod.address }];
    table.0.upstreams.insert(upstream.clone(), Upstream { endpoints, ..Upstream::default() }.into());
    for &number in ports {
        let service = StreamService { upstream: upstream.clone(), accepts_proxy_protocol: false, proxy_header };
        table.0.streams.insert(StreamPort { transport: Transport::Tcp, number }, service);
    }
    table
}

/// A proxy with two workers and a main thread that only keeps ports open.
struct Service {
    shared: Arc<Shared>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    fn start() -> Self {
        let cells: &'static [HostL7Cell] = Box::leak((0..2).map(|_| HostL7Cell::default()).collect());
        let shared = Arc::new(Shared::new(cells, None).expect("shared state"));
        let mode = ListenMode::Bind { address: Ipv4Addr::LOCALHOST.into(), http_port: 0, https_port: 0 };
        let listeners = ingress_proxy::bind(ListenOptions { mode, workers: 2, reuse: false }).expect("listeners");
        let (end, asked) = oneshot::channel::<()>();
        let served = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let server = Server::start(served, listeners, &Options::default()).expect("started");
                tokio::select! {
                    never = keep_stream_ports_open(&server) => match never {},
                    _ = asked => {}
                }
                server.stop().await;
            });
        });
        Self { shared, end: Some(end), thread: Some(thread) }
    }

    fn publish(&self, table: &Table) {
        let (mut snapshot, problems) = Snapshot::compile(Some(&self.shared.snapshot()), &table.0, |_| Some(HostId(1)));
        snapshot.number_streams(|_| HostId(1));
        assert_eq!(problems, []);
        self.shared.publish(snapshot);
    }

    fn ports(&self) -> PortStatsView {
        self.shared.stats().tcp_ports
    }

    /// Waits until so many ports are open, and so many cannot be.
    fn wait_ports(&self, open: usize, closed: usize) {
        wait_until("ports are as they should be", || self.ports() == PortStatsView { open, closed });
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.end.take());
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// Sends all bytes back at once.
fn echo() -> Origin {
    Origin::start(|peer| {
        while peer.more() {
            let bytes = peer.take();
            peer.send(bytes);
        }
    })
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    Ok(stream)
}

/// Sends `hello` and returns the answer, and the port that it was sent from.
fn ask(to: SocketAddr) -> io::Result<(u16, Vec<u8>)> {
    let (mut stream, mut answer) = (connect(to)?, Vec::new());
    stream.write_all(b"hello")?;
    stream.shutdown(Shutdown::Write)?;
    stream.read_to_end(&mut answer)?;
    Ok((stream.local_addr()?.port(), answer))
}

fn answers(port: u16) -> bool {
    ask(local(port)).is_ok_and(|(_, answer)| answer == b"hello")
}

#[test]
fn ports_open_and_close_with_their_rows() {
    let (pod, port) = (echo(), free_port());
    let service = Service::start();
    service.publish(&table(&[port], &pod, Some(ProxyVersion::V1)));
    service.wait_ports(1, 0);
    // Either worker may accept.
    for _ in 0..8 {
        let (from, answer) = ask(local(port)).expect("an answer");
        let expect = format!("PROXY TCP4 127.0.0.1 127.0.0.1 {from} {port}\r\nhello");
        assert_eq!(String::from_utf8_lossy(&answer), expect);
    }
    service.publish(&Table::default());
    service.wait_ports(0, 0);
    assert_eq!(ask(local(port)).expect_err("closed").kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn proxy_headers_have_the_address_family_of_the_client() {
    let (pod, port) = (echo(), free_port());
    let service = Service::start();
    service.publish(&table(&[port], &pod, Some(ProxyVersion::V2)));
    service.wait_ports(1, 0);
    for address in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        let (from, answer) = ask(SocketAddr::new(address, port)).expect("an answer");
        let (kind, octets) = match address {
            IpAddr::V4(v4) => ([0x21_u8, 0x11, 0, 12], v4.octets().to_vec()),
            IpAddr::V6(v6) => ([0x21_u8, 0x21, 0, 36], v6.octets().to_vec()),
        };
        let ports = [from.to_be_bytes(), port.to_be_bytes()].concat();
        let expect = [&b"\r\n\r\n\0\r\nQUIT\n"[..], &kind, &octets, &octets, &ports, b"hello"].concat();
        assert_eq!(answer.escape_ascii().to_string(), expect.escape_ascii().to_string());
    }
}

#[test]
fn a_port_in_use_is_opened_once_it_is_free() {
    let (pod, ports) = (echo(), [free_port(), free_port()]);
    // A socket that would share the port, and has it on one address alone.
    let other = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    other.set_reuse_port(true).expect("shared");
    other.bind(&local(ports[0]).into()).expect("bound");
    other.listen(1).expect("listening");
    let service = Service::start();
    service.publish(&table(&ports, &pod, None));
    service.wait_ports(1, 1);
    assert!(answers(ports[1]), "one that cannot be had costs no other");
    drop(other);
    // Each snapshot triggers another attempt.
    service.publish(&table(&ports, &pod, None));
    service.wait_ports(2, 0);
    assert!(ports.into_iter().all(answers));
}

#[test]
fn a_closed_port_can_be_reopened_at_once() {
    let (pod, port) = (echo(), free_port());
    let (with, without) = (table(&[port], &pod, None), Table::default());
    let service = Service::start();
    for _ in 0..30 {
        service.publish(&with);
        wait_until("the row is seen", || service.ports() != PortStatsView::default());
        assert_eq!(service.ports(), PortStatsView { open: 1, closed: 0 }, "nobody has it any more");
        assert!(answers(port));
        service.publish(&without);
        service.wait_ports(0, 0);
        assert!(connect(local(port)).is_err());
    }
    // A row that is gone so briefly that it may not be missed.
    service.publish(&with);
    for _ in 0..100 {
        service.publish(&without);
        service.publish(&with);
        wait_until("it answers", || {
            assert_eq!(service.ports().closed, 0, "nobody else has it");
            answers(port)
        });
    }
}

#[test]
fn streams_outlive_their_port() {
    let (pod, port) = (echo(), free_port());
    let (with, without) = (table(&[port], &pod, None), Table::default());
    let service = Service::start();
    service.publish(&with);
    service.wait_ports(1, 0);
    let mut stream = connect(local(port)).expect("connected");
    let mut goes_on = |text: &[u8]| {
        let mut answer = vec![0; text.len()];
        stream.write_all(text).and_then(|()| stream.read_exact(&mut answer)).expect("both ways");
        assert_eq!(answer, text);
    };
    goes_on(b"before");
    service.publish(&without);
    service.wait_ports(0, 0);
    assert_eq!(connect(local(port)).expect_err("closed").kind(), ErrorKind::ConnectionRefused);
    goes_on(b"between");
    service.publish(&with);
    service.wait_ports(1, 0);
    assert!(answers(port));
    goes_on(b"after");
    stream.shutdown(Shutdown::Write).expect("ended");
    assert_eq!(stream.read(&mut [0]).expect("an end in order"), 0);
}
