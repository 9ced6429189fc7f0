//! Endpoints are chosen, ejected and readmitted. The effect on requests is tested in `tests/proxy`.

use std::{collections::BTreeSet, num::NonZeroU32};

use super::*;
use ingress_model::{Check, CircuitBreaker, Endpoint, OutlierDetection, Question};

fn upstream(ports: &[u16]) -> Upstream {
    let endpoints = ports.iter().map(|&port| Endpoint { address: ([10, 0, 0, 1], port).into() }).collect();
    Upstream { endpoints, ..Upstream::default() }
}

fn key() -> UpstreamKey {
    UpstreamKey::new("default", "web", "80")
}

fn state(ports: &[u16]) -> Arc<UpstreamState> {
    UpstreamState::carry(&key(), &upstream(ports), None, None)
}

fn picks(state: &UpstreamState, now_ms: u64, count: usize) -> Vec<u16> {
    (0..count)
        .filter_map(|_| state.pick(Choice::Next, || now_ms, &mut Tried::up_to(3)).map(|e| e.address().port()))
        .collect()
}

/// Returns endpoint `index` as a request that is sent there now sees it.
fn take(state: &UpstreamState, index: usize) -> Picked<'_> {
    state.take(index, &mut Tried::up_to(3))
}

#[test]
fn endpoints_take_turns() {
    assert_eq!(picks(&state(&[1, 2, 3]), 0, 6), [1, 2, 3, 1, 2, 3]);
    assert!(picks(&state(&[]), 0, 2).is_empty());
}

#[test]
fn a_request_tries_each_endpoint_once_and_at_most_three() {
    let state = state(&[1, 2, 3, 4]);
    let mut tried = Tried::up_to(3);
    let ports: Vec<_> =
        std::iter::from_fn(|| state.pick(Choice::Next, || 0, &mut tried)).map(|e| e.address().port()).collect();
    assert_eq!(ports, [1, 2, 3]);
    let state = self::state(&[1, 2]);
    let mut tried = Tried::up_to(3);
    assert_eq!(std::iter::from_fn(|| state.pick(Choice::Next, || 0, &mut tried)).count(), 2);
}

#[test]
fn ejection_time_grows_until_a_success() {
    let state = state(&[1, 2]);
    take(&state, 0).failed(1000);
    assert_eq!(picks(&state, 1499, 4), [2, 2, 2, 2]);
    assert_eq!(picks(&state, 1500, 2), [1, 2]);
    take(&state, 0).failed(2000);
    assert_eq!(picks(&state, 2999, 2), [2, 2]);
    assert!(picks(&state, 3000, 2).contains(&1));
    for time in 1..=40 {
        take(&state, 0).failed(time * 20_000);
    }
    assert_eq!(picks(&state, 800_000 + 16_000 - 1, 2), [2, 2]);
    assert!(picks(&state, 800_000 + 16_000, 2).contains(&1));
    take(&state, 0).succeeded();
    assert!(picks(&state, 800_000, 2).contains(&1));
}

#[test]
fn failures_of_concurrent_requests_count_once() {
    let state = state(&[1, 2]);
    let under_way: Vec<_> = (0..20).map(|_| take(&state, 0)).collect();
    for (picked, now_ms) in under_way.into_iter().zip((1000..).step_by(100)) {
        picked.failed(now_ms);
    }
    assert_eq!(picks(&state, 1499, 2), [2, 2]);
    assert!(picks(&state, 1500, 2).contains(&1));
    // A later request counts again.
    take(&state, 0).failed(4000);
    assert_eq!(picks(&state, 4999, 2), [2, 2]);
    // Requests sent to an ejected endpoint do not count.
    (0..20).for_each(|_| take(&state, 0).failed(4500));
    assert!(picks(&state, 5000, 2).contains(&1));
}

#[test]
fn one_endpoint_is_never_ejected() {
    for (ports, ejected) in [(&[1][..], &[][..]), (&[1, 2], &[1]), (&[1, 2, 3], &[1]), (&[1, 2, 3, 4], &[1, 2])] {
        let state = state(ports);
        (0..ports.len()).for_each(|index| take(&state, index).failed(0));
        let picked: BTreeSet<_> = picks(&state, 1, 8).into_iter().collect();
        let rest: BTreeSet<_> = ports.iter().filter(|port| !ejected.contains(*port)).copied().collect();
        assert_eq!(picked, rest);
        assert_eq!(state.view(1).ejections, ejected.len() as u64);
        // An ejected endpoint is better than none.
        let mut tried = Tried::up_to(10);
        let all = std::iter::from_fn(|| state.pick(Choice::Next, || 1, &mut tried));
        assert_eq!(all.count(), ports.len());
    }
}

#[test]
fn concurrent_failures_do_not_eject_all_endpoints() {
    for _ in 0..200 {
        let state = state(&[1, 2]);
        std::thread::scope(|scope| {
            for index in 0..2 {
                let state = &state;
                scope.spawn(move || take(state, index).failed(0));
            }
        });
        assert_eq!(state.view(1).ejected, 1);
    }
}

fn with(ports: &[u16], health_policy: HealthPolicy) -> Arc<UpstreamState> {
    UpstreamState::carry(
        &key(),
        &Upstream { health_policy: Some(Arc::new(health_policy)), ..upstream(ports) },
        None,
        None,
    )
}

#[test]
fn ejection_follows_the_health_policy() {
    let ejection = OutlierDetection {
        after: NonZeroU32::new(3),
        first: Duration::from_secs(10),
        share: 100,
        errors: true,
        ..OutlierDetection::DEFAULT
    };
    let state = with(&[1, 2, 3], HealthPolicy { outlier_detection: ejection.clone(), ..HealthPolicy::default() });
    take(&state, 0).failed(0);
    take(&state, 0).answered(503, || 0);
    assert_eq!(state.view(0).ejected, 0);
    take(&state, 0).answered(200, || 0);
    (0..2).for_each(|_| take(&state, 0).answered(500, || 0));
    assert_eq!(state.view(0).ejected, 0, "not in a row");
    take(&state, 0).failed(0);
    assert_eq!((state.view(9_999).ejected, state.view(10_000).ejected), (1, 0));
    (0..3).for_each(|_| take(&state, 1).failed(0));
    (0..3).for_each(|_| take(&state, 2).failed(0));
    assert_eq!(state.view(0).ejected, 2, "the last one stays");
    let never = with(
        &[1, 2],
        HealthPolicy { outlier_detection: OutlierDetection { after: None, ..ejection }, ..HealthPolicy::default() },
    );
    (0..9).for_each(|_| take(&never, 0).failed(0));
    assert_eq!(never.view(0).ejected, 0);
    let plain = self::state(&[1, 2]);
    (0..9).for_each(|_| take(&plain, 0).answered(500, || 0));
    assert_eq!(plain.view(0).ejected, 0, "errors are answers");
}

#[test]
fn unhealthy_endpoints_get_no_requests_unless_all_are() {
    let check = Check {
        question: Question::Connect,
        port: None,
        interval: Duration::from_secs(1),
        timeout: Duration::from_secs(1),
        healthy: NonZeroU32::MIN,
        unhealthy: NonZeroU32::MIN,
    };
    let state = with(&[1, 2], HealthPolicy { check: Some(Arc::new(check)), ..HealthPolicy::default() });
    let checked: Vec<_> = state.checked().collect();
    assert!(checked.iter().all(Checked::is_healthy), "nobody is known to be ill");
    checked[0].judge(false);
    for choice in [Choice::Next, Choice::LeastRequest, Choice::Ewma, Choice::Hash(7)] {
        assert!((0..20).all(|_| chosen(&state, choice) == 2), "{choice:?}");
    }
    take(&state, 1).failed(0);
    assert_eq!(state.view(0).ejected, 0, "who is well alone is not ejected");
    checked[1].judge(false);
    assert_eq!(picks(&state, 0, 20).into_iter().collect::<BTreeSet<_>>(), [1, 2].into());
    checked[0].judge(true);
    assert!((0..20).all(|_| chosen(&state, Choice::Next) == 1));
    assert_eq!(state.view(0).unhealthy, 1);
}

#[test]
fn no_endpoint_exceeds_its_request_limit() {
    let circuit_breaker = CircuitBreaker { requests: NonZeroU32::new(2), ..CircuitBreaker::default() };
    let state = with(&[1, 2], HealthPolicy { circuit_breaker, ..HealthPolicy::default() });
    let engage = |choice| state.engage(choice, || 0, &mut Tried::up_to(3));
    let held: Vec<_> = (0..4).map(|_| engage(Choice::Hash(7)).expect("room")).collect();
    let mut ports: Vec<_> = held.iter().map(|(picked, _)| picked.address().port()).collect();
    assert_eq!(ports[0], ports[1], "where it belongs, as long as there is room");
    ports.sort_unstable();
    assert_eq!(ports, [1, 1, 2, 2]);
    for choice in [Choice::Next, Choice::LeastRequest, Choice::Hash(7)] {
        assert!(engage(choice).is_none());
    }
    assert_eq!(state.refuse(), Some(Full::Requests));
    assert_eq!(state.view(0).refused, [0, 0, 0, 1]);
    drop(held);
    assert!(engage(Choice::Next).is_some());
    assert_eq!(self::state(&[]).refuse(), None);
}

#[test]
fn a_new_endpoint_starts_slowly() {
    fastrand::seed(7);
    let slow = |time| HealthPolicy { slow_start: Some(time), ..HealthPolicy::default() };
    let grown = |time: Duration| {
        let of = |ports: &[u16]| Upstream { health_policy: Some(Arc::new(slow(time))), ..upstream(ports) };
        let first = UpstreamState::carry(&key(), &of(&[1, 2, 3]), None, None);
        UpstreamState::carry(&key(), &of(&[1, 2, 3, 4]), None, Some(&first))
    };
    let count = |state: &UpstreamState, choice| (0..400).filter(|_| chosen(state, choice) == 4).count();
    for choice in [Choice::Next, Choice::LeastRequest, Choice::Ewma] {
        // An hour is practically infinite here, and a millisecond has passed.
        let begins = count(&grown(Duration::from_secs(3600)), choice);
        assert!(begins < 4, "{choice:?}: {begins}");
        let is_there = grown(Duration::from_millis(1));
        while is_there.endpoints[3].health.share(Duration::from_millis(1)) < 1.0 {
            std::thread::yield_now();
        }
        let share = count(&is_there, choice);
        assert!((60..140).contains(&share), "{choice:?}: {share}");
    }
    let hashed = grown(Duration::from_secs(3600));
    let ports: BTreeSet<_> = (0..100u8).map(|key| chosen(&hashed, Choice::Hash(hash(&[key])))).collect();
    assert!(ports.contains(&4), "hashes are as they are");
    let alone = with(&[1], slow(Duration::from_secs(3600)));
    assert_eq!(picks(&alone, 0, 3), [1, 1, 1], "the first ones have nobody to wait for");
}

#[test]
fn health_carries_over_by_address() {
    let first = state(&[1, 2]);
    take(&first, 1).failed(0);
    assert!(Arc::ptr_eq(&first, &UpstreamState::carry(&key(), &upstream(&[1, 2]), None, Some(&first))));
    let other = Upstream { protocol: Protocol::H2c, ..upstream(&[1, 2]) };
    assert_eq!(UpstreamState::carry(&key(), &other, None, Some(&first)).protocol(), Protocol::H2c);
    let second = UpstreamState::carry(&key(), &upstream(&[2, 3]), None, Some(&first));
    assert_eq!(picks(&second, 1, 3), [3, 3, 3]);
}

fn chosen(state: &UpstreamState, choice: Choice) -> u16 {
    state.pick(choice, || 0, &mut Tried::up_to(3)).expect("an endpoint").address().port()
}

#[test]
fn a_key_has_a_subset_of_the_endpoints() {
    let state = state(&[1, 2, 3, 4, 5]);
    let ports = |key: u8, size| {
        let choice = Choice::Subset(hash(&[key]), size);
        (0..200).map(|_| chosen(&state, choice)).collect::<BTreeSet<_>>()
    };
    for (size, expect) in [(1, 1), (2, 2), (5, 5), (100, 5)] {
        for key in 0..10 {
            assert_eq!(ports(key, size).len(), expect, "{key} {size}");
        }
    }
    let single: BTreeSet<_> = (0..10).map(|key| chosen(&state, Choice::Hash(hash(&[key])))).collect();
    let first: BTreeSet<_> = (0..10).flat_map(|key| ports(key, 1)).collect();
    assert_eq!(single, first, "a subset of one is the endpoint of plain hashing");
    let mut tried = Tried::up_to(3);
    let picks = (0..3).map(|_| state.pick(Choice::Subset(7, 2), || 0, &mut tried).expect("one").address().port());
    assert_eq!(picks.collect::<BTreeSet<_>>().len(), 3, "behind the subset, the others follow");
}

#[test]
fn the_less_loaded_of_two_endpoints_is_chosen() {
    let state = state(&[1, 2]);
    let busy: Vec<_> = (0..3).map(|_| state.endpoints[0].load.begin(None)).collect();
    assert!((0..20).all(|_| chosen(&state, Choice::LeastRequest) == 2));
    drop(busy);
    let ports: BTreeSet<_> = (0..100).map(|_| chosen(&state, Choice::LeastRequest)).collect();
    assert_eq!(ports, [1, 2].into());
    take(&state, 0).observe(Duration::from_millis(50), 0);
    take(&state, 1).observe(Duration::from_millis(1), 0);
    assert!((0..20).all(|_| chosen(&state, Choice::Ewma) == 2));
    take(&state, 1).failed(0);
    assert!((0..20).all(|_| chosen(&state, Choice::Ewma) == 1), "one that is out is not chosen");
    assert_eq!(chosen(&self::state(&[1]), Choice::LeastRequest), 1);
}

#[test]
fn keys_and_ids_select_the_same_endpoint_until_its_ejection() {
    let state = state(&[1, 2, 3]);
    let picked = |choice, tried: &mut Tried| state.pick(choice, || 0, tried).expect("an endpoint");
    for key in 0..20 {
        let mut tried = Tried::up_to(3);
        let first = picked(Choice::Hash(hash(&[key])), &mut tried);
        assert_eq!(chosen(&state, Choice::Hash(hash(&[key]))), first.address().port());
        let id = first.id().expect("an id");
        assert!(state.knows(id));
        assert_eq!(chosen(&state, Choice::Sticky(id)), first.address().port());
        let second = picked(Choice::Hash(hash(&[key])), &mut tried);
        assert_ne!(first.address(), second.address());
    }
    let first = picked(Choice::Hash(7), &mut Tried::up_to(3));
    let id = first.id().expect("an id");
    first.failed(0);
    assert_ne!(chosen(&state, Choice::Hash(7)), first.address().port());
    assert_ne!(chosen(&state, Choice::Sticky(id)), first.address().port());
    assert!(!state.knows(0));
}

#[test]
fn an_endpoint_is_found_by_its_address() {
    let state = state(&[1, 2]);
    let address = |port: u16| ([10, 0, 0, 1], port).into();
    assert!(state.at(address(3)).is_none());
    state.at(address(1)).expect("an endpoint").failed(0);
    assert_eq!(picks(&state, 1, 2), [2, 2]);
}
