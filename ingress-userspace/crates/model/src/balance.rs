//! Load-balancing policy: which endpoint gets a request, and when to retry at another. Endpoints are not chosen here.

use std::{fmt, time::Duration};

use super::Template;

/// Load-balancing policy of an upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// Endpoints in turn.
    #[default]
    RoundRobin,
    /// The endpoint with fewer requests in flight, out of two drawn at random.
    LeastRequest,
    /// The endpoint with the lower expected latency, out of two drawn at random. The estimate combines the moving
    /// average of response times and the requests in flight.
    Ewma,
    /// The same endpoint for the same text, as long as it exists (consistent hashing). All nodes agree on the choice.
    Hash(Template),
    /// A random one of the first `size` endpoints of consistent hashing, for the same text.
    Subset { by: Template, size: usize },
}

/// Keeps a client with an endpoint, by a cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affinity {
    pub mode: AffinityMode,
    pub cookie: SessionCookie,
    /// Whether the cookie is updated when the first endpoint failed and another one answered. If not, the client comes
    /// back to the first.
    pub follows_failure: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AffinityMode {
    /// The cookie is a key of consistent hashing: new endpoints get their share of clients.
    Balanced,
    /// The cookie names the endpoint, and is valid as long as that endpoint exists.
    Persistent,
}

/// Attributes of a session cookie (RFC 6265, 4.1). The cookie is always `HttpOnly`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionCookie {
    pub name: Box<str>,
    pub path: Option<Box<str>>,
    pub domain: Option<Box<str>>,
    /// Lifetime in seconds. Without it, the cookie ends with the browser session.
    pub max_age: Option<u64>,
    pub same_site: Option<SameSite>,
    /// Whether browsers that reject `SameSite=None` get none. Default false.
    pub spares_old_browsers: bool,
    /// Whether the cookie is `Secure`. Without a value, it is `Secure` if the request came over TLS.
    pub secure: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameSite {
    Strict,
    Lax,
    None,
}

/// When, and how often, a request is retried at another endpoint (`proxy-next-upstream`), or at any.
#[derive(Clone, PartialEq, Eq)]
pub struct Retry {
    /// Connection failures, and connections closed before the first byte of a response. The latter are retried once
    /// only: if endpoint after endpoint closes the connection, the request is more likely the cause than the victim.
    /// Default true.
    pub error: bool,
    /// Read time-outs. Connections that time out while opening count as `error`, too. Default false.
    pub timeout: bool,
    /// Invalid responses. Default false.
    pub invalid_header: bool,
    /// Responses with these statuses. Default none.
    pub statuses: Vec<u16>,
    /// Whether requests that are not idempotent are retried after they were sent (RFC 9110, 9.2.2). Default false.
    pub non_idempotent: bool,
    /// Maximum number of tries, from 1. Without [`Self::same_endpoint`], each is at another endpoint, and
    /// [`Retry::TRIES_MAX`] is the limit. Default 3.
    pub tries: usize,
    /// Time after which no further endpoint is tried. Default unlimited.
    pub within: Option<Duration>,
    /// Whether the request comes back to endpoints that were tried, once there is no other one. Default false.
    pub same_endpoint: bool,
    /// Shortest pause before the first retry. It doubles with each further one, up to ten times its length, and is up to
    /// a quarter longer at random. Default none.
    pub backoff: Option<Duration>,
}

// === impl Retry ===

impl Retry {
    pub const TRIES_MAX: usize = 10;

    /// Retries after connection errors only, for requests that no endpoint has seen or that are idempotent.
    pub const DEFAULT: Self = Self {
        error: true,
        timeout: false,
        invalid_header: false,
        statuses: Vec::new(),
        non_idempotent: false,
        tries: 3,
        within: None,
        same_endpoint: false,
        backoff: None,
    };

    /// Returns whether a response may lead to a retry at another endpoint.
    #[must_use]
    pub fn repeats_answers(&self) -> bool {
        self.invalid_header || !self.statuses.is_empty()
    }
}

impl Retry {
    /// Returns the pause before the `n`th retry, from 1. `draw` returns a random number.
    #[must_use]
    pub fn pause(&self, n: u32, draw: impl FnOnce() -> u8) -> Option<Duration> {
        let shortest = self.backoff?;
        let doubled = shortest.saturating_mul(1 << n.saturating_sub(1).min(4));
        let pause = doubled.min(shortest.saturating_mul(10));
        Some(pause.saturating_add((pause / 1024).saturating_mul(draw().into())))
    }
}

/// Shows the fields that only some rules have if they are set.
impl fmt::Debug for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { error, timeout, invalid_header, statuses, non_idempotent, tries, within, same_endpoint, backoff } =
            self;
        let mut text = f.debug_struct("Retry");
        text.field("error", error).field("timeout", timeout).field("invalid_header", invalid_header);
        text.field("statuses", statuses).field("non_idempotent", non_idempotent);
        text.field("tries", tries).field("within", within);
        if *same_endpoint {
            text.field("same_endpoint", same_endpoint);
        }
        if let Some(backoff) = backoff {
            text.field("backoff", backoff);
        }
        text.finish()
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl SameSite {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Strict => "Strict",
            Self::Lax => "Lax",
            Self::None => "None",
        }
    }
}

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RoundRobin => f.write_str("round_robin"),
            Self::LeastRequest => f.write_str("least_request"),
            Self::Ewma => f.write_str("ewma"),
            Self::Hash(template) => write!(f, "hash({template})"),
            Self::Subset { by, size } => write!(f, "hash({by}, subsets of {size})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_have_a_limit() {
        let retry = Retry { backoff: Some(Duration::from_millis(100)), ..Retry::DEFAULT };
        for (n, shortest) in [(1, 100), (2, 200), (3, 400), (4, 800), (5, 1000), (6, 1000), (u32::MAX, 1000)] {
            assert_eq!(retry.pause(n, || 0), Some(Duration::from_millis(shortest)), "{n}");
            let longest = retry.pause(n, || u8::MAX).expect("a pause");
            let limit = Duration::from_millis(shortest + shortest / 4);
            assert!(longest > Duration::from_millis(shortest) && longest < limit, "{n}: {longest:?}");
        }
        let endless = Retry { backoff: Some(Duration::MAX), ..Retry::DEFAULT };
        assert_eq!(endless.pause(3, || u8::MAX), Some(Duration::MAX));
        assert_eq!(Retry::DEFAULT.pause(1, || unreachable!("nothing is drawn")), None);
    }

    #[test]
    fn rare_fields_are_shown_if_they_are_set() {
        let default = format!("{:?}", Retry::DEFAULT);
        assert!(default.ends_with("tries: 3, within: None }"), "{default}");
        let backoff = Some(Duration::from_millis(100));
        let rare = format!("{:?}", Retry { same_endpoint: true, backoff, ..Retry::DEFAULT });
        assert!(rare.ends_with("within: None, same_endpoint: true, backoff: 100ms }"), "{rare}");
    }
}
