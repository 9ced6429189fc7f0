//! A single attempt at an endpoint: on an idle connection first, and on a new one if that turns out closed. It picks no
//! endpoint and judges none.

use std::time::Duration;

use super::{Connections, Message, Outcome, Payload, Started, SubrequestError, retry};
use crate::upstream::{
    self, ConnectError, ConnectTarget, Connection, ExchangeError, ExchangeFailure, ExchangeLimits, TimeoutPhase,
    Upgraded, h2,
};
use ingress_model::{Protocol, Retry};

/// One attempt: the request, without its body, and the endpoint that is to answer it.
pub(crate) struct Attempt<'a, M> {
    pub(crate) target: ConnectTarget<'a>,
    pub(crate) limits: &'a ExchangeLimits,
    pub(crate) retry: &'a Retry,
    pub(crate) message: &'a M,
}

/// A failed attempt, with the body if another endpoint may be tried.
pub(crate) struct Failed<B> {
    pub(crate) error: SubrequestError,
    pub(super) unsent: Option<B>,
    /// Whether the endpoint closed a reused connection without having seen the request.
    pub(crate) is_unseen: bool,
}

impl<B: Payload> Connections<'_, B> {
    /// Tries one endpoint, with the version of HTTP that `protocol` has. `body` is present until the endpoint has it.
    ///
    /// # Errors
    /// If the endpoint returned no response head.
    pub(crate) async fn attempt<M: Message>(
        &self,
        protocol: Protocol,
        attempt: Attempt<'_, M>,
        body: &mut Option<B>,
    ) -> Result<Outcome<B>, Failed<B>> {
        match protocol {
            Protocol::Http1 | Protocol::Https => {}
            // Boxed so that the common case does not carry its size.
            Protocol::H2c | Protocol::H2 => {
                return Box::pin(self.attempt_http2(attempt, body)).await;
            }
        }
        let Attempt { target, limits, retry, message } = attempt;
        if let Some(kept) = self.pool.idle(target) {
            match exchange(limits, kept, message, body).await {
                Ok(outcome) => return Ok(outcome),
                Err(failure) if retry::is_stale(&failure, message.method(), retry) => *body = failure.unsent,
                Err(failure) => return Err(Failed::of(failure.error, None)),
            }
        }
        let connection = match self.pool.connect(target, limits.connect_timeout).await {
            Ok(connection) => connection,
            Err(error) => return Err(Failed::unconnected(error, retry, body.take())),
        };
        exchange(limits, connection, message, body).await.map_err(|failure| Failed::sent(failure, message, retry))
    }

    /// Tries one HTTP/2 endpoint: on an open connection if there is one, and once more if that turns out closed.
    async fn attempt_http2<M: Message>(
        &self,
        Attempt { target, limits, retry, message }: Attempt<'_, M>,
        body: &mut Option<B>,
    ) -> Result<Outcome<B>, Failed<B>> {
        let write = |out: &mut Vec<u8>| {
            message.write(out);
            if message.takes_trailers() {
                out.extend_from_slice(b"te: trailers\r\n");
            }
        };
        let mut again = true;
        loop {
            let lease = match self.http2.lease(target, limits.connect_timeout).await {
                Ok(lease) => lease,
                Err(error) => return Err(Failed::unconnected(error, retry, body.take())),
            };
            let Some(sent) = body.take() else { return Err(Failed::of(spent(), None)) };
            let failure = match h2::exchange(lease, *limits, message.method(), write, sent).await {
                Ok(response) => return Ok(Outcome::Response(Started::Http2(Box::new(response.map(Box::new))))),
                Err(failure) => failure,
            };
            if !(failure.reused && std::mem::take(&mut again)) {
                return Err(Failed::sent(failure, message, retry));
            }
            if !retry::is_stale(&failure, message.method(), retry) {
                let is_unseen = !failure.written;
                return Err(Failed { is_unseen, ..Failed::of(failure.error, None) });
            }
            *body = failure.unsent;
        }
    }
}

/// Takes the body; the failure returns it if it was not sent.
async fn exchange<B: Payload, M: Message>(
    limits: &ExchangeLimits,
    mut connection: Connection,
    message: &M,
    body: &mut Option<B>,
) -> Result<Outcome<B>, ExchangeFailure<B>> {
    let Some(body) = body.take() else {
        return Err(ExchangeFailure { error: spent(), unsent: None, reused: connection.is_reused(), written: false });
    };
    let Some(accept) = message.accept() else {
        let is_last = connection.has_proxy_header() || message.is_last();
        if is_last {
            connection.end_after_request();
        }
        let write = |out: &mut Vec<u8>| {
            message.write(out);
            // Hop-by-hop fields are named in `Connection` (RFC 9110, section 10.1.4), and a connection for a single
            // request announces its close (RFC 9112, section 9.6).
            let fields: &[u8] = match (is_last, message.takes_trailers()) {
                (true, true) => b"connection: close, te\r\nte: trailers\r\n",
                (true, false) => b"connection: close\r\n",
                (false, true) => b"connection: te\r\nte: trailers\r\n",
                (false, false) => b"",
            };
            out.extend_from_slice(fields);
        };
        let response = upstream::begin(connection, *limits, message.method(), write, body).await?;
        return Ok(Outcome::Response(Started::Http1(response)));
    };
    let upgraded = Box::pin(upstream::upgrade(connection, *limits, accept, |out| message.write(out), body));
    Ok(match upgraded.await? {
        Upgraded::Switched(response) => Outcome::Switched(response),
        Upgraded::Declined(response) => Outcome::Response(Started::Http1(response)),
    })
}

fn spent() -> ExchangeError {
    tracing::error!("an attempt has no body to send, which is a defect; the request fails");
    ExchangeError::Aborted
}

// === impl Failed ===

impl<B: Payload> Failed<B> {
    fn of(error: ExchangeError, unsent: Option<B>) -> Self {
        Self { error: SubrequestError::Exchange(error), unsent, is_unseen: false }
    }

    /// Before a connection is there, the request is not touched.
    fn unconnected(error: ConnectError, retry: &Retry, body: Option<B>) -> Self {
        Self {
            error: SubrequestError::Connect(Box::new(error)),
            unsent: body.filter(|_| retry.error || retry.timeout),
            is_unseen: false,
        }
    }

    /// The attempt took longer than `limit`, and was ended.
    pub(super) fn overdue(limit: Duration) -> Self {
        Self { error: SubrequestError::Deadline(limit), unsent: None, is_unseen: false }
    }

    /// Returns the failure, where an attempt that was [overdue](Self::overdue) is judged by how far it came. `body` is
    /// present unless an endpoint was about to get it, and `has_body` is whether it has bytes.
    #[cold]
    pub(super) fn or_late(self, body: &mut Option<B>, has_body: bool, retry: &Retry) -> Self {
        match self.error {
            SubrequestError::Deadline(limit) => Self::late(body.take(), has_body, limit, retry),
            _ => self,
        }
    }

    fn late(body: Option<B>, has_body: bool, limit: Duration, retry: &Retry) -> Self {
        let timeout = ExchangeError::Timeout { what: TimeoutPhase::Head };
        match body {
            // There was no connection yet.
            Some(body) => Self::of(timeout, Some(body).filter(|_| retry.error || retry.timeout)),
            // The client may have been late with the body, so the endpoint is not blamed.
            None if has_body => Self::overdue(limit),
            None => Self::of(timeout, None),
        }
    }

    fn sent(failure: ExchangeFailure<B>, message: &impl Message, retry: &Retry) -> Self {
        let is_repeated = retry::is_repeated(&failure.error, failure.written, message.method(), retry);
        Self::of(failure.error, failure.unsent.filter(|_| is_repeated))
    }
}
