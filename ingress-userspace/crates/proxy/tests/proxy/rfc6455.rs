//! WebSocket messages through the proxy (RFC 6455, 5 to 7): each passes unchanged, both ways, from clients of HTTP/1
//! and of HTTP/2, and with both sides' own splits. A proxy does not interpret a tunnel's content, so invalid frames
//! pass, too: the endpoints must answer them.

use std::{io::Write, thread};

use bytes::Bytes;
use h2::client::Builder;

use crate::ws_http2;
use ingress_proxy_testing::ws::{self, SWITCH};
use ingress_proxy_testing::{Origin, Proxy, Table, wait_until};

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
const FIN: u8 = 0x80;
/// Compressed (RFC 7692).
const RSV1: u8 = 0x40;

/// A frame as clients send it (5.2), masked.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
    let mut out = vec![first];
    match payload.len() {
        length @ ..126 => out.push(0x80 | length as u8),
        length @ ..65_536 => {
            out.push(0x80 | 126);
            out.extend((length as u16).to_be_bytes());
        }
        length => {
            out.push(0x80 | 127);
            out.extend((length as u64).to_be_bytes());
        }
    }
    out.extend(KEY);
    out.extend(payload.iter().zip(KEY.iter().cycle()).map(|(byte, key)| byte ^ key));
    out
}

fn close(code: u16, reason: &str) -> Vec<u8> {
    frame(FIN | CLOSE, &[&code.to_be_bytes(), reason.as_bytes()].concat())
}

/// Frames by topic.
fn cases() -> Vec<(String, Vec<u8>)> {
    let mut cases: Vec<(String, Vec<u8>)> = Vec::new();
    // 5.2: lengths on both sides of each form.
    for length in [0, 1, 125, 126, 127, 128, 65_535, 65_536, 65_537, 1_000_000] {
        let payload: Vec<u8> = (0..length).map(|at: u32| (at % 251) as u8).collect();
        cases.push((format!("5.2: a text of {length}"), frame(FIN | TEXT, &vec![b'x'; payload.len()])));
        cases.push((format!("5.2: {length} bytes"), frame(FIN | BINARY, &payload)));
    }
    // 5.4: fragments.
    for parts in [2, 3, 100] {
        let fragment = |part| {
            let fin = if part + 1 == parts { FIN } else { 0 };
            frame(fin | if part == 0 { TEXT } else { 0 }, format!("part {part}").as_bytes())
        };
        cases.push((format!("5.4: {parts} fragments"), (0..parts).flat_map(fragment).collect()));
        let pinged = (0..parts).flat_map(|part| [fragment(part), frame(FIN | PING, b"amid")].concat());
        cases.push((format!("5.4: {parts} fragments and pings amid"), pinged.collect()));
    }
    let empty = [frame(TEXT, b""), frame(0, b""), frame(FIN, b"")].concat();
    cases.push(("5.4: empty fragments".to_owned(), empty));
    // 5.5: control frames.
    for length in [0, 1, 124, 125] {
        cases.push((format!("5.5.2: a ping of {length}"), frame(FIN | PING, &vec![0xff; length])));
        cases.push((format!("5.5.3: a pong that nobody asked for, of {length}"), frame(FIN | PONG, &vec![0; length])));
    }
    cases.push(("5.5.2: ten pings".to_owned(), frame(FIN | PING, b"ping").repeat(10)));
    // 5.5.1 and 7.4: closing, and its reasons.
    cases.push(("5.5.1: closed without a code".to_owned(), frame(FIN | CLOSE, b"")));
    for code in [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999] {
        cases.push((format!("7.4: closed with {code}"), close(code, "")));
    }
    cases.push(("7.1.6: closed with a reason".to_owned(), close(1000, "auf Wiedersehen, ça va \u{1f44b}")));
    cases.push(("7.1.6: closed with the longest reason".to_owned(), close(1000, &"x".repeat(123))));
    // 5.6 and 8.1: text that is UTF-8 once it is reassembled.
    let word = "κόσμε \u{10ffff} \u{fffd}".as_bytes();
    cases.push(("5.6: text in UTF-8".to_owned(), frame(FIN | TEXT, word)));
    let split: Vec<u8> = (0..word.len())
        .flat_map(|at| {
            let fin = if at + 1 == word.len() { FIN } else { 0 };
            frame(fin | if at == 0 { TEXT } else { 0 }, &word[at..=at])
        })
        .collect();
    cases.push(("8.1: UTF-8 in fragments of a byte".to_owned(), split));
    // RFC 7692: extensions are negotiated by the endpoints.
    cases.push(("9: a compressed message".to_owned(), frame(FIN | RSV1 | TEXT, b"\xf2\x48\xcd\xc9\xc9\x07\x00")));
    // Frames that an endpoint refuses.
    for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65_535] {
        cases.push((format!("7.4: closed with {code}, which may not be"), close(code, "")));
    }
    for opcode in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
        cases.push((format!("5.2: the reserved opcode {opcode}"), frame(FIN | opcode, b"x")));
    }
    for bits in [0x10, 0x20, 0x40, 0x70] {
        cases.push((format!("5.2: the reserved bits {bits:#x}"), frame(FIN | bits | BINARY, b"x")));
    }
    for (name, bytes) in [
        ("5.1: a frame that is not masked", b"\x81\x01x".to_vec()),
        ("5.2: a length that is longer than it needs to be", b"\x82\xfe\x00\x01\0\0\0\0x".to_vec()),
        ("5.2: a length with its highest bit", b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0x".to_vec()),
        ("5.4: a fragment of nothing", frame(FIN, b"x")),
        ("5.4: a message within another", [frame(TEXT, b"x"), frame(FIN | TEXT, b"y")].concat()),
        ("5.5: a control frame in fragments", [frame(PING, b"x"), frame(FIN, b"y")].concat()),
        ("5.5: a control frame that is too long", frame(FIN | PING, &[b'x'; 126])),
        ("5.5.1: closed with half a code", frame(FIN | CLOSE, b"\x03")),
        ("5.5.1: closed with a reason that is no UTF-8", frame(FIN | CLOSE, b"\x03\xe8\xff\xfe")),
        ("5.5.1: something behind the close", [close(1000, ""), frame(FIN | TEXT, b"late")].concat()),
        ("8.1: text that is no UTF-8", frame(FIN | TEXT, b"\xce\xba\xe1\xbd\xb9\xcf\x83\xed\xa0\x80")),
        ("what looks like HTTP", b"GET /inner HTTP/1.1\r\nHost: b.test\r\n\r\n".to_vec()),
        ("what looks like a response", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()),
        ("line ends and NUL", b"\r\n\r\n\0\n\r".to_vec()),
    ] {
        cases.push((name.to_owned(), bytes));
    }
    cases
}

/// A proxy in front of a pod that accepts a WebSocket and echoes it to its end.
fn proxy(origin: &Origin) -> Proxy {
    Proxy::start(&Table::default().host("a.test", &[origin.address]))
}

#[test]
fn every_case_is_forwarded_unchanged_over_http1() {
    let origin = Origin::start(ws::echo);
    let proxy = proxy(&origin);
    for (name, bytes) in cases() {
        for piece in [bytes.len(), 1, 7] {
            // Long ones in small pieces would show nothing more.
            if piece < bytes.len() && bytes.len() > 2000 {
                continue;
            }
            let mut client = proxy.client();
            client.stream.set_nodelay(true).expect("set");
            client.send(ws::handshake());
            assert!(client.head().is_some_and(|head| head.starts_with("http/1.1 101 ")), "{name}");
            assert_eq!(client.at_least(5), b"hello", "{name}");
            let (mut writer, sent) = (client.stream.try_clone().expect("cloned"), bytes.clone());
            let writing = thread::spawn(move || sent.chunks(piece).all(|piece| writer.write_all(piece).is_ok()));
            assert!(client.at_least(bytes.len()) == bytes, "{name} in pieces of {piece}");
            assert!(writing.join().expect("joined"), "{name}");
            // One side ends its direction, and the other can still send.
            client.stream.shutdown(std::net::Shutdown::Write).expect("shut down");
            assert_eq!(client.at_least(3), b"bye", "{name}");
            assert!(client.is_closed(), "{name}");
        }
    }
    wait_until("all are over", || proxy.count(1).active == 0);
    assert_eq!((proxy.count(1).requests.aborted, proxy.shared.stats().refused_framing), (0, 0));
}

#[tokio::test]
async fn every_case_is_forwarded_unchanged_over_http2() {
    let origin = Origin::start(ws_http2::echo);
    let proxy = proxy(&origin);
    let stream = tokio::net::TcpStream::connect(proxy.http).await.expect("connected");
    let mut client = ws_http2::over(&Builder::new(), stream).await;
    for (name, bytes) in cases() {
        for piece in [bytes.len(), 1, 7] {
            if piece < bytes.len() && bytes.len() > 2000 {
                continue;
            }
            let (response, mut stream) = ws_http2::send(&mut client, ws_http2::handshake("websocket")).await;
            assert_eq!(response.status(), 200, "{name}");
            let mut body = response.into_body();
            assert_eq!(ws_http2::read(&mut body, Some(5)).await.expect("more"), b"hello", "{name}");
            for piece in bytes.chunks(piece) {
                stream.send_data(Bytes::copy_from_slice(piece), false).expect("sent");
            }
            let received = ws_http2::read(&mut body, Some(bytes.len())).await.expect("more");
            assert!(received == bytes, "{name} in pieces of {piece}");
            stream.send_data(Bytes::new(), true).expect("sent");
            assert_eq!(ws_http2::read(&mut body, None).await.expect("an end in order"), b"bye", "{name}");
        }
    }
}

#[test]
fn extensions_are_negotiated_end_to_end() {
    let origin = Origin::start(|peer| {
        if peer.head().is_some() {
            let extension = "Sec-WebSocket-Extensions: permessage-deflate; client_no_context_takeover\r\n\r\n";
            peer.send(SWITCH.replacen("\r\n\r\n", &format!("\r\n{extension}"), 1));
            peer.until_closed();
        }
    });
    let proxy = proxy(&origin);
    let mut client = proxy.client();
    let offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\nSec-WebSocket-Protocol: chat, superchat\r\n\
                 Origin: https://b.test\r\n\r\n";
    client.send(ws::handshake().replacen("\r\n\r\n", &format!("\r\n{offer}"), 1));
    let head = client.head().expect("a head");
    for line in
        ["sec-websocket-extensions: permessage-deflate; client_no_context_takeover", "sec-websocket-protocol: chat"]
    {
        assert!(head.contains(&format!("\r\n{line}\r\n")), "{line}: {head}");
    }
    let asked = &origin.heads()[0];
    for line in offer.trim().lines().map(str::to_lowercase) {
        assert!(asked.contains(&format!("\r\n{line}\r\n")), "{line}: {asked}");
    }
}
