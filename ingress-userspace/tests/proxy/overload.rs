//! More than there is room for: memory by what a cgroup says, connections by what is set.

use std::{fs, num::NonZeroU32, sync::mpsc, time::Duration};

use hyper::client::conn::http2::SendRequest;
use ingress_userspace::{
    model::Settings,
    proxy::{Memory, Pressure, Refusal},
};

use crate::{
    frames::{NONE, Raw, WINDOW_UPDATE, frame, get},
    support::{Client, DEADLINE, Origin, Proxy, Table, wait_settled, wait_until},
    tls,
};

/// A cgroup with a limit of 1000 bytes, of which as many are used as it is told.
struct Cgroup(tempfile::TempDir);

impl Cgroup {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("memory.max"), "1000\n").expect("written");
        fs::write(directory.path().join("memory.stat"), "inactive_file 100\n").expect("written");
        Self(directory)
    }

    fn uses(&self, used: u64, proxy: &Proxy) -> Pressure {
        let directory = self.0.path();
        fs::write(directory.join("memory.current"), format!("{}\n", used + 100)).expect("written");
        let usage = Memory::at(directory).expect("a cgroup").read().expect("usage");
        proxy.shared.weigh(usage)
    }
}

fn refused(proxy: &Proxy, why: Refusal) -> u64 {
    let at = Refusal::ALL.iter().position(|known| *known == why).expect("known");
    proxy.shared.stats().refused[at]
}

/// Has workers tick every 10 ms, a quarter of their shortest time-out: of one that hurries no client.
fn brisk() -> Settings {
    Settings { upstream_idle_timeout: Duration::from_millis(40), ..Settings::default() }
}

/// Waits until the connection is told to go away.
async fn closed<B>(streams: &SendRequest<B>) {
    let closed = async {
        while !streams.is_closed() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(DEADLINE, closed).await.expect("told to go away");
}

#[tokio::test]
async fn when_memory_is_tight_connections_end_with_their_answer() {
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
    // New ones are served, once.
    assert_eq!(proxy.client().get("a.test", "/").header("connection"), Some("close"));
    let mut streams = tls::http2(&proxy).await;
    assert_eq!(streams.send_request(request()).await.expect("a response").status(), 200);
    closed(&streams).await;

    assert_eq!(cgroup.uses(760, &proxy), Pressure::Tight);
    assert_eq!(cgroup.uses(740, &proxy), Pressure::None);
    assert_eq!(proxy.client().get("a.test", "/").header("connection"), None);
}

#[test]
fn when_memory_is_scarce_no_connection_is_taken() {
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
fn when_memory_is_critical_idle_connections_are_closed_and_requests_go_on() {
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
fn when_memory_is_tight_clients_that_do_not_read_lose_their_connections_and_others_do_not() {
    let origin = Origin::start(|peer| {
        while peer.head().is_some() {
            peer.answer(&"x".repeat(1_000_000));
        }
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]).settings(brisk()));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            // SETTINGS_INITIAL_WINDOW_SIZE: 2^31 - 1.
            let mut client = Raw::begun(&proxy, &[0, 4, 0x7f, 0xff, 0xff, 0xff]);
            client.send(&frame(WINDOW_UPDATE, NONE, 0, &0x7fff_0000_u32.to_be_bytes()));
            client.send(&(0..20).flat_map(|number| get(1 + 2 * number)).collect::<Vec<_>>());
            client
        })
        .collect();
    let mut good = proxy.client();
    assert_eq!(good.get("a.test", "/").status, 200);
    wait_until("all are asked", || origin.heads().len() == 81);
    wait_settled("the sockets are full", || proxy.count(1).bytes_out);
    assert_eq!(proxy.shared.stats().evicted, 0);
    let cgroup = Cgroup::new();
    assert_eq!(cgroup.uses(800, &proxy), Pressure::Tight);
    wait_until("all have ended", || proxy.shared.stats().evicted == 4);
    assert_eq!(good.get("a.test", "/").status, 200);
    assert_eq!(cgroup.uses(100, &proxy), Pressure::None);
    wait_until("nothing of theirs is left", || proxy.count(1).active == 0);
    drop(clients);
}

#[test]
fn a_worker_takes_as_many_connections_as_it_is_told() {
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
