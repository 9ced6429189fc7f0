//! Outcome of an object's translation, in a form on which its owner can act. This module only describes it; logs,
//! events and statuses are written elsewhere.

use std::{fmt, path::Path, sync::Arc};

/// A remark about one object.
///
/// Ordered by object, then reason, then text, so that lists of outcomes compare.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Outcome {
    pub object: ObjectRef,
    pub reason: Reason,
    /// For people: lower case, values in backticks, the remedy after a `;`.
    pub message: String,
    /// Whether the rules of the object answer 503 because of this, since serving them would be unsafe. Default false.
    pub refuses: bool,
}

/// The object of a remark.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// `Ingress`, `Service` …; `File` if no object could be read.
    pub kind: Arc<str>,
    /// Empty for cluster-scoped kinds.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub origin: Origin,
}

/// Origin of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// The API server.
    Api,
    /// A file of the manifests directory.
    File(Arc<Path>),
}

/// Reason of a remark. The names are stable: they become reasons of Kubernetes events and labels of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// A canary for a path that no other Ingress has; it has no effect.
    CanaryWithoutMain,
    /// The Ingress claims all hosts, and the operator has refused that; those claims are dropped.
    CatchAllRefused,
    /// The Ingress names two different classes, or a class that does not exist.
    ClassMismatch,
    /// No name in the certificate covers its intended host; the default certificate is served.
    CertHostMismatch,
    /// A ConfigMap that the operator, a class or an annotation names does not exist.
    ConfigMapNotFound,
    /// Another file already defines the object.
    DuplicateObject,
    /// An external name leads to an address that rules may not use, or the operator has refused external names.
    ExternalNameRefused,
    /// An EndpointSlice of the Service has addresses to which no request may go, such as one of the node itself.
    EndpointRefused,
    /// An Ingress leads to a Service of another namespace without a grant, or to the Service of the API server.
    RefNotPermitted,
    /// The health checks of all pods are more than a node makes, so that it makes them less often.
    HealthChecksDelayed,
    /// A node has counters for fewer hosts than there are, so that this one is counted with others.
    HostCapacity,
    /// An Ingress of another namespace makes a claim that only the owner of a host may make; it is refused.
    HostClaimedByOther,
    /// Another namespace decides on the host as a whole, or on the path; the claim is refused.
    HostOwnedByOther,
    /// An older Ingress has the same host and path, default backend or certificate host.
    HostPathConflict,
    /// An annotation that has no meaning here, and needs none; a note.
    IneffectiveAnnotation,
    /// A setting that has no meaning here, and needs none; a note.
    IneffectiveSetting,
    /// A value of an annotation cannot be read; the default applies.
    InvalidAnnotation,
    /// The Secret holds no usable certificate and key.
    InvalidCertificate,
    /// The Secret holds users or hashes that cannot be read; those users have no access.
    InvalidCredentials,
    /// The host is no DNS name; its rule is skipped.
    InvalidHost,
    /// The object, or a part of it, cannot be read.
    InvalidObject,
    /// The parameters of the IngressClass are no usable reference to a ConfigMap.
    InvalidParameters,
    /// The path or its type is invalid; the path is skipped.
    InvalidPath,
    /// A value of a setting cannot be read, so that its default applies; or it has no meaning without another setting.
    InvalidSetting,
    /// The Secret holds an OCSP response that is unusable or expired; clients get none.
    InvalidStaple,
    /// A row of a ConfigMap of TCP or UDP services cannot be read, or names a port that is not available; it is
    /// skipped.
    InvalidStreamService,
    /// The Secret holds a key that cannot seal tickets of TLS sessions.
    InvalidTicketKey,
    /// A rule leads nowhere: it has no paths, and the Ingress no default backend.
    NoBackend,
    /// The service has no endpoint that takes requests.
    NoReadyEndpoints,
    /// Another of this controller's IngressClasses has parameters, and is older; settings hold for all hosts alike.
    ParametersConflict,
    /// The service does not have the port.
    PortNotFound,
    /// An older route, or an earlier match of the same route, gets the requests of a match, or the connections or sessions
    /// of the route, at the same hostname of a listener.
    RouteConflict,
    /// The API server has not answered since the start; the saved configuration is served.
    SavedConfiguration,
    /// The Secret does not exist. The default certificate is served, or the rules that it should protect answer 503.
    SecretNotFound,
    /// The service does not exist.
    ServiceNotFound,
    /// The object exceeds a limit and is ignored as a whole; or a host for a challenge would inherit more rules than
    /// the limit.
    TooLarge,
    /// A kind that this controller does not read; a note.
    UnknownKind,
    /// A port has an unknown protocol, so HTTP/1.1 is used; a note.
    UnknownProtocol,
    /// A setting that no controller of this family has.
    UnknownSetting,
    /// A setting that lets clients forge their own identity.
    UnsafeSetting,
    /// An annotation that this controller does not implement.
    UnsupportedAnnotation,
    /// A backend of a kind that this controller does not implement.
    UnsupportedBackend,
    /// A setting that this controller does not implement.
    UnsupportedSetting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// All requested functions are in effect.
    Note,
    /// A requested function is not in effect.
    Warning,
}

// === impl Outcome ===

impl Outcome {
    /// Returns a remark that leaves the rules of its object served.
    #[must_use]
    pub fn new(object: ObjectRef, reason: Reason, message: String) -> Self {
        Self { object, reason, message, refuses: false }
    }

    #[must_use]
    pub fn severity(&self) -> Severity {
        self.reason.severity()
    }
}

/// Example: `warning ServiceNotFound Ingress default/web (web.yaml): service `default/api` does not exist; create it`.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, reason, message, refuses: _ } = self;
        write!(f, "{} {reason} {object}: {message}", self.severity())
    }
}

// === impl ObjectRef ===

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, namespace, name, origin } = self;
        f.write_str(kind)?;
        match (namespace.is_empty(), name.is_empty()) {
            (_, true) => {}
            (true, false) => write!(f, " {name}")?,
            (false, false) => write!(f, " {namespace}/{name}")?,
        }
        match origin {
            Origin::Api => Ok(()),
            Origin::File(path) => write!(f, " ({})", path.display()),
        }
    }
}

// === impl Reason ===

impl Reason {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CanaryWithoutMain => "CanaryWithoutMain",
            Self::CatchAllRefused => "CatchAllRefused",
            Self::ClassMismatch => "ClassMismatch",
            Self::CertHostMismatch => "CertHostMismatch",
            Self::ConfigMapNotFound => "ConfigMapNotFound",
            Self::DuplicateObject => "DuplicateObject",
            Self::ExternalNameRefused => "ExternalNameRefused",
            Self::EndpointRefused => "EndpointRefused",
            Self::RefNotPermitted => "RefNotPermitted",
            Self::HealthChecksDelayed => "HealthChecksDelayed",
            Self::HostCapacity => "HostCapacity",
            Self::HostClaimedByOther => "HostClaimedByOther",
            Self::HostOwnedByOther => "HostOwnedByOther",
            Self::HostPathConflict => "HostPathConflict",
            Self::IneffectiveAnnotation => "IneffectiveAnnotation",
            Self::IneffectiveSetting => "IneffectiveSetting",
            Self::InvalidAnnotation => "InvalidAnnotation",
            Self::InvalidCertificate => "InvalidCertificate",
            Self::InvalidCredentials => "InvalidCredentials",
            Self::InvalidHost => "InvalidHost",
            Self::InvalidObject => "InvalidObject",
            Self::InvalidParameters => "InvalidParameters",
            Self::InvalidPath => "InvalidPath",
            Self::InvalidSetting => "InvalidSetting",
            Self::InvalidStaple => "InvalidStaple",
            Self::InvalidStreamService => "InvalidStreamService",
            Self::InvalidTicketKey => "InvalidTicketKey",
            Self::NoBackend => "NoBackend",
            Self::NoReadyEndpoints => "NoReadyEndpoints",
            Self::ParametersConflict => "ParametersConflict",
            Self::PortNotFound => "PortNotFound",
            Self::RouteConflict => "RouteConflict",
            Self::SavedConfiguration => "SavedConfiguration",
            Self::SecretNotFound => "SecretNotFound",
            Self::ServiceNotFound => "ServiceNotFound",
            Self::TooLarge => "TooLarge",
            Self::UnknownKind => "UnknownKind",
            Self::UnknownProtocol => "UnknownProtocol",
            Self::UnknownSetting => "UnknownSetting",
            Self::UnsafeSetting => "UnsafeSetting",
            Self::UnsupportedAnnotation => "UnsupportedAnnotation",
            Self::UnsupportedBackend => "UnsupportedBackend",
            Self::UnsupportedSetting => "UnsupportedSetting",
        }
    }

    #[must_use]
    pub fn severity(self) -> Severity {
        match self {
            Self::IneffectiveAnnotation | Self::IneffectiveSetting | Self::UnknownKind | Self::UnknownProtocol => {
                Severity::Note
            }
            _ => Severity::Warning,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
        })
    }
}
