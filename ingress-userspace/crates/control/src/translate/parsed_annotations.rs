//! Parsed annotations, or the settings that are their defaults: values as they are read, before they are combined.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method, uri::Authority};

use super::{
    annotations::{ParsedCompression, ParsedHealthPolicy},
    backend_protocol::Wanted,
    destination::TrustAnchors,
    parsed_tls::ParsedTls,
};
use ingress_model::{
    Access, Affinity, AffinityMode, CacheTimes, CanaryRule, ClaimPath, Cors, Demand, Demanded, Forwarding, HeaderEdits,
    Host, Networks, Origins, Pattern, ProxyVersion, SessionCookie, Template, TokenPlace, TraceRule,
};

/// Limits for one client of an Ingress; 0 means unlimited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) per_second: u32,
    pub(crate) per_minute: u32,
    /// Burst size as a multiple of the rate. Default 5.
    pub(crate) burst_multiplier: u32,
    pub(crate) in_flight: u32,
    /// Whether all Ready nodes share the limits. Default false.
    pub(crate) of_cluster: bool,
    pub(crate) exempt: Networks,
    /// Default 503.
    pub(crate) rate_status: u16,
    /// Default 503.
    pub(crate) in_flight_status: u16,
}

/// All values that can be set for one Ingress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedAnnotations {
    /// Whether hosts with TLS are redirected to it. Default true.
    pub(crate) ssl_redirect: bool,
    /// Whether all hosts are redirected to TLS. Default false.
    pub(crate) force_ssl_redirect: bool,
    /// Whether TLS connections are passed through to pods. Default false.
    pub(crate) passthrough: bool,
    pub(crate) protocol: Wanted,
    pub(crate) through_service: bool,
    pub(crate) upstream_tls: ParsedTls,
    pub(crate) health_policy: ParsedHealthPolicy,
    /// Version of the PROXY protocol header sent to pods. Default none.
    pub(crate) proxy_header: Option<ProxyVersion>,
    /// Whether requests are traced. Default false.
    pub(crate) traced: bool,
    pub(crate) trace: TraceRule,
    pub(crate) clients: ParsedClientCertificates,
    pub(crate) use_regex: bool,
    pub(crate) rewrite_target: Option<Template>,
    pub(crate) app_root: Option<Template>,
    /// Whether its hosts are reached with and without `www.`. Default false.
    pub(crate) redirects_www: bool,
    /// Further names of its first host.
    pub(crate) aliases: Arc<[Host]>,
    /// Namespaces that may add paths to its hosts. Default none.
    pub(crate) shares_with: Arc<[Arc<str>]>,
    pub(crate) permanent_redirect: Option<Template>,
    pub(crate) permanent_status: u16,
    pub(crate) temporal_redirect: Option<Template>,
    pub(crate) temporal_status: u16,
    /// `Host` for the pods.
    pub(crate) upstream_host: Option<HeaderValue>,
    pub(crate) forwarding: Forwarding,
    /// Takes precedence over `forwarding.balance`.
    pub(crate) hash_by: Option<Template>,
    pub(crate) has_affinity: bool,
    pub(crate) affinity: Affinity,
    pub(crate) cookie_expires: Option<u64>,
    pub(crate) access: Access,
    pub(crate) is_canary: bool,
    /// Without the required value of its header.
    pub(crate) canary: CanaryRule,
    pub(crate) canary_header: Option<HeaderName>,
    pub(crate) canary_value: Option<HeaderValue>,
    pub(crate) canary_pattern: Option<Pattern>,
    pub(crate) authentication: ParsedAuthentication,
    pub(crate) limits: Limits,
    pub(crate) enable_cors: bool,
    pub(crate) cors: Cors,
    pub(crate) request_headers: HeaderEdits,
    pub(crate) response_headers: HeaderEdits,
    pub(crate) compression: ParsedCompression,
    pub(crate) error_pages: ParsedErrorPages,
    pub(crate) mirror: ParsedMirror,
    /// A ConfigMap with fields of responses.
    pub(crate) custom_headers: Option<String>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            per_second: 0,
            per_minute: 0,
            burst_multiplier: 5,
            in_flight: 0,
            of_cluster: false,
            exempt: Networks::default(),
            rate_status: 503,
            in_flight_status: 503,
        }
    }
}

impl Default for ParsedAnnotations {
    fn default() -> Self {
        Self {
            ssl_redirect: true,
            force_ssl_redirect: false,
            passthrough: false,
            protocol: Wanted::OfPort,
            through_service: false,
            upstream_tls: ParsedTls::default(),
            health_policy: ParsedHealthPolicy::default(),
            proxy_header: None,
            traced: false,
            trace: TraceRule { trusts: true, name: None },
            clients: ParsedClientCertificates::default(),
            use_regex: false,
            rewrite_target: None,
            app_root: None,
            redirects_www: false,
            aliases: [].into(),
            shares_with: [].into(),
            permanent_redirect: None,
            permanent_status: 301,
            temporal_redirect: None,
            temporal_status: 302,
            upstream_host: None,
            forwarding: Forwarding::default(),
            hash_by: None,
            has_affinity: false,
            affinity: Affinity {
                mode: AffinityMode::Balanced,
                cookie: SessionCookie {
                    name: "INGRESSCOOKIE".into(),
                    path: None,
                    domain: None,
                    max_age: None,
                    same_site: None,
                    secure: None,
                },
                follows_failure: false,
            },
            cookie_expires: None,
            access: Access::default(),
            is_canary: false,
            canary: CanaryRule { total: 100, ..CanaryRule::default() },
            canary_header: None,
            canary_value: None,
            canary_pattern: None,
            authentication: ParsedAuthentication::default(),
            limits: Limits::default(),
            enable_cors: false,
            cors: Cors {
                origins: Origins::Any,
                methods: HeaderValue::from_static("GET, PUT, POST, DELETE, PATCH, OPTIONS"),
                headers: HeaderValue::from_static(
                    "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization",
                ),
                expose: None,
                credentials: true,
                max_age: 1_728_000,
            },
            request_headers: HeaderEdits::default(),
            response_headers: HeaderEdits::default(),
            compression: ParsedCompression::default(),
            error_pages: ParsedErrorPages::default(),
            mirror: ParsedMirror::default(),
            custom_headers: None,
        }
    }
}

/// Authentication of clients, as annotations and settings ask for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedAuthentication {
    pub(crate) basic: ParsedBasicAuth,
    pub(crate) token: ParsedToken,
    pub(crate) ext_authz: ParsedExtAuthz,
    /// From the settings for all Ingresses; applies to an Ingress without an `auth-url` of its own …
    pub(crate) global: ParsedExtAuthz,
    /// … or set if a part of it could not be read.
    pub(crate) global_is_unreadable: bool,
    /// Whether `global` applies to this Ingress.
    pub(crate) takes_global: bool,
    /// Whether either the network or an authentication is enough.
    pub(crate) satisfy_any: bool,
}

/// The values of `auth-type` and the keys that belong to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedBasicAuth {
    pub(crate) is_wanted: bool,
    pub(crate) secret: Option<String>,
    pub(crate) layout: Layout,
    pub(crate) realm: String,
}

/// Layout of the users in a Secret.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Layout {
    /// The text of an htpasswd file, under `auth`.
    #[default]
    File,
    /// Each hash under the name of its user.
    Map,
}

impl Default for ParsedAuthentication {
    fn default() -> Self {
        Self {
            basic: ParsedBasicAuth::default(),
            token: ParsedToken::default(),
            ext_authz: ParsedExtAuthz::default(),
            global: ParsedExtAuthz::default(),
            global_is_unreadable: false,
            takes_global: true,
            satisfy_any: false,
        }
    }
}

impl Default for ParsedBasicAuth {
    fn default() -> Self {
        Self { is_wanted: false, secret: None, layout: Layout::default(), realm: "Authentication Required".into() }
    }
}

/// Values as they are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedClientCertificates {
    pub(crate) secret: Option<String>,
    pub(crate) verify: Wish,
    pub(crate) depth: usize,
    pub(crate) passed: bool,
}

/// The value of `auth-tls-verify-client`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Not set: certificates are required if there is a Secret to verify them with.
    Unsaid,
    Off,
    On(Demand),
}

impl Default for ParsedClientCertificates {
    fn default() -> Self {
        Self { secret: None, verify: Wish::Unsaid, depth: 1, passed: false }
    }
}

/// The values of `custom-http-errors` and the keys that belong to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedErrorPages {
    /// Sorted.
    pub(crate) statuses: Arc<[u16]>,
    /// Passes responses of pods on unchanged for every status. Default false.
    pub(crate) disabled: bool,
    /// Name of a Service.
    pub(crate) backend: Option<String>,
}

/// The values of `mirror-target` and the keys that belong to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedMirror {
    pub(crate) target: Option<Target>,
    /// Default true.
    pub(crate) body: bool,
    /// Replaces the host of the target.
    pub(crate) host: Option<HeaderValue>,
}

/// Destination of a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Url(Url),
    /// A Service of the Ingress's namespace.
    Service {
        name: String,
        port: u16,
    },
}

impl Default for ParsedMirror {
    fn default() -> Self {
        Self { target: None, body: true, host: None }
    }
}

/// The values of `auth-url` and the keys that belong to it, or of their settings for all Ingresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedExtAuthz {
    pub(crate) url: Option<Url>,
    pub(crate) method: Method,
    pub(crate) sign_in: Option<String>,
    pub(crate) redirect_param: String,
    pub(crate) response_headers: Vec<HeaderName>,
    pub(crate) request_redirect: Option<Template>,
    pub(crate) always_set_cookie: bool,
    pub(crate) proxy_set_headers: Option<String>,
    pub(crate) cache_key: Option<Template>,
    pub(crate) cache_times: CacheTimes,
}

impl Default for ParsedExtAuthz {
    fn default() -> Self {
        Self {
            url: None,
            method: Method::GET,
            sign_in: None,
            redirect_param: "rd".into(),
            response_headers: Vec::new(),
            request_redirect: None,
            always_set_cookie: false,
            proxy_set_headers: None,
            cache_key: None,
            cache_times: CacheTimes::default(),
        }
    }
}

/// The values of `jwt-…`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedToken {
    pub(crate) secret: Option<String>,
    pub(crate) url: Option<Url>,
    /// The Secret with trust anchors for the host of `url`.
    pub(crate) authorities: Option<String>,
    pub(crate) issuers: Vec<Box<str>>,
    pub(crate) audiences: Vec<Box<str>>,
    pub(crate) place: TokenPlace,
    pub(crate) demands: Vec<Demanded>,
    pub(crate) passed: Vec<(HeaderName, ClaimPath)>,
}

/// URL of a service. `Debug` omits the query, which may be secret.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) is_secure: bool,
    /// `None` for the host of the request.
    pub(crate) authority: Option<Authority>,
    /// Path and query.
    pub(crate) target: Template,
    pub(crate) trust_anchors: TrustAnchors,
}
