//! A JSON Web Token that clients must show (RFC 7519). It verifies none. Key sets never show in `Debug`, as keys may be
//! secret.

use std::{fmt, sync::Arc};

use http::HeaderName;

/// What a token must be like, and what becomes of what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub keys: Arc<KeySet>,
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

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, json: _ } = self;
        write!(f, "KeySet({origin})")
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
        write!(f, "token by {}", keys.origin)?;
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
    fn key_sets_never_show() {
        let keys = Arc::new(KeySet { origin: "a/b".into(), json: "hunter2".into() });
        let token = Token {
            keys,
            issuers: ["https://i.test".into()].into(),
            audiences: [].into(),
            place: TokenPlace::Bearer,
            demands: [Demanded { claim: ClaimPath("scope".into()), values: ["a".into(), "b".into()].into() }].into(),
            passed: [(HeaderName::from_static("x-user"), ClaimPath("sub".into()))].into(),
        };
        assert_eq!(token.to_string(), "token by a/b, from https://i.test, scope=a|b, sub as x-user");
        assert!(!format!("{token:?} {token}").contains("hunter2"));
    }
}
