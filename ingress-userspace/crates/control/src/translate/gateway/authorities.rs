//! Certificate authorities that an object of the Gateway API names: ConfigMaps or Secrets with `ca.crt`.

use std::sync::Arc;

use super::{grants, report::Flaw};
use crate::{
    change::{Kind, ObjectId, ObjectName},
    gateway::{Group, ObjectReference, ReferentKind},
    translate::{certificate_secret, lookup::Lookup, text::shorten},
};
use ingress_model::Authorities;

/// Returns the authorities of all usable references of `owner` together, and the flaw of the first that is not usable.
/// Returns no authorities if none is usable.
pub(super) fn authorities(
    owner: &ObjectId,
    references: &[ObjectReference],
    lookup: &Lookup<'_>,
) -> (Option<Arc<Authorities>>, Option<Flaw>) {
    let (mut origins, mut certificates, mut flaw) = (Vec::new(), Vec::new(), None);
    for reference in references {
        match read(owner, reference, lookup) {
            Ok(authorities) => {
                origins.push(authorities.origin.to_string());
                certificates.extend(authorities.certificates);
            }
            Err(found) => drop(flaw.get_or_insert(found)),
        }
    }
    let all = Authorities { origin: origins.join(" ").into(), certificates };
    ((!all.certificates.is_empty()).then(|| Arc::new(all)), flaw)
}

fn read(owner: &ObjectId, reference: &ObjectReference, lookup: &Lookup<'_>) -> Result<Authorities, Flaw> {
    let ObjectReference { group, kind, namespace, name } = reference;
    let kind = match (group, kind) {
        (Group::Core, ReferentKind::ConfigMap) => Kind::ConfigMap,
        (Group::Core, ReferentKind::Secret) => Kind::Secret,
        (_, kind) => {
            let kind = shorten(kind.as_str());
            let message = format!("authorities of kind `{kind}` are not supported; name a ConfigMap of the core group");
            return Err(Flaw::new("InvalidCACertificateKind", message));
        }
    };
    let name = ObjectName::new(namespace.as_deref().unwrap_or(&owner.name.namespace), name);
    grants::check(owner, kind, &name, lookup)?;
    let missing = || format!("{} `{name}` does not exist; create it", kind.as_str());
    let authorities = if kind == Kind::Secret {
        lookup.secret(&name).ok_or_else(missing).and_then(|stored| {
            certificate_secret::authorities(&name, &stored.object)
                .map_err(|reason| format!("Secret `{name}`: {reason}; correct it"))
        })
    } else {
        lookup.config_map(&name).ok_or_else(missing).and_then(|stored| {
            let data = stored.object.data.as_ref().and_then(|data| data.get(certificate_secret::CA));
            let pem = data.map(|text| text.as_bytes());
            certificate_secret::authorities_of(&name, pem)
                .map_err(|reason| format!("ConfigMap `{name}`: {reason}; correct it"))
        })
    };
    authorities.map_err(|message| Flaw::new("InvalidCACertificateRef", message))
}
