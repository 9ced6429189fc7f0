//! Which requests of a rule go to another upstream: canary releases, and protocols by the client's scheme. No request
//! is sent here.

use std::fmt;

use http::{HeaderName, HeaderValue};

use super::{Pattern, UpstreamKey};

/// An upstream, its canaries, each of which takes some of its requests, and the upstreams for clients over TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    pub main: UpstreamKey,
    /// Canaries in order of precedence; the first that matches a request gets it.
    pub canaries: Vec<Canary>,
    /// Upstreams that are reached in the protocol of the client's scheme: each with the one that takes its place for
    /// clients over TLS. Both have the same pods.
    pub over_tls: Vec<(UpstreamKey, UpstreamKey)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canary {
    pub when: CanaryRule,
    pub upstream: UpstreamKey,
}

/// Conditions for a canary: the header, else the cookie, else the weight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CanaryRule {
    pub header: Option<(HeaderName, CanaryValue)>,
    /// Cookie with the value `always` or `never`; any other value leaves the decision to the weight.
    pub cookie: Option<Box<str>>,
    /// Number of requests out of `total`.
    pub weight: u32,
    /// Number of requests to which `weight` refers, at least 1. Default 100.
    pub total: u32,
    pub sessions: CanarySessions,
}

/// Treatment of clients with session affinity to a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CanarySessions {
    /// A client stays with the canary, or with the rule's own pods, once served there. Header, cookie and weight do not
    /// move it.
    #[default]
    Kept,
    /// The canary gets requests of any client, and sets no cookie.
    Ignored,
}

/// Values of a header that select the canary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CanaryValue {
    /// `always` selects it, `never` does not; any other value leaves the decision to the next condition.
    Word,
    /// Exactly this value selects it; any other leaves the decision to the next condition.
    Exactly(HeaderValue),
    /// A match anywhere in the value selects it; any other value leaves the decision to the next condition.
    Like(Pattern),
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { main, canaries, over_tls } = self;
        write!(f, "{main}")?;
        for Canary { when, upstream } in canaries {
            write!(f, ", {upstream} if {when}")?;
        }
        for (clear, upstream) in over_tls {
            write!(f, ", {upstream} over TLS for {clear}")?;
        }
        Ok(())
    }
}

impl fmt::Display for CanaryRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { header, cookie, weight, total, sessions } = self;
        match header {
            None => {}
            Some((name, CanaryValue::Word)) => write!(f, "{name} or ")?,
            Some((name, CanaryValue::Exactly(value))) => {
                write!(f, "{name}={} or ", String::from_utf8_lossy(value.as_bytes()))?;
            }
            Some((name, CanaryValue::Like(pattern))) => write!(f, "{name}~{pattern} or ")?,
        }
        if let Some(cookie) = cookie {
            write!(f, "cookie {cookie} or ")?;
        }
        write!(f, "{weight}/{total}")?;
        match sessions {
            CanarySessions::Kept => Ok(()),
            CanarySessions::Ignored => f.write_str(" ignoring sessions"),
        }
    }
}
