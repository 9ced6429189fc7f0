//! Overload: memory by the figures of a cgroup, connections by settings.

use std::{
    fs,
    num::NonZeroU32,
    sync::{
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    time::Duration,
};

use hyper::client::conn::http2::SendRequest;
use ingress_model::Settings;
use ingress_proxy::{Memory, Pressure, Refusal};

use crate::{
    frames::{DATA, END_STREAM, NONE, RST_STREAM, Raw, WINDOW_UPDATE, frame, get},
    slow_start::{Pod, Way},
};
use ingress_proxy_testing::tls;
use ingress_proxy_testing::{Client, DEADLINE, Origin, Proxy, Table, wait_settled, wait_until};

/// A cgroup with a limit of 1000 bytes and adjustable usage.
pub(crate) struct Cgroup(tempfile::TempDir);

impl Cgroup {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("memory.max"), "1000\n").expect("written");
        fs::write(directory.path().join("memory.stat"), "inactive_file 100\n").expect("written");
        Self(directory)
    }

    pub(crate) fn uses(&self, used: u64, proxy: &Proxy) -> Pressure {
        let directory = self.0.path();
        fs::write(directory.join("memory.current"), format!("{}\n", used + 100)).expect("written");
        let usage = Memory::at(directory).expect("a cgroup").read().expect("usage");
        proxy.shared.weigh(usage)
    }
}

pub(crate) fn refused(proxy: &Proxy, why: Refusal) -> u64 {
    let at = Refusal::ALL.iter().position(|known| *known == why).expect("known");
    proxy.shared.stats().refused[at]
}

/// Makes workers tick every 10 ms, a quarter of their shortest time-out. The time-out chosen does not hurry clients.
fn brisk() -> Settings {
    Settings { upstream_idle_timeout: Duration::from_millis(40), ..Settings::default() }
}

/// Returns the requests received for the first host, including those that wait for their turn.
fn come(proxy: &Proxy) -> u64 {
    let count = proxy.count(1);
    count.active + count.requests.success + proxy.shared.stats().waiting as u64
}

/// Waits until the client sees GOAWAY.
async fn closed<B>(streams: &SendRequest<B>) {
    let closed = async {
        while !streams.is_closed() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(DEADLINE, closed).await.expect("told to go away");
}

#[tokio::test]
async fn tight_memory_closes_connections_after_their_response() {
    let origin = Origin::answering("pod");
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]).settings(brisk()));
    let cgroup = Cgroup::new();
    assert_eq!(cgroup.uses(790, &proxy), Pressure::None);
    let mut client = proxy.client();
    assert_eq!(client.get("a.test", "/").header("connection"), None);
    let mut streams = tls::http2(&proxy).await;
    let request = || {
        let request = http::Request::get("https://a.test/").body(http_body_util::Full::default());
        request.expect("a request")
    };
    assert_eq!(streams.send_request(request()).await.expect("a response").status(), 200);

    assert_eq!(cgroup.uses(800, &proxy), Pressure::Tight);
    let last = client.get("a.test", "/");
    assert_eq!((last.status, last.header("connection")), (200, Some("close")));
    assert!(client.is_closed());
    closed(&streams).await;
    // New connections are served, once.
    assert_eq!(proxy.client().get("a.test", "/").header("connection"), Some("close"));
    let mut streams = tls::http2(&proxy).await;
    assert_eq!(streams.send_request(request()).await.expect("a response").status(), 200);
    closed(&streams).await;

    assert_eq!(cgroup.uses(760, &proxy), Pressure::Tight);
    assert_eq!(cgroup.uses(740, &proxy), Pressure::None);
    assert_eq!(proxy.client().get("a.test", "/").header("connection"), None);
}

#[test]
fn scarce_memory_refuses_new_connections() {
    let origin = Origin::answering("pod");
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let cgroup = Cgroup::new();
    let mut before = proxy.client();
    assert_eq!(before.get("a.test", "/").status, 200);
    assert_eq!(cgroup.uses(900, &proxy), Pressure::Scarce);
    for n in 1..=3 {
        assert!(proxy.client().is_closed());
        wait_until("it is counted", || refused(&proxy, Refusal::Memory) == n);
    }
    assert_eq!(before.get("a.test", "/").status, 200);
    assert_eq!(cgroup.uses(840, &proxy), Pressure::Tight);
    assert_eq!(proxy.client().get("a.test", "/").status, 200);
}

#[test]
fn critical_memory_closes_only_idle_connections() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let origin = Origin::start(move |peer| {
        while let Some((head, _)) = peer.request() {
            if head.starts_with("get /slow") {
                wait.lock().expect("unpoisoned").recv().expect("told to go on");
            }
            peer.answer("pod");
        }
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]).settings(brisk()));
    let mut idle = proxy.client();
    assert_eq!(idle.get("a.test", "/").status, 200);
    let mut busy = proxy.client();
    busy.send("GET /slow HTTP/1.1\r\nHost: a.test\r\n\r\n");
    wait_until("it is in flight", || origin.heads().len() == 2);
    assert_eq!(Cgroup::new().uses(950, &proxy), Pressure::Critical);
    assert!(idle.is_closed());
    go.send(()).expect("sent");
    assert_eq!(busy.response().status, 200);
    assert!(busy.is_closed());
    wait_until("nothing is left", || proxy.shared.stats().connections == 0);
}

#[test]
fn tight_memory_evicts_only_clients_that_do_not_read() {
    for way in Way::ALL {
        let (pod, other) = (Pod::start(way, |_| Some(1_000_000)), Origin::answering("other"));
        let table = way.table(pod.address).host("b.test", &[other.address]);
        let proxy = Proxy::start(&table.settings(brisk()));
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let mut client = way.client(&proxy);
                client.send(&(0..20).flat_map(|number| way.request(1 + 2 * number)).collect::<Vec<_>>());
                client
            })
            .collect();
        let mut good = proxy.client();
        assert_eq!(good.get("b.test", "/").status, 200);
        wait_until("all are here", || come(&proxy) == 80);
        wait_settled("the sockets are full", || proxy.count(1).bytes_out);
        assert_eq!(proxy.shared.stats().evicted, 0, "{way:?}");
        let cgroup = Cgroup::new();
        assert_eq!(cgroup.uses(800, &proxy), Pressure::Tight);
        wait_until("all have ended", || proxy.shared.stats().evicted == 4);
        assert_eq!(good.get("b.test", "/").status, 200);
        assert_eq!(cgroup.uses(100, &proxy), Pressure::None);
        wait_until("nothing of theirs is left", || proxy.count(1).active == 0);
        drop(clients);
    }
}

#[test]
fn tight_memory_ends_stuck_streams_but_not_their_connection() {
    const LENGTH: usize = 400_000;
    let origin = Origin::start(|peer| {
        while peer.head().is_some() {
            peer.answer(&"x".repeat(LENGTH));
        }
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]).settings(brisk()));
    let window = 0x7fff_0000_u32.to_be_bytes();
    let mut client = Raw::begun(&proxy, &[]);
    // The connection's full window, and the initial windows of two streams: one large read of each is buffered.
    client.send(&frame(WINDOW_UPDATE, NONE, 0, &window));
    client.send(&[get(1), get(3)].concat());
    let mut received = 0;
    while received < 2 * 65_535 {
        let frame = client.next().expect("more");
        received += if frame.kind == DATA { frame.payload.len() } else { 0 };
    }
    // One more stream is read.
    client.send(&get(5));
    client.send(&frame(WINDOW_UPDATE, NONE, 5, &window));
    let cgroup = Cgroup::new();
    assert_eq!(cgroup.uses(800, &proxy), Pressure::Tight);
    let (mut reset, mut read, mut whole) = (0, 0, false);
    while reset < 2 || !whole {
        let frame = client.next().expect("more");
        match frame.kind {
            RST_STREAM => reset += 1,
            DATA => {
                assert_eq!(frame.stream, 5, "the others have no window");
                read += frame.payload.len();
                whole |= frame.flags & END_STREAM != 0;
            }
            _ => {}
        }
    }
    let stats = proxy.shared.stats();
    assert_eq!((read, stats.evicted_streams, stats.evicted), (LENGTH, 2, 0));
    wait_until("nothing of theirs is left", || proxy.count(1).active == 0);
}

#[test]
fn connections_over_their_memory_limit_are_evicted_early() {
    // The sockets hold less than the first response.
    let asked = AtomicUsize::new(0);
    let origin = Origin::start(move |peer| {
        while peer.head().is_some() {
            let length = match asked.fetch_add(1, SeqCst) {
                0 => 50_000_000,
                1..=120 => 10,
                _ => 1_000_000,
            };
            peer.answer(&"x".repeat(length));
        }
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]).settings(brisk()));
    let greedy = |streams: u32| {
        // SETTINGS_INITIAL_WINDOW_SIZE: 2^31 - 1.
        let mut client = Raw::begun(&proxy, &[0, 4, 0x7f, 0xff, 0xff, 0xff]);
        client.send(&frame(WINDOW_UPDATE, NONE, 0, &0x7fff_0000_u32.to_be_bytes()));
        client.send(&(0..streams).flat_map(|number| get(1 + 2 * number)).collect::<Vec<_>>());
        client
    };
    // One stream of a slow client buffers no more than allowed.
    let slow = greedy(1);
    wait_until("it is asked", || origin.heads().len() == 1);
    // A client that has read responses may have many concurrent requests.
    let mut many = greedy(120);
    let mut read = 0;
    while read < 120 {
        let frame = many.next().expect("more");
        read += usize::from(frame.kind == DATA && frame.flags & END_STREAM != 0);
    }
    many.send(&(120..240).flat_map(|number| get(1 + 2 * number)).collect::<Vec<_>>());
    wait_until("all are here", || come(&proxy) == 241);
    let cgroup = Cgroup::new();
    assert_eq!(cgroup.uses(600, &proxy), Pressure::None);
    wait_until("it has ended", || proxy.shared.stats().evicted == 1);
    wait_until("nothing of it is left", || proxy.count(1).active == 1);
    drop((slow, many));
}

#[test]
fn connections_per_worker_are_limited() {
    let origin = Origin::answering("pod");
    let settings = Settings { connections_max: NonZeroU32::new(2), ..Settings::default() };
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]).settings(settings));
    let mut clients: Vec<Client> = (0..2).map(|_| proxy.client()).collect();
    assert!(clients.iter_mut().all(|client| client.get("a.test", "/").status == 200));
    assert!(proxy.client().is_closed());
    wait_until("it is counted", || refused(&proxy, Refusal::Connections) == 1);
    assert!(clients.iter_mut().all(|client| client.get("a.test", "/").status == 200));
    clients.pop();
    wait_until("one is closed", || proxy.shared.stats().connections == 1);
    assert_eq!(proxy.client().get("a.test", "/").status, 200);
}
