//! Reads the certificate of a TLS Secret and checks that it is meant for its host. It does not load keys.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use webpki::EndEntityCert;

use super::Context;
use crate::{
    control::{
        change::{Kind, ObjectName},
        outcome::{ObjectRef, Origin, Reason},
    },
    model::{Certificate, Host, HostPattern},
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
        return Some(certificate);
    }
    let message = format!(
        "the certificate of secret `{name}` has no name for host `{pattern}`; issue one that has, the default certificate serves it"
    );
    context.report(ingress, Reason::CertHostMismatch, message);
    None
}

/// The certificate in Secret `name` for names without one of their own, or `None` and the reason reported on the Secret.
pub(super) fn fallback(name: &ObjectName, context: &mut Context<'_>) -> Option<Arc<Certificate>> {
    let Some(stored) = context.secret(name) else {
        let message = "`--default-ssl-certificate` names it, but it does not exist; create it, a self-signed certificate stands in";
        context.report(&name.refer(Kind::Secret, &Origin::Api), Reason::SecretNotFound, message.into());
        return None;
    };
    match context.certificate(name, stored) {
        Ok(certificate) => Some(certificate),
        Err(reason) => {
            let message =
                format!("{reason}; `--default-ssl-certificate` names it, a self-signed certificate stands in");
            context.report(&stored.refer(Kind::Secret, name), Reason::InvalidCertificate, message);
            None
        }
    }
}

/// Reads a TLS Secret.
///
/// # Errors
/// What is wrong with it, without quoting it.
pub(super) fn read(name: &ObjectName, secret: &Secret) -> Result<Certificate, String> {
    let field = |key: &str| {
        let written = secret.string_data.as_ref().and_then(|data| data.get(key)).map(String::as_bytes);
        let stored = || secret.data.as_ref().and_then(|data| data.get(key)).map(|value| value.0.as_slice());
        // The API server lets `stringData` overwrite `data`.
        written.or_else(stored).ok_or_else(|| format!("`{key}` is missing"))
    };
    let certificate = Certificate::from_pem(&name.to_string(), field("tls.crt")?, field("tls.key")?)
        .map_err(|error| error.to_string())?;
    if let Some(leaf) = certificate.chain.first()
        && let Err(error) = EndEntityCert::try_from(leaf)
    {
        return Err(format!("`tls.crt` is no X.509 version 3 certificate: {error}"));
    }
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
