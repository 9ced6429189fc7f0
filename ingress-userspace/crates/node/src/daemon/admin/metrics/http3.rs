//! Metrics of HTTP/3, which a process without it does not have.

use std::fmt;

use ingress_proxy::Http3StatsView;
use prometheus_client::encoding::DescriptorEncoder;

use super::{
    Http3State, Scrape,
    encode::{by, counter, counters, gauge, gauges},
};

impl Scrape {
    pub(super) fn encode_http3(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(Http3State { is_ready, workers, receive_drops }) = self.http3 else { return Ok(()) };
        let Http3StatsView {
            open,
            half_open,
            accepted,
            connected,
            retried,
            refused,
            dropped,
            requests,
            cancelled,
            migrated,
            foreign,
            panics,
        } = self.proxy.http3;
        let help = "1 while all workers serve HTTP/3 and its port answers; the log has the reason otherwise";
        gauge(encoder, "http3_ready", help, u64::from(is_ready))?;
        gauge(encoder, "http3_workers", "Workers that serve HTTP/3", workers as u64)?;
        let help = "QUIC connections open now, by state";
        let states = [half_open, open.saturating_sub(half_open)];
        gauges(encoder, "http3_connections", help, by("state", ["handshake", "established"], states))?;
        let help = "First packets of QUIC connections, by answer";
        let results = by("result", ["accepted", "retry", "refused", "dropped"], [accepted, retried, refused, dropped]);
        counters(encoder, "http3_connection_attempts", help, results)?;
        for (name, help, value) in [
            ("http3_handshakes", "QUIC handshakes completed", connected),
            ("http3_requests", "Requests received over HTTP/3", requests),
            (
                "http3_requests_cancelled",
                "HTTP/3 requests that clients cancelled before the end of the response",
                cancelled,
            ),
            (
                "http3_receive_drops",
                "Packets that the kernel dropped, because the buffer of a socket of HTTP/3 was full",
                receive_drops,
            ),
            ("http3_migrations", "Times that the client of a QUIC connection had a new address", migrated),
            (
                "http3_foreign_datagrams",
                "QUIC datagrams received by another worker or process than that of their connection",
                foreign,
            ),
            ("http3_panics", "Caught panics in HTTP/3; each ended a request or a connection", panics),
        ] {
            counter(encoder, name, help, value)?;
        }
        Ok(())
    }
}
