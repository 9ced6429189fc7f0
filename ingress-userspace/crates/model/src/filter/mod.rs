//! Filters: steps applied to a request between its match and its action, and to the response on its way back.
//!
//! Filters are plain data, parsed once; [`crate::route::filter`] applies them.

use std::sync::Arc;

use http::HeaderValue;

mod access;
mod authentication;
mod compression;
mod cors;
mod error_pages;
mod ext_authz;
mod headers;
mod limit;
mod mirror;
mod request_rules;
mod rewrite;
mod token;
mod users;

pub use access::Access;
pub use authentication::{Authentication, Basic, Satisfy};
pub use compression::{Coding, Compression, MediaTypes, Offer};
pub use cors::{Cors, CorsOrigin, CorsWildcards, OriginError, Origins};
pub use error_pages::ErrorPages;
pub use ext_authz::{AuthCache, AuthService, CacheTimes, CacheTimesError, ExtAuthz, PassedField};
pub use headers::{HeaderEdit, HeaderEditError, HeaderEdits, HeaderText};
pub use limit::{Limit, Rate};
pub use mirror::{Mirror, MirrorShare};
pub use request_rules::{
    Answer, ExpressionCost, RequestCondition, RequestRule, RequestRuleError, RequestRules, RequestSubject, TextTest,
};
pub use rewrite::{Rewrite, RewriteError};
pub use token::{ClaimPath, Demanded, JwksEndpoint, KeySet, KeySource, Token, TokenPlace};
pub use users::{HashError, PasswordHash, Scheme, Users};

use super::{ClientCertificates, PathMatch};

/// A step between match and action.
///
/// A rule lists its filters in the order of the variants below, which is the order of their application. Addresses are
/// checked before anything behind them is revealed, and limits apply before any costly work. A preflight is answered
/// before authentication, as it carries no credentials. Edits come last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Redirects requests over plain HTTP to HTTPS (308 keeps the method, RFC 9110, 15.4.9). Paths below
    /// `/.well-known/acme-challenge` are exempt, because certificate authorities request them over HTTP (RFC 8555,
    /// 8.3), and so are paths that match `except`.
    RedirectHttps { status: u16, except: Arc<[PathMatch]> },
    /// Answers 403 to requests over plain HTTP, and 400 to those without the required certificate.
    ClientCertificate(Arc<ClientCertificates>),
    /// Answers 403 to clients outside the allowed networks, or inside the denied ones.
    Access(Arc<Access>),
    /// Answers requests with certain paths, hosts or fields by an error or a redirect. A rule may have several.
    RequestRules(Arc<RequestRules>),
    /// Refuses requests of clients above their limits.
    Limit(Arc<Limit>),
    /// Answers preflights, and adds fields to every response.
    Cors(Arc<Cors>),
    /// Authenticates clients.
    Authentication(Arc<Authentication>),
    /// Changes path and query.
    Rewrite(Arc<Rewrite>),
    /// Replaces the client's `Host` in the request to the pod. Answers 400 if a text with variables makes no host.
    UpstreamHost(HeaderText),
    /// Edits fields of the request.
    RequestHeaders(Arc<HeaderEdits>),
    /// Sends a copy of the request to another upstream. A rule may have several.
    Mirror(Arc<Mirror>),
    /// Replaces error responses, and responses of missing pods, by custom pages.
    ErrorPages(Arc<ErrorPages>),
    /// Edits fields of the response, including responses made here.
    ResponseHeaders(Arc<HeaderEdits>),
    /// Compresses the body of the response.
    Compression(Arc<Compression>),
    /// Adds `Strict-Transport-Security` (RFC 6797) to responses over TLS.
    StrictTransportSecurity(HeaderValue),
}
