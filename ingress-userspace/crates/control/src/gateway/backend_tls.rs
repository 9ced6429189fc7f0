//! BackendTLSPolicy: TLS between the Gateway and a Service.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::NamespaceResourceScope;
use serde::{Deserialize, Serialize};

use super::{Group, ObjectReference, PolicyStatus, ReferentKind, object::gateway_object, open_enum::open_enum};
use crate::object::ObjectName;

gateway_object! {
    /// Demands TLS of Services, and on their certificates.
    BackendTlsPolicy =
        ("BackendTLSPolicy", "backendtlspolicies", NamespaceResourceScope, BackendTlsPolicySpec, PolicyStatus);
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BackendTlsPolicySpec {
    pub target_refs: Box<[PolicyTarget]>,
    pub validation: BackendTlsValidation,
    pub options: BTreeMap<Box<str>, Box<str>>,
}

/// An object in the namespace of the policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicyTarget {
    pub group: Group,
    pub kind: ReferentKind,
    pub name: Box<str>,
    /// Name of a port of the Service. `None`: all.
    pub section_name: Option<Box<str>>,
}

// === impl BackendTlsPolicy ===

impl BackendTlsPolicy {
    /// Returns the Services that the policy targets, each once.
    #[must_use]
    pub fn services(&self) -> BTreeSet<ObjectName> {
        let ObjectName { namespace, name: _ } = &self.metadata.name;
        let targets = self.spec.target_refs.iter();
        let services = targets.filter(|target| (&target.group, &target.kind) == (&Group::Core, &ReferentKind::Service));
        services.map(|target| ObjectName::new(namespace, &target.name)).collect()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BackendTlsValidation {
    /// Objects in the namespace of the policy, with `ca.crt`.
    #[serde(rename = "caCertificateRefs")]
    pub ca_certificate_refs: Box<[ObjectReference]>,
    /// Certificates that are not in an object. An object has these or `ca_certificate_refs`.
    #[serde(rename = "wellKnownCACertificates")]
    pub well_known_ca_certificates: Option<WellKnownCertificates>,
    /// Name in the handshake, which the certificate must bear unless `subject_alt_names` has names.
    pub hostname: Box<str>,
    /// The certificate must bear one of these. Empty: `hostname`.
    pub subject_alt_names: Box<[SubjectAltName]>,
}

open_enum! {
    /// Well-known trust anchors.
    pub enum WellKnownCertificates {
        /// Those of the system.
        #[default]
        System = "System",
    }
}

/// A name in a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Fields", into = "Fields")]
pub enum SubjectAltName {
    /// A name, or `*.` and a name.
    Hostname(Box<str>),
    Uri(Box<str>),
    /// A type that this release does not know.
    Other(Box<str>),
}

/// The form in the API.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Fields {
    #[serde(rename = "type")]
    kind: Box<str>,
    hostname: Option<Box<str>>,
    uri: Option<Box<str>>,
}

// === impl SubjectAltName ===

impl From<Fields> for SubjectAltName {
    fn from(Fields { kind, hostname, uri }: Fields) -> Self {
        match &*kind {
            "Hostname" => Self::Hostname(hostname.unwrap_or_default()),
            "URI" => Self::Uri(uri.unwrap_or_default()),
            _ => Self::Other(kind),
        }
    }
}

impl From<SubjectAltName> for Fields {
    fn from(name: SubjectAltName) -> Self {
        match name {
            SubjectAltName::Hostname(name) => Self { kind: "Hostname".into(), hostname: Some(name), uri: None },
            SubjectAltName::Uri(uri) => Self { kind: "URI".into(), hostname: None, uri: Some(uri) },
            SubjectAltName::Other(kind) => Self { kind, ..Self::default() },
        }
    }
}
