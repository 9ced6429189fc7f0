//! Addresses of Gateways: certificates and routes are those of the listeners there.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ingress_model::{
    Bind, Certificate, HostPattern, HostRoutes, Listener, ListenerName, ListenerProtocol, StreamPort, Transport,
};
use ingress_proxy_testing::{Origin, Proxy, Table};
use rustls_pki_types::CertificateDer;

use super::{
    Client, client_config, connect_at, connect_raw,
    hosts::{asking, offered},
    options, start,
};

/// Adds a listener for `hostname` at `address` and `port`, with the rules of the host `like`.
fn listen(
    table: &mut Table,
    address: Option<IpAddr>,
    port: u16,
    hostname: &str,
    like: &str,
    change: impl FnOnce(&mut Listener),
) {
    let pattern = |host| HostPattern::parse(host).expect("valid host");
    let rules = table.0.hosts.get(&pattern(like)).expect("known").rules.clone();
    let mut listener = Listener::new(ListenerProtocol::Https);
    listener.hosts.insert(pattern(hostname), Arc::new(HostRoutes { rules, ..HostRoutes::default() }));
    change(&mut listener);
    let name = ListenerName::of_gateway("default", "gateway", &format!("{address:?}-{like}-{hostname}"));
    let bind = Bind { address, port: StreamPort { transport: Transport::Tcp, number: port } };
    let mut bound = table.0.binds.remove(&bind).unwrap_or_default();
    let names = Arc::make_mut(&mut bound);
    let names = if listener.protocol == ListenerProtocol::Http { &mut names.http } else { &mut names.tls };
    names.insert(pattern(hostname), name.clone());
    table.0.binds.insert(bind, bound);
    table.0.listeners.insert(name, Arc::new(listener));
}

/// Adds a certificate for `a.test` and `b.test`, and returns it.
fn certificate(table: &mut Table, origin: &str) -> CertificateDer<'static> {
    let names = ["a.test", "b.test"].map(str::to_owned);
    let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
    let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let certificate = Certificate::from_pem(origin, cert.as_bytes(), key.as_bytes()).expect("valid pem");
    table.0.certificates.insert(origin.into(), Arc::new(certificate));
    made.cert.der().clone()
}

fn shown(client: &Client) -> CertificateDer<'static> {
    let chain = client.quic.peer_identity().expect("a certificate");
    chain.downcast::<Vec<CertificateDer<'static>>>().expect("a chain")[0].clone()
}

#[tokio::test]
async fn each_address_has_its_own_certificate_and_routes() {
    let [one, two, ingress] = ["one", "two", "ingress"].map(Origin::answering);
    let hosts = [("one.test", &one), ("two.test", &two), ("a.test", &ingress)];
    let mut table = hosts.iter().fold(Table::default(), |table, (host, pod)| table.host(host, &[pod.address]));
    let proxy = start(&table);
    let port = proxy.http3.expect("it serves HTTP/3").port();
    let at = |last: u8| IpAddr::from([127, 0, 0, last]);
    let [first, second] = ["default/first", "default/second"].map(|origin| certificate(&mut table, origin));
    let with = |origin: &'static str| move |listener: &mut Listener| listener.certificates = vec![origin.into()];
    listen(&mut table, Some(at(1)), port, "a.test", "one.test", with("default/first"));
    listen(&mut table, Some(at(1)), port, "b.test", "two.test", with("default/first"));
    listen(&mut table, Some(at(2)), port, "a.test", "two.test", with("default/second"));
    listen(&mut table, Some(at(3)), port, "a.test", "one.test", |listener| {
        with("default/first")(listener);
        listener.clients = Some(Arc::new(asking()));
    });
    listen(&mut table, Some(at(4)), port, "a.test", "one.test", |listener| listener.protocol = ListenerProtocol::Http);
    listen(&mut table, Some(at(5)), port + 1, "a.test", "one.test", with("default/first"));
    listen(&mut table, Some(at(6)), port, "a.test", "one.test", with("default/none"));
    proxy.publish(&table);
    for (address, certificate, text) in [(at(1), &first, "one"), (at(2), &second, "two")] {
        let client = Client::connect_at(SocketAddr::new(address, port), "a.test").await;
        assert_eq!(shown(&client), *certificate, "{address}");
        assert_eq!(client.get("a.test", "/").await.text(), text, "{address}");
        // The host belongs to another listener there, or to none.
        let status = client.get("b.test", "/").await.status();
        assert_eq!(status, if address == at(1) { 421 } else { 404 }, "{address}");
    }
    // Client certificates, no TLS, another port, and no certificate.
    for last in [3, 4, 5, 6] {
        let connected = connect_at(SocketAddr::new(at(last), port), "a.test", client_config()).await;
        assert!(connected.is_err(), "{last}");
    }
    // No Gateway has this address.
    let client = Client::connect_at(SocketAddr::new(at(9), port), "a.test").await;
    assert_eq!(client.get("a.test", "/").await.text(), "ingress");
}

#[tokio::test]
async fn a_request_is_not_served_by_a_listener_whose_policy_its_handshake_did_not_have() {
    type Change = fn(&mut Listener);
    let origin = Origin::answering("pod");
    let table = || Table::default().host("a.test", &[origin.address]);
    let proxy = start(&table());
    let port = proxy.http3.expect("it serves HTTP/3").port();
    let client = Client::connect(&proxy, "a.test").await;
    assert_eq!(client.get("a.test", "/").await.text(), "pod");
    let cases: [(_, _, Change); 3] = [
        // As for HTTP/2, the connection belongs to the listener from now on.
        ("without a policy", 200, |_| {}),
        ("with client certificates", 421, |listener| listener.clients = Some(Arc::new(asking()))),
        ("with passthrough", 421, |listener| listener.protocol = ListenerProtocol::TlsPassthrough),
    ];
    for (what, expected, change) in cases {
        let mut table = table();
        listen(&mut table, None, port, "a.test", "a.test", change);
        proxy.publish(&table);
        assert_eq!(client.get("a.test", "/").await.status(), expected, "{what}");
        assert!(connect_raw(&proxy, "a.test").await.is_err(), "{what}: the listener has no certificate");
    }
}

#[tokio::test]
async fn listeners_at_the_port_of_http3_offer_it() {
    let origin = Origin::answering("pod");
    let base = || Table::default().host("a.test", &[origin.address]);
    // The UDP port of the same number is seldom taken.
    let same_port = |proxy: &Proxy| proxy.http3.is_some_and(|http3| http3.port() == proxy.https.port());
    let proxy = (0..20).map(|_| Proxy::start_http3(&base(), &options(), 1)).find(same_port).expect("a free port");
    let own = Some("h3=\":443\"; ma=86400".to_owned());
    assert_eq!(offered(&proxy, "h2", "a.test").await, own, "an Ingress");
    let port = proxy.https.port();
    let mut table = base();
    certificate(&mut table, "default/first");
    listen(&mut table, Some(proxy.https.ip()), port, "a.test", "a.test", |listener| {
        listener.certificates = vec!["default/first".into()];
    });
    proxy.publish(&table);
    assert_eq!(offered(&proxy, "h2", "a.test").await, own, "a listener");
    // Other hosts and the settings stay as they are.
    for (asks, expected) in [(true, Some("clear".to_owned())), (false, own)] {
        let mut table = base();
        certificate(&mut table, "default/first");
        listen(&mut table, Some(proxy.https.ip()), port, "a.test", "a.test", |listener| {
            listener.certificates = vec!["default/first".into()];
            listener.clients = asks.then(|| Arc::new(asking()));
        });
        proxy.publish(&table);
        assert_eq!(offered(&proxy, "h2", "a.test").await, expected, "asks for certificates: {asks}");
    }
}
