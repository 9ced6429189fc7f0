//! Tests of names against scripted answers, on a clock that only the test moves.

use std::{cell::RefCell, collections::VecDeque};

use tokio::time::{sleep, sleep_until, timeout};

use super::*;

type Script = RefCell<VecDeque<(&'static str, Result<(&'static [u8], u64), ()>)>>;

fn failure(name: &str) -> LookupError {
    LookupError::Timeout { name: name.into(), after: Duration::ZERO }
}

fn names(names: &[&str]) -> BTreeSet<Arc<str>> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, last])
}

fn describe(batch: Batch) -> String {
    let changes = batch.changes.into_iter().map(|change| match change {
        Change::Resolve { name, addresses } => format!("{name}={addresses:?}").replace("192.0.2.", ""),
        Change::Forget { name } => format!("-{name}"),
        other => panic!("unexpected {other:?}"),
    });
    changes.collect::<Vec<_>>().join(" ")
}

/// Answers each query with the next line of the script. Compares the changes and their times in seconds.
async fn check(script: Script, expect: &[(u64, &str)], act: impl AsyncFn(usize, &watch::Sender<BTreeSet<Arc<str>>>)) {
    let (want, wanted) = watch::channel(BTreeSet::new());
    let (sender, mut batches) = mpsc::channel(16);
    let began = Instant::now();
    let lookup = |name: Arc<str>| {
        let Some((expected, answer)) = script.borrow_mut().pop_front() else { panic!("`{name}` after the end") };
        assert_eq!(*name, *expected, "after {:?}", began.elapsed());
        let answer = answer.map_err(|()| failure(&name)).map(|(addresses, ttl)| LookupAnswer {
            addresses: addresses.iter().copied().map(address).collect(),
            ttl: Duration::from_secs(ttl),
        });
        std::future::ready(answer)
    };
    let compare = async {
        for (number, (seconds, expect)) in expect.iter().enumerate() {
            act(number, &want).await;
            let batch = timeout(2 * MAX_STALE, batches.recv()).await.expect("in time").expect("more");
            assert_eq!((began.elapsed().as_secs(), describe(batch).as_str()), (*seconds, *expect));
        }
    };
    tokio::select! {
        () = resolve_with(lookup, wanted, sender) => panic!("it ended"),
        () = compare => {}
    }
}

#[tokio::test(start_paused = true)]
async fn names_are_refreshed_before_expiry_and_reported_on_change() {
    let script: Script = RefCell::new(
        [
            ("a.test", Ok((&[1][..], 100))),
            ("a.test", Ok((&[1], 100))),     // at 90
            ("a.test", Ok((&[2], 0))),       // at 180
            ("a.test", Ok((&[3], 100_000))), // at 185: not before the minimum
            ("a.test", Ok((&[], 10))),       // at 485: not after the maximum
        ]
        .into(),
    );
    let expect = [(0, "a.test=[1]"), (180, "a.test=[2]"), (185, "a.test=[3]"), (485, "a.test=[]")];
    check(script, &expect, async |number, want| {
        if number == 0 {
            want.send_replace(names(&["a.test"]));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_last_answer_stays_while_dns_fails() {
    let mut script: VecDeque<_> = [("a.test", Ok((&[1][..], 100)))].into();
    // At 90, then after 5, 10, 20, 40 s, …
    script.extend([("a.test", Err(())); 5]);
    script.push_back(("a.test", Ok((&[2], 100))));
    let expect = [(0, "a.test=[1]"), (90 + 5 + 10 + 20 + 40 + 60, "a.test=[2]")];
    check(RefCell::new(script), &expect, async |number, want| {
        if number == 0 {
            want.send_replace(names(&["a.test"]));
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_name_that_never_resolves_is_reported_once() {
    let mut script: VecDeque<_> = [("a.test", Err(())); 4].into();
    script.push_back(("a.test", Ok((&[1][..], 100))));
    let expect = [(5, "a.test=[]"), (5 + 10 + 20 + 40, "a.test=[1]")];
    check(RefCell::new(script), &expect, async |number, want| {
        if number == 0 {
            want.send_replace(names(&["a.test"]));
        }
    })
    .await;
}

#[test]
fn stale_answers_expire() {
    let mut schedule = Schedule::default();
    let (name, start): (Arc<str>, _) = ("a.test".into(), Instant::now());
    schedule.want(&names(&["a.test"]), start);
    let failed = |schedule: &mut Schedule, at| schedule.answer(&name, Err(failure("a.test")), at);
    assert!(failed(&mut schedule, start).is_none(), "there is nothing to take back");
    let answer = LookupAnswer { addresses: vec![address(1)], ttl: MAX_TTL };
    assert!(schedule.answer(&name, Ok(answer), start).is_some());
    assert!(failed(&mut schedule, start + MAX_STALE).is_none());
    let change = failed(&mut schedule, start + MAX_STALE + Duration::from_secs(1));
    assert!(matches!(&change, Some(Change::Resolve { addresses, .. }) if addresses.is_empty()), "{change:?}");
}

#[tokio::test(start_paused = true)]
async fn unused_names_are_forgotten() {
    let script: Script = RefCell::new([("a.test", Ok((&[1][..], 100))), ("b.test", Ok((&[2], 100)))].into());
    let expect = [(0, "a.test=[1]"), (0, "-a.test"), (0, "b.test=[2]")];
    check(script, &expect, async |number, want| match number {
        0 => drop(want.send_replace(names(&["a.test"]))),
        1 => drop(want.send_replace(names(&["b.test"]))),
        _ => {}
    })
    .await;
}

#[test]
fn lookups_are_limited_and_the_longest_waiting_go_first() {
    let mut schedule = Schedule::default();
    let start = Instant::now();
    schedule.want(&names(&["z.test"]), start);
    let many: BTreeSet<Arc<str>> = (0..20).map(|number| format!("{number:02}.test").into()).collect();
    let now = start + Duration::from_millis(1);
    schedule.want(&many.iter().cloned().chain(["z.test".into()]).collect(), now);
    let taken = schedule.take_due(now);
    assert_eq!((taken.len(), &*taken[0], &*taken[1]), (8, "z.test", "00.test"));
    assert!(schedule.take_due(now).is_empty(), "all slots are taken");
    assert_eq!(schedule.next_due(), None, "a name without a slot is not due");
    // The names are not wanted any more, but their lookups are still in progress.
    schedule.want(&BTreeSet::new(), now);
    schedule.want(&many, now);
    assert!(schedule.take_due(now).is_empty());
    schedule.answer(&"z.test".into(), Err(failure("z.test")), now);
    assert_eq!(schedule.take_due(now), ["07.test".into()]);
}

/// Answers at once, except for `tarpit-…`, which is never answered, and `late-…`, which is answered after 9 s.
async fn tarpit(name: Arc<str>) -> Result<LookupAnswer, LookupError> {
    let (pause, result) = match name.split('-').next() {
        Some("tarpit") => (10, Err(failure(&name))),
        Some("late") => (9, Ok(LookupAnswer { addresses: vec![address(9)], ttl: Duration::ZERO })),
        _ => (0, Ok(LookupAnswer { addresses: vec![address(1)], ttl: Duration::from_secs(100) })),
    };
    sleep(Duration::from_secs(pause)).await;
    result
}

#[tokio::test(start_paused = true)]
async fn unanswered_and_late_names_delay_no_others() {
    let bad = |kind: &str| -> Vec<Arc<str>> { (0..100).map(|number| format!("{kind}-{number}").into()).collect() };
    let mut all: BTreeSet<Arc<str>> = bad("tarpit").into_iter().chain(bad("late")).collect();
    let (want, wanted) = watch::channel(all.clone());
    want.send_replace(all.clone());
    let (sender, mut batches) = mpsc::channel(16);
    let asked = RefCell::new(Vec::new());
    let began = Instant::now();
    let lookup = |name: Arc<str>| {
        if &*name == "good.test" {
            asked.borrow_mut().push(began.elapsed().as_secs());
        }
        tarpit(name)
    };
    let compare = async {
        // By now all names have been looked up once: 200 names, eight at a time, for up to 10 s.
        sleep_until(began + Duration::from_secs(300)).await;
        all.insert("good.test".into());
        want.send_replace(all);
        sleep_until(began + Duration::from_secs(700)).await;
    };
    tokio::select! {
        () = resolve_with(lookup, wanted, sender) => panic!("it ended"),
        () = async { while batches.recv().await.is_some() {} } => panic!("it ended"),
        () = compare => {}
    }
    assert_eq!(*asked.borrow(), [300, 390, 480, 570, 660]);
}
