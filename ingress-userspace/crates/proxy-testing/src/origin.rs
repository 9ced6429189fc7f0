//! Origins: upstreams that follow a script.

use std::{
    io::Write,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use super::{
    DEADLINE,
    message::{fill, read_body, read_raw_head},
};

/// An upstream that runs a script on each of its connections, in a thread of its own.
pub struct Origin {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    heads: Arc<Mutex<Vec<String>>>,
}

/// The upstream's end of one connection.
pub struct Peer {
    pub stream: TcpStream,
    buffer: Vec<u8>,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Origin {
    pub fn start(script: impl Fn(&mut Peer) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bound");
        let address = listener.local_addr().expect("address");
        let (connections, heads) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let origin = Self { address, connections: Arc::clone(&connections), heads: Arc::clone(&heads) };
        let script = Arc::new(script);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                connections.fetch_add(1, SeqCst);
                stream.set_read_timeout(Some(DEADLINE)).expect("timeout set");
                // Servers do the same: a response sent in two pieces does not wait for the client's acknowledgement in
                // between.
                stream.set_nodelay(true).expect("set");
                let mut peer = Peer { stream, buffer: Vec::new(), heads: Arc::clone(&heads) };
                let script = Arc::clone(&script);
                thread::spawn(move || script(&mut peer));
            }
        });
        origin
    }

    /// Answers every request with 200 and `body`.
    pub fn answering(body: &'static str) -> Self {
        Self::start(move |peer| {
            while peer.request().is_some() {
                peer.answer(body);
            }
        })
    }

    /// Answers every request with its own head.
    pub fn mirror() -> Self {
        Self::start(|peer| {
            while let Some((head, _)) = peer.request() {
                peer.answer(&head);
            }
        })
    }

    /// An address that refuses connections until the process ends: its socket has the port, so that no other test gets
    /// it, and does not listen.
    pub fn refusing() -> SocketAddr {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("bound");
        let address = socket.local_addr().expect("address");
        std::mem::forget(socket);
        address
    }

    pub fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }

    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().expect("unpoisoned").clone()
    }
}

/// Runs an asynchronous script on each connection, all in one thread, and returns the address. The part of the script
/// before its future runs in the order in which connections arrive.
pub fn serve_connections<F>(script: impl Fn(tokio::net::TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bound");
    listener.set_nonblocking(true).expect("non-blocking");
    let address = listener.local_addr().expect("address");
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("listener");
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(script(stream));
            }
        });
    });
    address
}

impl Peer {
    /// Reads the next request, with the head in lower case, and its body.
    pub fn request(&mut self) -> Option<(String, Vec<u8>)> {
        let head = self.head()?;
        let body = self.body(&head)?;
        Some((head, body))
    }

    pub fn head(&mut self) -> Option<String> {
        self.raw_head().map(|head| head.to_lowercase())
    }

    /// Reads a head as it was sent.
    pub fn raw_head(&mut self) -> Option<String> {
        let head = read_raw_head(&mut self.stream, &mut self.buffer)?;
        self.heads.lock().expect("unpoisoned").push(head.to_lowercase());
        Some(head)
    }

    /// Adds to the heads that the test sees.
    pub fn note(&self, text: &str) {
        self.heads.lock().expect("unpoisoned").push(text.to_owned());
    }

    pub fn body(&mut self, head: &str) -> Option<Vec<u8>> {
        read_body(head, 0, &mut self.stream, &mut self.buffer)
    }

    /// Waits for more bytes of a body; `false` at the end of the connection.
    pub fn more(&mut self) -> bool {
        fill(&mut self.stream, &mut self.buffer)
    }

    pub fn received(&self) -> &[u8] {
        &self.buffer
    }

    /// Returns the bytes after the heads and bodies that were read.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }

    pub fn answer(&mut self, body: &str) {
        self.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    }

    /// Ignores errors: a peer that is gone is the test's intention or shows in the client.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        drop(self.stream.write_all(bytes.as_ref()));
    }

    /// Waits until the proxy closes the connection.
    pub fn until_closed(&mut self) {
        while self.more() {}
    }
}
