//! Authentication of clients by a password, a token or a service: all that an Ingress asks for, combined.

use std::sync::Arc;

use super::{
    basic_auth::ParsedBasicAuth,
    ext_authz::ParsedExtAuthz,
    jwt::{self, ParsedJwt},
    row::{Row, key, prefixes},
    scope::{Refusal, Scope},
};
use crate::outcome::Reason;
use ingress_model::{Access, Authentication, Filter, PathMatch, Satisfy, path::ACME_CHALLENGE};

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedAuthentication>] = &[key(
    "satisfy",
    "`all`: clients must come from an allowed network and authenticate; `any`: one of the two is enough",
)
.default("all")
.reads(|value, parsed| {
    parsed.satisfy_any = match value {
        "all" => false,
        "any" => true,
        _ => return Err("`all` or `any`".into()),
    };
    Ok(())
})];

/// Sorted by name.
pub(super) const DEFAULTS: &[Row<ParsedAuthentication>] =
    &[key("no-auth-locations", "paths, separated by commas; rules at or below them need no authentication")
        .default(ACME_CHALLENGE)
        .reads(|value, parsed| {
            parsed.unauthenticated = prefixes(value)?;
            Ok(())
        })];

/// The combination of what is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParsedAuthentication {
    /// Whether either the network or an authentication is enough.
    satisfy_any: bool,
    /// Paths of rules without authentication. Default that of ACME challenges.
    pub(super) unauthenticated: Arc<[PathMatch]>,
}

impl Default for ParsedAuthentication {
    fn default() -> Self {
        Self { satisfy_any: false, unauthenticated: [PathMatch::Prefix(ACME_CHALLENGE.into())].into() }
    }
}

/// The filters of a rule that decide who may use it.
#[derive(Debug, Default)]
pub(super) struct Guards {
    pub(super) access: Option<Filter>,
    pub(super) authentication: Option<Filter>,
}

/// The ways to authenticate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ways {
    pub(super) basic: ParsedBasicAuth,
    pub(super) jwt: ParsedJwt,
    pub(crate) ext_authz: ParsedExtAuthz,
}

// === impl ParsedAuthentication ===

impl ParsedAuthentication {
    /// Returns the filters for clients' addresses and for authentication, or the reason why they cannot be made.
    pub(super) fn filters(self, ways: Ways, access: Access, scope: &mut Scope<'_, '_>) -> Result<Guards, Refusal> {
        let Self { satisfy_any, unauthenticated: _ } = self;
        let Ways { basic, jwt, ext_authz } = ways;
        let basic = basic.build(scope)?;
        if basic.is_some() && jwt.is_wanted() && jwt.reads_authorization() && !satisfy_any {
            let message = "a request cannot have both a password and a token in `Authorization`; its rules answer 503, take \
             the token from another field with `jwt-header` or `jwt-cookie`, or set `satisfy: any`";
            return Err((Reason::InvalidAnnotation, message.into()));
        }
        let token = jwt.build(scope)?;
        let ext_authz = ext_authz.build(scope)?;
        let asks = basic.is_some() || token.is_some() || ext_authz.is_some();
        let (access, satisfy) = match satisfy_any && asks {
            true => (None, Satisfy::Any(access)),
            false => (Some(access).filter(|access| !access.is_open()), Satisfy::All),
        };
        let authentication =
            asks.then(|| Filter::Authentication(Arc::new(Authentication { basic, token, ext_authz, satisfy })));
        Ok(Guards { access: access.map(|access| Filter::Access(Arc::new(access))), authentication })
    }
}

/// Returns the filter that replaces `filter` on unauthenticated paths.
pub(crate) fn unauthenticated(filter: &Filter) -> Option<Filter> {
    let Filter::Authentication(authentication) = filter else { return Some(filter.clone()) };
    match &authentication.satisfy {
        Satisfy::Any(access) if !access.is_open() => Some(Filter::Access(Arc::new(access.clone()))),
        Satisfy::Any(_) | Satisfy::All => None,
    }
}

/// Returns the filter that unauthenticated paths need instead of `filter`, besides.
pub(crate) fn unclaimed(filter: &Filter) -> Option<Filter> {
    let Filter::Authentication(authentication) = filter else { return None };
    jwt::unclaimed(authentication.token.as_ref()?)
}
