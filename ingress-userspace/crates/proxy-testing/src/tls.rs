//! Clients that speak TLS and HTTP/2.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http_body::Body;
use http_body_util::Full;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, RootCertStore, SupportedProtocolVersion,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::Proxy;

/// Accepts any certificate and keeps the OCSP response beside it; signatures are still checked.
#[derive(Debug)]
pub struct AnyCertificate {
    provider: Arc<CryptoProvider>,
    staples: Mutex<Vec<Vec<u8>>>,
}

impl AnyCertificate {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { provider: Arc::new(aws_lc_rs::default_provider()), staples: Mutex::default() })
    }

    /// Takes the OCSP response of the latest handshake; empty if the handshake had none.
    pub fn staple(&self) -> Option<Vec<u8>> {
        self.staples.lock().expect("unpoisoned").pop()
    }
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.staples.lock().expect("unpoisoned").push(ocsp.to_vec());
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

pub fn config(alpn: &[&str]) -> Arc<ClientConfig> {
    let mut config = config_of(rustls::ALL_VERSIONS, None);
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// A client configuration, with a client certificate if one is given.
pub fn config_of(
    versions: &[&'static SupportedProtocolVersion],
    own: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
) -> ClientConfig {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("versions")
        .with_root_certificates(RootCertStore::empty());
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).expect("a certificate"),
    };
    config.dangerous().set_certificate_verifier(AnyCertificate::new());
    config
}

pub async fn connect(proxy: &Proxy, config: &Arc<ClientConfig>, name: &str) -> TlsStream<TcpStream> {
    handshake(TcpStream::connect(proxy.https).await.expect("connected"), config, name).await
}

pub async fn handshake(stream: TcpStream, config: &Arc<ClientConfig>, name: &str) -> TlsStream<TcpStream> {
    let name = ServerName::try_from(name.to_owned()).expect("valid name");
    TlsConnector::from(Arc::clone(config)).connect(name, stream).await.expect("handshake")
}

pub async fn http2(proxy: &Proxy) -> SendRequest<Full<Bytes>> {
    http2_with(proxy, Builder::new(TokioExecutor::new())).await
}

pub async fn http2_with<B>(proxy: &Proxy, builder: Builder<TokioExecutor>) -> SendRequest<B>
where
    B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let stream = connect(proxy, &config(&["h2"]), "a.test").await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (client, connection) = builder.handshake(TokioIo::new(stream)).await.expect("handshake");
    tokio::spawn(async move { drop(connection.await) });
    client
}
