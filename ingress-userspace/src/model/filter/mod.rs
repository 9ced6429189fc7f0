//! Filters: what happens to a request between its match and its action, and to the response on its way back.
//!
//! They are plain data, parsed once; [`crate::route::filter`] applies them.

use std::sync::Arc;

use http::HeaderValue;

mod access;
mod authentication;
mod compression;
mod cors;
mod error_pages;
mod external;
mod headers;
mod limit;
mod mirror;
mod rewrite;
mod token;
mod users;

pub use access::Access;
pub use authentication::{Authentication, Basic, Satisfy};
pub use compression::{Coding, Compression, MediaTypes, Offer};
pub use cors::{Cors, Origin, OriginError, Origins};
pub use error_pages::ErrorPages;
pub use external::{AuthCache, AuthService, CacheTimes, CacheTimesError, External};
pub use headers::{HeaderEdit, HeaderEditError, HeaderEdits, HeaderText};
pub use limit::{Limit, Rate};
pub use mirror::Mirror;
pub use rewrite::{Rewrite, RewriteError};
pub use token::{ClaimPath, Demanded, KeyServer, KeySet, KeySource, Token, TokenPlace};
pub use users::{HashError, PasswordHash, Scheme, Users};

use super::{ClientCertificates, PathMatch};

/// A step between match and action.
///
/// A rule has them in the order of this list, which is the order in which they are applied: addresses are checked
/// before anything is told about what is behind them, limits hold before anything is worked for, a preflight is
/// answered before anybody is asked who they are, as it carries no credentials, and what is changed is changed last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Answers a request that came over plain HTTP with a redirect to HTTPS (308 keeps the method, RFC 9110, 15.4.9),
    /// except below `/.well-known/acme-challenge` (RFC 8555, 8.3), which a certificate authority asks for over HTTP,
    /// and for paths that one of `except` matches.
    RedirectHttps { status: u16, except: Arc<[PathMatch]> },
    /// Answers 403 to requests that came over plain HTTP, and 400 to those without the certificate that is asked for.
    ClientCertificate(Arc<ClientCertificates>),
    /// Answers 403 to clients of some networks.
    Access(Arc<Access>),
    /// Answers for clients that ask for too much.
    Limit(Arc<Limit>),
    /// Answers preflights, and adds fields to every response.
    Cors(Arc<Cors>),
    /// Asks clients who they are.
    Authentication(Arc<Authentication>),
    /// Changes path and query.
    Rewrite(Arc<Rewrite>),
    /// Tells the pod this `Host` instead of the client's.
    UpstreamHost(HeaderValue),
    /// Changes fields of the request.
    RequestHeaders(Arc<HeaderEdits>),
    /// Sends the request a second time, elsewhere.
    Mirror(Arc<Mirror>),
    /// Has somebody else answer where pods do not, or not well.
    ErrorPages(Arc<ErrorPages>),
    /// Changes fields of the response, whoever made it.
    ResponseHeaders(Arc<HeaderEdits>),
    /// Compresses the body of the response.
    Compression(Arc<Compression>),
    /// Tells browsers to come over TLS from now on (RFC 6797), where they have done so.
    StrictTransportSecurity(HeaderValue),
}
