//! Handshakes according to settings: versions, unknown names, tickets, and never early data.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use ingress_model::HostPattern;
use rustls::{
    AlertDescription, ClientConfig, ClientConnection, Error, HandshakeKind, NamedGroup, StreamOwned,
    SupportedProtocolVersion,
    client::{
        ClientSessionMemoryCache, ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue,
    },
    version::{TLS12, TLS13},
};
use rustls_pki_types::ServerName;

use super::{Ingress, configured, pods_tls::another};
use ingress_proxy_testing::tls::config_of;
use ingress_proxy_testing::{DEADLINE, Origin, Table};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";

pub(super) fn client(versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
    Arc::new(config_of(versions, None))
}

/// Translates an Ingress with these settings.
fn table(ingress: &Ingress, origin: &Origin, settings: &[(&str, &str)]) -> (Table, String) {
    let data: String = settings.iter().map(|(key, value)| format!("  {key}: {value:?}\n")).collect();
    let settings =
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: default}}\ndata:\n{data}");
    ingress.clone().beside(&settings).translated(&[origin.address], &configured())
}

/// Sends one request over a new connection with the server name `name`. Returns the status line and the kind of
/// handshake.
pub(super) fn get(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    name: &str,
) -> Result<(String, HandshakeKind), Error> {
    let name = ServerName::try_from(name.to_owned()).expect("valid name");
    let mut client = ClientConnection::new(Arc::clone(config), name)?;
    let mut socket = TcpStream::connect(address).expect("connected");
    socket.set_read_timeout(Some(DEADLINE)).expect("timeout set");
    while client.is_handshaking() {
        if let Err(error) = client.complete_io(&mut socket) {
            return Err(error.downcast().expect("an error of TLS"));
        }
    }
    let kind = client.handshake_kind().expect("a handshake");
    let mut stream = StreamOwned::new(client, socket);
    stream.write_all(REQUEST).expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a clean end");
    Ok((response.lines().next().unwrap_or_default().to_owned(), kind))
}

#[test]
fn tls_versions_follow_the_settings() {
    let origin = Origin::answering("pod");
    let ingress = Ingress::with(&[]);
    let site = ingress.serve(&origin).in_order();
    for (value, tls12, tls13, remark) in [
        ("TLSv1.2", true, false, ""),
        ("TLSv1.3", false, true, ""),
        ("TLSv1.3 TLSv1.2", true, true, ""),
        ("TLSv1.2", true, false, ""),
        ("TLSv1 TLSv1.1 TLSv1.2", true, true, "older versions are unsafe"),
        ("SSLv3", true, true, "older versions are unsafe"),
        ("", true, true, "older versions are unsafe"),
    ] {
        let (table, outcomes) = table(&ingress, &origin, &[("ssl-protocols", value)]);
        assert_eq!(outcomes.contains("InvalidSetting"), !remark.is_empty(), "{value}: {outcomes}");
        assert!(outcomes.contains(remark), "{value}: {outcomes}");
        site.proxy.publish(&table);
        for (version, expect) in [(&TLS12, tls12), (&TLS13, tls13)] {
            match get(site.proxy.https, &client(&[version]), "a.test") {
                Ok((status, _)) => assert!(expect && status.ends_with("200 OK"), "{value} {version:?}: {status}"),
                Err(error) => {
                    assert!(!expect, "{value} {version:?}");
                    assert_eq!(error, Error::AlertReceived(AlertDescription::ProtocolVersion), "{value} {version:?}");
                }
            }
        }
    }
}

#[test]
fn ineffective_tls_settings_are_reported() {
    let origin = Origin::answering("pod");
    for (key, value, remark) in [
        ("ssl-ciphers", "ALL", "note IneffectiveSetting"),
        ("ssl-prefer-server-ciphers", "false", "note IneffectiveSetting"),
        ("ssl-dh-param", "default/dh", "note IneffectiveSetting"),
        ("ssl-ecdh-curve", "X25519", "note IneffectiveSetting"),
        ("ssl-session-cache", "true", "note IneffectiveSetting"),
        ("ssl-session-ticket-key", "c2VjcmV0", "`--tls-ticket-secret`"),
    ] {
        let (_, outcomes) = table(&Ingress::with(&[]), &origin, &[(key, value)]);
        assert!(outcomes.contains(remark) && !outcomes.contains(value), "{key}: {outcomes}");
    }
}

#[test]
fn unknown_server_names_are_rejected_if_configured() {
    let origin = Origin::answering("pod");
    let any = another("x", &[]).replace("  - host: x\n    http", "  - http");
    let wild = another("\"*.w.test\"", &[]).replace("name: other", "name: wild");
    let ingress = Ingress::with(&[]).beside(&any).beside(&wild);
    let site = ingress.serve(&origin).in_order();
    let config = client(rustls::ALL_VERSIONS);
    for rejects in ["true", "false", "true"] {
        let (table, outcomes) = table(&ingress, &origin, &[("ssl-reject-handshake", rejects)]);
        assert_eq!(outcomes, "");
        site.proxy.publish(&table);
        for (name, is_known) in [
            ("a.test", true),
            ("A.TEST", true),
            ("x.w.test", true),
            ("b.test", false),
            ("w.test", false),
            ("y.x.w.test", false),
            ("127.0.0.1", false),
        ] {
            let expect = if is_known || rejects == "false" {
                Ok("HTTP/1.1 200 OK".to_owned())
            } else {
                Err(Error::AlertReceived(AlertDescription::UnrecognisedName))
            };
            let answer = get(site.proxy.https, &config, name).map(|(status, _)| status);
            assert_eq!(answer, expect, "{name}, rejects: {rejects}");
        }
    }
    // A certificate for a name makes it known, too; the fallback certificate does not.
    let (mut table, _) = table(&ingress, &origin, &[("ssl-reject-handshake", "true")]);
    table.0.server_names.insert(HostPattern::parse("c.test").expect("valid host"), None);
    site.proxy.publish(&table);
    get(site.proxy.https, &config, "c.test").expect("a known name");
    get(site.proxy.https, &config, "b.test").expect_err("not known");
}

#[test]
fn session_tickets_follow_the_settings() {
    let origin = Origin::answering("pod");
    let ingress = Ingress::with(&[]);
    let site = ingress.serve(&origin).in_order();
    for version in [&TLS12, &TLS13] {
        let (early, late) = (client(&[version]), client(&[version]));
        for (tickets, config, expect) in [
            ("true", &early, HandshakeKind::Full),
            ("true", &early, HandshakeKind::Resumed),
            ("true", &early, HandshakeKind::Resumed),
            // The client has a ticket from before.
            ("false", &early, HandshakeKind::Full),
            ("false", &late, HandshakeKind::Full),
            ("false", &late, HandshakeKind::Full),
            ("true", &late, HandshakeKind::Full),
            ("true", &late, HandshakeKind::Resumed),
        ] {
            let (table, outcomes) = table(&ingress, &origin, &[("ssl-session-tickets", tickets)]);
            assert_eq!(outcomes, "");
            site.proxy.publish(&table);
            let (_, kind) = get(site.proxy.https, config, "a.test").expect("a handshake");
            assert_eq!(kind, expect, "{version:?} {tickets}");
        }
    }
}

/// Stores sessions as if their tickets were for other names, or allowed early data.
#[derive(Debug)]
pub(super) struct Forger {
    sessions: ClientSessionMemoryCache,
    /// Name under which every session is stored.
    name: Option<ServerName<'static>>,
    early_data: u32,
    /// Early data that servers have allowed, in bytes.
    pub(super) allowed: AtomicUsize,
}

impl Forger {
    pub(super) fn for_any_name() -> Arc<Self> {
        Self::new(Some("a.test".try_into().expect("a name")), 0)
    }

    fn new(name: Option<ServerName<'static>>, early_data: u32) -> Arc<Self> {
        Arc::new(Self { sessions: ClientSessionMemoryCache::new(8), name, early_data, allowed: AtomicUsize::new(0) })
    }

    pub(super) fn client(self: &Arc<Self>, versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
        let mut config = config_of(versions, None);
        config.resumption = Resumption::store(Arc::clone(self) as Arc<dyn ClientSessionStore>);
        config.enable_early_data = true;
        Arc::new(config)
    }

    fn name(&self, asked: ServerName<'static>) -> ServerName<'static> {
        self.name.clone().unwrap_or(asked)
    }
}

impl ClientSessionStore for Forger {
    fn set_kx_hint(&self, name: ServerName<'static>, group: NamedGroup) {
        self.sessions.set_kx_hint(name, group);
    }

    fn kx_hint(&self, name: &ServerName<'_>) -> Option<NamedGroup> {
        self.sessions.kx_hint(name)
    }

    fn set_tls12_session(&self, name: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.sessions.set_tls12_session(self.name(name), value);
    }

    fn tls12_session(&self, name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.sessions.tls12_session(&self.name(name.to_owned()))
    }

    fn remove_tls12_session(&self, name: &ServerName<'static>) {
        self.sessions.remove_tls12_session(&self.name(name.to_owned()));
    }

    fn insert_tls13_ticket(&self, name: ServerName<'static>, mut value: Tls13ClientSessionValue) {
        self.allowed.fetch_add(value.max_early_data_size() as usize, SeqCst);
        value._private_set_max_early_data_size(self.early_data);
        self.sessions.insert_tls13_ticket(self.name(name), value);
    }

    fn take_tls13_ticket(&self, name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.sessions.take_tls13_ticket(&self.name(name.to_owned()))
    }
}

#[test]
fn early_data_is_never_accepted() {
    let origin = Origin::answering("pod");
    let site = Ingress::with(&[]).serve(&origin).in_order();
    let forger = Forger::new(None, 16 * 1024);
    let config = forger.client(&[&TLS13]);
    get(site.proxy.https, &config, "a.test").expect("a first session");
    assert_eq!((forger.allowed.load(SeqCst), origin.heads().len()), (0, 1));

    let mut client = ClientConnection::new(config, "a.test".try_into().expect("a name")).expect("a client");
    client.early_data().expect("offered").write_all(REQUEST).expect("buffered");
    let mut socket = TcpStream::connect(site.proxy.https).expect("connected");
    socket.set_read_timeout(Some(DEADLINE)).expect("timeout set");
    while client.is_handshaking() {
        client.complete_io(&mut socket).expect("a handshake");
    }
    assert_eq!(client.handshake_kind(), Some(HandshakeKind::Resumed), "only the early data is refused");
    assert!(!client.is_early_data_accepted());
    let mut stream = StreamOwned::new(client, socket);
    stream.write_all(REQUEST).expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a clean end");
    assert_eq!(response.matches("HTTP/1.1 200 OK").count(), 1, "{response}");
    assert_eq!(origin.heads().len(), 2, "the early request is lost, not served");
    assert_eq!(forger.allowed.load(SeqCst), 0);
}
