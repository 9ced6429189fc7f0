//! Names by which this controller recognizes its own parts of objects: the prefix of its annotations and conditions, and
//! the field managers of its statuses.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;

/// Prefix of the annotations and of the types of conditions that only this controller has, without the slash behind it.
pub(crate) const PREFIX: &str = "xdp-ingress.io";

/// The field manager under which statuses are applied, and by which this controller recognizes its own.
pub(crate) const MANAGER: &str = "xdp-ingress";

/// Returns the rest of a name with [`PREFIX`], behind the slash; `None` if the name has another prefix.
pub(crate) fn own_key(name: &str) -> Option<&str> {
    name.strip_prefix(PREFIX)?.strip_prefix('/')
}

/// Returns the managers of this controller that own fields of the status by server-side apply.
pub(crate) fn managers(fields: Option<Vec<ManagedFieldsEntry>>) -> Box<[Box<str>]> {
    let of_ours = |entry: ManagedFieldsEntry| {
        let is_applied = entry.subresource.as_deref() == Some("status") && entry.operation.as_deref() == Some("Apply");
        entry.manager.filter(|manager| is_applied && manager.starts_with(MANAGER)).map(Into::into)
    };
    fields.into_iter().flatten().filter_map(of_ours).collect()
}
