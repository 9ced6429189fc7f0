//! Client certificates: requesting them in the handshake, verifying them, and passing the result to pods.
//!
//! The handshake accepts any certificate with proof of possession of its key. It is verified afterwards by the policy
//! of the request's host in the current snapshot. A client without a valid certificate therefore gets a response with
//! the reason, and resumed sessions cannot bypass a changed policy.

use std::{
    cell::{OnceCell, RefCell},
    fmt::Write as _,
    rc::Rc,
    sync::Arc,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use percent_encoding::utf8_percent_encode;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, UnixTime};
use webpki::{
    BorrowedCertRevocationList, CertRevocationList, EndEntityCert, ExpirationPolicy, KeyUsage, RevocationCheckDepth,
    RevocationOptionsBuilder, UnknownStatusPolicy, VerifiedPath, anchor_from_trusted_cert,
};
use x509_cert::{
    Certificate,
    der::{Decode, Tag, Tagged as _, oid::ObjectIdentifier},
};

use ingress_model::{
    ClientCertificates, Demand, Pattern,
    route::{HostEntry, Routes, filter::Shown, template::RESERVED},
};

/// `id-at-commonName` (RFC 5280, appendix A.1).
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// State of client certificates on a connection.
#[derive(Debug, Default)]
pub(crate) struct ClientCertificateState {
    /// Set if any host requested certificates during the handshake. Boxed, because few connections have one.
    greeting: OnceCell<Box<Greeted>>,
}

#[derive(Debug)]
struct Greeted {
    greeting: Greeting,
    latest: RefCell<Option<Rc<ClientIdentity>>>,
}

#[derive(Debug)]
pub(crate) struct Greeting {
    /// In lower case; empty for none.
    pub(crate) server_name: String,
    /// Whether a certificate was requested, to be verified with each request.
    pub(crate) asked: bool,
    /// The policy that the handshake itself has enforced.
    pub(crate) enforced: Option<Arc<ClientCertificates>>,
    /// Leaf first; empty for none.
    pub(crate) chain: Vec<CertificateDer<'static>>,
}

/// The identity of the client for hosts with one policy.
#[derive(Debug)]
pub(crate) struct ClientIdentity {
    policy: Arc<ClientCertificates>,
    pub(crate) shown: Shown,
    /// The fields sent to pods, as lines of a head.
    pub(crate) fields: String,
}

/// The error for a request to a host that the connection was not made for (RFC 9110, section 15.5.20).
pub(crate) struct Misdirected;

// === impl ClientCertificateState ===

impl ClientCertificateState {
    pub(crate) fn greeted(&self, greeting: Greeting) {
        drop(self.greeting.set(Box::new(Greeted { greeting, latest: RefCell::default() })));
    }

    /// Returns the server name of the handshake, in lower case; empty for none, and for handshakes to which no
    /// configuration by name applied.
    pub(crate) fn server_name(&self) -> &str {
        self.greeting.get().map_or("", |known| &known.greeting.server_name)
    }

    /// Returns the policy that the handshake has enforced.
    pub(crate) fn enforced(&self) -> Option<&Arc<ClientCertificates>> {
        self.greeting.get()?.greeting.enforced.as_ref()
    }

    /// Returns the identity of the client for `host`, or `None` if the host requests no certificate.
    pub(crate) fn identity(
        &self,
        routes: &Routes,
        host: Option<&HostEntry>,
    ) -> Result<Option<Rc<ClientIdentity>>, Misdirected> {
        if !routes.ask_clients() {
            return Ok(None);
        }
        let policy = host.and_then(HostEntry::clients);
        let known = self.greeting.get().map(|known| &**known);
        let greeted = known.and_then(|known| routes.host(&known.greeting.server_name)?.clients());
        match (policy, known) {
            _ if policy != greeted => Err(Misdirected),
            (None, _) => Ok(None),
            (Some(policy), Some(Greeted { greeting, latest })) if greeting.asked => {
                let mut latest = latest.borrow_mut();
                let known = latest.as_ref().filter(|known| known.policy == *policy);
                let identity = known.cloned().unwrap_or_else(|| Rc::new(ClientIdentity::of(&greeting.chain, policy)));
                *latest = Some(Rc::clone(&identity));
                Ok(Some(identity))
            }
            // The policy is newer than the connection.
            (Some(_), _) => Err(Misdirected),
        }
    }
}

// === impl ClientIdentity ===

impl ClientIdentity {
    fn of(chain: &[CertificateDer<'_>], policy: &Arc<ClientCertificates>) -> Self {
        let leaf = chain.split_first();
        let verified = leaf.map(|(leaf, intermediates)| verify(leaf, intermediates, policy, UnixTime::now()));
        let (shown, result) = match verified {
            None => (Shown::Nothing, "NONE".to_owned()),
            Some(Ok(())) => (Shown::Valid, "SUCCESS".to_owned()),
            Some(Err(webpki::Error::UnknownIssuer)) => (Shown::OfUnknownIssuer, "FAILED:unknown issuer".to_owned()),
            Some(Err(_)) => (Shown::Invalid, "FAILED:not valid".to_owned()),
        };
        let mut fields = format!("ssl-client-verify: {result}\r\n");
        if let Some(leaf) = chain.first() {
            write_leaf(&mut fields, leaf, policy.passed);
        }
        let is_named = policy.name.as_ref().is_none_or(|name| chain.first().is_some_and(|leaf| has_name(leaf, name)));
        let shown = if is_named || shown.lack(policy.demand).is_some() { shown } else { Shown::OfAnotherName };
        Self { policy: Arc::clone(policy), shown, fields }
    }
}

/// Returns the fields sent to pods for a client with `chain`, leaf first, on hosts with `policy`, as lines of a head.
/// For fuzz targets: in a handshake, clients must possess the keys of their certificates.
pub fn fields_for_pods(chain: &[CertificateDer<'_>], policy: &Arc<ClientCertificates>) -> String {
    ClientIdentity::of(chain, policy).fields
}

/// Appends the fields sent to pods about a certificate.
fn write_leaf(fields: &mut String, leaf: &CertificateDer<'_>, passed: bool) {
    if let Ok(certificate) = Certificate::from_der(leaf) {
        let certificate = certificate.tbs_certificate();
        for (name, value) in [
            ("ssl-client-subject-dn", certificate.subject().to_string()),
            ("ssl-client-issuer-dn", certificate.issuer().to_string()),
        ] {
            fields.push_str(name);
            fields.push_str(": ");
            // Other bytes than visible ASCII are not allowed in a field (RFC 9110, section 5.5). They are written in
            // hexadecimal (RFC 4514, section 2.4), so that no two names become the same.
            for byte in value.bytes() {
                match byte {
                    b' '..=b'~' => fields.push(char::from(byte)),
                    // Writing to a string does not fail.
                    _ => _ = write!(fields, "\\{byte:02X}"),
                }
            }
            fields.push_str("\r\n");
        }
    }
    if passed {
        fields.push_str("ssl-client-cert: ");
        fields.extend(utf8_percent_encode(&pem(leaf), RESERVED));
        fields.push_str("\r\n");
    }
}

/// Returns whether the certificate has common names, and each one, as a whole, is `wanted`. A name with characters that a
/// reader could mistake for its end is none.
fn has_name(leaf: &CertificateDer<'_>, wanted: &Pattern) -> bool {
    let Ok(certificate) = Certificate::from_der(leaf) else { return false };
    let subject = certificate.tbs_certificate().subject();
    let mut names = subject.iter().filter(|attribute| attribute.oid == COMMON_NAME).peekable();
    names.peek().is_some()
        && names.all(|attribute| {
            let is_text = matches!(attribute.value.tag(), Tag::Utf8String | Tag::PrintableString | Tag::Ia5String);
            let text = str::from_utf8(attribute.value.value()).ok().filter(|_| is_text);
            text.is_some_and(|text| !text.contains(char::is_control) && wanted.is_match(text))
        })
}

fn pem(der: &[u8]) -> String {
    let mut pem = "-----BEGIN CERTIFICATE-----\n".to_owned();
    for line in STANDARD.encode(der).as_bytes().chunks(64) {
        pem.extend(line.iter().copied().map(char::from));
        pem.push('\n');
    }
    pem + "-----END CERTIFICATE-----\n"
}

fn verify(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    policy: &ClientCertificates,
    now: UnixTime,
) -> Result<(), webpki::Error> {
    let ClientCertificates { authorities, revoked, demand: _, depth, passed: _, name: _, error_page: _ } = policy;
    let anchors = authorities.certificates.iter().map(anchor_from_trusted_cert).collect::<Result<Vec<_>, _>>()?;
    let lists = revoked.iter().map(|list| BorrowedCertRevocationList::from_der(list).map(CertRevocationList::from));
    let lists = lists.collect::<Result<Vec<_>, _>>()?;
    let lists: Vec<_> = lists.iter().collect();
    let revocation = RevocationOptionsBuilder::new(&lists).ok().map(|options| {
        options
            .with_depth(RevocationCheckDepth::Chain)
            .with_status_policy(UnknownStatusPolicy::Deny)
            .with_expiration_policy(ExpirationPolicy::Enforce)
            .build()
    });
    let is_short = |path: &VerifiedPath<'_>| match path.intermediate_certificates().count() {
        count if count > *depth => Err(webpki::Error::MaximumPathDepthExceeded),
        _ => Ok(()),
    };
    let algorithms = crate::tls::provider::provider().signature_verification_algorithms.all;
    let usage = KeyUsage::client_auth();
    let leaf = EndEntityCert::try_from(leaf)?;
    leaf.verify_for_usage(algorithms, &anchors, intermediates, now, usage, revocation, Some(&is_short)).map(drop)
}

/// Requests a certificate, and accepts any with proof of possession of its key.
#[derive(Debug)]
pub(crate) struct PossessionVerifier {
    provider: Arc<CryptoProvider>,
    /// Names of certificate authorities, from which clients choose a certificate.
    hints: Vec<DistinguishedName>,
}

/// Enforces a policy in the handshake itself, as the Gateway API requires of a listener: a client without the required
/// certificate gets an alert in place of a response.
#[derive(Debug)]
pub(crate) struct EnforcingVerifier {
    possession: PossessionVerifier,
    policy: Arc<ClientCertificates>,
}

// === impl EnforcingVerifier ===

impl EnforcingVerifier {
    pub(crate) fn for_policy(policy: &Arc<ClientCertificates>, provider: Arc<CryptoProvider>) -> Self {
        Self { possession: PossessionVerifier::for_policy(policy, provider), policy: Arc::clone(policy) }
    }
}

impl ClientCertVerifier for EnforcingVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.policy.demand == Demand::Required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.possession.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        if self.policy.demand == Demand::OfAnyIssuer {
            return Ok(ClientCertVerified::assertion());
        }
        match verify(end_entity, intermediates, &self.policy, now) {
            Ok(()) => Ok(ClientCertVerified::assertion()),
            Err(webpki::Error::UnknownIssuer) => Err(CertificateError::UnknownIssuer.into()),
            Err(webpki::Error::CertRevoked) => Err(CertificateError::Revoked.into()),
            Err(webpki::Error::CertExpired { .. }) => Err(CertificateError::Expired.into()),
            Err(_) => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.possession.verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.possession.verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.possession.supported_verify_schemes()
    }
}

impl PossessionVerifier {
    pub(crate) fn for_policy(policy: &ClientCertificates, provider: Arc<CryptoProvider>) -> Self {
        let anchors = policy.authorities.certificates.iter().filter_map(|der| anchor_from_trusted_cert(der).ok());
        Self { provider, hints: anchors.map(|anchor| DistinguishedName::in_sequence(&anchor.subject)).collect() }
    }
}

impl ClientCertVerifier for PossessionVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
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

#[cfg(test)]
mod tests {
    use ingress_model::Authorities;

    use super::*;

    #[test]
    fn names_with_other_bytes_stay_apart() {
        for (name, expect) in [("Jörg", r"CN=J\C3\B6rg"), ("Järg", r"CN=J\C3\A4rg"), ("J?rg", "CN=J?rg")] {
            let mut params = rcgen::CertificateParams::new(vec!["a.test".to_owned()]).expect("a name");
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            let leaf = params.self_signed(&rcgen::KeyPair::generate().expect("a key")).expect("a certificate");
            let policy = Arc::new(ClientCertificates {
                authorities: Authorities { origin: "n/s".into(), certificates: vec![leaf.der().clone()] }.into(),
                revoked: Vec::new(),
                demand: Demand::Optional,
                depth: 1,
                passed: false,
                name: None,
                error_page: None,
            });
            let fields = fields_for_pods(&[leaf.der().clone()], &policy);
            assert!(fields.contains(&format!("ssl-client-subject-dn: {expect}\r\n")), "{fields}");
        }
    }
}
