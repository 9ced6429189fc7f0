//! Verifies JSON Web Tokens (RFC 7519), and judges what they say. Keys that are in no Secret are kept by `keyring`.
//!
//! The signature is the work: which claims a token has, and which key has signed it, is remembered by a tag of its
//! bytes. All else is judged anew each time, so that a token ends with its time, and with the key that is taken away.
//!
//! What a key may be used for follows from the key and never from the token, which can only choose among that: its
//! `alg` and `kid` are an attacker's until the signature is verified.

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

use crate::{
    model::{ClaimPath, Demanded, KeySet, KeySource, Token, TokenPlace},
    route::template,
};

use super::{remembered::Remembered, snapshot::Snapshot, worker::Worker};

mod fetch;
mod keyring;
mod times;

pub(super) use keyring::Keyrings;

/// Longest token that is looked at.
const TOKEN_MAX: usize = 8 * 1024;
/// Tokens whose signature is remembered.
const REMEMBERED_MAX: usize = 8 * 1024;
/// Key sets that are kept ready, and keys of one that are used.
const SETS_MAX: usize = 256;
const KEYS_MAX: usize = 64;
/// Keys that are tried for a token that names none.
const TRIES_MAX: usize = 8;
/// Shortest secret for HMAC (RFC 7518, 3.2), as base64.
const SECRET_MIN: usize = 43;
/// By how much clocks may differ.
const LEEWAY: Duration = Duration::from_secs(30);

/// Tokens and keys of the process.
pub(super) struct Tokens {
    verified: Remembered<Arc<Verified>>,
    /// How many signatures were looked at.
    count: AtomicU64,
    sets: Remembered<Arc<Keys>>,
}

/// A token whose signature is right.
struct Verified {
    by: Fingerprint,
    claims: Map<String, Value>,
}

/// A key set, ready for use.
struct Keys(Vec<Key>);

struct Key {
    fingerprint: Fingerprint,
    id: Option<String>,
    key: DecodingKey,
    algorithms: Vec<Algorithm>,
}

type Fingerprint = [u8; digest::SHA256_OUTPUT_LEN];

/// Why a token does not let its bearer in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// There is none.
    Missing,
    /// It is none, or not, or no more, or not yet valid here.
    Invalid,
    /// It lacks claims.
    Insufficient,
    /// No key of the set can be used.
    NoKeys,
}

impl Tokens {
    /// # Errors
    /// If there is no randomness.
    pub(super) fn new() -> Result<Self, Unspecified> {
        let count = AtomicU64::new(0);
        Ok(Self { verified: Remembered::new(REMEMBERED_MAX)?, count, sets: Remembered::new(SETS_MAX)? })
    }

    /// How many tokens were verified.
    pub(super) fn verified(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Lets the bearer of the token in `headers` in at `now`, the time since 1970, with fields for the pod. `wanted` is
    /// of a rule of `snapshot`, and `worker` fetches what is to be fetched for it.
    pub(super) async fn judge(
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
                let ring = snapshot.keyrings.of(server).ok_or(Refused::NoKeys)?;
                let fetched = match ring.kept() {
                    Some(fetched) => fetched,
                    // What is no token has nobody ask for keys, nor waits for them.
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
        Ok(passed.map(|(name, claim)| (name.clone(), claim.of(claims).and_then(field))).collect())
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

/// The one token of `headers` in its place.
fn find<'h>(place: &TokenPlace, headers: &'h HeaderMap) -> Result<&'h [u8], Refused> {
    let token = match place {
        TokenPlace::Bearer => {
            let field = one(headers.get_all(header::AUTHORIZATION).iter().map(HeaderValue::as_bytes))?;
            let (scheme, token) = field.split_at_checked(b"Bearer ".len()).ok_or(Refused::Missing)?;
            // Another scheme is no token, and nothing that can be wrong with one.
            scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token).ok_or(Refused::Missing)?
        }
        TokenPlace::Field(name) => one(headers.get_all(name).iter().map(HeaderValue::as_bytes))?,
        TokenPlace::Cookie(name) => one(template::cookies(headers, name))?,
    };
    let token = token.trim_ascii();
    if token.len() > TOKEN_MAX { Err(Refused::Invalid) } else { Ok(token) }
}

/// Of two, each could be meant by somebody else.
fn one<'h>(mut all: impl Iterator<Item = &'h [u8]>) -> Result<&'h [u8], Refused> {
    let first = all.next().ok_or(Refused::Missing)?;
    if all.next().is_some() { Err(Refused::Invalid) } else { Ok(first) }
}

// === impl Keys ===

impl Keys {
    /// Keys that cannot be read do not keep others from being used (RFC 7517, 5).
    fn parse(json: &str) -> Self {
        let set = serde_json::from_str::<Value>(json).unwrap_or_default();
        let keys = set["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
        Self(Self::usable(keys).take(KEYS_MAX).collect())
    }

    /// The keys of a set that anybody may read; `None` if it is none.
    fn published(json: &[u8]) -> Option<Self> {
        let set = serde_json::from_slice::<Value>(json).ok()?;
        // What everybody knows is no secret that could sign.
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

    /// Whether `token` names a key that is not among these.
    fn lack(&self, token: &[u8]) -> bool {
        let named = decode_header(token).ok().and_then(|header| header.kid);
        named.is_some_and(|id| self.0.iter().all(|key| key.id.as_ref() != Some(&id)))
    }

    /// What `token` says, if one of the keys has signed it.
    fn verify(&self, token: &[u8]) -> Option<Verified> {
        let header = decode_header(token).ok()?;
        // An extension that must be understood is not (RFC 7515, 4.1.11); what is encrypted or compressed is no JWS.
        if header.crit.is_some() || header.enc.is_some() || header.zip.is_some() {
            return None;
        }
        let may_have_signed = |key: &&Key| {
            let is_named = header.kid.as_ref().is_none_or(|id| key.id.as_ref() == Some(id));
            is_named && key.algorithms.contains(&header.alg)
        };
        // One that does not say by which key costs no more than it needs to.
        let tries = if header.kid.is_some() { KEYS_MAX } else { TRIES_MAX };
        self.0.iter().filter(may_have_signed).take(tries).find_map(|Key { fingerprint, id: _, key, algorithms }| {
            let mut validation = Validation::new(header.alg);
            validation.algorithms.clone_from(algorithms);
            // Claims are judged by ourselves, each time anew.
            validation.required_spec_claims.clear();
            (validation.validate_exp, validation.validate_nbf, validation.validate_aud) = (false, false, false);
            let claims = decode(token, key, &validation).ok()?.claims;
            Some(Verified { by: *fingerprint, claims })
        })
    }
}

impl Key {
    /// `None` if it is for another purpose, or of a kind that is not known.
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

/// A token without an end is none that could be lost.
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
    // The one claim whose text is a list (RFC 8693, 4.2), and what others call it.
    let is_list = matches!(&*claim.0, "scope" | "scp");
    match claim.of(claims) {
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

impl ClaimPath {
    /// A name with dots in it is looked for first: some have those of a host in them.
    fn of<'c>(&self, claims: &'c Map<String, Value>) -> Option<&'c Value> {
        let Self(path) = self;
        claims.get(&**path).or_else(|| {
            let (first, rest) = path.split_once('.')?;
            rest.split('.').try_fold(claims.get(first)?, |value, name| value.get(name))
        })
    }
}

/// A claim as a field; none where it has no text that a field may have.
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
