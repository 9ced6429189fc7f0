//! Which endpoint a request goes to, and when to another. It chooses none.

use std::{fmt, time::Duration};

use super::Template;

/// How the endpoints of an upstream share its requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// In turn.
    #[default]
    RoundRobin,
    /// Of two that are drawn, the one with fewer requests under way.
    LeastRequest,
    /// Of two that are drawn, the one that is expected to answer sooner: by the moving average of its response times,
    /// and the requests under way.
    Ewma,
    /// The same for the same text, as long as it is there (consistent hashing); all nodes agree.
    Hash(Template),
}

/// Keeps a client with an endpoint, by a cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affinity {
    pub mode: AffinityMode,
    pub cookie: SessionCookie,
    /// Whether the cookie follows when a request had to go to another endpoint because the first one failed; without
    /// it, the client comes back to the first.
    pub follows_failure: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AffinityMode {
    /// The cookie is a key of consistent hashing: new endpoints take their share of clients.
    Balanced,
    /// The cookie names the endpoint, for as long as that is there.
    Persistent,
}

/// A cookie as it is set (RFC 6265, 4.1). It is always `HttpOnly`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionCookie {
    pub name: Box<str>,
    pub path: Option<Box<str>>,
    pub domain: Option<Box<str>>,
    /// In seconds; without it the cookie ends with the browser.
    pub max_age: Option<u64>,
    pub same_site: Option<SameSite>,
    /// Whether it is for TLS alone; without it, as the request came.
    pub secure: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameSite {
    Strict,
    Lax,
    None,
}

/// When, and how often, a request goes to another endpoint (`proxy-next-upstream`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// No connection, or one that was closed before any byte of a response; the latter once, as a request that endpoint
    /// after endpoint answers so is more likely the cause than the victim. Default true.
    pub error: bool,
    /// Silence. A connection that does not come about counts as an error, too. Default false.
    pub timeout: bool,
    /// An answer that is none. Default false.
    pub invalid_header: bool,
    /// Answers of these statuses. Default none.
    pub statuses: Vec<u16>,
    /// Whether requests that may not be repeated are, after they were sent (RFC 9110, 9.2.2). Default false.
    pub non_idempotent: bool,
    /// Endpoints tried in all, from 1 to [`Retry::TRIES_MAX`]. Default 3.
    pub tries: usize,
    /// No other endpoint after this time. Default none.
    pub within: Option<Duration>,
}

// === impl Retry ===

impl Retry {
    pub const TRIES_MAX: usize = 10;

    /// Only requests that no endpoint has seen, or that may be repeated, after an error.
    pub const DEFAULT: Self = Self {
        error: true,
        timeout: false,
        invalid_header: false,
        statuses: Vec::new(),
        non_idempotent: false,
        tries: 3,
        within: None,
    };

    /// Whether an answer may lead to another endpoint.
    #[must_use]
    pub fn repeats_answers(&self) -> bool {
        self.invalid_header || !self.statuses.is_empty()
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
        }
    }
}
