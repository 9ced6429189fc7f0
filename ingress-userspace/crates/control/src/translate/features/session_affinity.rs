//! Clients that stay with the same pod by a cookie.

use std::sync::Arc;

use http::HeaderName;

use super::row::{Row, key};
use crate::translate::values::{Read, boolean, cookie_text, number};
use ingress_model::{Affinity, AffinityMode, Forwarding, PathMatch, SameSite, SessionCookie};

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedAffinity>] = &[
    key("affinity", "`cookie` keeps a client with the same pod by a cookie, which the first response sets").reads(
        |value, parsed| match value {
            "cookie" => {
                parsed.has_affinity = true;
                Ok(())
            }
            _ => Err("`cookie`".into()),
        },
    ),
    key(
        "affinity-mode",
        "`balanced`: new pods take over their share of clients; `persistent`: a client stays while its pod exists",
    )
    .default("balanced")
    .reads(|value, parsed| {
        parsed.affinity.mode = match value {
            "balanced" => AffinityMode::Balanced,
            "persistent" => AffinityMode::Persistent,
            _ => return Err("`balanced` or `persistent`".into()),
        };
        Ok(())
    }),
    key(
        "session-cookie-change-on-failure",
        "whether a client stays with the second pod after its own pod failed; only for `persistent`",
    )
    .default("false")
    .reads(|value, parsed| boolean(value, &mut parsed.affinity.follows_failure)),
    key(
        "session-cookie-conditional-samesite-none",
        "whether browsers that reject `SameSite=None`, from before 2020, get a cookie without it",
    )
    .default("false")
    .reads(|value, parsed| boolean(value, &mut parsed.affinity.cookie.spares_old_browsers)),
    key("session-cookie-domain", "`Domain` of the cookie of `affinity`").reads(|value, parsed| {
        parsed.affinity.cookie.domain = cookie_text(value)?;
        Ok(())
    }),
    key("session-cookie-expires", "the same as `session-cookie-max-age`, which takes precedence").reads(
        |value, parsed| {
            parsed.cookie_expires = Some(age(value)?);
            Ok(())
        },
    ),
    key("session-cookie-max-age", "lifetime of the cookie, in seconds; without it, until the browser closes").reads(
        |value, parsed| {
            parsed.affinity.cookie.max_age = Some(age(value)?);
            Ok(())
        },
    ),
    key("session-cookie-name", "name of the cookie").default("INGRESSCOOKIE").reads(|value, parsed| {
        let is_token = !value.is_empty() && HeaderName::try_from(value).is_ok();
        parsed.affinity.cookie.name = Some(value).filter(|_| is_token).ok_or("letters, digits and `-_.`")?.into();
        Ok(())
    }),
    key(
        "session-cookie-path",
        "`Path` of the cookie; without it, the rule's path, or `/` if that is a regular expression",
    )
    .reads(|value, parsed| {
        parsed.affinity.cookie.path = cookie_text(value)?;
        Ok(())
    }),
    key("session-cookie-samesite", "`SameSite` of the cookie: `Strict`, `Lax` or `None`").reads(|value, parsed| {
        parsed.affinity.cookie.same_site = Some(match value.to_ascii_lowercase().as_str() {
            "strict" => SameSite::Strict,
            "lax" => SameSite::Lax,
            "none" => SameSite::None,
            _ => return Err("`Strict`, `Lax` or `None`".into()),
        });
        Ok(())
    }),
    key("session-cookie-secure", "whether the cookie is `Secure`; without it, if the request came over TLS").reads(
        |value, parsed| {
            let mut secure = false;
            boolean(value, &mut secure)?;
            parsed.affinity.cookie.secure = Some(secure);
            Ok(())
        },
    ),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedAffinity {
    has_affinity: bool,
    affinity: Affinity,
    cookie_expires: Option<u64>,
}

impl Default for ParsedAffinity {
    fn default() -> Self {
        Self {
            has_affinity: false,
            affinity: Affinity {
                mode: AffinityMode::Balanced,
                cookie: SessionCookie {
                    name: "INGRESSCOOKIE".into(),
                    path: None,
                    domain: None,
                    max_age: None,
                    same_site: None,
                    spares_old_browsers: false,
                    secure: None,
                },
                follows_failure: false,
            },
            cookie_expires: None,
        }
    }
}

// === impl ParsedAffinity ===

impl ParsedAffinity {
    pub(super) fn build(&self) -> Option<Affinity> {
        let Self { has_affinity, affinity, cookie_expires } = self;
        let mut affinity = has_affinity.then(|| affinity.clone())?;
        affinity.cookie.max_age = affinity.cookie.max_age.or(*cookie_expires);
        Some(affinity)
    }
}

/// Returns `forwarding` for a rule of `path`. A cookie without a path of its own gets that of the rule.
pub(crate) fn with_path(forwarding: &Arc<Forwarding>, path: &PathMatch) -> Arc<Forwarding> {
    let plain = match path {
        PathMatch::Exact(path) | PathMatch::Prefix(path) | PathMatch::Beginning(path) => &**path,
        PathMatch::Pattern(_) => "/",
    };
    let mut forwarding = Arc::clone(forwarding);
    if let Some(Affinity { cookie: SessionCookie { path: None, .. }, .. }) = &forwarding.affinity
        && let Some(affinity) = &mut Arc::make_mut(&mut forwarding).affinity
    {
        affinity.cookie.path = Some(plain.into());
    }
    forwarding
}

/// Reads an age. A cookie with a negative one has expired, as with 0.
fn age(value: &str) -> Read<u64> {
    let mut seconds = 0;
    if value.strip_prefix('-').is_some_and(|digits| digits.parse::<u32>().is_ok()) {
        return Ok(0);
    }
    number(value, 0..=u64::from(u32::MAX), &mut seconds).ok_or("a number of seconds up to 4294967295")?;
    Ok(seconds)
}
