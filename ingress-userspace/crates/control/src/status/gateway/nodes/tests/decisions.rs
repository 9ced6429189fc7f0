//! Tests the decisions about objects, without a network.

use super::{
    super::inquiry::{ACTIVE, AGAIN, GRACE, RECHECK},
    *,
};

const STEP: Duration = Duration::from_millis(1);

fn address(number: u8) -> IpAddr {
    [10, 0, 0, number].into()
}

fn nodes(numbers: &[u8]) -> BTreeMap<IpAddr, Arc<str>> {
    numbers.iter().map(|number| (address(*number), format!("n{number}").into())).collect()
}

fn names(names: &[&str]) -> BTreeSet<Arc<str>> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

/// Answers everything that is due at these nodes.
fn reply(inquiry: &mut Inquiry, numbers: &[u8], serves: bool, now: Instant) -> usize {
    let due = inquiry.take_due(now);
    for number in numbers {
        let items = due.get(&address(*number)).map(Vec::as_slice).unwrap_or_default();
        inquiry.hear(address(*number), items, &vec![serves; items.len()], now);
    }
    due.values().map(Vec::len).sum()
}

#[test]
fn nodes_that_were_silent_get_a_short_grace_until_they_answer() {
    let (mut inquiry, mut now) = (Inquiry::default(), Instant::now());
    inquiry.set_peers(nodes(&[1, 2]), now);
    assert_eq!(inquiry.judge(&id(0), 7, None, now), None);
    reply(&mut inquiry, &[1], true, now);
    now += BOUND;
    reply(&mut inquiry, &[], true, now);
    let silent = Verdict::Silent { serving: 2, nodes: 3, silent: names(&["n2"]) };
    assert_eq!(inquiry.judge(&id(0), 7, None, now), Some(&silent));
    assert_eq!(inquiry.take_decided(), [id(0)].into());

    assert_eq!(inquiry.judge(&id(1), 7, None, now), None, "the other node is asked");
    reply(&mut inquiry, &[1], true, now);
    assert_eq!(inquiry.judge(&id(1), 7, None, now), None, "it may have come back");
    now += GRACE;
    reply(&mut inquiry, &[], true, now);
    assert_eq!(inquiry.judge(&id(1), 7, None, now), Some(&silent));

    // One of the two finds out that the node is back, and then both are asked about.
    now += RECHECK;
    assert_eq!(reply(&mut inquiry, &[2], true, now), 1);
    reply(&mut inquiry, &[2], true, now);
    let served = Verdict::Served { nodes: 3, took: None };
    for number in 0..2 {
        assert_eq!(inquiry.judge(&id(number), 7, None, now), Some(&served));
        inquiry.dismiss(&id(number));
    }
    assert!(!inquiry.has_questions(), "nothing is left to ask");
}

#[test]
fn nodes_that_go_are_not_waited_for_and_nodes_that_come_are() {
    let (mut inquiry, now) = (Inquiry::default(), Instant::now());
    inquiry.set_peers(nodes(&[1, 2]), now);
    inquiry.judge(&id(0), 7, Some(now), now);
    reply(&mut inquiry, &[1], true, now + STEP);
    inquiry.set_peers(nodes(&[1]), now + STEP * 9);
    let served = Verdict::Served { nodes: 2, took: Some(STEP) };
    assert_eq!(inquiry.judge(&id(0), 7, Some(now), now), Some(&served));
    inquiry.judge(&id(1), 7, Some(now), now);
    inquiry.set_peers(nodes(&[1, 3]), now);
    reply(&mut inquiry, &[1], true, now + STEP);
    assert_eq!(inquiry.judge(&id(1), 7, Some(now), now), None, "the new node is asked, too");
    reply(&mut inquiry, &[3], true, now + STEP * 9);
    let served = Verdict::Served { nodes: 3, took: Some(STEP * 9) };
    assert_eq!(inquiry.judge(&id(1), 7, Some(now), now), Some(&served));
}

#[test]
fn pods_that_cannot_be_read_do_not_block() {
    let (mut inquiry, now) = (Inquiry::default(), Instant::now());
    assert_eq!(inquiry.judge(&id(0), 7, None, now), None);
    assert_eq!(inquiry.next(now), Some(now + GRACE));
    assert!(inquiry.take_due(now + BOUND).is_empty());
    assert_eq!(inquiry.judge(&id(0), 7, None, now), Some(&Verdict::Unknown));
    inquiry.set_peers(nodes(&[]), now + BOUND);
    assert_eq!(inquiry.judge(&id(0), 7, None, now), Some(&Verdict::Served { nodes: 1, took: None }));
}

#[test]
fn nodes_that_are_not_known_are_waited_for_once() {
    let (mut inquiry, mut now) = (Inquiry::default(), Instant::now());
    assert_eq!(inquiry.judge(&id(0), 7, None, now), None);
    now += BOUND;
    inquiry.take_due(now);
    assert_eq!(inquiry.judge(&id(0), 7, None, now), Some(&Verdict::Unknown));
    assert!(!inquiry.has_questions(), "there is nobody to ask");
    for number in 1..9 {
        assert_eq!(inquiry.judge(&id(number), 7, None, now), None);
        now += GRACE;
        inquiry.take_due(now);
        assert_eq!(inquiry.judge(&id(number), 7, None, now), Some(&Verdict::Unknown));
    }
    // All are asked about once the nodes are known.
    inquiry.set_peers(nodes(&[1]), now);
    assert_eq!(reply(&mut inquiry, &[1], true, now), 9);
    let served = Verdict::Served { nodes: 2, took: None };
    assert!((0..9).all(|number| inquiry.judge(&id(number), 7, None, now) == Some(&served)));
}

#[test]
fn a_late_answer_improves_each_verdict() {
    let (mut inquiry, start) = (Inquiry::default(), Instant::now());
    inquiry.set_peers(nodes(&[1]), start);
    (0..3).for_each(|number| drop(inquiry.judge(&id(number), 7, None, start).cloned()));
    let due = inquiry.take_due(start);
    let mut now = start + BOUND;
    inquiry.take_due(now);
    assert_eq!(inquiry.take_decided().len(), 3, "silent");
    now += STEP;
    let items = &due[&address(1)];
    inquiry.hear(address(1), items, &vec![true; items.len()], now);
    assert_eq!(inquiry.take_decided().len(), 3);
    let served = Verdict::Served { nodes: 2, took: None };
    assert!((0..3).all(|number| inquiry.judge(&id(number), 7, None, now) == Some(&served)));
}

#[test]
fn further_changes_do_not_put_a_status_off() {
    let (mut inquiry, start) = (Inquiry::default(), Instant::now());
    inquiry.set_peers(nodes(&[1]), start);
    let mut fingerprint = 0;
    let decided = (0..100).map(|turn| start + STEP * 100 * turn).find(|now| {
        fingerprint += 1;
        let is_decided = inquiry.judge(&id(0), fingerprint, None, *now).is_some();
        reply(&mut inquiry, &[1], false, *now);
        reply(&mut inquiry, &[1], false, *now + GRACE);
        is_decided || inquiry.judge(&id(0), fingerprint, None, *now + GRACE).is_some()
    });
    assert!(decided.expect("a verdict") <= start + BOUND);
    assert!(matches!(inquiry.judge(&id(0), fingerprint, None, start), Some(Verdict::Behind { .. })));
}

#[test]
fn a_node_found_silent_delays_no_other_object() {
    let (mut inquiry, start) = (Inquiry::default(), Instant::now());
    inquiry.set_peers(nodes(&[1]), start);
    inquiry.judge(&id(1), 7, None, start);
    inquiry.judge(&id(0), 7, None, start + BOUND / 2);
    inquiry.take_due(start + BOUND);
    assert_eq!(inquiry.take_decided(), [id(0), id(1)].into());
}

#[test]
fn a_node_that_has_just_come_is_not_called_silent() {
    let (mut inquiry, start) = (Inquiry::default(), Instant::now());
    inquiry.set_peers(nodes(&[1]), start);
    inquiry.judge(&id(0), 7, None, start);
    inquiry.set_peers(nodes(&[1, 2]), start + BOUND - STEP);
    inquiry.take_due(start + BOUND);
    assert!(matches!(inquiry.judge(&id(0), 7, None, start), Some(Verdict::Silent { .. })));
    // Node 1 is not waited for any longer, and the other one is.
    let now = start + BOUND;
    inquiry.judge(&id(1), 7, None, now);
    inquiry.take_due(now + GRACE);
    assert_eq!(inquiry.judge(&id(1), 7, None, now), None);
    inquiry.take_due(now + BOUND);
    assert!(matches!(inquiry.judge(&id(1), 7, None, now), Some(Verdict::Silent { .. })));
}

#[test]
fn changes_of_objects_take_no_further_places() {
    const OBJECTS: usize = ACTIVE + 10;
    let (mut inquiry, mut now) = (Inquiry::default(), Instant::now());
    inquiry.set_peers(nodes(&[1]), now);
    for fingerprint in 0..9 {
        (0..OBJECTS).for_each(|number| drop(inquiry.judge(&id(number), fingerprint, None, now).cloned()));
    }
    assert_eq!(inquiry.sizes(), (OBJECTS, OBJECTS));
    for _ in 0..3 {
        now += BOUND;
        reply(&mut inquiry, &[1], false, now);
    }
    // Pods come and go.
    for number in 2..9 {
        inquiry.set_peers(nodes(&[1, number]), now);
        let (open, places) = inquiry.sizes();
        assert!(open == OBJECTS && places <= open, "{places} places");
    }
    (0..OBJECTS).for_each(|number| inquiry.dismiss(&id(number)));
    assert_eq!(inquiry.sizes(), (0, 0));
}

#[test]
fn objects_without_a_verdict_do_not_wait_for_others() {
    const OBJECTS: usize = 2 * ACTIVE;
    let (mut inquiry, mut now) = (Inquiry::default(), Instant::now());
    inquiry.set_peers(nodes(&[1, 2]), now);
    (0..OBJECTS).for_each(|number| drop(inquiry.judge(&id(number), 7, None, now).cloned()));
    while inquiry.take_decided().len() < ACTIVE {
        now += BOUND;
        reply(&mut inquiry, &[1, 2], false, now);
    }
    now += BOUND + RECHECK;
    // Those with a verdict are asked about again, a part of them at a time, while a new one comes.
    assert!(reply(&mut inquiry, &[], false, now) <= 2 * AGAIN);
    inquiry.judge(&id(OBJECTS), 7, None, now);
    let due = inquiry.take_due(now);
    let is_new = |item: &&Item| item.id == id(OBJECTS);
    assert_eq!(due.values().flatten().filter(is_new).count(), 2, "both nodes are asked at once");
}

#[test]
fn questions_are_bounded_in_number_and_time() {
    let (mut inquiry, start) = (Inquiry::default(), Instant::now());
    inquiry.set_peers(nodes(&[1, 2]), start);
    (0..ACTIVE + 10).for_each(|number| drop(inquiry.judge(&id(number), 7, None, start).cloned()));
    let (mut now, mut waves, mut items) = (start, 0, 0);
    while let Some(next) = inquiry.next(now).filter(|next| *next < start + BOUND) {
        assert!(next > now || waves == 0, "it does not spin");
        now = next;
        let due = inquiry.take_due(now);
        waves += usize::from(!due.is_empty());
        items += due.values().map(Vec::len).sum::<usize>();
    }
    assert!(waves <= 16, "{waves} waves");
    assert_eq!(items, waves * 2 * ACTIVE);
    // The others follow, and a node that answers late is not asked twice about the same.
    now = start + BOUND;
    assert_eq!(reply(&mut inquiry, &[], true, now), 2 * 10);
    assert_eq!(inquiry.take_decided().len(), ACTIVE);
}
