//! The content of the Secret that an Ingress names for TLS with its pods.

use std::sync::Arc;

use rustls_pki_types::ServerName;

use super::{super::scope::Scope, ParsedTls};
use crate::{
    outcome::Reason,
    translate::{
        certificate_secret,
        lookup::Lookup,
        text::{own_object, shorten},
    },
};
use ingress_model::{Authorities, Certificate, UpstreamTls, Verify, Versions};

/// The terms of [`ParsedTls`], with the content of the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackendTls {
    authorities: Option<Arc<Authorities>>,
    certificate: Option<Arc<Certificate>>,
    name: Option<ServerName<'static>>,
    sends_name: bool,
    depth: Option<usize>,
    versions: Versions,
}

/// Returns the TLS terms of `parsed`, or `None` if they equal the default, or the reason why they cannot be met.
pub(crate) fn backend_tls(
    parsed: &ParsedTls,
    namespace: &str,
    lookup: &Lookup<'_>,
) -> Result<Option<BackendTls>, (Reason, String)> {
    let ParsedTls { verify, secret, name, sends_name, depth, versions } = parsed;
    let (authorities, certificate) = match secret {
        Some(value) => material(value, *verify, namespace, lookup)?,
        None if *verify => {
            let message = "annotation `proxy-ssl-verify` is `on`, but no certificate authority is set; its rules answer 503, name a Secret with `ca.crt` in `proxy-ssl-secret`";
            return Err((Reason::InvalidAnnotation, message.to_owned()));
        }
        None => (None, None),
    };
    let authorities = authorities.filter(|_| *verify);
    let holds_anyway =
        authorities.is_none() && certificate.is_none() && !*sends_name && *versions == Versions::default();
    let terms = BackendTls {
        authorities,
        certificate,
        name: name.clone(),
        sends_name: *sends_name,
        depth: *depth,
        versions: *versions,
    };
    Ok((!holds_anyway).then_some(terms))
}

/// Returns the terms of `parsed` if they differ from the default; terms that cannot be met are refused.
pub(in super::super) fn build(parsed: ParsedTls, scope: &mut Scope<'_, '_>) -> Option<ParsedTls> {
    match backend_tls(&parsed, &scope.name.namespace, scope.lookup) {
        Ok(backend_tls) => backend_tls.map(|_| parsed),
        Err(refusal) => {
            scope.refuse(refusal);
            None
        }
    }
}

type Material = (Option<Arc<Authorities>>, Option<Arc<Certificate>>);

/// Returns the content of the Secret `value`: authorities, a certificate, or both.
fn material(value: &str, verify: bool, namespace: &str, lookup: &Lookup<'_>) -> Result<Material, (Reason, String)> {
    let Some(name) = own_object(value, namespace) else {
        let message = format!(
            "annotation `proxy-ssl-secret` names `{}`, which is in another namespace; its rules answer 503, name a Secret of its own",
            shorten(value)
        );
        return Err((Reason::InvalidAnnotation, message));
    };
    let Some(stored) = lookup.secret(&name) else {
        let message = format!("Secret `{name}` of `proxy-ssl-secret` does not exist; its rules answer 503, create it");
        return Err((Reason::SecretNotFound, message));
    };
    let object = &stored.object;
    let broken = |reason: String| {
        let message =
            format!("Secret `{name}` of `proxy-ssl-secret`: {reason}; its rules answer 503, correct the Secret");
        (Reason::InvalidCertificate, message)
    };
    let has = |key| certificate_secret::field(object, key).is_some();
    let authorities = match has(certificate_secret::CA) || verify {
        true => Some(Arc::new(certificate_secret::authorities(&name, object).map_err(broken)?)),
        false => None,
    };
    let certificate = match has("tls.crt") || has("tls.key") {
        true => Some(Arc::new(certificate_secret::read(&name, object).map_err(broken)?)),
        false => None,
    };
    if authorities.is_none() && certificate.is_none() {
        return Err(broken("it holds neither `ca.crt` nor `tls.crt` and `tls.key`".to_owned()));
    }
    Ok((authorities, certificate))
}

// === impl BackendTls ===

impl BackendTls {
    /// Returns the TLS configuration for the pods of a service `name`; `None` if a certificate cannot have that name.
    pub(crate) fn of_service(&self, name: &str) -> Option<UpstreamTls> {
        let Self { authorities, certificate, name: own, sends_name, depth, versions } = self;
        let name = match own {
            Some(own) => own.clone(),
            None => ServerName::try_from(name.trim_end_matches('.').to_owned()).ok()?,
        };
        let verify = authorities
            .clone()
            .map(|authorities| Verify { depth: *depth, ..Verify::server(authorities, name.clone()) });
        let server_name = sends_name.then_some(name);
        Some(UpstreamTls { verify, certificate: certificate.clone(), server_name, versions: *versions })
    }
}
