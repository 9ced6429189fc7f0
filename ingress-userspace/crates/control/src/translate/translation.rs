//! The result of a translation: the route table, the outcomes of its objects, and who is in effect.

use std::sync::Arc;

use crate::{
    change::{ObjectId, ObjectName},
    object_status::ObjectStatus,
    outcome::Outcome,
};
use ingress_model::{RouteTable, Tree};

/// A route table and the outcomes of its objects. A copy is cheap, and the cost of a comparison grows with the
/// differences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Translation {
    pub table: RouteTable,
    pub outcomes: Tree<Arc<Outcome>, ()>,
    /// The Ingresses of this controller, regardless of their problems.
    pub served: Tree<ObjectName, ()>,
    /// The served Ingresses in effect: the table has at least one of their claims.
    pub in_effect: Tree<ObjectName, ()>,
    /// The statuses that objects of the Gateway API should show.
    pub statuses: Tree<ObjectId, Arc<ObjectStatus>>,
    /// DNS names with addresses in use, for [`Cluster::resolved`](crate::cluster::Cluster::resolved).
    pub external_names: Tree<Arc<str>, ()>,
}
