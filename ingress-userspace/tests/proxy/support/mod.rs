//! A proxy to test, upstreams with a script, a client that sends bytes as it is told, and tables in a few words.

use std::{
    cell::Cell,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use ingress_common::{HostL7, HostL7Cell};
use ingress_userspace::{
    model::{
        Action, Endpoint, Filter, Forwarding, HostId, HostPattern, HostRoutes, PathMatch, Protocol, RouteTable, Rule,
        Settings, Upstream, UpstreamKey,
    },
    proxy::{
        self, FlowTable, ListenMode, ListenOptions, Options, Server, Shared, Sink, SinkGuard, Snapshot, WorkerListeners,
    },
};

/// Longest wait for anything. Only a failing test waits that long.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// Waits until `condition` holds.
pub(crate) fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "waited too long until {what}");
        thread::park_timeout(Duration::from_millis(1));
    }
}

/// Waits until `value` has begun to grow and then does not for a while.
pub(crate) fn wait_settled(what: &str, value: impl Fn() -> u64) {
    const WHILE: Duration = Duration::from_millis(200);
    let latest = Cell::new((0, Instant::now()));
    wait_until(what, || {
        let (before, since) = latest.get();
        let now = value();
        if now != before {
            latest.set((now, Instant::now()));
        }
        now != 0 && now == before && since.elapsed() >= WHILE
    });
}

// === tables ===

/// A table in the making. Each host gets one upstream of its own, at `/`.
#[derive(Clone, Default)]
pub(crate) struct Table(pub(crate) RouteTable);

impl Table {
    pub(crate) fn host(self, host: &str, endpoints: &[SocketAddr]) -> Self {
        self.host_with(host, endpoints, Vec::new())
    }

    pub(crate) fn host_with(mut self, host: &str, endpoints: &[SocketAddr], filters: Vec<Filter>) -> Self {
        let key = key(host);
        let mut endpoints: Vec<_> = endpoints.iter().map(|&address| Endpoint { address }).collect();
        endpoints.sort();
        self.0.upstreams.insert(key.clone(), Upstream { endpoints, ..Upstream::default() }.into());
        self.rule(host, filters, Action::Forward(key))
    }

    /// What all pods speak.
    pub(crate) fn speaking(mut self, protocol: Protocol) -> Self {
        for key in self.0.upstreams.clone().keys() {
            Arc::make_mut(self.0.upstreams.get_mut(key).expect("known")).protocol = protocol;
        }
        self
    }

    /// How requests for `host` are forwarded.
    pub(crate) fn forwarding(mut self, host: &str, forwarding: Forwarding) -> Self {
        let routes = self.0.hosts.get_mut(&HostPattern::parse(host).expect("valid host")).expect("a known host");
        let forwarding = Arc::new(forwarding);
        Arc::make_mut(routes).rules.iter_mut().for_each(|rule| rule.forwarding = Arc::clone(&forwarding));
        self
    }

    pub(crate) fn settings(mut self, settings: Settings) -> Self {
        self.0.settings = settings;
        self
    }

    /// The rule of `host` for `path` and below, before its others.
    pub(crate) fn path(mut self, host: &str, path: &str, action: Action) -> Self {
        let path = PathMatch::prefix(path).expect("valid path");
        let rule = Rule { path, owner: "p".into(), filters: vec![], action, forwarding: Arc::default() };
        let pattern = HostPattern::parse(host).expect("valid host");
        let mut routes = self.0.hosts.remove(&pattern).unwrap_or_default();
        Arc::make_mut(&mut routes).rules.insert(0, rule);
        self.0.hosts.insert(pattern, routes);
        self
    }

    pub(crate) fn rule(mut self, host: &str, filters: Vec<Filter>, action: Action) -> Self {
        let path = PathMatch::prefix("/").expect("valid path");
        let owner = format!("default/{host}").into();
        let rule = Rule { path, owner, filters, action, forwarding: Arc::default() };
        let pattern = HostPattern::parse(host).expect("valid host");
        self.0.hosts.insert(pattern, Arc::new(HostRoutes { rules: vec![rule], ..HostRoutes::default() }));
        self
    }
}

fn key(host: &str) -> UpstreamKey {
    UpstreamKey::new("default", host, "80")
}

// === proxy ===

/// Under which number TCP services are counted.
pub(crate) const STREAMS: usize = 15;

pub(crate) struct Proxy {
    pub(crate) shared: Arc<Shared>,
    pub(crate) http: SocketAddr,
    pub(crate) https: SocketAddr,
    /// The port of a TCP service, if the table has it.
    pub(crate) streams: SocketAddr,
    pub(crate) server: Option<Server>,
    cells: &'static [HostL7Cell],
}

impl Proxy {
    pub(crate) fn start(table: &Table) -> Self {
        Self::start_with(table, &Options::default(), None)
    }

    pub(crate) fn start_with(table: &Table, options: &Options, flows: Option<Box<dyn FlowTable>>) -> Self {
        let proxy = Self::prepare(flows);
        proxy.0.publish(table);
        proxy.start(options)
    }

    /// One that was told no routes yet.
    pub(crate) fn start_empty(options: &Options) -> Self {
        Self::prepare(None).start(options)
    }

    /// One whose table is made for the port of its TCP service.
    pub(crate) fn start_for_streams(table: impl FnOnce(u16) -> Table, options: &Options) -> Self {
        let proxy = Self::prepare(None);
        proxy.0.publish(&table(proxy.0.streams.port()));
        proxy.start(options)
    }

    /// One with several workers, and the HTTPS address of each.
    pub(crate) fn start_workers(table: &Table, workers: usize) -> (Self, Vec<SocketAddr>) {
        let prepared = Self::prepare_on(None, ListenMode::Slots, workers);
        prepared.0.publish(table);
        let addresses = prepared.1.iter().map(|listeners| listeners.https.local_addr().expect("address"));
        let addresses = addresses.map(|address| SocketAddr::new(address.ip().to_canonical(), address.port())).collect();
        (prepared.start(&Options::default()), addresses)
    }

    fn prepare(flows: Option<Box<dyn FlowTable>>) -> Prepared {
        let mode = ListenMode::Bind { address: [127, 0, 0, 1].into(), http_port: 0, https_port: 0 };
        Self::prepare_on(flows, mode, 1)
    }

    fn prepare_on(flows: Option<Box<dyn FlowTable>>, mode: ListenMode, workers: usize) -> Prepared {
        let cells: &'static [HostL7Cell] = Box::leak((0..16).map(|_| HostL7Cell::default()).collect());
        let shared = Arc::new(Shared::new(cells, flows).expect("shared state"));
        let mut listeners = proxy::bind(ListenOptions { mode, workers, reuse: false }).expect("listeners");
        let http = listeners[0].http.local_addr().expect("address");
        let https = listeners[0].https.local_addr().expect("address");
        // As connections come from `sk_lookup`: the accepted ones tell the port.
        let streams = TcpListener::bind(("127.0.0.1", 0)).expect("bound");
        let address = streams.local_addr().expect("address");
        listeners[0].streams = Some(streams);
        Prepared(Self { shared, http, https, streams: address, server: None, cells }, listeners)
    }

    pub(crate) fn publish(&self, table: &Table) {
        let hosts: Vec<_> = table.0.hosts.keys().cloned().collect();
        let id = |pattern: &HostPattern| HostId(1 + hosts.iter().position(|host| host == pattern).unwrap_or(99) as u32);
        let (mut snapshot, problems) = Snapshot::compile(Some(&self.shared.snapshot()), &table.0, id);
        snapshot.number_streams(|_| HostId(STREAMS as u32));
        assert_eq!(problems, []);
        self.shared.publish(snapshot);
    }

    /// Counters of the `n`th host in the table's order, from 1; 0 for none.
    pub(crate) fn count(&self, host: usize) -> HostL7 {
        self.cells[host].load()
    }

    /// Waits until the requests of a host and their bodies are as expected.
    pub(crate) fn wait_count(&self, host: usize, expect: HostL7) {
        let start = Instant::now();
        while self.count(host) != expect && start.elapsed() < DEADLINE {
            thread::park_timeout(Duration::from_millis(1));
        }
        assert_eq!(self.count(host), expect, "host {host}");
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.http)
    }

    /// Has the access log written to a file, as long as the guard is there.
    pub(crate) fn log_to(&self, file: std::fs::File) -> SinkGuard {
        let (sink, guard) = Sink::new(file);
        self.shared.log_to(sink);
        guard
    }
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

// === client ===

/// Sends bytes and reads responses.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    buffer: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// In lower case.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }
}

fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("connected");
        stream.set_read_timeout(Some(DEADLINE)).expect("timeout set");
        Self { stream, buffer: Vec::new() }
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.stream.local_addr().expect("address")
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Self {
        self.stream.write_all(bytes.as_ref()).expect("sent");
        self
    }

    pub(crate) fn get(&mut self, host: &str, path: &str) -> Response {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")).response()
    }

    pub(crate) fn response(&mut self) -> Response {
        self.try_response().expect("a response")
    }

    /// `None` if the connection ends before one is whole.
    pub(crate) fn try_response(&mut self) -> Option<Response> {
        let head = self.head()?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let body = read_body(&head, status, &mut self.stream, &mut self.buffer)?;
        Some(Response { status, head, body })
    }

    pub(crate) fn head(&mut self) -> Option<String> {
        read_head(&mut self.stream, &mut self.buffer)
    }

    /// The next bytes of a body, at least `count`.
    pub(crate) fn at_least(&mut self, count: usize) -> Vec<u8> {
        while self.buffer.len() < count {
            assert!(fill(&mut self.stream, &mut self.buffer), "ended early");
        }
        std::mem::take(&mut self.buffer)
    }

    /// Reads to the end; whether the proxy ended the connection (a reset counts).
    pub(crate) fn is_closed(&mut self) -> bool {
        while fill(&mut self.stream, &mut self.buffer) {}
        !matches!(self.stream.read(&mut [0]), Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    }
}

fn fill(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> bool {
    let mut bytes = [0; 16 * 1024];
    match stream.read(&mut bytes) {
        Ok(count) => {
            buffer.extend_from_slice(&bytes[..count]);
            count > 0
        }
        Err(_) => false,
    }
}

fn read_head(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<String> {
    read_raw_head(stream, buffer).map(|head| head.to_lowercase())
}

fn read_raw_head(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<String> {
    loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = buffer.drain(..end + 4).collect();
            return Some(String::from_utf8(head).expect("text"));
        }
        if !fill(stream, buffer) {
            return None;
        }
    }
}

fn take(count: usize, stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    while buffer.len() < count {
        if !fill(stream, buffer) {
            return None;
        }
    }
    Some(buffer.drain(..count).collect())
}

fn read_body(head: &str, status: u16, stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    if let Some(length) = header(head, "content-length") {
        return take(length.parse().expect("a length"), stream, buffer);
    }
    if header(head, "transfer-encoding").is_none() {
        let bodiless = status == 204 || status == 304;
        assert!(bodiless || !head.starts_with("http/"), "response without a length: {head}");
        return Some(Vec::new());
    }
    let mut body = Vec::new();
    loop {
        let line = read_line(stream, buffer)?;
        let size = usize::from_str_radix(std::str::from_utf8(&line).expect("text").trim(), 16).expect("a chunk size");
        if size == 0 {
            // Trailers, to the empty line.
            while !read_line(stream, buffer)?.trim_ascii().is_empty() {}
            return Some(body);
        }
        let chunk = take(size + 2, stream, buffer)?;
        body.extend_from_slice(&chunk[..size]);
    }
}

fn read_line(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    loop {
        if let Some(end) = buffer.iter().position(|&byte| byte == b'\n') {
            return Some(buffer.drain(..=end).collect());
        }
        if !fill(stream, buffer) {
            return None;
        }
    }
}

// === upstreams ===

/// An upstream that runs a script on each of its connections, in a thread of its own.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    heads: Arc<Mutex<Vec<String>>>,
}

/// The upstream's end of one connection.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    buffer: Vec<u8>,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Origin {
    pub(crate) fn start(script: impl Fn(&mut Peer) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bound");
        let address = listener.local_addr().expect("address");
        let (connections, heads) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let origin = Self { address, connections: Arc::clone(&connections), heads: Arc::clone(&heads) };
        let script = Arc::new(script);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                connections.fetch_add(1, SeqCst);
                stream.set_read_timeout(Some(DEADLINE)).expect("timeout set");
                let mut peer = Peer { stream, buffer: Vec::new(), heads: Arc::clone(&heads) };
                let script = Arc::clone(&script);
                thread::spawn(move || script(&mut peer));
            }
        });
        origin
    }

    /// Answers every request with 200 and `body`.
    pub(crate) fn answering(body: &'static str) -> Self {
        Self::start(move |peer| {
            while peer.request().is_some() {
                peer.answer(body);
            }
        })
    }

    /// Answers every request with its own head.
    pub(crate) fn mirror() -> Self {
        Self::start(|peer| {
            while let Some((head, _)) = peer.request() {
                peer.answer(&head);
            }
        })
    }

    /// An address that refuses connections.
    pub(crate) fn refusing() -> SocketAddr {
        TcpListener::bind(("127.0.0.1", 0)).expect("bound").local_addr().expect("address")
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }

    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().expect("unpoisoned").clone()
    }
}

impl Peer {
    /// The next request, in lower case, and its body.
    pub(crate) fn request(&mut self) -> Option<(String, Vec<u8>)> {
        let head = self.head()?;
        let body = self.body(&head)?;
        Some((head, body))
    }

    pub(crate) fn head(&mut self) -> Option<String> {
        self.raw_head().map(|head| head.to_lowercase())
    }

    /// As it was sent.
    pub(crate) fn raw_head(&mut self) -> Option<String> {
        let head = read_raw_head(&mut self.stream, &mut self.buffer)?;
        self.heads.lock().expect("unpoisoned").push(head.to_lowercase());
        Some(head)
    }

    /// Adds to the heads that the test sees.
    pub(crate) fn note(&self, text: &str) {
        self.heads.lock().expect("unpoisoned").push(text.to_owned());
    }

    pub(crate) fn body(&mut self, head: &str) -> Option<Vec<u8>> {
        read_body(head, 0, &mut self.stream, &mut self.buffer)
    }

    /// Waits for some byte of a body; `false` at the end of the connection.
    pub(crate) fn more(&mut self) -> bool {
        fill(&mut self.stream, &mut self.buffer)
    }

    pub(crate) fn received(&self) -> &[u8] {
        &self.buffer
    }

    /// What came after the heads and bodies that were read.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }

    pub(crate) fn answer(&mut self, body: &str) {
        self.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    }

    /// A peer that is gone is the test's intention or shows in the client.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        drop(self.stream.write_all(bytes.as_ref()));
    }

    /// Waits until the proxy closes the connection.
    pub(crate) fn until_closed(&mut self) {
        while self.more() {}
    }
}
