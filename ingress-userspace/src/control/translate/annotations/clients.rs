//! What an Ingress asks of the certificates of clients. It does not know hosts: what it asks for holds for each of its
//! hosts.

use std::sync::Arc;

use super::{super::secret, Context, own_object, shorten};
use crate::{
    control::{change::ObjectName, outcome::Reason},
    model::{ClientCertificates, Demand},
};

/// Values as they are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::control::translate) struct AskedClients {
    pub(super) secret: Option<String>,
    pub(super) verify: Wish,
    pub(super) depth: usize,
    pub(super) passed: bool,
}

/// What `auth-tls-verify-client` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Nothing: certificates are required if there is a Secret to verify them with.
    Unsaid,
    Off,
    On(Demand),
}

/// What holds for the hosts of an Ingress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::control::translate) enum Clients {
    /// It asks for nothing.
    #[default]
    Any,
    With(Arc<ClientCertificates>),
    /// It asks for what cannot be had, so that nobody may come in.
    Nobody,
}

impl Default for AskedClients {
    fn default() -> Self {
        Self { secret: None, verify: Wish::Unsaid, depth: 1, passed: false }
    }
}

/// What `asked` amounts to, or why it cannot be had.
pub(super) fn clients(
    asked: AskedClients,
    ingress: &ObjectName,
    context: &mut Context<'_>,
) -> Result<Clients, (Reason, String)> {
    let AskedClients { secret, verify, depth, passed } = asked;
    let demand = match (verify, &secret) {
        (Wish::Off, _) | (Wish::Unsaid, None) => return Ok(Clients::Any),
        (Wish::Unsaid, Some(_)) => Demand::Required,
        (Wish::On(demand), _) => demand,
    };
    let Some(value) = secret else {
        let message = "annotation `auth-tls-verify-client` asks for certificates, but nothing says whom to trust; its rules answer 503, name a Secret with `ca.crt` in `auth-tls-secret`";
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
