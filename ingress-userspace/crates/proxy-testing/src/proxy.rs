//! A proxy in this process, on free ports.

use std::{
    net::{SocketAddr, TcpListener},
    sync::{Arc, atomic::Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use ingress_common::{HostL7, HostL7Cell, WorkerCell, WorkerLoad, quic::QuicCell, steer::WORKER_ABSENT};
use ingress_model::{HostId, HostName, HostPattern};
use ingress_proxy::{
    Drained, FlowTable, ListenMode, ListenOptions, Options, QuicListener, Server, Shared, Sink, SinkGuard, Snapshot,
    WorkerListeners,
};
use ingress_quic::{Keys, NodeIds};

use super::{Client, DEADLINE, Table};

/// Number under which TCP services are counted.
pub const STREAMS: usize = 15;

pub struct Proxy {
    pub shared: Arc<Shared>,
    pub http: SocketAddr,
    pub https: SocketAddr,
    /// The port of a TCP service, if the table has it.
    pub streams: SocketAddr,
    pub server: Option<Server>,
    /// The sockets of QUIC, if the proxy has them.
    pub http3: Option<SocketAddr>,
    cells: &'static [HostL7Cell],
    /// The load published by the workers, by number.
    pub workers: &'static [WorkerCell],
}

impl Proxy {
    pub fn start(table: &Table) -> Self {
        Self::start_with(table, &Options::default(), None)
    }

    pub fn start_with(table: &Table, options: &Options, flows: Option<Box<dyn FlowTable>>) -> Self {
        let proxy = Self::prepare(flows);
        proxy.0.publish(table);
        proxy.start(options)
    }

    /// Starts a proxy without routes.
    pub fn start_empty(options: &Options) -> Self {
        Self::prepare(None).start(options)
    }

    /// Starts a proxy with a table made for the port of its TCP service.
    pub fn start_for_streams(table: impl FnOnce(u16) -> Table, options: &Options) -> Self {
        let proxy = Self::prepare(None);
        proxy.0.publish(&table(proxy.0.streams.port()));
        proxy.start(options)
    }

    /// Starts a proxy with several workers. Returns the HTTPS address of each as well.
    pub fn start_workers(table: &Table, workers: usize) -> (Self, Vec<SocketAddr>) {
        let prepared = Self::prepare_on(None, ListenMode::Slots, workers, false);
        prepared.0.publish(table);
        let addresses = prepared.1.iter().map(|listeners| listeners.https.local_addr().expect("address"));
        let addresses = addresses.map(|address| SocketAddr::new(address.ip().to_canonical(), address.port())).collect();
        (prepared.start(&Options::default()), addresses)
    }

    fn prepare(flows: Option<Box<dyn FlowTable>>) -> Prepared {
        let mode = ListenMode::Bind { address: [127, 0, 0, 1].into(), http_port: 0, https_port: 0 };
        Self::prepare_on(flows, mode, 1, false)
    }

    /// Starts a proxy that serves HTTP/3 as well, by so many workers.
    pub fn start_http3(table: &Table, options: &Options, workers: usize) -> Self {
        let proxy = Self::start_http3_unasked(table, options, workers);
        proxy.shared.set_http3_answers(true);
        proxy
    }

    /// The same, while it is unknown whether the port answers.
    pub fn start_http3_unasked(table: &Table, options: &Options, workers: usize) -> Self {
        Self::start_http3_with(table, options, workers, None)
    }

    /// Starts a proxy as [`Self::start_http3_unasked`] does, with a table of its connections.
    pub fn start_http3_with(
        table: &Table,
        options: &Options,
        workers: usize,
        flows: Option<Box<dyn FlowTable>>,
    ) -> Self {
        let mode = ListenMode::Bind { address: [127, 0, 0, 1].into(), http_port: 0, https_port: 0 };
        let prepared = Self::prepare_on(flows, mode, workers, true);
        prepared.0.publish(table);
        prepared.start(options)
    }

    fn prepare_on(flows: Option<Box<dyn FlowTable>>, mode: ListenMode, workers: usize, has_http3: bool) -> Prepared {
        let cells: &'static [HostL7Cell] = Box::leak((0..16).map(|_| HostL7Cell::default()).collect());
        let shared = Arc::new(Shared::new(cells, flows).expect("shared state"));
        // The map's initial state: no worker has published its load.
        let absent = || WorkerCell { open: WORKER_ABSENT.into(), ..WorkerCell::default() };
        let told: &'static [WorkerCell] = Box::leak((0..workers).map(|_| absent()).collect());
        shared.publish_load_to(told);
        let mut listeners = ingress_proxy::bind(ListenOptions { mode, workers, reuse: false }).expect("listeners");
        let http = listeners[0].http.local_addr().expect("address");
        let https = listeners[0].https.local_addr().expect("address");
        // Connections arrive as from `sk_lookup`: the accepted socket has the original port.
        let streams = TcpListener::bind(("127.0.0.1", 0)).expect("bound");
        let address = streams.local_addr().expect("address");
        listeners[0].streams = Some(streams);
        let http3 = has_http3.then(|| listen_quic(&mut listeners));
        Prepared(Self { shared, http, https, http3, streams: address, server: None, cells, workers: told }, listeners)
    }

    pub fn publish(&self, table: &Table) {
        let hosts: Vec<_> = table.0.hosts.keys().cloned().collect();
        let number = |pattern: &HostPattern| 1 + hosts.iter().position(|host| host == pattern).unwrap_or(99) as u32;
        let id = |host: HostName<'_>| Some(HostId(number(host.pattern)));
        let (mut snapshot, problems) = Snapshot::compile(Some(&self.shared.snapshot()), &table.0, id);
        snapshot.number_streams(|_| HostId(STREAMS as u32));
        assert_eq!(problems, []);
        self.shared.publish(snapshot);
    }

    /// Returns the counters of the `n`th host in the table's order, from 1; 0 for connections without a host.
    pub fn count(&self, host: usize) -> HostL7 {
        self.cells[host].load()
    }

    /// Waits until the requests of a host and their bodies are as expected.
    pub fn wait_count(&self, host: usize, expect: HostL7) {
        let start = Instant::now();
        while self.count(host) != expect && start.elapsed() < DEADLINE {
            thread::park_timeout(Duration::from_millis(1));
        }
        assert_eq!(self.count(host), expect, "host {host}");
    }

    /// Returns the load of the first worker, as the programs see it.
    pub fn load(&self) -> WorkerLoad {
        let WorkerCell { open, settled, chosen } = &self.workers[0];
        let [open, settled, chosen] = [open, settled, chosen].map(|field| field.load(Relaxed));
        WorkerLoad { open, settled, chosen }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.http)
    }

    /// Ends the workers, which cuts connections off and flushes their reports.
    pub fn stop(&mut self) -> Drained {
        let server = self.server.take().expect("it runs");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(server.stop())
    }

    /// Writes the access log to a file for as long as the guard lives.
    pub fn log_to(&self, file: std::fs::File) -> SinkGuard {
        let (sink, guard) = Sink::new(file).expect("a thread");
        self.shared.log_to(sink);
        guard
    }
}

/// Gives each worker a socket of QUIC, on one port. Returns its address.
fn listen_quic(listeners: &mut [WorkerListeners]) -> SocketAddr {
    let cell = Arc::new(QuicCell::default());
    cell.set_current_key(1, &[3, 5]);
    cell.set_epoch(7, true);
    // At the port of HTTPS, if that is free, as in the daemon.
    let https = listeners[0].https.local_addr().expect("address").port();
    let count = listeners.len();
    let sockets = ingress_proxy::bind_quic(https, count, false).or_else(|_| ingress_proxy::bind_quic(0, count, false));
    let sockets = sockets.expect("sockets");
    let port = sockets[0].local_addr().expect("address").port();
    for ((number, listeners), socket) in (0..).zip(listeners).zip(sockets) {
        let ids = Arc::new(NodeIds::new(Arc::clone(&cell), 7, number));
        let keys = Keys::derive(b"secret", "node").expect("keys");
        listeners.quic = Some(QuicListener { socket, ids, keys });
    }
    ([127, 0, 0, 1], port).into()
}

/// Workers begin with the settings that are published by then.
struct Prepared(Proxy, Vec<WorkerListeners>);

impl Prepared {
    fn start(self, options: &Options) -> Proxy {
        let Self(mut proxy, listeners) = self;
        proxy.server = Some(Server::start(Arc::clone(&proxy.shared), listeners, options).expect("started"));
        proxy
    }
}
