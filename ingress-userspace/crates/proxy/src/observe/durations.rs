//! Request durations by host. Each worker writes its own histograms without contention, and readers sum them up.
//! Durations by upstream, which are off by default, have one histogram for all workers.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use ingress_model::HostId;

/// Upper bounds of all buckets except the last one, which has none; the same as in ingress-nginx.
pub const DURATION_BOUNDS: [Duration; 11] = [
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2500),
    Duration::from_secs(5),
    Duration::from_secs(10),
];

const BUCKETS: usize = DURATION_BOUNDS.len() + 1;

/// Number of hosts in a block, which is allocated at the first request to one of them.
const BLOCK: usize = 64;

/// A histogram that all workers write.
#[derive(Debug, Default)]
pub(crate) struct SharedHistogram(Histogram);

/// The histograms of one worker.
#[derive(Debug)]
pub(crate) struct Durations(Box<[OnceLock<Box<[Histogram; BLOCK]>>]>);

#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    microseconds: AtomicU64,
}

/// Durations of completed requests with a complete response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationsView {
    /// Requests that took at most the bound of the same index, but longer than the previous one. The last bucket counts
    /// those above all bounds.
    pub buckets: [u64; BUCKETS],
    pub sum: Duration,
}

// === impl Durations ===

impl Durations {
    /// Creates histograms for hosts with ids below `hosts`; other hosts share that of host 0.
    pub(crate) fn new(hosts: usize) -> Self {
        Self((0..hosts.div_ceil(BLOCK).max(1)).map(|_| OnceLock::new()).collect())
    }

    /// Records the duration of a request for `host`. To be called only by the thread that owns these histograms.
    pub(crate) fn add(&self, HostId(host): HostId, took: Duration) {
        let host = if (host as usize) < self.0.len() * BLOCK { host as usize } else { 0 };
        let block = self.0[host / BLOCK].get_or_init(|| Box::new(std::array::from_fn(|_| Histogram::default())));
        let Histogram { buckets, microseconds } = &block[host % BLOCK];
        increase(&buckets[bucket(took)], 1);
        increase(microseconds, micros(took));
    }

    /// Adds the histogram of `host` to `view`.
    pub(crate) fn add_to(&self, HostId(host): HostId, view: &mut DurationsView) {
        let Some(block) = self.0.get(host as usize / BLOCK).and_then(OnceLock::get) else { return };
        block[host as usize % BLOCK].add_to(view);
    }

    /// Adds the histograms of all hosts to `view`.
    pub(crate) fn add_all_to(&self, view: &mut DurationsView) {
        let blocks = self.0.iter().filter_map(OnceLock::get);
        blocks.flat_map(|block| &**block).for_each(|histogram| histogram.add_to(view));
    }
}

// === impl Histogram, SharedHistogram ===

impl Histogram {
    fn add_to(&self, view: &mut DurationsView) {
        let Self { buckets, microseconds } = self;
        for (sum, bucket) in view.buckets.iter_mut().zip(buckets) {
            *sum += bucket.load(Relaxed);
        }
        view.sum += Duration::from_micros(microseconds.load(Relaxed));
    }
}

impl SharedHistogram {
    pub(crate) fn add(&self, took: Duration) {
        let Histogram { buckets, microseconds } = &self.0;
        buckets[bucket(took)].fetch_add(1, Relaxed);
        microseconds.fetch_add(micros(took), Relaxed);
    }

    pub(crate) fn view(&self) -> DurationsView {
        let mut view = DurationsView::default();
        self.0.add_to(&mut view);
        view
    }
}

// === impl DurationsView ===

impl DurationsView {
    /// Returns the difference to `earlier`.
    pub(crate) fn since(&self, earlier: Self) -> Self {
        let Self { buckets, sum } = self;
        Self {
            buckets: std::array::from_fn(|bucket| buckets[bucket].saturating_sub(earlier.buckets[bucket])),
            sum: sum.saturating_sub(earlier.sum),
        }
    }
}

/// Returns the index of the bucket that counts a duration.
fn bucket(took: Duration) -> usize {
    DURATION_BOUNDS.partition_point(|bound| *bound < took)
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

/// Increases a counter with a single writer. A load and a store suffice for that, and cost less than an atomic
/// addition.
fn increase(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_can_share_a_histogram() {
        let histogram = SharedHistogram::default();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..1000).for_each(|_| histogram.add(Duration::from_millis(6))));
            }
        });
        let DurationsView { buckets, sum } = histogram.view();
        assert_eq!((buckets[1], buckets.iter().sum(), sum), (2000, 2000_u64, Duration::from_secs(12)));
    }

    #[test]
    fn durations_of_all_workers_are_summed() {
        let workers = [Durations::new(100), Durations::new(100)];
        for (worker, host, milliseconds) in
            [(0, 1, 5), (0, 1, 6), (1, 1, 11_000), (1, 70, 1), (1, 128, 1), (0, 9999, 1)]
        {
            workers[worker].add(HostId(host), Duration::from_millis(milliseconds));
        }
        let view = |host| {
            let mut view = DurationsView::default();
            workers.iter().for_each(|worker| worker.add_to(HostId(host), &mut view));
            view
        };
        let mut expect = DurationsView { sum: Duration::from_millis(11_011), ..DurationsView::default() };
        (expect.buckets[0], expect.buckets[1], expect.buckets[11]) = (1, 1, 1);
        assert_eq!(view(1), expect);
        assert_eq!((view(70).buckets[0], view(0).buckets[0], view(2).buckets), (1, 2, [0; BUCKETS]));
        assert_eq!(view(9999), DurationsView::default());
    }
}
