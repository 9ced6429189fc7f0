//! Certificates of the peers, which exist as long as the run: one for each kind of key, chosen by server name.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256};

use ingress_lab::{client::Trust, credentials::Authority};

/// The server name of the ECDSA certificate, which clients without SNI get, too.
pub(super) const ECDSA: &str = "ecdsa.bench.test";
pub(super) const RSA: &str = "rsa.bench.test";

/// Certificate files in each format that a peer needs, and the trust store for them.
#[derive(Debug)]
pub(super) struct Credentials {
    /// P-256.
    pub(super) ecdsa: Files,
    /// 2048 bits.
    pub(super) rsa: Files,
    pub(super) trust: Trust,
}

#[derive(Debug)]
pub(super) struct Files {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
    /// Certificate and key in one file.
    pub(super) both: PathBuf,
    /// Certificate and key as a Secret of Kubernetes.
    pub(super) secret: PathBuf,
}

impl Credentials {
    /// Writes the files into `folder`.
    pub(super) fn write(folder: &Path) -> anyhow::Result<Self> {
        let authority = Authority::generate()?;
        let files = |name: &str, host: &str, key: &KeyPair| {
            let pair = authority.sign(&[host], key)?;
            let file = |suffix: &str, text: &str| {
                let path = folder.join(format!("{name}.{suffix}"));
                fs::write(&path, text).with_context(|| format!("cannot write `{}`", path.display()))?;
                anyhow::Ok(path)
            };
            anyhow::Ok(Files {
                certificate: file("crt", pair.certificate())?,
                key: file("key", pair.key())?,
                both: file("pem", &format!("{}{}", pair.certificate(), pair.key()))?,
                secret: file("yaml", &pair.secret("default", name))?,
            })
        };
        let key = |algorithm| KeyPair::generate_for(algorithm).context("cannot make a key");
        Ok(Self {
            ecdsa: files("ecdsa", ECDSA, &key(&PKCS_ECDSA_P256_SHA256)?)?,
            rsa: files("rsa", RSA, &key(&PKCS_RSA_SHA256)?)?,
            trust: authority.trust()?,
        })
    }
}
