//! Reads an Ingress's demands on client certificates. Hosts are unknown here: the demands hold for each host of the
//! Ingress.

use std::sync::Arc;

use super::{super::secret, Context};
use crate::{
    change::ObjectName,
    outcome::Reason,
    translate::{
        parsed_annotations::{ParsedClientCertificates, Wish},
        policy::Clients,
        text::{own_object, shorten},
    },
};
use ingress_model::{ClientCertificates, Demand};

/// Returns the demands of `parsed`, or the reason why they cannot be met.
pub(super) fn clients(
    parsed: ParsedClientCertificates,
    ingress: &ObjectName,
    context: &mut Context<'_>,
) -> Result<Clients, (Reason, String)> {
    let ParsedClientCertificates { secret, verify, depth, passed } = parsed;
    let demand = match (verify, &secret) {
        (Wish::Off, _) | (Wish::Unsaid, None) => return Ok(Clients::Any),
        (Wish::Unsaid, Some(_)) => Demand::Required,
        (Wish::On(demand), _) => demand,
    };
    let Some(value) = secret else {
        let message = "annotation `auth-tls-verify-client` requires client certificates, but no certificate authority is set; its rules answer 503, name a Secret with `ca.crt` in `auth-tls-secret`";
        return Err((Reason::InvalidAnnotation, message.to_owned()));
    };
    let Some(name) = own_object(&value, &ingress.namespace) else {
        let message = format!(
            "annotation `auth-tls-secret` names `{}`, which is in another namespace; its rules answer 503, name a Secret of its own",
            shorten(&value)
        );
        return Err((Reason::InvalidAnnotation, message));
    };
    let Some(stored) = context.secret(&name) else {
        let message = format!("Secret `{name}` of `auth-tls-secret` does not exist; its rules answer 503, create it");
        return Err((Reason::SecretNotFound, message));
    };
    let broken = |reason: String| {
        let message =
            format!("Secret `{name}` of `auth-tls-secret`: {reason}; its rules answer 503, correct the Secret");
        (Reason::InvalidCertificate, message)
    };
    let authorities = Arc::new(secret::authorities(&name, &stored.object).map_err(broken)?);
    let revoked = secret::revoked(&stored.object).map_err(broken)?;
    Ok(Clients::With(Arc::new(ClientCertificates { authorities, revoked, demand, depth, passed })))
}
