//! Verdicts about bearer tokens. A client without rights can make the process ask the API server only a bounded number
//! of times, and hold a bounded number of verdicts.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use aws_lc_rs::digest::{SHA256, digest};
use futures_util::future::BoxFuture;
use ingress_control::access_review::{Access, AccessError, AccessReviews};
use tokio::time::Instant;
use tracing::{info, warn};

/// Path that a ClusterRole grants with `nonResourceURLs` and the verb `get`. It stands for the whole API. The paths of
/// the API itself would be wrong: `system:discovery` grants `/api/*` to every authenticated user.
pub(super) const GRANTED_PATH: &str = "/xdp-ingress/api";

/// Time for which an allowed token stays allowed, and so the delay until a revoked right has an effect.
const ALLOWED_FOR: Duration = Duration::from_secs(30);
/// Time for which a refused token stays refused.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Maximum number of known verdicts.
const KNOWN_MAX: usize = 1024;
/// Maximum number of reviews in a second.
const REVIEWS_MAX: u32 = 10;
/// Maximum length of a token in bytes; those of service accounts have about 1,000.
const TOKEN_MAX: usize = 8192;

/// Decides about tokens that are not known.
pub(super) trait Reviewer: Send + Sync + 'static {
    fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Access, AccessError>>;
}

impl Reviewer for AccessReviews {
    fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Access, AccessError>> {
        Box::pin(self.review(token, GRANTED_PATH))
    }
}

/// Verdict about a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Allowed,
    /// The user of this name lacks the right.
    Forbidden(Arc<str>),
    Unauthenticated,
    /// The API server did not answer.
    Unavailable,
    /// Too many unknown tokens came in this second.
    TooMany,
}

/// Known verdicts, and the means to get others.
pub(super) struct Tokens {
    reviewer: Box<dyn Reviewer>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Verdicts by the digest of the token, with the end of their validity.
    verdicts: HashMap<[u8; 32], (Verdict, Instant)>,
    /// Start of the current second, and the reviews in it.
    second: Option<(Instant, u32)>,
}

impl Tokens {
    pub(super) fn new(reviewer: impl Reviewer) -> Self {
        Self { reviewer: Box::new(reviewer), known: Mutex::default() }
    }

    /// Returns the verdict about `token`.
    pub(super) async fn check(&self, token: &str) -> Verdict {
        if token.is_empty() || token.len() > TOKEN_MAX {
            return Verdict::Unauthenticated;
        }
        let mut name = [0; 32];
        name.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        if let Some(verdict) = self.known().begin(&name, Instant::now()) {
            return verdict;
        }
        let (verdict, lasts) = match self.reviewer.review(token).await {
            Ok(Access::Allowed(user)) => {
                info!(%user, "the API was opened to a user");
                (Verdict::Allowed, ALLOWED_FOR)
            }
            Ok(Access::Forbidden(user)) => (Verdict::Forbidden(user), REFUSED_FOR),
            Ok(Access::Unauthenticated) => (Verdict::Unauthenticated, REFUSED_FOR),
            Err(error) => {
                warn!(error = &error as &dyn std::error::Error, "a token could not be checked; its request is refused");
                return Verdict::Unavailable;
            }
        };
        self.known().insert(name, verdict.clone(), Instant::now() + lasts);
        verdict
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Returns the verdict that is known, or `None` if the caller may ask for one.
    fn begin(&mut self, name: &[u8; 32], now: Instant) -> Option<Verdict> {
        if let Some((verdict, ends)) = self.verdicts.get(name)
            && now < *ends
        {
            return Some(verdict.clone());
        }
        let (start, reviews) = self.second.get_or_insert((now, 0));
        if now - *start >= Duration::from_secs(1) {
            (*start, *reviews) = (now, 0);
        }
        if *reviews >= REVIEWS_MAX {
            return Some(Verdict::TooMany);
        }
        *reviews += 1;
        None
    }

    fn insert(&mut self, name: [u8; 32], verdict: Verdict, ends: Instant) {
        if self.verdicts.len() >= KNOWN_MAX {
            let now = Instant::now();
            self.verdicts.retain(|_, (_, ends)| now < *ends);
        }
        // Verdicts last for half a minute at most, in which fewer than this number can come.
        if self.verdicts.len() < KNOWN_MAX {
            self.verdicts.insert(name, (verdict, ends));
        }
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::advance;

    use super::*;

    /// Allows tokens that begin with `good`, and counts its reviews.
    struct Counting(Arc<AtomicUsize>);

    impl Reviewer for Counting {
        fn review<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Access, AccessError>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                match token {
                    token if token.starts_with("good") => Ok(Access::Allowed("ann".into())),
                    "poor" => Ok(Access::Forbidden("bob".into())),
                    "late" => Err(AccessError::Late),
                    _ => Ok(Access::Unauthenticated),
                }
            })
        }
    }

    fn tokens() -> (Tokens, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        (Tokens::new(Counting(Arc::clone(&count))), count)
    }

    #[tokio::test(start_paused = true)]
    async fn verdicts_are_remembered_for_a_bounded_time() {
        let (tokens, count) = tokens();
        let cases = [
            ("good", Verdict::Allowed, ALLOWED_FOR),
            ("poor", Verdict::Forbidden("bob".into()), REFUSED_FOR),
            ("bad", Verdict::Unauthenticated, REFUSED_FOR),
        ];
        for (token, expected, lasts) in cases {
            let before = count.load(Ordering::Relaxed);
            assert_eq!(tokens.check(token).await, expected);
            advance(lasts - Duration::from_millis(1)).await;
            assert_eq!(tokens.check(token).await, expected);
            assert_eq!(count.load(Ordering::Relaxed) - before, 1, "{token} is known");
            advance(Duration::from_millis(1)).await;
            assert_eq!(tokens.check(token).await, expected);
            assert_eq!(count.load(Ordering::Relaxed) - before, 2, "{token} is asked about again");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_not_remembered_and_unusable_tokens_cost_no_review() {
        let (tokens, count) = tokens();
        assert_eq!(tokens.check("late").await, Verdict::Unavailable);
        assert_eq!(tokens.check("late").await, Verdict::Unavailable);
        assert_eq!(count.load(Ordering::Relaxed), 2);
        for unusable in [String::new(), "good".repeat(TOKEN_MAX)] {
            assert_eq!(tokens.check(&unusable).await, Verdict::Unauthenticated);
        }
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn unknown_tokens_cost_a_bounded_number_of_reviews_and_verdicts() {
        let (tokens, count) = tokens();
        assert_eq!(tokens.check("good").await, Verdict::Allowed);
        for second in 0..200 {
            for guess in 0..20 {
                tokens.check(&format!("bad {second} {guess}")).await;
            }
            assert_eq!(tokens.check(&format!("bad {second}")).await, Verdict::TooMany);
            advance(Duration::from_secs(1)).await;
        }
        let reviews = count.load(Ordering::Relaxed);
        assert!(reviews <= 200 * REVIEWS_MAX as usize, "{reviews}");
        assert!(tokens.known().verdicts.len() <= KNOWN_MAX);
        assert_eq!(tokens.check("good again").await, Verdict::Allowed, "a second later, a good token is allowed");
    }
}
