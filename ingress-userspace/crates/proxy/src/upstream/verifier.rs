//! Verification of endpoints' certificates under one policy. Connections and sessions are not known here.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor, verify_server_name,
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    server::ParsedCertificate,
};
use rustls_pki_types::{CertificateDer, ServerName, SignatureVerificationAlgorithm, UnixTime};
use webpki::{EndEntityCert, KeyUsage, VerifiedPath};
use x509_cert::{
    der::Decode as _,
    ext::pkix::{SubjectAltName, name::GeneralName},
};

use ingress_model::{CertificateName, Verify};

use super::BoxError;

/// Verifies that the endpoint holds the key of its certificate, and with a policy also that the certificate is for an
/// expected name, regardless of the session's name.
#[derive(Debug)]
pub(super) struct Verifier {
    provider: Arc<CryptoProvider>,
    expected: Option<Expected>,
}

/// Trust anchors, and names of which a certificate needs one.
#[derive(Debug)]
struct Expected {
    roots: RootCertStore,
    names: Vec<CertificateName>,
    /// Maximum number of certificates between the endpoint's and an anchor.
    depth: Option<usize>,
}

// === impl Verifier ===

impl Verifier {
    /// Creates the verifier of a policy. Without `expected`, it accepts any certificate.
    ///
    /// # Errors
    /// If a trust anchor is invalid.
    pub(super) fn new(expected: Option<&Verify>, provider: Arc<CryptoProvider>) -> Result<Self, BoxError> {
        let Some(Verify { authorities, names, depth }) = expected else { return Ok(Self { provider, expected: None }) };
        let mut roots = RootCertStore::empty();
        for authority in &authorities.certificates {
            roots.add(authority.clone())?;
        }
        Ok(Self { provider, expected: Some(Expected { roots, names: names.clone(), depth: *depth }) })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(Expected { roots, names, depth }) = &self.expected else { return Ok(ServerCertVerified::assertion()) };
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms)?;
        if let Some(depth) = depth {
            verify_depth(*depth, end_entity, roots, intermediates, now, algorithms)?;
        }
        verify_names(&parsed, end_entity, names)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Verifies that an anchor is reached over at most `depth` other certificates.
fn verify_depth(
    depth: usize,
    end_entity: &CertificateDer<'_>,
    roots: &RootCertStore,
    intermediates: &[CertificateDer<'_>],
    now: UnixTime,
    algorithms: &[&dyn SignatureVerificationAlgorithm],
) -> Result<(), rustls::Error> {
    let is_short = |path: &VerifiedPath<'_>| match path.intermediate_certificates().count() {
        count if count > depth => Err(webpki::Error::MaximumPathDepthExceeded),
        _ => Ok(()),
    };
    let too_deep = |_error| rustls::Error::from(CertificateError::UnknownIssuer);
    let leaf = EndEntityCert::try_from(end_entity).map_err(too_deep)?;
    let usage = KeyUsage::server_auth();
    let verified = leaf.verify_for_usage(algorithms, &roots.roots, intermediates, now, usage, None, Some(&is_short));
    verified.map(drop).map_err(too_deep)
}

fn verify_names(
    parsed: &ParsedCertificate<'_>,
    certificate: &CertificateDer<'_>,
    names: &[CertificateName],
) -> Result<(), rustls::Error> {
    if let [CertificateName::Server(name)] = names {
        // Its error tells the names of the certificate.
        return verify_server_name(parsed, name);
    }
    let needs_parsing = names.iter().any(|name| !matches!(name, CertificateName::Server(_)));
    let alternatives = if needs_parsing { alternatives(certificate) } else { Vec::new() };
    let is_met = names.iter().any(|name| match name {
        CertificateName::Server(name) => verify_server_name(parsed, name).is_ok(),
        CertificateName::Wildcard(parent) => alternatives.iter().any(|alternative| match alternative {
            GeneralName::DnsName(name) => is_directly_below(name.as_str(), parent.as_ref()),
            _ => false,
        }),
        CertificateName::Uri(uri) => alternatives.iter().any(|alternative| match alternative {
            GeneralName::UniformResourceIdentifier(name) => name.as_str() == &**uri,
            _ => false,
        }),
    });
    if is_met { Ok(()) } else { Err(CertificateError::NotValidForName.into()) }
}

/// Returns the alternative names of the subject; none, if they cannot be parsed.
fn alternatives(certificate: &CertificateDer<'_>) -> Vec<GeneralName> {
    let Ok(parsed) = x509_cert::Certificate::from_der(certificate) else { return Vec::new() };
    match parsed.tbs_certificate().get_extension::<SubjectAltName>() {
        Ok(Some((_is_critical, SubjectAltName(names)))) => names,
        Ok(None) | Err(_) => Vec::new(),
    }
}

/// Returns whether `name` is `parent` with one label before it, which may be a wildcard.
fn is_directly_below(name: &str, parent: &str) -> bool {
    name.split_once('.').is_some_and(|(label, rest)| {
        (label == "*" || !(label.is_empty() || label.contains('*'))) && rest.eq_ignore_ascii_case(parent)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_stand_for_one_label() {
        for (name, expect) in [
            ("a.x.test", true),
            ("*.x.test", true),
            ("A.X.Test", true),
            ("x.test", false),
            (".x.test", false),
            ("b.a.x.test", false),
            ("a*.x.test", false),
            ("a.y.test", false),
            ("", false),
        ] {
            assert_eq!(is_directly_below(name, "x.test"), expect, "{name}");
        }
    }
}
