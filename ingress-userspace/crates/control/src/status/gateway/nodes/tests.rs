//! Tests the questions and answers: their decisions, their form, and their way over loopback.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::{
    net::UdpSocket,
    sync::watch,
    time::{Instant, timeout},
};

use super::{
    answer::{open, serve},
    ask::{Asker, SharedInquiry},
    inquiry::{ACTIVE, BOUND, GRACE, Inquiry, RECHECK, Verdict},
    wire::{Answer, Item, LENGTH, Question, fingerprint},
};
use crate::{
    Translation,
    change::{Change, Kind, Object, ObjectId, ObjectName},
    cluster::Cluster,
    gateway::GatewayApiObject,
    object_status::{Condition, ObjectStatus, ParentReference, ParentStatus, StatusBody},
    outcome::Origin,
    status::input::StatusInput,
};

const STEP: Duration = Duration::from_millis(1);

fn id(number: usize) -> ObjectId {
    ObjectId { kind: Kind::HttpRoute, name: ObjectName::new("n", &format!("r{number}")) }
}

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

fn route_status(generation: i64, accepted: bool) -> ObjectStatus {
    let parent = ParentReference {
        group: "gateway.networking.k8s.io".into(),
        kind: "Gateway".into(),
        namespace: None,
        name: "g".into(),
        section_name: None,
        port: None,
    };
    let accepted = if accepted {
        Condition::met("Accepted", "Accepted")
    } else {
        Condition::unmet("Accepted", "NotAllowedByListeners", "no".into())
    };
    ObjectStatus {
        generation,
        body: StatusBody::Route { parents: vec![ParentStatus { parent, conditions: vec![accepted] }] },
    }
}

#[test]
fn fingerprints_differ_by_object_generation_and_state_but_not_by_words() {
    let status = route_status(1, true);
    let mut reworded = status.clone();
    let StatusBody::Route { parents } = &mut reworded.body else { panic!("a route") };
    parents[0].conditions[0].message = "other words".into();
    parents[0].conditions.push(Condition::met("New", "New"));
    assert_eq!(fingerprint("u", &status), fingerprint("u", &reworded));
    let others = [
        fingerprint("v", &status),
        fingerprint("u", &route_status(2, true)),
        fingerprint("u", &route_status(1, false)),
    ];
    assert!(others.iter().all(|other| *other != fingerprint("u", &status)));
}

#[test]
fn questions_and_answers_arrive_as_they_were() {
    let mut nonces = 0..;
    let long = ObjectId { kind: Kind::Gateway, name: ObjectName::new(&"n".repeat(63), &"g".repeat(253)) };
    let items: Vec<_> = (0..200).map(id).chain([long]).map(|id| Item { id, fingerprint: u64::MAX - 7 }).collect();
    let sent = Question::datagrams(items.clone(), || nonces.next().expect("numbers"));
    assert_eq!(sent.iter().flat_map(|(question, _)| question.items.clone()).collect::<Vec<_>>(), items);
    assert!(sent.len() < 6, "{} datagrams", sent.len());
    for (question, datagram) in &sent {
        assert!(datagram.len() <= LENGTH);
        assert_eq!(Question::decode(datagram).as_ref(), Some(question));
        let answer =
            Answer { nonce: question.nonce, serves: question.items.iter().map(|item| item.id == id(3)).collect() };
        assert!(answer.encode().len() < datagram.len(), "an answer is shorter");
        assert_eq!(Answer::decode(&answer.encode()), Some(answer));
    }
    let (_, datagram) = Question::datagrams(items[..1].to_vec(), || 1).remove(0);
    assert!((0..datagram.len()).all(|cut| Question::decode(&datagram[..cut]).is_none()), "a part is no question");
    assert_eq!(Question::decode(&[&datagram[..], &[0]].concat()), None, "a byte too many");
    assert_eq!(Answer::decode(&datagram), None);
}

/// Returns the input of a replica that serves `r0` in this generation.
fn input(generation: i64) -> Arc<StatusInput> {
    let object = serde_json::json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"namespace": "n", "name": "r0", "uid": "u", "resourceVersion": "1"}});
    let object = GatewayApiObject::read(Kind::HttpRoute, object).expect("of the Gateway API").expect("an object");
    let (mut cluster, mut translation) = (Cluster::default(), Translation::default());
    cluster.apply(Change::Apply { object: Object::GatewayApi(object), origin: Origin::Api });
    translation.statuses.insert(id(0), Arc::new(route_status(generation, true)));
    Arc::new(StatusInput::new(&cluster, &translation, &"manager".into()))
}

async fn socket(address: [u8; 4], port: u16) -> UdpSocket {
    open(SocketAddr::from((address, port))).expect("a free port")
}

#[tokio::test]
async fn nodes_are_asked_over_the_network_until_all_serve_an_object() {
    const OTHERS: [[u8; 4]; 2] = [[127, 0, 0, 2], [127, 0, 0, 3]];
    let first = socket(OTHERS[0], 0).await;
    let port = first.local_addr().expect("an address").port();
    let second = socket(OTHERS[1], port).await;
    let (of_first, of_second) = (watch::channel(input(1)).1, watch::channel(input(0)));
    let shared = SharedInquiry::default();
    let mut asker = Asker::new(socket([127, 0, 0, 1], 0).await, port);
    let now = Instant::now();
    let asked = fingerprint("u", &route_status(1, true));
    let judge = || shared.ask(|inquiry| inquiry.judge(&id(0), asked, Some(now), Instant::now()).cloned());
    shared.ask(|inquiry| {
        let nodes = OTHERS.iter().zip(["a", "b"]).map(|(address, node)| (IpAddr::from(*address), node.into()));
        inquiry.set_peers(nodes.collect(), now);
    });
    assert_eq!(judge(), None);
    let asking = async {
        loop {
            asker.step(&shared).await;
        }
    };
    let work = async {
        // The second node learns of the object after it was asked: it has refused by then.
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert!(!matches!(judge(), Some(Verdict::Served { .. })));
        // Anything else at the port is left alone.
        for datagram in [&b""[..], b"xdpq", &[0; 1500]] {
            socket([127, 0, 0, 1], 0)
                .await
                .send_to(datagram, (IpAddr::from(OTHERS[1]), port))
                .await
                .expect("it is sent");
        }
        of_second.0.send_replace(input(1));
        while !matches!(judge(), Some(Verdict::Served { nodes: 3, took: Some(_) })) {
            shared.decided().await;
        }
    };
    let served = timeout(Duration::from_secs(60), async {
        tokio::select! {
            () = serve(&first, &of_first) => false,
            () = serve(&second, &of_second.1) => false,
            () = asking => false,
            () = work => true,
        }
    });
    assert_eq!(served.await, Ok(true));
}

#[tokio::test]
async fn answers_of_strangers_do_not_count() {
    let node = socket([127, 0, 0, 2], 0).await;
    let port = node.local_addr().expect("an address").port();
    let stranger = socket([127, 0, 0, 3], port).await;
    let shared = SharedInquiry::default();
    let mut asker = Asker::new(socket([127, 0, 0, 1], 0).await, port);
    shared.ask(|inquiry| {
        inquiry.set_peers([([127, 0, 0, 2].into(), "a".into())].into(), Instant::now());
        assert_eq!(inquiry.judge(&id(0), 7, None, Instant::now()), None);
    });
    let is_confirmed = || {
        let verdict = shared.ask(|inquiry| inquiry.judge(&id(0), 7, None, Instant::now()).cloned());
        matches!(verdict, Some(Verdict::Served { .. }))
    };
    let asking = async {
        loop {
            asker.step(&shared).await;
        }
    };
    let work = async {
        let mut buffer = [0; LENGTH];
        let (length, leader) = node.recv_from(&mut buffer).await.expect("a question");
        let nonce = Question::decode(&buffer[..length]).expect("a question").nonce;
        let yes = |nonce, count| Answer { nonce, serves: vec![true; count] }.encode();
        // Each from the wrong sender, to another question, or about another number of objects.
        stranger.send_to(&yes(nonce, 1), leader).await.expect("it is sent");
        node.send_to(&yes(nonce ^ 1, 1), leader).await.expect("it is sent");
        node.send_to(&yes(nonce, 2), leader).await.expect("it is sent");
        // It goes on to ask.
        let (mut length, mut leader) = node.recv_from(&mut buffer).await.expect("a question");
        for _ in 0..3 {
            (length, leader) = node.recv_from(&mut buffer).await.expect("a question");
            assert!(!is_confirmed());
        }
        let nonce = Question::decode(&buffer[..length]).expect("a question").nonce;
        node.send_to(&yes(nonce, 1), leader).await.expect("it is sent");
        while !is_confirmed() {
            shared.decided().await;
        }
    };
    let confirmed = timeout(Duration::from_secs(60), async {
        tokio::select! {
            () = asking => false,
            () = work => true,
        }
    });
    assert_eq!(confirmed.await, Ok(true));
}
