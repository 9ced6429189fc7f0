//! The view of a new connection to a peer: the pod that responds, or the certificate that is shown.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use rustls::{ClientConfig, ClientConnection, client::Resumption, pki_types::ServerName};

use super::Pod;
use ingress_lab::{client::Trust, echo::POD_HEADER, head::FIELDS_MAX};

/// Longest wait for a part of a response.
const SILENCE: Duration = Duration::from_secs(20);

/// The response to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Pod(Pod),
    /// 404: the peer does not know the host.
    Nothing,
    /// No response, or another one.
    Failed,
}

/// Requests `/` of a host over a new connection.
pub(super) fn pod(address: SocketAddr, host: &str) -> Found {
    exchange(address, host).map_or(Found::Failed, |answer| Found::of(&answer))
}

fn exchange(address: SocketAddr, host: &str) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.write_all(format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

/// Returns a client that resumes no session, so that it always gets the current certificate.
pub(super) fn client(trust: &Trust) -> anyhow::Result<Arc<ClientConfig>> {
    let mut config = Arc::unwrap_or_clone(trust.config(b"http/1.1")?);
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Returns the certificate that a host shows, as DER.
///
/// # Errors
/// Fails if the handshake fails, for example because no trusted authority has signed the certificate.
pub(super) fn certificate(address: SocketAddr, host: &str, client: &Arc<ClientConfig>) -> anyhow::Result<Vec<u8>> {
    let mut connection = ClientConnection::new(Arc::clone(client), ServerName::try_from(host.to_owned())?)?;
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(SILENCE))?;
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).context("the handshake failed")?;
    }
    let shown = connection.peer_certificates().and_then(<[_]>::first).context("no certificate was shown")?;
    Ok(shown.to_vec())
}

// === impl Found ===

impl Found {
    fn of(answer: &[u8]) -> Self {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        let Ok(httparse::Status::Complete(_)) = response.parse(answer) else { return Self::Failed };
        let pod = response.headers.iter().find(|field| field.name.eq_ignore_ascii_case(POD_HEADER));
        let name = pod.and_then(|field| std::str::from_utf8(field.value).ok());
        match (response.code, name.and_then(Pod::named)) {
            (Some(200), Some(pod)) => Self::Pod(pod),
            (Some(404), None) => Self::Nothing,
            _ => Self::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_names_its_pod() {
        for (answer, expect) in [
            ("HTTP/1.1 200 OK\r\nServer: nginx\r\nX-Pod: a\r\n\r\n{}", Found::Pod(Pod::A)),
            ("HTTP/1.1 200 OK\r\nx-pod: b\r\n\r\n", Found::Pod(Pod::B)),
            ("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", Found::Nothing),
            ("HTTP/1.1 503 No\r\n\r\n", Found::Failed),
            ("HTTP/1.1 200 OK\r\n\r\n", Found::Failed),
            ("HTTP/1.1 200 OK\r\nx-pod: a\r\n", Found::Failed),
            ("", Found::Failed),
        ] {
            assert_eq!(Found::of(answer.as_bytes()), expect, "{answer:?}");
        }
    }
}
