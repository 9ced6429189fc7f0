//! Faults of libraries that no layer above them can mend. Each test describes the actual behaviour, and fails once a
//! version of the library does better, so that the page that names the fault is corrected.

use std::io::{Read as _, Write as _};

use crate::{
    frames::{DATA, END_HEADERS, END_STREAM, Frame, HEADERS, NONE, PING, Raw, frame},
    rfc9113::literal,
};
use ingress_proxy_testing::{Client, Origin, Proxy, Table, wait_until};

/// The message of a test that fails for a good reason.
const FIXED: &str = "the library has been fixed: remove this test and the line about it in docs/hardening.md";

#[test]
fn expectations_over_http2_get_no_100() {
    let origin = Origin::answering("pod");
    let proxy = Proxy::start(&Table::default().host("a.test", &[origin.address]));
    let mut client = Raw::begun(&proxy, &[]);
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "a.test"),
        (":path", "/"),
        ("expect", "100-continue"),
        ("content-length", "3"),
    ];
    let fields: Vec<u8> = fields.iter().flat_map(|(name, value)| literal(name.as_bytes(), value.as_bytes())).collect();
    client.send(&frame(HEADERS, END_HEADERS, 1, &fields));
    wait_until("the pod waits for the body", || origin.connections() == 1);
    client.send(&frame(PING, NONE, 0, b"anything"));
    let mut heads = 0;
    let mut next = |client: &mut Raw| {
        let frame = client.next().expect("a frame");
        heads += usize::from(frame.kind == HEADERS);
        frame
    };
    while next(&mut client).kind != PING {}
    client.send(&frame(DATA, END_STREAM, 1, b"abc"));
    let is_last = |Frame { kind, flags, .. }: &Frame| [DATA, HEADERS].contains(kind) && flags & END_STREAM != 0;
    while !is_last(&next(&mut client)) {}
    // A response, and no interim one before it.
    assert_eq!(heads, 1, "{FIXED}");
}

/// A handshake message in a record (RFC 8446, 4 and 5.1).
fn client_hello(version: u8, extensions: &[u8]) -> Vec<u8> {
    let long = |bytes: &[u8]| [&u16::try_from(bytes.len()).expect("short").to_be_bytes(), bytes].concat();
    // TLS_AES_128_GCM_SHA256 and TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256.
    let suites = long(&[0x13, 0x01, 0xc0, 0x2b]);
    let body = [&[3, version][..], &[7; 32], &[0], &suites, &[1, 0], &long(extensions)].concat();
    let message = [&[1, 0][..], &long(&body)].concat();
    [&[22, 3, 1][..], &long(&message)].concat()
}

/// Returns the description of the fatal alert that answers a ClientHello.
fn alert(proxy: &Proxy, hello: &[u8]) -> u8 {
    let mut client = Client::connect(proxy.https);
    client.stream.write_all(hello).expect("sent");
    let mut record = [0; 7];
    client.stream.read_exact(&mut record).expect("a record");
    assert_eq!((record[0], record[5]), (21, 2), "a fatal alert");
    record[6]
}

#[test]
fn tls_alerts_may_lack_a_specific_reason() {
    const HANDSHAKE_FAILURE: u8 = 40;
    let proxy = Proxy::start(&Table::default());
    let groups = [0, 10, 0, 4, 0, 2, 0, 29];
    let signatures = [0, 13, 0, 4, 0, 2, 4, 3];
    let only_tls13 = [0, 43, 0, 3, 2, 3, 4];
    for (what, version, extensions, wanted) in [
        // Clients of these versions know no `signature_algorithms`. With it, the alert is right.
        ("protocol_version for TLS 1.0", 1, groups.to_vec(), 70),
        ("protocol_version for TLS 1.1", 2, groups.to_vec(), 70),
        ("missing_extension for no key_share", 3, [&groups[..], &signatures, &only_tls13].concat(), 109),
    ] {
        let alert = alert(&proxy, &client_hello(version, &extensions));
        assert_ne!(alert, wanted, "{what}: {FIXED}");
        assert_eq!(alert, HANDSHAKE_FAILURE, "another alert than docs/hardening.md names instead of {what}");
    }
}
