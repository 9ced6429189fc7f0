//! Filters of rules and backends: changes of requests and responses, redirects, mirrors.

use serde::{Deserialize, Serialize};

use crate::gateway::{BackendRef, ObjectReference};

/// A filter of an HTTPRoute or GRPCRoute. A filter whose own field is missing has that field's defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "FilterFields", into = "FilterFields")]
pub enum Filter {
    RequestHeaderModifier(HeaderModifier),
    ResponseHeaderModifier(HeaderModifier),
    RequestMirror(Box<Mirror>),
    RequestRedirect(Box<Redirect>),
    UrlRewrite(Box<Rewrite>),
    Cors(Box<Cors>),
    /// An object in the namespace of the route.
    ExtensionRef(Box<ObjectReference>),
    /// A type that this release does not know.
    Other(Box<str>),
}

/// Changes of header fields: first `set`, then `add`, then `remove`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HeaderModifier {
    /// Replace the values.
    pub set: Box<[Header]>,
    /// Come after the values that are there.
    pub add: Box<[Header]>,
    pub remove: Box<[Box<str>]>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Header {
    pub name: Box<str>,
    pub value: Box<str>,
}

/// A backend that gets a copy of requests; its responses are ignored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Mirror {
    pub backend_ref: BackendRef,
    /// Share in percent. At most one of `percent` and `fraction` is given; without both, all requests are copied.
    pub percent: Option<u32>,
    pub fraction: Option<Fraction>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Fraction {
    pub numerator: u32,
    /// The default is 100.
    pub denominator: u32,
}

/// A redirect. Parts without a value stay those of the request, apart from the port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Redirect {
    /// `http` or `https`.
    pub scheme: Option<Box<str>>,
    pub hostname: Option<Box<str>>,
    pub path: Option<PathModifier>,
    /// `None`: the well-known port of `scheme`, or without one the port of the listener.
    pub port: Option<u16>,
    /// The default is 302.
    pub status_code: u16,
}

/// A change of the request before it is sent to the backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Rewrite {
    pub hostname: Option<Box<str>>,
    pub path: Option<PathModifier>,
}

/// A change of the path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "PathFields", into = "PathFields")]
pub enum PathModifier {
    /// Replaces the whole path.
    Full(Box<str>),
    /// Replaces the prefix that the rule matches.
    Prefix(Box<str>),
    /// A type that this release does not know.
    Other(Box<str>),
}

/// Origins that may read responses, and what their requests may hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Cors {
    /// Origins such as `https://*.example.com`, or `*`.
    pub allow_origins: Box<[Box<str>]>,
    pub allow_credentials: bool,
    /// Methods, or `*`.
    pub allow_methods: Box<[Box<str>]>,
    /// Header fields, or `*`.
    pub allow_headers: Box<[Box<str>]>,
    /// Header fields, or `*`.
    pub expose_headers: Box<[Box<str>]>,
    /// Seconds for which a browser keeps the response to a preflight request. The default is 5.
    pub max_age: u32,
}

/// The form of [`Filter`] in the API: a type, and the field of that type.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct FilterFields {
    #[serde(rename = "type")]
    kind: Box<str>,
    request_header_modifier: Option<HeaderModifier>,
    response_header_modifier: Option<HeaderModifier>,
    request_mirror: Option<Box<Mirror>>,
    request_redirect: Option<Box<Redirect>>,
    url_rewrite: Option<Box<Rewrite>>,
    cors: Option<Box<Cors>>,
    extension_ref: Option<Box<ObjectReference>>,
}

/// The form of [`PathModifier`] in the API.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PathFields {
    #[serde(rename = "type")]
    kind: Box<str>,
    replace_full_path: Option<Box<str>>,
    replace_prefix_match: Option<Box<str>>,
}

// === impl Filter ===

impl Filter {
    /// Returns the name of the ConfigMap that an `ExtensionRef` names in the namespace of the route.
    #[must_use]
    pub fn config_map(&self) -> Option<&str> {
        match self {
            Self::ExtensionRef(reference) if reference.is_own_config_map() => Some(&reference.name),
            _ => None,
        }
    }

    /// Returns the type, as the API names it.
    #[must_use]
    pub fn kind(&self) -> &str {
        match self {
            Self::RequestHeaderModifier(_) => "RequestHeaderModifier",
            Self::ResponseHeaderModifier(_) => "ResponseHeaderModifier",
            Self::RequestMirror(_) => "RequestMirror",
            Self::RequestRedirect(_) => "RequestRedirect",
            Self::UrlRewrite(_) => "URLRewrite",
            Self::Cors(_) => "CORS",
            Self::ExtensionRef(_) => "ExtensionRef",
            Self::Other(kind) => kind,
        }
    }
}

impl From<FilterFields> for Filter {
    fn from(fields: FilterFields) -> Self {
        match &*fields.kind {
            "RequestHeaderModifier" => Self::RequestHeaderModifier(fields.request_header_modifier.unwrap_or_default()),
            "ResponseHeaderModifier" => {
                Self::ResponseHeaderModifier(fields.response_header_modifier.unwrap_or_default())
            }
            "RequestMirror" => Self::RequestMirror(fields.request_mirror.unwrap_or_default()),
            "RequestRedirect" => Self::RequestRedirect(fields.request_redirect.unwrap_or_default()),
            "URLRewrite" => Self::UrlRewrite(fields.url_rewrite.unwrap_or_default()),
            "CORS" => Self::Cors(fields.cors.unwrap_or_default()),
            "ExtensionRef" => Self::ExtensionRef(fields.extension_ref.unwrap_or_default()),
            _ => Self::Other(fields.kind),
        }
    }
}

impl From<Filter> for FilterFields {
    fn from(filter: Filter) -> Self {
        let fields = Self { kind: filter.kind().into(), ..Self::default() };
        match filter {
            Filter::RequestHeaderModifier(field) => Self { request_header_modifier: Some(field), ..fields },
            Filter::ResponseHeaderModifier(field) => Self { response_header_modifier: Some(field), ..fields },
            Filter::RequestMirror(field) => Self { request_mirror: Some(field), ..fields },
            Filter::RequestRedirect(field) => Self { request_redirect: Some(field), ..fields },
            Filter::UrlRewrite(field) => Self { url_rewrite: Some(field), ..fields },
            Filter::Cors(field) => Self { cors: Some(field), ..fields },
            Filter::ExtensionRef(field) => Self { extension_ref: Some(field), ..fields },
            Filter::Other(_) => fields,
        }
    }
}

// === impl PathModifier ===

impl From<PathFields> for PathModifier {
    fn from(PathFields { kind, replace_full_path, replace_prefix_match }: PathFields) -> Self {
        match &*kind {
            "ReplaceFullPath" => Self::Full(replace_full_path.unwrap_or_default()),
            "ReplacePrefixMatch" => Self::Prefix(replace_prefix_match.unwrap_or_default()),
            _ => Self::Other(kind),
        }
    }
}

impl From<PathModifier> for PathFields {
    fn from(modifier: PathModifier) -> Self {
        match modifier {
            PathModifier::Full(path) => {
                Self { kind: "ReplaceFullPath".into(), replace_full_path: Some(path), ..Self::default() }
            }
            PathModifier::Prefix(path) => {
                Self { kind: "ReplacePrefixMatch".into(), replace_prefix_match: Some(path), ..Self::default() }
            }
            PathModifier::Other(kind) => Self { kind, ..Self::default() },
        }
    }
}

// === impl Fraction ===

impl Default for Fraction {
    fn default() -> Self {
        Self { numerator: 0, denominator: 100 }
    }
}

// === impl Redirect ===

impl Default for Redirect {
    fn default() -> Self {
        Self { scheme: None, hostname: None, path: None, port: None, status_code: 302 }
    }
}

// === impl Cors ===

impl Default for Cors {
    fn default() -> Self {
        Self {
            allow_origins: Box::default(),
            allow_credentials: false,
            allow_methods: Box::default(),
            allow_headers: Box::default(),
            expose_headers: Box::default(),
            max_age: 5,
        }
    }
}
