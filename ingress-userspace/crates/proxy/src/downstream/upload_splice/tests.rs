//! Placeholders and the piped bytes they represent, and bodies that hyper read with placeholders.

use std::{
    convert::Infallible,
    future::poll_fn,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::{LocalSet, spawn_local},
};

use super::*;
use crate::{
    downstream::{
        http_server,
        response_splice::tests::{bytes, pair, serving},
        wire::Wire,
    },
    l4::pipe::Pipes,
    request::{client_body::ClientBody, request_body::RequestBody, unread_body::UnreadBody},
    server::worker::Worker,
    upstream::{BodyPart, Outgoing as _},
};
use ingress_model::HostId;

const MIB: usize = 1024 * 1024;

/// Returns a pipe that holds `length` bytes.
async fn filled(length: usize) -> Pipe {
    let (near, mut far) = pair().await;
    far.write_all(&vec![b'x'; length]).await.expect("sent");
    let pipe = poll_fn(|cx| Pipes::default().poll_fill(cx, &near, length)).await.expect("filled");
    pipe.expect("bytes")
}

#[tokio::test]
async fn only_the_bytes_at_the_position_of_the_pipe_are_accepted() {
    // The pipe holds the first ten of the last hundred bytes. Each case takes the next `length` bytes with `left` bytes
    // remaining.
    for (left, length, expect) in [
        (200, 100, Ok(false)),
        (200, 1, Ok(false)),
        (101, 1, Ok(false)),
        (100, 10, Ok(true)),
        (200, 101, Err(Misplaced)),
        (200, 110, Err(Misplaced)),
        (101, 11, Err(Misplaced)),
        (100, 9, Err(Misplaced)),
        (100, 11, Err(Misplaced)),
        (99, 9, Err(Misplaced)),
        (90, 10, Err(Misplaced)),
        (5, 10, Err(Misplaced)),
    ] {
        let upload_splice = UploadSplice::default();
        upload_splice.is_open.set(true);
        upload_splice.put(filled(10).await, 100);
        let taken = upload_splice.take(left, length);
        assert_eq!(upload_splice.has_room(), expect == Ok(true), "{length} of {left}");
        assert_eq!(taken.map(|pipe| pipe.is_some_and(|pipe| pipe.held() == 10)), expect, "{length} of {left}");
    }
    assert!(UploadSplice::default().take(100, 10).is_ok_and(|pipe| pipe.is_none()), "nothing is in it");
}

fn conn(worker: &Rc<Worker>, secure: bool) -> Rc<Conn> {
    let address = SocketAddr::from(([127, 0, 0, 1], 80));
    Conn::new(Rc::clone(worker), address, address, secure)
}

#[tokio::test]
async fn only_the_last_request_gets_an_upload_splice() {
    let worker = Worker::alone();
    let conn = conn(&worker, false);
    conn.heads_read(1);
    assert!(conn.new_upload_splice().is_none(), "its request did not begin");
    conn.take_head();
    let first = conn.new_upload_splice().expect("it is the last");
    assert!(conn.upload_splice().is_none(), "nobody wants pipes");
    first.is_open.set(true);
    assert!(conn.upload_splice().is_some_and(|open| Rc::ptr_eq(&open, &first)));
    conn.heads_read(2);
    assert!(conn.upload_splice().is_none(), "what is read now is of another");
    conn.take_head();
    assert!(conn.new_upload_splice().is_none(), "a third head was read");
    conn.take_head();
    let third = conn.new_upload_splice().expect("it is the last");
    assert!(conn.upload_splice().is_none(), "the first is still open, and what is read is not its");
    third.is_open.set(true);
    drop(first);
    assert!(conn.upload_splice().is_some_and(|open| Rc::ptr_eq(&open, &third)));
    third.put(filled(10).await, 100);
    assert!(conn.upload_splice().is_none(), "it has no room");
    drop(third);
    assert!(conn.upload_splice().is_none(), "nobody takes that body any more");
}

#[tokio::test]
async fn upload_splices_end_when_the_count_of_heads_overflows() {
    let worker = Worker::alone();
    let conn = conn(&worker, false);
    conn.heads_read(1 << 16);
    for _ in 0..1 << 16 {
        assert!(conn.new_upload_splice().is_none());
        conn.take_head();
    }
    assert!(conn.new_upload_splice().is_none());
}

#[tokio::test]
async fn uploads_over_tls_are_not_spliced() {
    let worker = Worker::alone();
    for (secure, length, is_worthwhile) in [
        (true, Some(WORTHWHILE), false),
        (false, Some(WORTHWHILE), true),
        (false, Some(WORTHWHILE - 1), false),
        (false, None, false),
    ] {
        let tap = Tap::new(&conn(&worker, secure), length);
        assert_eq!(tap.is_some(), is_worthwhile, "secure: {secure}, {length:?} bytes");
    }
}

/// A pod that reads whole requests and answers each with ten bytes.
async fn pod() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("bound");
    let address = listener.local_addr().expect("address");
    let service = service_fn(|request: Request<Incoming>| async {
        let body = request.into_body().collect().await.expect("a body").to_bytes();
        assert!(body.len() < MIB || body == bytes(body.len()), "{} bytes", body.len());
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"0123456789"))))
    });
    spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            spawn_local(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

/// Reads one response of the pod.
async fn answer(client: &mut TcpStream) {
    let mut answer = Vec::new();
    while !answer.ends_with(b"0123456789") {
        assert!(client.read_buf(&mut answer).await.expect("an answer") > 0, "{:?}", answer.escape_ascii().to_string());
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"), "{}", answer.escape_ascii());
}

/// Returns whether the reader of the part with this number accepts pipes.
type TakesPipe = fn(usize) -> bool;

/// Reads a whole body, each part as a pipe if `takes_pipe` allows that for its number. Returns the body and the number
/// of parts that arrived in pipes.
async fn read(mut body: RequestBody, takes_pipe: TakesPipe) -> (Vec<u8>, usize) {
    let (mut whole, mut response_splice, mut number) = (Vec::new(), 0, 0);
    while !body.is_end_stream() {
        let takes_pipe = takes_pipe(number);
        number += 1;
        let part = poll_fn(|cx| match takes_pipe {
            true => body.poll_part(cx),
            false => Pin::new(&mut body).poll_frame(cx).map_ok(BodyPart::Frame),
        });
        match part.await.expect("not the end").expect("sound") {
            BodyPart::Frame(frame) => whole.extend_from_slice(&frame.into_data().expect("data")),
            BodyPart::Pipe(mut pipe) => {
                whole.extend_from_slice(&pipe.take_bytes().expect("bytes"));
                body.take_back(pipe);
                response_splice += 1;
            }
        }
    }
    (whole, response_splice)
}

/// Sends a body of `length` bytes to a server on `worker`, and returns the body that arrives there.
async fn send(worker: &Rc<Worker>, length: usize, takes_pipe: TakesPipe) -> (Vec<u8>, usize) {
    let (mut client, ours) = pair().await;
    let conn = conn(worker, false);
    let came = Arc::new(Mutex::new(None));
    let service = {
        let (conn, came) = (Rc::clone(&conn), Arc::clone(&came));
        service_fn(move |request: Request<Incoming>| {
            let (conn, came) = (Rc::clone(&conn), Arc::clone(&came));
            async move {
                conn.take_head();
                let in_flight = conn.begin(HostId(0));
                let body =
                    RequestBody::new(UnreadBody::new(&conn, ClientBody::Hyper(request.into_body())), None, &in_flight)
                        .expect("not too large");
                *came.lock().expect("unpoisoned") = Some(read(body, takes_pipe).await);
                Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
            }
        })
    };
    let wire = Wire::http1(ours, Some(|tcp| tcp), conn, Vec::new());
    let served = spawn_local(http1::Builder::new().serve_connection(TokioIo::new(wire), service));
    let head = format!("PUT / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    client.write_all(head.as_bytes()).await.expect("sent");
    client.write_all(&bytes(length)).await.expect("sent");
    let mut response = Vec::new();
    client.read_to_end(&mut response).await.expect("a response");
    assert!(response.starts_with(b"HTTP/1.1 200 OK\r\n"));
    drop(client);
    served.await.expect("no panic").expect("served");
    let came = came.lock().expect("unpoisoned").take();
    came.expect("a body")
}

#[tokio::test]
async fn bodies_are_identical_for_any_mix_of_splice_and_copy() {
    let test = async {
        let takers: [(TakesPipe, bool); 4] =
            [(|_| true, true), (|_| false, false), (|number| number % 2 == 0, true), (|number| number == 0, false)];
        for (takes_pipe, has_pipes) in takers {
            let worker = Worker::alone();
            for length in [0, WORTHWHILE as usize - 1, 3 * MIB] {
                let (body, response_splice) = send(&worker, length, takes_pipe).await;
                assert!(body == bytes(length), "{length}");
                assert_eq!(
                    response_splice > 0,
                    has_pipes && length == 3 * MIB,
                    "{response_splice} parts of {length} bytes in pipes"
                );
            }
            // Once a reader has accepted a pipe, the bytes that were read without one go through it as well.
            assert!(worker.pipes.kept() <= 2, "{} pipes", worker.pipes.kept());
        }
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn bodies_are_copied_when_no_pipe_can_be_created() {
    let test = async {
        let worker = Worker::alone();
        worker.pipes.add_buffers(1_000);
        let (body, response_splice) = send(&worker, 3 * MIB, |_| true).await;
        assert!(body == bytes(3 * MIB) && response_splice == 0);
        assert_eq!(worker.pipes.kept(), 999, "a pipe is asked for once for each body");
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn uploads_are_spliced_after_any_earlier_requests() {
    let get = "GET /10 HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let chunked = "PUT /10 HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let declined = "GET /10 HTTP/1.1\r\nHost: a.test\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
    let test = async {
        for before in ["", get, chunked, declined, &[get, get, chunked, get].concat()] {
            let worker = serving(pod().await);
            let (mut client, ours) = pair().await;
            let _served = spawn_local(http_server::http1(ours, |tcp| tcp, Vec::new(), conn(&worker, false)));
            client.write_all(before.as_bytes()).await.expect("sent");
            for _ in before.matches(" HTTP/1.1") {
                answer(&mut client).await;
            }
            assert_eq!(worker.pipes.kept(), 0);
            let head = format!("PUT /10 HTTP/1.1\r\nHost: a.test\r\nContent-Length: {}\r\n\r\n", 3 * MIB);
            client.write_all(head.as_bytes()).await.expect("sent");
            client.write_all(&bytes(3 * MIB)).await.expect("sent");
            answer(&mut client).await;
            assert!(worker.pipes.kept() > 0, "after {before:?}");
        }
    };
    LocalSet::new().run_until(test).await;
}
