//! Tokens (RFC 7519) that clients must present, with the Secret of the signing keys, or the JWKS endpoint that has them.
//! Keys are not fetched here.

use std::sync::Arc;

use http::HeaderName;

use super::{
    row::{Row, key},
    scope::{Refusal, Scope},
    url::{self, Author, Url},
};
use crate::{
    change::Kind,
    outcome::Reason,
    translate::{
        certificate_secret::field,
        destination::Purpose,
        text::shorten,
        values::{Read, secret},
    },
};
use ingress_model::{
    ClaimPath, Demanded, Filter, HeaderEdit, HeaderEdits, JwksEndpoint, KeySet, KeySource, Token, TokenPlace,
};

/// Sorted by name.
pub(super) const ANNOTATIONS: &[Row<ParsedJwt>] = &[
    key("jwt-audience", "accepted audiences (`aud`), separated by commas; the token must name one. Without it, any")
        .or_refuse()
        .reads(|value, parsed| parsed.audiences(value)),
    key(
        "jwt-claims-to-headers",
        "claims to send to pods as fields, as `sub=X-User, realm_access.roles=X-Roles`; pods never get these fields \
         from clients",
    )
    .or_refuse()
    .reads(|value, parsed| parsed.passed(value)),
    key("jwt-cookie", "cookie with the token, instead of `Authorization: Bearer`")
        .or_refuse()
        .reads(|value, parsed| parsed.cookie(value)),
    key("jwt-header", "field with only the token, instead of `Authorization: Bearer`")
        .or_refuse()
        .reads(|value, parsed| parsed.header(value)),
    key("jwt-issuer", "accepted issuers (`iss`), separated by commas; the token must name one. Without it, any")
        .or_refuse()
        .reads(|value, parsed| parsed.issuers(value)),
    key(
        "jwt-jwks-ca-secret",
        "a Secret with the authorities, in `ca.crt`, that may issue the certificate for the host of `jwt-jwks-url`, \
         instead of public ones. Specific to xdp-ingress",
    )
    .naming(Kind::Secret)
    .or_refuse()
    .reads(|value, parsed| secret(value, &mut parsed.authorities)),
    key(
        "jwt-jwks-secret",
        "a Secret with a JSON Web Key Set (RFC 7517) under `jwks`. Clients must present a valid token (RFC 7519), \
         signed by one of these keys, with an expiry that is not over by 30 s; other requests get 401. See \
         [tokens.md](tokens.md)",
    )
    .naming(Kind::Secret)
    .or_refuse()
    .reads(|value, parsed| secret(value, &mut parsed.secret)),
    key(
        "jwt-jwks-url",
        "URL of the key set instead. `https://login.test/jwks` follows the rules for external names, with a \
         certificate of a public authority or of one in `jwt-jwks-ca-secret`. \
         `http://NAME.NAMESPACE.svc.cluster.local/PATH` names a Service; in another namespace only if a \
         ReferenceGrant there or `--allow-cross-namespace-services` allows it. The set is refreshed according to its \
         `Cache-Control`. Requests get 503 until it has arrived once. Specific to xdp-ingress",
    )
    .or_refuse()
    .leading_to(|value, _namespace| url::service_of(value))
    .reads(|value, parsed| parsed.url(value)),
    key(
        "jwt-required-claims",
        "claims that the token must have, as `email_verified=true, scope=read, sub`; other requests get 403. A value \
         matches a text, an element of a list or a word of `scope`. Bars separate alternative values; without a \
         value, any value matches",
    )
    .or_refuse()
    .reads(|value, parsed| parsed.demands(value)),
];

/// The values of `jwt-…`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParsedJwt {
    secret: Option<String>,
    url: Option<Url>,
    /// The Secret with trust anchors for the host of `url`.
    authorities: Option<String>,
    issuers: Vec<Box<str>>,
    audiences: Vec<Box<str>>,
    place: TokenPlace,
    demands: Vec<Demanded>,
    passed: Vec<(HeaderName, ClaimPath)>,
}

// === impl ParsedJwt ===

/// Each method reads the value of one key.
impl ParsedJwt {
    fn url(&mut self, value: &str) -> Read {
        let url = Url::parse(value).and_then(|url| url.verified().map_err(str::to_owned)).map_err(|why| {
            format!("a URL as `https://login.test/jwks`, or `http://NAME.NAMESPACE.svc.cluster.local/PATH` ({why})")
        })?;
        self.url = Some(url);
        Ok(())
    }

    fn issuers(&mut self, value: &str) -> Read {
        self.issuers = list(value, ',').ok_or("issuers, as in `iss` of a token, separated by commas")?;
        Ok(())
    }

    fn audiences(&mut self, value: &str) -> Read {
        self.audiences = list(value, ',').ok_or("audiences, as in `aud` of a token, separated by commas")?;
        Ok(())
    }

    fn header(&mut self, value: &str) -> Read {
        let name = HeaderName::try_from(value).map_err(|_invalid| "the name of a header field")?;
        self.place = if name == http::header::AUTHORIZATION { TokenPlace::Bearer } else { TokenPlace::Field(name) };
        Ok(())
    }

    fn cookie(&mut self, value: &str) -> Read {
        // RFC 6265, 4.1.1.
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if value.is_empty() || !value.bytes().all(is_token) {
            return Err("the name of a cookie".into());
        }
        self.place = TokenPlace::Cookie(value.into());
        Ok(())
    }

    fn demands(&mut self, value: &str) -> Read {
        const EXPECTED: &str = "claims, separated by commas, as `email_verified=true, scope=read|write, sub`";
        let demanded = |part: Box<str>| {
            let (claim, values) = match part.split_once('=') {
                Some((claim, values)) => (claim.trim(), list(values, '|')?),
                None => (&*part, Vec::new()),
            };
            Some(Demanded { claim: path(claim)?, values: values.into() })
        };
        let demands = list(value, ',').and_then(|parts| parts.into_iter().map(demanded).collect::<Option<_>>());
        self.demands = demands.ok_or(EXPECTED)?;
        Ok(())
    }

    fn passed(&mut self, value: &str) -> Read {
        let pair = |part: Box<str>| {
            let (claim, field) = part.split_once('=')?;
            Some((path(claim.trim())?, field.trim().to_owned()))
        };
        let pairs = list(value, ',').and_then(|parts| parts.into_iter().map(pair).collect::<Option<Vec<_>>>());
        let pairs =
            pairs.ok_or("claims with names of header fields, separated by commas, as `sub=X-User, email=X-Email`")?;
        // The same rule as for every request field that an Ingress sets: the fields of HTTP itself are refused.
        let names = HeaderEdits::setting(pairs.iter().map(|(_, field)| (field.as_str(), "")))
            .map_err(|error| format!("claims with names of header fields ({error})"))?;
        let names = names.iter().map(HeaderEdit::name).cloned();
        self.passed = names.zip(pairs.into_iter().map(|(claim, _)| claim)).collect();
        Ok(())
    }

    pub(super) fn is_wanted(&self) -> bool {
        *self != Self::default()
    }

    /// Returns `true` if the token is in the field that would also hold a password.
    pub(super) fn reads_authorization(&self) -> bool {
        self.place == TokenPlace::Bearer
    }

    /// Returns the demands on tokens, if any, or the reason why they cannot be met.
    pub(super) fn build(self, scope: &mut Scope<'_, '_>) -> Result<Option<Token>, Refusal> {
        if !self.is_wanted() {
            return Ok(None);
        }
        let Self { secret, url, authorities, issuers, audiences, place, demands, passed } = self;
        if authorities.is_some() && !url.as_ref().is_some_and(Url::is_secure) {
            let message = "annotation `jwt-jwks-ca-secret` names certificate authorities for the host of a `jwt-jwks-url` with `https://`, but there is no such URL; its rules answer 503, remove it";
            return Err((Reason::InvalidAnnotation, message.into()));
        }
        let keys = match (secret, url) {
            (Some(value), None) => KeySource::Secret(held(&value, scope)?.into()),
            (None, Some(url)) => KeySource::Server(server(&url, authorities.as_deref(), scope)?.into()),
            (Some(_), Some(_)) => {
                let message = "annotations `jwt-jwks-secret` and `jwt-jwks-url` both name keys for tokens; its rules answer 503, remove one";
                return Err((Reason::InvalidAnnotation, message.into()));
            }
            (None, None) => {
                let message = "annotations `jwt-…` require tokens, but there is neither `jwt-jwks-secret` nor `jwt-jwks-url`; its rules answer 503, set one";
                return Err((Reason::InvalidAnnotation, message.into()));
            }
        };
        Ok(Some(Token {
            keys,
            issuers: issuers.into(),
            audiences: audiences.into(),
            place,
            demands: demands.into(),
            passed: passed.into(),
        }))
    }
}

/// Returns the edit that strips the fields that a verified token would set, so that clients cannot forge them on
/// unauthenticated paths.
pub(super) fn unclaimed(token: &Token) -> Option<Filter> {
    let mut edits = HeaderEdits::default();
    for (name, _) in &token.passed {
        edits.push(HeaderEdit::Remove(name.clone()));
    }
    (!edits.is_empty()).then(|| Filter::RequestHeaders(Arc::new(edits)))
}

/// Returns the parts of a list; `None` if there are none, or one is empty.
fn list(value: &str, separator: char) -> Option<Vec<Box<str>>> {
    let part = |part: &str| Some(part.trim()).filter(|part| !part.is_empty()).map(Box::from);
    value.split(separator).map(part).collect()
}

fn path(claim: &str) -> Option<ClaimPath> {
    let is_path = !claim.is_empty() && claim.chars().all(|c| !c.is_control() && !c.is_whitespace());
    is_path.then(|| ClaimPath(claim.into()))
}

/// Returns the JWKS endpoint at `url`. If a Secret `authorities` is named, only its certificates are trust anchors for
/// the host.
fn server(url: &Url, authorities: Option<&str>, scope: &mut Scope<'_, '_>) -> Result<JwksEndpoint, Refusal> {
    let invalid = |message| (Reason::InvalidAnnotation, message);
    if let Some(name) = url.service()
        && scope.lookup.service(&name).is_some_and(|stored| stored.object.external_name.is_some())
    {
        return Err(invalid(format!(
            "service `{name}` of `jwt-jwks-url` is of type ExternalName, and its host cannot be verified over `http://`; its rules answer 503, write `https://` and the external name"
        )));
    }
    let url = match authorities {
        None => url.clone(),
        Some(value) => url.clone().verified_by(scope.own("jwt-jwks-ca-secret", value, "Secret")?),
    };
    let refused = || {
        invalid(format!(
            "keys cannot be fetched from `{}` of `jwt-jwks-url`; its rules answer 503, correct the URL or the problem reported for its host",
            shorten(url.shown())
        ))
    };
    let (upstream, _) = url.upstream("jwt-jwks-url", Author::Ingress, Purpose::Keys, scope).ok_or_else(refused)?;
    let (origin, host) = (url.origin().into(), url.shown().into());
    let target = url.target().literal().ok_or_else(refused)?.into();
    Ok(JwksEndpoint { origin, upstream, host, target })
}

/// Returns the keys in the Secret `value`.
fn held(value: &str, scope: &mut Scope<'_, '_>) -> Result<KeySet, Refusal> {
    let name = scope.own("jwt-jwks-secret", value, "Secret")?;
    let Some(stored) = scope.lookup.secret(&name) else {
        let message = format!("secret `{name}` of `jwt-jwks-secret` does not exist; its rules answer 503, create it");
        return Err((Reason::SecretNotFound, message));
    };
    let json = field(&stored.object, KeySet::FIELD).and_then(|json| str::from_utf8(json).ok());
    let json = json.filter(|json| is_key_set(json)).ok_or_else(|| {
        let message = format!(
            "secret `{name}` of `jwt-jwks-secret` has no JSON Web Key Set with a key of kind `RSA`, `EC`, `OKP` or `oct` under `{}`; its rules answer 503, add it",
            KeySet::FIELD
        );
        (Reason::InvalidCredentials, message)
    })?;
    Ok(KeySet { origin: name.to_string().into(), json: json.into() })
}

/// Returns `true` if there is a key of a known kind (RFC 7518, 6.1; RFC 8037). The key itself is checked only when it
/// is used.
fn is_key_set(json: &str) -> bool {
    let Ok(set) = serde_json::from_str::<serde_json::Value>(json) else { return false };
    let kinds = set["keys"].as_array().into_iter().flatten().filter_map(|key| key["kty"].as_str());
    let mut known = kinds.filter(|kind| matches!(*kind, "RSA" | "EC" | "OKP" | "oct"));
    known.next().is_some()
}
