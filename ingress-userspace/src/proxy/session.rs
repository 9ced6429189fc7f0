//! Keeps a client with an endpoint by a cookie: reads it, says which endpoint it stands for, and sets it.

use std::fmt::Write as _;

use http::HeaderValue;

use super::{
    forward::Served,
    headers::random,
    pick::{Choice, UpstreamState, hash},
};
use crate::{
    model::{Affinity, AffinityMode, SessionCookie},
    route::{Subject, template::cookie},
};

/// A request of a rule with affinity.
pub(super) struct Session<'r> {
    affinity: &'r Affinity,
    /// What the cookie says, if the client has one of ours.
    known: Option<u64>,
    /// A key for a client without.
    fresh: u64,
}

impl<'r> Session<'r> {
    pub(super) fn of(affinity: &'r Affinity, subject: &Subject<'_>) -> Self {
        let known = cookie(subject.headers, &affinity.cookie.name).and_then(parse);
        Self { affinity, known, fresh: random() }
    }

    /// Which endpoint it is to be. A client without a cookie, or with one of an endpoint that is gone, goes as everybody else
    /// does.
    pub(super) fn choice(&self, upstream: &UpstreamState, otherwise: Choice) -> Choice {
        match (self.affinity.mode, self.known) {
            (AffinityMode::Balanced, known) => Choice::Hash(hash(&known.unwrap_or(self.fresh).to_be_bytes())),
            (AffinityMode::Persistent, Some(id)) if upstream.knows(id) => Choice::Sticky(id),
            (AffinityMode::Persistent, _) => otherwise,
        }
    }

    /// The cookie to set, if any, now that it is known who served.
    pub(super) fn set(
        &self,
        upstream: &UpstreamState,
        served: &Served<'_>,
        subject: &Subject<'_>,
    ) -> Option<HeaderValue> {
        let Affinity { mode, cookie, follows_failure } = self.affinity;
        let value = match (mode, self.known) {
            (AffinityMode::Balanced, Some(_)) => return None,
            (AffinityMode::Balanced, None) => self.fresh,
            (AffinityMode::Persistent, known) => {
                let id = served.endpoint.id()?;
                let stays = known.is_some_and(|known| known == id || (upstream.knows(known) && !follows_failure));
                if stays {
                    return None;
                }
                id
            }
        };
        HeaderValue::try_from(write(cookie, value, subject.secure)).ok()
    }
}

fn parse(value: &str) -> Option<u64> {
    let is_ours = value.len() == 16 && value.bytes().all(|b| b.is_ascii_hexdigit());
    u64::from_str_radix(value, 16).ok().filter(|_| is_ours)
}

fn write(cookie: &SessionCookie, value: u64, is_secure: bool) -> String {
    let SessionCookie { name, path, domain, max_age, same_site, secure } = cookie;
    let mut text = format!("{name}={value:016x}; Path={}; HttpOnly", path.as_deref().unwrap_or("/"));
    let mut attribute = |args: std::fmt::Arguments<'_>| text.write_fmt(args).unwrap_or_default();
    if let Some(domain) = domain {
        attribute(format_args!("; Domain={domain}"));
    }
    if let Some(seconds) = max_age {
        attribute(format_args!("; Max-Age={seconds}"));
    }
    if secure.unwrap_or(is_secure) {
        attribute(format_args!("; Secure"));
    }
    if let Some(same_site) = same_site {
        attribute(format_args!("; SameSite={}", same_site.as_str()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::SameSite;

    #[test]
    fn cookies_say_what_was_asked_for() {
        let plain =
            SessionCookie { name: "s".into(), path: None, domain: None, max_age: None, same_site: None, secure: None };
        assert_eq!(write(&plain, 0xab, false), "s=00000000000000ab; Path=/; HttpOnly");
        assert_eq!(write(&plain, 0xab, true), "s=00000000000000ab; Path=/; HttpOnly; Secure");
        let full = SessionCookie {
            path: Some("/app".into()),
            domain: Some("a.test".into()),
            max_age: Some(60),
            same_site: Some(SameSite::None),
            secure: Some(false),
            ..plain
        };
        assert_eq!(
            write(&full, 1, true),
            "s=0000000000000001; Path=/app; HttpOnly; Domain=a.test; Max-Age=60; SameSite=None"
        );
    }

    #[test]
    fn only_our_own_values_are_believed() {
        assert_eq!(parse("00000000000000ff"), Some(255));
        for value in ["", "ff", "00000000000000fg", "000000000000000ff", "+0000000000000ff"] {
            assert_eq!(parse(value), None, "{value}");
        }
    }
}
