//! TLS towards endpoints (ADR 0011). It chooses no endpoint and opens no TCP connection.
//!
//! Certificates are not verified: pods rarely have one that names them, and nothing in an Ingress says whom to trust, so this
//! keeps eavesdroppers out, not impostors. That the endpoint holds the key of the certificate it shows is checked all the
//! same. No server name is sent, as ingress-nginx sends none by default, and no ALPN: what is spoken is HTTP/1.1.

use std::{io, net::SocketAddr, sync::Arc};

use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

/// Makes TLS connections; remembers the sessions of its endpoints, 256 at most, and resumes them.
pub(super) struct Connector(TlsConnector);

impl Connector {
    pub(super) fn new() -> Result<Self, rustls::Error> {
        let provider = crate::proxy::tls::provider();
        let verifier = Arc::new(AnyCertificate(Arc::clone(&provider)));
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        config.enable_sni = false;
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    pub(super) async fn connect(&self, stream: TcpStream, address: SocketAddr) -> io::Result<TlsStream<TcpStream>> {
        let name = session_name(address).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        self.0.connect(name, stream).await
    }
}

/// Sessions are kept by server name. This one is never sent; it tells the ports of an address apart, which belong to different
/// servers. `invalid` is nobody's (RFC 6761, 6.4).
fn session_name(address: SocketAddr) -> Result<ServerName<'static>, rustls_pki_types::InvalidDnsNameError> {
    let host = address.ip().to_string().replace([':', '.'], "-");
    ServerName::try_from(format!("ip-{host}-port-{}.invalid", address.port()))
}

/// Takes any certificate, but only from who holds its key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_have_sessions_of_their_own() {
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
