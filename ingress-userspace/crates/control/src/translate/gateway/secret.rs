//! The certificates that a listener names.

use std::sync::Arc;

use super::{grants, report::Flaw};
use crate::{
    change::{Kind, ObjectId, ObjectName},
    gateway::{Group, Listener, ObjectReference, ReferentKind},
    translate::{Context, text::shorten, tls_secret::TlsSecretContent},
};

/// Returns the origins of the usable certificates of a listener of `owner`, and the flaw of the first one that is not.
pub(super) fn certificates(
    owner: &ObjectId,
    listener: &Listener,
    context: &mut Context<'_, '_>,
) -> (Vec<Arc<str>>, Option<Flaw>) {
    let references = listener.tls.as_ref().map(|tls| &*tls.certificate_refs).unwrap_or_default();
    let (mut origins, mut flaw) = (Vec::new(), None);
    if references.is_empty() {
        flaw = Some(Flaw::new("InvalidCertificateRef", "there are no `certificateRefs`; name a Secret"));
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
    let ObjectReference { group, kind, namespace, name } = reference;
    if (group, kind) != (&Group::Core, &ReferentKind::Secret) {
        let kind = shorten(kind.as_str());
        let message = format!("certificates of kind `{kind}` are not supported; name a Secret of the core group");
        return Err(Flaw::new("InvalidCertificateRef", message));
    }
    let name = ObjectName::new(namespace.as_deref().unwrap_or(&owner.name.namespace), name);
    grants::check(owner, Kind::Secret, &name, context.lookup)?;
    match &*context.certificate(&name) {
        TlsSecretContent::Certificate { certificate, names: _ } => Ok(Arc::clone(&certificate.origin)),
        TlsSecretContent::Broken { secret: _, reason } => {
            Err(Flaw::new("InvalidCertificateRef", format!("secret `{name}`: {reason}; correct it")))
        }
        TlsSecretContent::Nothing => {
            Err(Flaw::new("InvalidCertificateRef", format!("secret `{name}` does not exist; create it")))
        }
    }
}
