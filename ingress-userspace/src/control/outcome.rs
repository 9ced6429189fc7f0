//! What became of an object, said so that its owner can act. Says it only: logging, events and status are written
//! elsewhere.

use std::{fmt, path::Path, sync::Arc};

/// One remark about one object.
///
/// Ordered by object, then reason, then text, so that lists of outcomes compare.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Outcome {
    pub object: ObjectRef,
    pub reason: Reason,
    /// For people: lower case, values in backticks, what to do after a `;`.
    pub message: String,
}

/// The object a remark is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// `Ingress`, `Service` …; `File` where no object could be read.
    pub kind: Arc<str>,
    /// Empty for kinds that live outside namespaces.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub origin: Origin,
}

/// Where an object was read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// The API server.
    Api,
    /// A file of the manifests directory.
    File(Arc<Path>),
}

/// Why a remark was made. The names are stable: they become reasons of Kubernetes events and labels of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// A canary for a path that no other Ingress has; it has no effect.
    CanaryWithoutMain,
    /// The Ingress claims all hosts, and the operator has refused that; those claims are dropped.
    CatchAllRefused,
    /// The Ingress' class is named twice and differently, or names nothing that exists.
    ClassMismatch,
    /// No name in the certificate covers the host it is meant for; the default certificate is served.
    CertHostMismatch,
    /// A ConfigMap that the operator, a class or an annotation names does not exist.
    ConfigMapNotFound,
    /// Another file already defines the object.
    DuplicateObject,
    /// An external name leads to where no rule may lead, or the operator has refused external names.
    ExternalNameRefused,
    /// An EndpointSlice has an address that no pod has, as one of the node itself or of metadata.
    EndpointRefused,
    /// An Ingress leads to a Service of another namespace that nobody has granted it.
    RefNotPermitted,
    /// An Ingress of another namespace asks for what the owner of a host alone may say; it is refused.
    HostClaimedByOther,
    /// What holds for the host as a whole, or the path, is another namespace's to say; it is refused.
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
    /// The Secret holds users or hashes that cannot be read; those have no access.
    InvalidCredentials,
    /// The host is no DNS name; its rule is skipped.
    InvalidHost,
    /// The object, or a part of it, cannot be read.
    InvalidObject,
    /// The parameters of the IngressClass are no usable reference to a ConfigMap.
    InvalidParameters,
    /// The path or its type is invalid; the path is skipped.
    InvalidPath,
    /// A value of a setting cannot be read, so that its default applies; or it says nothing without another.
    InvalidSetting,
    /// The Secret holds an OCSP response that cannot be used, or not any more; clients get none.
    InvalidStaple,
    /// A row of a ConfigMap of TCP or UDP services cannot be read, or asks for a port that it cannot have; it is
    /// skipped.
    InvalidStreamService,
    /// The Secret holds what cannot seal tickets of TLS sessions.
    InvalidTicketKey,
    /// A rule leads nowhere: it has no paths, and the Ingress no default backend.
    NoBackend,
    /// The service has no endpoint that takes requests.
    NoReadyEndpoints,
    /// Another of our IngressClasses has parameters, and is older; settings hold for all hosts alike.
    ParametersConflict,
    /// The service does not have the port.
    PortNotFound,
    /// The API server has not answered since the start: what was saved before is served.
    SavedConfiguration,
    /// The Secret does not exist; the default certificate is served, or rules that it was to protect answer 503.
    SecretNotFound,
    /// The service does not exist.
    ServiceNotFound,
    /// The object exceeds a limit and is ignored as a whole; or a host for a challenge would borrow more rules than can
    /// be held.
    TooLarge,
    /// A kind that this controller does not read; a note.
    UnknownKind,
    /// A port speaks a protocol that is not known, so that HTTP/1.1 is spoken; a note.
    UnknownProtocol,
    /// A setting that no controller of this family has.
    UnknownSetting,
    /// A setting by which clients may say of themselves what they like.
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
    /// Nothing is lost.
    Note,
    /// Something that was asked for is not done.
    Warning,
}

// === impl Outcome ===

impl Outcome {
    #[must_use]
    pub fn severity(&self) -> Severity {
        self.reason.severity()
    }
}

/// `warning ServiceNotFound Ingress default/web (web.yaml): service `default/api` does not exist; create it`.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, reason, message } = self;
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
