//! Statuses of this controller are recognized here by the owners of their fields, and objects reduced to what statuses
//! need.

use k8s_openapi::{
    api::networking::v1::{Ingress, IngressLoadBalancerIngress},
    apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta},
};

use crate::controller_names::managers;

/// Drops the parts that statuses do not need. Of the status only the load balancer is kept, and of field ownership only
/// whether this controller owns any field.
pub(crate) fn reduce(ingress: &mut Ingress) {
    mark(&mut ingress.metadata);
    if entries(ingress).is_empty() {
        ingress.status = None;
    }
}

/// Reduces the record of field owners to whether this controller owns any field of the status by server-side apply.
///
/// The API server records for each manager which fields it owns. By that record a status is recognized as this
/// controller's after a restart, by another leader, or when its addresses have changed since. The full record is
/// several times as large as the status.
fn mark(metadata: &mut ObjectMeta) {
    let mark =
        |manager: Box<str>| ManagedFieldsEntry { manager: Some(manager.into()), ..ManagedFieldsEntry::default() };
    let marks: Vec<_> = managers(metadata.managed_fields.take()).into_iter().map(mark).collect();
    metadata.managed_fields = (!marks.is_empty()).then_some(marks);
}

/// Returns `true` if [`reduce`] found fields of this manager.
pub(crate) fn is_marked(metadata: &ObjectMeta, manager: &str) -> bool {
    metadata.managed_fields.iter().flatten().any(|entry| entry.manager.as_deref() == Some(manager))
}

/// Returns the load balancer entries of the current status.
pub(crate) fn entries(ingress: &Ingress) -> &[IngressLoadBalancerIngress] {
    let balancer = ingress.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    balancer.and_then(|balancer| balancer.ingress.as_deref()).unwrap_or_default()
}
