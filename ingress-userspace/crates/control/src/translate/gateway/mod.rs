//! Translates the objects of the Gateway API into binds, listeners and statuses.
//!
//! ```text
//! GatewayClass, Gateway ──placement──> addresses, binds, listeners that stand ──parent──> certificates ──┐
//! every route ──attach──> its listeners                                                                  ├─> Listener
//!     └── matches, filters, backends ──> candidates ──host──> rules for a hostname of a listener ────────┘
//! ```
//!
//! All Gateways are placed together, because they share addresses and ports. Each route is made by itself, from its
//! view of its Gateways; then the routes of a listener are compared, because HTTPRoutes and GRPCRoutes never share a
//! hostname. A problem becomes a condition of its object, and concerns no other object. A match that gets no requests,
//! because an older route has the same, becomes an outcome, since the specification keeps its route accepted.

mod addresses;
mod attach;
mod authorities;
mod backend;
pub(crate) mod backend_tls;
pub(crate) mod class;
mod conflicts;
mod filters;
mod forwarding;
mod frontend;
mod grants;
pub(crate) mod grpc_route;
pub(crate) mod host;
pub(crate) mod hostname_conflicts;
pub(crate) mod http_route;
mod listener;
mod matches;
pub(crate) mod parent;
pub(crate) mod placement;
mod policy;
mod ports;
mod report;
pub(crate) mod route;
pub(crate) mod route_conflicts;
mod rules;
mod secret;
pub(crate) mod stream_route;
mod supported_features;
