//! Log output that peers can cause with the default filter: nothing per frame or request.
#![allow(clippy::panic, reason = "helpers of tests may fail a test")]

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use tempfile::NamedTempFile;

/// Longest wait for any condition. Only a failing test waits that long.
const DEADLINE: Duration = Duration::from_secs(20);

/// The preface of HTTP/2 and an empty SETTINGS frame.
const BEGIN: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const PING_ACK: &[u8] = b"\0\0\x08\x06\x01\0\0\0\0unasked!";

/// A serving process, killed on drop.
struct Product {
    child: Child,
    http: SocketAddr,
    https: SocketAddr,
}

impl Drop for Product {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.child.kill().and_then(|()| self.child.wait()).is_err();
    }
}

impl Product {
    fn start(manifests: &Path, log: &NamedTempFile, options: &[&str]) -> Self {
        let free = || TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr()).expect("a port");
        let [http, https, admin] = [free(), free(), free()];
        let child = Command::new(env!("CARGO_BIN_EXE_xdp-ingress"))
            .args(["run", "--steer", "bind", "--xdp-mode", "off", "--workers", "1", "--manifests"])
            .arg(manifests)
            .args(["--http-port", &http.port().to_string(), "--https-port", &https.port().to_string()])
            .args(["--admin-addr", &admin.to_string()])
            .args(options)
            .stdout(Stdio::null())
            .stderr(log.reopen().expect("opened"))
            .spawn()
            .expect("started");
        let product = Self { child, http, https };
        until("it serves", || product.serves());
        // The last line of a start comes after the first response.
        until("it is ready", || fs::read_to_string(log.path()).expect("text").contains(" ready "));
        product
    }

    /// Returns whether a request on a connection of its own gets an answer from the published routes.
    fn serves(&self) -> bool {
        let ask = || {
            let mut stream = TcpStream::connect(self.http)?;
            stream.set_read_timeout(Some(DEADLINE))?;
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            std::io::Result::Ok(answer)
        };
        ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 404"))
    }
}

fn until(what: &str, is_met: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_met() {
        assert!(start.elapsed() < DEADLINE, "never: {what}");
        thread::park_timeout(Duration::from_millis(1));
    }
}

/// Sends `bytes` and reads until the peer closes or falls silent.
fn send(to: SocketAddr, bytes: &[u8]) {
    let mut stream = TcpStream::connect(to).expect("connected");
    stream.set_read_timeout(Some(Duration::from_millis(200))).expect("set");
    let mut reader = stream.try_clone().expect("cloned");
    let drain = thread::spawn(move || while matches!(reader.read(&mut [0; 16 * 1024]), Ok(1..)) {});
    // The peer may close before it has read everything.
    stream.write_all(bytes).unwrap_or_default();
    drain.join().expect("read");
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// `GET http://a.test/` from the static table of HPACK.
const GET: &[u8] = b"\x82\x86\x84\x01\x06a.test";

/// Frames and heads that could each cause a log line, by the thousand.
fn floods() -> Vec<(&'static str, Vec<u8>)> {
    let streams = || (0..4_000).map(|number| 2 * number + 1);
    let per_stream = |frames: &dyn Fn(u32) -> Vec<u8>| [BEGIN.to_vec(), streams().flat_map(frames).collect()].concat();
    vec![
        ("PING ACK that answers nothing", [BEGIN, &PING_ACK.repeat(9_000)].concat()),
        (
            "requests cancelled by the client",
            per_stream(&|id| [frame(1, 5, id, GET), frame(3, 0, id, &[0, 0, 0, 8])].concat()),
        ),
        ("streams that we reset", per_stream(&|id| [frame(1, 4, id, GET), frame(8, 0, id, &[0; 4])].concat())),
        (
            "frames for streams that are over",
            per_stream(&|id| [frame(1, 5, id, GET), frame(8, 0, id, &[0, 0, 0, 1])].concat()),
        ),
        ("malformed requests", per_stream(&|id| frame(1, 5, id, &[GET, b"\0\x01A\x01x"].concat()))),
        ("unknown frames", [BEGIN, &frame(0xfa, 0, 0, b"12345678").repeat(9_000)].concat()),
        ("GOAWAY", [BEGIN, &frame(7, 0, 0, &[0; 8]).repeat(1_000)].concat()),
        ("requests of HTTP/1", b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n".repeat(4_000)),
        ("malformed heads", b"GET /%00 HTTP/1.1\r\nHost: a.test\r\n\r\n".repeat(1_000)),
        ("no protocol", vec![0x16; 64 * 1024]),
    ]
}

#[test]
fn frames_and_requests_write_no_log_lines() {
    let directory = tempfile::tempdir().expect("a directory");
    let log = NamedTempFile::new().expect("a file");
    let product = Product::start(directory.path(), &log, &[]);
    let lines = || fs::read_to_string(log.path()).expect("text");
    for (what, bytes) in floods() {
        let before = lines().lines().count();
        for to in [product.http, product.https, product.http] {
            send(to, &bytes);
        }
        assert!(product.serves(), "{what}");
        let after = lines();
        let written: Vec<_> = after.lines().skip(before).take(3).collect();
        assert_eq!(written, [""; 0], "{what}: {} lines", after.lines().count() - before);
    }
}

/// A pod that begins each connection, or answers each request, with the next of `answers`, and counts them.
struct OddPod {
    address: SocketAddr,
    given: Arc<AtomicUsize>,
}

impl OddPod {
    /// The thread lives as long as the test's process.
    fn start(answers: Vec<Vec<u8>>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bound");
        let (address, given) = (listener.local_addr().expect("an address"), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&given);
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let answer = answers[count.load(Relaxed) % answers.len()].clone();
                let count = Arc::clone(&count);
                thread::spawn(move || {
                    // A head arrives in one piece. The proxy may be the first to end the connection.
                    if matches!(stream.read(&mut [0; 16 * 1024]), Ok(1..)) {
                        stream.write_all(&answer).unwrap_or_default();
                        count.fetch_add(1, Relaxed);
                    }
                });
            }
        });
        Self { address, given }
    }
}

/// Answers of HTTP/1 that no client expects.
fn odd_heads() -> Vec<Vec<u8>> {
    const LENGTH: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n";
    vec![
        Vec::new(),
        b"SSH-2.0-OpenSSH\r\n".to_vec(),
        b"HTTP/9.9 7 what\r\n\r\n".to_vec(),
        [LENGTH, b"Content-Length: 4\r\n\r\nabcd"].concat(),
        [LENGTH, b"\0bad\x7f: \x01\r\n\r\nabc"].concat(),
        [LENGTH, b"Transfer-Encoding: gzip, chunked\r\n\r\nzz\r\n"].concat(),
        [LENGTH, b"\r\nabc", LENGTH, b"\r\nabc and more than anybody asked for"].concat(),
        [LENGTH, b"X-Long: ", &b"x".repeat(300_000), b"\r\n\r\nabc"].concat(),
        [LENGTH, &b"A: b\r\n".repeat(20_000), b"\r\nabc"].concat(),
        [&b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(5_000), LENGTH, b"\r\nabc"].concat(),
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n".to_vec(),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n".to_vec(),
    ]
}

/// Frames of HTTP/2 that no client expects, behind the SETTINGS of a server.
fn odd_frames() -> Vec<Vec<u8>> {
    let settings = frame(4, 0, 0, &[]);
    let odd = [
        PING_ACK.repeat(5_000),
        frame(6, 0, 0, b"12345678").repeat(5_000),
        frame(0xfa, 0, 0, b"12345678").repeat(5_000),
        frame(7, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 11]).repeat(1_000),
        frame(3, 0, 1, &[0, 0, 0, 8]).repeat(1_000),
        (0..1_000).flat_map(|number| frame(3, 0, 2 * number + 101, &[0, 0, 0, 8])).collect(),
        frame(8, 0, 1, &[0; 4]).repeat(1_000),
        frame(0, 0, 1, b"a body without a head").repeat(1_000),
        // `:status: 200`, and a name in upper case.
        frame(1, 4, 1, b"\x88\0\x01A\x01x").repeat(1_000),
        frame(1, 5, 1, b"\x88").repeat(1_000),
        frame(5, 4, 1, &[&[0, 0, 0, 2], GET].concat()).repeat(1_000),
        frame(4, 1, 0, &[]).repeat(5_000),
    ];
    let odd = odd.into_iter().map(|frames| [settings.clone(), frames].concat());
    odd.chain([b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), vec![0xff; 64 * 1024]]).collect()
}

/// Returns a Service with its EndpointSlice.
fn service(name: &str, protocol: &str, address: SocketAddr) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: default}}\nspec: {{ports: [{{port: 80, {protocol}}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {name}-1, namespace: default, labels: {{kubernetes.io/service-name: {name}}}}}\n\
         addressType: IPv4\nports: [{{port: {}, {protocol}}}]\nendpoints: [{{addresses: [{}]}}]\n---\n",
        address.port(),
        address.ip()
    )
}

/// Returns an Ingress for the host `NAME.test`.
fn ingress(name: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: {name}, namespace: default}}\nspec:\n  ingressClassName: xdp\n  rules:\n\
         \x20 - {{host: {name}.test, http: {{paths: [{{path: /, pathType: Prefix, backend: {{service: {{name: {name}, port: {{number: 80}}}}}}}}]}}}}\n---\n"
    )
}

const CLASS: &str = "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: xdp}\nspec: {controller: xdp-ingress.io/controller}\n---\n";

#[test]
fn pods_write_no_log_lines() {
    /// Rounds of all odd answers.
    const ROUNDS: usize = 20;
    let directory = tempfile::tempdir().expect("a directory");
    let pods = [("h1", odd_heads(), "protocol: TCP"), ("h2", odd_frames(), "appProtocol: kubernetes.io/h2c")]
        .map(|(name, answers, protocol)| (name, answers.len(), protocol, OddPod::start(answers)));
    let objects = pods.each_ref().map(|(name, _, protocol, pod)| service(name, protocol, pod.address) + &ingress(name));
    fs::write(directory.path().join("pods.yaml"), CLASS.to_owned() + &objects.concat()).expect("written");
    let log = NamedTempFile::new().expect("a file");
    let product = Product::start(directory.path(), &log, &[]);
    let lines = || fs::read_to_string(log.path()).expect("text");
    for (name, answers, _, pod) in pods {
        let before = lines().lines().count();
        let request = format!("GET / HTTP/1.1\r\nHost: {name}.test\r\nConnection: close\r\n\r\n");
        let start = Instant::now();
        while pod.given.load(Relaxed) < answers * ROUNDS {
            assert!(start.elapsed() < 3 * DEADLINE, "{name}: {} answers", pod.given.load(Relaxed));
            send(product.http, request.as_bytes());
        }
        assert!(product.serves(), "{name}");
        let after = lines();
        let written: Vec<_> = after.lines().skip(before).take(3).collect();
        assert_eq!(written, [""; 0], "{name}: {} lines", after.lines().count() - before);
    }
}

/// Sends `count` datagrams of all sizes from each of some sockets, and takes no answer.
fn flood(to: SocketAddr, count: usize) {
    for _ in 0..20 {
        let socket = UdpSocket::bind(("127.0.0.1", 0)).expect("bound");
        for number in 0..count {
            // The queue of the socket may be full, or the port closed.
            socket.send_to(&vec![b'x'; number * 31 % 9_000], to).unwrap_or_default();
        }
    }
}

#[test]
fn datagrams_write_no_log_lines() {
    let directory = tempfile::tempdir().expect("a directory");
    let pod = UdpSocket::bind(("127.0.0.1", 0)).expect("bound");
    let nobody = UdpSocket::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr()).expect("a port");
    let ports = [(); 2].map(|()| UdpSocket::bind(("127.0.0.1", 0)).expect("bound"));
    let ports = ports.map(|socket| socket.local_addr().expect("an address"));
    let objects = [
        service("pod", "protocol: UDP", pod.local_addr().expect("an address")),
        service("nobody", "protocol: UDP", nobody),
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: udp, namespace: default}\ndata:\n".to_owned(),
        format!("  \"{}\": default/pod:80\n  \"{}\": default/nobody:80\n", ports[0].port(), ports[1].port()),
    ];
    fs::write(directory.path().join("udp.yaml"), objects.concat()).expect("written");
    let log = NamedTempFile::new().expect("a file");
    let options = ["--udp-services-configmap", "default/udp"];
    let product = Product::start(directory.path(), &log, &options);
    let lines = || fs::read_to_string(log.path()).expect("text");
    until("the ports are open", || lines().matches("UDP port open").count() == ports.len());
    let received = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&received);
    // Answers that are empty, large or repeated. The thread lives as long as the test's process.
    thread::spawn(move || {
        let mut buffer = [0; 16 * 1024];
        while let Ok((length, peer)) = pod.recv_from(&mut buffer) {
            for answer in [&buffer[..0], &buffer[..length], &[b'y'; 60_000]] {
                // Its session may be over.
                pod.send_to(answer, peer).unwrap_or_default();
            }
            count.fetch_add(1, Relaxed);
        }
    });
    let before = lines().lines().count();
    for (to, what) in ports.iter().zip(["a pod that answers too much", "a port that nobody has"]) {
        flood(*to, 500);
        assert!(product.serves(), "{what}");
        let after = lines();
        let written: Vec<_> = after.lines().skip(before).take(3).collect();
        assert_eq!(written, [""; 0], "{what}: {} lines", after.lines().count() - before);
    }
    until("the pod has got datagrams", || received.load(Relaxed) > 100);
}

#[test]
fn an_authorization_service_that_answers_is_not_failing() {
    /// Requests of clients.
    const REQUESTS: usize = 300;
    let directory = tempfile::tempdir().expect("a directory");
    let answer =
        |status: &str| format!("HTTP/1.1 {status}\r\nLocation: /start\r\nContent-Length: 0\r\n\r\n").into_bytes();
    // Decisions between the others do not make it news again.
    let statuses = ["302 Found", "400 Bad Request", "401 Unauthorized", "404 Not Found", "429 Too Many Requests"];
    let sso = OddPod::start(statuses.map(answer).into());
    let guarded = ingress("web").replace(
        "namespace: default}",
        "namespace: default, annotations: {nginx.ingress.kubernetes.io/auth-url: 'http://sso.default.svc.cluster.local/'}}",
    );
    let web = service("web", "protocol: TCP", SocketAddr::from(([127, 0, 0, 1], 9)));
    let objects = [CLASS, &service("sso", "protocol: TCP", sso.address), &web, &guarded];
    fs::write(directory.path().join("guarded.yaml"), objects.concat()).expect("written");
    let log = NamedTempFile::new().expect("a file");
    let product = Product::start(directory.path(), &log, &[]);
    let lines = || fs::read_to_string(log.path()).expect("text");
    let before = lines().lines().count();
    let start = Instant::now();
    while sso.given.load(Relaxed) < REQUESTS {
        assert!(start.elapsed() < 3 * DEADLINE, "{} answers", sso.given.load(Relaxed));
        send(product.http, b"GET / HTTP/1.1\r\nHost: web.test\r\nConnection: close\r\n\r\n");
    }
    let after = lines();
    let written: Vec<_> = after.lines().skip(before).collect();
    assert!(matches!(&*written, [one] if one.contains("does not decide") && one.contains("302")), "{written:#?}");
}
