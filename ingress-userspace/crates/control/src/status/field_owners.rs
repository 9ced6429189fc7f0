//! Statuses of an Ingress are recognized here by the owners of their fields, and objects reduced to what statuses need.

use k8s_openapi::{
    api::networking::v1::{Ingress, IngressLoadBalancerIngress},
    apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry,
};

use super::options::MANAGER;

/// Drops the parts that statuses do not need. Of the status only the load balancer is kept, and of field ownership only
/// whether this controller owns any field.
///
/// The API server records for each manager which fields it owns. By that record a status is recognized as this
/// controller's after a restart, by another leader, or when its addresses have changed since. The full record is
/// several times as large as the status.
pub(crate) fn reduce(ingress: &mut Ingress) {
    let entries_of_ours = ingress.metadata.managed_fields.take().into_iter().flatten().filter(|entry| {
        entry.subresource.as_deref() == Some("status")
            && entry.manager.as_deref().is_some_and(|manager| manager.starts_with(MANAGER))
    });
    let marks: Vec<_> = entries_of_ours
        .map(|entry| ManagedFieldsEntry { manager: entry.manager, ..ManagedFieldsEntry::default() })
        .collect();
    ingress.metadata.managed_fields = (!marks.is_empty()).then_some(marks);
    if entries(ingress).is_empty() {
        ingress.status = None;
    }
}

/// Returns the load balancer entries of the current status.
pub(crate) fn entries(ingress: &Ingress) -> &[IngressLoadBalancerIngress] {
    let balancer = ingress.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    balancer.and_then(|balancer| balancer.ingress.as_deref()).unwrap_or_default()
}
