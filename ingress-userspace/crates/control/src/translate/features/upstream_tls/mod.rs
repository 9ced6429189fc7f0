//! TLS with pods: trust anchors, client certificate and server name. Whether the pods use TLS at all is decided
//! elsewhere, and `material` reads the Secrets.

use rustls_pki_types::ServerName;

use super::{
    handshakes::versions,
    row::{Row, key},
};
use crate::{
    change::Kind,
    translate::values::{number, secret, switch},
};
use ingress_model::Versions;

pub(crate) mod material;

const INSTEAD: &str = "write a BackendTLSPolicy";

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedTls>] = &[
    key(
        "proxy-ssl-name",
        "name for the verification of pods' certificates and for SNI; without it, the Service's `NAME.NAMESPACE.svc`, \
         or its external name",
    )
    .or_refuse()
    .not_on_routes(INSTEAD).reads(|value, parsed| {
        let name = ServerName::try_from(value.to_owned()).map_err(|_invalid| "a host, as `pod.a.test`")?;
        parsed.name = Some(name);
        Ok(())
    }),
    key("proxy-ssl-protocols", "versions of TLS that pods are offered: `TLSv1.2`, `TLSv1.3` or both")
        .differs("older versions in the list are never offered, and one of `TLSv1.2` and `TLSv1.3` is needed")
        .default("TLSv1.2 TLSv1.3")
        .not_on_routes(INSTEAD).reads(|value, parsed| {
            let is_older = |version: &&str| matches!(*version, "SSLv2" | "SSLv3" | "TLSv1" | "TLSv1.1");
            let newer: Vec<_> = value.split_whitespace().filter(|version| !is_older(version)).collect();
            versions(&newer.join(" "), &mut parsed.versions)
        }),
    key(
        "proxy-ssl-secret",
        "a Secret for TLS to pods: `ca.crt` to verify their certificates, `tls.crt` and `tls.key` as client \
         certificate, or all three",
    )
    .naming(Kind::Secret)
    .or_refuse()
    .not_on_routes(INSTEAD).reads(|value, parsed| secret(value, &mut parsed.secret)),
    key("proxy-ssl-server-name", "whether handshakes with pods contain a server name (SNI): `on` or `off`")
        .default("off")
        .not_on_routes(INSTEAD).reads(|value, parsed| switch(value, &mut parsed.sends_name)),
    key(
        "proxy-ssl-verify",
        "whether certificates of pods are verified: `on` or `off`. A pod with an invalid one gets no request",
    )
    .default("off")
    .or_refuse()
    .not_on_routes(INSTEAD).reads(|value, parsed| switch(value, &mut parsed.verify)),
    key(
        "proxy-ssl-verify-depth",
        "largest number of certificates between a pod's and the one in `ca.crt`, with `proxy-ssl-verify`; never more than 6",
    )
    .differs("without it, chains have any depth up to 6")
    .or_refuse()
    .not_on_routes(INSTEAD).reads(|value, parsed| {
        let mut depth = 0;
        number(value, 0..=100, &mut depth).ok_or("a number up to 100")?;
        parsed.depth = Some(depth);
        Ok(())
    }),
];

/// Values as they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedTls {
    pub(crate) verify: bool,
    pub(crate) secret: Option<String>,
    /// Default: the name of the service.
    pub(crate) name: Option<ServerName<'static>>,
    pub(crate) sends_name: bool,
    /// Longest chain; with `verify` only.
    pub(crate) depth: Option<usize>,
    pub(crate) versions: Versions,
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
        let Self { verify, secret, name, sends_name, depth, versions } = self;
        // The Secret is in this namespace, with or without its prefix.
        let secret = secret.as_ref().map(|secret| secret.split_once('/').map_or(&**secret, |(_, name)| name));
        let mut parts = Vec::new();
        parts.extend(secret.map(|secret| format!("secret={secret}")));
        parts.extend(verify.then(|| "verify".to_owned()));
        parts.extend(depth.filter(|_| *verify).map(|depth| format!("depth={depth}")));
        parts.extend(name.as_ref().map(|name| format!("name={}", name.to_str())));
        parts.extend(match versions {
            Versions::Tls12And13 => None,
            Versions::Tls12 => Some("version=1.2".to_owned()),
            Versions::Tls13 => Some("version=1.3".to_owned()),
        });
        parts.extend(sends_name.then(|| "sni".to_owned()));
        parts.join(",")
    }
}
