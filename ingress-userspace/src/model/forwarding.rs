//! How requests of a rule are forwarded: where to, for how long, how much. It forwards nothing.

use std::{sync::Arc, time::Duration};

use super::{Affinity, Balance, Retry, TraceRule};

/// What holds between the proxy and the endpoints of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// Opening a connection to an endpoint. Default 5 s.
    pub connect_timeout: Duration,
    /// Longest silence of an endpoint before and within a response, else 504 where no byte went out. Default 60 s.
    pub read_timeout: Duration,
    /// Longest time that an endpoint takes no byte of a request. Default 60 s.
    pub send_timeout: Duration,
    /// Longest body of a request in bytes, else 413. Default none.
    pub body_max: Option<u64>,
    /// Longest head of a response in bytes, else 502. Default 64 KiB.
    pub response_head_max: usize,
    pub balance: Balance,
    /// Goes before `balance` where a client has the cookie.
    pub affinity: Option<Affinity>,
    pub retry: Retry,
    /// Whether the access log tells of its requests, if there is one. Default true.
    pub logged: bool,
    /// Whether its requests are counted for themselves. Default false.
    pub metered: bool,
    /// How they are traced, if traces go anywhere. Default not.
    pub trace: Option<Arc<TraceRule>>,
}

impl Default for Forwarding {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_secs(60),
            send_timeout: Duration::from_secs(60),
            body_max: None,
            response_head_max: 64 * 1024,
            balance: Balance::RoundRobin,
            affinity: None,
            retry: Retry::DEFAULT,
            logged: true,
            metered: false,
            trace: None,
        }
    }
}
