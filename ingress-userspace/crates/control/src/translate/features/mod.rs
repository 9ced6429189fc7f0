//! The features that annotations and settings change, one file each. A file owns its rows (keys with their
//! documentation), the parsed values with their defaults, and the functions that make data of the model from them: a
//! filter, or a part of the policy or of the forwarding.
//!
//! ```text
//! ConfigMaps ──SETTINGS──> Globals ──(defaults)──> ParsedAnnotations ──policy──> Policy ──> filters and forwarding
//! annotations of an Ingress ─────────ANNOTATIONS──────────┘                                 of each rule
//! ```
//!
//! The lists here put the features together. A feature knows no list, and only those features that it combines.

use std::{collections::BTreeMap, sync::Arc};

use crate::translate::{
    Context,
    backend_policy::BackendPolicy,
    options::Classes,
    policy::{Policy, Service},
    values::Read,
};
use ingress_model::{Access, Blocked, Forwarding, ProxyVersion, Retry, Settings};

mod access;
mod access_log;
pub(crate) mod aliases;
mod ambiguities;
pub(crate) mod authentication;
pub(crate) mod backend_protocol;
mod basic_auth;
mod blocked;
mod buffering;
mod canary;
pub(crate) mod client_certificates;
mod client_limits;
mod compression;
mod connections;
mod cors;
pub(crate) mod error_pages;
mod escalation;
mod ext_authz;
mod handshakes;
pub(crate) mod headers;
mod health_policy;
pub(crate) mod host_sharing;
pub(crate) mod hsts;
mod http3;
pub(crate) mod https_redirect;
mod jwt;
mod keepalive;
mod limits;
mod load_balancing;
mod metrics;
mod mirror;
mod passthrough;
mod proxy_header;
pub(crate) mod redirects;
mod request_rules;
mod response_rates;
mod retries;
pub(crate) mod rewrite;
pub(crate) mod row;
pub(crate) mod scope;
mod service_upstream;
pub(crate) mod session_affinity;
mod streams;
#[cfg(test)]
mod tests;
mod timeouts;
mod traces;
pub(crate) mod trusted_proxies;
pub(crate) mod upstream_host;
pub(crate) mod upstream_tls;
mod url;
mod url_rewrites;

use access_log::{Log, ParsedAccessLog};
use aliases::ParsedAliases;
use authentication::{Guards, ParsedAuthentication, Ways};
use backend_protocol::Wanted;
use buffering::ParsedBuffering;
use canary::ParsedCanary;
use client_certificates::{Clients, ParsedClientCertificates};
use compression::ParsedCompression;
use cors::ParsedCors;
use error_pages::ParsedErrorPages;
use escalation::ParsedEscalation;
use headers::{HeaderFilters, HeaderSettings, ParsedHeaders};
use health_policy::ParsedHealthPolicy;
use host_sharing::{ParsedSharing, Sharing};
use hsts::Hsts;
use http3::ParsedHttp3;
use https_redirect::{ParsedHttpsRedirect, RedirectSettings};
use limits::ParsedLimits;
use load_balancing::ParsedLoadBalancing;
use metrics::ParsedMetrics;
use mirror::ParsedMirror;
use passthrough::ParsedPassthrough;
use redirects::ParsedRedirects;
use request_rules::ParsedRequestRules;
use response_rates::ParsedResponseRate;
use rewrite::ParsedRewrite;
use row::{Key, Row, Rows, Table};
use scope::Scope;
use service_upstream::ParsedServiceUpstream;
use session_affinity::ParsedAffinity;
use timeouts::ParsedTimeouts;
use traces::{ParsedTraces, ParsedTracing};
use upstream_host::ParsedUpstreamHost;
use upstream_tls::{ParsedTls, material};
use url_rewrites::ParsedUrlRewrites;

/// The controller with defaults for classes that are taken over from it.
const NGINX: &str = "k8s.io/ingress-nginx";

/// The annotations of each feature.
const ANNOTATIONS: &[&dyn Rows<ParsedAnnotations>] = &[
    &annotations(access::ANNOTATIONS, |parsed| &mut parsed.access),
    &annotations(access_log::ANNOTATIONS, |parsed| &mut parsed.forwarding.access_log),
    &annotations(aliases::ANNOTATIONS, |parsed| &mut parsed.aliases),
    &annotations(authentication::ANNOTATIONS, |parsed| &mut parsed.authentication),
    &annotations(backend_protocol::ANNOTATIONS, |parsed| &mut parsed.backend.backend_protocol),
    &annotations(basic_auth::ANNOTATIONS, |parsed| &mut parsed.ways.basic),
    &annotations(buffering::ANNOTATIONS, |parsed| &mut parsed.forwarding.buffering),
    &annotations(canary::ANNOTATIONS, |parsed| &mut parsed.canary),
    &annotations(client_certificates::ANNOTATIONS, |parsed| &mut parsed.client_certificates),
    &annotations(compression::ANNOTATIONS, |parsed| &mut parsed.compression),
    &annotations(cors::ANNOTATIONS, |parsed| &mut parsed.cors),
    &annotations(error_pages::ANNOTATIONS, |parsed| &mut parsed.error_pages),
    &annotations(ext_authz::ANNOTATIONS, |parsed| &mut parsed.ways.ext_authz),
    &annotations(headers::ANNOTATIONS, |parsed| &mut parsed.headers),
    &annotations(health_policy::ANNOTATIONS, |parsed| &mut parsed.backend.health_policy),
    &annotations(host_sharing::ANNOTATIONS, |parsed| &mut parsed.host_sharing),
    &annotations(http3::ANNOTATIONS, |parsed| &mut parsed.http3),
    &annotations(https_redirect::ANNOTATIONS, |parsed| &mut parsed.https_redirect),
    &annotations(jwt::ANNOTATIONS, |parsed| &mut parsed.ways.jwt),
    &annotations(limits::ANNOTATIONS, |parsed| &mut parsed.limits),
    &annotations(load_balancing::ANNOTATIONS, |parsed| &mut parsed.forwarding.load_balancing),
    &annotations(metrics::ANNOTATIONS, |parsed| &mut parsed.forwarding.metrics),
    &annotations(mirror::ANNOTATIONS, |parsed| &mut parsed.mirror),
    &annotations(passthrough::ANNOTATIONS, |parsed| &mut parsed.passthrough),
    &annotations(proxy_header::ANNOTATIONS, |parsed| &mut parsed.backend.proxy_header),
    &annotations(redirects::ANNOTATIONS, |parsed| &mut parsed.redirects),
    &annotations(request_rules::ANNOTATIONS, |parsed| &mut parsed.request_rules),
    &annotations(response_rates::ANNOTATIONS, |parsed| &mut parsed.forwarding.response_rate),
    &annotations(retries::ANNOTATIONS, |parsed| &mut parsed.forwarding.retries),
    &annotations(rewrite::ANNOTATIONS, |parsed| &mut parsed.rewrite),
    &annotations(service_upstream::ANNOTATIONS, |parsed| &mut parsed.backend.service_upstream),
    &annotations(session_affinity::ANNOTATIONS, |parsed| &mut parsed.forwarding.session_affinity),
    &annotations(timeouts::ANNOTATIONS, |parsed| &mut parsed.forwarding.timeouts),
    &annotations(traces::ANNOTATIONS, |parsed| &mut parsed.forwarding.traces),
    &annotations(upstream_host::ANNOTATIONS, |parsed| &mut parsed.upstream_host),
    &annotations(upstream_tls::ANNOTATIONS, |parsed| &mut parsed.backend.upstream_tls),
    &annotations(url_rewrites::ANNOTATIONS, |parsed| &mut parsed.forwarding.url_rewrites),
];

/// The settings of each feature: `DEFAULTS` of annotations, and `SETTINGS` that hold for all Ingresses alike.
const SETTINGS: &[&dyn Rows<Globals>] = &[
    &settings(access::DEFAULTS, |globals| &mut globals.parsed.access),
    &settings(authentication::DEFAULTS, |globals| &mut globals.parsed.authentication),
    &settings(buffering::DEFAULTS, |globals| &mut globals.parsed.forwarding.buffering),
    &settings(compression::DEFAULTS, |globals| &mut globals.parsed.compression),
    &settings(compression::BROTLI, |globals| &mut globals.parsed.compression),
    &settings(compression::GZIP, |globals| &mut globals.parsed.compression),
    &settings(compression::ZSTD, |globals| &mut globals.parsed.compression),
    &settings(error_pages::DEFAULTS, |globals| &mut globals.parsed.error_pages),
    &settings(ext_authz::DEFAULTS, |globals| &mut globals.parsed.ways.ext_authz),
    &settings(https_redirect::DEFAULTS, |globals| &mut globals.parsed.https_redirect),
    &settings(limits::DEFAULTS, |globals| &mut globals.parsed.limits),
    &settings(load_balancing::DEFAULTS, |globals| &mut globals.parsed.forwarding.load_balancing),
    &settings(response_rates::DEFAULTS, |globals| &mut globals.parsed.forwarding.response_rate),
    &settings(retries::DEFAULTS, |globals| &mut globals.parsed.forwarding.retries),
    &settings(service_upstream::DEFAULTS, |globals| &mut globals.parsed.backend.service_upstream),
    &settings(timeouts::DEFAULTS, |globals| &mut globals.parsed.forwarding.timeouts),
    &settings(traces::DEFAULTS, |globals| &mut globals.parsed.forwarding.traces),
    &settings(url_rewrites::DEFAULTS, |globals| &mut globals.parsed.forwarding.url_rewrites),
    &settings(access_log::SETTINGS, |globals| &mut globals.access_log),
    &settings(ambiguities::SETTINGS, |globals| &mut globals.settings),
    &settings(blocked::SETTINGS, |globals| &mut globals.blocked),
    &settings(client_limits::SETTINGS, |globals| &mut globals.settings.client_limits),
    &settings(connections::SETTINGS, |globals| &mut globals.settings),
    &settings(escalation::SETTINGS, |globals| &mut globals.escalation),
    &settings(handshakes::SETTINGS, |globals| &mut globals.settings.handshakes),
    &settings(headers::SETTINGS, |globals| &mut globals.headers),
    &settings(host_sharing::SETTINGS, |globals| &mut globals.sharing),
    &settings(hsts::SETTINGS, |globals| &mut globals.hsts),
    &settings(https_redirect::SETTINGS, |globals| &mut globals.https_redirect),
    &settings(keepalive::SETTINGS, |globals| &mut globals.settings),
    &settings(streams::SETTINGS, |globals| &mut globals.settings.streams),
    &settings(traces::SETTINGS, |globals| &mut globals.traces),
    &settings(trusted_proxies::SETTINGS, |globals| &mut globals.settings.trust),
];

/// All values that can be set for one Ingress, by feature.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedAnnotations {
    access: Access,
    aliases: ParsedAliases,
    authentication: ParsedAuthentication,
    backend: ParsedBackend,
    canary: ParsedCanary,
    client_certificates: ParsedClientCertificates,
    compression: ParsedCompression,
    cors: ParsedCors,
    pub(crate) error_pages: ParsedErrorPages,
    forwarding: ParsedForwarding,
    headers: ParsedHeaders,
    host_sharing: ParsedSharing,
    http3: ParsedHttp3,
    https_redirect: ParsedHttpsRedirect,
    limits: ParsedLimits,
    mirror: ParsedMirror,
    passthrough: ParsedPassthrough,
    redirects: ParsedRedirects,
    request_rules: ParsedRequestRules,
    rewrite: ParsedRewrite,
    upstream_host: ParsedUpstreamHost,
    pub(crate) ways: Ways,
}

/// Features that become the forwarding of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedForwarding {
    access_log: ParsedAccessLog,
    buffering: ParsedBuffering,
    load_balancing: ParsedLoadBalancing,
    metrics: ParsedMetrics,
    response_rate: ParsedResponseRate,
    retries: Retry,
    session_affinity: ParsedAffinity,
    timeouts: ParsedTimeouts,
    traces: ParsedTracing,
    url_rewrites: ParsedUrlRewrites,
}

/// Features that become the way to the pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedBackend {
    backend_protocol: Wanted,
    health_policy: ParsedHealthPolicy,
    proxy_header: Option<ProxyVersion>,
    service_upstream: ParsedServiceUpstream,
    upstream_tls: ParsedTls,
}

/// Settings that hold for all Ingresses alike.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Globals {
    /// Whether the classes are taken over from ingress-nginx, so that paths match as there.
    pub(crate) is_of_nginx: bool,
    /// Settings that are passed to the proxy unchanged.
    pub(crate) settings: Settings,
    /// Defaults of annotations.
    pub(crate) parsed: ParsedAnnotations,
    /// The forwarding of `parsed`, shared by all Ingresses without changes to it.
    pub(crate) forwarding: Arc<Forwarding>,
    pub(crate) https_redirect: RedirectSettings,
    pub(crate) hsts: Hsts,
    /// Sharing for classes without settings of their own.
    pub(crate) sharing: Sharing,
    pub(crate) sharing_of_classes: BTreeMap<Arc<str>, Sharing>,
    pub(crate) headers: HeaderSettings,
    /// The following become parts of `settings` when all are read.
    pub(crate) blocked: Blocked,
    pub(crate) escalation: ParsedEscalation,
    pub(crate) access_log: Log,
    pub(crate) traces: ParsedTraces,
}

const fn annotations<P>(
    rows: &'static [Row<P>],
    part: fn(&mut ParsedAnnotations) -> &mut P,
) -> Table<ParsedAnnotations, P> {
    Table { rows, part }
}

const fn settings<P>(rows: &'static [Row<P>], part: fn(&mut Globals) -> &mut P) -> Table<Globals, P> {
    Table { rows, part }
}

/// Returns the row of the annotation `name`, without its prefix.
pub(crate) fn annotation(name: &str) -> Option<&'static Key> {
    ANNOTATIONS.iter().find_map(|rows| rows.find(name))
}

/// Returns the row of the setting `name`.
pub(crate) fn setting(name: &str) -> Option<&'static Key> {
    SETTINGS.iter().find_map(|rows| rows.find(name))
}

/// Returns all settings.
pub(crate) fn all_settings() -> impl Iterator<Item = &'static Key> {
    SETTINGS.iter().flat_map(|rows| rows.keys())
}

// === impl ParsedAnnotations ===

impl ParsedAnnotations {
    /// Stores the value of the annotation `name`, or returns a description of valid values.
    pub(crate) fn read(&mut self, name: &str, value: &str) -> Read {
        ANNOTATIONS.iter().find_map(|rows| rows.read(name, value, self)).unwrap_or(Ok(()))
    }

    /// Returns the defaults for routes: of the settings, those that only bound what a route asks for.
    pub(crate) fn of_routes(globals: &Globals) -> Self {
        let Self { forwarding, limits, .. } = globals.parsed.clone();
        Self { forwarding, limits, ..Self::default() }
    }

    /// Makes the policy of one Ingress. Each feature reports its own problems to `scope`.
    pub(crate) fn policy(self, globals: &Globals, scope: &mut Scope<'_, '_>) -> Policy {
        // A new feature breaks the build here, so that none is read without an effect.
        let Self {
            access,
            aliases,
            authentication,
            backend,
            canary,
            client_certificates,
            compression,
            cors,
            error_pages,
            forwarding,
            headers,
            host_sharing,
            http3,
            https_redirect,
            limits,
            mirror,
            passthrough,
            redirects,
            request_rules,
            rewrite,
            upstream_host,
            ways,
        } = self;
        let backend = backend.build(scope);
        let clients = client_certificates.build(scope);
        let clients = scope.or_refuse(clients, Clients::Refused);
        let unauthenticated = Arc::clone(&authentication.unauthenticated);
        let exemptions = ways.ext_authz.cost();
        let guards = authentication.filters(ways, access, scope);
        let Guards { access, authentication } = scope.or_refuse(guards, Guards::default());
        let limit = limits.filter(scope);
        let is_guarded = authentication.is_some() || limit.is_some() || clients != Clients::Any;
        let passes = passthrough.build(is_guarded, scope);
        let HeaderFilters { requests, responses } = headers.filters(&globals.headers.allowed, scope);
        let (request_rules, mut expressions) = request_rules.filters();
        expressions += exemptions;
        expressions += forwarding.url_rewrites.check(scope);
        let guards = [limit, cors.filter(), authentication];
        let mirror = mirror.filter(scope);
        let error_pages = error_pages.filter(&globals.parsed.error_pages.statuses, scope);
        let after = [requests, mirror, error_pages, responses, compression.filter()];
        Policy {
            redirect: https_redirect.build(),
            service: if scope.refuses { Service::Refuse } else { Service::Full },
            backend,
            canary: canary.build(),
            clients,
            passes,
            refuses_http3: http3.is_refused,
            redirects: redirects.build(),
            aliases,
            shares_with: host_sharing.shares_with,
            forwarding: globals.share(forwarding.build()),
            unauthenticated,
            before: access.into_iter().chain(request_rules).chain(guards.into_iter().flatten()).collect(),
            expressions,
            rewrite,
            host: upstream_host,
            after: after.into_iter().flatten().collect(),
        }
    }
}

// === impl ParsedForwarding ===

impl ParsedForwarding {
    fn build(&self) -> Forwarding {
        let Self {
            access_log,
            buffering,
            load_balancing,
            metrics,
            response_rate,
            retries,
            session_affinity,
            timeouts,
            traces,
            url_rewrites,
        } = self;
        let ParsedTimeouts { connect_timeout, read_timeout, send_timeout } = *timeouts;
        let ParsedBuffering { body_max, uploads, body_buffer, response_head_max } = *buffering;
        Forwarding {
            connect_timeout,
            read_timeout,
            send_timeout,
            request_timeout: None,
            backend_request_timeout: None,
            body_max,
            uploads,
            body_buffer,
            response_head_max,
            response_rate: response_rate.build(),
            balance: load_balancing.build(),
            affinity: session_affinity.build(),
            retry: retries.clone(),
            logged: access_log.logged,
            metered: metrics.per_path,
            trace: traces.build(),
            url_rewrites: url_rewrites.build(),
        }
    }
}

// === impl ParsedBackend ===

impl ParsedBackend {
    fn build(self, scope: &mut Scope<'_, '_>) -> BackendPolicy {
        let Self { backend_protocol, health_policy, proxy_header, service_upstream, upstream_tls } = self;
        BackendPolicy {
            protocol: backend_protocol.build(scope),
            through: service_upstream.build(),
            tls: material::build(upstream_tls, scope),
            health_policy: health_policy.build(),
            proxy_header,
        }
    }
}

// === impl Globals ===

impl Globals {
    /// Returns the defaults for `classes`: those of ingress-nginx if they are taken over from it.
    pub(crate) fn of(classes: &Classes) -> Self {
        let mut globals = Self { is_of_nginx: classes.controller == NGINX, ..Self::default() };
        if globals.is_of_nginx {
            for Key { name, default, nginx, .. } in all_settings() {
                if nginx != default {
                    // If a default could not be read, the built-in one would stay; the table's test reads each.
                    globals.read(name, nginx).unwrap_or_default();
                }
            }
        }
        globals.forwarding = Arc::new(globals.parsed.forwarding.build());
        globals
    }

    /// Stores the value of the setting `name`, or returns a description of valid values.
    pub(crate) fn read(&mut self, name: &str, value: &str) -> Read {
        SETTINGS.iter().find_map(|rows| rows.read(name, value, self)).unwrap_or(Ok(()))
    }

    /// Settles the values that follow from others, once all are read. The content of ConfigMaps is looked up in
    /// `context`.
    pub(crate) fn settle(&mut self, context: &mut Context<'_, '_>) {
        self.settings.access_log = self.access_log.build();
        self.settings.traces = self.traces.clone().build();
        self.settings.blocked = (!self.blocked.is_empty()).then(|| Arc::new(self.blocked.clone()));
        self.settings.escalation = self.escalation.build();
        self.forwarding = Arc::new(self.parsed.forwarding.build());
        self.headers.apply(&mut self.parsed.headers, context);
    }

    /// Returns `forwarding` in the allocation that most Ingresses share, if it is the same.
    fn share(&self, forwarding: Forwarding) -> Arc<Forwarding> {
        if forwarding == *self.forwarding { Arc::clone(&self.forwarding) } else { Arc::new(forwarding) }
    }

    /// Returns the sharing for hosts with owners of this class.
    pub(crate) fn sharing_of(&self, class: Option<&str>) -> &Sharing {
        class.and_then(|class| self.sharing_of_classes.get(class)).unwrap_or(&self.sharing)
    }
}
