//! The client of a request: the peer, or the client that a trusted proxy names in `X-Forwarded-For`. Pure; other code
//! acts on the result.
//!
//! ```text
//! client ──▶ hop ──▶ hop ──▶ this proxy       X-Forwarded-For: client, hop
//!                     └ the peer
//! ```
//!
//! The addresses of a chain are read from its end, for as long as the proxy that added each one is trusted. Addresses
//! that the client itself wrote are left of the client's own address, where reading stops.

use std::{borrow::Cow, fmt::Write as _, net::IpAddr};

use http::{HeaderMap, HeaderName, HeaderValue};

use ingress_model::Trust;

use crate::http::{authority::Authority, fields::Field};

const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Length of the longest address in text form.
const ADDRESS_MAX: usize = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".len();

/// The other end of a connection, from the socket or from the PROXY protocol.
#[derive(Debug)]
pub(crate) struct Peer {
    address: IpAddr,
    secure: bool,
    /// The port that the peer connected to.
    port: u16,
    /// Whether the address is from the PROXY protocol, which then takes precedence.
    is_proxied: bool,
    /// See [`fields`].
    forwarded: Box<[u8]>,
}

/// The client of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RequestClient<'r> {
    pub(crate) address: IpAddr,
    /// Whether the client's own connection is encrypted.
    pub(crate) secure: bool,
    /// The port that the client connected to.
    pub(crate) port: u16,
    /// The forwarding fields sent to pods.
    pub(crate) forwarded: Cow<'r, [u8]>,
    /// The authority in `X-Forwarded-Host`, if the field is trusted and valid.
    pub(crate) host: Option<&'r HeaderValue>,
    /// A further client field to be dropped, because its source is not trusted.
    pub(crate) hidden: Option<&'r HeaderName>,
}

impl Peer {
    pub(crate) fn new(address: IpAddr, secure: bool, port: u16) -> Self {
        let mut noted = String::with_capacity(ADDRESS_MAX);
        push_address(&mut noted, address);
        Self { address, secure, port, is_proxied: false, forwarded: fields(&noted, &noted, secure, port, "") }
    }

    /// Returns the peer named by a PROXY protocol header. A sender that was reached at port 443 has terminated TLS.
    pub(crate) fn proxied(address: IpAddr, secure: bool, port: u16) -> Self {
        Self { is_proxied: true, ..Self::new(address, secure || port == 443, port) }
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the client of a request with these `headers`. Costs nothing if no field is trusted.
    pub(crate) fn client<'r>(&'r self, trust: &'r Trust, headers: &'r HeaderMap) -> RequestClient<'r> {
        let Self { address, secure, port, is_proxied, forwarded } = self;
        let Trust { trusted_proxies, forwarded: trusts_all, address: _, field, keeps_chain, .. } = trust;
        if !trust.trusts(*address) {
            let forwarded = Cow::Borrowed(&**forwarded);
            let hidden = (trust.forwarded || trust.address).then_some(field);
            return RequestClient { address: *address, secure: *secure, port: *port, forwarded, host: None, hidden };
        }
        let chain = || headers.get_all(field).iter().map(text);
        let client = if *is_proxied {
            *address
        } else {
            walk(*address, |trusted_proxy| trusted_proxies.contains(trusted_proxy), chain())
        };
        let claims = if *trusts_all { ForwardingClaims::of(headers) } else { ForwardingClaims::default() };
        let secure = claims.secure.unwrap_or(*secure);
        let port = claims.port.unwrap_or(match claims.secure {
            Some(claimed) if claimed != self.secure => {
                if claimed {
                    443
                } else {
                    80
                }
            }
            _ => *port,
        });
        let mut own = String::with_capacity(ADDRESS_MAX);
        push_address(&mut own, client);
        let original = chain().collect::<Vec<_>>().join(", ");
        let noted = if *trusts_all && *keeps_chain {
            let mut noted = original.clone();
            if !noted.is_empty() {
                noted.push_str(", ");
            }
            push_address(&mut noted, *address);
            Cow::Owned(noted)
        } else {
            Cow::Borrowed(&own)
        };
        let forwarded = fields(&noted, &own, secure, port, &original);
        RequestClient {
            address: client,
            secure,
            port,
            forwarded: Cow::Owned(forwarded.into()),
            host: claims.host,
            hidden: None,
        }
    }
}

/// Fields in which a trusted proxy describes the connection that it accepted. Each must occur once: if there are two,
/// the proxy has added its own to one sent by the client.
#[derive(Debug, Default)]
struct ForwardingClaims<'r> {
    secure: Option<bool>,
    port: Option<u16>,
    host: Option<&'r HeaderValue>,
}

impl<'r> ForwardingClaims<'r> {
    fn of(headers: &'r HeaderMap) -> Self {
        let once = |name: &HeaderName| Field::of(headers, name).once();
        let secure = once(&PROTO).and_then(|proto| match proto.as_bytes() {
            proto if proto.eq_ignore_ascii_case(b"https") => Some(true),
            proto if proto.eq_ignore_ascii_case(b"http") => Some(false),
            _ => None,
        });
        let port = once(&PORT).and_then(|port| text(port).parse().ok()).filter(|port| *port != 0);
        let host = once(&HOST).filter(|host| host.to_str().is_ok_and(|host| Authority::parse(host).is_ok()));
        Self { secure, port, host }
    }
}

/// Replaces a value that is not text, so that it is neither an address nor a number.
fn text(value: &HeaderValue) -> &str {
    value.to_str().unwrap_or("?")
}

/// Returns the client of `chain`, with its last address added by `peer`. This is the first address from the end that is
/// not a trusted proxy, or the one before an invalid address; if all are trusted proxies, the first of the chain.
fn walk<'h>(
    peer: IpAddr,
    is_trusted_proxy: impl Fn(IpAddr) -> bool,
    chain: impl DoubleEndedIterator<Item = &'h str>,
) -> IpAddr {
    let mut client = peer;
    let noted = chain.rev().flat_map(|field| field.rsplit(',')).map(str::trim).filter(|noted| !noted.is_empty());
    for noted in noted {
        match address(noted) {
            Some(address) if is_trusted_proxy(client) => client = address,
            _ => break,
        }
    }
    client
}

/// Parses an address, which some proxies write with a port.
fn address(text: &str) -> Option<IpAddr> {
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok().map(IpAddr::V6);
    let with_port = || text.parse::<std::net::SocketAddr>().ok().map(|address| address.ip());
    text.parse().ok().or_else(with_port).or_else(bracketed).map(|address| address.to_canonical())
}

/// Returns the forwarding fields sent to pods. Fields of these names from the client are dropped, or have been used
/// above. `original` is the chain as a trusted proxy sent it.
fn fields(noted: &str, client: &str, secure: bool, port: u16, original: &str) -> Box<[u8]> {
    let scheme = if secure { "https" } else { "http" };
    let mut digits = itoa::Buffer::new();
    let fields = [
        "x-forwarded-for: ",
        noted,
        "\r\nx-real-ip: ",
        client,
        "\r\nx-forwarded-proto: ",
        scheme,
        "\r\nx-forwarded-scheme: ",
        scheme,
        "\r\nx-scheme: ",
        scheme,
        "\r\nx-forwarded-port: ",
        digits.format(port),
        "\r\n",
    ];
    let mut fields = fields.concat();
    if !original.is_empty() {
        fields.push_str("x-original-forwarded-for: ");
        fields.push_str(original);
        fields.push_str("\r\n");
    }
    fields.into_bytes().into()
}

/// Appends the address like the `Display` of [`IpAddr`], for IPv4 in a tenth of the instructions: this runs for each
/// connection and each line of the access log.
pub(crate) fn push_address(text: &mut String, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            for (index, octet) in address.octets().into_iter().enumerate() {
                if index > 0 {
                    text.push('.');
                }
                text.push_str(itoa::Buffer::new().format(octet));
            }
        }
        // Writing to a `String` cannot fail.
        IpAddr::V6(address) => write!(text, "{address}").unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ingress_model::Networks;

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            let name = HeaderName::try_from(*name).expect("a name");
            headers.append(name, HeaderValue::from_str(value).expect("a value"));
        }
        headers
    }

    fn trusting(trusted_proxies: &str) -> Trust {
        Trust {
            trusted_proxies: Networks::parse(trusted_proxies).expect("networks"),
            forwarded: true,
            ..Trust::default()
        }
    }

    #[test]
    fn addresses_are_formatted_as_by_the_standard_library() {
        for address in ["0.0.0.0", "10.20.99.100", "255.255.255.255", "::", "2001:db8::1", "::ffff:1.2.3.4"] {
            let mut text = "is ".to_owned();
            push_address(&mut text, address.parse().expect("an address"));
            assert_eq!(text, format!("is {address}"));
        }
    }

    #[test]
    fn the_last_untrusted_address_of_the_chain_is_the_client() {
        const TRUSTED_PROXIES: &str = "10.0.0.0/8, 2001:db8::/32";
        for (trusted_proxies, chain, expect) in [
            (TRUSTED_PROXIES, &["192.0.2.1"][..], "192.0.2.1"),
            (TRUSTED_PROXIES, &["198.51.100.1, 192.0.2.1"], "192.0.2.1"),
            (TRUSTED_PROXIES, &["192.0.2.1, 10.0.0.2"], "192.0.2.1"),
            (TRUSTED_PROXIES, &["1.1.1.1, 192.0.2.1, 10.0.0.2, 2001:db8::7"], "192.0.2.1"),
            (TRUSTED_PROXIES, &["192.0.2.1", "10.0.0.2,10.0.0.3"], "192.0.2.1"),
            // All are trusted proxies: the first of them made the request.
            (TRUSTED_PROXIES, &["10.0.0.4, 10.0.0.3"], "10.0.0.4"),
            (TRUSTED_PROXIES, &["192.0.2.1, nonsense, 10.0.0.2"], "10.0.0.2"),
            (TRUSTED_PROXIES, &["unknown"], "10.0.0.1"),
            (TRUSTED_PROXIES, &["192.0.2.1 10.0.0.2"], "10.0.0.1"),
            (TRUSTED_PROXIES, &["192.0.2.1\u{a0}"], "10.0.0.1"),
            (TRUSTED_PROXIES, &[""], "10.0.0.1"),
            (TRUSTED_PROXIES, &[",, 192.0.2.1 ,"], "192.0.2.1"),
            (TRUSTED_PROXIES, &[], "10.0.0.1"),
            (TRUSTED_PROXIES, &["192.0.2.1:4711"], "192.0.2.1"),
            (TRUSTED_PROXIES, &["[2001:db9::1]:4711"], "2001:db9::1"),
            (TRUSTED_PROXIES, &["[2001:db9::1]"], "2001:db9::1"),
            (TRUSTED_PROXIES, &["::ffff:192.0.2.1"], "192.0.2.1"),
            // The default of ingress-nginx: every IPv4 address is a trusted proxy.
            ("0.0.0.0/0", &["1.1.1.1, 192.0.2.1"], "1.1.1.1"),
            ("0.0.0.0/0", &["2001:db9::1, 192.0.2.1"], "2001:db9::1"),
            ("192.0.2.0/24", &["1.1.1.1"], "10.0.0.1"),
            ("", &["1.1.1.1"], "10.0.0.1"),
        ] {
            let fields: Vec<_> = chain.iter().map(|value| ("x-forwarded-for", *value)).collect();
            let (headers, trust) = (headers(&fields), trusting(trusted_proxies));
            let peer = Peer::new([10, 0, 0, 1].into(), false, 80);
            assert_eq!(peer.client(&trust, &headers).address.to_string(), expect, "{trusted_proxies} {chain:?}");
        }
    }

    /// Returns the fields sent to pods for a client, and its host.
    fn written(trust: &Trust, peer: &Peer, fields: &[(&str, &str)]) -> (String, Option<String>, bool) {
        let headers = headers(fields);
        let RequestClient { forwarded, host, secure, .. } = peer.client(trust, &headers);
        let written = String::from_utf8(forwarded.into_owned()).expect("text");
        let value = |line: &str| {
            let (name, value) = line.split_once(": ")?;
            // `x-scheme` repeats the scheme; the chain as sent by the proxy is checked below.
            (!matches!(name, "x-scheme" | "x-original-forwarded-for")).then(|| value.to_owned())
        };
        let values: Vec<_> = written.lines().filter_map(value).collect();
        (values.join("|"), host.map(|host| text(host).to_owned()), secure)
    }

    #[test]
    fn a_trusted_proxy_sets_scheme_and_port_of_the_client() {
        let trust = trusting("10.0.0.0/8");
        let trusted_proxy = || Peer::new([10, 0, 0, 1].into(), false, 80);
        for (fields, expect, secure) in [
            (&[][..], "10.0.0.1|10.0.0.1|http|http|80", false),
            (&[("x-forwarded-proto", "https")], "10.0.0.1|10.0.0.1|https|https|443", true),
            (&[("x-forwarded-proto", "HTTP")], "10.0.0.1|10.0.0.1|http|http|80", false),
            (
                &[("x-forwarded-proto", "https"), ("x-forwarded-port", "8443")],
                "10.0.0.1|10.0.0.1|https|https|8443",
                true,
            ),
            (&[("x-forwarded-port", "8080")], "10.0.0.1|10.0.0.1|http|http|8080", false),
            (&[("x-forwarded-port", "0")], "10.0.0.1|10.0.0.1|http|http|80", false),
            (&[("x-forwarded-port", "99999")], "10.0.0.1|10.0.0.1|http|http|80", false),
            (&[("x-forwarded-proto", "https, http")], "10.0.0.1|10.0.0.1|http|http|80", false),
            (&[("x-forwarded-proto", "https"), ("x-forwarded-proto", "http")], "10.0.0.1|10.0.0.1|http|http|80", false),
            (&[("x-forwarded-proto", "gopher")], "10.0.0.1|10.0.0.1|http|http|80", false),
            (&[("x-forwarded-for", "192.0.2.1")], "192.0.2.1|192.0.2.1|http|http|80", false),
        ] {
            assert_eq!(written(&trust, &trusted_proxy(), fields), (expect.to_owned(), None, secure), "{fields:?}");
        }
        for (host, expect) in [("b.test:8443", Some("b.test:8443")), ("b test", None), ("b.test, c.test", None)] {
            assert_eq!(written(&trust, &trusted_proxy(), &[("x-forwarded-host", host)]).1.as_deref(), expect, "{host}");
        }
        let all = [("x-forwarded-proto", "https"), ("x-forwarded-host", "b.test"), ("x-forwarded-for", "1.1.1.1")];
        let stranger = Peer::new([192, 0, 2, 9].into(), false, 80);
        let own = ("192.0.2.9|192.0.2.9|http|http|80".to_owned(), None, false);
        assert_eq!(written(&trust, &stranger, &all), own);
        assert_eq!(written(&Trust::default(), &stranger, &all), own);
        // Only the address is trusted.
        let trust = Trust { forwarded: false, address: true, ..trust };
        assert_eq!(written(&trust, &trusted_proxy(), &all), ("1.1.1.1|1.1.1.1|http|http|80".to_owned(), None, false));
    }

    #[test]
    fn x_scheme_is_replaced_and_the_original_chain_needs_trust() {
        let trust = trusting("10.0.0.0/8");
        let sent = [
            ("x-forwarded-for", "1.1.1.1, 192.0.2.1"),
            ("x-forwarded-for", "10.0.0.2"),
            ("x-forwarded-proto", "https"),
            ("x-scheme", "gopher"),
            ("x-original-forwarded-for", "6.6.6.6"),
        ];
        for (peer, fields, scheme, original) in [
            ([10, 0, 0, 1], &sent[..], "https", Some("1.1.1.1, 192.0.2.1, 10.0.0.2")),
            ([10, 0, 0, 1], &sent[2..], "https", None),
            ([10, 0, 0, 1], &[("x-forwarded-for", "")], "http", None),
            ([192, 0, 2, 9], &sent, "http", None),
        ] {
            let (peer, headers) = (Peer::new(peer.into(), false, 80), headers(fields));
            let written = String::from_utf8(peer.client(&trust, &headers).forwarded.into_owned()).expect("text");
            let value = |name: &str| written.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            assert_eq!((value("x-scheme"), value("x-original-forwarded-for")), (Some(scheme), original), "{written}");
        }
    }

    #[test]
    fn the_chain_is_kept_if_configured() {
        let trust = Trust { keeps_chain: true, ..trusting("10.0.0.0/8") };
        let trusted_proxy = Peer::new([10, 0, 0, 1].into(), true, 443);
        for (chain, expect) in [
            (&[][..], "10.0.0.1|10.0.0.1|https|https|443"),
            (&[("x-forwarded-for", "192.0.2.1")], "192.0.2.1, 10.0.0.1|192.0.2.1|https|https|443"),
            (
                &[("x-forwarded-for", "1.1.1.1, 192.0.2.1"), ("x-forwarded-for", "10.0.0.2")],
                "1.1.1.1, 192.0.2.1, 10.0.0.2, 10.0.0.1|192.0.2.1|https|https|443",
            ),
        ] {
            assert_eq!(written(&trust, &trusted_proxy, chain).0, expect, "{chain:?}");
        }
    }

    #[test]
    fn the_proxy_protocol_overrides_the_forwarded_address() {
        let chain = [("x-forwarded-for", "1.1.1.1")];
        let trust = Trust { proxy_protocol: true, ..trusting("0.0.0.0/0") };
        let peer = Peer::proxied([192, 0, 2, 1].into(), false, 80);
        assert_eq!(written(&trust, &peer, &chain).0, "192.0.2.1|192.0.2.1|http|http|80");
        let peer = Peer::proxied([192, 0, 2, 1].into(), false, 443);
        assert_eq!(written(&Trust::default(), &peer, &chain).0, "192.0.2.1|192.0.2.1|https|https|443");
    }

    #[test]
    fn a_custom_address_field_is_read_only_from_trusted_proxies() {
        let field = HeaderName::from_static("cf-connecting-ip");
        let trust = Trust { field: field.clone(), ..trusting("10.0.0.0/8") };
        let headers = headers(&[("cf-connecting-ip", "192.0.2.1"), ("x-forwarded-for", "1.1.1.1")]);
        let trusted_proxy = Peer::new([10, 0, 0, 1].into(), false, 80);
        let client = trusted_proxy.client(&trust, &headers);
        assert_eq!((client.address, client.hidden), ([192, 0, 2, 1].into(), None));
        let stranger = Peer::new([192, 0, 2, 9].into(), false, 80);
        let client = stranger.client(&trust, &headers);
        assert_eq!((client.address, client.hidden), ([192, 0, 2, 9].into(), Some(&field)));
    }
}
