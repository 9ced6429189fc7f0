//! Keys that encrypt TLS session tickets, shared by all nodes. No ticket is sealed here. `Debug` never shows keys.

use std::{fmt, sync::Arc};

use zeroize::Zeroizing;

/// Keys that seal and open session tickets.
#[derive(Clone, PartialEq, Eq)]
pub struct TicketKeys {
    /// Display name: `namespace/secret`.
    pub origin: Arc<str>,
    /// At least one key. The first one seals; each of them opens its own tickets.
    pub keys: Vec<TicketKey>,
}

/// Secret input for key derivation. Its memory is wiped on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct TicketKey(Zeroizing<Box<[u8]>>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("has {length} bytes; make one of 80 random bytes, as `openssl rand 80` does, or of 48")]
pub struct TicketKeyError {
    length: usize,
}

impl TicketKeys {
    /// Common prefix of the names of fields with a key. Keys are ordered by field name.
    pub const FIELD: &str = "tickets.key";
}

impl TicketKey {
    /// Takes the content of a file for nginx's `ssl_session_ticket_key`.
    ///
    /// # Errors
    /// Fails unless there are 48 or 80 bytes.
    pub fn new(secret: &[u8]) -> Result<Self, TicketKeyError> {
        match secret.len() {
            48 | 80 => Ok(Self(Zeroizing::new(secret.into()))),
            length => Err(TicketKeyError { length }),
        }
    }

    #[must_use]
    pub fn secret(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, keys } = self;
        write!(f, "TicketKeys({origin}, {} keys)", keys.len())
    }
}

impl fmt::Debug for TicketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketKey([redacted])")
    }
}

#[cfg(test)]
mod tests {
    use zeroize::ZeroizeOnDrop;

    use super::*;

    /// Compiles only if the memory of a key is wiped.
    #[test]
    fn ticket_keys_are_wiped() {
        fn wiped<T: ZeroizeOnDrop>(_: &T) {}
        let TicketKey(bytes) = TicketKey::new(&[7; 48]).expect("a key");
        wiped(&bytes);
    }

    #[test]
    fn debug_redacts_keys_and_errors_quote_none() {
        let key = TicketKey::new(&[b'Q'; 80]).expect("a key");
        let keys = TicketKeys { origin: "a/b".into(), keys: vec![key.clone()] };
        assert_eq!(format!("{key:?} {keys:?}"), "TicketKey([redacted]) TicketKeys(a/b, 1 keys)");
        for length in [0, 47, 49, 79, 81, 108] {
            let error = TicketKey::new(&vec![b'Q'; length]).expect_err("no key");
            assert!(!error.to_string().contains('Q'), "{error}");
        }
        assert_eq!(TicketKey::new(&[7; 48]).expect("a key").secret(), [7; 48]);
    }
}
