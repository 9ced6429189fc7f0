//! Translates a cluster into a route table. The translation is pure and total: no IO, no clock, no async; it never
//! fails, it reports.
//!
//! ```text
//! Ingress ──class──> ours? ──ingress──> Claims ──merge──> hosts ─┐
//!  annotations ──features──> Policy ──┘  │                       ├─> RouteTable
//! Service + EndpointSlice ──gather/endpoints──> upstreams ───────┤
//! Service + resolved names ──gather/external_name──> upstreams ──┤
//! Secret ──certificate_secret──> certificates ───────────────────┤
//! ConfigMap ──settings──> Globals ───────────────────────────────┤
//! ConfigMap ──streams──> ports of TCP and UDP ───────────────────┘
//! ```
//!
//! Each Ingress is converted into its claims separately. Claims are merged host by host, oldest Ingress first, so the
//! first to claim a path has it. Properties of a host as a whole, such as the redirect to HTTPS, are settled when all
//! claims on it are known. One bad object never blocks another, and a rule that cannot be honoured answers an error.
//!
//! A part is made with lookups (`lookup`), which record its dependencies, and with a sink for its outcomes.
//!
//! The cost of a change depends on the parts it affects: [`Translator`] keeps each part with its dependencies
//! (`records`), and makes only those parts anew that have changed dependencies.

use super::cluster::Cluster;

mod address;
mod alias;
mod amount;
mod annotation_reader;
mod backend_policy;
mod budget;
mod certificate_secret;
mod checks;
mod claims;
mod class;
mod cluster_addresses;
mod compiled_expressions;
mod context;
mod destination;
mod effects;
mod endpoints;
mod expressions;
mod external_name;
mod features;
mod few;
mod gateway;
mod gather;
mod grant;
mod incremental;
mod ingress;
mod ingress_role;
mod lookup;
mod merge;
mod meters;
mod named;
mod options;
mod outcomes;
mod ownership;
mod part;
mod policy;
mod port;
mod protocol;
mod records;
mod service;
mod settings;
mod shared_parts;
mod shares;
mod staple;
mod stream_rows;
mod streams;
mod sum_list;
mod text;
mod tickets;
mod tls_secret;
mod topology;
mod translation;
mod trust_anchors;
mod values;

pub(crate) use address::{is_always_refused, reached};
pub use annotation_reader::references as annotation_references;
pub(crate) use annotation_reader::route::{
    is_annotatable, references as route_references, references_of_config_map, services as route_services,
};
pub(crate) use annotation_reader::{
    entries as annotation_entries, instead_on_routes, is_annotation, services_of, verdict as annotation_verdict,
};
pub use class::owns;
use context::Context;
pub(crate) use named::{Affected, Namer};
pub use options::{CatchAll, Classes, ExternalNames, GatewayApi, HostSharing, Options, ServicePattern};
pub(crate) use settings::{
    references as settings_references, services_of as settings_services, verdict as setting_verdict,
};
pub(crate) use stream_rows::references as stream_references;

pub use incremental::Translator;
pub use translation::Translation;

/// Translates all Ingresses of this controller according to `options`, like a new [`Translator`].
#[must_use]
pub fn translate(cluster: &Cluster, options: &Options) -> Translation {
    Translator::new(options.clone()).translate(cluster)
}
