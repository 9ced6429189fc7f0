//! Keys of the configuration that seal session tickets, derived from a Secret. The snapshot holds them.

use std::{fmt, sync::Arc};

use aws_lc_rs::{
    aead::{AES_256_GCM_SIV, Aad, NONCE_LEN, Nonce, RandomizedNonceKey},
    error::Unspecified,
    hkdf::{self, HKDF_SHA256, KeyType},
};
use zeroize::Zeroizing;

use ingress_model::{TicketKey, TicketKeys};

/// The snapshot's keys, ready for use.
pub(crate) struct Seals {
    source: Arc<TicketKeys>,
    /// The first key seals new tickets.
    seals: Vec<Seal>,
}

struct Seal {
    name: [u8; NAME_LEN],
    key: RandomizedNonceKey,
}

impl Seals {
    /// Derives the seals of `keys`, or reuses the `previous` ones if the keys are unchanged. Returns `None` without
    /// keys.
    pub(crate) fn carry(previous: Option<&Arc<Self>>, keys: Option<&Arc<TicketKeys>>) -> Option<Arc<Self>> {
        let keys = keys?;
        if let Some(previous) = previous.filter(|previous| previous.source == *keys) {
            return Some(Arc::clone(previous));
        }
        // Derivation fails only for invalid lengths.
        let seals = keys.keys.iter().filter_map(|key| Seal::derive(key).ok()).collect();
        Some(Arc::new(Self { source: Arc::clone(keys), seals }))
    }

    pub(crate) fn seal(&self, dated: Vec<u8>) -> Option<Vec<u8>> {
        let Seal { name, key } = self.seals.first()?;
        let mut sealed = dated;
        let nonce = key.seal_in_place_append_tag(Aad::from(name), &mut sealed).ok()?;
        Some([&name[..], &nonce.as_ref()[..], &sealed[..]].concat())
    }

    pub(crate) fn open(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (name, sealed) = ticket.split_first_chunk::<NAME_LEN>()?;
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let Seal { name, key } = self.seals.iter().find(|seal| seal.name == *name)?;
        let mut opened = sealed.to_vec();
        let length = key.open_in_place(Nonce::from(nonce), Aad::from(name), &mut opened).ok()?.len();
        opened.truncate(length);
        Some(opened)
    }
}

impl Seal {
    fn derive(key: &TicketKey) -> Result<Self, Unspecified> {
        struct Length(usize);
        impl KeyType for Length {
            fn len(&self) -> usize {
                self.0
            }
        }
        let secret = hkdf::Salt::new(HKDF_SHA256, SALT).extract(key.secret());
        let (mut name, mut bytes) = ([0; NAME_LEN], Zeroizing::new([0; KEY_LEN]));
        secret.expand(&[b"name"], Length(NAME_LEN))?.fill(&mut name)?;
        secret.expand(&[b"key"], Length(KEY_LEN))?.fill(&mut *bytes)?;
        Ok(Self { name, key: RandomizedNonceKey::new(&AES_256_GCM_SIV, &*bytes)? })
    }
}

impl fmt::Debug for Seals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, seals: _ } = self;
        fmt::Debug::fmt(source, f)
    }
}

const NAME_LEN: usize = 16;

const KEY_LEN: usize = 32;

/// Separates these keys from those of another use of the same secret, such as nginx'.
const SALT: &[u8] = b"xdp-ingress tickets 1";
