//! Certificates with their keys, read from PEM. `Debug` never shows keys.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
    time::Duration,
};

use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, pem::PemObject};
use zeroize::Zeroizing;

/// A certificate chain and its private key.
///
/// The constructor only checks that the PEM is well-formed. Loading shows whether the key has a supported type and
/// belongs to the chain.
#[derive(Clone)]
pub struct Certificate {
    /// Source: `namespace/secret`. Route tables use it as the key.
    pub origin: Arc<str>,
    /// Certificates, leaf first.
    pub chain: Vec<CertificateDer<'static>>,
    /// Private key, wiped on drop.
    pub key: Arc<Zeroizing<PrivateKeyDer<'static>>>,
    /// OCSP response of the issuer.
    pub staple: Option<Staple>,
}

/// An OCSP response (RFC 6960) that confirms a certificate as good, for clients that request it in the handshake.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Staple {
    /// Response in DER.
    pub response: Arc<[u8]>,
    /// Start of validity, as time since 1970.
    pub from: Duration,
    /// End of validity, as time since 1970.
    pub until: Duration,
}

/// Certificate authorities trusted for one purpose.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Authorities {
    /// Display name: `namespace/secret`.
    pub origin: Arc<str>,
    /// At least one certificate.
    pub certificates: Vec<CertificateDer<'static>>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    #[error("`{field}` holds no PEM block `CERTIFICATE`")]
    NoCertificate { field: &'static str },
    #[error("`{field}` holds no PEM block with a private key (PKCS#8, PKCS#1 or SEC1)")]
    NoKey { field: &'static str },
    #[error("`{field}` is not valid PEM: {reason}")]
    Pem { field: &'static str, reason: String },
}

impl Certificate {
    /// Parses the two halves of a TLS Secret.
    ///
    /// # Errors
    /// Fails if either half has no PEM block of its kind. Error texts never quote the input.
    pub fn from_pem(origin: &str, tls_crt: &[u8], tls_key: &[u8]) -> Result<Self, CertificateError> {
        let chain = certificates("tls.crt", tls_crt)?;
        let key = PrivateKeyDer::from_pem_slice(tls_key).map_err(|error| match error {
            rustls_pki_types::pem::Error::NoItemsFound => CertificateError::NoKey { field: "tls.key" },
            other => CertificateError::Pem { field: "tls.key", reason: describe(&other) },
        })?;
        Ok(Self { origin: origin.into(), chain, key: Arc::new(Zeroizing::new(key)), staple: None })
    }
}

impl Authorities {
    /// Parses `ca.crt` of a Secret.
    ///
    /// # Errors
    /// Fails if it contains no certificate.
    pub fn from_pem(origin: &str, ca_crt: &[u8]) -> Result<Self, CertificateError> {
        Ok(Self { origin: origin.into(), certificates: certificates("ca.crt", ca_crt)? })
    }
}

/// Parses `ca.crl` of a Secret.
///
/// # Errors
/// Fails if it is not PEM.
pub fn revocation_lists(ca_crl: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, CertificateError> {
    let lists = CertificateRevocationListDer::pem_slice_iter(ca_crl).collect::<Result<_, _>>();
    lists.map_err(|error| CertificateError::Pem { field: "ca.crl", reason: describe(&error) })
}

/// Returns all certificates of `pem`, at least one.
fn certificates(field: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| CertificateError::Pem { field, reason: describe(&error) })?;
    if certificates.is_empty() { Err(CertificateError::NoCertificate { field }) } else { Ok(certificates) }
}

/// Describes the kind of a PEM error without the bytes it carries, which may be part of a key.
fn describe(error: &rustls_pki_types::pem::Error) -> String {
    use rustls_pki_types::pem::Error;
    match error {
        Error::MissingSectionEnd { .. } => "a section has no end line",
        Error::IllegalSectionStart { .. } => "a section's begin line is malformed",
        Error::Base64Decode(_) => "a section is not valid base64",
        Error::SectionTooLarge => "a section is too large",
        Error::NoItemsFound => "it holds no section of the expected kind",
        _ => "it cannot be read",
    }
    .into()
}

impl PartialEq for Certificate {
    fn eq(&self, other: &Self) -> bool {
        let Self { origin, chain, key, staple } = self;
        *origin == other.origin
            && *chain == other.chain
            && key.secret_der() == other.key.secret_der()
            && *staple == other.staple
    }
}

impl Eq for Certificate {}

impl Hash for Certificate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { origin, chain, key: _, staple } = self;
        (origin, chain, staple).hash(state);
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, chain, key: _, staple } = self;
        f.debug_struct("Certificate")
            .field("origin", origin)
            .field("chain", &format_args!("{} certificates", chain.len()))
            .field("key", &"[redacted]")
            .field("staple", staple)
            .finish()
    }
}

impl fmt::Debug for Staple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { response, from, until } = self;
        write!(f, "Staple({} bytes, from {} to {})", response.len(), from.as_secs(), until.as_secs())
    }
}

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, certificates } = self;
        write!(f, "Authorities({origin}, {} certificates)", certificates.len())
    }
}

#[cfg(test)]
mod tests {
    use zeroize::ZeroizeOnDrop;

    use super::*;

    /// Compiles only if the memory of a key is wiped.
    #[test]
    fn private_keys_are_wiped() {
        fn wiped<T: ZeroizeOnDrop>(_: &T) {}
        let pem = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let key = b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n";
        wiped(&*Certificate::from_pem("a/b", pem, key).expect("well-formed").key);
    }

    #[test]
    fn an_invalid_key_is_refused_without_quoting_it() {
        let pem = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let error = Certificate::from_pem("a/b", pem, b"hunter2").expect_err("not a key");
        assert_eq!(error, CertificateError::NoKey { field: "tls.key" });
        let broken = b"-----BEGIN PRIVATE KEY-----\nhunter2!\n-----END PRIVATE KEY-----\n";
        let error = Certificate::from_pem("a/b", pem, broken).expect_err("not base64");
        assert!(!error.to_string().contains("hunter2"), "{error}");
        assert_eq!(
            Certificate::from_pem("a/b", b"", broken).expect_err("no certificate"),
            CertificateError::NoCertificate { field: "tls.crt" }
        );
    }

    #[test]
    fn debug_redacts_the_key() {
        let pem = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let key = b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n";
        let certificate = Certificate::from_pem("a/b", pem, key).expect("well-formed");
        let debug = format!("{certificate:?}");
        assert!(debug.contains("[redacted]") && !debug.contains("115, 101"), "{debug}");
    }
}
