//! Reads OCSP responses (RFC 6960): the certificate of a response, and its validity period. It uses no clock. It
//! verifies no signature, because only clients know their trust anchors.

use std::sync::Arc;

use rustls_pki_types::CertificateDer;
use sha1::{Digest, Sha1};
use sha2::Sha256;
use x509_cert::{
    Certificate,
    der::{
        self, Decode, Encode, SliceReader, Tag, Tagged,
        asn1::{AnyRef, GeneralizedTime, ObjectIdentifier},
    },
};

use ingress_model::Staple;

/// Key of the DER-encoded response in a Secret, the same as in other ingress controllers.
pub(super) const FIELD: &str = "tls.ocsp-staple";

/// Larger responses are refused, because handshakes would carry them.
const MAX_BYTES: usize = 16 * 1024;

const BASIC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.48.1.1");
const SHA1: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.14.3.2.26");
const SHA256: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.1");

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum StapleError {
    #[error("is not an OCSP response")]
    Malformed,
    #[error("is longer than {MAX_BYTES} bytes")]
    TooLong,
    #[error("reports that the responder had no answer")]
    Unsuccessful,
    #[error("is about another certificate")]
    OtherCertificate,
    #[error("does not report the certificate as good")]
    NotGood,
    #[error("does not state when it expires")]
    Unlimited,
}

impl From<der::Error> for StapleError {
    fn from(_: der::Error) -> Self {
        Self::Malformed
    }
}

/// The statement about one certificate.
struct Single<'r> {
    algorithm: ObjectIdentifier,
    issuer_name: &'r [u8],
    issuer_key: &'r [u8],
    serial: AnyRef<'r>,
    is_good: bool,
    from: GeneralizedTime,
    until: Option<GeneralizedTime>,
}

/// Reads the statement of `response` about the leaf of `chain`.
///
/// # Errors
/// If it has no statement that is useful to staple.
pub(super) fn read(response: &[u8], chain: &[CertificateDer<'_>]) -> Result<Staple, StapleError> {
    if response.len() > MAX_BYTES {
        return Err(StapleError::TooLong);
    }
    let leaf = Certificate::from_der(chain.first().ok_or(StapleError::OtherCertificate)?)?;
    let issuer = chain.get(1).map(|issuer| Certificate::from_der(issuer)).transpose()?;
    let singles = singles(response)?;
    let mut about = Err(StapleError::OtherCertificate);
    for single in &singles {
        if single.is_about(&leaf, issuer.as_ref())? {
            about = Ok(single);
        }
    }
    let Single { is_good, from, until, .. } = about?;
    if !is_good {
        return Err(StapleError::NotGood);
    }
    let until = until.ok_or(StapleError::Unlimited)?;
    let since_epoch = |time: &GeneralizedTime| time.to_unix_duration();
    Ok(Staple { response: Arc::from(response), from: since_epoch(from), until: since_epoch(&until) })
}

impl Single<'_> {
    fn is_about(&self, leaf: &Certificate, issuer: Option<&Certificate>) -> Result<bool, StapleError> {
        let Self { algorithm, issuer_name, issuer_key, serial, .. } = self;
        let certificate = leaf.tbs_certificate();
        let is_hash = |hashed: &[u8], bytes: &[u8]| {
            (*algorithm == SHA1 && Sha1::digest(bytes).as_slice() == hashed)
                || (*algorithm == SHA256 && Sha256::digest(bytes).as_slice() == hashed)
        };
        let key =
            issuer.map(|issuer| issuer.tbs_certificate().subject_public_key_info().subject_public_key.raw_bytes());
        Ok(serial.to_der()? == certificate.serial_number().to_der()?
            && is_hash(issuer_name, &certificate.issuer().to_der()?)
            // Without the issuer's certificate, its name must suffice.
            && key.is_none_or(|key| is_hash(issuer_key, key)))
    }
}

/// Returns the statements of a response (RFC 6960, 4.2.1).
fn singles(response: &[u8]) -> Result<Vec<Single<'_>>, StapleError> {
    let response = parts(AnyRef::from_der(response)?)?;
    let [status, rest @ ..] = &response[..] else { return Err(StapleError::Malformed) };
    if status.tag() != Tag::Enumerated {
        return Err(StapleError::Malformed);
    }
    let ([bytes], [0]) = (rest, status.value()) else { return Err(StapleError::Unsuccessful) };
    let bytes = parts(only(*bytes)?)?;
    let [kind, basic] = &bytes[..] else { return Err(StapleError::Malformed) };
    if kind.decode_as::<ObjectIdentifier>()? != BASIC || basic.tag() != Tag::OctetString {
        return Err(StapleError::Malformed);
    }
    let basic = parts(AnyRef::from_der(basic.value())?)?;
    let data = parts(*basic.first().ok_or(StapleError::Malformed)?)?;
    // Version, responder and time of production come first, then the statements.
    let responses = data.iter().find(|part| part.tag() == Tag::Sequence).ok_or(StapleError::Malformed)?;
    parts(*responses)?.into_iter().map(single).collect()
}

fn single(responses: AnyRef<'_>) -> Result<Single<'_>, StapleError> {
    let responses = parts(responses)?;
    let [id, status, from, rest @ ..] = &responses[..] else { return Err(StapleError::Malformed) };
    let id = parts(*id)?;
    let [algorithm, issuer_name, issuer_key, serial] = &id[..] else { return Err(StapleError::Malformed) };
    let algorithm = *parts(*algorithm)?.first().ok_or(StapleError::Malformed)?;
    let until = match rest.iter().find(|part| is_context(part.tag(), 0)) {
        Some(until) => Some(only(*until)?.decode_as::<GeneralizedTime>()?),
        None => None,
    };
    Ok(Single {
        algorithm: algorithm.decode_as::<ObjectIdentifier>()?,
        issuer_name: issuer_name.value(),
        issuer_key: issuer_key.value(),
        serial: *serial,
        is_good: is_context(status.tag(), 0),
        from: from.decode_as::<GeneralizedTime>()?,
        until,
    })
}

fn is_context(tag: Tag, number: u8) -> bool {
    matches!(tag, Tag::ContextSpecific { number: found, .. } if found.value() == u32::from(number))
}

/// Returns the parts of a constructed value.
fn parts(value: AnyRef<'_>) -> der::Result<Vec<AnyRef<'_>>> {
    let mut reader = SliceReader::new(value.value())?;
    let mut parts = Vec::new();
    while !der::Reader::is_finished(&reader) {
        parts.push(AnyRef::decode(&mut reader)?);
    }
    Ok(parts)
}

/// Returns the content of an explicit tag.
fn only(value: AnyRef<'_>) -> der::Result<AnyRef<'_>> {
    AnyRef::from_der(value.value())
}
