//! Reads an Ingress's wishes for TLS with its pods: trust anchors, client certificate and server name. Whether the pods
//! use TLS at all is decided elsewhere.

use std::sync::Arc;

use rustls_pki_types::ServerName;

use super::{super::secret, Context};
use crate::{
    outcome::Reason,
    translate::text::{own_object, shorten},
};
use ingress_model::{Authorities, Certificate, UpstreamTls, Verify};

/// Values as they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::translate) struct ParsedTls {
    pub(super) verify: bool,
    pub(super) secret: Option<String>,
    /// Default: the name of the service.
    pub(super) name: Option<ServerName<'static>>,
    pub(super) sends_name: bool,
}

/// The same, with the content of the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::translate) struct BackendTls {
    authorities: Option<Arc<Authorities>>,
    certificate: Option<Arc<Certificate>>,
    name: Option<ServerName<'static>>,
    sends_name: bool,
}

/// Returns the TLS terms of `parsed`, or `None` if they equal the default, or the reason why they cannot be met.
pub(in crate::translate) fn backend_tls(
    parsed: &ParsedTls,
    namespace: &str,
    context: &mut Context<'_>,
) -> Result<Option<BackendTls>, (Reason, String)> {
    let ParsedTls { verify, secret, name, sends_name } = parsed;
    let (authorities, certificate) = match secret {
        Some(value) => material(value, *verify, namespace, context)?,
        None if *verify => {
            let message = "annotation `proxy-ssl-verify` is `on`, but no certificate authority is set; its rules answer 503, name a Secret with `ca.crt` in `proxy-ssl-secret`";
            return Err((Reason::InvalidAnnotation, message.to_owned()));
        }
        None => (None, None),
    };
    let authorities = authorities.filter(|_| *verify);
    let holds_anyway = authorities.is_none() && certificate.is_none() && !*sends_name;
    Ok((!holds_anyway).then_some(BackendTls { authorities, certificate, name: name.clone(), sends_name: *sends_name }))
}

type Material = (Option<Arc<Authorities>>, Option<Arc<Certificate>>);

/// Returns the content of the Secret `value`: authorities, a certificate, or both.
fn material(
    value: &str,
    verify: bool,
    namespace: &str,
    context: &mut Context<'_>,
) -> Result<Material, (Reason, String)> {
    let Some(name) = own_object(value, namespace) else {
        let message = format!(
            "annotation `proxy-ssl-secret` names `{}`, which is in another namespace; its rules answer 503, name a Secret of its own",
            shorten(value)
        );
        return Err((Reason::InvalidAnnotation, message));
    };
    let Some(stored) = context.secret(&name) else {
        let message = format!("Secret `{name}` of `proxy-ssl-secret` does not exist; its rules answer 503, create it");
        return Err((Reason::SecretNotFound, message));
    };
    let object = &stored.object;
    let broken = |reason: String| {
        let message =
            format!("Secret `{name}` of `proxy-ssl-secret`: {reason}; its rules answer 503, correct the Secret");
        (Reason::InvalidCertificate, message)
    };
    let has = |key| secret::field(object, key).is_some();
    let authorities = match has(secret::CA) || verify {
        true => Some(Arc::new(secret::authorities(&name, object).map_err(broken)?)),
        false => None,
    };
    let certificate = match has("tls.crt") || has("tls.key") {
        true => Some(Arc::new(secret::read(&name, object).map_err(broken)?)),
        false => None,
    };
    if authorities.is_none() && certificate.is_none() {
        return Err(broken("it holds neither `ca.crt` nor `tls.crt` and `tls.key`".to_owned()));
    }
    Ok((authorities, certificate))
}

// === impl ParsedTls ===

impl ParsedTls {
    /// Returns terms that only send `host` as server name; `None` if it is no valid server name.
    pub(super) fn naming(host: &str) -> Option<Self> {
        let name = ServerName::try_from(host.trim_end_matches('.').to_owned()).ok()?;
        Some(Self { name: Some(name), sends_name: true, ..Self::default() })
    }

    /// Returns a label that differs between upstreams of one service with different terms.
    pub(in crate::translate) fn label(&self) -> String {
        let Self { verify, secret, name, sends_name } = self;
        // The Secret is in this namespace, with or without its prefix.
        let secret = secret.as_ref().map(|secret| secret.split_once('/').map_or(&**secret, |(_, name)| name));
        let mut parts = Vec::new();
        parts.extend(secret.map(|secret| format!("secret={secret}")));
        parts.extend(verify.then(|| "verify".to_owned()));
        parts.extend(name.as_ref().map(|name| format!("name={}", name.to_str())));
        parts.extend(sends_name.then(|| "sni".to_owned()));
        parts.join(",")
    }
}

// === impl BackendTls ===

impl BackendTls {
    /// Returns the TLS configuration for the pods of a service `name`; `None` if a certificate cannot have that name.
    pub(in crate::translate) fn of_service(&self, name: &str) -> Option<UpstreamTls> {
        let Self { authorities, certificate, name: own, sends_name } = self;
        let name = match own {
            Some(own) => own.clone(),
            None => ServerName::try_from(name.trim_end_matches('.').to_owned()).ok()?,
        };
        let verify = authorities.clone().map(|authorities| Verify { authorities, name: name.clone() });
        Some(UpstreamTls { verify, certificate: certificate.clone(), server_name: sends_name.then_some(name) })
    }
}
