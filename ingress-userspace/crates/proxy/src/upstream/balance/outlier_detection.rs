//! Outlier detection: the results of requests eject an endpoint for a time.
//!
//! A failed request ejects an endpoint for a time that doubles with each further failure, and one success clears the
//! ejection; [`OutlierDetection`](ingress_model::OutlierDetection) has the settings. Concurrent requests that fail
//! together count as one failure.

use std::{
    sync::{PoisonError, atomic::Ordering::Relaxed},
    time::Duration,
};

use super::{Picked, UpstreamState};

impl UpstreamState {
    /// Ejects an endpoint for `time`, if others remain and the limit of ejected endpoints allows it.
    fn eject(&self, index: usize, now_ms: u64, time: Duration) {
        let _alone = self.common.ejecting.lock().unwrap_or_else(PoisonError::into_inner);
        let all = || self.endpoints.iter().map(|endpoint| &endpoint.health);
        let ejected = all().filter(|health| health.is_ejected(|| now_ms)).count();
        let healthy = all().filter(|health| health.is_available(|| now_ms)).count();
        if ejected < self.health_policy.outlier_detection.most(self.endpoints.len()) && healthy > 1 {
            let time = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            self.endpoints[index].health.eject(now_ms.saturating_add(time));
            self.common.counts().ejections.fetch_add(1, Relaxed);
        }
    }
}

impl Picked<'_> {
    /// Records a failed request. Counts once for all requests that chose the endpoint before.
    pub(crate) fn failed(self, now_ms: u64) {
        let Self { upstream, index, failures } = self;
        let health = &upstream.endpoints[index].health;
        // Tried for lack of a better endpoint; its ejection stays as it is.
        if health.is_ejected(|| now_ms) || !health.fail(failures) {
            return;
        }
        if let Some(time) = upstream.health_policy.outlier_detection.time(failures.saturating_add(1)) {
            upstream.eject(index, now_ms, time);
        }
    }

    /// Records a response with this status.
    pub(crate) fn answered(self, status: u16, now_ms: impl Fn() -> u64) {
        if self.upstream.health_policy.outlier_detection.errors && status >= 500 {
            self.failed(now_ms());
        } else {
            self.succeeded();
        }
    }

    pub(crate) fn succeeded(self) {
        self.endpoint().health.succeed();
    }
}
