//! Keys that seal the tickets of TLS sessions, which all nodes have alike. It seals none. Keys never show in `Debug`.

use std::{fmt, sync::Arc};

use zeroize::Zeroizing;

/// What seals tickets and opens them.
#[derive(Clone, PartialEq, Eq)]
pub struct TicketKeys {
    /// Where they came from, for people: `namespace/secret`.
    pub origin: Arc<str>,
    /// At least one. The first seals; each opens what it has sealed.
    pub keys: Vec<TicketKey>,
}

/// A secret from which a key is derived. Its memory is wiped when it is given back.
#[derive(Clone, PartialEq, Eq)]
pub struct TicketKey(Zeroizing<Box<[u8]>>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("has {length} bytes; make one of 80 random bytes, as `openssl rand 80` does, or of 48")]
pub struct TicketKeyError {
    length: usize,
}

impl TicketKeys {
    /// What the names of fields that hold one begin with. They count in the order of their names.
    pub const FIELD: &str = "tickets.key";
}

impl TicketKey {
    /// Takes the bytes of a file for nginx' `ssl_session_ticket_key`.
    ///
    /// # Errors
    /// If there are neither 48 nor 80 of them.
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
    use super::*;

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
