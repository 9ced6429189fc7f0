//! Verifies JSON Web Tokens (RFC 7519) and checks their claims. `jwks_cache` caches the keys that are not in a Secret.
//!
//! Verifying the signature is the expensive part. Its result, the claims and the key that has signed, is cached under a
//! MAC of the token. Everything else is checked for each request, so that a token is rejected once it expires or its
//! key is removed.
//!
//! The allowed algorithms depend on the key and never on the token, which can only choose among them: until the
//! signature is verified, an attacker controls the token's `alg` and `kid`.

use std::{
    rc::Rc,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use jsonwebtoken::decode_header;
use serde_json::{Map, Value};

use ingress_model::{ClaimPath, Demanded, KeySet, KeySource, Token, TokenPlace, route::template};

use crate::{
    auth::jwt::keys::{Keys, Verified},
    server::worker::Worker,
    snapshot::Snapshot,
};
use token_cache::Tokens;

mod fetch;
mod jwks_cache;
mod keys;
mod refresh;
mod times;
pub(crate) mod token_cache;

pub(crate) use jwks_cache::JwksCaches;

/// Longest token that is parsed, in bytes.
const TOKEN_MAX: usize = 8 * 1024;

/// Tolerance for differing clocks.
const LEEWAY: Duration = Duration::from_secs(30);

/// The reason why a token is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenRejection {
    /// The request has no token.
    Missing,
    /// The token is malformed, has a wrong signature, has expired or is not yet valid, or was issued by or for another
    /// party.
    Invalid,
    /// The token lacks required claims.
    Insufficient,
    /// The key set has no usable key.
    NoKeys,
}

impl Tokens {
    /// Checks the token in `headers` at `now`, the time since 1970, and returns the fields to set for the pod. `wanted`
    /// belongs to a rule of `snapshot`, and `worker` fetches missing keys.
    pub(crate) async fn judge(
        &self,
        wanted: &Token,
        headers: &HeaderMap,
        now: Duration,
        snapshot: &Snapshot,
        worker: &Rc<Worker>,
    ) -> Result<Vec<(HeaderName, Option<HeaderValue>)>, TokenRejection> {
        let token = find(&wanted.place, headers)?;
        let verified = match &wanted.keys {
            KeySource::Secret(set) => self.verify(token, &self.keys(set))?,
            KeySource::Server(server) => {
                let ring = snapshot.jwks_caches.of(server).ok_or(TokenRejection::NoKeys)?;
                let fetched = match ring.kept() {
                    Some(fetched) => fetched,
                    // A malformed token does not start a fetch of keys, nor wait for one.
                    None if decode_header(token).is_err() => return Err(TokenRejection::Invalid),
                    None => ring.fetched(worker.options.key_patience, worker).await.ok_or(TokenRejection::NoKeys)?,
                };
                self.verify(token, &fetched.keys).inspect_err(|_refused| {
                    if fetched.keys.lack(token) {
                        ring.seek();
                    }
                })?
            }
        };
        let Verified { by: _, claims } = &*verified;
        let is_valid = is_in_time(claims, now) && is_from(claims, &wanted.issuers) && is_for(claims, &wanted.audiences);
        if !is_valid {
            return Err(TokenRejection::Invalid);
        }
        if !wanted.demands.iter().all(|demanded| is_met(demanded, claims)) {
            return Err(TokenRejection::Insufficient);
        }
        let passed = wanted.passed.iter();
        Ok(passed.map(|(name, claim)| (name.clone(), claim_at(claim, claims).and_then(field))).collect())
    }

    fn verify(&self, token: &[u8], keys: &Keys) -> Result<Arc<Verified>, TokenRejection> {
        if keys.is_empty() {
            return Err(TokenRejection::NoKeys);
        }
        let tag = self.verified.tag(&[token]);
        if let Some(known) =
            self.verified.get(&tag).filter(|known| keys.0.iter().any(|key| key.fingerprint == known.by))
        {
            return Ok(known);
        }
        self.count.fetch_add(1, Relaxed);
        let verified = keys.verify(token).map(Arc::new).ok_or(TokenRejection::Invalid)?;
        self.verified.insert(tag, Arc::clone(&verified));
        Ok(verified)
    }

    fn keys(&self, KeySet { origin: _, json }: &KeySet) -> Arc<Keys> {
        let tag = self.sets.tag(&[json.as_bytes()]);
        self.sets.get(&tag).unwrap_or_else(|| {
            let keys = Arc::new(Keys::parse(json));
            self.sets.insert(tag, Arc::clone(&keys));
            keys
        })
    }
}

/// Returns the only token of `headers` at `place`.
fn find<'h>(place: &TokenPlace, headers: &'h HeaderMap) -> Result<&'h [u8], TokenRejection> {
    let token = match place {
        TokenPlace::Bearer => {
            let field = one(headers.get_all(header::AUTHORIZATION).iter().map(HeaderValue::as_bytes))?;
            let (scheme, token) = field.split_at_checked(b"Bearer ".len()).ok_or(TokenRejection::Missing)?;
            // Another scheme counts as a missing token, not as an invalid one.
            scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token).ok_or(TokenRejection::Missing)?
        }
        TokenPlace::Field(name) => one(headers.get_all(name).iter().map(HeaderValue::as_bytes))?,
        TokenPlace::Cookie(name) => one(template::cookies(headers, name))?,
    };
    let token = token.trim_ascii();
    if token.len() > TOKEN_MAX { Err(TokenRejection::Invalid) } else { Ok(token) }
}

/// Returns the only element. Two tokens are refused, because the pod could read the other one.
fn one<'h>(mut all: impl Iterator<Item = &'h [u8]>) -> Result<&'h [u8], TokenRejection> {
    let first = all.next().ok_or(TokenRejection::Missing)?;
    if all.next().is_some() { Err(TokenRejection::Invalid) } else { Ok(first) }
}

// === claims ===

/// Checks `exp` and `nbf`. A token without `exp` is rejected, because a stolen one would stay valid for ever.
fn is_in_time(claims: &Map<String, Value>, now: Duration) -> bool {
    let (now, leeway) = (now.as_secs_f64(), LEEWAY.as_secs_f64());
    let ends = claims.get("exp").and_then(Value::as_f64).is_some_and(|end| now < end + leeway);
    let begins = claims.get("nbf").is_none_or(|begin| begin.as_f64().is_some_and(|begin| begin <= now + leeway));
    ends && begins
}

fn is_from(claims: &Map<String, Value>, issuers: &[Box<str>]) -> bool {
    let issuer = claims.get("iss").and_then(Value::as_str);
    issuers.is_empty() || issuer.is_some_and(|issuer| issuers.iter().any(|known| **known == *issuer))
}

fn is_for(claims: &Map<String, Value>, audiences: &[Box<str>]) -> bool {
    audiences.is_empty() || claims.get("aud").is_some_and(|claim| holds_one(claim, audiences, false))
}

fn is_met(Demanded { claim, values }: &Demanded, claims: &Map<String, Value>) -> bool {
    // `scope` is the only claim with a space-separated list (RFC 8693, section 4.2); some issuers call it `scp`.
    let is_list = matches!(&*claim.0, "scope" | "scp");
    match claim_at(claim, claims) {
        None | Some(Value::Null) => false,
        Some(_) if values.is_empty() => true,
        Some(claim) => holds_one(claim, values, is_list),
    }
}

fn holds_one(claim: &Value, values: &[Box<str>], is_list: bool) -> bool {
    let is_one = |text: &str| values.iter().any(|value| **value == *text);
    match claim {
        Value::String(text) if is_list => text.split(' ').any(is_one),
        Value::String(text) => is_one(text),
        Value::Array(elements) => elements.iter().filter_map(Value::as_str).any(is_one),
        Value::Bool(_) | Value::Number(_) => is_one(&claim.to_string()),
        Value::Null | Value::Object(_) => false,
    }
}

/// Returns the claim at `path`. A claim with the whole path as its name comes first, because some names contain a host
/// name.
fn claim_at<'c>(ClaimPath(path): &ClaimPath, claims: &'c Map<String, Value>) -> Option<&'c Value> {
    claims.get(&**path).or_else(|| {
        let (first, rest) = path.split_once('.')?;
        rest.split('.').try_fold(claims.get(first)?, |value, name| value.get(name))
    })
}

/// Returns a claim as a field value, or `None` if it has no valid text form.
fn field(claim: &Value) -> Option<HeaderValue> {
    let text = match claim {
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => claim.to_string(),
        Value::Array(elements) => elements
            .iter()
            .map(|element| element.as_str().filter(|text| !text.contains(',')))
            .collect::<Option<Vec<_>>>()?
            .join(","),
        Value::Null | Value::Object(_) => return None,
    };
    HeaderValue::from_str(&text).ok()
}

#[cfg(test)]
mod tests;
