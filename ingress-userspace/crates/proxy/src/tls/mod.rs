//! TLS towards clients: versions, and the certificate for a server name, taken from the current snapshot.

pub(crate) mod certificates;
pub(crate) mod client_certificates;
mod http3;
pub(crate) mod provider;
pub(crate) mod ticket_keys;
pub(crate) mod tickets;

use std::{fmt, io, net::SocketAddr, sync::Arc};

use arc_swap::ArcSwap;
use rustls::{
    ServerConfig, SupportedProtocolVersion,
    crypto::CryptoProvider,
    server::{ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert},
    sign::{CertifiedKey, SingleCertAndKey},
};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use ingress_model::{ClientCertificates, Handshakes, Settings};

use crate::{
    snapshot::Snapshot,
    tls::{
        client_certificates::{EnforcingVerifier, PossessionVerifier},
        provider::provider,
        tickets::Tickets,
    },
};

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot make the fallback certificate")]
    Fallback(#[source] rcgen::Error),
    #[error("cannot set up TLS")]
    Config(#[source] rustls::Error),
}

/// The TLS configurations of every HTTPS listener of the node. They differ only in TLS versions and in the protocols
/// offered. They last as long as the process; handshakes look other settings up in the snapshot.
pub(crate) struct ServerConfigs {
    /// Configurations with and without HTTP/2, for each of [`VERSIONS`].
    configs: [[Arc<ServerConfig>; 2]; VERSIONS.len()],
    resolver: Arc<Resolver>,
    /// The configuration of HTTP/3.
    http3: ServerConfig,
}

/// TLS versions, in the order of [`ingress_model::Versions`].
const VERSIONS: [&[&SupportedProtocolVersion]; 3] =
    [&[&rustls::version::TLS13, &rustls::version::TLS12], &[&rustls::version::TLS12], &[&rustls::version::TLS13]];

/// The fatal alert `unrecognized_name` (RFC 6066, 3) in a record of its own, as sent by a server before it has
/// negotiated anything. rustls has no way to send it.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

impl ServerConfigs {
    pub(crate) fn new(snapshot: Arc<ArcSwap<Snapshot>>) -> Result<Self, TlsError> {
        let fallback = Arc::new(fallback(&provider())?);
        let tickets = Arc::new(Tickets::new(Arc::clone(&snapshot)).map_err(TlsError::Config)?);
        let resolver = Arc::new(Resolver { snapshot, fallback });
        let config = |versions| {
            let both = server_config(versions, &resolver, &tickets)?;
            let mut http1 = both.clone();
            http1.alpn_protocols = vec![b"http/1.1".to_vec()];
            Ok([Arc::new(both), Arc::new(http1)])
        };
        let [any, tls12, tls13] = VERSIONS.map(config);
        let http3 = http3::config(&resolver, &tickets)?;
        Ok(Self { configs: [any?, tls12?, tls13?], resolver, http3 })
    }

    /// Returns the configuration for a handshake that requests a client certificate. It is built for each handshake,
    /// which is cheap beside the handshake itself. Sessions are not resumed: a session that began without a certificate
    /// request, or without a certificate, would continue without one.
    pub(crate) fn requesting_certificate(
        &self,
        policy: &ClientCertificates,
        settings: &Settings,
    ) -> Result<Arc<ServerConfig>, rustls::Error> {
        let provider = provider();
        let verifier = Arc::new(PossessionVerifier::for_policy(policy, Arc::clone(&provider)));
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(VERSIONS[settings.handshakes.versions as usize])?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::clone(&self.resolver) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = self.of(settings).alpn_protocols.clone();
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.max_early_data_size = 0;
        Ok(Arc::new(config))
    }

    /// Returns the configuration for a handshake with the certificate `key` of a Gateway's listener. It is built for
    /// each handshake, like the one that requests a client certificate. Tickets are bound to the server name. Without
    /// `is_http`, no protocol is negotiated (RFC 7301), because only the pod knows which one it speaks. `clients` is
    /// enforced in the handshake.
    pub(crate) fn with_key(
        &self,
        key: Arc<CertifiedKey>,
        is_http: bool,
        clients: Option<&Arc<ClientCertificates>>,
        settings: &Settings,
    ) -> Result<Arc<ServerConfig>, rustls::Error> {
        let shared = self.of(settings);
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS[settings.handshakes.versions as usize])?;
        let builder = match clients {
            Some(policy) => {
                builder.with_client_cert_verifier(Arc::new(EnforcingVerifier::for_policy(policy, provider())))
            }
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
        if is_http {
            config.alpn_protocols.clone_from(&shared.alpn_protocols);
        }
        // A resumed session would continue without a certificate, or with one that is not valid any more.
        if clients.is_none() {
            config.ticketer = Arc::clone(&shared.ticketer);
        }
        config.send_tls13_tickets = if clients.is_none() { shared.send_tls13_tickets } else { 0 };
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.max_early_data_size = 0;
        Ok(Arc::new(config))
    }

    /// Returns the configuration of HTTP/3, which has TLS 1.3 alone.
    pub(crate) fn http3(&self) -> ServerConfig {
        self.http3.clone()
    }

    /// Returns the configuration of HTTP/3 for connections to `local`, an address of Gateways in canonical form.
    pub(crate) fn http3_at(&self, local: SocketAddr) -> ServerConfig {
        let mut config = self.http3.clone();
        config.cert_resolver = Arc::new(http3::ListenerResolver { resolver: Arc::clone(&self.resolver), local });
        config
    }

    pub(crate) fn of(&self, settings: &Settings) -> &Arc<ServerConfig> {
        let [both, http1] = &self.configs[settings.handshakes.versions as usize];
        if settings.http2 { both } else { http1 }
    }
}

/// Returns whether a client that names `server_name` is to be rejected. The name is in lower case, and empty for none.
pub(crate) fn is_rejected(server_name: &str, snapshot: &Snapshot) -> bool {
    let Handshakes { rejects_unknown_names, .. } = snapshot.settings.handshakes;
    let is_named = || snapshot.certificates.names(server_name) || snapshot.routes.names(server_name);
    rejects_unknown_names && !is_named()
}

/// Rejects a client with an unknown server name.
pub(crate) async fn reject(stream: &mut (impl AsyncWrite + Unpin)) -> io::Error {
    let accepted = async {
        stream.write_all(&UNRECOGNIZED_NAME).await?;
        stream.shutdown().await
    };
    accepted.await.err().unwrap_or_else(|| io::Error::other("the server name is not known"))
}

/// Builds the common part of the configurations.
///
/// A single ticketer serves all workers, so that a session begun with one is resumed by another. Sessions live in tickets
/// alone: there is no state per client. Each handshake issues one ticket: a second one costs a tenth of a resumed
/// handshake, and clients that want more get one with each resumption. There is no early data, which can be replayed
/// (RFC 8446, 8).
fn server_config(
    versions: &[&'static SupportedProtocolVersion],
    resolver: &Arc<Resolver>,
    tickets: &Arc<Tickets>,
) -> Result<ServerConfig, TlsError> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .map_err(TlsError::Config)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::clone(resolver) as Arc<dyn ResolvesServerCert>);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.ticketer = Arc::clone(tickets) as Arc<dyn ProducesTickets>;
    config.send_tls13_tickets = 1;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.max_early_data_size = 0;
    Ok(config)
}

/// Generates a self-signed certificate for names without one. The handshake succeeds and the client sees why it should
/// not trust the certificate, rather than an alert without a reason.
fn fallback(provider: &CryptoProvider) -> Result<CertifiedKey, TlsError> {
    let mut params = rcgen::CertificateParams::new(Vec::new()).map_err(TlsError::Fallback)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, "xdp-ingress fallback");
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(TlsError::Fallback)?;
    let certificate = params.self_signed(&key).map_err(TlsError::Fallback)?;
    let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let key = provider.key_provider.load_private_key(der).map_err(TlsError::Config)?;
    Ok(CertifiedKey::new(vec![certificate.der().clone()], key))
}

struct Resolver {
    snapshot: Arc<ArcSwap<Snapshot>>,
    fallback: Arc<CertifiedKey>,
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let snapshot = self.snapshot.load();
        let found = match hello.server_name() {
            Some(name) if name.bytes().any(|byte| byte.is_ascii_uppercase()) => {
                snapshot.certificates.find(Some(&name.to_ascii_lowercase()))
            }
            name => snapshot.certificates.find(name),
        };
        Some(found.unwrap_or_else(|| Arc::clone(&self.fallback)))
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}
