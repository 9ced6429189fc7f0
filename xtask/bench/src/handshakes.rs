//! A TLS connection for each request, with or without resumption as the case demands: wrk resumes whenever it can, and
//! h2load never.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context as _, ensure};
use rustls::{ClientConfig, HandshakeKind, client::Resumption, pki_types::ServerName};
use tokio::{
    net::TcpStream,
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_rustls::TlsConnector;

use super::{
    exchange::exchange,
    load::{Amount, Sample},
};
use ingress_lab::client::Trust;

/// Number of clients, each with one connection at a time.
const CLIENTS: usize = 64;
/// Longest time for a connection with its request.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resume {
    Never,
    /// All connections except the first of each client are resumed; the first counts, too.
    Always,
}

/// Remaining requests of all clients together.
#[derive(Clone)]
enum Left {
    Until(Instant),
    Times(Arc<AtomicU32>),
}

/// A client with the tickets that it has received.
struct Client {
    address: SocketAddr,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
    request: Vec<u8>,
    answer: Vec<u8>,
}

/// Sends this load to `address`; a handshake of the other kind is an error.
pub(super) async fn run(
    address: SocketAddr,
    name: &'static str,
    resume: Resume,
    trust: &Trust,
    amount: Amount,
) -> anyhow::Result<Sample> {
    let begun = Instant::now();
    let left = match amount {
        Amount::For(length) => Left::Until(begun + length),
        Amount::Times(times) => Left::Times(Arc::new(AtomicU32::new(times))),
    };
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(Client::new(address, name, resume, trust)?.run(left.clone(), resume));
    }
    let mut sample = Sample { requests: 0, errors: 0, seconds: 0.0 };
    let mut reason = None;
    while let Some(done) = clients.join_next().await {
        let Done { requests, errors, first_error } = done?;
        sample.requests += requests;
        sample.errors += errors;
        reason = reason.or(first_error);
    }
    if let Some(reason) = reason {
        eprintln!("a TLS connection to {address} failed: {reason:#}");
    }
    sample.seconds = begun.elapsed().as_secs_f64();
    Ok(sample)
}

#[derive(Default)]
struct Done {
    requests: u64,
    errors: u64,
    first_error: Option<anyhow::Error>,
}

// === impl Resume ===

impl Resume {
    fn expects(self, kind: HandshakeKind, is_first: bool) -> bool {
        let expected = match self {
            Self::Always if !is_first => HandshakeKind::Resumed,
            Self::Always | Self::Never => HandshakeKind::Full,
        };
        kind == expected
    }
}

// === impl Left ===

impl Left {
    /// Returns `true` if another request is due, and assigns it to the caller.
    fn take(&self) -> bool {
        match self {
            Self::Until(end) => Instant::now() < *end,
            Self::Times(left) => left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok(),
        }
    }
}

// === impl Client ===

impl Client {
    fn new(address: SocketAddr, name: &'static str, resume: Resume, trust: &Trust) -> anyhow::Result<Self> {
        // Each client keeps its own tickets, so that it resumes only its own sessions and no ticket is used twice.
        let mut config = Arc::unwrap_or_clone(trust.config(b"http/1.1")?);
        if resume == Resume::Never {
            config.resumption = Resumption::disabled();
        }
        Ok(Self {
            address,
            name: ServerName::try_from(name).context("unusable server name")?,
            config: Arc::new(config),
            request: format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n").into_bytes(),
            answer: Vec::with_capacity(4096),
        })
    }

    async fn run(mut self, left: Left, resume: Resume) -> Done {
        let (mut done, mut is_first) = (Done::default(), true);
        while left.take() {
            let asked = timeout(PATIENCE, self.ask()).await.context("no answer in time").flatten();
            let asked = asked.and_then(|kind| {
                ensure!(resume.expects(kind, is_first), "a handshake that is not what it should be: {kind:?}");
                Ok(())
            });
            match asked {
                Ok(()) => done.requests += 1,
                Err(error) => {
                    done.errors += 1;
                    done.first_error.get_or_insert(error);
                }
            }
            is_first = false;
        }
        done
    }

    async fn ask(&mut self) -> anyhow::Result<HandshakeKind> {
        let Self { address, name, config, request, answer } = self;
        let stream = TcpStream::connect(*address).await.context("cannot connect")?;
        stream.set_nodelay(true).context("cannot set TCP_NODELAY")?;
        let connecting = TlsConnector::from(Arc::clone(config)).connect(name.clone(), stream);
        let mut stream = connecting.await.context("the handshake failed")?;
        let status = exchange(&mut stream, request, answer).await?;
        ensure!(status == 200, "answered {status}");
        stream.get_ref().1.handshake_kind().context("a connection without a handshake")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resumption_is_expected_after_the_first_handshake() {
        for (resume, kind, is_first, expect) in [
            (Resume::Never, HandshakeKind::Full, true, true),
            (Resume::Never, HandshakeKind::Full, false, true),
            (Resume::Never, HandshakeKind::Resumed, false, false),
            (Resume::Never, HandshakeKind::FullWithHelloRetryRequest, false, false),
            (Resume::Always, HandshakeKind::Full, true, true),
            (Resume::Always, HandshakeKind::Full, false, false),
            (Resume::Always, HandshakeKind::Resumed, false, true),
        ] {
            assert_eq!(resume.expects(kind, is_first), expect, "{resume:?} {kind:?} {is_first}");
        }
    }
}
