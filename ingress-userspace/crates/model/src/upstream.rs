//! Upstreams: the pods behind one port of one service.

use std::{borrow::Borrow, fmt, net::SocketAddr, sync::Arc};

use rustls_pki_types::{DnsName, ServerName};

use super::{Authorities, Certificate, HealthPolicy, Versions};

/// Name of an upstream, stable over its life: `namespace/service:port`, with a suffix that distinguishes it from others
/// of the same port.
///
/// Health, counters and TLS connectors carry over between snapshots under this key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UpstreamKey(Arc<str>);

/// Endpoints of one key, and the policy for connections to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upstream {
    /// Protocol of the endpoints.
    pub protocol: Protocol,
    /// TLS policy, if the protocol uses TLS. With `None`, any certificate is accepted, no client certificate is sent,
    /// and neither is a server name.
    pub tls: Option<Arc<UpstreamTls>>,
    /// Health policy; `None` is the default.
    pub health_policy: Option<Arc<HealthPolicy>>,
    /// PROXY protocol version at the beginning of connections, if used.
    pub proxy_header: Option<ProxyVersion>,
    /// Endpoints sorted by address, without duplicates; an empty list answers 503.
    pub endpoints: Vec<Endpoint>,
}

/// Protocol between proxy and endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// HTTP/1.1 in the clear.
    #[default]
    Http1,
    /// HTTP/2 in the clear, by prior knowledge (RFC 9113, 3.3).
    H2c,
    /// HTTP/1.1 over TLS.
    Https,
    /// HTTP/2 over TLS (RFC 9113, 3.2).
    H2,
}

/// TLS policy for the endpoints of an upstream. Connections with different policies are never shared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamTls {
    /// Verification of the endpoint's certificate. `None` accepts any.
    pub verify: Option<Verify>,
    /// Client certificate for endpoints that request one.
    pub certificate: Option<Arc<Certificate>>,
    /// Server name to send (RFC 6066, 3), unless it is an address.
    pub server_name: Option<ServerName<'static>>,
    /// Versions to offer. Default both.
    pub versions: Versions,
}

/// Trust anchors and expected names of a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Verify {
    pub authorities: Arc<Authorities>,
    /// The certificate must match one of them. An empty list matches none.
    pub names: Vec<CertificateName>,
    /// Maximum number of certificates between the endpoint's and an authority's. Default any that is safe to verify.
    pub depth: Option<usize>,
}

/// Expected name among the alternative names of a certificate's subject (RFC 5280, 4.2.1.6).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CertificateName {
    /// DNS name or address. A wildcard of the certificate matches it, too.
    Server(ServerName<'static>),
    /// `*.` before this DNS name. The certificate has the same wildcard, or a DNS name with exactly one label before it.
    Wildcard(DnsName<'static>),
    /// URI, compared byte by byte.
    Uri(Box<str>),
}

/// PROXY protocol version that tells an endpoint the client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProxyVersion {
    /// Text format.
    V1,
    /// Binary format.
    V2,
}

/// Address of one pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    pub address: SocketAddr,
}

impl UpstreamKey {
    #[must_use]
    pub fn new(namespace: &str, service: &str, port: &str) -> Self {
        Self(format!("{namespace}/{service}:{port}").into())
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the namespace of the service, or an empty name for an upstream without a service.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// Returns the service and its port, or `None` for an upstream without a service.
    #[must_use]
    pub fn service(&self) -> Option<(&str, &str)> {
        let (namespace, rest) = self.0.split_once('/')?;
        let (service, port) = rest.split_once(':')?;
        let port = port.split_once('+').map_or(port, |(port, _)| port);
        (!namespace.is_empty()).then_some((service, port))
    }
}

impl Borrow<str> for UpstreamKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UpstreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http1 => "http/1.1",
            Self::H2c => "h2c",
            Self::Https => "https",
            Self::H2 => "h2",
        })
    }
}

impl Protocol {
    #[must_use]
    pub fn is_over_tls(self) -> bool {
        match self {
            Self::Http1 | Self::H2c => false,
            Self::Https | Self::H2 => true,
        }
    }
}

impl fmt::Display for ProxyVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
        })
    }
}

impl Verify {
    /// Returns the demand for a single DNS name or address.
    #[must_use]
    pub fn server(authorities: Arc<Authorities>, name: ServerName<'static>) -> Self {
        Self { authorities, names: vec![CertificateName::Server(name)], depth: None }
    }
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(name) => f.write_str(&name.to_str()),
            Self::Wildcard(parent) => write!(f, "*.{}", parent.as_ref()),
            Self::Uri(uri) => f.write_str(uri),
        }
    }
}

impl fmt::Display for UpstreamTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verify, certificate, server_name, versions } = self;
        f.write_str("tls(")?;
        if let Some(Verify { authorities, names, depth }) = verify {
            let names: Vec<_> = names.iter().map(ToString::to_string).collect();
            write!(f, "verify={} by {} ", names.join("|"), authorities.origin)?;
            if let Some(depth) = depth {
                write!(f, "depth={depth} ")?;
            }
        }
        if let Some(certificate) = certificate {
            write!(f, "certificate={} ", certificate.origin)?;
        }
        match versions {
            Versions::Tls12And13 => {}
            Versions::Tls12 => f.write_str("version=1.2 ")?,
            Versions::Tls13 => f.write_str("version=1.3 ")?,
        }
        write!(f, "server-name={})", server_name.as_ref().map_or("none".into(), ServerName::to_str))
    }
}
