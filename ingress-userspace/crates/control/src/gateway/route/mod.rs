//! Routes, which attach to listeners and lead to backends.

use super::{BackendRef, GatewayObject, ParentReference, RouteStatus};

mod filter;
mod grpc;
mod http;
mod stream;

pub use filter::{Cors, Filter, Fraction, Header, HeaderModifier, Mirror, PathModifier, Redirect, Rewrite};
pub use grpc::{GrpcMatch, GrpcMethodMatch, GrpcRoute, GrpcRouteSpec, GrpcRule};
pub use http::{
    HttpMatch, HttpRoute, HttpRouteSpec, HttpRule, MatchKind, PathMatch, PathMatchKind, Retry, Timeouts, ValueMatch,
};
pub use stream::{StreamRouteSpec, StreamRule, TcpRoute, TlsRoute, UdpRoute};

/// A route of any kind.
pub trait Route: GatewayObject {
    fn parent_refs(&self) -> &[ParentReference];

    /// Names, or `*.` and a name. Empty for kinds without names.
    fn hostnames(&self) -> &[Box<str>];

    fn status(&self) -> &RouteStatus;

    /// Returns the backends of all rules, and those of their mirrors.
    fn backends(&self) -> Vec<&BackendRef>;
}

// === impl Route ===

macro_rules! route {
    ($kind:ident, $backends:expr) => {
        impl Route for $kind {
            fn parent_refs(&self) -> &[ParentReference] {
                &self.spec.parent_refs
            }

            fn hostnames(&self) -> &[Box<str>] {
                &self.spec.hostnames
            }

            fn status(&self) -> &RouteStatus {
                &self.status
            }

            fn backends(&self) -> Vec<&BackendRef> {
                self.spec.rules.iter().flat_map($backends).collect()
            }
        }
    };
}

route!(HttpRoute, |rule| backends(&rule.backend_refs, &rule.filters));
route!(GrpcRoute, |rule| backends(&rule.backend_refs, &rule.filters));
route!(TlsRoute, |rule| &rule.backend_refs);
route!(TcpRoute, |rule| &rule.backend_refs);
route!(UdpRoute, |rule| &rule.backend_refs);

/// Returns the backends of a rule, and those of its mirrors.
fn backends<'r>(backends: &'r [BackendRef], filters: &'r [Filter]) -> impl Iterator<Item = &'r BackendRef> {
    let of_backends = backends.iter().flat_map(|backend| &backend.filters);
    let mirrors = filters.iter().chain(of_backends).filter_map(|filter| match filter {
        Filter::RequestMirror(mirror) => Some(&mirror.backend_ref),
        _ => None,
    });
    backends.iter().chain(mirrors)
}
