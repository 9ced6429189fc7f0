//! Measures when the API server last confirmed the served configuration. No other function depends on it.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;

/// The last sign of life of each required watch. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Contact(Arc<Signs>);

/// The kinds that are always watched, as in the paths of requests.
const PLURALS: [&str; 4] = ["ingresses", "ingressclasses", "services", "endpointslices"];

#[derive(Debug, Default)]
struct Signs {
    /// Start time, and the watched namespace; `None` for all.
    began: OnceLock<(Instant, Option<Arc<str>>)>,
    /// Milliseconds since `began`, plus one, by kind; 0 means never.
    last: [AtomicU64; PLURALS.len()],
    serves_saved: AtomicBool,
}

// === impl Contact ===

impl Contact {
    /// Returns the age of the oldest sign of life, or the age of this process while some are missing. Returns `None` if
    /// no API server is followed.
    ///
    /// An event, a bookmark (about one a minute) and an answered list are signs of life. The served configuration is at
    /// most this old.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        let (began, _) = self.0.began.get()?;
        let oldest = self.0.last.iter().map(|last| last.load(Relaxed).saturating_sub(1)).min().unwrap_or_default();
        Some(began.elapsed().saturating_sub(Duration::from_millis(oldest)))
    }

    /// Returns `true` while the saved configuration is served, because the API server has not answered yet.
    #[must_use]
    pub fn serves_saved(&self) -> bool {
        self.0.serves_saved.load(Relaxed)
    }

    /// Starts to measure, for the objects of `namespace`, or of all.
    pub(super) fn begin(&self, namespace: Option<&str>) {
        self.0.began.get_or_init(|| (Instant::now(), namespace.map(Into::into)));
    }

    /// Records a sign of life of the watch with this path. Watches in another namespace, such as that of the default
    /// backend, are ignored, because they are not required.
    pub(super) fn note(&self, path: &str) {
        let Some((began, watched)) = self.0.began.get() else { return };
        let mut segments = path.rsplit('/');
        let plural = segments.next().unwrap_or_default();
        let (name, key) = (segments.next(), segments.next());
        let namespace = name.filter(|_| key == Some("namespaces"));
        if namespace.is_some() && namespace != watched.as_deref() {
            return;
        }
        let now = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1);
        for (last, _) in self.0.last.iter().zip(PLURALS).filter(|(_, of)| *of == plural) {
            last.fetch_max(now, Relaxed);
        }
    }

    pub(super) fn set_serves_saved(&self, serves_saved: bool) {
        self.0.serves_saved.store(serves_saved, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_age_is_that_of_the_longest_silent_watch() {
        let contact = Contact::default();
        assert_eq!(contact.age(), None, "nothing is followed");
        contact.begin(None);
        advance(Duration::from_secs(5)).await;
        for plural in ["ingresses", "ingressclasses", "services", "secrets"] {
            contact.note(&format!("/api/v1/{plural}"));
        }
        assert_eq!(contact.age(), Some(Duration::from_secs(5)), "no slices yet");
        advance(Duration::from_secs(2)).await;
        contact.note("/apis/discovery.k8s.io/v1/endpointslices");
        assert_eq!(contact.age(), Some(Duration::from_secs(2)));
        advance(Duration::from_secs(1)).await;
        contact.note("/api/v1/services");
        assert_eq!(contact.age(), Some(Duration::from_secs(3)));
    }

    #[tokio::test(start_paused = true)]
    async fn watches_of_other_namespaces_do_not_count() {
        let contact = Contact::default();
        contact.begin(Some("n"));
        let note = |plurals: &[&str], namespace: &str| {
            plurals.iter().for_each(|plural| contact.note(&format!("/base/api/v1{namespace}/{plural}")));
        };
        advance(Duration::from_secs(5)).await;
        note(&["ingressclasses"], "");
        note(&["ingresses", "services", "endpointslices"], "/namespaces/n");
        assert_eq!(contact.age(), Some(Duration::ZERO));
        advance(Duration::from_secs(5)).await;
        note(&["ingressclasses"], "");
        note(&["ingresses"], "/namespaces/n");
        note(&["services", "endpointslices"], "/namespaces/default");
        assert_eq!(contact.age(), Some(Duration::from_secs(5)));
    }
}
