//! Listeners of Gateways: which one serves a request at an address and port, by Host and by server name.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
};

use http::{HeaderName, HeaderValue, Method};
use ingress_model::{
    Action, Authorities, Bind, Bound, Certificate, ClientCertificates, Conditions, Demand, Endpoint, Filter,
    HeaderCondition, HeaderEdits, HostPattern, HostRoutes, Listener, ListenerName, ListenerProtocol, PathMatch,
    Protocol, Rule, StreamPort, Transport, Unavailable, Upstream, UpstreamKey, WeightedBackend, WeightedBackends,
};
use ingress_proxy::{Options, Refusal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use ingress_proxy_testing::pki::{Authority, Issued, TlsPod};
use ingress_proxy_testing::tls::{config, config_of, connect};
use ingress_proxy_testing::{Client, DEADLINE, Origin, Proxy, Table};

/// A table with binds and listeners, under construction.
#[derive(Clone, Default)]
struct Gateways(Table);

fn listener_name(name: &str) -> ListenerName {
    ListenerName::of_gateway("default", "gateway", name)
}

fn key(service: &str) -> UpstreamKey {
    UpstreamKey::new("default", service, "80")
}

fn rule(path: &str, action: Action) -> Rule {
    let path = PathMatch::prefix(path).expect("valid path");
    Rule { path, conditions: None, owner: "default/route".into(), filters: vec![], action, forwarding: Arc::default() }
}

impl Gateways {
    fn upstream(mut self, service: &str, address: SocketAddr) -> Self {
        let upstream = Upstream { endpoints: vec![Endpoint { address }], ..Upstream::default() };
        self.0.0.upstreams.insert(key(service), upstream.into());
        self
    }

    /// Adds listener `name` for `hostname` at `port`.
    fn listener(mut self, name: &str, address: SocketAddr, hostname: &str, listener: Listener, is_any: bool) -> Self {
        let port = StreamPort { transport: Transport::Tcp, number: address.port() };
        let bind = Bind { address: (!is_any).then(|| address.ip()), port };
        let table = &mut self.0.0;
        let mut bound = table.binds.remove(&bind).unwrap_or_default();
        let Bound { http, tls, stream } = Arc::make_mut(&mut bound);
        let pattern = HostPattern::parse_suffix(hostname).expect("valid hostname");
        match listener.protocol {
            ListenerProtocol::Http => drop(http.insert(pattern, listener_name(name))),
            ListenerProtocol::Https | ListenerProtocol::TlsTerminate | ListenerProtocol::TlsPassthrough => {
                drop(tls.insert(pattern, listener_name(name)))
            }
            ListenerProtocol::Tcp | ListenerProtocol::Udp => *stream = Some(listener_name(name)),
        }
        table.binds.insert(bind, bound);
        table.listeners.insert(listener_name(name), Arc::new(listener));
        self
    }

    fn certificate(mut self, origin: &str, names: &[&str]) -> Self {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let made = rcgen::generate_simple_self_signed(names).expect("certificate");
        let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let certificate = Certificate::from_pem(origin, cert.as_bytes(), key.as_bytes()).expect("valid pem");
        self.0.0.certificates.insert(origin.into(), Arc::new(certificate));
        self
    }
}

/// A listener whose route for `hostname` leads all paths below `path` to `service`.
fn leading(protocol: ListenerProtocol, hostname: &str, rules: Vec<Rule>) -> Listener {
    let mut listener = Listener::new(protocol);
    let pattern = HostPattern::parse_suffix(hostname).expect("valid hostname");
    listener.hosts.insert(pattern, Arc::new(HostRoutes { rules, ..HostRoutes::default() }));
    listener
}

fn to(service: &str) -> Action {
    Action::Forward(key(service))
}

fn answer(client: &mut Client, host: &str, path: &str) -> (u16, String) {
    let response = client.get(host, path);
    (response.status, response.text().to_owned())
}

#[test]
fn a_request_never_leaves_the_listener_of_its_host() {
    let [one, other, ingress] = ["one", "other", "ingress"].map(Origin::answering);
    let proxy = Proxy::start_empty(&Options::default());
    let http = |service: &str| leading(ListenerProtocol::Http, "", vec![rule("/", to(service))]);
    let mut empty = Listener::new(ListenerProtocol::Http);
    empty.hosts.insert(HostPattern::Any, Arc::default());
    let gateways = |is_any| {
        Gateways(Table::default().host("ingress.test", &[ingress.address]).host("empty.wild.test", &[ingress.address]))
            .upstream("one", one.address)
            .upstream("other", other.address)
            .listener("all", proxy.http, "", http("one"), is_any)
            .listener("wild", proxy.http, "*.wild.test", http("other"), is_any)
            .listener("empty", proxy.http, "empty.wild.test", empty.clone(), is_any)
            .0
    };
    for is_any in [false, true] {
        proxy.publish(&gateways(is_any));
        for (host, expect) in [
            ("any.test", Some("one")),
            ("ingress.test", Some("one")),
            ("a.wild.test", Some("other")),
            ("b.a.wild.test", Some("other")),
            ("wild.test", Some("one")),
            // Never a rule of `*.wild.test`: at an address of the node, the Ingress of the host follows.
            ("empty.wild.test", is_any.then_some("ingress")),
        ] {
            let (status, text) = answer(&mut proxy.client(), host, "/");
            assert_eq!((status == 200).then_some(&*text), expect, "{host} {is_any}: {status}");
        }
    }
}

#[test]
fn requests_without_a_route_go_on_to_the_ingresses_unless_the_address_is_a_gateways() {
    let [gateway, ingress] = ["gateway", "ingress"].map(Origin::answering);
    let proxy = Proxy::start_empty(&Options::default());
    let table = |is_any| {
        let listener = leading(ListenerProtocol::Http, "gateway.test", vec![rule("/moved", to("gateway"))]);
        let ingresses = Table::default().host("ingress.test", &[ingress.address]);
        Gateways(ingresses.host("gateway.test", &[ingress.address]))
            .upstream("gateway", gateway.address)
            .listener("one", proxy.http, "", listener, is_any)
            .0
    };
    for (is_any, expect) in [(true, 200), (false, 404)] {
        proxy.publish(&table(is_any));
        assert_eq!(answer(&mut proxy.client(), "gateway.test", "/moved"), (200, "gateway".into()), "{is_any}");
        for host in ["gateway.test", "ingress.test"] {
            assert_eq!(proxy.client().get(host, "/").status, expect, "{host} {is_any}");
        }
        // Pods may read the escaped slash as one, and then the path is that of another rule.
        assert_eq!(proxy.client().get("gateway.test", "/x/..%2fmoved").status, 400, "{is_any}");
    }
    proxy.publish(&Table::default().host("ingress.test", &[ingress.address]));
    assert_eq!(answer(&mut proxy.client(), "ingress.test", "/"), (200, "ingress".into()));
    assert_eq!(proxy.client().get("gateway.test", "/").status, 404);
}

#[test]
fn an_address_of_a_gateway_serves_at_the_ports_of_its_listeners_alone() {
    let [gateway, ingress] = ["gateway", "ingress"].map(Origin::answering);
    let proxy = Proxy::start_empty(&Options::default());
    let mut older = proxy.client();
    let table = |is_any| {
        // Another port of the same address.
        let listener = leading(ListenerProtocol::Https, "", vec![rule("/", to("gateway"))]);
        Gateways(Table::default().host("ingress.test", &[ingress.address]))
            .upstream("gateway", gateway.address)
            .listener("one", proxy.https, "", listener, is_any)
            .0
    };
    proxy.publish(&table(true));
    assert_eq!(answer(&mut older, "ingress.test", "/"), (200, "ingress".into()));
    proxy.publish(&table(false));
    assert_eq!(older.get("ingress.test", "/").status, 404, "the connection is older than the Gateway");
    let mut stream = TcpStream::connect(proxy.http).expect("connected");
    stream.set_read_timeout(Some(DEADLINE)).expect("set");
    let end = stream.read(&mut [0; 1]).map_err(|error| error.kind());
    assert_eq!(end, Err(ErrorKind::ConnectionReset));
    let no_listener = Refusal::ALL.iter().position(|refusal| *refusal == Refusal::NoListener).expect("known");
    assert_eq!(proxy.shared.stats().refused[no_listener], 1);
}

#[test]
fn conditions_choose_among_rules_of_a_path() {
    let [plain, versioned, posted] = ["plain", "versioned", "posted"].map(Origin::answering);
    let proxy = Proxy::start_empty(&Options::default());
    let when = |conditions, action| Rule { conditions: Some(Box::new(conditions)), ..rule("/", action) };
    let header = (HeaderName::from_static("x-version"), HeaderCondition::Exactly(HeaderValue::from_static("2")));
    let rules = vec![
        when(Conditions { method: Some(Method::POST), ..Conditions::default() }, to("posted")),
        when(Conditions { headers: vec![header], ..Conditions::default() }, to("versioned")),
        rule("/", to("plain")),
    ];
    let gateways = Gateways::default()
        .upstream("plain", plain.address)
        .upstream("versioned", versioned.address)
        .upstream("posted", posted.address)
        .listener("one", proxy.http, "", leading(ListenerProtocol::Http, "", rules), false);
    proxy.publish(&gateways.0);
    let mut client = proxy.client();
    assert_eq!(answer(&mut client, "a.test", "/").1, "plain");
    client.send("GET / HTTP/1.1\r\nHost: a.test\r\nX-Version: 2\r\n\r\n");
    assert_eq!(client.response().text(), "versioned");
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nX-Version: 2\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(client.response().text(), "posted");
}

#[test]
fn weighted_backends_get_their_shares_and_their_own_filters() {
    let [first, second] = [Origin::mirror(), Origin::mirror()];
    let proxy = Proxy::start_empty(&Options::default());
    let edits = |text| Arc::new(HeaderEdits::parse(text).expect("valid"));
    let backends = WeightedBackends::new([
        WeightedBackend {
            weight: 3,
            target: Ok(key("first")),
            filters: vec![
                Filter::RequestHeaders(edits("X-Backend: first")),
                Filter::ResponseHeaders(edits("X-From: 1")),
            ],
        },
        WeightedBackend { weight: 1, target: Ok(key("second")), filters: Vec::new() },
        WeightedBackend { weight: 1, target: Err(Unavailable::InvalidReference), filters: Vec::new() },
    ]);
    let action = Action::Weighted(Arc::new(backends.expect("some")));
    let gateways = Gateways::default().upstream("first", first.address).upstream("second", second.address).listener(
        "one",
        proxy.http,
        "",
        leading(ListenerProtocol::Http, "", vec![rule("/", action)]),
        false,
    );
    proxy.publish(&gateways.0);
    let mut counts = [0_i32; 3];
    let mut client = proxy.client();
    for _ in 0..50 {
        let response = client.get("a.test", "/");
        let is_first = response.header("x-from") == Some("1");
        assert_eq!(is_first, response.text().to_ascii_lowercase().contains("x-backend: first"), "{}", response.text());
        counts[if response.status == 500 { 2 } else { usize::from(!is_first) }] += 1;
    }
    for (count, expect) in counts.into_iter().zip([30_i32, 10, 10]) {
        assert!((count - expect).abs() <= 3, "{counts:?}");
    }
}

/// Returns the status of a request to `host` on a connection for `server_name`, and the certificate of the proxy.
async fn secure(proxy: &Proxy, server_name: &str, host: &str) -> (u16, Vec<u8>) {
    let mut stream = connect(proxy, &config(&["http/1.1"]), server_name).await;
    let leaf = stream.get_ref().1.peer_certificates().expect("a certificate")[0].to_vec();
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut response = Vec::new();
    drop(stream.read_to_end(&mut response).await);
    let text = String::from_utf8_lossy(&response);
    (text.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"), leaf)
}

#[tokio::test]
async fn a_handshake_belongs_to_the_listener_of_its_server_name() {
    let origin = Origin::answering("secure");
    let proxy = Proxy::start_empty(&Options::default());
    let https = |hostname: &str, certificates: &[&str]| Listener {
        certificates: certificates.iter().map(|&origin| origin.into()).collect(),
        ..leading(ListenerProtocol::Https, hostname, vec![rule("/", to("origin"))])
    };
    let gateways = Gateways(Table::default().host("ingress.test", &[origin.address]))
        .upstream("origin", origin.address)
        .certificate("c/a", &["a.test"])
        .certificate("c/b", &["b.test", "*.b.test"]);
    let certificates = gateways.0.0.certificates.clone();
    let table = |is_any| {
        gateways
            .clone()
            .listener("a", proxy.https, "a.test", https("", &["c/b", "c/a"]), is_any)
            .listener("b", proxy.https, "*.b.test", https("x.b.test", &["c/b"]), is_any)
            .0
    };
    proxy.publish(&table(false));
    let leaf = |origin: &str| certificates.get(origin).expect("known").chain[0].to_vec();
    for (server_name, host, status, origin) in [
        ("a.test", "a.test", 200, "c/a"),
        ("x.b.test", "x.b.test", 200, "c/b"),
        ("y.b.test", "x.b.test", 200, "c/b"),
        ("x.b.test", "y.b.test", 404, "c/b"),
        ("a.test", "x.b.test", 421, "c/a"),
        ("x.b.test", "a.test", 421, "c/b"),
        ("x.b.test", "unknown.test", 404, "c/b"),
        ("x.b.test", "ingress.test", 404, "c/b"),
    ] {
        let (found, shown) = secure(&proxy, server_name, host).await;
        assert_eq!((found, shown == leaf(origin)), (status, true), "{server_name} {host}");
    }
    let stream = tokio::net::TcpStream::connect(proxy.https).await.expect("connected");
    let name = rustls_pki_types::ServerName::try_from("unknown.test").expect("valid");
    let handshake = tokio_rustls::TlsConnector::from(config(&[])).connect(name, stream).await;
    assert!(handshake.is_err(), "no listener has the name");

    proxy.publish(&table(true));
    assert_eq!(secure(&proxy, "ingress.test", "ingress.test").await.0, 200);
    assert_eq!(secure(&proxy, "ingress.test", "a.test").await.0, 421);
    assert_eq!(secure(&proxy, "a.test", "ingress.test").await.0, 421);
    assert_eq!(secure(&proxy, "a.test", "a.test").await.0, 200);
}

/// A client on a connection over TLS, for `a.test`.
async fn ask(stream: &mut (impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin)) -> u16 {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").await.expect("sent");
    let mut response = Vec::new();
    while !response.windows(4).any(|window| window == b"\r\n\r\n") {
        assert_ne!(stream.read_buf(&mut response).await.expect("a response"), 0, "the connection ended");
    }
    let text = String::from_utf8_lossy(&response);
    text.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
}

#[tokio::test]
async fn a_connection_that_is_older_than_the_policy_for_clients_is_misdirected() {
    let origin = Origin::answering("");
    let authority = Authority::new("ca");
    let proxy = Proxy::start_empty(&Options::default());
    let listener = |clients| Listener {
        certificates: vec!["c/a".into()],
        clients,
        ..leading(ListenerProtocol::Https, "", vec![rule("/", to("origin"))])
    };
    let authorities = Authorities { origin: "default/ca".into(), certificates: authority.chain() };
    let clients = ClientCertificates {
        authorities: Arc::new(authorities),
        revoked: Vec::new(),
        demand: Demand::Required,
        depth: 1,
        passed: false,
        name: None,
        error_page: None,
    };
    let gateways = Gateways::default().upstream("origin", origin.address).certificate("c/a", &["a.test"]);
    let table = |clients| gateways.clone().listener("a", proxy.https, "", listener(clients), false).0;
    // Before the Gateway, the connection has no server name that a listener knows of.
    proxy.publish(&Table::default());
    let mut oldest = connect(&proxy, &config(&["http/1.1"]), "a.test").await;
    assert_eq!(ask(&mut oldest).await, 404);
    proxy.publish(&table(None));
    let mut older = connect(&proxy, &config(&["http/1.1"]), "a.test").await;
    assert_eq!(ask(&mut older).await, 200);
    proxy.publish(&table(Some(Arc::new(clients))));
    assert_eq!(ask(&mut older).await, 421);
    assert_eq!(ask(&mut oldest).await, 421);
    let own = authority.issue("client");
    assert!(is_admitted(&proxy, Some(&own)).await && !is_admitted(&proxy, None).await);
}

#[test]
fn a_tcp_listener_relays_by_weight() {
    let echo = |name: &'static str| {
        Origin::start(move |peer| {
            peer.send(name);
            peer.until_closed();
        })
    };
    let [one, other] = [echo("one"), echo("other")];
    let backends = |weights: [u32; 2]| {
        let services = ["one", "other"].into_iter().zip(weights);
        WeightedBackends::new(services.map(|(service, weight)| WeightedBackend {
            weight,
            target: Ok(key(service)),
            filters: Vec::new(),
        }))
    };
    let proxy = Proxy::start_empty(&Options::default());
    let publish = |weights| {
        let mut listener = Listener::new(ListenerProtocol::Tcp);
        listener.streams.insert(HostPattern::Any, backends(weights).map(Arc::new));
        let gateways = Gateways::default().upstream("one", one.address).upstream("other", other.address);
        proxy.publish(&gateways.listener("tcp", proxy.streams, "", listener, false).0);
    };
    let ask = || {
        let mut stream = TcpStream::connect(proxy.streams).expect("connected");
        stream.set_read_timeout(Some(DEADLINE)).expect("set");
        let mut bytes = [0; 5];
        let length = stream.read(&mut bytes).ok()?;
        drop(stream.write_all(b"x"));
        String::from_utf8(bytes[..length].to_vec()).ok()
    };
    publish([1, 1]);
    let answers: Vec<_> = (0..10).map(|_| ask().expect("an answer")).collect();
    assert_eq!(answers.iter().filter(|answer| *answer == "one").count(), 5, "{answers:?}");
    publish([0, 1]);
    assert_eq!(ask().as_deref(), Some("other"));
    publish([0, 0]);
    assert_eq!(ask().unwrap_or_default(), "", "without backends, connections are refused");
}

#[tokio::test]
async fn tls_listeners_pass_through_and_terminate_by_server_name() {
    let plain = Origin::start(|peer| {
        peer.send("from the pod");
        peer.until_closed();
    });
    let pod = TlsPod::serving(pod_config(), |mut stream| async move {
        drop(stream.write_all(b"passed through").await);
        drop(stream.shutdown().await);
    });
    let proxy = Proxy::start_empty(&Options::default());
    let stream = |protocol, hostname: &str, service: &str| {
        let backend = WeightedBackend { weight: 1, target: Ok(key(service)), filters: Vec::new() };
        let mut listener = Listener::new(protocol);
        let pattern = HostPattern::parse_suffix(hostname).expect("valid");
        listener.streams.insert(pattern, WeightedBackends::new([backend]).map(Arc::new));
        listener
    };
    let terminating =
        Listener { certificates: vec!["c/a".into()], ..stream(ListenerProtocol::TlsTerminate, "*.a.test", "plain") };
    let gateways = Gateways::default()
        .upstream("plain", plain.address)
        .upstream("pod", pod.address)
        .certificate("c/a", &["*.a.test"])
        .listener("terminated", proxy.https, "*.a.test", terminating, false)
        .listener("passed", proxy.https, "b.test", stream(ListenerProtocol::TlsPassthrough, "b.test", "pod"), false);
    let certificate = gateways.0.0.certificates.get("c/a").expect("known").chain[0].to_vec();
    proxy.publish(&gateways.0);
    for (server_name, expect, is_terminated) in
        [("x.a.test", "from the pod", true), ("b.test", "passed through", false)]
    {
        let mut stream = connect(&proxy, &config(&["h2"]), server_name).await;
        let (_, session) = stream.get_ref();
        let leaf = session.peer_certificates().expect("a certificate")[0].to_vec();
        assert_eq!((leaf == certificate, session.alpn_protocol()), (is_terminated, None), "{server_name}");
        let mut bytes = vec![0; expect.len()];
        stream.read_exact(&mut bytes).await.expect("an answer");
        assert_eq!(String::from_utf8_lossy(&bytes), expect, "{server_name}");
    }
}

fn pod_config() -> rustls::ServerConfig {
    let made = rcgen::generate_simple_self_signed(vec!["b.test".to_owned()]).expect("certificate");
    let key = rustls_pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .expect("a usable certificate")
}

/// Returns whether a client with `own` certificate gets a response at the proxy's listener for `a.test`.
async fn is_admitted(proxy: &Proxy, own: Option<&Issued>) -> bool {
    let own = own.map(|issued| (issued.chain(), issued.private_key()));
    let config = Arc::new(config_of(rustls::ALL_VERSIONS, own));
    let stream = tokio::net::TcpStream::connect(proxy.https).await.expect("connected");
    let name = rustls_pki_types::ServerName::try_from("a.test").expect("valid");
    let Ok(mut stream) = tokio_rustls::TlsConnector::from(config).connect(name, stream).await else { return false };
    // With TLS 1.3 the client learns of an alert only by reading.
    drop(stream.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n").await);
    let mut response = Vec::new();
    drop(stream.read_to_end(&mut response).await);
    response.starts_with(b"HTTP/1.1 200")
}

#[tokio::test]
async fn a_listener_refuses_clients_in_the_handshake() {
    let origin = Origin::answering("secret");
    let (authority, other) = (Authority::new("ca"), Authority::new("other"));
    let (valid, expired, foreign) =
        (authority.issue("client"), authority.issue_expired("client"), other.issue("client"));
    let proxy = Proxy::start_empty(&Options::default());
    for (demand, expect) in [
        (Some(Demand::Required), [false, true, false, false]),
        (Some(Demand::Optional), [true, true, false, false]),
        (Some(Demand::OfAnyIssuer), [true, true, true, true]),
        (None, [true, true, true, true]),
    ] {
        let authorities = Authorities { origin: "default/ca".into(), certificates: authority.chain() };
        let clients = demand.map(|demand| {
            let authorities = Arc::new(authorities);
            Arc::new(ClientCertificates {
                authorities,
                revoked: Vec::new(),
                demand,
                depth: 1,
                passed: false,
                name: None,
                error_page: None,
            })
        });
        let rules = vec![rule("/", to("origin"))];
        let listener =
            Listener { certificates: vec!["c/a".into()], clients, ..leading(ListenerProtocol::Https, "", rules) };
        let gateways = Gateways::default().upstream("origin", origin.address).certificate("c/a", &["a.test"]);
        proxy.publish(&gateways.listener("a", proxy.https, "a.test", listener, false).0);
        let mut admitted = Vec::new();
        for own in [None, Some(&valid), Some(&expired), Some(&foreign)] {
            admitted.push(is_admitted(&proxy, own).await);
        }
        assert_eq!(admitted, expect, "{demand:?}");
    }
}

#[tokio::test]
async fn a_terminated_connection_may_reach_its_pod_over_tls() {
    let pod = TlsPod::serving(pod_config(), |mut stream| async move {
        let mut asked = [0; 4];
        if stream.read_exact(&mut asked).await.is_ok() {
            drop(stream.write_all(&asked).await);
            drop(stream.flush().await);
        }
        drop(stream.read(&mut asked).await);
    });
    let proxy = Proxy::start_empty(&Options::default());
    let backend = WeightedBackend { weight: 1, target: Ok(key("pod")), filters: Vec::new() };
    let mut listener = Listener { certificates: vec!["c/a".into()], ..Listener::new(ListenerProtocol::TlsTerminate) };
    listener.streams.insert(HostPattern::Any, WeightedBackends::new([backend]).map(Arc::new));
    let gateways = Gateways::default().upstream("pod", pod.address).certificate("c/a", &["a.test"]);
    let gateways = gateways.listener("terminated", proxy.https, "a.test", listener, false);
    proxy.publish(&gateways.0.speaking(Protocol::Https));
    let mut stream = connect(&proxy, &config(&[]), "a.test").await;
    stream.write_all(b"ping").await.expect("sent");
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(&answer, b"ping");
}
