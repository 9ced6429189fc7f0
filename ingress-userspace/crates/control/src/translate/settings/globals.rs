//! The settings that hold for all Ingresses alike, as they are after reading. The defaults are made by `settings`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use http::{HeaderName, HeaderValue};

use super::{escalation::ParsedEscalation, traces::ParsedTraces};
use crate::{
    change::ObjectName,
    translate::{options::HostSharing, parsed_annotations::ParsedAnnotations},
};
use ingress_model::{AccessLog, Blocked, Forwarding, LogEscape, LogFormat, PathMatch, Settings};

/// Settings that hold for all Ingresses alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Globals {
    /// Settings that are passed to the proxy unchanged.
    pub(crate) settings: Settings,
    /// Defaults of annotations.
    pub(crate) parsed: ParsedAnnotations,
    /// The forwarding of `parsed`, shared by all Ingresses without changes to it.
    pub(crate) forwarding: Arc<Forwarding>,
    /// Default 308, which keeps the method, unlike 301 and 302.
    pub(crate) redirect_status: u16,
    /// Paths that are never redirected, besides those of challenges. Default none.
    pub(crate) redirect_except: Arc<[PathMatch]>,
    pub(crate) hsts: Hsts,
    /// Paths of rules without authentication. Default that of ACME challenges.
    pub(crate) unauthenticated: Arc<[PathMatch]>,
    /// Fields that Ingresses may add to their responses by a ConfigMap; empty allows any. Default none.
    pub(crate) allowed_headers: Vec<HeaderName>,
    /// Sharing for classes without settings of their own.
    pub(crate) sharing: Sharing,
    pub(crate) sharing_of_classes: BTreeMap<Arc<str>, Sharing>,
    /// Becomes a part of `settings`, too.
    pub(crate) blocked: Blocked,
    /// Becomes a part of `settings`, too.
    pub(crate) escalation: ParsedEscalation,
    /// Converted into the access log of `settings` when all settings are read.
    pub(crate) log: Log,
    /// Converted into the traces of `settings`, if a collector is named.
    pub(crate) traces: ParsedTraces,
    pub(crate) hidden_headers: Vec<HeaderName>,
    /// ConfigMaps with fields of responses, and of requests.
    pub(crate) add_headers: Option<ObjectName>,
    pub(crate) set_headers: Option<ObjectName>,
}

/// Settings of the access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    pub(crate) disabled: bool,
    /// The text as it was written; empty for JSON.
    pub(crate) format: String,
    pub(crate) escapes_json: bool,
    pub(crate) skip: Arc<[PathMatch]>,
}

/// Whether browsers must use TLS only, and for how long (RFC 6797).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hsts {
    pub(crate) enabled: bool,
    /// In seconds.
    pub(crate) max_age: u64,
    pub(crate) include_subdomains: bool,
    pub(crate) preload: bool,
}

/// Claims that Ingresses may make on hosts of other namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sharing {
    pub(crate) mode: HostSharing,
    /// Namespaces that may add paths to hosts of any other, in mode `granted`.
    pub(crate) grants: BTreeSet<Arc<str>>,
}

// === impl Log ===

impl Log {
    pub(crate) fn made(&self) -> Option<Arc<AccessLog>> {
        let Self { disabled, format, escapes_json, skip } = self;
        let escape = if *escapes_json { LogEscape::Json } else { LogEscape::Default };
        // Formats that could not be parsed were not stored.
        let format = LogFormat::parse(format, escape).ok().filter(|_| !format.is_empty()).unwrap_or_default();
        (!disabled).then(|| Arc::new(AccessLog { format, skip: Arc::clone(skip) }))
    }
}

// === impl Hsts ===

impl Hsts {
    /// Returns the header value for hosts with TLS, if it is enabled.
    pub(crate) fn value(self) -> Option<HeaderValue> {
        let Self { enabled, max_age, include_subdomains, preload } = self;
        let subdomains = if include_subdomains { "; includeSubDomains" } else { "" };
        let preload = if preload { "; preload" } else { "" };
        HeaderValue::try_from(format!("max-age={max_age}{subdomains}{preload}")).ok().filter(|_| enabled)
    }
}
