//! TLS of HTTP/3: TLS 1.3 with the certificates of the snapshot, for the hosts that HTTP/3 serves.

use std::{fmt, net::SocketAddr, sync::Arc};

use rustls::{
    ServerConfig,
    server::{ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert},
    sign::CertifiedKey,
};

use super::{Resolver, TlsError, is_rejected, provider::provider, tickets::Tickets};

/// Separates the tickets of QUIC from those of TCP, which resume separately (RFC 9001, 4.5).
const LABEL: &[u8] = b"quic";

/// Returns the configuration. `ingress_quic` adds the application protocol.
pub(super) fn config(resolver: &Arc<Resolver>, tickets: &Arc<Tickets>) -> Result<ServerConfig, TlsError> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsError::Config)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Http3Resolver(Arc::clone(resolver))));
    config.ticketer = Arc::new(QuicTickets(Arc::clone(tickets)));
    config.send_tls13_tickets = 1;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.max_early_data_size = 0;
    Ok(config)
}

/// Finds certificates, and refuses names that HTTP/3 does not serve.
struct Http3Resolver(Arc<Resolver>);

impl ResolvesServerCert for Http3Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().unwrap_or_default().to_ascii_lowercase();
        {
            let snapshot = self.0.snapshot.load();
            if !snapshot.serves_http3(snapshot.routes.host(&name)) || is_rejected(&name, &snapshot) {
                return None;
            }
        }
        self.0.resolve(hello)
    }
}

impl fmt::Debug for Http3Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http3Resolver").finish_non_exhaustive()
    }
}

/// Finds the certificates of the listeners at an address of Gateways.
pub(super) struct ListenerResolver {
    pub(super) resolver: Arc<Resolver>,
    pub(super) local: SocketAddr,
}

impl ResolvesServerCert for ListenerResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().unwrap_or_default().to_ascii_lowercase();
        let snapshot = self.resolver.snapshot.load();
        let bound = snapshot.listeners.at(self.local)?;
        let Some(listener) = bound.of_server_name(&name).and_then(|name| snapshot.listeners.get(name)) else {
            let is_of_ingresses = bound.shares_with_ingresses();
            drop(snapshot);
            return if is_of_ingresses { Http3Resolver(Arc::clone(&self.resolver)).resolve(hello) } else { None };
        };
        if !listener.takes_http3() {
            return None;
        }
        // Without a certificate there is no listener to answer.
        snapshot.certificates.among(&listener.certificates, &name)
    }
}

impl fmt::Debug for ListenerResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerResolver").field("local", &self.local).finish_non_exhaustive()
    }
}

/// The tickets of QUIC: those of the node, with a label inside.
#[derive(Debug)]
struct QuicTickets(Arc<Tickets>);

impl ProducesTickets for QuicTickets {
    fn enabled(&self) -> bool {
        self.0.enabled()
    }

    fn lifetime(&self) -> u32 {
        self.0.lifetime()
    }

    fn encrypt(&self, state: &[u8]) -> Option<Vec<u8>> {
        self.0.encrypt(&[LABEL, state].concat())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.0.decrypt(ticket)?.strip_prefix(LABEL).map(<[u8]>::to_vec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_of_quic_and_tcp_do_not_open_as_each_other() {
        let tcp = Arc::new(Tickets::new(Arc::default()).expect("randomness"));
        let quic = QuicTickets(Arc::clone(&tcp));
        let sealed = quic.encrypt(b"state").expect("sealed");
        assert_eq!(quic.decrypt(&sealed).as_deref(), Some(&b"state"[..]));
        assert_ne!(tcp.decrypt(&sealed).as_deref(), Some(&b"state"[..]), "rustls cannot read it");
        assert_eq!(quic.decrypt(&tcp.encrypt(b"state").expect("sealed")), None);
    }
}
