//! Counts by name during a time window, and the part of one request in them.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use anyhow::ensure;

use super::load::Load;

/// Length of the window without requests.
const IDLE: Duration = Duration::from_secs(2);
/// Time for a peer to see that the connections of a load are closed, so that each window has its own.
const SETTLE: Duration = Duration::from_millis(200);

/// Counts by name: instructions of a function, or calls of a system call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts(BTreeMap<String, u64>);

/// A tool that counts a peer for a while.
pub(super) trait Counter {
    /// Starts counting from zero.
    fn begin(&mut self) -> anyhow::Result<()>;

    /// Returns the counts since the start.
    fn end(&mut self) -> anyhow::Result<Counts>;
}

/// Counts, and the length of their window.
#[derive(Clone, Debug)]
struct Window {
    counts: Counts,
    time: Duration,
}

/// Counts per request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PerRequest(BTreeMap<String, f64>);

// === impl Counts ===

impl Counts {
    pub(super) fn add(&mut self, name: &str, count: u64) {
        match self.0.get_mut(name) {
            Some(sum) => *sum += count,
            None => {
                self.0.insert(name.to_owned(), count);
            }
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.0.values().sum()
    }

    fn of(&self, name: &str) -> f64 {
        self.0.get(name).map_or(0.0, |count| *count as f64)
    }
}

// === impl Window ===

impl Window {
    fn take(counter: &mut impl Counter, work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Self> {
        counter.begin()?;
        let began = Instant::now();
        let worked = work();
        let time = began.elapsed();
        let counts = counter.end()?;
        worked.map(|()| Self { counts, time })
    }
}

// === impl PerRequest ===

impl PerRequest {
    /// Counts a peer under `load` after a warm-up, which fills caches, pools and the heap.
    pub(super) fn take(counter: &mut impl Counter, load: Load<'_>, requests: u32) -> anyhow::Result<Self> {
        let requests = load.times(requests);
        let ask = |count: u32| -> anyhow::Result<()> {
            load.run(count)?;
            thread::sleep(SETTLE);
            Ok(())
        };
        ask(requests)?;
        let idle = Window::take(counter, || {
            thread::sleep(IDLE);
            Ok(())
        })?;
        let once = Window::take(counter, || ask(requests))?;
        let twice = Window::take(counter, || ask(2 * requests))?;
        let found = Self::between(&idle, &once, &twice, requests);
        ensure!(found.total() > 0.0, "nothing was counted");
        Ok(found)
    }

    /// Returns the counts that the second half of `twice` adds to `once`, minus the idle activity of the peer in that
    /// time.
    fn between(idle: &Window, once: &Window, twice: &Window, requests: u32) -> Self {
        let longer = twice.time.as_secs_f64() - once.time.as_secs_f64();
        let part_of_idle = longer / idle.time.as_secs_f64();
        let cost = |name: &str| {
            let added = twice.counts.of(name) - once.counts.of(name);
            (added - idle.counts.of(name) * part_of_idle) / f64::from(requests)
        };
        Self(twice.counts.0.keys().map(|name| (name.clone(), cost(name))).collect())
    }

    pub(super) fn total(&self) -> f64 {
        self.0.values().sum()
    }

    /// Returns the counts by name, the largest first, without those below `least`.
    pub(super) fn sorted(&self, least: f64) -> Vec<(&str, f64)> {
        let all = self.0.iter().map(|(name, count)| (name.as_str(), *count));
        let mut all: Vec<(&str, f64)> = all.filter(|(_, count)| *count >= least).collect();
        all.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        all
    }
}

#[cfg(test)]
impl PerRequest {
    pub(super) fn from_pairs(pairs: &[(&str, f64)]) -> Self {
        Self(pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(seconds: u64, counts: &[(&str, u64)]) -> Window {
        let counts = Counts(counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect());
        Window { counts, time: Duration::from_secs(seconds) }
    }

    #[test]
    fn setup_and_idle_work_are_not_charged_to_requests() {
        // Two reads a request, a hundred calls to open connections, one tick a second.
        let idle = window(2, &[("tick", 2)]);
        let once = window(10, &[("tick", 10), ("read", 2000), ("accept", 100)]);
        let twice = window(20, &[("tick", 20), ("read", 4000), ("accept", 100)]);
        let found = PerRequest::between(&idle, &once, &twice, 1000);
        assert_eq!(found, PerRequest::from_pairs(&[("accept", 0.0), ("read", 2.0), ("tick", 0.0)]));
        assert_eq!(found.sorted(0.01), [("read", 2.0)]);
        assert!((found.total() - 2.0).abs() < 1e-9);
    }

    #[test]
    fn counts_of_the_same_name_are_summed() {
        let mut counts = Counts::default();
        for (name, count) in [("a", 1), ("b", 2), ("a", 3)] {
            counts.add(name, count);
        }
        assert_eq!((counts.of("a"), counts.of("b"), counts.of("c"), counts.total()), (4.0, 2.0, 0.0, 6));
    }
}
