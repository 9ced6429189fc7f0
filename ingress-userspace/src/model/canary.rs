//! Which requests of a rule go to another upstream, to try it out. It sends none.

use std::fmt;

use http::{HeaderName, HeaderValue};

use super::{Pattern, UpstreamKey};

/// An upstream, and those to which some of its requests go instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    pub main: UpstreamKey,
    /// In order of precedence; the first that wants a request has it.
    pub canaries: Vec<Canary>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canary {
    pub when: CanaryRule,
    pub upstream: UpstreamKey,
}

/// What decides: the header, else the cookie, else the weight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CanaryRule {
    pub header: Option<(HeaderName, CanaryValue)>,
    /// A cookie that says `always` or `never`; any other value leaves it to the weight.
    pub cookie: Option<Box<str>>,
    /// How many of `total` requests.
    pub weight: u32,
    /// At least 1. Default 100.
    pub total: u32,
    pub sessions: CanarySessions,
}

/// What becomes of clients that a cookie keeps with a pod (affinity).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CanarySessions {
    /// Who was served by the canary or by its rule's own pods stays there, whatever header, cookie or weight say.
    #[default]
    Kept,
    /// The canary has requests of any client, and sets no cookie.
    Ignored,
}

/// What a header must say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CanaryValue {
    /// `always` for yes, `never` for no; any other leaves it to what is next.
    Word,
    /// This for yes; any other leaves it to what is next.
    Exactly(HeaderValue),
    /// What this matches anywhere, for yes; any other leaves it to what is next.
    Like(Pattern),
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { main, canaries } = self;
        write!(f, "{main}")?;
        for Canary { when, upstream } in canaries {
            write!(f, ", {upstream} if {when}")?;
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
