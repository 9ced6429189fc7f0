//! Sends one health check to one endpoint, over a connection of its own. Other code draws conclusions from the result.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{Method, Response};
use http_body_util::Full;

use super::grpc;
use crate::{
    downstream::proxy_protocol::{Header, ProxyHeader},
    upstream::{
        ConnectTarget, ExchangeLimits, Pool, PoolOptions,
        balance::{CheckResult, Checked},
        h2,
        subrequest::{Attempt, Connections, DEFAULT_RETRY, EitherBody, OwnMessage, SubrequestError, read, within},
        write_header, write_request_line,
    },
};
use ingress_model::{Check, Protocol, Question};

/// Longest response body that is read, in bytes.
const BODY_MAX: usize = 64 * 1024;

/// Runs one check of `checked` and returns its result, within the check's timeout.
pub(super) async fn send(checked: &Checked) -> CheckResult {
    match within(checked.check.timeout, answered(checked)).await {
        Ok(true) => CheckResult::Passed,
        Ok(false) => CheckResult::Failed,
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            tracing::debug!(upstream = %checked.key, endpoint = %checked.address, error, "no response to a check");
            CheckResult::Unanswered
        }
    }
}

/// Returns whether the response passes the check.
async fn answered(checked: &Checked) -> Result<bool, SubrequestError> {
    let Check { question, port, timeout, .. } = &*checked.check;
    let address = port.map_or(checked.address, |port| SocketAddr::new(checked.address.ip(), port));
    // The PROXY protocol header is `LOCAL`, because no client is involved. It is sent only to the endpoint's own port:
    // a separate port for checks does not expect one.
    let version = checked.proxy_header.filter(|_| address == checked.address);
    let proxy_header = version.map(|version| ProxyHeader { version, header: Header::Local });
    let target = ConnectTarget { address, transport: checked.transport(), proxy_header: proxy_header.as_ref() };
    // No connection is reused: each check also tests that a connection can be made.
    let pool = &Pool::new(PoolOptions { idle_per_endpoint: 0, ..PoolOptions::default() });
    let mut text = Vec::new();
    match question {
        Question::Connect => {
            let connected = pool.connect(target, *timeout).await;
            connected.map(|_open| true).map_err(|error| SubrequestError::Connect(Box::new(error)))
        }
        Question::Http { path, host, statuses } => {
            write_request_line(&mut text, &Method::GET, path);
            write_host(&mut text, host.as_deref(), address);
            let message = OwnMessage { method: &Method::GET, text: &text, is_last: true };
            let response = exchange(pool, checked.protocol, target, *timeout, message, Bytes::new()).await?;
            Ok(is_expected(response.status().as_u16(), statuses))
        }
        Question::Grpc { service } => {
            write_request_line(&mut text, &Method::POST, grpc::PATH);
            write_host(&mut text, None, address);
            text.extend_from_slice(b"content-type: application/grpc\r\nte: trailers\r\n");
            let message = OwnMessage { method: &Method::POST, text: &text, is_last: true };
            // gRPC is HTTP/2, whatever the protocol of requests.
            let response = exchange(pool, Protocol::H2, target, *timeout, message, grpc::request(service)).await?;
            let is_ok = response.status().is_success();
            let (parts, body) = response.into_parts();
            let body = read(body, BODY_MAX).await?;
            let trailers = body.trailers().unwrap_or(&parts.headers);
            let is_fine = trailers.get("grpc-status").is_some_and(|status| status == "0");
            Ok(is_ok && is_fine && grpc::is_serving(&body.to_bytes()))
        }
    }
}

async fn exchange(
    pool: &Pool,
    protocol: Protocol,
    target: ConnectTarget<'_>,
    timeout: Duration,
    message: OwnMessage<'_>,
    body: Bytes,
) -> Result<Response<EitherBody<Full<Bytes>>>, SubrequestError> {
    let connections = Connections { pool, http2: &h2::Http2Clients::new(pool.clone()) };
    let limits = ExchangeLimits { connect_timeout: timeout, read_timeout: timeout, ..ExchangeLimits::default() };
    let body = &mut Some(Full::new(body));
    let attempt = Attempt { target, limits: &limits, retry: &DEFAULT_RETRY, message: &message };
    let attempted = connections.attempt(protocol, attempt, body).await;
    attempted.map_err(|failed| failed.error)?.into_response()
}

fn write_host(out: &mut Vec<u8>, host: Option<&str>, address: SocketAddr) {
    match host {
        Some(host) => out.extend_from_slice(format!("host: {host}\r\n").as_bytes()),
        None => out.extend_from_slice(format!("host: {address}\r\n").as_bytes()),
    }
    write_header(out, &http::header::USER_AGENT, &http::HeaderValue::from_static("xdp-ingress-health-check"));
}

fn is_expected(status: u16, statuses: &[(u16, u16)]) -> bool {
    statuses.iter().any(|(first, last)| (*first..=*last).contains(&status))
}
