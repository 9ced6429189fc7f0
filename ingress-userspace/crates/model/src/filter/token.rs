//! Requirements on JSON Web Tokens (RFC 7519) of clients. Tokens are not verified here, and keys not fetched. `Debug`
//! output never shows key sets, which may be secret, nor queries of URLs.

use std::{fmt, sync::Arc};

use http::HeaderName;

use crate::UpstreamKey;

/// Requirements on a token, and the claims to pass on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub keys: KeySource,
    /// Accepted values of `iss`; empty accepts any.
    pub issuers: Box<[Box<str>]>,
    /// Accepted values in `aud`; empty accepts any.
    pub audiences: Box<[Box<str>]>,
    pub place: TokenPlace,
    /// Required claims; all of them must match.
    pub demands: Box<[Demanded]>,
    /// Fields for the pod, each with its claim. Fields of the same name from the client are removed.
    pub passed: Box<[(HeaderName, ClaimPath)]>,
}

/// Place of the token in a request. Other places are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TokenPlace {
    /// `Authorization: Bearer TOKEN` (RFC 6750).
    #[default]
    Bearer,
    /// A separate header field.
    Field(HeaderName),
    Cookie(Box<str>),
}

/// Source of the keys that verify tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    Secret(Arc<KeySet>),
    Server(Arc<JwksEndpoint>),
}

/// A JWKS endpoint (JSON Web Key Set). Two are equal if the same request goes to the same upstream.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JwksEndpoint {
    /// Display name: the URL without its query.
    pub origin: Arc<str>,
    pub upstream: UpstreamKey,
    /// Value of `Host` in requests.
    pub host: Box<str>,
    /// Path and query of requests.
    pub target: Box<str>,
}

/// Text of a JSON Web Key Set (RFC 7517, 5).
#[derive(PartialEq, Eq)]
pub struct KeySet {
    /// Display name: `namespace/secret`.
    pub origin: Arc<str>,
    pub json: Box<str>,
}

/// Name of a claim, or the names on the path to a nested one, separated by dots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimPath(pub Box<str>);

/// A required claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demanded {
    pub claim: ClaimPath,
    /// Accepted values of the claim, or of its elements; empty accepts any.
    pub values: Box<[Box<str>]>,
}

impl KeySet {
    /// Field of a Secret that contains a key set.
    pub const FIELD: &str = "jwks";
}

impl KeySource {
    /// Returns the display name of the source.
    #[must_use]
    pub fn origin(&self) -> &str {
        match self {
            Self::Secret(set) => &set.origin,
            Self::Server(server) => &server.origin,
        }
    }

    /// Returns the upstream of the JWKS endpoint, if the keys come from one.
    #[must_use]
    pub fn upstream(&self) -> Option<&UpstreamKey> {
        match self {
            Self::Secret(_) => None,
            Self::Server(server) => Some(&server.upstream),
        }
    }
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, json: _ } = self;
        write!(f, "KeySet({origin})")
    }
}

impl fmt::Debug for JwksEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, upstream: _, host: _, target: _ } = self;
        write!(f, "KeyServer({origin})")
    }
}

impl fmt::Display for ClaimPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, issuers, audiences, place, demands, passed } = self;
        write!(f, "token by {}", keys.origin())?;
        match place {
            TokenPlace::Bearer => {}
            TokenPlace::Field(name) => write!(f, " in {name}")?,
            TokenPlace::Cookie(name) => write!(f, " in cookie {name}")?,
        }
        if !issuers.is_empty() {
            write!(f, ", from {}", issuers.join("|"))?;
        }
        if !audiences.is_empty() {
            write!(f, ", for {}", audiences.join("|"))?;
        }
        demands.iter().try_for_each(|Demanded { claim, values }| write!(f, ", {claim}={}", values.join("|")))?;
        passed.iter().try_for_each(|(field, claim)| write!(f, ", {claim} as {field}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_and_display_redact_secrets() {
        let set = KeySet { origin: "a/b".into(), json: "hunter2".into() };
        let server = JwksEndpoint {
            origin: "https://k.test/jwks".into(),
            upstream: UpstreamKey::new("", "k.test", "443"),
            host: "k.test".into(),
            target: "/jwks?key=hunter2".into(),
        };
        for (keys, origin) in
            [(KeySource::Secret(set.into()), "a/b"), (KeySource::Server(server.into()), "https://k.test/jwks")]
        {
            let token = Token {
                keys,
                issuers: ["https://i.test".into()].into(),
                audiences: [].into(),
                place: TokenPlace::Bearer,
                demands: [Demanded { claim: ClaimPath("scope".into()), values: ["a".into(), "b".into()].into() }]
                    .into(),
                passed: [(HeaderName::from_static("x-user"), ClaimPath("sub".into()))].into(),
            };
            let expect = format!("token by {origin}, from https://i.test, scope=a|b, sub as x-user");
            assert_eq!(token.to_string(), expect);
            assert!(!format!("{token:?} {token}").contains("hunter2"), "{origin}");
        }
    }
}
