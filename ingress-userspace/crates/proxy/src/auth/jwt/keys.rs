//! The keys that verify tokens, parsed from a JSON Web Key Set (RFC 7517).

use aws_lc_rs::digest;
use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, Validation, decode, decode_header,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse},
};
use serde_json::{Map, Value};

/// Number of keys used from one set.
pub(super) const KEYS_MAX: usize = 64;
/// Number of keys tried for a token without a `kid`.
pub(super) const TRIES_MAX: usize = 8;
/// Shortest HMAC secret (RFC 7518, section 3.2), in characters of base64.
const SECRET_MIN: usize = 43;

/// A token with a valid signature.
pub(super) struct Verified {
    pub(super) by: Fingerprint,
    pub(super) claims: Map<String, Value>,
}

/// A parsed key set.
pub(super) struct Keys(pub(super) Vec<Key>);

pub(super) struct Key {
    pub(super) fingerprint: Fingerprint,
    id: Option<String>,
    key: DecodingKey,
    pub(super) algorithms: Vec<Algorithm>,
}

pub(super) type Fingerprint = [u8; digest::SHA256_OUTPUT_LEN];

impl Keys {
    /// Parses a key set. Keys that cannot be parsed are skipped (RFC 7517, section 5).
    pub(super) fn parse(json: &str) -> Self {
        let set = serde_json::from_str::<Value>(json).unwrap_or_default();
        let keys = set["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
        Self(Self::usable(keys).take(KEYS_MAX).collect())
    }

    /// Parses a published key set, or returns `None` if the document is not one.
    pub(super) fn published(json: &[u8]) -> Option<Self> {
        let set = serde_json::from_slice::<Value>(json).ok()?;
        // Secrets for HMAC are skipped: a published secret could be used by anyone to sign.
        let is_public = |key: &Key| !key.algorithms.iter().any(|algorithm| algorithm.family() == AlgorithmFamily::Hmac);
        Some(Self(Self::usable(set["keys"].as_array()?).filter(is_public).take(KEYS_MAX).collect()))
    }

    fn usable(keys: &[Value]) -> impl Iterator<Item = Key> {
        let keys = keys.iter().filter_map(|key| serde_json::from_value::<Jwk>(key.clone()).ok());
        keys.filter_map(|key| Key::of(&key))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether `token` names a key that is not in this set.
    pub(super) fn lack(&self, token: &[u8]) -> bool {
        let named = decode_header(token).ok().and_then(|header| header.kid);
        named.is_some_and(|id| self.0.iter().all(|key| key.id.as_ref() != Some(&id)))
    }

    /// Returns the claims of `token` if one of the keys has signed it.
    pub(super) fn verify(&self, token: &[u8]) -> Option<Verified> {
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
