//! Certificate authorities and the certificates they issue, and pods that speak TLS and report their handshakes.

use std::{
    future::Future,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread,
};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber,
};
use rustls::{HandshakeKind, RootCertStore, ServerConfig, crypto::aws_lc_rs, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A certificate authority, or one below another.
pub struct Authority {
    pub issuer: Issuer<'static, KeyPair>,
    pub pem: String,
    der: CertificateDer<'static>,
}

/// A certificate with its key, as PEM.
#[derive(Clone)]
pub struct Issued {
    pub cert: String,
    pub key: String,
    pub serial: SerialNumber,
}

static SERIAL: AtomicU64 = AtomicU64::new(1);

fn key() -> KeyPair {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("a key")
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let (params, key) = (authority_params(name), key());
        let made = params.self_signed(&key).expect("certificate");
        Self { pem: made.pem(), der: made.der().clone(), issuer: Issuer::new(params, key) }
    }

    /// Issues a certificate for a server, or for a client, of this name.
    pub fn issue(&self, name: &str) -> Issued {
        self.issue_until(&[name], 4096)
    }

    /// Issues a certificate with these names, of which those with a colon are URIs.
    pub fn issue_for(&self, names: &[&str]) -> Issued {
        self.issue_until(names, 4096)
    }

    /// Issues a certificate that has expired.
    pub fn issue_expired(&self, name: &str) -> Issued {
        self.issue_until(&[name], 2001)
    }

    fn issue_until(&self, names: &[&str], year: i32) -> Issued {
        let (uris, names): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| name.contains(':'));
        let own: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(own).expect("parameters");
        params.subject_alt_names.extend(uris.iter().map(|&uri| SanType::URI(uri.try_into().expect("ASCII"))));
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        params.serial_number = Some(SerialNumber::from(SERIAL.fetch_add(1, Relaxed)));
        let serial = params.serial_number.clone().expect("a number");
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, names.first().copied().unwrap_or("nameless"));
        let key = key();
        let made = params.signed_by(&key, &self.issuer).expect("certificate");
        Issued { cert: made.pem(), key: key.serialize_pem(), serial }
    }

    /// Creates an intermediate authority below this one.
    pub fn below(&self, name: &str) -> Self {
        let (params, key) = (authority_params(name), key());
        let made = params.signed_by(&key, &self.issuer).expect("certificate");
        Self { pem: made.pem(), der: made.der().clone(), issuer: Issuer::new(params, key) }
    }

    /// Returns its revocation list, as PEM.
    pub fn revoking(&self, revoked: &[&Issued]) -> String {
        let revoked = revoked.iter().map(|issued| RevokedCertParams {
            serial_number: issued.serial.clone(),
            revocation_time: rcgen::date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2020, 1, 1),
            next_update: rcgen::date_time_ymd(4096, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).expect("a list").pem().expect("PEM")
    }

    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.der.clone()]
    }

    pub fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone()).expect("an authority");
        roots
    }
}

/// A Secret of namespace `default`, as YAML.
pub fn secret(name: &str, data: &[(&str, &str)]) -> String {
    let mut yaml =
        format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: default}}\nstringData:\n");
    for (key, value) in data {
        yaml += &format!("  {key}: {value:?}\n");
    }
    yaml
}

impl Issued {
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        use rustls_pki_types::pem::PemObject;
        CertificateDer::pem_slice_iter(self.cert.as_bytes()).map(|der| der.expect("a certificate")).collect()
    }

    pub fn private_key(&self) -> PrivateKeyDer<'static> {
        let key = KeyPair::from_pem(&self.key).expect("a key");
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()))
    }
}

/// A pod's view of a connection.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Whether the handshake resumed an earlier session.
    pub kind: Option<HandshakeKind>,
    pub server_name: Option<String>,
    pub alpn: Option<Vec<u8>>,
    /// Whether the proxy showed a certificate.
    pub certificate: bool,
}

pub struct TlsPod {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl TlsPod {
    /// Presents `issued`, requests a certificate of `clients` if given, and runs a script on each connection.
    pub fn start<F>(
        issued: &Issued,
        clients: Option<&Authority>,
        alpn: &[&str],
        script: impl Fn(TlsStream<TcpStream>) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
        let builder = builder.expect("versions");
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authority.roots()), provider);
                builder.with_client_cert_verifier(verifier.build().expect("a verifier"))
            }
        };
        let mut config = builder.with_single_cert(issued.chain(), issued.private_key()).expect("a certificate");
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Self::serving(config, script)
    }

    /// Runs a script on each connection.
    pub fn serving<F>(config: ServerConfig, script: impl Fn(TlsStream<TcpStream>) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("bound");
        listener.set_nonblocking(true).expect("non-blocking");
        let address = listener.local_addr().expect("address");
        let pod = Self { address, connections: Arc::default(), seen: Arc::default() };
        let (connections, seen) = (Arc::clone(&pod.connections), Arc::clone(&pod.seen));
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("listener");
                while let Ok((stream, _)) = listener.accept().await {
                    connections.fetch_add(1, SeqCst);
                    let Ok(stream) = acceptor.accept(stream).await else { continue };
                    let tls = stream.get_ref().1;
                    seen.lock().expect("unpoisoned").push(Seen {
                        kind: tls.handshake_kind(),
                        server_name: tls.server_name().map(str::to_owned),
                        alpn: tls.alpn_protocol().map(<[u8]>::to_vec),
                        certificate: tls.peer_certificates().is_some(),
                    });
                    tokio::spawn(script(stream));
                }
            });
        });
        pod
    }

    /// Returns the number of connections accepted, including failed ones.
    pub fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }

    /// Returns the completed handshakes.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("unpoisoned").clone()
    }
}
