//! Reads the certificate of a TLS Secret and checks that it is meant for its host. It does not load keys.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use rustls_pki_types::CertificateRevocationListDer;
use webpki::{BorrowedCertRevocationList, EndEntityCert};

use super::{Context, staple};
use crate::{
    control::{
        change::{Kind, ObjectName},
        cluster::Stored,
        outcome::{ObjectRef, Origin, Reason},
    },
    model::{Authorities, Certificate, Host, HostPattern, tls},
};

/// The certificate in Secret `name` for the hosts of `pattern`, or `None` and the reason reported on `ingress`.
pub(super) fn certificate(
    name: &ObjectName,
    pattern: &HostPattern,
    ingress: &ObjectRef,
    context: &mut Context<'_>,
) -> Option<Arc<Certificate>> {
    let Some(stored) = context.secret(name) else {
        let message = format!("secret `{name}` does not exist; create it, the default certificate serves `{pattern}`");
        context.report(ingress, Reason::SecretNotFound, message);
        return None;
    };
    let certificate = match context.certificate(name, stored) {
        Ok(certificate) => certificate,
        Err(reason) => {
            let secret = stored.refer(Kind::Secret, name);
            context.report(&secret, Reason::InvalidCertificate, reason.clone());
            let message = format!("secret `{name}`: {reason}; the default certificate serves `{pattern}`");
            context.report(ingress, Reason::InvalidCertificate, message);
            return None;
        }
    };
    if covers(&certificate, pattern) {
        tell_of_staple(name, stored, &certificate, context);
        return Some(certificate);
    }
    let message = format!(
        "the certificate of secret `{name}` has no name for host `{pattern}`; issue one that has, the default certificate serves it"
    );
    context.report(ingress, Reason::CertHostMismatch, message);
    None
}

/// The certificate in Secret `name` for names without one of their own, or `None` and the reason reported on the
/// Secret.
pub(super) fn fallback(name: &ObjectName, context: &mut Context<'_>) -> Option<Arc<Certificate>> {
    let Some(stored) = context.secret(name) else {
        let message = "`--default-ssl-certificate` names it, but it does not exist; create it, a self-signed certificate stands in";
        context.report(&name.refer(Kind::Secret, &Origin::Api), Reason::SecretNotFound, message.into());
        return None;
    };
    match context.certificate(name, stored) {
        Ok(certificate) => {
            tell_of_staple(name, stored, &certificate, context);
            Some(certificate)
        }
        Err(reason) => {
            let message =
                format!("{reason}; `--default-ssl-certificate` names it, a self-signed certificate stands in");
            context.report(&stored.refer(Kind::Secret, name), Reason::InvalidCertificate, message);
            None
        }
    }
}

/// Says what is wrong with the OCSP response of a Secret, if it has one: it cannot be used, or is out of date by the
/// hour.
fn tell_of_staple(name: &ObjectName, stored: &Stored<Secret>, certificate: &Certificate, context: &mut Context<'_>) {
    let Some(response) = field(&stored.object, staple::FIELD) else { return };
    let problem = match (&certificate.staple, staple::read(response, &certificate.chain)) {
        (Some(staple), _) if context.hour() < staple.until => return,
        (Some(_), _) | (None, Ok(_)) => "is out of date".to_owned(),
        (None, Err(error)) => error.to_string(),
    };
    let message = format!("`{}` {problem}; renew it, clients get none meanwhile", staple::FIELD);
    context.report(&stored.refer(Kind::Secret, name), Reason::InvalidStaple, message);
}

/// The certificates of authorities.
pub(super) const CA: &str = "ca.crt";

/// What `secret` holds under `key`.
pub(super) fn field<'s>(secret: &'s Secret, key: &str) -> Option<&'s [u8]> {
    let written = secret.string_data.as_ref().and_then(|data| data.get(key)).map(String::as_bytes);
    let stored = || secret.data.as_ref().and_then(|data| data.get(key)).map(|value| value.0.as_slice());
    // The API server lets `stringData` overwrite `data`.
    written.or_else(stored)
}

/// The authorities in a Secret, or what is wrong with them.
pub(super) fn authorities(name: &ObjectName, secret: &Secret) -> Result<Authorities, String> {
    let pem = field(secret, CA).ok_or_else(|| format!("`{CA}` is missing"))?;
    let authorities = Authorities::from_pem(&name.to_string(), pem).map_err(|error| error.to_string())?;
    match authorities.certificates.iter().find_map(|authority| webpki::anchor_from_trusted_cert(authority).err()) {
        Some(error) => Err(format!("`{CA}` holds what is no X.509 version 3 certificate: {error}")),
        None => Ok(authorities),
    }
}

/// What the authorities in a Secret have revoked, or what is wrong with that; nothing if it does not say.
pub(super) fn revoked(secret: &Secret) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    let Some(pem) = field(secret, "ca.crl") else { return Ok(Vec::new()) };
    let lists = tls::revocation_lists(pem).map_err(|error| error.to_string())?;
    let broken = lists.iter().find_map(|list| BorrowedCertRevocationList::from_der(list).err());
    match broken {
        Some(error) => Err(format!("`ca.crl` holds what is no revocation list: {error}")),
        None if lists.is_empty() => Err("`ca.crl` holds no PEM block `X509 CRL`".to_owned()),
        None => Ok(lists),
    }
}

/// Reads a TLS Secret.
///
/// # Errors
/// What is wrong with it, without quoting it.
pub(super) fn read(name: &ObjectName, secret: &Secret) -> Result<Certificate, String> {
    let field = |key: &str| field(secret, key).ok_or_else(|| format!("`{key}` is missing"));
    let mut certificate = Certificate::from_pem(&name.to_string(), field("tls.crt")?, field("tls.key")?)
        .map_err(|error| error.to_string())?;
    if let Some(leaf) = certificate.chain.first()
        && let Err(error) = EndEntityCert::try_from(leaf)
    {
        return Err(format!("`tls.crt` is no X.509 version 3 certificate: {error}"));
    }
    let response = self::field(secret, staple::FIELD);
    certificate.staple = response.and_then(|response| staple::read(response, &certificate.chain).ok());
    Ok(certificate)
}

/// Whether a name of the leaf covers `pattern`. A wildcard host needs the same wildcard in the certificate.
fn covers(certificate: &Certificate, pattern: &HostPattern) -> bool {
    let Some(Ok(leaf)) = certificate.chain.first().map(EndEntityCert::try_from) else { return false };
    let mut names = leaf.valid_dns_names().filter_map(|name| HostPattern::parse(name).ok());
    match pattern {
        HostPattern::Any => true,
        HostPattern::Exact(host) => names.any(|name| name.matches(Host::as_str(host))),
        HostPattern::Wildcard(_) => names.any(|name| name == *pattern),
    }
}
