//! The certificates that a listener names, and the one that a Gateway presents to backends.

use std::sync::Arc;

use super::{grants, report::Flaw};
use crate::{
    change::{Kind, ObjectId, ObjectName},
    gateway::{Group, Listener, ObjectReference, ReferentKind},
    translate::{Context, certificate_secret, lookup::Lookup, text::shorten, tls_secret::TlsSecretContent},
};
use ingress_model::Certificate;

const INVALID: &str = "InvalidCertificateRef";
const INVALID_CLIENT: &str = "InvalidClientCertificateRef";

/// Returns the origins of the usable certificates of a listener of `owner`, and the flaw of the first one that is not.
pub(super) fn certificates(
    owner: &ObjectId,
    listener: &Listener,
    context: &mut Context<'_, '_>,
) -> (Vec<Arc<str>>, Option<Flaw>) {
    let references = listener.tls.as_ref().map(|tls| &*tls.certificate_refs).unwrap_or_default();
    let (mut origins, mut flaw) = (Vec::new(), None);
    if references.is_empty() {
        flaw = Some(Flaw::new(INVALID, "there are no `certificateRefs`; name a Secret"));
    }
    for reference in references {
        match certificate(owner, reference, context) {
            Ok(origin) => origins.push(origin),
            Err(found) => drop(flaw.get_or_insert(found)),
        }
    }
    (origins, flaw)
}

fn certificate(owner: &ObjectId, reference: &ObjectReference, context: &mut Context<'_, '_>) -> Result<Arc<str>, Flaw> {
    let name = secret_of(owner, reference, INVALID, context.lookup)?;
    match &*context.certificate(&name) {
        TlsSecretContent::Certificate { certificate, names: _ } => Ok(Arc::clone(&certificate.origin)),
        TlsSecretContent::Broken { secret: _, reason } => {
            Err(Flaw::new(INVALID, format!("secret `{name}`: {reason}; correct it")))
        }
        TlsSecretContent::Nothing => Err(Flaw::new(INVALID, format!("secret `{name}` does not exist; create it"))),
    }
}

/// Returns the Secret of a reference.
///
/// # Errors
/// The flaw `invalid` for a reference to another kind, or the flaw of one that is not permitted.
fn secret_of(
    owner: &ObjectId,
    reference: &ObjectReference,
    invalid: &'static str,
    lookup: &Lookup<'_>,
) -> Result<ObjectName, Flaw> {
    let ObjectReference { group, kind, namespace, name } = reference;
    if (group, kind) != (&Group::Core, &ReferentKind::Secret) {
        let kind = shorten(kind.as_str());
        let message = format!("certificates of kind `{kind}` are not supported; name a Secret of the core group");
        return Err(Flaw::new(invalid, message));
    }
    let name = ObjectName::new(namespace.as_deref().unwrap_or(&owner.name.namespace), name);
    grants::check(owner, Kind::Secret, &name, lookup)?;
    Ok(name)
}

/// Returns the Secret with the certificate that `gateway` presents to backends.
///
/// # Errors
/// The flaw of the reference. The Gateway presents no certificate then.
pub(super) fn client_certificate(
    gateway: &ObjectId,
    reference: &ObjectReference,
    lookup: &Lookup<'_>,
) -> Result<ObjectName, Flaw> {
    let name = secret_of(gateway, reference, INVALID_CLIENT, lookup)?;
    own(&name, lookup).map_err(|message| Flaw::new(INVALID_CLIENT, message))?;
    Ok(name)
}

/// Returns the certificate for backends in Secret `name`.
///
/// # Errors
/// A description of the problem of the Secret.
pub(super) fn own(name: &ObjectName, lookup: &Lookup<'_>) -> Result<Certificate, String> {
    let stored = lookup.secret(name).ok_or_else(|| format!("secret `{name}` does not exist; create it"))?;
    certificate_secret::read(name, &stored.object).map_err(|reason| format!("secret `{name}`: {reason}; correct it"))
}
