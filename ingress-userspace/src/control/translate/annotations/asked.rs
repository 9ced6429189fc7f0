//! What annotations, or the settings that are their defaults, ask for: values as they are read, not yet brought together.

use http::{HeaderName, HeaderValue};

use super::{
    super::protocol::Wanted, authentication::AskedAuthentication, clients::AskedClients, upstream_tls::AskedTls,
};
use crate::model::{
    Access, Affinity, AffinityMode, CanaryRule, Cors, Forwarding, HeaderEdits, Networks, Origins, Pattern,
    SessionCookie, Template,
};

/// How much one client may ask of an Ingress; 0 for any number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::control::translate) struct Limits {
    pub(in crate::control::translate) per_second: u32,
    pub(in crate::control::translate) per_minute: u32,
    /// As many times as many may come before their time. Default 5.
    pub(in crate::control::translate) burst_multiplier: u32,
    pub(in crate::control::translate) in_flight: u32,
    pub(in crate::control::translate) exempt: Networks,
    /// Default 503.
    pub(in crate::control::translate) rate_status: u16,
    /// Default 503.
    pub(in crate::control::translate) in_flight_status: u16,
}

/// Everything that can be asked for one Ingress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::control::translate) struct Asked {
    /// Whether hosts with TLS are redirected to it. Default true.
    pub(in crate::control::translate) ssl_redirect: bool,
    /// Whether all hosts are redirected to TLS. Default false.
    pub(in crate::control::translate) force_ssl_redirect: bool,
    pub(in crate::control::translate) protocol: Wanted,
    pub(in crate::control::translate) through_service: bool,
    pub(in crate::control::translate) upstream_tls: AskedTls,
    pub(in crate::control::translate) clients: AskedClients,
    pub(in crate::control::translate) use_regex: bool,
    pub(in crate::control::translate) rewrite_target: Option<Template>,
    pub(in crate::control::translate) app_root: Option<Template>,
    pub(in crate::control::translate) permanent_redirect: Option<Template>,
    pub(in crate::control::translate) permanent_status: u16,
    pub(in crate::control::translate) temporal_redirect: Option<Template>,
    pub(in crate::control::translate) temporal_status: u16,
    /// `Host` for the pods.
    pub(in crate::control::translate) upstream_host: Option<HeaderValue>,
    pub(in crate::control::translate) forwarding: Forwarding,
    /// Goes before `forwarding.balance`.
    pub(in crate::control::translate) hash_by: Option<Template>,
    pub(in crate::control::translate) has_affinity: bool,
    pub(in crate::control::translate) affinity: Affinity,
    pub(in crate::control::translate) cookie_expires: Option<u64>,
    pub(in crate::control::translate) access: Access,
    pub(in crate::control::translate) is_canary: bool,
    /// Without what its header must say.
    pub(in crate::control::translate) canary: CanaryRule,
    pub(in crate::control::translate) canary_header: Option<HeaderName>,
    pub(in crate::control::translate) canary_value: Option<HeaderValue>,
    pub(in crate::control::translate) canary_pattern: Option<Pattern>,
    pub(in crate::control::translate) authentication: AskedAuthentication,
    pub(in crate::control::translate) limits: Limits,
    pub(in crate::control::translate) enable_cors: bool,
    pub(in crate::control::translate) cors: Cors,
    pub(in crate::control::translate) request_headers: HeaderEdits,
    pub(in crate::control::translate) response_headers: HeaderEdits,
    /// A ConfigMap with fields of responses.
    pub(in crate::control::translate) custom_headers: Option<String>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            per_second: 0,
            per_minute: 0,
            burst_multiplier: 5,
            in_flight: 0,
            exempt: Networks::default(),
            rate_status: 503,
            in_flight_status: 503,
        }
    }
}

impl Default for Asked {
    fn default() -> Self {
        Self {
            ssl_redirect: true,
            force_ssl_redirect: false,
            protocol: Wanted::OfPort,
            through_service: false,
            upstream_tls: AskedTls::default(),
            clients: AskedClients::default(),
            use_regex: false,
            rewrite_target: None,
            app_root: None,
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
            authentication: AskedAuthentication::default(),
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
            custom_headers: None,
        }
    }
}
