//! UDP services, from the text of their ConfigMap to datagrams on sockets.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    io::ErrorKind,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use ingress_common::HostL7Cell;
use ingress_control::{
    Origin,
    change::{Change, ObjectName},
    cluster::Cluster,
    source::manifests::parse,
    translate::{Options, translate},
};
use ingress_model::{HostId, RouteTable};
use ingress_proxy::{
    DatagramStatsView, Drained, Dropped, ListenMode, ListenOptions, PortStatsView, Server, Shared, Snapshot,
    keep_datagram_ports_open,
};
use tokio::sync::oneshot;

use ingress_proxy_testing::free_ports::free_port;
use ingress_proxy_testing::{DEADLINE, wait_until};

/// Workers that share the ports.
const WORKERS: usize = 2;

// === pods ===

/// Answers each datagram with its name, the sender's port, and the text: `pod 4711 text`.
struct Pod {
    address: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Pod {
    fn start(name: &'static str) -> Self {
        Self::start_with(name, 1, Duration::ZERO)
    }

    /// Starts a pod that gives several answers, each after a pause.
    fn start_with(name: &'static str, answers: usize, pause: Duration) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a time-out");
        let (address, ends) = (socket.local_addr().expect("an address"), Arc::new(AtomicBool::new(false)));
        let is_over = Arc::clone(&ends);
        let thread = thread::spawn(move || {
            let mut buffer = [0; 65_535];
            while !is_over.load(SeqCst) {
                let Ok((length, peer)) = socket.recv_from(&mut buffer) else { continue };
                let answer = [format!("{name} {} ", peer.port()).as_bytes(), &buffer[..length]].concat();
                for _ in 0..answers {
                    thread::sleep(pause);
                    socket.send_to(&answer, peer).expect("sent");
                }
            }
        });
        Self { address, ends, thread: Some(thread) }
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.ends.store(true, SeqCst);
        drop(self.thread.take().map(JoinHandle::join));
    }
}

// === the proxy ===

/// A port and the endpoints of its service.
type Row<'a> = (u16, &'a [SocketAddr]);

/// The table of services on these ports, with these settings.
fn table(rows: &[Row<'_>], settings: &str) -> RouteTable {
    let mut text = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: edge}}\ndata: {{{settings}}}\n"
    );
    text += "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: udp, namespace: edge}\ndata:\n";
    for (port, _) in rows {
        text += &format!("  \"{port}\": \"default/s{port}:dns\"\n");
    }
    for (port, endpoints) in rows {
        text += &format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: s{port}, namespace: default}}\n\
             spec: {{ports: [{{name: dns, port: 53, protocol: UDP}}]}}\n"
        );
        // Pods of one machine differ by their port, and a slice has only one port.
        for endpoint in *endpoints {
            text += &format!(
                "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: s{port}-{}\n  namespace: default\n  \
                 labels: {{kubernetes.io/service-name: s{port}}}\naddressType: IPv4\n\
                 ports: [{{name: dns, port: {}, protocol: UDP}}]\nendpoints: [{{addresses: [{}]}}]\n",
                endpoint.port(),
                endpoint.port(),
                endpoint.ip()
            );
        }
    }
    let path: Arc<Path> = Path::new("in.yaml").into();
    let parsed = parse(&path, &text);
    assert!(parsed.remarks.is_empty(), "{:?}", parsed.remarks);
    let mut cluster = Cluster::default();
    for object in parsed.objects {
        cluster.apply(Change::Apply { object, origin: Origin::File(Arc::clone(&path)) });
    }
    let options = Options {
        config_map: Some(ObjectName::new("edge", "settings")),
        udp_services: Some(ObjectName::new("edge", "udp")),
        ..Options::for_manifests()
    };
    let translation = translate(&cluster, &options);
    let is_bad = |text: &str| !text.contains("NoReadyEndpoints");
    let outcomes: Vec<_> = translation.outcomes.keys().map(ToString::to_string).filter(|text| is_bad(text)).collect();
    assert_eq!(outcomes, [""; 0]);
    translation.table
}

struct Service {
    shared: Arc<Shared>,
    drain: Option<oneshot::Sender<Duration>>,
    thread: Option<JoinHandle<Option<Drained>>>,
}

impl Service {
    fn start(rows: &[Row<'_>], settings: &str) -> Self {
        Self::start_on(WORKERS, rows, settings)
    }

    fn start_on(workers: usize, rows: &[Row<'_>], settings: &str) -> Self {
        let cells: &'static [HostL7Cell] = Box::leak((0..4).map(|_| HostL7Cell::default()).collect());
        let shared = Arc::new(Shared::new(cells, None).expect("shared state"));
        let mode = ListenMode::Bind { address: [127, 0, 0, 1].into(), http_port: 0, https_port: 0 };
        let listeners = ingress_proxy::bind(ListenOptions { mode, workers, reuse: false }).expect("listeners");
        let (drain, asked) = oneshot::channel();
        let mut service = Self { shared: Arc::clone(&shared), drain: Some(drain), thread: None };
        service.publish(rows, settings);
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let mut server = Server::start(shared, listeners, &ingress_proxy::Options::default()).expect("started");
                let asked = tokio::select! {
                    never = keep_datagram_ports_open(&server, || false) => match never {},
                    asked = asked => asked,
                };
                match asked {
                    Ok(timeout) => Some(server.drain(timeout).await),
                    Err(_) => {
                        server.stop().await;
                        None
                    }
                }
            })
        });
        service.thread = Some(thread);
        service.wait_open(rows.len());
        service
    }

    fn publish(&self, rows: &[Row<'_>], settings: &str) {
        let table = table(rows, settings);
        let (snapshot, problems) = Snapshot::compile(Some(&self.shared.snapshot()), &table, |_| Some(HostId(1)));
        assert_eq!(problems, []);
        self.shared.publish(snapshot);
    }

    /// Waits until so many ports are open, and none is missing.
    fn wait_open(&self, count: usize) {
        wait_until("the ports are open", || self.ports() == PortStatsView { open: count, closed: 0 });
    }

    fn ports(&self) -> PortStatsView {
        self.shared.stats().udp_ports
    }

    fn stats(&self) -> DatagramStatsView {
        self.shared.stats().datagrams
    }

    fn dropped(&self, why: Dropped) -> u64 {
        self.stats().dropped[why as usize]
    }

    fn drain(mut self, timeout: Duration) -> (Drained, Arc<Shared>) {
        self.drain.take().expect("running").send(timeout).expect("running");
        let drained = self.thread.take().expect("running").join().expect("no panic");
        (drained.expect("drained"), Arc::clone(&self.shared))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.drain.take());
        drop(self.thread.take().map(JoinHandle::join));
    }
}

// === clients ===

/// A socket that accepts answers only from the address it is connected to.
struct Client(UdpSocket);

impl Client {
    fn of(port: u16) -> Self {
        Self::to((Ipv4Addr::LOCALHOST, port).into())
    }

    fn to(service: SocketAddr) -> Self {
        let unspecified: SocketAddr =
            if service.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
        let socket = UdpSocket::bind(unspecified).expect("a socket");
        socket.connect(service).expect("connected");
        socket.set_read_timeout(Some(DEADLINE)).expect("a time-out");
        Self(socket)
    }

    fn send(&self, text: &str) {
        self.0.send(text.as_bytes()).expect("sent");
    }

    fn receive(&self) -> String {
        let mut buffer = [0; 65_535];
        let length = self.0.recv(&mut buffer).expect("an answer in time");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    /// Returns the pod that answers, and the port it was contacted from.
    fn ask(&self, text: &str) -> (String, u16) {
        self.send(text);
        let answer = self.receive();
        let mut words = answer.splitn(3, ' ');
        let (pod, port, said) = (words.next(), words.next(), words.next());
        assert_eq!(said, Some(text), "{answer}");
        (pod.expect("a name").to_owned(), port.and_then(|port| port.parse().ok()).expect("a port"))
    }

    /// Returns whether an answer arrives within a time in which none is expected.
    fn hears(&self, while_: Duration) -> bool {
        self.0.set_read_timeout(Some(while_)).expect("a time-out");
        let heard = self.0.recv(&mut [0; 16]).is_ok();
        self.0.set_read_timeout(Some(DEADLINE)).expect("a time-out");
        heard
    }
}

/// Sessions that never have all their answers.
const UNLIMITED: &str = "proxy-stream-responses: \"1000000\"";

#[test]
fn responses_come_from_the_requested_address() {
    let (pod, port) = (Pod::start("a"), free_port());
    let service = Service::start(&[(port, &[pod.address])], "");
    let addresses: [SocketAddr; 4] = [
        (Ipv4Addr::LOCALHOST, port).into(),
        (Ipv4Addr::new(127, 0, 0, 2), port).into(),
        (Ipv4Addr::new(127, 3, 2, 1), port).into(),
        (Ipv6Addr::LOCALHOST, port).into(),
    ];
    for address in addresses {
        // The client's socket drops datagrams from any other address.
        let client = Client::to(address);
        for text in ["", "x", "two words", &"long".repeat(2_000), &"x".repeat(60_000)] {
            assert_eq!(client.ask(text).0, "a", "{address}");
        }
    }
    // Datagrams are counted after sending, when the client may have the answer already.
    wait_until("all are counted", || (service.stats().to_pods, service.stats().to_clients) == (20, 20));
    assert_eq!(service.stats().dropped, [0; 4]);
}

#[test]
fn each_client_has_its_own_session() {
    let (pods, port) = ([Pod::start("a"), Pod::start("b"), Pod::start("c")], free_port());
    let service = Service::start(&[(port, &pods.each_ref().map(|pod| pod.address))], UNLIMITED);
    let clients: Vec<_> = (0..60).map(|_| Client::of(port)).collect();
    let first: Vec<_> = (0..).zip(&clients).map(|(n, client)| client.ask(&format!("first {n}"))).collect();
    assert_eq!(service.stats().sessions, 60);
    assert_eq!(first.iter().map(|(_, port)| port).collect::<BTreeSet<_>>().len(), 60, "none shares a socket");
    assert_eq!(first.iter().map(|(pod, _)| pod).collect::<BTreeSet<_>>().len(), 3, "all pods are used");
    for (n, client) in clients.iter().enumerate().rev() {
        assert_eq!(client.ask(&format!("second {n}")), first[n], "it keeps its pod and its socket");
    }
}

#[test]
fn a_client_keeps_its_pod_after_its_session_ends() {
    let (pods, port) = ([Pod::start("a"), Pod::start("b"), Pod::start("c")], free_port());
    let settings = format!("{UNLIMITED}, proxy-stream-timeout: 1s");
    let service = Service::start(&[(port, &pods.each_ref().map(|pod| pod.address))], &settings);
    let clients: Vec<_> = (0..20).map(|_| Client::of(port)).collect();
    let first: Vec<_> = clients.iter().map(|client| client.ask("x")).collect();
    wait_until("nothing has come for a second", || service.stats().sessions == 0);
    let second: Vec<_> = clients.iter().map(|client| client.ask("y")).collect();
    let pods = |of: &[(String, u16)]| of.iter().map(|(pod, _)| pod.clone()).collect::<Vec<_>>();
    assert_eq!(pods(&first), pods(&second));
    assert!(first.iter().zip(&second).any(|(a, b)| a.1 != b.1), "the sessions are others");
}

#[test]
fn a_completed_session_ends_soon() {
    let (pod, port) = (Pod::start_with("a", 3, Duration::ZERO), free_port());
    let service = Service::start(&[(port, &[pod.address])], "");
    let client = Client::of(port);
    client.send("x");
    // More than the expected answer, as nothing says that the others are unwanted.
    (0..3).for_each(|_| drop(client.receive()));
    wait_until("it is forgotten, long before its time-out", || service.stats().sessions == 0);
}

#[test]
fn only_changes_of_endpoints_affect_sessions() {
    let (pods, port) = ([Pod::start("a"), Pod::start("b")], free_port());
    let all = pods.each_ref().map(|pod| pod.address);
    let service = Service::start(&[(port, &all)], UNLIMITED);
    let clients: Vec<_> = (0..40).map(|_| Client::of(port)).collect();
    let before: Vec<_> = clients.iter().map(|client| client.ask("x")).collect();
    // The configuration changes in everything except the endpoints.
    service.publish(&[(port, &all)], &format!("{UNLIMITED}, keep-alive: \"20\", proxy-stream-timeout: 5m"));
    assert_eq!(clients.iter().map(|client| client.ask("y")).collect::<Vec<_>>(), before);
    let third = Pod::start("c");
    service.publish(&[(port, &[all[0], all[1], third.address])], UNLIMITED);
    assert_eq!(clients.iter().map(|client| client.ask("z")).collect::<Vec<_>>(), before, "no session moves");
    service.publish(&[(port, &[all[0], third.address])], UNLIMITED);
    let after: Vec<_> = clients.iter().map(|client| client.ask("w")).collect();
    for (before, after) in before.iter().zip(&after) {
        if before.0 == "a" {
            assert_eq!(before, after, "its endpoint is still there");
        } else {
            assert_ne!(after.0, "b", "its endpoint is gone");
        }
    }
    service.publish(&[(port, &[])], UNLIMITED);
    clients[0].send("nobody");
    wait_until("there is nobody", || service.dropped(Dropped::NoEndpoint) == 1);
    wait_until("sessions without endpoint end by themselves", || service.stats().sessions == 0);
}

#[test]
fn ten_thousand_datagrams_are_each_answered_once() {
    const CLIENTS: usize = 10;
    const EACH: usize = 1_000;
    /// Datagrams in flight for each client, so that no queue overflows.
    const WINDOW: usize = 8;
    let (pods, port) = ([Pod::start("a"), Pod::start("b")], free_port());
    let service = Service::start(&[(port, &pods.each_ref().map(|pod| pod.address))], "");
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let socket = Client::of(port);
                let text = |n: usize| format!("{client}/{n}");
                let mut answered: BTreeMap<String, usize> = BTreeMap::new();
                (0..WINDOW).for_each(|n| socket.send(&text(n)));
                for n in 0..EACH {
                    let answer = socket.receive();
                    let said = answer.rsplit(' ').next().expect("a word").to_owned();
                    *answered.entry(said).or_default() += 1;
                    if n + WINDOW < EACH {
                        socket.send(&text(n + WINDOW));
                    }
                }
                let expect: BTreeMap<String, usize> = (0..EACH).map(|n| (text(n), 1)).collect();
                assert_eq!(answered, expect);
                assert!(!socket.hears(Duration::from_millis(100)), "more answers than questions");
            });
        }
    });
    let DatagramStatsView { to_pods, to_clients, dropped, .. } = service.stats();
    assert_eq!((to_pods, to_clients, dropped), (10_000, 10_000, [0; 4]));
}

#[test]
fn open_sessions_are_limited() {
    let (pod, port) = (Pod::start("a"), free_port());
    let settings = format!("{UNLIMITED}, max-udp-sessions: \"3\", proxy-stream-timeout: 2s");
    let service = Service::start_on(1, &[(port, &[pod.address])], &settings);
    let clients: Vec<_> = (0..4).map(|_| Client::of(port)).collect();
    clients[..3].iter().for_each(|client| drop(client.ask("x")));
    clients[3].send("one too many");
    wait_until("it is dropped", || service.dropped(Dropped::Sessions) == 1);
    assert_eq!(clients[0].ask("y").0, "a", "the others go on");
    assert_eq!(service.stats().sessions, 3);
    wait_until("a session ends", || service.stats().sessions < 3);
    assert_eq!(clients[3].ask("z").0, "a");
    service.publish(&[(port, &[pod.address])], &format!("{UNLIMITED}, max-udp-sessions: \"100\""));
    // All are open at one time: a new client could reuse a closed one's port, and with it the session.
    let more: Vec<_> = (0..20).map(|_| Client::of(port)).collect();
    let sessions: HashSet<u16> = more.iter().map(|client| client.ask("w").1).collect();
    assert_eq!(sessions.len(), 20);
}

#[test]
fn an_endpoint_without_a_listener_is_skipped() {
    let (pod, port) = (Pod::start("a"), free_port());
    let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let service = Service::start(&[(port, &[pod.address, nobody])], UNLIMITED);
    // All are open at one time, because a freed port would have its former client's session.
    let clients: Vec<_> = (0..20).map(|_| Client::of(port)).collect();
    for client in &clients {
        let tries = (0..10).find(|_| {
            client.send("x");
            client.hears(Duration::from_millis(300))
        });
        // A datagram lost with the endpoint is sent again by the client, as it must be anyway.
        assert!(tries.is_some_and(|tries| tries <= 3), "{tries:?}");
    }
    assert_eq!(service.stats().sessions, 20, "each has one, to the pod that is there");
}

#[test]
fn ports_open_and_close_with_the_configuration() {
    let pod = Pod::start("a");
    let ports = [free_port(), free_port(), free_port()];
    let row = |n: usize| (ports[n], std::slice::from_ref(&pod.address));
    let service = Service::start(&[row(0), row(1)], UNLIMITED);
    let kept = Client::of(ports[1]);
    let before = kept.ask("x");
    Client::of(ports[0]).ask("x");
    service.publish(&[row(1), row(2)], UNLIMITED);
    wait_until("the first is closed", || UdpSocket::bind((Ipv6Addr::UNSPECIFIED, ports[0])).is_ok());
    // The count of open ports would not do: it is the same as before.
    wait_until("the third is open", || {
        let client = Client::of(ports[2]);
        client.send("x");
        client.0.recv(&mut [0; 16]).is_ok()
    });
    assert_eq!(kept.ask("y"), before);
    wait_until("its session is gone", || service.stats().sessions == 2);
    let late = Client::of(ports[0]);
    late.send("x");
    assert_eq!(late.0.recv(&mut [0; 16]).expect_err("closed").kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_port_in_use_is_opened_once_it_is_free() {
    let (pod, ports) = (Pod::start("a"), [free_port(), free_port()]);
    let row = |n: usize| (ports[n], std::slice::from_ref(&pod.address));
    let service = Service::start(&[], "");
    // Even a socket that would share it.
    let other = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).expect("a socket");
    other.set_reuse_port(true).expect("shared");
    other.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, ports[0])).into()).expect("bound");
    service.publish(&[row(0), row(1)], "");
    wait_until("one of them is open", || service.ports() == PortStatsView { open: 1, closed: 1 });
    assert_eq!(Client::of(ports[1]).ask("x").0, "a");
    drop(other);
    service.publish(&[row(0), row(1)], "keep-alive: \"20\"");
    service.wait_open(2);
    assert_eq!(Client::of(ports[0]).ask("x").0, "a");
}

#[test]
fn a_drain_waits_for_pending_responses() {
    let (pod, port) = (Pod::start_with("a", 1, Duration::from_millis(300)), free_port());
    let service = Service::start(&[(port, &[pod.address])], "");
    let client = Client::of(port);
    client.send("x");
    wait_until("it is under way", || service.stats().to_pods == 1);
    let (drained, shared) = service.drain(DEADLINE);
    assert_eq!(drained, Drained { cut: 0 });
    assert!(client.receive().ends_with(" x"));
    assert_eq!(shared.stats().datagrams.sessions, 0);
    assert!(UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).is_ok(), "the port is closed");
}

#[test]
fn a_drain_has_a_deadline() {
    let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let port = free_port();
    let service = Service::start(&[(port, &[silent.local_addr().expect("an address")])], "");
    Client::of(port).send("x");
    wait_until("it is under way", || service.stats().to_pods == 1);
    let (drained, _) = service.drain(Duration::from_millis(200));
    assert_eq!(drained, Drained { cut: 0 });
}
