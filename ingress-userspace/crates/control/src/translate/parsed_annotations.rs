//! Parsed annotations, or the settings that are their defaults: values as they are read, before they are combined.

use std::sync::Arc;

use http::{HeaderName, HeaderValue};

use super::{
    annotations::{
        ParsedAuthentication, ParsedClientCertificates, ParsedCompression, ParsedErrorPages, ParsedHealthPolicy,
        ParsedMirror,
    },
    backend_protocol::Wanted,
    parsed_tls::ParsedTls,
};
use ingress_model::{
    Access, Affinity, AffinityMode, CanaryRule, Cors, Forwarding, HeaderEdits, Host, Networks, Origins, Pattern,
    ProxyVersion, SessionCookie, Template, TraceRule,
};

/// Limits for one client of an Ingress; 0 means unlimited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) per_second: u32,
    pub(super) per_minute: u32,
    /// Burst size as a multiple of the rate. Default 5.
    pub(super) burst_multiplier: u32,
    pub(super) in_flight: u32,
    /// Whether all Ready nodes share the limits. Default false.
    pub(super) of_cluster: bool,
    pub(super) exempt: Networks,
    /// Default 503.
    pub(super) rate_status: u16,
    /// Default 503.
    pub(super) in_flight_status: u16,
}

/// All values that can be set for one Ingress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ParsedAnnotations {
    /// Whether hosts with TLS are redirected to it. Default true.
    pub(super) ssl_redirect: bool,
    /// Whether all hosts are redirected to TLS. Default false.
    pub(super) force_ssl_redirect: bool,
    /// Whether TLS connections are passed through to pods. Default false.
    pub(super) passthrough: bool,
    pub(super) protocol: Wanted,
    pub(super) through_service: bool,
    pub(super) upstream_tls: ParsedTls,
    pub(super) health_policy: ParsedHealthPolicy,
    /// Version of the PROXY protocol header sent to pods. Default none.
    pub(super) proxy_header: Option<ProxyVersion>,
    /// Whether requests are traced. Default false.
    pub(super) traced: bool,
    pub(super) trace: TraceRule,
    pub(super) clients: ParsedClientCertificates,
    pub(super) use_regex: bool,
    pub(super) rewrite_target: Option<Template>,
    pub(super) app_root: Option<Template>,
    /// Whether its hosts are reached with and without `www.`. Default false.
    pub(super) redirects_www: bool,
    /// Further names of its first host.
    pub(super) aliases: Arc<[Host]>,
    /// Namespaces that may add paths to its hosts. Default none.
    pub(super) shares_with: Arc<[Arc<str>]>,
    pub(super) permanent_redirect: Option<Template>,
    pub(super) permanent_status: u16,
    pub(super) temporal_redirect: Option<Template>,
    pub(super) temporal_status: u16,
    /// `Host` for the pods.
    pub(super) upstream_host: Option<HeaderValue>,
    pub(super) forwarding: Forwarding,
    /// Takes precedence over `forwarding.balance`.
    pub(super) hash_by: Option<Template>,
    pub(super) has_affinity: bool,
    pub(super) affinity: Affinity,
    pub(super) cookie_expires: Option<u64>,
    pub(super) access: Access,
    pub(super) is_canary: bool,
    /// Without the required value of its header.
    pub(super) canary: CanaryRule,
    pub(super) canary_header: Option<HeaderName>,
    pub(super) canary_value: Option<HeaderValue>,
    pub(super) canary_pattern: Option<Pattern>,
    pub(super) authentication: ParsedAuthentication,
    pub(super) limits: Limits,
    pub(super) enable_cors: bool,
    pub(super) cors: Cors,
    pub(super) request_headers: HeaderEdits,
    pub(super) response_headers: HeaderEdits,
    pub(super) compression: ParsedCompression,
    pub(super) error_pages: ParsedErrorPages,
    pub(super) mirror: ParsedMirror,
    /// A ConfigMap with fields of responses.
    pub(super) custom_headers: Option<String>,
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
