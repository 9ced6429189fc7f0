//! Sends one health check to one endpoint, over a connection of its own. Other code draws conclusions from the result.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Method;
use http_body_util::{BodyExt as _, Full};
use tokio::time::timeout;

use super::grpc;
use crate::{
    downstream::proxy_protocol::{Header, ProxyHeader},
    upstream::{
        self, Limits, Pool, PoolOptions, Target,
        balance::{CheckResult, Checked},
        h2, write_header, write_request_line,
    },
};
use ingress_model::{Check, Protocol, Question};

/// Longest response body that is read, in bytes.
const BODY_MAX: usize = 64 * 1024;

/// Runs one check of `checked` and returns its result, within the check's timeout.
pub(super) async fn send(checked: &Checked) -> CheckResult {
    match timeout(checked.check.timeout, answered(checked)).await {
        Ok(Some(true)) => CheckResult::Passed,
        Ok(Some(false)) => CheckResult::Failed,
        Ok(None) | Err(_) => CheckResult::Unanswered,
    }
}

/// Returns whether the response passes the check, or `None` if there was no response.
async fn answered(checked: &Checked) -> Option<bool> {
    let Check { question, port, timeout, .. } = &*checked.check;
    let address = port.map_or(checked.address, |port| SocketAddr::new(checked.address.ip(), port));
    // The PROXY protocol header is `LOCAL`, because no client is involved. It is sent only to the endpoint's own port:
    // a separate port for checks does not expect one.
    let version = checked.proxy_header.filter(|_| address == checked.address);
    let proxy_header = version.map(|version| ProxyHeader { version, header: Header::Local });
    let target = Target { address, transport: checked.transport(), proxy_header: proxy_header.as_ref() };
    // No connection is reused: each check also tests that a connection can be made.
    let pool = Pool::new(PoolOptions { idle_per_endpoint: 0, ..PoolOptions::default() });
    let limits = Limits { connect_timeout: *timeout, read_timeout: *timeout, ..Limits::default() };
    match (question, checked.protocol) {
        (Question::Connect, _) => pool.connect(target, *timeout).await.ok().map(|_open| true),
        (Question::Http { path, host, statuses }, Protocol::Http1 | Protocol::Https) => {
            let connection = pool.connect(target, *timeout).await.ok()?;
            let write = |out: &mut Vec<u8>| {
                write_get(out, path, host.as_deref(), address);
                out.extend_from_slice(b"connection: close\r\n");
            };
            let response = upstream::exchange(connection, limits, &Method::GET, write, empty()).await.ok()?;
            Some(is_expected(response.status().as_u16(), statuses))
        }
        (Question::Http { path, host, statuses }, Protocol::H2c | Protocol::H2) => {
            let clients = h2::Clients::new(pool);
            let lease = clients.lease(target, *timeout).await.ok()?;
            let write = |out: &mut Vec<u8>| write_get(out, path, host.as_deref(), address);
            let response = h2::exchange(lease, limits, &Method::GET, write, empty()).await.ok()?;
            Some(is_expected(response.status().as_u16(), statuses))
        }
        (Question::Grpc { service }, _) => {
            let clients = h2::Clients::new(pool);
            let lease = clients.lease(target, *timeout).await.ok()?;
            let write = |out: &mut Vec<u8>| {
                write_request_line(out, &Method::POST, grpc::PATH);
                write_host(out, None, address);
                out.extend_from_slice(b"content-type: application/grpc\r\nte: trailers\r\n");
            };
            let body = Full::new(grpc::request(service));
            let response = h2::exchange(lease, limits, &Method::POST, write, body).await.ok()?;
            let is_ok = response.status().is_success();
            let (parts, body) = response.into_parts();
            let body = http_body_util::Limited::new(body, BODY_MAX).collect().await.ok()?;
            let trailers = body.trailers().unwrap_or(&parts.headers);
            let is_fine = trailers.get("grpc-status").is_some_and(|status| status == "0");
            Some(is_ok && is_fine && grpc::is_serving(&body.to_bytes()))
        }
    }
}

fn empty() -> Full<Bytes> {
    Full::new(Bytes::new())
}

fn write_get(out: &mut Vec<u8>, path: &str, host: Option<&str>, address: SocketAddr) {
    write_request_line(out, &Method::GET, path);
    write_host(out, host, address);
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
