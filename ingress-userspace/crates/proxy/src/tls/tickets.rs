//! TLS session tickets (RFC 5077; RFC 8446, 4.6.1), with which clients resume sessions. The state of a session is in
//! its ticket, sealed, and nowhere else. The conditions for resumption are up to rustls, which requires the same server
//! name, version and ciphers, and to `tls/mod.rs`, which issues no tickets where client certificates are requested.
//!
//! All workers seal and open with the same keys. Keys in the snapshot are shared by all nodes and processes that have
//! them. Otherwise the keys belong to this process alone: they rotate every six hours, and the previous key is kept.
//!
//! ```text
//! ticket = name of the key (16 bytes) | nonce (12) | AES-256-GCM-SIV(when sealed (8) | state; name as further data)
//! name, key = HKDF-SHA256(secret of the Secret)
//! ```
//!
//! A Secret's key may be in use for a long time, on many nodes that do not know each other's nonces. Therefore the
//! cipher is misuse-resistant: a repeated nonce reveals only whether the same plaintext was sealed twice (RFC 8452).

use std::{fmt, sync::Arc};

use arc_swap::ArcSwap;
use rustls::{crypto::aws_lc_rs::Ticketer, server::ProducesTickets};
use rustls_pki_types::UnixTime;

use ingress_model::Handshakes;

use crate::snapshot::Snapshot;

/// Seals and opens the tickets of all handshakes of the node, according to the current snapshot.
pub(crate) struct Tickets {
    snapshot: Arc<ArcSwap<Snapshot>>,
    own: Arc<dyn ProducesTickets>,
}

/// Seconds by which the clock of the sealing node may be ahead of the local one.
const SKEW: u64 = 300;

impl Tickets {
    pub(crate) fn new(snapshot: Arc<ArcSwap<Snapshot>>) -> Result<Self, rustls::Error> {
        Ok(Self { snapshot, own: Ticketer::new()? })
    }

    fn handshakes(&self) -> Handshakes {
        self.snapshot.load().settings.handshakes
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        self.handshakes().tickets
    }

    fn lifetime(&self) -> u32 {
        let timeout = self.handshakes().session_timeout.as_secs();
        u32::try_from(timeout).unwrap_or(u32::MAX)
    }

    fn encrypt(&self, state: &[u8]) -> Option<Vec<u8>> {
        let dated = dated(UnixTime::now(), state);
        match &self.snapshot.load().seals {
            Some(seals) => seals.seal(dated),
            None => self.own.encrypt(&dated),
        }
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let snapshot = self.snapshot.load();
        // For TLS 1.2, rustls passes tickets on even where `enabled` says that there are none.
        if !snapshot.settings.handshakes.tickets {
            return None;
        }
        let opened = match &snapshot.seals {
            Some(seals) => seals.open(ticket)?,
            None => self.own.decrypt(ticket)?,
        };
        let lifetime = snapshot.settings.handshakes.session_timeout.as_secs();
        state(&opened, UnixTime::now(), lifetime).map(<[u8]>::to_vec)
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets").finish_non_exhaustive()
    }
}

/// Prefixes the state with the time of sealing. Clients are told the lifetime of a ticket, but only its sealed content
/// can be relied on.
fn dated(now: UnixTime, state: &[u8]) -> Vec<u8> {
    [&now.as_secs().to_be_bytes(), state].concat()
}

/// Returns the state in a ticket, unless it is older than `lifetime` seconds.
fn state(opened: &[u8], now: UnixTime, lifetime: u64) -> Option<&[u8]> {
    let (sealed, state) = opened.split_first_chunk()?;
    let (sealed, now) = (u64::from_be_bytes(*sealed), now.as_secs());
    let is_good = now.saturating_sub(sealed) < lifetime && sealed.saturating_sub(now) <= SKEW;
    is_good.then_some(state)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::tls::ticket_keys::Seals;
    use ingress_model::{TicketKey, TicketKeys};

    #[test]
    fn tickets_expire() {
        let at = |seconds: u64| UnixTime::since_unix_epoch(Duration::from_secs(1_700_000_000 + seconds));
        let sealed = dated(at(1000), b"state");
        for (now, expect) in [(1000, true), (1599, true), (1600, false), (999, true), (700, true), (699, false)] {
            assert_eq!(state(&sealed, at(now), 600), expect.then_some(&b"state"[..]), "{now}");
        }
        assert_eq!(state(&sealed[..7], at(1000), 600), None, "too short");
        assert_eq!(state(&dated(at(0), b""), at(0), 600), Some(&b""[..]));
    }

    fn keys(secrets: &[u8]) -> Arc<TicketKeys> {
        let key =
            |first: &u8| TicketKey::new(&(0..80).map(|n| first.wrapping_add(n)).collect::<Vec<_>>()).expect("a key");
        Arc::new(TicketKeys { origin: "a/b".into(), keys: secrets.iter().map(key).collect() })
    }

    fn seals(secrets: &[u8]) -> Arc<Seals> {
        Seals::carry(None, Some(&keys(secrets))).expect("keys")
    }

    /// The ticket was sealed by Python's `cryptography`, so that neither another version nor another library changes
    /// the format.
    #[test]
    fn the_ticket_format_matches_the_documentation() {
        const TICKET: &[u8] = b"\x1d\x70\x3f\x4e\x2c\x46\xd6\x66\x72\x04\x40\x66\xef\x03\xa9\x90nnnnnnnnnnnn\
            \x15\x11\x07\xa6\xf6\x09\x1a\xbc\xad\x3b\x35\x9f\xe8\x41\x50\x75\x34\x2c\x21\xdf\xa9\xb6\xc2\x92\x9d\x5d\x84\xba\x8a";
        let opened = seals(&[0]).open(TICKET).expect("opened");
        assert_eq!(opened, dated(UnixTime::since_unix_epoch(Duration::from_secs(1_700_000_000)), b"state"));
    }

    #[test]
    fn the_first_key_seals_and_each_opens_its_own() {
        let sealed = |secrets| seals(secrets).seal(b"state".to_vec()).expect("sealed");
        for (by, with, expect) in [
            (&[1][..], &[1][..], true),
            (&[1], &[2], false),
            (&[2, 1], &[1], false),
            (&[1], &[2, 1], true),
            (&[2, 1], &[1, 2], true),
            (&[2, 1], &[2], true),
        ] {
            let opened = seals(with).open(&sealed(by));
            assert_eq!(opened.as_deref(), expect.then_some(&b"state"[..]), "{by:?} {with:?}");
        }
        assert_ne!(sealed(&[1]), sealed(&[1]), "never the same twice");
    }

    #[test]
    fn a_modified_ticket_does_not_open() {
        let seals = seals(&[1, 2]);
        let ticket = seals.seal(b"state".to_vec()).expect("sealed");
        assert!(seals.open(&ticket).is_some());
        for at in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[at] ^= 1;
            assert_eq!(seals.open(&changed), None, "{at}");
            assert_eq!(seals.open(&ticket[..at]), None, "{at}");
        }
        assert_eq!(seals.open(&[&ticket[..], b"x"].concat()), None);
    }

    #[test]
    fn equal_keys_are_derived_once_and_redacted() {
        let first = seals(b"Q");
        let carry = |secrets| Seals::carry(Some(&first), Some(&keys(secrets))).expect("keys");
        assert!(Arc::ptr_eq(&carry(b"Q"), &first) && !Arc::ptr_eq(&carry(&[1]), &first));
        assert!(Seals::carry(Some(&first), None).is_none());
        assert_eq!(format!("{first:?}"), "TicketKeys(a/b, 1 keys)");
    }

    #[test]
    fn the_lifetime_of_tickets_follows_the_current_settings() {
        let tickets = Tickets::new(Arc::default()).expect("randomness");
        let publish = |session_timeout, is_on| {
            let mut snapshot = Snapshot::default();
            snapshot.settings.handshakes =
                Handshakes { session_timeout, tickets: is_on, ..snapshot.settings.handshakes };
            tickets.snapshot.store(Arc::new(snapshot));
        };
        assert_eq!((tickets.enabled(), tickets.lifetime()), (true, 43_200));
        let now = UnixTime::now();
        let early = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs() - 1000));
        let ticket = tickets.own.encrypt(&dated(early, b"state")).expect("sealed");
        assert_eq!(tickets.decrypt(&ticket).as_deref(), Some(&b"state"[..]));
        publish(Duration::from_secs(600), true);
        assert_eq!((tickets.decrypt(&ticket), tickets.lifetime()), (None, 600));
        let ticket = tickets.encrypt(b"state").expect("sealed");
        assert_eq!(tickets.decrypt(&ticket).as_deref(), Some(&b"state"[..]));
        publish(Duration::from_secs(600), false);
        assert!(!tickets.enabled());
        assert_eq!(tickets.decrypt(&ticket), None);
    }
}
