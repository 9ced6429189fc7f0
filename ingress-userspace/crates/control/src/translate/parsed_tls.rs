//! The annotations for TLS with pods, as they are read.

use rustls_pki_types::ServerName;

/// Values as they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedTls {
    pub(crate) verify: bool,
    pub(crate) secret: Option<String>,
    /// Default: the name of the service.
    pub(crate) name: Option<ServerName<'static>>,
    pub(crate) sends_name: bool,
}

// === impl ParsedTls ===

impl ParsedTls {
    /// Returns terms that only send `host` as server name; `None` if it is no valid server name.
    pub(crate) fn naming(host: &str) -> Option<Self> {
        let name = ServerName::try_from(host.trim_end_matches('.').to_owned()).ok()?;
        Some(Self { name: Some(name), sends_name: true, ..Self::default() })
    }

    /// Returns a label that differs between upstreams of one service with different terms.
    pub(crate) fn label(&self) -> String {
        let Self { verify, secret, name, sends_name } = self;
        // The Secret is in this namespace, with or without its prefix.
        let secret = secret.as_ref().map(|secret| secret.split_once('/').map_or(&**secret, |(_, name)| name));
        let mut parts = Vec::new();
        parts.extend(secret.map(|secret| format!("secret={secret}")));
        parts.extend(verify.then(|| "verify".to_owned()));
        parts.extend(name.as_ref().map(|name| format!("name={}", name.to_str())));
        parts.extend(sends_name.then(|| "sni".to_owned()));
        parts.join(",")
    }
}
