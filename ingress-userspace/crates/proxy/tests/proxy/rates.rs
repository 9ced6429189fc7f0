//! Clients within every time-out that are too slow all the same: those that trickle a body, and those that read a
//! response in drops.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    num::NonZeroU32,
    thread,
    time::{Duration, Instant},
};

use ingress_model::{Forwarding, Settings, Uploads};
use socket2::{Domain, Socket, Type};

use crate::frames::{DATA, END_HEADERS, HEADERS, NONE, POST, Raw, fields, frame};
use ingress_proxy_testing::{Origin, Proxy, Table, wait_until};

/// Clients are waited for this long before they are judged, and a while longer.
const JUDGED: Duration = Duration::from_secs(8);
const DROP: Duration = Duration::from_millis(100);

fn settings() -> Settings {
    let rate = NonZeroU32::new(1_000_000);
    // The interval of ticks, and with them of the clock, is a quarter of the shortest time-out.
    Settings { body_min_rate: rate, read_min_rate: rate, head_timeout: Duration::from_secs(1), ..Settings::default() }
}

/// Sends `drop` again and again for as long as [`JUDGED`]. Returns the answer if the other side ended it or answered.
fn trickles(stream: &mut TcpStream, head: &str, drop: &[u8]) -> Option<String> {
    stream.write_all(head.as_bytes()).expect("sent");
    stream.set_read_timeout(Some(DROP)).expect("set");
    let (began, mut answer) = (Instant::now(), Vec::new());
    while began.elapsed() < JUDGED {
        let _gone = stream.write_all(drop);
        let mut bytes = [0; 1000];
        match stream.read(&mut bytes) {
            Ok(0) => return Some(String::from_utf8(answer).expect("text")),
            Ok(count) => answer.extend_from_slice(&bytes[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_reset) => return Some(String::from_utf8(answer).expect("text")),
        }
    }
    None
}

#[test]
fn a_slow_body_gets_408_unless_its_rule_streams() {
    let origin = Origin::start(|peer| {
        if peer.head().is_some() {
            peer.until_closed();
        }
    });
    let streaming = Forwarding { uploads: Uploads::StreamedAtAnyRate, ..Forwarding::default() };
    let table = Table::default().host("a.test", &[origin.address]).host("b.test", &[origin.address]);
    let proxy = Proxy::start(&table.forwarding("b.test", streaming).settings(settings()));
    let post =
        |host: &str, more: &str| format!("POST / HTTP/1.1\r\nHost: {host}\r\n{more}Transfer-Encoding: chunked\r\n\r\n");
    let cases = [
        (post("a.test", ""), true),
        (post("b.test", ""), false),
        (post("a.test", "Content-Type: application/grpc\r\n"), false),
    ];
    thread::scope(|scope| {
        let running = cases.map(|(head, ends)| {
            let mut stream = TcpStream::connect(proxy.http).expect("connected");
            scope.spawn(move || (trickles(&mut stream, &head, b"3\r\nabc\r\n"), ends, head))
        });
        let stream = scope.spawn(|| {
            let mut client = Raw::begun(&proxy, &[]);
            client.send(&frame(HEADERS, END_HEADERS, 1, &fields(POST)));
            let began = Instant::now();
            while began.elapsed() < JUDGED {
                client.send(&frame(DATA, NONE, 1, b"abc"));
                thread::sleep(DROP);
            }
            // The status is an index into the encoder's or the client's table, so only the text is read.
            String::from_utf8(client.until(DATA).payload).expect("text")
        });
        for case in running {
            let (answer, ends, head) = case.join().expect("no panic");
            assert_eq!(answer.is_some(), ends, "{head}: {answer:?}");
            assert!(answer.is_none_or(|answer| answer.starts_with("HTTP/1.1 408 ")), "{head}");
        }
        assert!(stream.join().expect("no panic").starts_with("408 "));
    });
    assert_eq!(proxy.shared.stats().slow_bodies, 2);
}

#[test]
fn slow_readers_are_disconnected_but_slow_pods_are_not() {
    let origin = Origin::start(|peer| {
        let Some(head) = peer.head() else { return };
        peer.send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        if head.starts_with("get /slow") {
            for _ in 0..JUDGED.as_millis() / DROP.as_millis() {
                peer.send("drop");
                thread::sleep(DROP);
            }
        } else {
            peer.send(vec![b'x'; 50_000_000]);
        }
    });
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]).settings(settings()));
    thread::scope(|scope| {
        let slow_pod = scope.spawn(|| proxy.client().get("a.test", "/slow").body.len());
        // A small window, so that unread bytes show soon.
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.set_recv_buffer_size(16 * 1024).expect("set");
        socket.connect(&proxy.http.into()).expect("connected");
        let mut client = TcpStream::from(socket);
        client.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").expect("sent");
        let (began, mut taken) = (Instant::now(), 0);
        while proxy.shared.stats().slow_reads == 0 {
            assert!(began.elapsed() < 3 * JUDGED, "{taken} bytes were taken");
            let mut bytes = vec![0; 30_000];
            match client.read(&mut bytes) {
                Ok(count) if count > 0 => taken += count,
                // It has ended between the look at the count and this read, which is what is waited for.
                ended => {
                    wait_until("it counts", || proxy.shared.stats().slow_reads == 1);
                    drop(ended);
                    break;
                }
            }
            thread::sleep(DROP);
        }
        assert!(began.elapsed() > Duration::from_secs(5));
        wait_until("it has ended", || proxy.count(1).active <= 1);
        assert_eq!(slow_pod.join().expect("no panic"), 4 * 80);
    });
    let stats = proxy.shared.stats();
    assert_eq!((stats.slow_reads, stats.timed_out), (1, 0));
}
