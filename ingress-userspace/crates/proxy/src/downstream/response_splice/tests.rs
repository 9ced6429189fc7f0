//! Placeholders and the piped bytes they represent; and a worker that counts the bytes through its pipes.

use std::{future::poll_fn, net::SocketAddr, rc::Rc, sync::Arc};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::{LocalSet, spawn_local},
};

use super::*;
use crate::{
    downstream::{conn::Conn, http_server::http1},
    server::worker::Worker,
    snapshot::Snapshot,
};
use ingress_model::{
    Action, Endpoint, HostId, HostPattern, HostRoutes, PathMatch, RouteTable, Rule, Upstream, UpstreamKey,
};

pub(crate) async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("bound");
    let near = TcpStream::connect(listener.local_addr().expect("address")).await.expect("connected");
    (near, listener.accept().await.expect("accepted").0)
}

/// Returns a pipe with `length` bytes, and their placeholder.
async fn filled(length: usize) -> (ResponseSplice, Bytes) {
    let (near, mut far) = pair().await;
    far.write_all(&vec![b'x'; length]).await.expect("sent");
    let (response_splice, pipes) = (ResponseSplice::default(), Pipes::default());
    let pipe = poll_fn(|cx| pipes.poll_fill(cx, &near, length)).await.expect("filled");
    let placeholder = response_splice.put(pipe.expect("bytes"));
    (response_splice, placeholder)
}

#[tokio::test]
async fn only_the_placeholder_for_the_whole_pipe_is_accepted() {
    let (response_splice, placeholder) = filled(10).await;
    assert_eq!(placeholder.len(), 10);
    let copied = placeholder.to_vec();
    let [plain, copied, whole]: [&[u8]; 3] = [b"head", &copied, &placeholder];
    let cases: [(&[&[u8]], Option<usize>); 9] = [
        (&[whole], Some(0)),
        (&[plain, whole], Some(1)),
        (&[plain, plain, whole], Some(2)),
        (&[], None),
        (&[plain], None),
        (&[copied], None),
        (&[whole, plain], None),
        (&[whole, whole], None),
        (&[&whole[1..]], None),
    ];
    for (number, (slices, expect)) in cases.into_iter().enumerate() {
        let slices: Vec<_> = slices.iter().map(|slice| IoSlice::new(slice)).collect();
        assert_eq!(response_splice.before(&slices).map(<[_]>::len), expect, "case {number}");
    }
    assert!(ResponseSplice::default().before(&[IoSlice::new(whole)]).is_none(), "nothing is in the pipe");
}

#[tokio::test]
async fn waiters_for_room_are_woken_once() {
    for asks_again in [false, true] {
        let (response_splice, _placeholder) = filled(10).await;
        assert!(!response_splice.take_awaited() && response_splice.poll_room().is_pending());
        assert!(!response_splice.take_awaited(), "the pipe is full");
        let (near, _far) = pair().await;
        let pipes = Pipes::default();
        let drained = poll_fn(|cx| response_splice.poll_drain(cx, &near, &pipes)).await.expect("drained");
        assert_eq!((drained, pipes.kept()), (10, 1));
        if asks_again {
            assert!(response_splice.poll_room().is_ready());
        }
        assert!(response_splice.take_awaited() && !response_splice.take_awaited(), "asks again: {asks_again}");
        assert!(response_splice.poll_room().is_ready() && !response_splice.take_awaited());
    }
}

#[tokio::test]
async fn an_empty_pipe_has_no_room_until_the_next_turn() {
    let (response_splice, _placeholder) = filled(10).await;
    let ((near, _far), pipes) = (pair().await, Pipes::default());
    response_splice.moved.set(TURN - 10);
    let drained = poll_fn(|cx| response_splice.poll_drain(cx, &near, &pipes)).await.expect("drained");
    assert!(drained == 10 && response_splice.is_empty() && response_splice.poll_room().is_pending());
    assert!(response_splice.take_awaited(), "whoever waits is told when it is over");
    assert!(response_splice.poll_room().is_ready() && !response_splice.take_awaited());
    response_splice.moved.set(TURN);
    assert!(
        !response_splice.take_awaited() && response_splice.poll_room().is_ready(),
        "one in which nobody was told to wait ends, too"
    );
}

#[tokio::test]
async fn bytes_beyond_the_requested_length_are_not_read() {
    for pipes in [Pipes::default(), Pipes::of_buffers(100)] {
        let (near, mut far) = pair().await;
        far.write_all(&[b'x'; 100]).await.expect("sent");
        for count in [1, 2, 97] {
            let pipe = poll_fn(|cx| pipes.poll_fill(cx, &near, count)).await.expect("filled");
            assert_eq!(pipe.expect("bytes").held(), count);
        }
        drop(far);
        let ended = poll_fn(|cx| pipes.poll_fill(cx, &near, 1)).await.expect("an end");
        assert!(ended.is_none());
    }
}

/// Returns the bytes of a body, which depend on their position.
pub(crate) fn bytes(length: usize) -> Vec<u8> {
    (0..length as u64).map(|place| place.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0]).collect()
}

/// A pod that responds with a body of the length given in the path.
async fn pod() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("bound");
    let address = listener.local_addr().expect("address");
    spawn_local(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.expect("a head"));
            }
            let head = String::from_utf8(head).expect("text");
            let length = head.split(['/', ' ']).nth(2).and_then(|length| length.parse().ok()).expect("a length");
            let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.expect("sent");
            stream.write_all(&bytes(length)).await.expect("sent");
        }
    });
    address
}

/// Returns a worker with a single host, routed to that pod.
pub(crate) fn serving(pod: SocketAddr) -> Rc<Worker> {
    let key = UpstreamKey::new("default", "web", "80");
    let upstream = Upstream { endpoints: vec![Endpoint { address: pod }], ..Upstream::default() };
    let path = PathMatch::prefix("/").expect("a path");
    let (owner, action) = ("default/web".into(), Action::Forward(key.clone()));
    let rule = Rule { path, owner, filters: vec![], action, forwarding: Arc::default(), conditions: None };
    let routes = HostRoutes { rules: vec![rule], ..HostRoutes::default() };
    let mut table = RouteTable::default();
    table.upstreams.insert(key, upstream.into());
    table.hosts.insert(HostPattern::parse("a.test").expect("a host"), Arc::new(routes));
    let (snapshot, problems) = Snapshot::compile(None, &table, |_host| Some(HostId(0)));
    assert_eq!(problems, []);
    let worker = Worker::alone();
    worker.shared.publish(snapshot);
    worker
}

/// Requests `length` bytes from `worker` and returns the body that the client receives.
async fn ask(worker: &Rc<Worker>, length: usize) -> Vec<u8> {
    let (mut client, ours) = pair().await;
    let [remote, local] = [ours.peer_addr(), ours.local_addr()].map(|address| address.expect("an address"));
    let served = spawn_local(http1(ours, |tcp| tcp, Vec::new(), Conn::new(Rc::clone(worker), remote, local, false)));
    let request = format!("GET /{length} HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
    client.write_all(request.as_bytes()).await.expect("sent");
    let mut response = Vec::new();
    client.read_to_end(&mut response).await.expect("a response");
    drop(client);
    assert!(served.await.expect("served").is_none());
    let end = response.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
    response.split_off(end + 4)
}

#[tokio::test]
async fn only_large_bodies_are_spliced() {
    let test = async {
        let worker = serving(pod().await);
        for (length, kept) in [(0, 0), (16 * 1024 - 1, 0), (1_000_001, 1), (3, 1), (1_000_001, 1)] {
            assert!(ask(&worker, length).await == bytes(length), "{length}");
            assert_eq!(worker.pipes.kept(), kept, "pipes made after {length} bytes");
        }
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn bodies_are_copied_when_no_pipe_can_be_created() {
    let test = async {
        let worker = serving(pod().await);
        worker.pipes.add_buffers(10_000);
        assert!(ask(&worker, 1_000_001).await == bytes(1_000_001));
        let taken = 10_000 - worker.pipes.kept();
        assert_eq!(taken, 1, "a pipe is asked for once for each body");
    };
    LocalSet::new().run_until(test).await;
}
