//! Upstreams: the pods behind one port of one service.

use std::{fmt, net::SocketAddr, sync::Arc};

use rustls_pki_types::ServerName;

use super::{Authorities, Certificate, Upkeep};

/// Name of an upstream, stable over its life: `namespace/service:port`, and behind the port what sets it apart from
/// others of that port.
///
/// Health, counts and what makes TLS connections carry over from snapshot to snapshot under this key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UpstreamKey(Arc<str>);

/// Where requests for one key go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upstream {
    /// What its endpoints speak.
    pub protocol: Protocol,
    /// What holds for TLS with them, where their protocol is over TLS. `None`: any certificate is taken, none is shown,
    /// and no server name is sent.
    pub tls: Option<Arc<UpstreamTls>>,
    /// `None` is the default.
    pub upkeep: Option<Arc<Upkeep>>,
    /// The version of the introduction that connections begin with, if they do.
    pub introduction: Option<ProxyVersion>,
    /// Sorted by address, without duplicates; empty answers 503.
    pub endpoints: Vec<Endpoint>,
}

/// What is spoken to the endpoints of an upstream.
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

/// What holds for TLS with the endpoints of an upstream. Connections under different policies are never shared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamTls {
    /// Whom their certificate must come from, and whose it must be. `None` takes any.
    pub verify: Option<Verify>,
    /// Shown to endpoints that ask for one.
    pub certificate: Option<Arc<Certificate>>,
    /// Sent as server name (RFC 6066, 3), unless it is an address.
    pub server_name: Option<ServerName<'static>>,
}

/// Whose certificate is believed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Verify {
    pub authorities: Arc<Authorities>,
    pub name: ServerName<'static>,
}

/// Version of the PROXY protocol in which an endpoint is told whose a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProxyVersion {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// One pod's address.
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

    /// The service and its port; `None` if it is of none.
    #[must_use]
    pub fn service(&self) -> Option<(&str, &str)> {
        let (namespace, rest) = self.0.split_once('/')?;
        let (service, port) = rest.split_once(':')?;
        let port = port.split_once('+').map_or(port, |(port, _)| port);
        (!namespace.is_empty()).then_some((service, port))
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

impl fmt::Display for UpstreamTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verify, certificate, server_name } = self;
        f.write_str("tls(")?;
        if let Some(Verify { authorities, name }) = verify {
            write!(f, "verify={} by {} ", name.to_str(), authorities.origin)?;
        }
        if let Some(certificate) = certificate {
            write!(f, "certificate={} ", certificate.origin)?;
        }
        write!(f, "server-name={})", server_name.as_ref().map_or("none".into(), ServerName::to_str))
    }
}
