//! The PROXY protocol, versions 1 and 2, by which a load balancer passes the client's address along with its bytes.
//! Parses a header, reads one off a connection without a byte more, and writes one for pods. Trust is decided
//! elsewhere: [`ingress_model::Trust`] says which peers may send a header, and the rule or port says which pods get one.
//!
//! <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use tokio::{io::AsyncReadExt, net::TcpStream};

use ingress_model::ProxyVersion;

/// Longest header of version 1, as its specification says.
pub const V1_MAX: usize = 107;
/// Longest header of version 2 that is accepted, TLVs included.
pub const V2_MAX: usize = 4096;

/// The first bytes of version 2; no other protocol begins with them.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family and transport, length.
const V2_FIXED: usize = SIGNATURE.len() + 4;

/// Content of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The load balancer speaks for itself or does not know the client: the socket's addresses hold.
    Local,
    /// The load balancer forwards a client at `source`, which connected to `destination`.
    Proxied { source: SocketAddr, destination: SocketAddr },
}

/// PROXY header that begins a connection to an endpoint, before TLS, for endpoints that want the client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    pub version: ProxyVersion,
    pub header: Header,
}

/// A parsed header and its length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedHeader {
    pub header: Header,
    pub length: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("no header of the PROXY protocol")]
    Absent,
    #[error("a header of the PROXY protocol that is malformed")]
    Malformed,
    #[error("a header of the PROXY protocol that is too long")]
    TooLong,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error("the connection ended before its header of the PROXY protocol")]
    Ended,
    #[error("cannot read the header of the PROXY protocol")]
    Io(#[source] io::Error),
}

/// Parses the header at the start of `bytes`; `None` if more bytes are needed.
///
/// # Errors
/// Fails if no header begins like that. Every prefix of a header parses without error, and an error stays one however
/// many bytes follow.
pub fn parse(bytes: &[u8]) -> Result<Option<ParsedHeader>, HeaderError> {
    let begins = |with: &[u8]| bytes.iter().zip(with).all(|(byte, expect)| byte == expect);
    if begins(SIGNATURE) {
        v2(bytes)
    } else if begins(b"PROXY ") {
        v1(bytes)
    } else {
        Err(HeaderError::Absent)
    }
}

/// Parses version 1: `PROXY TCP4 192.0.2.1 198.51.100.1 4711 80\r\n`.
fn v1(bytes: &[u8]) -> Result<Option<ParsedHeader>, HeaderError> {
    let window = &bytes[..bytes.len().min(V1_MAX)];
    let Some(end) = window.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() < V1_MAX { Ok(None) } else { Err(HeaderError::TooLong) };
    };
    let malformed = HeaderError::Malformed;
    let line = str::from_utf8(&window[..end]).map_err(|_invalid| malformed)?;
    let mut words = line.split(' ').skip(1);
    let mut word = || words.next().ok_or(malformed);
    let protocol = word()?;
    let length = end + 2;
    if protocol == "UNKNOWN" {
        // The rest of the line is to be ignored.
        return Ok(Some(ParsedHeader { header: Header::Local, length }));
    }
    let (source, destination) = (word()?, word()?);
    let (source, destination): (IpAddr, IpAddr) = match protocol {
        "TCP4" => (parsed::<Ipv4Addr>(source)?.into(), parsed::<Ipv4Addr>(destination)?.into()),
        "TCP6" => (parsed::<Ipv6Addr>(source)?.into(), parsed::<Ipv6Addr>(destination)?.into()),
        _ => return Err(malformed),
    };
    let (source, destination) = (at(source, port(word()?)?), at(destination, port(word()?)?));
    match words.next() {
        None => Ok(Some(ParsedHeader { header: Header::Proxied { source, destination }, length })),
        Some(_) => Err(malformed),
    }
}

fn parsed<T: std::str::FromStr>(word: &str) -> Result<T, HeaderError> {
    word.parse().map_err(|_invalid| HeaderError::Malformed)
}

/// Parses decimal digits, without a sign or leading zeros.
fn port(word: &str) -> Result<u16, HeaderError> {
    let is_plain = word.bytes().all(|b| b.is_ascii_digit()) && (word.len() == 1 || !word.starts_with('0'));
    if is_plain { parsed(word) } else { Err(HeaderError::Malformed) }
}

fn v2(bytes: &[u8]) -> Result<Option<ParsedHeader>, HeaderError> {
    let Some(fixed) = bytes.first_chunk::<V2_FIXED>() else { return Ok(None) };
    let [.., command, transport, high, low] = *fixed;
    let length = V2_FIXED + usize::from(u16::from_be_bytes([high, low]));
    if length > V2_MAX {
        return Err(HeaderError::TooLong);
    }
    let is_local = match command {
        0x20 => true,
        0x21 => false,
        _ => return Err(HeaderError::Malformed),
    };
    let Some(rest) = bytes.get(V2_FIXED..length) else { return Ok(None) };
    let header = if is_local { Header::Local } else { addresses(transport, rest)? };
    Ok(Some(ParsedHeader { header, length }))
}

/// Parses the addresses behind the fixed part. The TLVs behind them are of no use here.
fn addresses(transport: u8, rest: &[u8]) -> Result<Header, HeaderError> {
    fn split<const N: usize>(bytes: &[u8]) -> Option<([u8; N], &[u8])> {
        bytes.split_first_chunk::<N>().map(|(first, rest)| (*first, rest))
    }
    let proxied = |source: IpAddr, destination: IpAddr, ports: &[u8]| {
        let (source_port, ports) = split::<2>(ports)?;
        let (destination_port, _) = split::<2>(ports)?;
        let source = at(source, u16::from_be_bytes(source_port));
        let destination = at(destination, u16::from_be_bytes(destination_port));
        Some(Header::Proxied { source, destination })
    };
    let header = match transport {
        // Unspecified addresses, and Unix sockets, whose paths do not identify a client.
        0x00 => Some(Header::Local),
        0x31 => (rest.len() >= 216).then_some(Header::Local),
        0x11 => split::<4>(rest).and_then(|(source, rest)| {
            let (destination, ports) = split::<4>(rest)?;
            proxied(source.into(), destination.into(), ports)
        }),
        0x21 => split::<16>(rest).and_then(|(source, rest)| {
            let (destination, ports) = split::<16>(rest)?;
            proxied(source.into(), destination.into(), ports)
        }),
        // Datagrams cannot arrive over this connection, and the other values are not assigned.
        _ => None,
    };
    header.ok_or(HeaderError::Malformed)
}

fn at(address: IpAddr, port: u16) -> SocketAddr {
    SocketAddr::new(address.to_canonical(), port)
}

impl ProxyHeader {
    /// Returns the header's bytes on the wire.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let Self { version, header } = *self;
        match (version, header) {
            (ProxyVersion::V1, Header::Local) => b"PROXY UNKNOWN\r\n".to_vec(),
            (ProxyVersion::V1, Header::Proxied { source, destination }) => {
                let ports = (source.port(), destination.port());
                match pair(source.ip(), destination.ip()) {
                    Pair::V4(source, destination) => line("TCP4", source, destination, ports),
                    Pair::V6(source, destination) => line("TCP6", source, destination, ports),
                }
            }
            (ProxyVersion::V2, Header::Local) => binary(0x20, 0x00, &[]),
            (ProxyVersion::V2, Header::Proxied { source, destination }) => {
                let ports = [source.port().to_be_bytes(), destination.port().to_be_bytes()].concat();
                match pair(source.ip(), destination.ip()) {
                    Pair::V4(source, destination) => {
                        binary(0x21, 0x11, &[&source.octets()[..], &destination.octets(), &ports].concat())
                    }
                    Pair::V6(source, destination) => {
                        binary(0x21, 0x21, &[&source.octets()[..], &destination.octets(), &ports].concat())
                    }
                }
            }
        }
    }
}

/// Two addresses in the form a header can carry: both of one family.
enum Pair {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

fn pair(source: IpAddr, destination: IpAddr) -> Pair {
    match (source.to_canonical(), destination.to_canonical()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Pair::V4(source, destination),
        // Mixed families: mapping the IPv4 address keeps both of them.
        (source, destination) => Pair::V6(mapped(source), mapped(destination)),
    }
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

fn line(protocol: &str, source: impl fmt::Display, destination: impl fmt::Display, ports: (u16, u16)) -> Vec<u8> {
    let (source_port, destination_port) = ports;
    format!("PROXY {protocol} {source} {destination} {source_port} {destination_port}\r\n").into_bytes()
}

fn binary(command: u8, transport: u8, addresses: &[u8]) -> Vec<u8> {
    // At most 36 bytes.
    let length = addresses.len() as u8;
    [SIGNATURE, &[command, transport, 0, length], addresses].concat()
}

/// Reads the header at the start of `stream`. The bytes behind it stay in the socket for the next reader: the function
/// peeks first and then consumes only the bytes of the header.
///
/// # Errors
/// Fails if there is no header, or if the connection fails. The caller sets a time limit.
pub(crate) async fn read(stream: &mut TcpStream) -> Result<Header, ReadError> {
    // The window fits the longest header of version 1, and any of version 2 without exceptional TLVs.
    let (mut header, mut window) = (Vec::new(), [0; 256]);
    loop {
        let seen = stream.peek(&mut window).await.map_err(ReadError::Io)?;
        if seen == 0 {
            return Err(ReadError::Ended);
        }
        let before = header.len();
        header.extend_from_slice(&window[..seen]);
        let parsed = parse(&header)?;
        let taken = parsed.map_or(seen, |parsed| parsed.length - before);
        stream.read_exact(&mut window[..taken]).await.map_err(ReadError::Io)?;
        if let Some(ParsedHeader { header, length: _ }) = parsed {
            return Ok(header);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v2(command: u8, transport: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).expect("short").to_be_bytes();
        [SIGNATURE, &[command, transport], &length, rest].concat()
    }

    fn proxied(source: &str, destination: &str) -> Header {
        let address = |text: &str| text.parse().expect("an address");
        Header::Proxied { source: address(source), destination: address(destination) }
    }

    /// Parses `header`, cut at every byte and with more bytes behind it.
    fn check(header: &[u8], expect: Header) {
        for end in 0..header.len() {
            assert_eq!(parse(&header[..end]), Ok(None), "{:?}", header[..end].escape_ascii().to_string());
        }
        let whole = Ok(Some(ParsedHeader { header: expect, length: header.len() }));
        assert_eq!(parse(header), whole, "{}", header.escape_ascii());
        assert_eq!(parse(&[header, b"\r\nGET"].concat()), whole, "{}", header.escape_ascii());
    }

    const V4: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 1, 0x12, 0x67, 0, 80];

    #[test]
    fn headers_carry_source_and_destination() {
        let client = proxied("192.0.2.1:4711", "198.51.100.1:80");
        check(b"PROXY TCP4 192.0.2.1 198.51.100.1 4711 80\r\n", client);
        check(b"PROXY TCP4 192.0.2.1 198.51.100.1 0 65535\r\n", proxied("192.0.2.1:0", "198.51.100.1:65535"));
        check(b"PROXY TCP6 2001:db8::1 2001:db8::2 4711 443\r\n", proxied("[2001:db8::1]:4711", "[2001:db8::2]:443"));
        check(b"PROXY TCP6 ::ffff:192.0.2.1 ::ffff:198.51.100.1 4711 80\r\n", client);
        let longest = format!("PROXY UNKNOWN {}\r\n", "f".repeat(V1_MAX - 16));
        assert_eq!(longest.len(), V1_MAX);
        for unknown in ["PROXY UNKNOWN\r\n", "PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", &longest] {
            check(unknown.as_bytes(), Header::Local);
        }
        check(&v2(0x21, 0x11, &V4), client);
        // TLVs are ignored, even truncated ones.
        check(&v2(0x21, 0x11, &[&V4[..], &[0x04, 0, 1, 0xff, 0x20, 0xff]].concat()), client);
        let v6 = [&[0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1].repeat(2)[..], &V4[8..]].concat();
        check(&v2(0x21, 0x21, &v6), proxied("[2001:db8::1]:4711", "[2001:db8::1]:80"));
        for local in [v2(0x20, 0x00, &[]), v2(0x20, 0x11, &V4), v2(0x20, 0xff, &[1]), v2(0x21, 0x00, &[1, 2, 3])] {
            check(&local, Header::Local);
        }
        check(&v2(0x21, 0x31, &[0; 216]), Header::Local);
        check(&v2(0x20, 0, &[0; V2_MAX - V2_FIXED]), Header::Local);
    }

    /// Writes `header` in `version`, compares the bytes, and parses them back to `meant`.
    fn check_written(version: ProxyVersion, header: Header, expect: &[u8], meant: Header) {
        let written = ProxyHeader { version, header }.bytes();
        assert_eq!(written.escape_ascii().to_string(), expect.escape_ascii().to_string());
        check(&written, meant);
    }

    #[test]
    fn written_v1_headers_are_parsed_back() {
        for (source, destination, expect) in [
            ("192.0.2.1:4711", "198.51.100.1:80", "PROXY TCP4 192.0.2.1 198.51.100.1 4711 80\r\n"),
            ("[2001:db8::1]:1", "[2001:db8::2]:65535", "PROXY TCP6 2001:db8::1 2001:db8::2 1 65535\r\n"),
            ("192.0.2.1:1", "[2001:db8::2]:2", "PROXY TCP6 ::ffff:192.0.2.1 2001:db8::2 1 2\r\n"),
            ("[2001:db8::1]:0", "192.0.2.2:2", "PROXY TCP6 2001:db8::1 ::ffff:192.0.2.2 0 2\r\n"),
        ] {
            let header = proxied(source, destination);
            check_written(ProxyVersion::V1, header, expect.as_bytes(), header);
        }
        let mapped = proxied("[::ffff:192.0.2.1]:1", "[::ffff:192.0.2.2]:2");
        let plain = proxied("192.0.2.1:1", "192.0.2.2:2");
        check_written(ProxyVersion::V1, mapped, b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n", plain);
        check_written(ProxyVersion::V1, Header::Local, b"PROXY UNKNOWN\r\n", Header::Local);
    }

    /// The bytes follow section 2.2 of the specification.
    #[test]
    fn v2_headers_match_the_specification() {
        const BEGIN: &[u8] = b"\x0D\x0A\x0D\x0A\x00\x0D\x0A\x51\x55\x49\x54\x0A";
        const FIRST: &[u8] = b"\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01";
        const SECOND: &[u8] = b"\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x02";
        const MAPPED: &[u8] = b"\0\0\0\0\0\0\0\0\0\0\xff\xff\xc0\x00\x02\x01";
        let check = |header, rest: &[&[u8]], meant| {
            check_written(ProxyVersion::V2, header, &[BEGIN, &rest.concat()].concat(), meant);
        };
        let v4 = proxied("192.0.2.1:4711", "198.51.100.1:80");
        let v4_bytes: &[&[u8]] = &[b"\x21\x11\0\x0c", b"\xc0\x00\x02\x01", b"\xc6\x33\x64\x01", b"\x12\x67\x00\x50"];
        check(v4, v4_bytes, v4);
        check(proxied("[::ffff:192.0.2.1]:4711", "[::ffff:198.51.100.1]:80"), v4_bytes, v4);
        let v6 = proxied("[2001:db8::1]:65535", "[2001:db8::2]:443");
        check(v6, &[b"\x21\x21\0\x24", FIRST, SECOND, b"\xff\xff\x01\xbb"], v6);
        let mixed = proxied("192.0.2.1:0", "[2001:db8::2]:443");
        check(mixed, &[b"\x21\x21\0\x24", MAPPED, SECOND, b"\0\0\x01\xbb"], mixed);
        let mixed = proxied("[2001:db8::1]:1", "192.0.2.1:2");
        check(mixed, &[b"\x21\x21\0\x24", FIRST, MAPPED, b"\0\x01\0\x02"], mixed);
        check(Header::Local, &[b"\x20\x00\0\0"], Header::Local);
    }

    #[test]
    fn invalid_headers_are_refused() {
        use HeaderError::{Absent, Malformed, TooLong};
        for (bytes, expect) in [
            (&b"GET / HTTP/1.1\r\n"[..], Absent),
            (b"PROXYTCP4", Absent),
            (b"PRI * HTTP/2.0\r\n", Absent),
            (b"\x16\x03\x01", Absent),
            (b"\r\n\r\n\0\r\nQUIT\r", Absent),
            (b" PROXY TCP4", Absent),
            (b"PROXY \r\n", Malformed),
            (b"PROXY TCP4\r\n", Malformed),
            (b"PROXY TCP5 192.0.2.1 198.51.100.1 1 2\r\n", Malformed),
            (b"PROXY  TCP4 192.0.2.1 198.51.100.1 1 2\r\n", Malformed),
            (b"PROXY TCP4 192.0.2.1 198.51.100.1 1 2 \r\n", Malformed),
            (b"PROXY TCP4 192.0.2.1 198.51.100.1 1 2 3\r\n", Malformed),
            (b"PROXY TCP4 192.0.2.1 198.51.100.1 1\r\n", Malformed),
            (b"PROXY TCP4 192.0.2.1 198.51.100.1 01 2\r\n", Malformed),
            (b"PROXY TCP4 192.0.2.1 198.51.100.1 +1 2\r\n", Malformed),
            (b"PROXY TCP4 192.0.2.1 198.51.100.1 1 65536\r\n", Malformed),
            (b"PROXY TCP4 192.0.2.01 198.51.100.1 1 2\r\n", Malformed),
            (b"PROXY TCP4 2001:db8::1 2001:db8::2 1 2\r\n", Malformed),
            (b"PROXY TCP6 192.0.2.1 198.51.100.1 1 2\r\n", Malformed),
            (b"PROXY TCP4 192.0.2.1\t198.51.100.1 1 2\r\n", Malformed),
            (b"PROXY UNKNOWNX\r\n", Malformed),
            (b"PROXY \xff\r\n", Malformed),
        ] {
            assert_eq!(parse(bytes), Err(expect), "{}", bytes.escape_ascii());
        }
        assert_eq!(parse(&[b"PROXY UNKNOWN ", &[b'x'; V1_MAX - 14][..], b"\r\n"].concat()), Err(TooLong));
        assert_eq!(parse(&v2(0x20, 0, &[0; V2_MAX - V2_FIXED + 1])[..V2_FIXED]), Err(TooLong));
        for (command, transport, rest) in [
            (0x11, 0x11, &V4[..]),
            (0x22, 0x11, &V4),
            (0x21, 0x11, &V4[..11]),
            (0x21, 0x21, &V4),
            (0x21, 0x31, &V4),
            (0x21, 0x12, &V4),
            (0x21, 0x41, &V4),
            (0x21, 0x10, &V4),
        ] {
            assert_eq!(parse(&v2(command, transport, rest)), Err(Malformed), "{command:x} {transport:x}");
        }
    }

    /// Returns a connection and its client, which has sent `pieces`.
    async fn received(pieces: &[&[u8]]) -> (TcpStream, TcpStream) {
        use tokio::io::AsyncWriteExt;
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("bound");
        let mut client = TcpStream::connect(listener.local_addr().expect("address")).await.expect("connected");
        let (stream, _) = listener.accept().await.expect("accepted");
        for piece in pieces {
            client.write_all(piece).await.expect("sent");
        }
        (stream, client)
    }

    #[tokio::test]
    async fn bytes_after_the_header_stay_in_the_socket() {
        let long = v2(0x21, 0x11, &[&V4[..], &[7; 3000]].concat());
        let plain = b"PROXY TCP4 192.0.2.1 198.51.100.1 4711 80\r\n";
        for header in [&plain[..], &v2(0x21, 0x11, &V4), &long] {
            let (mut stream, client) = received(&[header, b"GET /"]).await;
            assert_eq!(read(&mut stream).await.expect("a header"), proxied("192.0.2.1:4711", "198.51.100.1:80"));
            drop(client);
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await.expect("read");
            assert_eq!(rest, b"GET /");
        }
        let (mut stream, client) = received(&[&plain[..20]]).await;
        drop(client);
        assert!(matches!(read(&mut stream).await, Err(ReadError::Ended)));
    }
}
