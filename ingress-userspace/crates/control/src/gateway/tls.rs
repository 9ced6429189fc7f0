//! TLS of listeners, and of a Gateway as a whole.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ObjectReference, open_enum::open_enum};

/// TLS of a listener.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListenerTls {
    pub mode: TlsMode,
    /// Secrets of the type `kubernetes.io/tls`.
    pub certificate_refs: Box<[ObjectReference]>,
    pub options: BTreeMap<Box<str>, Box<str>>,
}

open_enum! {
    /// End of the TLS connection.
    pub enum TlsMode {
        /// The Gateway.
        #[default]
        Terminate = "Terminate",
        /// The backend.
        Passthrough = "Passthrough",
    }
}

/// TLS of a Gateway, towards clients and backends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewayTls {
    pub backend: GatewayBackendTls,
    pub frontend: FrontendTls,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewayBackendTls {
    /// Certificate that the Gateway shows to backends.
    pub client_certificate_ref: Option<ObjectReference>,
}

/// Demands on the certificates of clients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FrontendTls {
    /// Holds for each HTTPS port that `per_port` does not list.
    pub default: FrontendTlsValidation,
    pub per_port: Box<[FrontendTlsPort]>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FrontendTlsPort {
    pub port: u16,
    pub tls: FrontendTlsValidation,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FrontendTlsValidation {
    /// `None`: no certificate is asked for.
    pub validation: Option<FrontendValidation>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FrontendValidation {
    /// ConfigMaps, or Secrets, with `ca.crt`.
    #[serde(rename = "caCertificateRefs")]
    pub ca_certificate_refs: Box<[ObjectReference]>,
    pub mode: FrontendValidationMode,
}

open_enum! {
    /// Treatment of clients without a valid certificate.
    pub enum FrontendValidationMode {
        /// The handshake fails.
        #[default]
        ValidOnly = "AllowValidOnly",
        /// They are served.
        InsecureFallback = "AllowInsecureFallback",
    }
}
