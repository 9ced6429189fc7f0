//! External authorization (`auth-url`): the policy for asking a service whether to admit a request. No request is sent
//! here.

use std::{fmt, time::Duration};

use http::{HeaderName, HeaderValue, Method};

use crate::{HeaderEdits, RequestRules, Template, UpstreamKey};

/// Request to the service, and use of its response: 2xx admits a request, 401 and 403 are passed on to the client, and
/// any other status is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtAuthz {
    pub service: AuthService,
    /// Path and query of the request to the service.
    pub target: Template,
    pub method: Method,
    /// Longest time that the service has for its response, within the rule's read timeout. Default 10 s.
    pub timeout: Duration,
    /// URL to which the client is redirected in place of a 401.
    pub sign_in: Option<Template>,
    /// Fields copied from the response to the pod's request; they replace fields sent by the client.
    pub response_headers: Box<[PassedField]>,
    /// Value of `X-Auth-Request-Redirect`.
    pub request_redirect: Template,
    /// Whether cookies from the response are also sent to the client with errors.
    pub always_set_cookie: bool,
    /// Additional fields for the service.
    pub headers: HeaderEdits,
    pub cache: Option<AuthCache>,
    /// Requests that are admitted without a question. Default none.
    pub exempt: RequestRules,
}

/// A field of the response, and its name for the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedField {
    pub from: HeaderName,
    pub to: HeaderName,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthService {
    /// An upstream, and the value of `Host` for it.
    Upstream { key: UpstreamKey, host: HeaderValue },
    /// The target is resolved by the rules of the request's own host.
    SameHost,
}

/// Caching of responses for later requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthCache {
    /// Cache key: requests with the same text share a response.
    pub key: Template,
    pub times: CacheTimes,
}

/// Statuses with their caching times; the first match applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheTimes(Box<[(Box<[u16]>, Duration)]>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no time with statuses before it, as `200 202 401 5m`")]
pub struct CacheTimesError(String);

// === impl CacheTimes ===

impl CacheTimes {
    /// Longest time; a longer one is read as this.
    pub const MAX: Duration = Duration::from_hours(24);

    /// Parses `200 202 401 5m, 403 30s`; a time without statuses applies to 200.
    ///
    /// # Errors
    /// Fails if a part does not have exactly one time of at least a second.
    pub fn parse(text: &str) -> Result<Self, CacheTimesError> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let time = |part: &str| {
            let error = || CacheTimesError(part.to_owned());
            let (statuses, time) = part.rsplit_once(' ').unwrap_or(("", part));
            let statuses = statuses.split_whitespace().map(|status| match status.len() {
                3 => status.parse().map_err(|_invalid| error()),
                _ => Err(error()),
            });
            let statuses: Vec<u16> = statuses.collect::<Result<_, _>>()?;
            let statuses = if statuses.is_empty() { vec![200] } else { statuses };
            Ok((statuses.into(), duration(time).ok_or_else(error)?))
        };
        parts.map(time).collect::<Result<_, _>>().map(Self)
    }

    #[must_use]
    pub fn of(&self, status: u16) -> Option<Duration> {
        self.0.iter().find(|(statuses, _)| statuses.contains(&status)).map(|(_, time)| *time)
    }
}

impl Default for CacheTimes {
    fn default() -> Self {
        Self([([200, 202, 401].into(), Duration::from_secs(300))].into())
    }
}

/// Reads a time of at least a second, in whole seconds.
fn duration(text: &str) -> Option<Duration> {
    let time = Duration::from_secs(crate::duration::parse(text)?.as_secs());
    (!time.is_zero()).then(|| time.min(CacheTimes::MAX))
}

impl fmt::Display for ExtAuthz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            service, target, method, sign_in, response_headers, always_set_cookie, headers, cache, exempt, ..
        } = self;
        write!(f, "{method} ")?;
        match service {
            AuthService::Upstream { key, host: _ } => write!(f, "{key} ")?,
            AuthService::SameHost => f.write_str("(same host) ")?,
        }
        write!(f, "{target}")?;
        if let Some(location) = sign_in {
            write!(f, ", sign-in {location}")?;
        }
        for PassedField { from, to } in response_headers {
            write!(f, ", takes {from}")?;
            if to != from {
                write!(f, " as {to}")?;
            }
        }
        if *always_set_cookie {
            f.write_str(", always sets cookies")?;
        }
        if !headers.is_empty() {
            write!(f, ", with {headers}")?;
        }
        if let Some(AuthCache { key, times: _ }) = cache {
            write!(f, ", cached by {key}")?;
        }
        if exempt.is_empty() { Ok(()) } else { write!(f, ", exempt {exempt}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_times_are_parsed_per_status() {
        let times = CacheTimes::parse("200 202 5m, 401 30s, 1h").expect("valid");
        for (status, expect) in [(200, Some(300)), (202, Some(300)), (401, Some(30)), (403, None)] {
            assert_eq!(times.of(status), expect.map(Duration::from_secs), "{status}");
        }
        assert_eq!(CacheTimes::parse("10").expect("valid").of(200), Some(Duration::from_secs(10)));
        assert_eq!(CacheTimes::parse("200 202 401 5m"), Ok(CacheTimes::default()));
        for text in ["200 25h", "200 1w", "200 1M"] {
            assert_eq!(CacheTimes::parse(text).expect(text).of(200), Some(CacheTimes::MAX), "{text}");
        }
        for text in ["200 5m 202", "5m 5m", "20 5m", "200 0s", "x", "200 5q", "200 -1s", "é"] {
            assert!(CacheTimes::parse(text).is_err(), "{text}");
        }
    }
}
