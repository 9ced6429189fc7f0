//! Forwarding policy of a rule: time-outs, size limits and load balancing. Nothing is forwarded here.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use super::{Affinity, Balance, Retry, TraceRule, UrlRewrites};

/// Parameters of requests from the proxy to the endpoints of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// Time to open a connection to an endpoint. Default 5 s.
    pub connect_timeout: Duration,
    /// Maximum silence of an endpoint before and within a response. Answers 504 if no byte was sent yet. Default 60 s.
    pub read_timeout: Duration,
    /// Maximum time in which an endpoint accepts no byte of a request. Default 60 s.
    pub send_timeout: Duration,
    /// Maximum time from the receipt of a request's head to the end of the response, over all tries. Answers 504 if no
    /// byte was sent yet, and otherwise cuts the response off. It does not end an upgraded connection, and a client that
    /// takes no bytes is left to the time-outs for clients. Default unlimited.
    pub request_timeout: Option<Duration>,
    /// The same for each try, from the choice of its endpoint. A try that ends before the head of the response counts as
    /// [`Retry::timeout`]. Default unlimited.
    pub backend_request_timeout: Option<Duration>,
    /// Maximum size of a request body in bytes, else 413. Default unlimited.
    pub body_max: Option<u64>,
    pub uploads: Uploads,
    /// Maximum number of bytes of a request body held back before a pod gets it, with [`Uploads::Buffered`]. Default 1
    /// MiB.
    pub body_buffer: usize,
    /// Maximum size of a response head in bytes, else 502. Default 64 KiB.
    pub response_head_max: usize,
    /// Maximum rate of the body of each response of a pod. Default unlimited.
    pub response_rate: Option<ResponseRate>,
    pub balance: Balance,
    /// Session affinity; takes precedence over `balance` if the client has the cookie.
    pub affinity: Option<Affinity>,
    pub retry: Retry,
    /// Whether the access log, if enabled, includes these requests. Default true.
    pub logged: bool,
    /// Whether the rule has its own metrics. Default false.
    pub metered: bool,
    /// Tracing of these requests, if traces are exported. Default none.
    pub trace: Option<Arc<TraceRule>>,
    /// Rewriting of URLs and cookies in the heads of responses of pods. Default none.
    pub url_rewrites: Option<Arc<UrlRewrites>>,
}

/// The rate of a response's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseRate {
    pub bytes_per_second: NonZeroU64,
    /// Number of bytes before the rate applies.
    pub after: u64,
}

/// Forwarding of request bodies to a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Uploads {
    /// Streamed, at the minimum rate of [`super::Settings`].
    #[default]
    Streamed,
    /// Streamed at any rate, however slow.
    StreamedAtAnyRate,
    /// Buffered: a pod gets the request once the body is complete or the buffer is full.
    Buffered,
}

impl Default for Forwarding {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_secs(60),
            send_timeout: Duration::from_secs(60),
            request_timeout: None,
            backend_request_timeout: None,
            body_max: None,
            uploads: Uploads::Streamed,
            body_buffer: 1 << 20,
            response_head_max: 64 * 1024,
            response_rate: None,
            balance: Balance::RoundRobin,
            affinity: None,
            retry: Retry::DEFAULT,
            logged: true,
            metered: false,
            trace: None,
            url_rewrites: None,
        }
    }
}
