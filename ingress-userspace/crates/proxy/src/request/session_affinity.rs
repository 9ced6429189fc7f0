//! Cookie-based session affinity: reads the cookie, maps it to an endpoint, and sets it.

use std::fmt::Write as _;

use http::{HeaderMap, HeaderValue, header};

use ingress_model::{
    Affinity, AffinityMode, CanarySessions, SameSite, SessionCookie,
    route::{Branches, RouteTarget, Share, Shares, Subject, UpstreamId, template::cookie},
};

use crate::{
    random::random,
    upstream::{
        balance::{Choice, UpstreamState, hash},
        permit::Served,
    },
};

/// Session state of a request of a rule with affinity.
pub(crate) struct AffinitySession<'r> {
    affinity: &'r Affinity,
    /// Value of the client's valid cookie for this upstream, if any.
    known: Option<u64>,
    /// Key for a client without a cookie.
    fresh: u64,
    /// See [`Mark`].
    canary: Option<u32>,
}

/// Content of a session cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    value: u64,
    /// Identifies the canary of the session, or the backend among several with weights; `None` means the rule's own pods.
    canary: Option<u32>,
}

/// Returns the upstream of `branches` that holds the client's session, if any.
pub(crate) fn home<'s>(
    affinity: &Affinity,
    branches: &Branches,
    subject: &Subject<'_>,
    state: impl Fn(UpstreamId) -> Option<&'s UpstreamState>,
) -> Option<UpstreamId> {
    let Branches { main, canaries, .. } = branches;
    let Some(canary) = Mark::of(affinity, subject.headers)?.canary else { return Some(*main) };
    let mut keeping = canaries.iter().filter(|(when, _)| when.sessions == CanarySessions::Kept).map(|(_, id)| *id);
    keeping.find(|id| state(*id).is_some_and(|state| state.mark() == canary))
}

/// Returns the backend among `shares` that holds the client's session, if any, and if it has endpoints.
#[cold]
#[inline(never)]
pub(crate) fn share<'r, 's>(
    affinity: &Affinity,
    shares: &'r Shares,
    headers: &HeaderMap,
    state: impl Fn(UpstreamId) -> Option<&'s UpstreamState>,
) -> Option<&'r Share> {
    let backend = Mark::of(affinity, headers)?.canary?;
    let is_home = |state: &UpstreamState| state.mark() == backend && !state.is_empty();
    shares.backends.iter().find(|share| share.target.ok().and_then(&state).is_some_and(is_home))
}

impl Mark {
    fn of(affinity: &Affinity, headers: &HeaderMap) -> Option<Self> {
        cookie(headers, &affinity.cookie.name).and_then(Self::parse)
    }

    fn parse(text: &str) -> Option<Self> {
        let (value, canary) = match text.split_once('-') {
            None => (text, None),
            Some((value, canary)) => (value, Some(canary)),
        };
        let number = |text: &str, digits| {
            let is_ours = text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
            u64::from_str_radix(text, 16).ok().filter(|_| is_ours)
        };
        let canary = match canary {
            None => None,
            Some(canary) => Some(u32::try_from(number(canary, 8)?).ok()?),
        };
        Some(Self { value: number(value, 16)?, canary })
    }
}

impl<'r> AffinitySession<'r> {
    /// Reads the session of a request. Returns `None` if the request goes to a canary without sessions.
    pub(crate) fn of(
        affinity: &'r Affinity,
        target: &RouteTarget,
        (id, upstream): (UpstreamId, &UpstreamState),
        subject: &Subject<'_>,
    ) -> Option<Self> {
        let canary = match target {
            RouteTarget::Split(branches) if id != branches.main => {
                let (when, _) = branches.canaries.iter().find(|(_, canary)| *canary == id)?;
                if when.sessions == CanarySessions::Ignored {
                    return None;
                }
                Some(upstream.mark())
            }
            // The pages for errors of a backend hold no session.
            RouteTarget::Weighted(shares) => {
                if !shares.backends.iter().any(|share| share.target == Ok(id)) {
                    return None;
                }
                Some(upstream.mark())
            }
            RouteTarget::Split(_) | RouteTarget::Forward(_) | RouteTarget::Refuse(_) | RouteTarget::Redirect(_) => None,
        };
        let known = Mark::of(affinity, subject.headers).filter(|mark| mark.canary == canary).map(|mark| mark.value);
        Some(Self { affinity, known, fresh: random(), canary })
    }

    /// Returns how to choose the endpoint. A client without a cookie, or with that of an endpoint that is gone, is
    /// balanced like any other.
    pub(crate) fn choice(&self, upstream: &UpstreamState, otherwise: Choice) -> Choice {
        match (self.affinity.mode, self.known) {
            (AffinityMode::Balanced, known) => Choice::Hash(hash(&known.unwrap_or(self.fresh).to_be_bytes())),
            (AffinityMode::Persistent, Some(id)) if upstream.knows(id) => Choice::Sticky(id),
            (AffinityMode::Persistent, _) => otherwise,
        }
    }

    /// Returns the cookie to set, if any, once the serving endpoint is known.
    pub(crate) fn set(
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
        let mark = Mark { value, canary: self.canary };
        let agent = subject.headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
        HeaderValue::try_from(write(cookie, mark, subject.secure, agent)).ok()
    }
}

fn write(cookie: &SessionCookie, Mark { value, canary }: Mark, is_secure: bool, agent: &str) -> String {
    let SessionCookie { name, path, domain, max_age, same_site, spares_old_browsers, secure } = cookie;
    let mut text = format!("{name}={value:016x}");
    let mut attribute = |args: std::fmt::Arguments<'_>| text.write_fmt(args).unwrap_or_default();
    if let Some(canary) = canary {
        attribute(format_args!("-{canary:08x}"));
    }
    attribute(format_args!("; Path={}; HttpOnly", path.as_deref().unwrap_or("/")));
    if let Some(domain) = domain {
        attribute(format_args!("; Domain={domain}"));
    }
    if let Some(seconds) = max_age {
        attribute(format_args!("; Max-Age={seconds}"));
    }
    if secure.unwrap_or(is_secure) {
        attribute(format_args!("; Secure"));
    }
    let is_spared = *same_site == Some(SameSite::None) && *spares_old_browsers && rejects_none(agent);
    if let Some(same_site) = same_site.filter(|_| !is_spared) {
        attribute(format_args!("; SameSite={}", same_site.as_str()));
    }
    text
}

/// Returns whether a browser ignores cookies with `SameSite=None`: Chrome 51 to 66, Safari of iOS 12 and of macOS 10.14.
/// Chrome 4x and 5x from before are harmless without it, too.
fn rejects_none(agent: &str) -> bool {
    let has = |text| agent.contains(text);
    ["Chrome/4", "Chrome/5", "Chrome/6", "CPU iPhone OS 12", "iPad; CPU OS 12"].into_iter().any(has)
        || (has("Macintosh; Intel Mac OS X 10_14") && has("Version/") && has("Safari") && !has("Chrome"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_attributes_follow_the_configuration() {
        let plain = SessionCookie {
            name: "s".into(),
            path: None,
            domain: None,
            max_age: None,
            same_site: None,
            spares_old_browsers: true,
            secure: None,
        };
        let write = |cookie: &SessionCookie, mark, is_secure| write(cookie, mark, is_secure, "");
        let mark = |value, canary| Mark { value, canary };
        assert_eq!(write(&plain, mark(0xab, None), false), "s=00000000000000ab; Path=/; HttpOnly");
        assert_eq!(write(&plain, mark(0xab, None), true), "s=00000000000000ab; Path=/; HttpOnly; Secure");
        assert_eq!(write(&plain, mark(1, Some(0xc)), false), "s=0000000000000001-0000000c; Path=/; HttpOnly");
        let full = SessionCookie {
            path: Some("/app".into()),
            domain: Some("a.test".into()),
            max_age: Some(60),
            same_site: Some(SameSite::None),
            secure: Some(false),
            ..plain
        };
        assert_eq!(
            write(&full, mark(1, None), true),
            "s=0000000000000001; Path=/app; HttpOnly; Domain=a.test; Max-Age=60; SameSite=None"
        );
    }

    #[test]
    fn old_browsers_get_no_same_site_of_none() {
        for (agent, same_site, is_sparing, expect) in [
            ("Mozilla/5.0 Chrome/66.0.3359 Safari/537.36", SameSite::None, true, false),
            ("Mozilla/5.0 Chrome/66.0.3359 Safari/537.36", SameSite::None, false, true),
            ("Mozilla/5.0 Chrome/66.0.3359 Safari/537.36", SameSite::Lax, true, true),
            ("Mozilla/5.0 Chrome/120.0 Safari/537.36", SameSite::None, true, true),
            ("Mozilla/5.0 (iPhone; CPU iPhone OS 12_0 like Mac OS X)", SameSite::None, true, false),
            ("Mozilla/5.0 (Macintosh; Intel Mac OS X 10_14) Version/12.0 Safari/605", SameSite::None, true, false),
            ("Mozilla/5.0 (Macintosh; Intel Mac OS X 10_14) Chrome/90.0 Safari/605", SameSite::None, true, true),
            ("", SameSite::None, true, true),
        ] {
            let cookie = SessionCookie {
                name: "s".into(),
                path: None,
                domain: None,
                max_age: None,
                same_site: Some(same_site),
                spares_old_browsers: is_sparing,
                secure: None,
            };
            let text = write(&cookie, Mark { value: 1, canary: None }, true, agent);
            assert_eq!(text.contains("SameSite"), expect, "{agent}: {text}");
        }
    }

    #[test]
    fn only_well_formed_cookie_values_are_accepted() {
        assert_eq!(Mark::parse("00000000000000ff"), Some(Mark { value: 255, canary: None }));
        assert_eq!(Mark::parse("00000000000000ff-0000000a"), Some(Mark { value: 255, canary: Some(10) }));
        let of_value = ["", "ff", "00000000000000fg", "000000000000000ff", "+0000000000000ff"];
        let of_canary = ["00000000000000ff-", "00000000000000ff-0000000g", "00000000000000ff-00000000a", "-0000000a"];
        for value in of_value.into_iter().chain(of_canary) {
            assert_eq!(Mark::parse(value), None, "{value}");
        }
    }
}
