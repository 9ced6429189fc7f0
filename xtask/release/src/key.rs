//! The key that signs a release: ECDSA on P-256 with SHA-256, as cosign has it. It is read from a file, and written
//! nowhere.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use aws_lc_rs::encoding::{AsDer as _, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject as _;
use zeroize::Zeroizing;

/// Command that makes a key for this.
const MAKE: &str = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out ~/release.key";

/// A private key.
pub struct Key {
    pair: EcdsaKeyPair,
    random: SystemRandom,
}

// === impl Key ===

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl Key {
    /// Reads a key in PEM from a file, or from a pipe such as `/dev/stdin`.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or has no unencrypted private key on P-256.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read(path).map(Zeroizing::new);
        let text = text.with_context(|| format!("cannot read the key `{}`", path.display()))?;
        Self::from_pem(&text).with_context(|| format!("`{}` holds no key to sign with", path.display()))
    }

    fn from_pem(text: &[u8]) -> Result<Self> {
        if text.windows(9).any(|window| window == b"ENCRYPTED") {
            bail!("it is encrypted; decrypt it, or make another one: `{MAKE}`");
        }
        let key = PrivateKeyDer::from_pem_slice(text).with_context(|| format!("no private key in PEM; `{MAKE}`"))?;
        let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
        let pair = match &key {
            PrivateKeyDer::Pkcs8(key) => EcdsaKeyPair::from_pkcs8(algorithm, key.secret_pkcs8_der()).ok(),
            PrivateKeyDer::Sec1(key) => EcdsaKeyPair::from_private_key_der(algorithm, key.secret_sec1_der()).ok(),
            _ => None,
        };
        let pair = pair.with_context(|| format!("not a key of ECDSA on P-256; `{MAKE}`"))?;
        Ok(Self { pair, random: SystemRandom::new() })
    }

    /// Returns the signature of `message` in base64.
    ///
    /// # Errors
    /// Fails if the system has no random numbers.
    pub fn sign(&self, message: &[u8]) -> Result<String> {
        let signature = self.pair.sign(&self.random, message).context("cannot sign")?;
        Ok(STANDARD.encode(signature))
    }

    /// Returns the public key in PEM.
    ///
    /// # Errors
    /// Fails if it cannot be encoded.
    pub fn public_pem(&self) -> Result<String> {
        let der: PublicKeyX509Der<'_> = self.pair.public_key().as_der().context("cannot encode the public key")?;
        let mut pem = "-----BEGIN PUBLIC KEY-----\n".to_owned();
        for line in STANDARD.encode(der.as_ref()).as_bytes().chunks(64) {
            pem.push_str(&String::from_utf8_lossy(line));
            pem.push('\n');
        }
        Ok(pem + "-----END PUBLIC KEY-----\n")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use aws_lc_rs::encoding::EcPrivateKeyRfc5915Der;
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
    use rustls_pki_types::SubjectPublicKeyInfoDer;

    use super::*;

    pub(crate) fn key() -> Key {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
        Key { pair, random: SystemRandom::new() }
    }

    pub(crate) fn verifies(key: &Key, message: &[u8], signature: &str) -> bool {
        let signature = STANDARD.decode(signature).unwrap();
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key.pair.public_key()).verify(message, &signature).is_ok()
    }

    fn pem(label: &str, der: &[u8]) -> String {
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
    }

    #[test]
    fn both_forms_of_a_key_sign_alike() {
        let original = key();
        let pkcs8 = original.pair.to_pkcs8v1().unwrap();
        let sec1: EcPrivateKeyRfc5915Der<'_> = original.pair.private_key().as_der().unwrap();
        for text in [pem("PRIVATE KEY", pkcs8.as_ref()), pem("EC PRIVATE KEY", sec1.as_ref())] {
            let key = Key::from_pem(text.as_bytes()).unwrap();
            let signature = key.sign(b"message").unwrap();
            assert!(verifies(&original, b"message", &signature) && !verifies(&original, b"another", &signature));
            let public = key.public_pem().unwrap();
            assert_eq!(public, original.public_pem().unwrap());
            assert!(SubjectPublicKeyInfoDer::from_pem_slice(public.as_bytes()).is_ok(), "{public}");
        }
    }

    #[test]
    fn a_key_that_cannot_sign_is_refused_with_a_remedy() {
        let wrong = pem("PRIVATE KEY", &[0x30, 0]);
        for (text, reason) in [
            ("", "no private key in PEM"),
            (key().public_pem().unwrap().as_str(), "no private key in PEM"),
            ("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n", "encrypted"),
            (wrong.as_str(), "not a key of ECDSA on P-256"),
            (pem("RSA PRIVATE KEY", &[0x30, 0]).as_str(), "not a key of ECDSA on P-256"),
        ] {
            let error = format!("{:#}", Key::from_pem(text.as_bytes()).unwrap_err());
            assert!(error.contains(reason) && error.contains("openssl genpkey"), "{text}: {error}");
        }
        assert_eq!(format!("{:?}", key()), "Key");
    }
}
