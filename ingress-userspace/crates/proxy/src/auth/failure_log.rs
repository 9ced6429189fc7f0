//! Decides which failures of authentication services are logged: one for each Ingress until its service works again,
//! and at most one a minute. It sends and logs nothing.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

/// Most services that are known at one time. Failures of others are not logged.
const SERVICES_MAX: usize = 1024;
/// Shortest time between two lines about one service.
const PAUSE: Duration = Duration::from_secs(60);
/// Time without another failure after which a service is forgotten, because its rules may be gone.
const FORGET: Duration = Duration::from_secs(600);

/// The services that failed lately.
#[derive(Debug, Default)]
pub(crate) struct FailureLog {
    services: Mutex<HashMap<Box<str>, Service>>,
    /// Number of services, so that requests take no lock while all work.
    count: AtomicUsize,
}

#[derive(Debug)]
struct Service {
    is_failing: bool,
    logged: Duration,
    failed: Duration,
}

impl FailureLog {
    /// Returns whether no service failed lately.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Notes a failure. Returns whether it is to be logged.
    pub(crate) fn fail(&self, service: &str, now: Duration) -> bool {
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = services.get_mut(service) {
            known.failed = now;
            let is_new = !known.is_failing && now.saturating_sub(known.logged) >= PAUSE;
            if is_new {
                (known.is_failing, known.logged) = (true, now);
            }
            return is_new;
        }
        let has_room = services.len() < SERVICES_MAX;
        if has_room {
            services.insert(service.into(), Service { is_failing: true, logged: now, failed: now });
        }
        self.count.store(services.len(), Relaxed);
        has_room
    }

    /// Notes that a service works. Returns whether that is to be logged.
    pub(crate) fn recover(&self, service: &str, now: Duration) -> bool {
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = services.get_mut(service) else { return false };
        let was_failing = std::mem::take(&mut known.is_failing);
        if now.saturating_sub(known.logged) >= PAUSE {
            services.remove(service);
            self.count.store(services.len(), Relaxed);
        }
        was_failing
    }

    /// Forgets services without recent failures: those that work again, and those whose rules may be gone.
    pub(crate) fn prune(&self, now: Duration) {
        if self.is_empty() {
            return;
        }
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        services.retain(|_, known| {
            let limit = if known.is_failing { FORGET } else { PAUSE };
            now.saturating_sub(known.failed) < limit
        });
        self.count.store(services.len(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_failure_is_logged_once_until_the_service_works_again() {
        let log = FailureLog::default();
        assert!(log.is_empty() && !log.recover("a", at(0)));
        assert_eq!([0, 1, 70, 500].map(|now| log.fail("a", at(now))), [true, false, false, false]);
        assert!(log.fail("b", at(500)), "each service by itself");
        assert!(log.recover("a", at(501)) && !log.recover("a", at(502)));
        assert!(log.fail("a", at(503)));
    }

    #[test]
    fn a_service_that_comes_and_goes_is_logged_once_a_minute() {
        let log = FailureLog::default();
        let lines = (0..600).filter(|now| log.fail("a", at(*now)) | log.recover("a", at(*now))).count();
        assert_eq!(lines, 10);
        assert!(!log.is_empty());
        log.recover("a", at(700));
        assert!(log.is_empty());
    }

    #[test]
    fn the_known_services_are_bounded_and_those_gone_are_forgotten() {
        let log = FailureLog::default();
        let logged = |now| (0..2 * SERVICES_MAX).filter(|number| log.fail(&number.to_string(), at(now))).count();
        assert_eq!([0, 1].map(logged), [SERVICES_MAX, 0]);
        assert!(!log.fail("new", at(600)));
        log.prune(at(600));
        assert!(!log.fail("new", at(600)), "the others failed again a second later than at first");
        log.prune(at(601));
        assert!(log.fail("new", at(601)));
        log.recover("new", at(602));
        log.prune(at(661));
        assert!(log.is_empty());
    }
}
