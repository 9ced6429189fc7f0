//! The TLS configuration of the remote API, from files that an operator mounts. It follows their changes, because
//! Kubernetes replaces the files of a Secret that is renewed.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use aws_lc_rs::digest::{SHA256, digest};
use rustls::{
    RootCertStore, ServerConfig,
    crypto::aws_lc_rs::default_provider,
    server::{NoServerSessionStorage, WebPkiClientVerifier},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tracing::{info, warn};
use zeroize::Zeroizing;

/// Minimum interval between two looks at the files.
const LOOKED_AT: Duration = Duration::from_secs(10);

/// Files in PEM form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertificateFiles {
    /// Certificate of the server, followed by its intermediates.
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// Authorities of clients' certificates; `None` asks for no certificate.
    pub(crate) client_authorities: Option<PathBuf>,
}

/// Reason why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CertificateError {
    #[error("cannot read `{path}`; the file must exist and be readable by this process's user")]
    Read { path: PathBuf, source: io::Error },
    #[error("`{0}` has no certificate in PEM form")]
    NoCertificate(PathBuf),
    #[error("`{path}` has no private key in PEM form")]
    NoKey { path: PathBuf, source: rustls_pki_types::pem::Error },
    #[error("the key `{key}` cannot be used with the certificate `{certificate}`")]
    Pair { certificate: PathBuf, key: PathBuf, source: rustls::Error },
    #[error("`{path}` has an authority that cannot be used")]
    Authority { path: PathBuf, source: rustls::Error },
    #[error("`{path}` cannot be used to check clients")]
    Verifier { path: PathBuf, source: rustls::server::VerifierBuilderError },
}

/// A configuration that follows its files.
#[derive(Debug)]
pub(super) struct Certificates {
    files: CertificateFiles,
    config: Arc<ServerConfig>,
    contents: Fingerprint,
    looked_at: Instant,
}

/// Digest of the contents of all files.
type Fingerprint = [u8; 32];

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    /// Fails if a file cannot be read or used.
    pub(super) fn open(files: CertificateFiles) -> Result<Self, CertificateError> {
        let (config, contents) = read(&files)?;
        Ok(Self { files, config, contents, looked_at: Instant::now() })
    }

    /// Returns the configuration. New files that cannot be used are reported once, and the old ones stay in use.
    pub(super) fn config(&mut self, now: Instant) -> Arc<ServerConfig> {
        if now.duration_since(self.looked_at) >= LOOKED_AT {
            self.looked_at = now;
            match contents(&self.files) {
                Ok((_, contents)) if contents == self.contents => {}
                Ok((_, contents)) => self.replace(contents),
                Err(error) => self.keep(&error, [0; 32]),
            }
        }
        Arc::clone(&self.config)
    }

    fn replace(&mut self, contents: Fingerprint) {
        match read(&self.files) {
            Ok((config, contents)) => {
                (self.config, self.contents) = (config, contents);
                info!("the API serves the new certificate");
            }
            Err(error) => self.keep(&error, contents),
        }
    }

    fn keep(&mut self, error: &CertificateError, contents: Fingerprint) {
        if self.contents != contents {
            self.contents = contents;
            warn!(
                error = error as &dyn std::error::Error,
                "the API keeps its certificate: the new files cannot be used"
            );
        }
    }
}

/// Contents of the certificate, of the key, and of the authorities.
type Contents = (Vec<u8>, Zeroizing<Vec<u8>>, Option<Vec<u8>>);

fn contents(files: &CertificateFiles) -> Result<(Contents, Fingerprint), CertificateError> {
    let read = |path: &Path| fs::read(path).map_err(|source| CertificateError::Read { path: path.to_owned(), source });
    let CertificateFiles { certificate, key, client_authorities } = files;
    let certificate = read(certificate)?;
    let key = Zeroizing::new(read(key)?);
    let authorities = client_authorities.as_deref().map(read).transpose()?;
    let mut digests = Vec::new();
    for part in [&certificate[..], &key[..], authorities.as_deref().unwrap_or_default()] {
        digests.extend_from_slice(digest(&SHA256, part).as_ref());
    }
    let mut fingerprint = [0; 32];
    fingerprint.copy_from_slice(digest(&SHA256, &digests).as_ref());
    Ok(((certificate, key, authorities), fingerprint))
}

fn read(files: &CertificateFiles) -> Result<(Arc<ServerConfig>, Fingerprint), CertificateError> {
    let ((certificate, key, authorities), fingerprint) = contents(files)?;
    let chain = certificates(&certificate, &files.certificate)?;
    let no_key = |source| CertificateError::NoKey { path: files.key.clone(), source };
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(no_key)?;
    let provider = Arc::new(default_provider());
    let pair =
        |source| CertificateError::Pair { certificate: files.certificate.clone(), key: files.key.clone(), source };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let builder = builder.map_err(pair)?;
    let builder = match (authorities, &files.client_authorities) {
        (Some(authorities), Some(path)) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(&authorities, path)? {
                let unusable = |source| CertificateError::Authority { path: path.clone(), source };
                roots.add(authority).map_err(unusable)?;
            }
            // A client without a certificate may have a token. Without either it gets 401, which tells more than a
            // failed handshake.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|source| CertificateError::Verifier { path: path.clone(), source })?;
            builder.with_client_cert_verifier(verifier)
        }
        _ => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(pair)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // Each connection presents its certificate again, so that removed authorities have an effect at once.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok((Arc::new(config), fingerprint))
}

fn certificates(pem: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(CertificateError::NoCertificate(path.to_owned())),
    }
}
