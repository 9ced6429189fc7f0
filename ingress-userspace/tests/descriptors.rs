//! The product without file descriptors: it sheds connections, does not spin, and recovers.
#![allow(clippy::panic, reason = "helpers of tests may fail a test")]

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use socket2::{Domain, Socket, Type};

/// Longest wait for any condition. Only a failing test waits that long.
const DEADLINE: Duration = Duration::from_secs(20);

/// Descriptor limit of the process, which needs some dozens of them itself.
const DESCRIPTORS: u32 = 160;

/// A serving process, killed on drop.
struct Product {
    child: Child,
    http: SocketAddr,
    _held: [(Socket, u16); 3],
}

impl Drop for Product {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.child.kill().and_then(|()| self.child.wait()).is_err();
    }
}

/// Takes a port of loopback, which is free for the product as long as the socket lives: it is bound and does not listen, and
/// SO_REUSEADDR lets a listener have the same port (socket(7)). The kernel gives the port to no other program that asks for
/// any.
fn held_port() -> (Socket, u16) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_reuse_address(true).expect("set");
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("bound");
    let port = socket.local_addr().expect("an address").as_socket().expect("an IP address").port();
    (socket, port)
}

impl Product {
    fn start(manifests: &std::path::Path) -> Self {
        let held = [held_port(), held_port(), held_port()];
        let [http, https, admin] = held.each_ref().map(|(_, port)| *port);
        let child = Command::new("prlimit")
            .arg(format!("--nofile={DESCRIPTORS}:{DESCRIPTORS}"))
            .arg(env!("CARGO_BIN_EXE_xdp-ingress"))
            .args(["run", "--steer", "bind", "--xdp-mode", "off", "--workers", "1", "--manifests"])
            .arg(manifests)
            .args(["--http-port", &http.to_string(), "--https-port", &https.to_string()])
            .args(["--admin-addr", &format!("127.0.0.1:{admin}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("started");
        Self { child, http: SocketAddr::from(([127, 0, 0, 1], http)), _held: held }
    }

    /// Returns whether a request on a connection of its own gets an answer.
    fn serves(&self) -> bool {
        self.ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 404"))
    }

    fn ask(&self) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.http)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Returns the number of open file descriptors.
    fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("a process").count()
    }

    /// Returns the CPU time used, in ticks of 10 ms.
    fn ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("a process");
        // Fields 14 and 15, counted from behind the name, which may contain any character.
        let fields: Vec<_> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
        fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum()
    }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "waited too long until {what}");
        thread::park_timeout(Duration::from_millis(1));
    }
}

#[test]
fn a_process_without_descriptors_sheds_load_and_recovers() {
    let manifests = tempfile::tempdir().expect("a directory");
    let product = Product::start(manifests.path());
    wait_until("it serves", || product.serves());
    let rounds: Vec<_> = (0..3).map(|_| starve(&product)).collect();
    println!("CPU in ticks of 10 ms per second without descriptors, and time to recover: {rounds:?}");
    // A spinning process would use 100 ticks per thread.
    assert!(rounds.iter().all(|(ticks, _)| *ticks < 50), "{rounds:?}");
}

#[test]
fn a_serving_process_writes_no_core_dumps() {
    let manifests = tempfile::tempdir().expect("a directory");
    let product = Product::start(manifests.path());
    wait_until("it serves", || product.serves());
    let limits = fs::read_to_string(format!("/proc/{}/limits", product.child.id())).expect("a process");
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a limit of core files");
    let (soft, hard) = {
        let mut values = core.split_whitespace().skip(4);
        (values.next(), values.next())
    };
    assert_eq!((soft, hard), (Some("0"), Some("0")), "{core}");
}

/// Takes all descriptors of `product` for a second. Returns the CPU time used meanwhile, and the time until it serves
/// again.
fn starve(product: &Product) -> (u64, Duration) {
    // More connections than its limit. It keeps those it has accepted open until their head times out.
    let flood: Vec<_> = (0..2 * DESCRIPTORS).map(|_| TcpStream::connect(product.http).expect("connected")).collect();
    wait_until("there are no descriptors left", || product.descriptors() + 2 >= DESCRIPTORS as usize);
    let is_shed = |stream: &TcpStream| {
        stream.set_nonblocking(true).expect("set");
        matches!((&*stream).read(&mut [0]), Ok(0))
    };
    wait_until("some are shed", || flood.iter().any(is_shed));
    let before = product.ticks();
    thread::sleep(Duration::from_secs(1));
    let used = product.ticks() - before;
    drop(flood);
    let begun = Instant::now();
    wait_until("a request is answered", || product.serves());
    (used, begun.elapsed())
}
