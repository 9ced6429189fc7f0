//! TCP services: the bytes of a connection at the pods, the client's address there, and connections across changes of
//! ports.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    time::Duration,
};

use ingress_common::{HostL7, Requests};
use ingress_model::{
    Endpoint, Networks, ProxyVersion, Settings, StreamPort, StreamRetry, StreamService, StreamSettings, Transport,
    Trust, Upstream, UpstreamKey,
};
use ingress_proxy::Options;

use ingress_proxy_testing::{DEADLINE, Origin, Proxy, STREAMS, Table, wait_until};

/// PROXY headers before the bytes of a connection.
#[derive(Clone, Copy, Default)]
struct Header {
    accepted: bool,
    sent: Option<ProxyVersion>,
}

/// The table in which `port` leads to these endpoints.
fn leading(port: u16, endpoints: &[SocketAddr], header: Header, settings: Settings) -> Table {
    let mut table = Table::default().settings(settings);
    let upstream = UpstreamKey::new("default", "db", "5432");
    let mut endpoints: Vec<_> = endpoints.iter().map(|&address| Endpoint { address }).collect();
    endpoints.sort();
    table.0.upstreams.insert(upstream.clone(), Upstream { endpoints, ..Upstream::default() }.into());
    let Header { accepted, sent } = header;
    let service = StreamService { upstream, accepts_proxy_protocol: accepted, proxy_header: sent };
    table.0.streams.insert(StreamPort { transport: Transport::Tcp, number: port }, service);
    table
}

/// A proxy with a port that leads to `endpoints`.
fn serve(endpoints: &[SocketAddr], header: Header, settings: Settings) -> Proxy {
    let table = |port| leading(port, endpoints, header, settings);
    Proxy::start_for_streams(table, &Options::default())
}

/// Sends all received bytes back at the end of the stream.
fn mirror() -> Origin {
    Origin::start(|peer| {
        peer.until_closed();
        let bytes = peer.take();
        peer.send([b"got ", &bytes[..]].concat());
    })
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.streams).expect("connected");
    stream.set_read_timeout(Some(DEADLINE)).expect("set");
    stream
}

/// Returns the response to `bytes`, and the address that they were sent from.
fn exchange(proxy: &Proxy, bytes: &[u8]) -> (SocketAddr, Result<String, ErrorKind>) {
    let mut stream = connect(proxy);
    let local = stream.local_addr().expect("an address");
    let mut answer = String::new();
    let result = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
    let result = result.and_then(|()| stream.read_to_string(&mut answer));
    (local, result.map(|_| answer).map_err(|error| error.kind()))
}

fn count(proxy: &Proxy) -> HostL7 {
    proxy.count(STREAMS)
}

#[test]
fn bytes_flow_both_ways_and_are_counted() {
    let pod = mirror();
    let proxy = serve(&[pod.address], Header::default(), Settings::default());
    let mut expect = HostL7::default();
    for bytes in ["", "a", &"many".repeat(100_000)] {
        let (_, answer) = exchange(&proxy, bytes.as_bytes());
        assert_eq!(answer, Ok(format!("got {bytes}")));
        expect.requests.success += 1;
        expect.bytes_in += bytes.len() as u64;
        expect.bytes_out += 4 + bytes.len() as u64;
        proxy.wait_count(STREAMS, expect);
    }
}

#[test]
fn pods_get_a_proxy_header_if_configured() {
    let pod = mirror();
    let port = |proxy: &Proxy| proxy.streams.port();
    let sent = Header { sent: Some(ProxyVersion::V1), ..Header::default() };
    let proxy = serve(&[pod.address], sent, Settings::default());
    let (local, answer) = exchange(&proxy, b"hello");
    let header = format!("PROXY TCP4 127.0.0.1 127.0.0.1 {} {}\r\n", local.port(), port(&proxy));
    assert_eq!(answer, Ok(format!("got {header}hello")));
    // The header is the proxy's; only the client's bytes are counted.
    let requests = Requests { success: 1, ..Requests::default() };
    let expect = HostL7 { requests, bytes_in: 5, bytes_out: (4 + header.len() + 5) as u64, ..HostL7::default() };
    proxy.wait_count(STREAMS, expect);

    let through = b"PROXY TCP6 2001:db8::1 2001:db8::2 4711 443\r\nhello";
    let v1 = Some(ProxyVersion::V1);
    for (sent, expect) in [(v1, "got PROXY TCP6 2001:db8::1 2001:db8::2 4711 443\r\nhello"), (None, "got hello")] {
        let proxy = serve(&[pod.address], Header { accepted: true, sent }, Settings::default());
        assert_eq!(exchange(&proxy, through).1, Ok(expect.to_owned()));
    }
    let proxy = serve(&[pod.address], Header { accepted: true, sent: v1 }, Settings::default());
    let (local, answer) = exchange(&proxy, b"PROXY UNKNOWN\r\nhello");
    let header = format!("PROXY TCP4 127.0.0.1 127.0.0.1 {} {}\r\n", local.port(), port(&proxy));
    assert_eq!(answer, Ok(format!("got {header}hello")), "a load balancer that speaks for itself");
}

#[test]
fn pods_may_get_a_v2_proxy_header() {
    // The bytes are no text: the answer shows them as escapes.
    let pod = Origin::start(|peer| {
        peer.until_closed();
        let text = peer.received().escape_ascii().to_string();
        peer.send(text);
    });
    let header = Header { accepted: true, sent: Some(ProxyVersion::V2) };
    let proxy = serve(&[pod.address], header, Settings::default());
    let (_, answer) = exchange(&proxy, b"PROXY TCP4 192.0.2.1 198.51.100.1 4711 80\r\nhello");
    let expect = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\xc6\x33\x64\x01\x12\x67\0\x50hello";
    assert_eq!(answer, Ok(expect.escape_ascii().to_string()));
}

#[test]
fn untrusted_proxy_headers_are_refused() {
    let pod = mirror();
    let accepted = Header { accepted: true, ..Header::default() };
    let trusted_proxies = |list: &str| {
        let trusted_proxies = Networks::parse(list).expect("networks");
        Settings { trust: Trust { trusted_proxies, ..Trust::default() }, ..Settings::default() }
    };
    let hello = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nhello";
    for (settings, bytes) in
        [(trusted_proxies("192.0.2.0/24"), &hello[..]), (Settings::default(), b"hello, without a header\r\n")]
    {
        let proxy = serve(&[pod.address], accepted, settings);
        assert_ne!(exchange(&proxy, bytes).1, Ok("got hello".to_owned()));
        wait_until("it is counted", || proxy.shared.stats().refused[0] == 1);
        assert_eq!(count(&proxy), HostL7::default());
    }
    assert_eq!(pod.connections(), 0);
    let proxy = serve(&[pod.address], accepted, trusted_proxies("127.0.0.0/8"));
    assert_eq!(exchange(&proxy, hello).1, Ok("got hello".to_owned()));
}

#[test]
fn a_stream_without_endpoints_is_reset() {
    let pod = mirror();
    let unserved = HostL7 { requests: Requests { server_error: 1, ..Requests::default() }, ..HostL7::default() };
    for endpoints in [&[][..], &[Origin::refusing()]] {
        let proxy = serve(endpoints, Header::default(), Settings::default());
        assert!(exchange(&proxy, b"hello").1.is_err());
        proxy.wait_count(STREAMS, unserved);
    }
    let endpoints = [Origin::refusing(), pod.address];
    let proxy = serve(&endpoints, Header::default(), Settings::default());
    for _ in 0..4 {
        assert!(exchange(&proxy, b"hello").1.is_ok(), "another endpoint is tried");
    }
    let retry = StreamRetry { enabled: false, ..StreamSettings::default().retry };
    let settings = Settings { streams: StreamSettings { retry, ..StreamSettings::default() }, ..Settings::default() };
    let proxy = serve(&endpoints, Header::default(), settings);
    let answers = [(); 2].map(|()| exchange(&proxy, b"hello").1);
    assert_eq!(answers.iter().filter(|answer| answer.is_err()).count(), 1, "each is tried alone: {answers:?}");
}

#[test]
fn a_change_of_ports_does_not_affect_open_streams() {
    let (pod, other) = (mirror(), mirror());
    let proxy = serve(&[pod.address], Header::default(), Settings::default());
    let mut open = connect(&proxy);
    open.write_all(b"he").expect("sent");
    wait_until("a pod has it", || pod.connections() == 1);
    proxy.publish(&Table::default());
    assert!(exchange(&proxy, b"x").1.is_err(), "the port is gone");
    let port = proxy.streams.port();
    proxy.publish(&leading(port, &[other.address], Header::default(), Settings::default()));
    assert!(exchange(&proxy, b"x").1.is_ok());
    assert_eq!(other.connections(), 1);
    open.write_all(b"llo").expect("sent");
    open.shutdown(Shutdown::Write).expect("ended");
    let mut answer = String::new();
    open.read_to_string(&mut answer).expect("an end in order");
    assert_eq!(answer, "got hello");
}

#[test]
fn an_idle_stream_times_out_and_is_counted() {
    let pod = Origin::start(|peer| peer.until_closed());
    let streams = StreamSettings { timeout: Duration::from_millis(50), ..StreamSettings::default() };
    let proxy = serve(&[pod.address], Header::default(), Settings { streams, ..Settings::default() });
    let mut stream = connect(&proxy);
    assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "closed");
    wait_until("it is counted", || proxy.shared.stats().timed_out == 1);
    proxy.wait_count(STREAMS, HostL7 { requests: Requests { aborted: 1, ..Requests::default() }, ..HostL7::default() });
}

#[test]
fn a_stream_counts_for_its_worker_until_it_ends() {
    let origin = mirror();
    let proxy = serve(&[origin.address], Header::default(), Settings::default());
    let mut stream = connect(&proxy);
    stream.write_all(b"ping").expect("sent");
    wait_until("the pod has it", || origin.connections() == 1);
    assert_eq!(proxy.load().open, 1);
    drop(stream);
    wait_until("nothing is held", || proxy.load().open == 0);
}
