//! Users with their password hashes, as in htpasswd files. No hash is computed here.

use std::{
    fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

/// The users of one Secret. `Debug` shows only their number.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Users {
    /// Sorted by name, without duplicates.
    users: Box<[(Box<str>, PasswordHash)]>,
    /// Hash over names and password hashes.
    fingerprint: u64,
}

/// A password hash. Neither `Debug` nor an error shows any part of it.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash {
    scheme: Scheme,
    text: Box<str>,
}

/// Hash algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Prefixes `$2a$`, `$2b$`, `$2y$`.
    Bcrypt,
    /// Prefixes `$5$` and `$6$`.
    ShaCrypt,
    /// Prefixes `$apr1$` and `$1$`.
    Md5Crypt,
    /// Prefix `{SHA}`: SHA-1 of the password.
    Sha1,
    /// Prefix `{SSHA}`: SHA-1 of the password and a salt.
    SaltedSha1,
}

/// Reason why a text is not a password hash. The message quotes no input, as that may be a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HashError {
    #[error("there is no `:` between name and hash")]
    NoHash,
    #[error("the name is empty")]
    NoName,
    #[error("it is no hash of a known kind; make one with `htpasswd -B`, plain text and DES are refused")]
    Unknown,
    #[error("the hash is incomplete or has characters that none has")]
    Malformed,
    #[error(
        "the hash takes too long to compute; make one with a bcrypt cost of at most {MAX_BCRYPT_COST}, or at most {MAX_SHA_ROUNDS} rounds"
    )]
    Expensive,
}

/// Takes about 0.7 s of one core.
const MAX_BCRYPT_COST: u32 = 13;
/// Takes about 0.5 s of one core.
const MAX_SHA_ROUNDS: u32 = 500_000;

// === impl Users ===

impl Users {
    /// Parses lines of the form `name:hash`, optionally with a comment after another `:`. Empty lines and lines that
    /// begin with `#` are ignored. Returns the users, and the numbers of invalid lines (from 1). If several lines have
    /// the same name, the first counts.
    #[must_use]
    pub fn of_file(text: &str) -> (Self, Vec<(usize, HashError)>) {
        let (mut users, mut problems) = (Vec::new(), Vec::new());
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match entry(line) {
                Ok(user) => users.push(user),
                Err(error) => problems.push((number + 1, error)),
            }
        }
        (Self::of(users), problems)
    }

    /// Builds a list from names with one hash each. Also returns the names with an invalid hash.
    #[must_use]
    pub fn of_entries<'e>(entries: impl Iterator<Item = (&'e str, &'e str)>) -> (Self, Vec<(&'e str, HashError)>) {
        let (mut users, mut problems) = (Vec::new(), Vec::new());
        for (name, hash) in entries {
            match PasswordHash::parse(hash.trim()) {
                Ok(hash) => users.push((name.into(), hash)),
                Err(error) => problems.push((name, error)),
            }
        }
        (Self::of(users), problems)
    }

    fn of(mut users: Vec<(Box<str>, PasswordHash)>) -> Self {
        users.sort_by(|(one, _), (other, _)| one.cmp(other));
        users.dedup_by(|(later, _), (earlier, _)| later == earlier);
        let mut hasher = DefaultHasher::new();
        for (name, PasswordHash { scheme: _, text }) in &users {
            (name, text).hash(&mut hasher);
        }
        Self { users: users.into(), fingerprint: hasher.finish() }
    }

    #[must_use]
    pub fn find(&self, name: &str) -> Option<&PasswordHash> {
        let at = self.users.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        Some(&self.users[at].1)
    }

    /// Returns the hash of another user for an unknown name, always the same one. Verifying it takes as long as for an
    /// existing user, so response times do not reveal user names. Returns `None` if there are no users.
    #[must_use]
    pub fn decoy(&self, name: &str) -> Option<&PasswordHash> {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let count = u64::try_from(self.users.len()).ok()?;
        let at = usize::try_from(hasher.finish().checked_rem(count)?).ok()?;
        self.users.get(at).map(|(_, hash)| hash)
    }

    /// Returns a value that differs between lists of users. A collision does little harm.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.users.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }
}

fn entry(line: &str) -> Result<(Box<str>, PasswordHash), HashError> {
    let (name, rest) = line.split_once(':').ok_or(HashError::NoHash)?;
    if name.is_empty() {
        return Err(HashError::NoName);
    }
    let hash = rest.split(':').next().unwrap_or_default();
    Ok((name.into(), PasswordHash::parse(hash)?))
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Users([{} redacted])", self.len())
    }
}

// === impl PasswordHash ===

impl PasswordHash {
    /// Parses a hash in the format of `crypt` or `htpasswd`.
    ///
    /// # Errors
    /// Fails if the hash is of an unknown kind, or cannot be verified in bounded time.
    pub fn parse(text: &str) -> Result<Self, HashError> {
        let scheme = Scheme::of(text).ok_or(HashError::Unknown)?;
        let is_whole = match scheme {
            Scheme::Bcrypt => bcrypt(text)?,
            Scheme::ShaCrypt => sha_crypt(text)?,
            Scheme::Md5Crypt => {
                let mut fields = text.split('$').skip(2);
                let (salt, hash) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
                salt.len() <= 8 && salt.is_ascii() && is_crypt(hash, 22) && fields.next().is_none()
            }
            Scheme::Sha1 => text["{SHA}".len()..].len() == 28 && is_base64(&text["{SHA}".len()..]),
            Scheme::SaltedSha1 => {
                (28..=128).contains(&text["{SSHA}".len()..].len()) && is_base64(&text["{SSHA}".len()..])
            }
        };
        if is_whole { Ok(Self { scheme, text: text.into() }) } else { Err(HashError::Malformed) }
    }

    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns the text as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheme, text: _ } = self;
        write!(f, "PasswordHash({scheme:?}, [redacted])")
    }
}

impl Scheme {
    fn of(text: &str) -> Option<Self> {
        const PREFIXES: [(&str, Scheme); 9] = [
            ("$2a$", Scheme::Bcrypt),
            ("$2b$", Scheme::Bcrypt),
            ("$2y$", Scheme::Bcrypt),
            ("$5$", Scheme::ShaCrypt),
            ("$6$", Scheme::ShaCrypt),
            ("$apr1$", Scheme::Md5Crypt),
            ("$1$", Scheme::Md5Crypt),
            ("{SHA}", Scheme::Sha1),
            ("{SSHA}", Scheme::SaltedSha1),
        ];
        PREFIXES.iter().find(|(prefix, _)| text.starts_with(prefix)).map(|(_, scheme)| *scheme)
    }
}

/// Checks `$2y$CC$` followed by salt and hash of 53 characters.
fn bcrypt(text: &str) -> Result<bool, HashError> {
    let Some((cost, rest)) = text[4..].split_once('$') else { return Ok(false) };
    if cost.len() != 2 || !is_crypt(rest, 53) {
        return Ok(false);
    }
    let Ok(cost) = cost.parse::<u32>() else { return Ok(false) };
    if cost > MAX_BCRYPT_COST { Err(HashError::Expensive) } else { Ok(cost >= 4) }
}

/// Checks `$5$` or `$6$`, optionally `rounds=N$`, followed by salt and hash.
fn sha_crypt(text: &str) -> Result<bool, HashError> {
    let (length, rest) = (if text.starts_with("$5$") { 43 } else { 86 }, &text[3..]);
    let rest = match rest.strip_prefix("rounds=") {
        None => rest,
        Some(rest) => {
            let Some((rounds, rest)) = rest.split_once('$') else { return Ok(false) };
            match rounds.parse::<u32>() {
                Ok(1000..=MAX_SHA_ROUNDS) => rest,
                Ok(0..1000) | Err(_) => return Ok(false),
                Ok(_) => return Err(HashError::Expensive),
            }
        }
    };
    let Some((salt, hash)) = rest.split_once('$') else { return Ok(false) };
    Ok(salt.len() <= 16 && salt.is_ascii() && is_crypt(hash, length))
}

/// Returns whether `text` consists of `length` digits of the `crypt` alphabet.
fn is_crypt(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'/')
}

fn is_base64(text: &str) -> bool {
    text.trim_end_matches('=').bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+' || b == b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    const BCRYPT: &str = "$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW";
    const APR1: &str = "$apr1$lZL6V/ci$eIMz/iKDkbtys/uU7LEK00";

    #[test]
    fn malformed_and_expensive_hashes_are_refused() {
        for (text, expect) in [
            (BCRYPT, Ok(Scheme::Bcrypt)),
            (&BCRYPT.replace("2y", "2a"), Ok(Scheme::Bcrypt)),
            (&BCRYPT.replace("$04$", "$13$"), Ok(Scheme::Bcrypt)),
            (&BCRYPT.replace("$04$", "$14$"), Err(HashError::Expensive)),
            (&BCRYPT.replace("$04$", "$03$"), Err(HashError::Malformed)),
            (&BCRYPT.replace("$04$", "$xx$"), Err(HashError::Malformed)),
            (&BCRYPT[..59], Err(HashError::Malformed)),
            (&BCRYPT.replace("2y", "2x"), Err(HashError::Unknown)),
            ("$5$saltstring$5B8vYYiY.CVt1RlTTf8KbXBH3hsxY/GNooZaBBGWEc8", Ok(Scheme::ShaCrypt)),
            ("$5$rounds=500000$saltstring$5B8vYYiY.CVt1RlTTf8KbXBH3hsxY/GNooZaBBGWEc8", Ok(Scheme::ShaCrypt)),
            ("$5$rounds=500001$saltstring$5B8vYYiY.CVt1RlTTf8KbXBH3hsxY/GNooZaBBGWEc8", Err(HashError::Expensive)),
            ("$5$rounds=999$saltstring$5B8vYYiY.CVt1RlTTf8KbXBH3hsxY/GNooZaBBGWEc8", Err(HashError::Malformed)),
            ("$5$saltstringsaltstring$5B8vYYiY.CVt1RlTTf8KbXBH3hsxY/GNooZaBBGWEc8", Err(HashError::Malformed)),
            ("$6$saltstring$5B8vYYiY.CVt1RlTTf8KbXBH3hsxY/GNooZaBBGWEc8", Err(HashError::Malformed)),
            (APR1, Ok(Scheme::Md5Crypt)),
            ("$1$abcdefgh$G//4keteveJp0qb8z2DxG/", Ok(Scheme::Md5Crypt)),
            ("$1$abcdefghi$G//4keteveJp0qb8z2DxG/", Err(HashError::Malformed)),
            ("$1$abcdefgh$G//4keteveJp0qb8z2DxG/$x", Err(HashError::Malformed)),
            ("{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=", Ok(Scheme::Sha1)),
            ("{SHA}5en6", Err(HashError::Malformed)),
            ("{SSHA}5en6G6MezRroT3XKqkdPOmY/BfQ=", Ok(Scheme::SaltedSha1)),
            ("{PLAIN}secret", Err(HashError::Unknown)),
            ("secret", Err(HashError::Unknown)),
            ("rqXexS6ZhobKA", Err(HashError::Unknown)),
            ("$2y$\u{e9}", Err(HashError::Malformed)),
            ("$6$\u{e9}", Err(HashError::Malformed)),
            ("{SHA}\u{e9}", Err(HashError::Malformed)),
            ("", Err(HashError::Unknown)),
        ] {
            assert_eq!(PasswordHash::parse(text).map(|hash| hash.scheme()), expect, "{text}");
        }
    }

    #[test]
    fn an_invalid_line_affects_no_other_user() {
        let text =
            format!("# users\n\nann:{BCRYPT}\r\nbob:secret\n:{APR1}\ncarl\n dora:{APR1}:a comment\nann:{APR1}\n");
        let (users, problems) = Users::of_file(&text);
        assert_eq!(problems, [(4, HashError::Unknown), (5, HashError::NoName), (6, HashError::NoHash)]);
        assert_eq!(users.len(), 2);
        assert_eq!(users.find("ann").map(PasswordHash::as_str), Some(BCRYPT), "the first line counts");
        assert_eq!(users.find("dora").map(PasswordHash::as_str), Some(APR1));
        assert_eq!(users.find("bob"), None);
        let (users, problems) = Users::of_entries([("ann", BCRYPT), ("bob", "secret")].into_iter());
        assert_eq!((users.len(), problems), (1, vec![("bob", HashError::Unknown)]));
    }

    #[test]
    fn unknown_users_cost_as_much_as_known_ones() {
        let (users, _) = Users::of_file(&format!("ann:{BCRYPT}\ndora:{APR1}"));
        let schemes: Vec<_> = (0..64).filter_map(|n| users.decoy(&format!("u{n}"))).map(PasswordHash::scheme).collect();
        assert!(schemes.contains(&Scheme::Bcrypt) && schemes.contains(&Scheme::Md5Crypt) && schemes.len() == 64);
        assert_eq!(users.decoy("x"), users.decoy("x"));
        assert_eq!(Users::default().decoy("x"), None);
    }

    #[test]
    fn debug_redacts_users_and_hashes() {
        let (users, _) = Users::of_file(&format!("ann:{BCRYPT}"));
        let shown = format!("{users:?} {:?}", users.find("ann"));
        assert!(!shown.contains("ann") && !shown.contains("abcdefgh") && shown.contains("redacted"), "{shown}");
    }
}
