//! Chooses a worker for a new connection: the preferred one, unless it is too busy. A worker is too busy with more than
//! 125 % of the mean number of connections (ADR 0027).
//!
//! The choice reads every worker of the process once, because the mean needs them all: some thirty instructions and
//! less than half a cache line for each, for SYNs only. A worker without connections is never too busy, so it is chosen
//! without that loop.

use crate::node_facts::Node;
use ingress_common::{PortRule, steer::SLOTS_PER_PORT};

/// A worker is too busy if it has more connections than this percentage of the mean.
const TOO_BUSY_PERCENT: u64 = 125;

/// Returns `preferred`, or, if that is too busy or absent, the worker with the fewest connections; ties go to the first
/// after `preferred`. Returns `preferred` as well if all workers are absent.
///
/// Workers are numbered from 0 within their process; `preferred` is a worker of the rule.
#[inline(always)]
pub(crate) fn choose(node: &impl Node, rule: &PortRule, preferred: u32) -> u32 {
    let own = connections(node, rule, preferred);
    if own == Some(0) {
        return preferred;
    }
    let (mut sum, mut workers) = (0_u64, 0_u64);
    // The number of connections, and in the low bits the distance from `preferred`. It starts above any real number of
    // connections, with distance 0. It is compared only with values of the same form: a comparison with a result that
    // the verifier can predict makes it track more states of the loop.
    let mut least = u64::MAX - u64::from(SLOTS_PER_PORT - 1);
    // Bounded twice: the verifier needs a fixed bound, independent of the rule.
    for worker in 0..SLOTS_PER_PORT {
        if worker >= rule.workers {
            break;
        }
        let Some(connections) = connections(node, rule, worker) else { continue };
        sum += connections;
        workers += 1;
        let distance = worker.wrapping_sub(preferred) % SLOTS_PER_PORT;
        least = least.min(connections * u64::from(SLOTS_PER_PORT) + u64::from(distance));
    }
    let stays = own.is_some_and(|own| own * workers * 100 <= sum * TOO_BUSY_PERCENT);
    if stays {
        return preferred;
    }
    preferred.wrapping_add((least % u64::from(SLOTS_PER_PORT)) as u32) % SLOTS_PER_PORT
}

/// Returns the number of connections of one worker; `None` if it is absent.
#[inline(always)]
fn connections(node: &impl Node, rule: &PortRule, worker: u32) -> Option<u64> {
    node.worker(rule.first_worker.wrapping_add(worker))?.connections()
}

// The modulo that recovers the distance requires a power of two.
const _: () = assert!(SLOTS_PER_PORT.is_power_of_two());

#[cfg(test)]
mod tests {
    use ingress_common::{DenyRule, PortKey, WorkerLoad, steer::WORKER_ABSENT};

    use super::*;

    /// A node with workers only; a choice uses no other state.
    struct Workers(Vec<WorkerLoad>);

    /// Index of the process's first worker.
    const FIRST: u32 = 128;

    impl Node for Workers {
        fn rule(&self, _: &PortKey) -> Option<PortRule> {
            unreachable!("a choice is not about ports")
        }
        fn address_flags(&self, _: &[u8; 16]) -> Option<u32> {
            unreachable!("a choice is not about addresses")
        }
        fn deny_entry(&self, _: &[u8; 16]) -> Option<DenyRule> {
            unreachable!("a choice is not about senders")
        }
        fn worker(&self, index: u32) -> Option<WorkerLoad> {
            self.0.get(index.checked_sub(FIRST).expect("a worker of this process") as usize).copied()
        }
        fn heartbeat_ns(&self) -> u64 {
            unreachable!("a choice is not about time")
        }
        fn now_ns(&self) -> u64 {
            unreachable!("a choice is not about time")
        }
        fn cpu(&self) -> u32 {
            unreachable!("who is at hand is said")
        }
    }

    fn with_workers(loads: Vec<WorkerLoad>) -> (Workers, PortRule) {
        let workers = u32::try_from(loads.len()).expect("few");
        (Workers(loads), PortRule { first_slot: 64, workers, flags: 0, rewrite_be: 0, first_worker: FIRST })
    }

    fn holding(open: &[u64]) -> (Workers, PortRule) {
        with_workers(open.iter().map(|&open| WorkerLoad { open, ..WorkerLoad::default() }).collect())
    }

    #[track_caller]
    fn check(open: &[u64], expected: &[u32]) {
        let (workers, rule) = holding(open);
        let chosen: Vec<u32> = (0..rule.workers).map(|preferred| choose(&workers, &rule, preferred)).collect();
        assert_eq!(chosen, expected, "{open:?}");
    }

    const GONE: u64 = WORKER_ABSENT;

    #[test]
    fn the_preferred_worker_is_chosen_up_to_a_quarter_above_the_mean() {
        check(&[7], &[0]);
        check(&[0, 0, 0, 0], &[0, 1, 2, 3]);
        check(&[100, 100, 100, 100], &[0, 1, 2, 3]);
        // The mean is 100: 125 is not more than a quarter above it, 126 is.
        check(&[125, 75, 100, 100], &[0, 1, 2, 3]);
        check(&[126, 74, 100, 100], &[1, 1, 2, 3]);
        check(&[74, 100, 126, 100], &[0, 1, 0, 3]);
        check(&[1, 0], &[1, 1]);
        check(&[1, 1], &[0, 1]);
    }

    #[test]
    fn ties_go_to_the_first_worker_after_the_preferred_one() {
        check(&[0, 9, 0, 9], &[0, 2, 2, 0]);
        check(&[0, 0, 9, 0, 0], &[0, 1, 3, 3, 4]);
        check(&[0, 0, 0, 0, 9], &[0, 1, 2, 3, 0]);
        let mut open = [9; 64];
        open[10] = 0;
        open[63] = 90;
        check(
            &open,
            &core::array::from_fn::<u32, 64, _>(|preferred| if preferred == 63 { 10 } else { preferred as u32 }),
        );
    }

    #[test]
    fn absent_workers_are_ignored() {
        check(&[GONE, 5, 5], &[1, 1, 2]);
        check(&[5, GONE, 0], &[2, 2, 2]);
        check(&[6, GONE, GONE], &[0, 0, 0]);
        // A load of 13 and two of 10 have a mean of 11. If the absent worker counted as 0, the mean would be 8.25, and
        // 13 too many.
        check(&[13, 10, 10, GONE], &[0, 1, 2, 1]);
        // All workers are absent: chosen as if nothing were known.
        check(&[GONE, GONE, GONE], &[0, 1, 2]);
        let (_, rule) = holding(&[0, 0]);
        assert_eq!(choose(&Workers(Vec::new()), &rule, 1), 1);
    }

    #[test]
    fn pending_connections_count_and_lost_counts_are_harmless() {
        let load = |open, settled, chosen| WorkerLoad { open, settled, chosen };
        let (coming, rule) = with_workers(vec![load(0, 5, 9), load(0, 9, 9)]);
        assert_eq!(choose(&coming, &rule, 0), 1);
        let (accepted_more, rule) = with_workers(vec![load(1, 9, 5), load(1, 0, 0)]);
        assert_eq!(choose(&accepted_more, &rule, 0), 0);
    }

    /// Connections that all arrive on one CPU and never end.
    #[test]
    fn connections_of_one_cpu_are_spread_over_all_workers() {
        for count in 2..=64 {
            let (mut workers, rule) = holding(&vec![0; count]);
            let total = 50 * count;
            for _ in 0..total {
                let chosen = choose(&workers, &rule, 3 % rule.workers) as usize;
                // The program counts the connection before the worker knows of it.
                workers.0[chosen].chosen += 1;
            }
            let loads: Vec<u64> = workers.0.iter().map(|load| load.connections().expect("all work")).collect();
            let (least, most) = (loads.iter().min().expect("some"), loads.iter().max().expect("some"));
            // The other workers share the rest evenly; the first takes a quarter more than its share.
            assert!(*most <= 63, "{count}: {loads:?}");
            assert!(*least >= 36, "{count}: {loads:?}");
        }
    }

    /// Userspace writes the rules; a wrong one must not lead the program astray.
    #[test]
    fn a_rule_with_too_many_workers_is_harmless() {
        let (workers, rule) = holding(&[1; 200]);
        for preferred in 0..200 {
            assert!(choose(&workers, &rule, preferred) < 200);
        }
    }
}
