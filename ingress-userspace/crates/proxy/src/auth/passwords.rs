//! Verifies passwords on threads of their own and caches those that were right. It reads no requests.
//!
//! Computing a hash takes up to some tenths of a second, so the number of concurrent computations is bounded, and
//! `fair_queue` chooses the next one. A success is cached as "this password has this hash" under a key private to this
//! process. Such an entry stays true whatever happens to the Secret, because a changed hash has another tag. Failures
//! are not cached, and an unknown user costs as much as a known one.

use std::{
    hash::BuildHasher,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use aws_lc_rs::{
    constant_time::verify_slices_are_equal,
    digest::{self, SHA1_FOR_LEGACY_USE_ONLY},
    error::Unspecified,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use foldhash::quality::FixedState;
use sha_crypt::{PasswordVerifier as _, ShaCrypt};
use tokio::task::spawn_blocking;

use ingress_model::{Basic, PasswordHash, Scheme};

use crate::auth::{
    fair_queue::{FairQueue, TurnRequester},
    hmac_cache::HmacCache,
    md5_crypt,
};

/// Right passwords that are cached; 1.5 MB.
const CACHED_MAX: usize = 16 * 1024;

/// Password verifier shared by all workers.
pub(crate) struct Passwords {
    right: HmacCache<()>,
    /// Turns to compute a hash.
    turns: Arc<FairQueue>,
    computed: AtomicU64,
}

/// Too many verifications are queued already, or this one was queued for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many passwords wait to be verified")]
pub(crate) struct QueueFull;

// === impl Passwords ===

impl Passwords {
    /// # Errors
    /// Fails if the system has no randomness.
    pub(crate) fn new() -> Result<Self, Unspecified> {
        // Half of the cores are left to the workers, however many passwords are guessed.
        let running = thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1));
        Ok(Self {
            right: HmacCache::new(CACHED_MAX)?,
            turns: Arc::new(FairQueue::new(running)),
            computed: AtomicU64::new(0),
        })
    }

    /// Returns the number of hashes computed.
    pub(crate) fn computed(&self) -> u64 {
        self.computed.load(Relaxed)
    }

    /// Returns whether `password` is the password of `name`.
    ///
    /// # Errors
    /// Fails if no turn is free in time.
    pub(crate) async fn verify(&self, basic: &Basic, name: &str, password: &[u8]) -> Result<bool, QueueFull> {
        let Basic { challenge: _, namespace, users } = basic;
        let known = users.find(name);
        // The tag stands for "this password has this hash".
        let tag = known.map(|hash| self.right.tag(&[hash.as_str().as_bytes(), password]));
        if tag.is_some_and(|tag| self.right.get(&tag).is_some()) {
            return Ok(true);
        }
        let Some(hash) = known.or_else(|| users.decoy(name)) else { return Ok(false) };
        // Names are hashed without a secret: two namespaces that collide share their turns, which is harmless.
        let requester =
            TurnRequester { namespace: FixedState::default().hash_one(&**namespace), secret: users.fingerprint() };
        let turn = self.turns.wait(requester).await.ok_or(QueueFull)?;
        // A browser sends several requests at once, and the first of them may have computed the answer meanwhile.
        if tag.is_some_and(|tag| self.right.get(&tag).is_some()) {
            return Ok(true);
        }
        self.computed.fetch_add(1, Relaxed);
        let (hash, password) = (hash.clone(), password.to_vec());
        // The thread returns its turn along with the answer. The turn is therefore held until the thread is done if the
        // caller has gone away, and else until the answer is cached.
        let computed = spawn_blocking(move || (is_right(&hash, &password), turn)).await;
        let Ok((is_right, _turn)) = computed else { return Ok(false) };
        let Some(tag) = tag.filter(|_| is_right) else { return Ok(false) };
        self.right.insert(tag, ());
        Ok(true)
    }
}

/// Returns whether `password` has this hash. Takes as long as the hash's cost demands.
fn is_right(hash: &PasswordHash, password: &[u8]) -> bool {
    let text = hash.as_str();
    match hash.scheme() {
        Scheme::Bcrypt => bcrypt::verify(password, text).unwrap_or(false),
        Scheme::ShaCrypt => ShaCrypt::default().verify_password(password, text).is_ok(),
        Scheme::Md5Crypt => {
            let mut fields = text.splitn(4, '$').skip(1);
            let (Some(kind), Some(salt), Some(hash)) = (fields.next(), fields.next(), fields.next()) else {
                return false;
            };
            let computed = md5_crypt::hash(password, &format!("${kind}$"), salt);
            verify_slices_are_equal(&computed, hash.as_bytes()).is_ok()
        }
        Scheme::Sha1 => is_sha1(&text["{SHA}".len()..], password),
        Scheme::SaltedSha1 => is_sha1(&text["{SSHA}".len()..], password),
    }
}

/// Compares with `encoded`, a digest followed by the optional salt that was appended to the password.
fn is_sha1(encoded: &str, password: &[u8]) -> bool {
    let decoded = STANDARD.decode(encoded).unwrap_or_default();
    let Some((expected, salt)) = decoded.split_at_checked(digest::SHA1_OUTPUT_LEN) else { return false };
    let mut context = digest::Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
    context.update(password);
    context.update(salt);
    verify_slices_are_equal(context.finish().as_ref(), expected).is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::auth::fair_queue::Turn;
    use ingress_model::Users;

    /// The vectors come from `htpasswd`, `openssl passwd`, `crypt` of glibc, and the specification of SHA-crypt.
    #[test]
    fn hashes_of_every_kind_are_verified() {
        for (hash, password) in [
            ("$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW", "secret"),
            ("$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW", "U*U"),
            ("$5$saltstring$5B8vYYiY.CVt1RlTTf8KbXBH3hsxY/GNooZaBBGWEc5", "Hello world!"),
            ("$5$rounds=10000$saltstringsaltst$adu1tRu6EO.dtkqxiFBg3N4rgsIjLS8kWOyWI0G2Pz0", "x"),
            (
                "$6$saltstring$svn8UoSVapNtMuq1ukKS4tPQd8iKwSMHWjl/O817G3uBnIFNjnQJuesI68u4OTLiBFdcbYEdFCoEOfaS35inz1",
                "Hello world!",
            ),
            ("$apr1$lZL6V/ci$eIMz/iKDkbtys/uU7LEK00", "password"),
            ("$1$abcdefgh$G//4keteveJp0qb8z2DxG/", "password"),
            ("{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=", "secret"),
            ("{SSHA}Wcm1xEisNjqp921ALcHfuQ7avFdzYWx0MTIzNA==", "secret"),
        ] {
            let parsed = PasswordHash::parse(hash).expect(hash);
            assert!(is_right(&parsed, password.as_bytes()), "{hash}");
            for wrong in ["", "Secret", "secret ", &format!("{password}x")] {
                assert!(!is_right(&parsed, wrong.as_bytes()), "{hash} {wrong}");
            }
        }
    }

    fn basic(namespace: &str, text: &str) -> Arc<Basic> {
        Arc::new(Basic::new("realm", namespace, Arc::new(Users::of_file(text).0)).expect("a realm"))
    }

    fn users(text: &str) -> Arc<Basic> {
        basic("a", text)
    }

    fn passwords() -> Arc<Passwords> {
        Arc::new(Passwords::new().expect("randomness"))
    }

    const SHA: &str = "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=";

    #[tokio::test]
    async fn only_correct_passwords_are_cached() {
        let (passwords, users) = (passwords(), users(&format!("ann:{SHA}")));
        for (name, password, expect, computed) in [
            ("ann", "secret", true, 1),
            ("ann", "secret", true, 1),
            ("ann", "wrong", false, 2),
            ("ann", "wrong", false, 3),
            ("bob", "secret", false, 4),
            ("bob", "secret", false, 5),
            ("ann", "secret", true, 5),
        ] {
            let right = passwords.verify(&users, name, password.as_bytes()).await;
            assert_eq!((right, passwords.computed()), (Ok(expect), computed), "{name} {password}");
        }
    }

    #[tokio::test]
    async fn a_changed_hash_is_verified_anew() {
        let passwords = passwords();
        let before = users(&format!("ann:{SHA}"));
        assert_eq!(passwords.verify(&before, "ann", b"secret").await, Ok(true));
        let after = users("ann:$apr1$lZL6V/ci$eIMz/iKDkbtys/uU7LEK00");
        assert_eq!(passwords.verify(&after, "ann", b"secret").await, Ok(false));
        assert_eq!(passwords.verify(&after, "ann", b"password").await, Ok(true));
        assert_eq!(passwords.verify(&users(""), "ann", b"secret").await, Ok(false));
    }

    #[tokio::test]
    async fn concurrent_requests_of_one_user_compute_one_hash() {
        let (passwords, users) = (passwords(), users(&format!("ann:{SHA}")));
        let first = thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1));
        // Take all turns.
        let held = turns(&passwords, &basic("b", "ann:{SHA}x"), first).await;
        let all: Vec<_> = (0..8)
            .map(|_| {
                let (passwords, users) = (Arc::clone(&passwords), Arc::clone(&users));
                tokio::spawn(async move { passwords.verify(&users, "ann", b"secret").await })
            })
            .collect();
        drop(held);
        for one in all {
            assert_eq!(one.await.expect("ended"), Ok(true));
        }
        assert!(passwords.computed() <= first as u64, "{}", passwords.computed());
    }

    /// Takes `count` turns for `basic` and holds them.
    async fn turns(passwords: &Passwords, basic: &Basic, count: usize) -> Vec<Turn> {
        let requester = TurnRequester { namespace: 1, secret: basic.users.fingerprint() };
        let mut turns = Vec::new();
        for _ in 0..count {
            turns.push(passwords.turns.wait(requester).await.expect("a turn"));
        }
        turns
    }

    #[tokio::test(start_paused = true)]
    async fn guesses_for_one_secret_delay_logins_for_another_by_one_hash() {
        let (passwords, guessed) = (passwords(), basic("evil", &format!("ann:{SHA}")));
        let cores = thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1));
        let held = turns(&passwords, &basic("other", "ann:{SHA}x"), cores).await;
        let answered = Arc::new(Mutex::new(Vec::new()));
        let ask = |basic: &Arc<Basic>, name: &'static str| {
            let (passwords, basic, answered) = (Arc::clone(&passwords), Arc::clone(basic), Arc::clone(&answered));
            tokio::spawn(async move {
                let verdict = passwords.verify(&basic, name, b"secret").await;
                answered.lock().expect("unpoisoned").push((name, verdict));
            })
        };
        let mut asked: Vec<_> = (0..40).map(|_| ask(&guessed, "nobody")).collect();
        tokio::task::yield_now().await;
        asked.push(ask(&basic("good", &format!("bob:{SHA}")), "bob"));
        tokio::task::yield_now().await;
        drop(held);
        for one in asked {
            one.await.expect("ended");
        }
        let answered = answered.lock().expect("unpoisoned");
        let (computed, busy): (Vec<_>, Vec<_>) = answered.iter().partition(|(_, verdict)| *verdict != Err(QueueFull));
        assert!(busy.len() >= 8 && busy.iter().all(|(name, _)| *name == "nobody"), "{answered:?}");
        let login = computed.iter().position(|answer| *answer == ("bob", Ok(true)));
        // At most one turn's worth of guesses runs before the login.
        assert!(computed.len() > cores + 8 && login.is_some_and(|place| place <= cores), "{computed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn overload_is_reported_alike_for_known_and_unknown_users() {
        let (passwords, users) = (passwords(), users(&format!("ann:{SHA}")));
        let cores = thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1));
        let held = turns(&passwords, &users, cores).await;
        for name in ["ann", "nobody"] {
            assert_eq!(passwords.verify(&users, name, b"secret").await, Err(QueueFull));
        }
        drop(held);
        assert_eq!(passwords.verify(&users, "ann", b"secret").await, Ok(true));
    }
}
