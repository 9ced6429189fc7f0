//! Reads the certificate of a TLS Secret, once for all hosts, and checks that it covers each. It does not load keys.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::Secret;
use rustls_pki_types::CertificateRevocationListDer;
use webpki::{BorrowedCertRevocationList, EndEntityCert};

use super::{Context, staple, tls_secret::TlsSecretContent};
use crate::{
    change::{Kind, ObjectName},
    cluster::Stored,
    held_secret::HeldSecret,
    outcome::{ObjectRef, Origin, Reason},
};
use ingress_model::{Authorities, Certificate, HostPattern, tls};

/// Reads Secret `name`. Problems of its OCSP response are reported here, others by the callers that name it.
pub(super) fn hold(name: &ObjectName, context: &mut Context<'_, '_>) -> TlsSecretContent {
    let Some(stored) = context.secret(name) else { return TlsSecretContent::Nothing };
    match read(name, &stored.object) {
        Ok(certificate) => {
            report_staple(name, stored, &certificate, context);
            let names = names(&certificate);
            TlsSecretContent::Certificate { certificate: Arc::new(certificate), names }
        }
        Err(reason) => TlsSecretContent::Broken { secret: stored.refer(Kind::Secret, name), reason },
    }
}

/// Returns the origin of the certificate in Secret `name` for the hosts of `pattern`, or `None` with the reason
/// reported on `ingress`.
pub(super) fn certificate(
    name: &ObjectName,
    pattern: &HostPattern,
    ingress: &ObjectRef,
    context: &mut Context<'_, '_>,
) -> Option<Arc<str>> {
    let held = context.certificate(name);
    let (reason, message) = match &*held {
        TlsSecretContent::Certificate { certificate, names } if covers(names, pattern) => {
            return Some(Arc::clone(&certificate.origin));
        }
        TlsSecretContent::Certificate { .. } => (
            Reason::CertHostMismatch,
            format!(
                "the certificate of secret `{name}` does not cover host `{pattern}`; issue one that does, the default certificate serves it"
            ),
        ),
        TlsSecretContent::Broken { secret, reason } => {
            context.report(secret, Reason::InvalidCertificate, reason.clone());
            let message = format!("secret `{name}`: {reason}; the default certificate serves `{pattern}`");
            (Reason::InvalidCertificate, message)
        }
        TlsSecretContent::Nothing => (
            Reason::SecretNotFound,
            format!("secret `{name}` does not exist; create it, the default certificate serves `{pattern}`"),
        ),
    };
    context.report(ingress, reason, message);
    None
}

/// Returns the origin of the certificate in Secret `name` for names without one of their own, or `None` with the reason
/// reported on the Secret.
pub(super) fn fallback(name: &ObjectName, context: &mut Context<'_, '_>) -> Option<Arc<str>> {
    match &*context.certificate(name) {
        TlsSecretContent::Certificate { certificate, names: _ } => return Some(Arc::clone(&certificate.origin)),
        TlsSecretContent::Broken { secret, reason } => {
            let message = format!(
                "{reason}; `--default-ssl-certificate` names it, clients get a self-signed certificate until \
                 then"
            );
            context.report(secret, Reason::InvalidCertificate, message);
        }
        TlsSecretContent::Nothing => {
            let message = "`--default-ssl-certificate` names it, but it does not exist; create it, clients get a \
             self-signed certificate until then";
            context.report(&name.refer(Kind::Secret, &Origin::Api), Reason::SecretNotFound, message.into());
        }
    }
    None
}

/// Reports an OCSP response that is unusable, or out of date by the hour.
fn report_staple(
    name: &ObjectName,
    stored: &Stored<HeldSecret>,
    certificate: &Certificate,
    context: &mut Context<'_, '_>,
) {
    let Some(response) = field(&stored.object, staple::FIELD) else { return };
    let problem = match (&certificate.staple, staple::read(response, &certificate.chain)) {
        (Some(staple), _) if context.hour() < staple.until => return,
        (Some(_), _) | (None, Ok(_)) => "is out of date".to_owned(),
        (None, Err(error)) => error.to_string(),
    };
    let message = format!("`{}` {problem}; renew it, clients get no staple until then", staple::FIELD);
    context.report(&stored.refer(Kind::Secret, name), Reason::InvalidStaple, message);
}

/// Key of the certificates of authorities.
pub(super) const CA: &str = "ca.crt";

/// Returns the value of `key` in `secret`.
pub(super) fn field<'s>(secret: &'s Secret, key: &str) -> Option<&'s [u8]> {
    let written = secret.string_data.as_ref().and_then(|data| data.get(key)).map(String::as_bytes);
    let stored = || secret.data.as_ref().and_then(|data| data.get(key)).map(|value| value.0.as_slice());
    // The API server lets `stringData` overwrite `data`.
    written.or_else(stored)
}

/// Returns the authorities in a Secret, or a description of the problem.
pub(super) fn authorities(name: &ObjectName, secret: &Secret) -> Result<Authorities, String> {
    authorities_of(name, field(secret, CA))
}

/// Returns the authorities in the field `ca.crt` of object `name`, or a description of the problem.
pub(super) fn authorities_of(name: &ObjectName, pem: Option<&[u8]>) -> Result<Authorities, String> {
    let pem = pem.ok_or_else(|| format!("`{CA}` is missing"))?;
    let authorities = Authorities::from_pem(&name.to_string(), pem).map_err(|error| error.to_string())?;
    match authorities.certificates.iter().find_map(|authority| webpki::anchor_from_trusted_cert(authority).err()) {
        Some(error) => Err(format!("`{CA}` holds a block that is not an X.509 version 3 certificate: {error}")),
        None => Ok(authorities),
    }
}

/// Returns the revocation lists in a Secret, or a description of the problem; an empty list if it has none.
pub(super) fn revoked(secret: &Secret) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    let Some(pem) = field(secret, "ca.crl") else { return Ok(Vec::new()) };
    let lists = tls::revocation_lists(pem).map_err(|error| error.to_string())?;
    let broken = lists.iter().find_map(|list| BorrowedCertRevocationList::from_der(list).err());
    match broken {
        Some(error) => Err(format!("`ca.crl` holds a block that is not a revocation list: {error}")),
        None if lists.is_empty() => Err("`ca.crl` holds no PEM block `X509 CRL`".to_owned()),
        None => Ok(lists),
    }
}

/// Reads a TLS Secret.
///
/// # Errors
/// A description of the problem, which does not quote the Secret.
pub(super) fn read(name: &ObjectName, secret: &Secret) -> Result<Certificate, String> {
    let field = |key: &str| field(secret, key).ok_or_else(|| format!("`{key}` is missing"));
    let mut certificate = Certificate::from_pem(&name.to_string(), field("tls.crt")?, field("tls.key")?)
        .map_err(|error| error.to_string())?;
    if let Some(leaf) = certificate.chain.first()
        && let Err(error) = EndEntityCert::try_from(leaf)
    {
        return Err(format!("`tls.crt` is not an X.509 version 3 certificate: {error}"));
    }
    let response = self::field(secret, staple::FIELD);
    certificate.staple = response.and_then(|response| staple::read(response, &certificate.chain).ok());
    Ok(certificate)
}

/// Returns the names of the leaf.
fn names(certificate: &Certificate) -> Box<[HostPattern]> {
    let Some(Ok(leaf)) = certificate.chain.first().map(EndEntityCert::try_from) else { return Box::default() };
    // Sorted, because an issuer may list them in a different order each time.
    let names: BTreeSet<_> = leaf.valid_dns_names().filter_map(|name| HostPattern::parse(name).ok()).collect();
    names.into_iter().collect()
}

/// Returns `true` if one of `names` covers `pattern`. A wildcard host needs the same wildcard in the certificate.
fn covers(names: &[HostPattern], pattern: &HostPattern) -> bool {
    match pattern {
        HostPattern::Any => true,
        HostPattern::Exact(host) => names.iter().any(|name| name.matches(host.as_str())),
        HostPattern::Wildcard(_) => names.contains(pattern),
        // No certificate covers names of any depth.
        HostPattern::Suffix(base) => names.contains(&HostPattern::Wildcard(base.clone())),
    }
}
