//! Authentication requirements of a rule. Credentials are not verified here.

use std::{fmt, sync::Arc};

use http::{HeaderName, HeaderValue};

use super::{Access, ExtAuthz, Token, Users};

/// Required credentials. At least one of the methods is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authentication {
    pub basic: Option<Basic>,
    pub token: Option<Token>,
    pub ext_authz: Option<ExtAuthz>,
    pub satisfy: Satisfy,
}

/// Combination of several conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Satisfy {
    /// All conditions must be met. Network lists are then a separate filter.
    #[default]
    All,
    /// Any condition is enough, and an address in the allowed networks is one.
    Any(Access),
}

/// Basic authentication by name and password (RFC 7617).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basic {
    /// `WWW-Authenticate` header of the 401 response.
    pub challenge: HeaderValue,
    /// Namespace of the rule. Requests waiting for a password hash are scheduled round-robin by namespace.
    pub namespace: Arc<str>,
    pub users: Arc<Users>,
}

// === impl Authentication ===

impl Authentication {
    /// Returns whether a client with this address is admitted without credentials.
    #[must_use]
    pub fn is_met_by(&self, client: std::net::IpAddr) -> bool {
        match &self.satisfy {
            Satisfy::All => false,
            // A deny list alone admits no client.
            Satisfy::Any(access) => !access.allow.is_empty() && access.admits(client),
        }
    }

    /// Yields the removal of each field that pods get from the authorization service alone.
    pub fn claimed(&self) -> impl Iterator<Item = (HeaderName, Option<HeaderValue>)> {
        let passed = self.ext_authz.iter().flat_map(|ext_authz| &ext_authz.response_headers);
        passed.map(|field| (field.to.clone(), None))
    }
}

impl Basic {
    /// Requires a user of `realm`, for a rule of `namespace`. Returns `None` if `realm` has characters not allowed in a
    /// field value.
    #[must_use]
    pub fn new(realm: &str, namespace: &str, users: Arc<Users>) -> Option<Self> {
        let realm = realm.replace('\\', r"\\").replace('"', r#"\""#);
        let challenge = HeaderValue::from_str(&format!(r#"Basic realm="{realm}", charset="UTF-8""#)).ok()?;
        Some(Self { challenge, namespace: namespace.into(), users })
    }
}

/// Shows the number of users, but no data about them.
impl fmt::Display for Authentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { basic, token, ext_authz, satisfy } = self;
        f.write_str("authentication(")?;
        if let Some(Basic { challenge: _, namespace: _, users }) = basic {
            write!(f, "basic, {} users", users.len())?;
        }
        if let Some(token) = token {
            write!(f, "{}{token}", if basic.is_some() { "; " } else { "" })?;
        }
        if let Some(ext_authz) = ext_authz {
            write!(f, "{}external, {ext_authz}", if basic.is_some() || token.is_some() { "; " } else { "" })?;
        }
        match satisfy {
            Satisfy::All => {}
            Satisfy::Any(access) => write!(f, ", or {access}")?,
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Networks;

    #[test]
    fn the_realm_is_quoted_and_escaped() {
        let challenge = |realm| Some(Basic::new(realm, "default", Arc::default())?.challenge.to_str().ok()?.to_owned());
        assert_eq!(challenge("Admin area").as_deref(), Some(r#"Basic realm="Admin area", charset="UTF-8""#));
        assert_eq!(challenge(r#"a"b\c"#).as_deref(), Some(r#"Basic realm="a\"b\\c", charset="UTF-8""#));
        assert_eq!(challenge("a\r\nx: y"), None);
    }

    #[test]
    fn only_an_allow_list_replaces_credentials() {
        let networks = |text| Networks::parse(text).expect("valid");
        for (allow, deny, expect) in [
            ("192.0.2.0/24", "", true),
            ("192.0.2.0/24", "192.0.2.7", false),
            ("10.0.0.0/8", "", false),
            ("", "10.0.0.0/8", false),
            ("", "", false),
        ] {
            let satisfy = Satisfy::Any(Access { allow: networks(allow), deny: networks(deny) });
            let authentication = Authentication { basic: None, token: None, ext_authz: None, satisfy };
            assert_eq!(authentication.is_met_by([192, 0, 2, 7].into()), expect, "{allow} not {deny}");
            assert!(!Authentication { satisfy: Satisfy::All, ..authentication }.is_met_by([192, 0, 2, 7].into()));
        }
    }
}
