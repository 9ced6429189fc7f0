//! Secrets of QUIC, derived by HKDF-SHA256 from one secret and the name of the node.
//!
//! Keys belong to a node, not to a cluster. A balancer that hashes addresses may send a packet to another node after
//! the client has changed its address. With a shared key that node would answer with a valid stateless reset, and end a
//! connection that lives on the first node.

use std::sync::Arc;

use aws_lc_rs::{
    error::Unspecified,
    hkdf::{HKDF_SHA256, KeyType, Prk, Salt},
    hmac, rand,
};
use quinn_proto::crypto::{HandshakeTokenKey, HmacKey};
use zeroize::Zeroizing;

/// Separates these keys from those of another use of the same secret.
const SALT: &[u8] = b"xdp-ingress quic 1";

/// Length of each derived key, in bytes.
const LENGTH: usize = 32;

/// The keys of one node.
pub struct Keys {
    cid: [u64; 2],
    reset: Arc<dyn HmacKey>,
    token: Arc<dyn HandshakeTokenKey>,
    ticket: Zeroizing<[u8; LENGTH]>,
}

impl Keys {
    /// Derives the keys of the node `node` from `secret`. The same arguments give the same keys, also after a crash.
    ///
    /// # Errors
    /// If the cryptographic library fails.
    pub fn derive(secret: &[u8], node: &str) -> Result<Self, Unspecified> {
        let root = Salt::new(HKDF_SHA256, SALT).extract(secret);
        let key = |label| expand(&root, label, node);
        let cid = key("quic cid")?;
        let half = |at: usize| cid[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).ok_or(Unspecified);
        Ok(Self {
            cid: [half(0)?, half(8)?],
            reset: Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &*key("quic reset")?)),
            token: Arc::new(Prk::new_less_safe(HKDF_SHA256, &*key("quic token")?)),
            ticket: key("quic ticket")?,
        })
    }

    /// Creates keys without a configured secret. After a crash, the successor cannot reset connections.
    ///
    /// # Errors
    /// If the system has no randomness.
    pub fn random() -> Result<Self, Unspecified> {
        let mut secret = Zeroizing::new([0; LENGTH]);
        rand::fill(&mut *secret)?;
        Self::derive(&*secret, "")
    }

    /// The SipHash key of connection IDs, which the kernel's programs also need.
    #[must_use]
    pub fn cid(&self) -> [u64; 2] {
        self.cid
    }

    /// The key of session tickets. They have another one than those of TCP, because the protocols resume separately.
    #[must_use]
    pub fn ticket(&self) -> &[u8] {
        &*self.ticket
    }

    /// The key of stateless resets. It never leaves the process.
    pub(crate) fn reset(&self) -> Arc<dyn HmacKey> {
        Arc::clone(&self.reset)
    }

    /// The key of Retry tokens.
    pub(crate) fn token(&self) -> Arc<dyn HandshakeTokenKey> {
        Arc::clone(&self.token)
    }
}

/// Names of nodes have no byte 0, so that it separates them from the label.
fn expand(root: &Prk, label: &str, node: &str) -> Result<Zeroizing<[u8; LENGTH]>, Unspecified> {
    struct Length;
    impl KeyType for Length {
        fn len(&self) -> usize {
            LENGTH
        }
    }
    let mut key = Zeroizing::new([0; LENGTH]);
    root.expand(&[label.as_bytes(), b"\0", node.as_bytes()], Length)?.fill(&mut *key)?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reset_of(keys: &Keys) -> [u8; 32] {
        let mut signature = [0; 32];
        keys.reset().sign(b"a connection ID", &mut signature);
        signature
    }

    fn keys(secret: &[u8], node: &str) -> Keys {
        Keys::derive(secret, node).expect("keys")
    }

    #[test]
    fn keys_depend_on_secret_and_node_alone() {
        let one = keys(b"secret", "node-1");
        let same = keys(b"secret", "node-1");
        assert_eq!((one.cid(), one.ticket(), reset_of(&one)), (same.cid(), same.ticket(), reset_of(&same)));
        for other in [keys(b"secret", "node-2"), keys(b"Secret", "node-1"), Keys::random().expect("keys")] {
            assert_ne!(one.cid(), other.cid());
            assert_ne!(one.ticket(), other.ticket());
            assert_ne!(reset_of(&one), reset_of(&other));
        }
    }

    #[test]
    fn keys_differ_among_uses() {
        let root = Salt::new(HKDF_SHA256, SALT).extract(b"secret");
        let derived = ["quic cid", "quic reset", "quic token", "quic ticket"].map(|label| {
            let key = expand(&root, label, "node").expect("a key");
            key.to_vec()
        });
        for (index, key) in derived.iter().enumerate() {
            assert!(!derived[index + 1..].contains(key), "{index}");
        }
    }
}
