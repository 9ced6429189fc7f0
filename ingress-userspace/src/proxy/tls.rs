//! TLS towards clients: versions, and the certificate for a server name, read from the current snapshot.

use std::{fmt, io, sync::Arc};

use arc_swap::ArcSwap;
use rustls::{
    ServerConfig, SupportedProtocolVersion,
    crypto::{CryptoProvider, aws_lc_rs},
    server::{ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::model::{ClientCertificates, Handshakes, Settings};

use super::{client_certificates::Asking, snapshot::Snapshot, tickets::Tickets};

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot make the fallback certificate")]
    Fallback(#[source] rcgen::Error),
    #[error("cannot set up TLS")]
    Config(#[source] rustls::Error),
}

/// The one crypto provider of the process, named rather than taken from a global default.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// The configurations of every HTTPS listener of the node: versions of TLS, and which protocols are offered, are all
/// they differ in. They last as long as the process, and what else the settings say is looked up in each handshake.
pub(super) struct ServerConfigs {
    /// With HTTP/2, and without, for each of [`VERSIONS`].
    configs: [[Arc<ServerConfig>; 2]; VERSIONS.len()],
    resolver: Arc<Resolver>,
}

/// In the order of [`crate::model::Versions`].
const VERSIONS: [&[&SupportedProtocolVersion]; 3] =
    [&[&rustls::version::TLS13, &rustls::version::TLS12], &[&rustls::version::TLS12], &[&rustls::version::TLS13]];

/// The fatal alert `unrecognized_name` (RFC 6066, 3) in a record of its own, as a server sends it that has agreed on
/// nothing yet. rustls has no way to say it.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

impl ServerConfigs {
    pub(super) fn new(snapshot: Arc<ArcSwap<Snapshot>>) -> Result<Self, TlsError> {
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
        Ok(Self { configs: [any?, tls12?, tls13?], resolver })
    }

    /// The configuration for a handshake that asks for a certificate. Made for each, which is little beside the
    /// handshake. No session is resumed: one that began before a certificate was asked for, or shown, would go on
    /// without.
    pub(super) fn asking(
        &self,
        policy: &ClientCertificates,
        settings: &Settings,
    ) -> Result<Arc<ServerConfig>, rustls::Error> {
        let provider = provider();
        let verifier = Arc::new(Asking::for_policy(policy, Arc::clone(&provider)));
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

    pub(super) fn of(&self, settings: &Settings) -> &Arc<ServerConfig> {
        let [both, http1] = &self.configs[settings.handshakes.versions as usize];
        if settings.http2 { both } else { http1 }
    }
}

/// Whether a client that names `server_name`, in lower case and empty for none, is to be turned away.
pub(super) fn is_rejected(server_name: &str, snapshot: &Snapshot) -> bool {
    let Handshakes { rejects_unknown_names, .. } = snapshot.settings.handshakes;
    let is_named = || snapshot.certificates.names(server_name) || snapshot.routes.names(server_name);
    rejects_unknown_names && !is_named()
}

/// Turns a client away that names no host of ours.
pub(super) async fn reject(stream: &mut (impl AsyncWrite + Unpin)) -> io::Error {
    let told = async {
        stream.write_all(&UNRECOGNIZED_NAME).await?;
        stream.shutdown().await
    };
    told.await.err().unwrap_or_else(|| io::Error::other("the server name is not known"))
}

/// What they have in common.
///
/// One ticketer, so that a session begun with one worker is resumed by another. Sessions live in tickets alone: nothing
/// is stored per client. One ticket per handshake: a second one costs a tenth of a resumed handshake, and clients that
/// want more get one with each resumption. No early data: it can be replayed (RFC 8446, 8).
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

/// A self-signed certificate for names that have none: the handshake succeeds and the client sees why it should not
/// trust it, rather than an alert that names no reason.
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
