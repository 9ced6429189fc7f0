//! Routes, which attach to listeners and lead to backends.

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
