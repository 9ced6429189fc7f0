//! Reads the tokens that clients must present, with the Secret of the signing keys, or the JWKS endpoint that has them.
//! It fetches no keys.

use std::sync::Arc;

use http::HeaderName;

use super::{
    super::{
        destination::{Asker, Purpose},
        secret,
        values::Read,
    },
    Context,
    url::Author,
};
use crate::{
    change::ObjectName,
    outcome::{ObjectRef, Reason},
    translate::{
        parsed_annotations::{ParsedToken, Url},
        text::{own_object, shorten},
    },
};
use ingress_model::{ClaimPath, Demanded, HeaderEdit, HeaderEdits, KeyServer, KeySet, KeySource, Token, TokenPlace};

// === impl ParsedToken ===

/// Each method reads the value of one key.
impl ParsedToken {
    pub(super) fn url(&mut self, value: &str) -> Read {
        let url = Url::parse(value).and_then(|url| url.verified().map_err(str::to_owned)).map_err(|why| {
            format!("a URL as `https://login.test/jwks`, or `http://NAME.NAMESPACE.svc.cluster.local/PATH` ({why})")
        })?;
        self.url = Some(url);
        Ok(())
    }

    pub(super) fn issuers(&mut self, value: &str) -> Read {
        self.issuers = list(value, ',').ok_or("issuers, as in `iss` of a token, separated by commas")?;
        Ok(())
    }

    pub(super) fn audiences(&mut self, value: &str) -> Read {
        self.audiences = list(value, ',').ok_or("audiences, as in `aud` of a token, separated by commas")?;
        Ok(())
    }

    pub(super) fn header(&mut self, value: &str) -> Read {
        let name = HeaderName::try_from(value).map_err(|_invalid| "the name of a header field")?;
        self.place = if name == http::header::AUTHORIZATION { TokenPlace::Bearer } else { TokenPlace::Field(name) };
        Ok(())
    }

    pub(super) fn cookie(&mut self, value: &str) -> Read {
        // RFC 6265, 4.1.1.
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if value.is_empty() || !value.bytes().all(is_token) {
            return Err("the name of a cookie".into());
        }
        self.place = TokenPlace::Cookie(value.into());
        Ok(())
    }

    pub(super) fn demands(&mut self, value: &str) -> Read {
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

    pub(super) fn passed(&mut self, value: &str) -> Read {
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

/// Returns the token demands of `parsed`, or the reason why they cannot be met.
pub(super) fn make(
    parsed: &ParsedToken,
    ingress: &ObjectName,
    object: &ObjectRef,
    context: &mut Context<'_>,
) -> Result<Token, (Reason, String)> {
    let ParsedToken { secret, url, authorities, issuers, audiences, place, demands, passed } = parsed;
    if authorities.is_some() && !url.as_ref().is_some_and(Url::is_secure) {
        let message = "annotation `jwt-jwks-ca-secret` names certificate authorities for the host of a `jwt-jwks-url` with `https://`, but there is no such URL; its rules answer 503, remove it";
        return Err((Reason::InvalidAnnotation, message.into()));
    }
    let keys = match (secret, url) {
        (Some(value), None) => KeySource::Secret(held(value, ingress, context)?.into()),
        (None, Some(url)) => KeySource::Server(server(url, authorities.as_deref(), ingress, object, context)?.into()),
        (Some(_), Some(_)) => {
            let message = "annotations `jwt-jwks-secret` and `jwt-jwks-url` both name keys for tokens; its rules answer 503, remove one";
            return Err((Reason::InvalidAnnotation, message.into()));
        }
        (None, None) => {
            let message = "annotations `jwt-…` require tokens, but there is neither `jwt-jwks-secret` nor `jwt-jwks-url`; its rules answer 503, set one";
            return Err((Reason::InvalidAnnotation, message.into()));
        }
    };
    Ok(Token {
        keys,
        issuers: issuers.clone().into(),
        audiences: audiences.clone().into(),
        place: place.clone(),
        demands: demands.clone().into(),
        passed: passed.clone().into(),
    })
}

/// Returns the JWKS endpoint at `url`. If a Secret `authorities` is named, only its certificates are trust anchors for
/// the host.
fn server(
    url: &Url,
    authorities: Option<&str>,
    ingress: &ObjectName,
    object: &ObjectRef,
    context: &mut Context<'_>,
) -> Result<KeyServer, (Reason, String)> {
    let invalid = |message| (Reason::InvalidAnnotation, message);
    if let Some(name) = url.service()
        && context.service(&name).is_some_and(|stored| stored.object.external_name.is_some())
    {
        return Err(invalid(format!(
            "service `{name}` of `jwt-jwks-url` is of type ExternalName, and its host cannot be verified over `http://`; its rules answer 503, write `https://` and the external name"
        )));
    }
    let url = match authorities.map(|value| own_object(value, &ingress.namespace).ok_or(value)) {
        None => url.clone(),
        Some(Ok(name)) => url.clone().verified_by(name),
        Some(Err(value)) => {
            return Err(invalid(format!(
                "annotation `jwt-jwks-ca-secret` names `{}`, which is in another namespace; its rules answer 503, name a Secret of its own",
                shorten(value)
            )));
        }
    };
    let refused = || {
        invalid(format!(
            "keys cannot be fetched from `{}` of `jwt-jwks-url`; its rules answer 503, correct the URL or the problem reported for its host",
            shorten(url.shown())
        ))
    };
    let asker = Asker { purpose: Purpose::Keys, namespace: Arc::clone(&ingress.namespace) };
    let (upstream, _) = url.upstream("jwt-jwks-url", Author::Ingress, &asker, object, context).ok_or_else(refused)?;
    let (origin, host) = (url.origin().into(), url.shown().into());
    let target = url.target().literal().ok_or_else(refused)?.into();
    Ok(KeyServer { origin, upstream, host, target })
}

/// Returns the keys in the Secret `value`.
fn held(value: &str, ingress: &ObjectName, context: &mut Context<'_>) -> Result<KeySet, (Reason, String)> {
    let Some(name) = own_object(value, &ingress.namespace) else {
        let message = format!(
            "annotation `jwt-jwks-secret` names `{}`, which is in another namespace; its rules answer 503, name a Secret of its own",
            shorten(value)
        );
        return Err((Reason::InvalidAnnotation, message));
    };
    let Some(stored) = context.secret(&name) else {
        let message = format!("secret `{name}` of `jwt-jwks-secret` does not exist; its rules answer 503, create it");
        return Err((Reason::SecretNotFound, message));
    };
    let json = secret::field(&stored.object, KeySet::FIELD).and_then(|json| str::from_utf8(json).ok());
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
