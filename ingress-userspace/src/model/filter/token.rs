//! A JSON Web Token that clients must show (RFC 7519). It verifies none, and fetches no keys. Key sets never show in
//! `Debug`, as keys may be secret, nor do queries of URLs.

use std::{fmt, sync::Arc};

use http::HeaderName;

use crate::model::UpstreamKey;

/// What a token must be like, and what becomes of what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub keys: KeySource,
    /// One of these must be `iss`; any if there are none.
    pub issuers: Box<[Box<str>]>,
    /// One of these must be in `aud`; any if there are none.
    pub audiences: Box<[Box<str>]>,
    pub place: TokenPlace,
    /// All of them must be met.
    pub demands: Box<[Demanded]>,
    /// Fields that the pod gets, never the client's, each with the claim that it holds.
    pub passed: Box<[(HeaderName, ClaimPath)]>,
}

/// Where a token is. What is elsewhere is not looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TokenPlace {
    /// `Authorization: Bearer TOKEN` (RFC 6750).
    #[default]
    Bearer,
    /// A field by itself.
    Field(HeaderName),
    Cookie(Box<str>),
}

/// Where the keys are that sign tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    Secret(Arc<KeySet>),
    Server(Arc<KeyServer>),
}

/// What publishes a JSON Web Key Set. Two are the same if they are asked for the same in the same way.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyServer {
    /// For people: its URL without the query.
    pub origin: Arc<str>,
    pub upstream: UpstreamKey,
    /// `Host` that it is told.
    pub host: Box<str>,
    /// Path and query that it is asked for.
    pub target: Box<str>,
}

/// The text of a JSON Web Key Set (RFC 7517, 5).
#[derive(PartialEq, Eq)]
pub struct KeySet {
    /// Where it came from, for people: `namespace/secret`.
    pub origin: Arc<str>,
    pub json: Box<str>,
}

/// A claim: its name, or those on the way to it, with dots between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimPath(pub Box<str>);

/// A claim that must be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demanded {
    pub claim: ClaimPath,
    /// One of these must be its value, or in it; any if there are none.
    pub values: Box<[Box<str>]>,
}

impl KeySet {
    /// The field of a Secret that holds one.
    pub const FIELD: &str = "jwks";
}

impl KeySource {
    /// For people: where the keys come from.
    #[must_use]
    pub fn origin(&self) -> &str {
        match self {
            Self::Secret(set) => &set.origin,
            Self::Server(server) => &server.origin,
        }
    }

    /// What is asked for them.
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

impl fmt::Debug for KeyServer {
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
    fn what_may_be_secret_never_shows() {
        let set = KeySet { origin: "a/b".into(), json: "hunter2".into() };
        let server = KeyServer {
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
