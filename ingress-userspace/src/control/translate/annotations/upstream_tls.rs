//! What an Ingress asks of TLS with its pods: whom to believe, what to show, which name to send. It does not know
//! whether TLS is spoken to them at all.

use std::sync::Arc;

use rustls_pki_types::ServerName;

use super::{super::secret, Context, own_object, shorten};
use crate::{
    control::outcome::Reason,
    model::{Authorities, Certificate, UpstreamTls, Verify},
};

/// Values as they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::control::translate) struct AskedTls {
    pub(super) verify: bool,
    pub(super) secret: Option<String>,
    /// Default: that of the service.
    pub(super) name: Option<ServerName<'static>>,
    pub(super) sends_name: bool,
}

/// The same with what the Secret holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::control::translate) struct Terms {
    authorities: Option<Arc<Authorities>>,
    certificate: Option<Arc<Certificate>>,
    name: Option<ServerName<'static>>,
    sends_name: bool,
}

/// The terms that `asked` amounts to, `None` if they are what holds anyway; or why they cannot be kept.
pub(in crate::control::translate) fn terms(
    asked: &AskedTls,
    namespace: &str,
    context: &mut Context<'_>,
) -> Result<Option<Terms>, (Reason, String)> {
    let AskedTls { verify, secret, name, sends_name } = asked;
    let (authorities, certificate) = match secret {
        Some(value) => material(value, *verify, namespace, context)?,
        None if *verify => {
            let message = "annotation `proxy-ssl-verify` is `on`, but nothing says whom to trust; its rules answer 503, name a Secret with `ca.crt` in `proxy-ssl-secret`";
            return Err((Reason::InvalidAnnotation, message.to_owned()));
        }
        None => (None, None),
    };
    let authorities = authorities.filter(|_| *verify);
    let holds_anyway = authorities.is_none() && certificate.is_none() && !*sends_name;
    Ok((!holds_anyway).then_some(Terms { authorities, certificate, name: name.clone(), sends_name: *sends_name }))
}

type Material = (Option<Arc<Authorities>>, Option<Arc<Certificate>>);

/// What the Secret `value` holds: authorities, a certificate, or both.
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

// === impl AskedTls ===

impl AskedTls {
    /// Nothing but that `host` is sent as server name; `None` if it is none that could be.
    pub(super) fn naming(host: &str) -> Option<Self> {
        let name = ServerName::try_from(host.trim_end_matches('.').to_owned()).ok()?;
        Some(Self { name: Some(name), sends_name: true, ..Self::default() })
    }

    /// Tells upstreams of one service apart whose terms differ.
    pub(in crate::control::translate) fn label(&self) -> String {
        let Self { verify, secret, name, sends_name } = self;
        // It is one of the namespace, however it is written.
        let secret = secret.as_ref().map(|secret| secret.split_once('/').map_or(&**secret, |(_, name)| name));
        let mut parts = Vec::new();
        parts.extend(secret.map(|secret| format!("secret={secret}")));
        parts.extend(verify.then(|| "verify".to_owned()));
        parts.extend(name.as_ref().map(|name| format!("name={}", name.to_str())));
        parts.extend(sends_name.then(|| "sni".to_owned()));
        parts.join(",")
    }
}

// === impl Terms ===

impl Terms {
    /// What holds for the pods of a service that is called `name`; `None` if that is no name that a certificate could
    /// have.
    pub(in crate::control::translate) fn of_service(&self, name: &str) -> Option<UpstreamTls> {
        let Self { authorities, certificate, name: own, sends_name } = self;
        let name = match own {
            Some(own) => own.clone(),
            None => ServerName::try_from(name.trim_end_matches('.').to_owned()).ok()?,
        };
        let verify = authorities.clone().map(|authorities| Verify { authorities, name: name.clone() });
        Some(UpstreamTls { verify, certificate: certificate.clone(), server_name: sends_name.then_some(name) })
    }
}
