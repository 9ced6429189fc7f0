//! Whose certificates are believed of hosts that annotations name, and what they are told over TLS. It does not know
//! where they are.

use std::sync::{Arc, LazyLock};

use rustls_pki_types::ServerName;

use super::{Context, annotations::shorten, destination::Finding, secret};
use crate::{
    control::{change::ObjectName, outcome::Reason},
    model::{Authorities, UpstreamTls, Verify},
};

/// Which certificates of a host are believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Believed {
    #[default]
    Any,
    /// Its own, by an authority that browsers trust.
    Public,
    /// Its own, by an authority in this Secret.
    Private(ObjectName),
}

/// Those whom browsers trust, as the program knows them: its image has no file of them.
static PUBLIC: LazyLock<Arc<Authorities>> = LazyLock::new(|| {
    let certificates = webpki_root_certs::TLS_SERVER_ROOT_CERTS.to_vec();
    Arc::new(Authorities { origin: "public authorities".into(), certificates })
});

/// What is said to `host`, of whose services nothing but its name may say which is meant; or why it may not be asked at
/// all. An address is no server name.
pub(super) fn tls(
    host: &str,
    believed: &Believed,
    context: &mut Context<'_>,
) -> Result<Option<Arc<UpstreamTls>>, Finding> {
    let name = name(host);
    let authorities = match believed {
        Believed::Any => None,
        Believed::Public => Some(Arc::clone(&PUBLIC)),
        Believed::Private(secret) => Some(Arc::new(authorities(secret, context)?)),
    };
    let verify = match (authorities, &name) {
        (None, _) => None,
        (Some(authorities), Some(name)) => Some(Verify { authorities, name: name.clone() }),
        (Some(_), None) => {
            let message = format!("`{}` is no name that a certificate could have; name another host", shorten(host));
            return Err(Finding { reason: Reason::InvalidAnnotation, message });
        }
    };
    let server_name = name.filter(|name| matches!(name, ServerName::DnsName(_)));
    let says_something = verify.is_some() || server_name.is_some();
    Ok(says_something.then(|| Arc::new(UpstreamTls { verify, certificate: None, server_name })))
}

/// What a certificate of `host`, a name or an address, says of it.
pub(super) fn name(host: &str) -> Option<ServerName<'static>> {
    ServerName::try_from(host.trim_matches(['[', ']']).trim_end_matches('.').to_owned()).ok()
}

/// Those in Secret `name`, or why they cannot be had.
fn authorities(name: &ObjectName, context: &mut Context<'_>) -> Result<Authorities, Finding> {
    let Some(stored) = context.secret(name) else {
        let message = format!("secret `{name}`, which says whose certificates to believe, does not exist; create it");
        return Err(Finding { reason: Reason::SecretNotFound, message });
    };
    secret::authorities(name, &stored.object).map_err(|why| {
        let message = format!("secret `{name}`, which says whose certificates to believe: {why}; correct it");
        Finding { reason: Reason::InvalidCertificate, message }
    })
}
