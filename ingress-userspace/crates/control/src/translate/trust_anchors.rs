//! TLS policy for upstream hosts named by annotations: trust anchors and SNI. Resolution is elsewhere.

use std::sync::{Arc, LazyLock};

use rustls_pki_types::ServerName;

use super::{
    certificate_secret,
    destination::{Finding, TrustAnchors},
    lookup::Lookup,
    text::shorten,
};
use crate::{change::ObjectName, outcome::Reason};
use ingress_model::{Authorities, UpstreamTls, Verify, Versions};

/// The authorities that browsers trust, compiled into the program, since its image has no file of them.
static PUBLIC: LazyLock<Arc<Authorities>> = LazyLock::new(|| {
    let certificates = webpki_root_certs::TLS_SERVER_ROOT_CERTS.to_vec();
    Arc::new(Authorities { origin: "public authorities".into(), certificates })
});

/// Returns the authorities that browsers trust.
pub(super) fn public() -> Arc<Authorities> {
    Arc::clone(&PUBLIC)
}

/// Returns the TLS policy for `host`, or the reason why it may not be used at all. SNI carries the host's name only; an
/// address is no server name.
pub(super) fn tls(
    host: &str,
    trust_anchors: &TrustAnchors,
    lookup: &Lookup<'_>,
) -> Result<Option<Arc<UpstreamTls>>, Finding> {
    let name = name(host);
    let authorities = match trust_anchors {
        TrustAnchors::Any => None,
        TrustAnchors::Public => Some(Arc::clone(&PUBLIC)),
        TrustAnchors::Private(secret) => Some(Arc::new(authorities(secret, lookup)?)),
    };
    let verify = match (authorities, &name) {
        (None, _) => None,
        (Some(authorities), Some(name)) => Some(Verify::server(authorities, name.clone())),
        (Some(_), None) => {
            let message = format!("`{}` is not a name that a certificate can have; name another host", shorten(host));
            return Err(Finding { reason: Reason::InvalidAnnotation, message });
        }
    };
    let server_name = name.filter(|name| matches!(name, ServerName::DnsName(_)));
    let is_customized = verify.is_some() || server_name.is_some();
    Ok(is_customized
        .then(|| Arc::new(UpstreamTls { verify, certificate: None, server_name, versions: Versions::default() })))
}

/// Returns the name that a certificate of `host`, a name or an address, must have.
pub(super) fn name(host: &str) -> Option<ServerName<'static>> {
    ServerName::try_from(host.trim_matches(['[', ']']).trim_end_matches('.').to_owned()).ok()
}

/// Returns the authorities in Secret `name`, or the reason why they are not available.
fn authorities(name: &ObjectName, lookup: &Lookup<'_>) -> Result<Authorities, Finding> {
    let Some(stored) = lookup.secret(name) else {
        let message = format!("secret `{name}` with the trusted certificate authorities does not exist; create it");
        return Err(Finding { reason: Reason::SecretNotFound, message });
    };
    certificate_secret::authorities(name, &stored.object).map_err(|why| {
        let message = format!("secret `{name}` with the trusted certificate authorities: {why}; correct it");
        Finding { reason: Reason::InvalidCertificate, message }
    })
}
