//! TLS to endpoints (ADR 0011). It chooses no endpoint and opens no TCP connection.
//!
//! Without a policy, certificates are not verified: pods rarely have one for their name, and an Ingress has no field
//! for trust anchors. This protects against eavesdroppers, not against impostors. The endpoint must still prove that it
//! holds the key of its certificate. No server name is sent in this case, the same as the default of ingress-nginx.

use std::{
    fmt, io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use rustls::{
    ClientConfig, SupportedProtocolVersion,
    version::{TLS12, TLS13},
};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use ingress_model::{Protocol, UpstreamTls, Versions};

use super::{BoxError, verifier::Verifier};

/// In the order of [`Versions`].
const VERSIONS: [&[&SupportedProtocolVersion]; 3] = [&[&TLS13, &TLS12], &[&TLS12], &[&TLS13]];

/// Opens TLS connections under one policy. Caches the sessions of its endpoints, 256 at most, and resumes them.
pub struct Connector {
    id: ConnectorId,
    policy: Option<Arc<UpstreamTls>>,
    connector: TlsConnector,
    server_name: Option<ServerName<'static>>,
    /// Whether endpoints must negotiate HTTP/2 by ALPN (RFC 9113, section 3.2). HTTP/1.1 needs no ALPN.
    is_http2: bool,
}

/// The id of a connector, unique within the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ConnectorId(u64);

// === impl Connector ===

impl Connector {
    /// Creates the connector for endpoints with `protocol`.
    ///
    /// # Errors
    /// If a trust anchor is invalid, or if the key of the client certificate is invalid or belongs to another
    /// certificate. Error texts never contain the key.
    pub fn new(protocol: Protocol, policy: Option<&Arc<UpstreamTls>>) -> Result<Self, BoxError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let provider = crate::tls::provider::provider();
        let versions = policy.map_or_else(Versions::default, |policy| policy.versions);
        let expected = policy.and_then(|policy| policy.verify.as_ref());
        let verifier = Verifier::new(expected, Arc::clone(&provider))?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(VERSIONS[versions as usize])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match policy.and_then(|policy| policy.certificate.as_deref()) {
            Some(own) => config.with_client_auth_cert(own.chain.clone(), own.key.clone_key())?,
            None => config.with_no_client_auth(),
        };
        let server_name = policy.and_then(|policy| policy.server_name.clone());
        config.enable_sni = server_name.is_some();
        let is_http2 = protocol == Protocol::H2;
        if is_http2 {
            config.alpn_protocols = vec![b"h2".to_vec()];
        }
        let connector = TlsConnector::from(Arc::new(config));
        Ok(Self {
            id: ConnectorId(NEXT.fetch_add(1, Relaxed)),
            policy: policy.cloned(),
            connector,
            server_name,
            is_http2,
        })
    }

    pub(crate) fn policy(&self) -> Option<&Arc<UpstreamTls>> {
        self.policy.as_ref()
    }

    pub(super) fn id(&self) -> ConnectorId {
        self.id
    }

    pub(super) async fn connect(&self, stream: TcpStream, address: SocketAddr) -> io::Result<TlsStream<TcpStream>> {
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => session_name(address).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?,
        };
        let stream = self.connector.connect(name, stream).await?;
        if self.is_http2 && stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(io::Error::other("the endpoint does not agree to HTTP/2"));
        }
        Ok(stream)
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, policy: _, connector: _, server_name, is_http2 } = self;
        let mut debug = f.debug_struct("Connector");
        debug.field("id", id).field("server_name", server_name).field("is_http2", is_http2).finish_non_exhaustive()
    }
}

/// Returns the server name under which sessions are cached. It is never sent. It distinguishes the ports of an address,
/// which belong to different servers. The domain `invalid` is reserved (RFC 6761, section 6.4).
fn session_name(address: SocketAddr) -> Result<ServerName<'static>, rustls_pki_types::InvalidDnsNameError> {
    let host = address.ip().to_string().replace([':', '.'], "-");
    ServerName::try_from(format!("ip-{host}-port-{}.invalid", address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_endpoint_has_its_own_tls_sessions() {
        let addresses = ["10.0.0.1:80", "10.0.0.1:81", "10.0.0.18:1", "[::1]:80", "[fe80::1:2]:80", "[::]:1"];
        let names: Vec<_> = addresses
            .map(|address| session_name(address.parse().expect("an address")).expect("a valid name"))
            .into_iter()
            .collect();
        for (index, name) in names.iter().enumerate() {
            assert!(!names[..index].contains(name), "{name:?}");
        }
    }
}
