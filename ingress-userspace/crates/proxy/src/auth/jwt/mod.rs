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
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use aws_lc_rs::{digest, error::Unspecified};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, Validation, decode, decode_header,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse},
};
use serde_json::{Map, Value};

use ingress_model::{ClaimPath, Demanded, KeySet, KeySource, Token, TokenPlace, route::template};

use crate::{auth::hmac_cache::HmacCache, server::worker::Worker, snapshot::Snapshot};

mod fetch;
mod jwks_cache;
mod refresh;
mod times;

pub(crate) use jwks_cache::JwksCaches;

/// Longest token that is parsed, in bytes.
const TOKEN_MAX: usize = 8 * 1024;
/// Number of tokens with a cached verification.
const CACHED_MAX: usize = 8 * 1024;
/// Number of parsed key sets in the cache, and of keys used from one set.
const SETS_MAX: usize = 256;
const KEYS_MAX: usize = 64;
/// Number of keys tried for a token without a `kid`.
const TRIES_MAX: usize = 8;
/// Shortest HMAC secret (RFC 7518, section 3.2), in characters of base64.
const SECRET_MIN: usize = 43;
/// Tolerance for differing clocks.
const LEEWAY: Duration = Duration::from_secs(30);

/// Caches of verified tokens and parsed key sets, for the whole process.
pub(crate) struct Tokens {
    verified: HmacCache<Arc<Verified>>,
    /// Number of signatures verified.
    count: AtomicU64,
    sets: HmacCache<Arc<Keys>>,
}

/// A token with a valid signature.
struct Verified {
    by: Fingerprint,
    claims: Map<String, Value>,
}

/// A parsed key set.
struct Keys(Vec<Key>);

struct Key {
    fingerprint: Fingerprint,
    id: Option<String>,
    key: DecodingKey,
    algorithms: Vec<Algorithm>,
}

type Fingerprint = [u8; digest::SHA256_OUTPUT_LEN];

/// The reason why a token is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
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
    /// # Errors
    /// If the system provides no randomness.
    pub(crate) fn new() -> Result<Self, Unspecified> {
        let count = AtomicU64::new(0);
        Ok(Self { verified: HmacCache::new(CACHED_MAX)?, count, sets: HmacCache::new(SETS_MAX)? })
    }

    /// Returns the number of signatures verified.
    pub(crate) fn verified(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Checks the token in `headers` at `now`, the time since 1970, and returns the fields to set for the pod. `wanted`
    /// belongs to a rule of `snapshot`, and `worker` fetches missing keys.
    pub(crate) async fn judge(
        &self,
        wanted: &Token,
        headers: &HeaderMap,
        now: Duration,
        snapshot: &Snapshot,
        worker: &Rc<Worker>,
    ) -> Result<Vec<(HeaderName, Option<HeaderValue>)>, Refused> {
        let token = find(&wanted.place, headers)?;
        let verified = match &wanted.keys {
            KeySource::Secret(set) => self.verify(token, &self.keys(set))?,
            KeySource::Server(server) => {
                let ring = snapshot.jwks_caches.of(server).ok_or(Refused::NoKeys)?;
                let fetched = match ring.kept() {
                    Some(fetched) => fetched,
                    // A malformed token does not start a fetch of keys, nor wait for one.
                    None if decode_header(token).is_err() => return Err(Refused::Invalid),
                    None => ring.fetched(worker.options.key_patience, worker).await.ok_or(Refused::NoKeys)?,
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
            return Err(Refused::Invalid);
        }
        if !wanted.demands.iter().all(|demanded| is_met(demanded, claims)) {
            return Err(Refused::Insufficient);
        }
        let passed = wanted.passed.iter();
        Ok(passed.map(|(name, claim)| (name.clone(), claim_at(claim, claims).and_then(field))).collect())
    }

    fn verify(&self, token: &[u8], keys: &Keys) -> Result<Arc<Verified>, Refused> {
        if keys.is_empty() {
            return Err(Refused::NoKeys);
        }
        let tag = self.verified.tag(&[token]);
        if let Some(known) =
            self.verified.get(&tag).filter(|known| keys.0.iter().any(|key| key.fingerprint == known.by))
        {
            return Ok(known);
        }
        self.count.fetch_add(1, Relaxed);
        let verified = keys.verify(token).map(Arc::new).ok_or(Refused::Invalid)?;
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
fn find<'h>(place: &TokenPlace, headers: &'h HeaderMap) -> Result<&'h [u8], Refused> {
    let token = match place {
        TokenPlace::Bearer => {
            let field = one(headers.get_all(header::AUTHORIZATION).iter().map(HeaderValue::as_bytes))?;
            let (scheme, token) = field.split_at_checked(b"Bearer ".len()).ok_or(Refused::Missing)?;
            // Another scheme counts as a missing token, not as an invalid one.
            scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token).ok_or(Refused::Missing)?
        }
        TokenPlace::Field(name) => one(headers.get_all(name).iter().map(HeaderValue::as_bytes))?,
        TokenPlace::Cookie(name) => one(template::cookies(headers, name))?,
    };
    let token = token.trim_ascii();
    if token.len() > TOKEN_MAX { Err(Refused::Invalid) } else { Ok(token) }
}

/// Returns the only element. Two tokens are refused, because the pod could read the other one.
fn one<'h>(mut all: impl Iterator<Item = &'h [u8]>) -> Result<&'h [u8], Refused> {
    let first = all.next().ok_or(Refused::Missing)?;
    if all.next().is_some() { Err(Refused::Invalid) } else { Ok(first) }
}

// === impl Keys ===

impl Keys {
    /// Parses a key set. Keys that cannot be parsed are skipped (RFC 7517, section 5).
    fn parse(json: &str) -> Self {
        let set = serde_json::from_str::<Value>(json).unwrap_or_default();
        let keys = set["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
        Self(Self::usable(keys).take(KEYS_MAX).collect())
    }

    /// Parses a published key set, or returns `None` if the document is not one.
    fn published(json: &[u8]) -> Option<Self> {
        let set = serde_json::from_slice::<Value>(json).ok()?;
        // Secrets for HMAC are skipped: a published secret could be used by anyone to sign.
        let is_public = |key: &Key| !key.algorithms.iter().any(|algorithm| algorithm.family() == AlgorithmFamily::Hmac);
        Some(Self(Self::usable(set["keys"].as_array()?).filter(is_public).take(KEYS_MAX).collect()))
    }

    fn usable(keys: &[Value]) -> impl Iterator<Item = Key> {
        let keys = keys.iter().filter_map(|key| serde_json::from_value::<Jwk>(key.clone()).ok());
        keys.filter_map(|key| Key::of(&key))
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether `token` names a key that is not in this set.
    fn lack(&self, token: &[u8]) -> bool {
        let named = decode_header(token).ok().and_then(|header| header.kid);
        named.is_some_and(|id| self.0.iter().all(|key| key.id.as_ref() != Some(&id)))
    }

    /// Returns the claims of `token` if one of the keys has signed it.
    fn verify(&self, token: &[u8]) -> Option<Verified> {
        let header = decode_header(token).ok()?;
        // Critical extensions are not supported, so such a token is rejected (RFC 7515, section 4.1.11). An encrypted
        // or compressed token is not a JWS.
        if header.crit.is_some() || header.enc.is_some() || header.zip.is_some() {
            return None;
        }
        let may_have_signed = |key: &&Key| {
            let is_named = header.kid.as_ref().is_none_or(|id| key.id.as_ref() == Some(id));
            is_named && key.algorithms.contains(&header.alg)
        };
        // Limits the work for tokens without a `kid`.
        let tries = if header.kid.is_some() { KEYS_MAX } else { TRIES_MAX };
        self.0.iter().filter(may_have_signed).take(tries).find_map(|Key { fingerprint, id: _, key, algorithms }| {
            let mut validation = Validation::new(header.alg);
            validation.algorithms.clone_from(algorithms);
            // The claims are checked by this module, for each request.
            validation.required_spec_claims.clear();
            (validation.validate_exp, validation.validate_nbf, validation.validate_aud) = (false, false, false);
            let claims = decode(token, key, &validation).ok()?.claims;
            Some(Verified { by: *fingerprint, claims })
        })
    }
}

impl Key {
    /// Returns `None` if the key is for another purpose, or of an unknown type.
    fn of(jwk: &Jwk) -> Option<Self> {
        let algorithms: &[Algorithm] = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => &[
                Algorithm::RS256,
                Algorithm::RS384,
                Algorithm::RS512,
                Algorithm::PS256,
                Algorithm::PS384,
                Algorithm::PS512,
            ],
            AlgorithmParameters::EllipticCurve(key) => match key.curve {
                EllipticCurve::P256 => &[Algorithm::ES256],
                EllipticCurve::P384 => &[Algorithm::ES384],
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => &[Algorithm::EdDSA],
            AlgorithmParameters::OctetKey(key) if key.value.len() >= SECRET_MIN => {
                &[Algorithm::HS256, Algorithm::HS384, Algorithm::HS512]
            }
            _ => return None,
        };
        let common = &jwk.common;
        let is_for_signatures =
            common.public_key_use.as_ref().is_none_or(|purpose| *purpose == PublicKeyUse::Signature);
        let may_verify =
            common.key_operations.as_ref().is_none_or(|operations| operations.contains(&KeyOperations::Verify));
        let algorithms: Vec<_> = match common.key_algorithm {
            None => algorithms.to_vec(),
            Some(only) => {
                let only = Algorithm::try_from(only).ok()?;
                algorithms.iter().copied().filter(|algorithm| *algorithm == only).collect()
            }
        };
        let is_usable = is_for_signatures && may_verify && !algorithms.is_empty();
        let bytes = serde_json::to_vec(jwk).ok()?;
        let mut fingerprint = Fingerprint::default();
        fingerprint.copy_from_slice(digest::digest(&digest::SHA256, &bytes).as_ref());
        is_usable.then_some(())?;
        Some(Self { fingerprint, id: common.key_id.clone(), key: DecodingKey::from_jwk(jwk).ok()?, algorithms })
    }
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
