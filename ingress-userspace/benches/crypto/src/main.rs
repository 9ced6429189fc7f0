//! Cost of TLS for a server with each crypto provider: handshakes per second of CPU, and GB of bulk data per second of
//! CPU.
//!
//! `cd ingress-userspace/benches/crypto && cargo run --release` prints the table of docs/adr/0020-crypto-provider.md.
//! Both ends run in one thread without sockets, and only the server's part is measured, by the thread's CPU time. The
//! client is the same for both. Rounds of all cases are interleaved; the table shows medians.

use std::{io, sync::Arc, time::Duration};

use rustix::time::{ClockId, clock_gettime};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion,
    client::Resumption,
    crypto::{CryptoProvider, aws_lc_rs, ring},
    version::{TLS12, TLS13},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};

const ROUNDS: usize = 9;
const HANDSHAKES: u32 = 300;
/// Bytes per direction and round.
const BULK: usize = 96 << 20;
/// Capacity of one record.
const RECORD: usize = 16 << 10;

type Provider = fn() -> CryptoProvider;

struct Handshake {
    name: &'static str,
    version: &'static SupportedProtocolVersion,
    key: &'static rcgen::SignatureAlgorithm,
    group: rustls::NamedGroup,
    resumed: bool,
}

const HANDSHAKE_CASES: [Handshake; 6] = [
    case("TLS 1.3, ECDSA P-256, X25519", &TLS13, &rcgen::PKCS_ECDSA_P256_SHA256, rustls::NamedGroup::X25519),
    case(
        "TLS 1.3, ECDSA P-256, X25519MLKEM768",
        &TLS13,
        &rcgen::PKCS_ECDSA_P256_SHA256,
        rustls::NamedGroup::X25519MLKEM768,
    ),
    case("TLS 1.3, RSA 2048, X25519", &TLS13, &rcgen::PKCS_RSA_SHA256, rustls::NamedGroup::X25519),
    case("TLS 1.2, ECDSA P-256, X25519", &TLS12, &rcgen::PKCS_ECDSA_P256_SHA256, rustls::NamedGroup::X25519),
    Handshake {
        resumed: true,
        ..case("TLS 1.3, resumed, X25519", &TLS13, &rcgen::PKCS_ECDSA_P256_SHA256, rustls::NamedGroup::X25519)
    },
    Handshake {
        resumed: true,
        ..case("TLS 1.2, resumed", &TLS12, &rcgen::PKCS_ECDSA_P256_SHA256, rustls::NamedGroup::X25519)
    },
];

const fn case(
    name: &'static str,
    version: &'static SupportedProtocolVersion,
    key: &'static rcgen::SignatureAlgorithm,
    group: rustls::NamedGroup,
) -> Handshake {
    Handshake { name, version, key, group, resumed: false }
}

const CIPHERS: [rustls::CipherSuite; 3] = [
    rustls::CipherSuite::TLS13_AES_128_GCM_SHA256,
    rustls::CipherSuite::TLS13_AES_256_GCM_SHA384,
    rustls::CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
];

fn main() {
    let providers: [(&str, Provider); 2] =
        [("aws-lc-rs", aws_lc_rs::default_provider), ("ring", ring::default_provider)];
    let mut rows: Vec<(String, [Vec<f64>; 2])> = Vec::new();
    let mut note = |name: String, provider: usize, value: Option<f64>| {
        let at = rows.iter().position(|(row, _)| *row == name).unwrap_or_else(|| {
            rows.push((name, Default::default()));
            rows.len() - 1
        });
        rows[at].1[provider].extend(value);
    };
    for _ in 0..ROUNDS {
        for case in &HANDSHAKE_CASES {
            for (number, (_, provider)) in providers.iter().enumerate() {
                note(format!("{}: handshakes/CPU s", case.name), number, handshakes(case, *provider));
            }
        }
        for cipher in CIPHERS {
            for (number, (_, provider)) in providers.iter().enumerate() {
                let (sealed, opened) = bulk(cipher, *provider);
                note(format!("{cipher:?}, sent: GB/CPU s"), number, Some(sealed));
                note(format!("{cipher:?}, received: GB/CPU s"), number, Some(opened));
            }
        }
    }
    println!("| | {} | {} |\n|---|---|---|", providers[0].0, providers[1].0);
    for (name, values) in rows {
        let [first, second] = values.map(|mut values| {
            values.sort_by(f64::total_cmp);
            match values.get(values.len() / 2) {
                None => "-".to_owned(),
                Some(median) if *median > 100.0 => format!("{median:.0}"),
                Some(median) => format!("{median:.2}"),
            }
        });
        println!("| {name} | {first} | {second} |");
    }
}

/// Returns the CPU time of this thread so far.
fn clock() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// Returns a server, and its certificate as a trust anchor for clients.
fn server(
    provider: CryptoProvider,
    version: &'static SupportedProtocolVersion,
    key: &'static rcgen::SignatureAlgorithm,
) -> (Arc<ServerConfig>, CertificateDer<'static>) {
    let key = rcgen::KeyPair::generate_for(key).expect("a key");
    let certificate = rcgen::CertificateParams::new(vec!["a.test".to_owned()])
        .expect("parameters")
        .self_signed(&key)
        .expect("a certificate");
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let is_ring = provider.kx_groups.len() == ring::default_provider().kx_groups.len();
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[version])
        .expect("a version")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("a certificate");
    config.ticketer = if is_ring { ring::Ticketer::new() } else { aws_lc_rs::Ticketer::new() }.expect("a ticketer");
    config.send_tls13_tickets = 1;
    (Arc::new(config), certificate.der().clone())
}

fn client(
    trusted: CertificateDer<'static>,
    group: Option<rustls::NamedGroup>,
    cipher: Option<rustls::CipherSuite>,
    version: &'static SupportedProtocolVersion,
) -> Arc<ClientConfig> {
    let mut provider = aws_lc_rs::default_provider();
    if let Some(group) = group {
        provider.kx_groups = aws_lc_rs::ALL_KX_GROUPS.iter().copied().filter(|known| known.name() == group).collect();
    }
    if let Some(cipher) = cipher {
        provider.cipher_suites.retain(|known| known.suite() == cipher);
    }
    let mut roots = RootCertStore::empty();
    roots.add(trusted).expect("a certificate");
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[version])
        .expect("a version")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.resumption = Resumption::in_memory_sessions(8);
    Arc::new(config)
}

/// Returns handshakes per second of CPU, or `None` if the provider lacks the group.
fn handshakes(case: &Handshake, provider: Provider) -> Option<f64> {
    let provider = provider();
    if !provider.kx_groups.iter().any(|group| group.name() == case.group) {
        return None;
    }
    let (server, trusted) = server(provider, case.version, case.key);
    let client = client(trusted, Some(case.group), None, case.version);
    let fresh = || {
        let mut config = ClientConfig::clone(&client);
        config.resumption = Resumption::disabled();
        Arc::new(config)
    };
    // The warm-up also gives the client its first ticket.
    connect(&server, &client);
    let mut spent = Duration::ZERO;
    for _ in 0..HANDSHAKES {
        let (.., kind, cpu) = connect(&server, &if case.resumed { Arc::clone(&client) } else { fresh() });
        assert_eq!(kind == Some(rustls::HandshakeKind::Resumed), case.resumed, "{}: {kind:?}", case.name);
        spent += cpu;
    }
    Some(f64::from(HANDSHAKES) / spent.as_secs_f64())
}

/// Makes a connection. Returns both ends, the kind of handshake, and the server's CPU time.
fn connect(
    server: &Arc<ServerConfig>,
    client: &Arc<ClientConfig>,
) -> (ServerConnection, ClientConnection, Option<rustls::HandshakeKind>, Duration) {
    let name = ServerName::try_from("a.test").expect("a name");
    let mut client = ClientConnection::new(Arc::clone(client), name).expect("a client");
    let start = clock();
    let mut server = ServerConnection::new(Arc::clone(server)).expect("a server");
    let mut spent = clock() - start;
    loop {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).expect("written");
        }
        let start = clock();
        take(&wire, |wire| server.read_tls(wire));
        server.process_new_packets().expect("valid");
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).expect("written");
        }
        spent += clock() - start;
        take(&wire, |wire| client.read_tls(wire));
        client.process_new_packets().expect("valid");
        if !server.is_handshaking() && !client.is_handshaking() && !client.wants_write() {
            let kind = server.handshake_kind();
            return (server, client, kind, spent);
        }
    }
}

fn take(mut wire: &[u8], mut read: impl FnMut(&mut &[u8]) -> io::Result<usize>) {
    while !wire.is_empty() {
        read(&mut wire).expect("read");
    }
}

/// Returns the GB per second of CPU that the server sends and receives.
fn bulk(cipher: rustls::CipherSuite, provider: Provider) -> (f64, f64) {
    let (server, trusted) = server(provider(), &TLS13, &rcgen::PKCS_ECDSA_P256_SHA256);
    let (mut server, mut client, ..) = connect(&server, &client(trusted, None, Some(cipher), &TLS13));
    let data = vec![7; RECORD];
    let (mut wire, mut plain) = (Vec::with_capacity(2 * RECORD), vec![0; RECORD]);
    let (mut sent, mut received) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..BULK / RECORD {
        let start = clock();
        io::Write::write_all(&mut server.writer(), &data).expect("written");
        wire.clear();
        while server.wants_write() {
            server.write_tls(&mut wire).expect("written");
        }
        sent += clock() - start;
        // The data need not be decrypted; the other direction has its own keys.
        wire.clear();
        io::Write::write_all(&mut client.writer(), &data).expect("written");
        while client.wants_write() {
            client.write_tls(&mut wire).expect("written");
        }
        let start = clock();
        let mut rest = &wire[..];
        while !rest.is_empty() {
            server.read_tls(&mut rest).expect("read");
            server.process_new_packets().expect("valid");
        }
        io::Read::read_exact(&mut server.reader(), &mut plain).expect("read");
        received += clock() - start;
    }
    let gigabytes = (BULK / RECORD * RECORD) as f64 / 1e9;
    (gigabytes / sent.as_secs_f64(), gigabytes / received.as_secs_f64())
}
