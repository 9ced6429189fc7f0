//! Requests in flight and response time of an endpoint, measured only where a policy or limit needs them.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

/// Time after which an observation has a weight of 1/e, about a third.
const DECAY_MS: f64 = 10_000.0;

/// The load of one endpoint of one upstream.
#[derive(Debug, Default)]
pub(super) struct EndpointLoad {
    /// Requests in flight, of policies that use this count.
    in_flight: AtomicU32,
    /// Moving average of the time to a response head. The lower 32 bits hold microseconds; the upper 32 bits hold the
    /// time of the last change in milliseconds of the proxy's clock, truncated. 0 before the first observation.
    latency: AtomicU64,
}

/// Guard of a request in flight.
#[derive(Debug)]
pub(crate) struct LoadGuard(Arc<EndpointLoad>);

// === impl EndpointLoad ===

impl EndpointLoad {
    /// Counts a request. Returns `None` if the number in flight has reached `cap`.
    pub(super) fn begin(self: &Arc<Self>, cap: Option<NonZeroU32>) -> Option<LoadGuard> {
        match cap {
            None => drop(self.in_flight.fetch_add(1, Relaxed)),
            Some(cap) => {
                let one_more = |count| (count < cap.get()).then_some(count + 1);
                self.in_flight.fetch_update(Relaxed, Relaxed, one_more).ok()?;
            }
        }
        Some(LoadGuard(Arc::clone(self)))
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }

    /// Returns roughly how long a request sent now would take. An endpoint that was never tried ranks first, until its
    /// first request is in flight.
    pub(super) fn expected_us(&self, now_ms: u64) -> u64 {
        let (average, since) = self.latency(now_ms);
        if average == 0 {
            return if self.in_flight() == 0 { 0 } else { u64::MAX };
        }
        // An endpoint that was slow long ago may be fast again.
        let faded = (f64::from(average) * decay(since)).max(1.0);
        faded as u64 * (u64::from(self.in_flight()) + 1)
    }

    /// Records the duration of a response. Two simultaneous observations may count as one.
    pub(super) fn observe(&self, took_us: u64, now_ms: u64) {
        let (average, since) = self.latency(now_ms);
        let took = took_us.min(u64::from(u32::MAX)) as f64;
        let weight = if average == 0 { 0.0 } else { decay(since) };
        let next = (f64::from(average) * weight + took * (1.0 - weight)).max(1.0);
        self.latency.store(u64::from(now_ms as u32) << 32 | next as u64, Relaxed);
    }

    /// Returns the average, and the milliseconds since its last change.
    fn latency(&self, now_ms: u64) -> (u32, u32) {
        let latency = self.latency.load(Relaxed);
        (latency as u32, (now_ms as u32).wrapping_sub((latency >> 32) as u32))
    }
}

fn decay(since_ms: u32) -> f64 {
    (-f64::from(since_ms) / DECAY_MS).exp()
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_in_flight_never_exceed_the_limit() {
        let (load, cap) = (Arc::new(EndpointLoad::default()), NonZeroU32::new(7));
        let most = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let all: Vec<_> = (0..3).filter_map(|_| load.begin(cap)).collect();
                        most.fetch_max(load.in_flight(), Relaxed);
                        drop(all);
                    }
                });
            }
        });
        assert!(most.load(Relaxed) <= 7 && load.in_flight() == 0, "{most:?}");
        let all: Vec<_> = (0..10).filter_map(|_| load.begin(cap)).collect();
        assert_eq!(all.len(), 7);
    }

    #[test]
    fn slow_and_busy_endpoints_have_a_higher_expected_latency() {
        let (slow, fast) = (Arc::new(EndpointLoad::default()), Arc::new(EndpointLoad::default()));
        assert_eq!(slow.expected_us(0), 0);
        let first = slow.begin(None);
        assert_eq!(slow.expected_us(0), u64::MAX, "nobody knows how long the first one takes");
        drop(first);
        slow.observe(10_000, 0);
        fast.observe(1_000, 0);
        assert!(slow.expected_us(0) > fast.expected_us(0));
        let busy: Vec<_> = (0..20).map(|_| fast.begin(None)).collect();
        assert!(slow.expected_us(0) < fast.expected_us(0));
        drop(busy);
        assert_eq!(fast.in_flight(), 0);
        assert!(slow.expected_us(60_000) < 100, "an old opinion fades");
        slow.observe(100, 60_000);
        assert!(slow.expected_us(60_000) < 200, "and gives way to a new one");
    }
}
