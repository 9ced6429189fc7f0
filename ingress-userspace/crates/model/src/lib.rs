//! The data model that control and proxy share: hosts, paths, rules, upstreams and certificates, as plain data.
//!
//! ```text
//! control::translate ── RouteTable ──> proxy::snapshot (compile) ──> request path
//! ```
//!
//! Values here are valid by construction (every constructor parses). This crate has no IO, no clock, no Kubernetes
//! types and no protocol engine. Ingresses only occur as names for display: other APIs translate into the same types.
//! [`route`] looks up the rule of a request.
#![forbid(unsafe_code)]

mod balance;
mod blocked;
mod canary;
mod client_certificates;
mod client_limits;
mod conditions;
pub mod duration;
mod escalation;
pub mod filter;
mod forwarding;
mod handshakes;
mod health_policy;
pub mod host;
mod listener;
mod log;
mod networks;
mod passthrough;
pub mod path;
mod path_modifier;
mod path_pattern;
mod pattern;
mod redirect;
mod render;
pub mod request_path;
pub mod route;
pub mod rule;
pub mod settings;
mod stream;
mod template;
mod tickets;
pub mod tls;
mod traces;
pub mod tree;
mod trust;
pub mod upstream;
mod url_rewrites;
mod weighted;

pub use balance::{Affinity, AffinityMode, Balance, Retry, SameSite, SessionCookie};
pub use blocked::{Blocked, Texts};
pub use canary::{Canary, CanaryRule, CanarySessions, CanaryValue, Split};
pub use client_certificates::{ClientCertificates, Demand};
pub use client_limits::{ClientLimitSettings, PacketLimit};
pub use conditions::{Conditions, HeaderCondition, ParameterCondition, RequestHead};
pub use escalation::{Escalation, FurtherViolations};
pub use filter::{
    Access, Answer, AuthCache, AuthService, Authentication, Basic, CacheTimes, ClaimPath, Coding, Compression, Cors,
    CorsWildcards, Demanded, ErrorPages, ExpressionCost, ExtAuthz, Filter, HashError, HeaderEdit, HeaderEdits,
    HeaderText, JwksEndpoint, KeySet, KeySource, MediaTypes, Mirror, MirrorShare, Offer, Origins, PassedField,
    PasswordHash, RequestCondition, RequestRule, RequestRuleError, RequestRules, RequestSubject, Rewrite, Satisfy,
    Scheme, TextTest, Token, TokenPlace, Users,
};
pub use forwarding::{Forwarding, ResponseRate, Uploads};
pub use handshakes::{Handshakes, Versions};
pub use health_policy::{Check, CircuitBreaker, HealthPolicy, OutlierDetection, Question};
pub use host::{Host, HostError, HostId, HostPattern};
pub use listener::{Bind, Bound, HostName, Listener, ListenerName, ListenerProtocol};
pub use log::{AccessLog, FormatPiece, LogError, LogEscape, LogField, LogFormat, LogPiece, format_pieces};
pub use networks::{NetworkError, Networks};
pub use passthrough::Passthrough;
pub use path::{PathError, PathMatch};
pub use path_modifier::{PathModifier, ReplacementPath, ReplacementPathError};
pub use path_pattern::PathPattern;
pub use pattern::{Pattern, PatternError};
pub use redirect::{Location, LocationParts, Redirect, UrlScheme};
pub use rule::{Action, HostRoutes, RouteTable, Rule, Unavailable};
pub use settings::{RefusedPaths, Settings};
pub use stream::{StreamPort, StreamRetry, StreamService, StreamSettings, Transport};
pub use template::{Template, TemplateError, TemplatePiece, Variable};
pub use tickets::{TicketKey, TicketKeyError, TicketKeys};
pub use tls::{Authorities, Certificate, CertificateError, Staple};
pub use traces::{Sampler, TraceRule, Traces};
pub use tree::Tree;
pub use trust::Trust;
pub use upstream::{CertificateName, Endpoint, Protocol, ProxyVersion, Upstream, UpstreamKey, UpstreamTls, Verify};
pub use url_rewrites::{RewriteSource, UrlRewrite, UrlRewriteError, UrlRewrites, two_arguments};
pub use weighted::{WeightedBackend, WeightedBackends};
