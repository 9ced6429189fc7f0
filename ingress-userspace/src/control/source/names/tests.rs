//! Names against scripted answers, in time that only the test moves.

use std::{cell::RefCell, collections::VecDeque};

use tokio::time::timeout;

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

/// Answers each question with the next line of the script, and tells what comes of it and after how many seconds.
async fn check(script: Script, expect: &[(u64, &str)], act: impl AsyncFn(usize, &watch::Sender<BTreeSet<Arc<str>>>)) {
    let (want, wanted) = watch::channel(BTreeSet::new());
    let (sender, mut batches) = mpsc::channel(16);
    let began = Instant::now();
    let lookup = |name: Arc<str>| {
        let Some((expected, answer)) = script.borrow_mut().pop_front() else { panic!("`{name}` after the end") };
        assert_eq!(*name, *expected, "after {:?}", began.elapsed());
        let answer = answer.map_err(|()| failure(&name)).map(|(addresses, ttl)| Answer {
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
        () = follow_with(lookup, wanted, sender) => panic!("it ended"),
        () = compare => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_is_asked_for_again_before_its_time_is_over_and_told_only_when_it_changes() {
    let script: Script = RefCell::new(
        [
            ("a.test", Ok((&[1][..], 100))),
            ("a.test", Ok((&[1], 100))),     // at 90
            ("a.test", Ok((&[2], 0))),       // at 180
            ("a.test", Ok((&[3], 100_000))), // at 185: not sooner than the least time
            ("a.test", Ok((&[], 10))),       // at 485: not later than the longest
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

#[test]
fn an_answer_does_not_stay_for_ever() {
    let mut schedule = Schedule::default();
    let (name, start): (Arc<str>, _) = ("a.test".into(), Instant::now());
    schedule.want(&names(&["a.test"]), start);
    let failed = |schedule: &mut Schedule, at| schedule.answer(&name, Err(failure("a.test")), at);
    assert!(failed(&mut schedule, start).is_none(), "there is nothing to take back");
    let answer = Answer { addresses: vec![address(1)], ttl: MAX_TTL };
    assert!(schedule.answer(&name, Ok(answer), start).is_some());
    assert!(failed(&mut schedule, start + MAX_STALE).is_none());
    let change = failed(&mut schedule, start + MAX_STALE + Duration::from_secs(1));
    assert!(matches!(&change, Some(Change::Resolve { addresses, .. }) if addresses.is_empty()), "{change:?}");
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_not_wanted_any_more_is_forgotten() {
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
fn names_are_asked_for_a_few_at_a_time_the_longest_waiting_first() {
    let mut schedule = Schedule::default();
    let start = Instant::now();
    schedule.want(&names(&["z.test"]), start);
    schedule.want(&names(&["a.test", "b.test", "z.test"]), start + Duration::from_secs(1));
    let now = start + Duration::from_secs(1);
    assert_eq!(schedule.take_due(now, 2), ["z.test".into(), "a.test".into()]);
    assert_eq!(schedule.take_due(now, 2), ["b.test".into()]);
    assert_eq!(schedule.next_due(), None, "what is under way is not due");
}
