//! Which Services of other namespaces the requests of an Ingress' own may go to: those of `auth-url`, `jwt-jwks-url` and
//! `mirror-target`. The node sends them, past network policies, so that a name alone gives no right.

use super::Context;
use crate::control::change::ObjectName;

/// # Errors
/// What `service` is and what to do, if an Ingress in `namespace` may not have it asked.
pub(super) fn check(namespace: &str, service: &ObjectName, context: &Context<'_>) -> Result<(), String> {
    if (&*service.namespace, &*service.name) == ("default", "kubernetes") {
        return Err(format!("service `{service}`, the API server, which is never asked; name another"));
    }
    let is_own = *service.namespace == *namespace;
    if is_own || context.options.cross_namespace.iter().any(|pattern| pattern.holds(service)) {
        return Ok(());
    }
    Err(format!(
        "service `{service}` of another namespace, which is not asked; name one of `{namespace}`, or ask the operator to add it to `--allow-cross-namespace-services`"
    ))
}
