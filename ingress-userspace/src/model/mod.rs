//! What control and proxy agree on: hosts, paths, rules, upstreams, certificates, as plain data.
//!
//! ```text
//! control::translate ── RouteTable ──> proxy::snapshot (compile) ──> request path
//! ```
//!
//! Values here are valid by construction (every constructor parses). There is no IO, no clock, no Kubernetes and no
//! protocol library in this module, and nothing in it says "Ingress": other APIs translate into the same types.

pub mod host;
pub mod path;
mod render;
pub mod rule;
pub mod settings;
pub mod tls;
pub mod upstream;

pub use host::{Host, HostError, HostId, HostPattern};
pub use path::{PathError, PathMatch};
pub use rule::{Action, Filter, HostRoutes, RouteTable, Rule, Unavailable};
pub use settings::Settings;
pub use tls::{Certificate, CertificateError};
pub use upstream::{Endpoint, Protocol, Upstream, UpstreamKey};
