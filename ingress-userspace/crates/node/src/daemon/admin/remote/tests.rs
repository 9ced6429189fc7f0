use std::{fs, io, path::Path};

use futures_util::future::BoxFuture;
use ingress_control::access_review::{Access, AccessError};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::JoinHandle,
};

use super::{tokens::Reviewer, *};
use crate::daemon::admin::{Metrics, testing::Fixed};

/// An authority with its key.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a valid name");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Returns a certificate and its key.
    fn issue(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> (String, String) {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a valid name");
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().expect("a key");
        (params.signed_by(&key, &self.issuer).expect("a certificate").pem(), key.serialize_pem())
    }
}

/// Allows one token.
struct OneToken;

impl Reviewer for OneToken {
    fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Access, AccessError>> {
        Box::pin(async move {
            match token {
                "good" => Ok(Access::Allowed("ann".into())),
                "poor" => Ok(Access::Forbidden("bob".into())),
                "late" => Err(AccessError::Late),
                _ => Ok(Access::Unauthenticated),
            }
        })
    }
}

struct Served {
    address: SocketAddr,
    authority: Authority,
    directory: TempDir,
    task: JoinHandle<Infallible>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn write(directory: &Path, name: &str, text: &str) -> std::path::PathBuf {
    let path = directory.join(name);
    fs::write(&path, text).expect("writable");
    path
}

/// Returns files with a certificate of `authority`, which also issues those of clients.
fn files(directory: &Path, authority: &Authority) -> CertificateFiles {
    let (certificate, key) = authority.issue("api.test", ExtendedKeyUsagePurpose::ServerAuth);
    CertificateFiles {
        certificate: write(directory, "tls.crt", &certificate),
        key: write(directory, "tls.key", &key),
        client_authorities: Some(write(directory, "ca.crt", &authority.pem)),
    }
}

async fn serve_api(with_tokens: bool) -> Served {
    let (authority, directory) = (Authority::new("authority"), TempDir::new().expect("a directory"));
    let mut certificates = Certificates::open(files(directory.path(), &authority)).expect("usable files");
    let answers = Arc::new(Answers::new(Arc::new(Fixed::with(Ok(()))), Metrics::All));
    let remote = Arc::new(Remote { answers, tokens: with_tokens.then(|| Tokens::new(OneToken)) });
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let task = tokio::spawn(async move { accept(&listener, &mut certificates, &remote).await });
    Served { address, authority, directory, task }
}

impl Served {
    /// Returns status and body of an answer, or the error of the handshake.
    async fn get(
        &self,
        path: &str,
        token: Option<&str>,
        identity: Option<&(String, String)>,
    ) -> io::Result<(u16, String)> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.pem.as_bytes()).expect("PEM")).expect("an authority");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.expect("versions").with_root_certificates(roots);
        let config = match identity {
            Some((certificate, key)) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM")],
                    PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM"),
                )
                .expect("a pair"),
            None => builder.with_no_client_auth(),
        };
        let name = ServerName::try_from("api.test").expect("a name");
        let stream = TcpStream::connect(self.address).await?;
        let mut stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        let head = format!("GET {path} HTTP/1.1\r\nhost: api.test\r\nconnection: close\r\n{token}\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut answer = String::new();
        // A server need not end TLS with close_notify.
        if let Err(error) = stream.read_to_string(&mut answer).await
            && answer.is_empty()
        {
            return Err(error);
        }
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
        status.zip(body).ok_or_else(|| io::Error::other("no answer"))
    }
}

#[tokio::test]
async fn clients_are_answered_only_with_a_token_or_a_certificate() {
    let served = serve_api(true).await;
    for (token, status, text) in [
        (None, 401, "present a token"),
        (Some("bad"), 401, "does not know this token"),
        (Some("poor"), 403, "`bob` may not read this API"),
        (Some("late"), 503, "did not review"),
        (Some("good"), 200, "\"version\":\"v1\""),
    ] {
        let (found, body) = served.get("/api/v1", token, None).await.expect("an answer");
        assert_eq!((found, body.contains(text)), (status, true), "{token:?}: {body}");
    }
    let client = served.authority.issue("client", ExtendedKeyUsagePurpose::ClientAuth);
    assert_eq!(served.get("/api/v1/node", None, Some(&client)).await.expect("an answer").0, 200);
    let stranger = Authority::new("stranger").issue("client", ExtendedKeyUsagePurpose::ClientAuth);
    assert!(served.get("/api/v1/node", Some("good"), Some(&stranger)).await.is_err(), "the handshake fails");
    let server = served.authority.issue("client", ExtendedKeyUsagePurpose::ServerAuth);
    assert!(served.get("/api/v1/node", None, Some(&server)).await.is_err(), "a server's certificate is for no client");
}

#[test]
fn a_refused_client_loses_its_connection() {
    for refusal in [Refusal::NoToken, Refusal::NoCertificate, Refusal::UnknownToken, Refusal::TooMany] {
        assert_eq!(refusal.into_response().headers()[header::CONNECTION], "close");
    }
}

#[tokio::test]
async fn without_reviews_only_certificates_count() {
    let served = serve_api(false).await;
    let (status, body) = served.get("/api/v1", Some("good"), None).await.expect("an answer");
    assert_eq!((status, body.contains("client certificate")), (401, true), "{body}");
}

#[tokio::test]
async fn authenticated_clients_see_addresses_the_dashboard_and_nothing_else() {
    let served = serve_api(true).await;
    for (path, status) in [
        ("/api/v1/clients", 200),
        ("/api/v1/deny", 200),
        ("/dashboard/hosts", 200),
        ("/metrics", 404),
        ("/healthz", 404),
        ("/hosts", 404),
    ] {
        assert_eq!(served.get(path, Some("good"), None).await.expect("an answer").0, status, "{path}");
    }
}

#[tokio::test]
async fn a_renewed_certificate_is_served_and_a_broken_one_is_not() {
    let served = serve_api(true).await;
    let directory = served.directory.path();
    let paths = files(directory, &served.authority);
    let mut certificates = Certificates::open(paths.clone()).expect("usable files");
    let start = std::time::Instant::now();
    let first = certificates.config(start);
    let later = |seconds| start + Duration::from_secs(seconds);
    assert!(Arc::ptr_eq(&first, &certificates.config(later(20))), "unchanged files are not parsed again");
    fs::write(&paths.key, "no key").expect("writable");
    assert!(Arc::ptr_eq(&first, &certificates.config(later(40))), "a broken key changes nothing");
    fs::remove_file(&paths.key).expect("there");
    assert!(Arc::ptr_eq(&first, &certificates.config(later(60))), "a missing key changes nothing");
    files(directory, &served.authority);
    assert!(Arc::ptr_eq(&first, &certificates.config(later(65))), "files are read every ten seconds");
    let renewed = certificates.config(later(80));
    assert!(!Arc::ptr_eq(&first, &renewed));
}

#[test]
fn unusable_files_are_named() {
    let (authority, directory) = (Authority::new("authority"), TempDir::new().expect("a directory"));
    let directory = directory.path();
    let other = authority.issue("other.test", ExtendedKeyUsagePurpose::ServerAuth);
    type Break = fn(&mut CertificateFiles, &Path, &str);
    let cases: [(Break, &str); 5] = [
        (|files, _, _| files.certificate = "/missing.crt".into(), "cannot read `/missing.crt`"),
        (|files, at, _| files.certificate = write(at, "empty.crt", ""), "has no certificate in PEM form"),
        (|files, at, _| files.key = write(at, "empty.key", ""), "has no private key in PEM form"),
        (|files, at, key| files.key = write(at, "other.key", key), "cannot be used with the certificate"),
        (|files, at, _| files.client_authorities = Some(write(at, "no.crt", "x")), "has no certificate in PEM form"),
    ];
    for (spoil, expected) in cases {
        let mut files = files(directory, &authority);
        spoil(&mut files, directory, &other.1);
        let error = Certificates::open(files).expect_err(expected);
        assert!(error.to_string().contains(expected), "{error}");
    }
}
