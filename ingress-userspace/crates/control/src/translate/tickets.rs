//! Reads the Secret with the keys that seal tickets of TLS sessions. It seals none.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::Secret;

use super::{Context, certificate_secret::field};
use crate::{
    change::{Kind, ObjectName},
    outcome::{Origin, Reason},
};
use ingress_model::{TicketKey, TicketKeys};

/// Returns the keys in Secret `name`, or `None` if there are none. The latter is reported on the Secret, as is each
/// unusable key.
pub(super) fn keys(name: &ObjectName, context: &mut Context<'_, '_>) -> Option<Arc<TicketKeys>> {
    const ALONE: &str = "only this process resumes its sessions until then";
    let Some(stored) = context.secret(name) else {
        let message = format!("`--tls-ticket-secret` names it, but it does not exist; create it, {ALONE}");
        context.report(&name.refer(Kind::Secret, &Origin::Api), Reason::SecretNotFound, message);
        return None;
    };
    let (object, secret) = (stored.refer(Kind::Secret, name), &*stored.object);
    let mut keys = Vec::new();
    for name in fields(secret) {
        match TicketKey::new(field(secret, name).unwrap_or_default()) {
            Ok(key) => keys.push(key),
            Err(error) => {
                context.report(&object, Reason::InvalidTicketKey, format!("`{name}` {error}; it is left out"))
            }
        }
    }
    if keys.is_empty() {
        let message = format!(
            "`--tls-ticket-secret` names it, but it has no usable key `{}`; add one of 80 random bytes, {ALONE}",
            TicketKeys::FIELD
        );
        context.report(&object, Reason::InvalidTicketKey, message);
        return None;
    }
    Some(Arc::new(TicketKeys { origin: name.to_string().into(), keys }))
}

/// Returns the names of fields for keys, in order.
fn fields(secret: &Secret) -> BTreeSet<&str> {
    let Secret { data, string_data, .. } = secret;
    let names = data.iter().flat_map(|data| data.keys()).chain(string_data.iter().flat_map(|data| data.keys()));
    names.map(String::as_str).filter(|name| name.starts_with(TicketKeys::FIELD)).collect()
}
