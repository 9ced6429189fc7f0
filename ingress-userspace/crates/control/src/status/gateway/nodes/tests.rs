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
    answer::{WORK, open, serve},
    ask::{Asker, STRANGERS, SharedInquiry},
    inquiry::{BOUND, Inquiry, Verdict},
    pace::{Pace, WINDOW},
    wire::{Answer, Item, LENGTH, Question, fingerprint},
};
use crate::{
    Translation,
    change::{Change, Kind, Object, ObjectId, ObjectName},
    cluster::Cluster,
    gateway::GatewayApiObject,
    object_status::{
        Condition, GatewayAddress, ListenerStatus, ObjectStatus, ParentReference, ParentStatus, StatusBody,
    },
    outcome::Origin,
    status::input::StatusInput,
};

mod decisions;

fn id(number: usize) -> ObjectId {
    ObjectId { kind: Kind::HttpRoute, name: ObjectName::new("n", &format!("r{number}")) }
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
fn fingerprints_do_not_depend_on_order() {
    let listener = |name: &str, programmed: Condition| ListenerStatus {
        name: name.into(),
        supported_kinds: vec!["HTTPRoute"],
        attached_routes: 0,
        conditions: vec![Condition::met("Accepted", "Accepted"), programmed],
    };
    let addresses = |numbers: [u8; 2]| numbers.map(|number| GatewayAddress::Ip([192, 0, 2, number].into())).to_vec();
    let unmet = || Condition::unmet("Programmed", "Invalid", "no".into());
    let met = || Condition::met("Programmed", "Programmed");
    let gateway = |listeners: [ListenerStatus; 2], numbers: [u8; 2]| ObjectStatus {
        generation: 1,
        body: StatusBody::Gateway {
            conditions: vec![Condition::met("Accepted", "Accepted"), met()],
            listeners: listeners.to_vec(),
            addresses: addresses(numbers),
            attached_listener_sets: None,
        },
    };
    let all = gateway([listener("a", met()), listener("b", unmet())], [1, 2]);
    let mut turned = gateway([listener("b", unmet()), listener("a", met())], [2, 1]);
    if let StatusBody::Gateway { conditions, listeners, .. } = &mut turned.body {
        conditions.reverse();
        listeners.iter_mut().for_each(|listener| listener.conditions.reverse());
    }
    assert_eq!(fingerprint("u", &all), fingerprint("u", &turned));
    // The same conditions of other listeners are another state.
    let swapped = gateway([listener("a", unmet()), listener("b", met())], [1, 2]);
    assert_ne!(fingerprint("u", &all), fingerprint("u", &swapped));
    let route = |names: [&str; 2], accepted: [bool; 2]| {
        let parent = |(name, accepted): (&str, bool)| {
            let StatusBody::Route { parents } = route_status(1, accepted).body else { panic!("a route") };
            let ParentStatus { parent, conditions } = parents.into_iter().next().expect("a parent");
            ParentStatus { parent: ParentReference { name: name.into(), ..parent }, conditions }
        };
        let parents = names.into_iter().zip(accepted).map(parent).collect();
        ObjectStatus { generation: 1, body: StatusBody::Route { parents } }
    };
    let both = fingerprint("u", &route(["g", "h"], [true, false]));
    assert_eq!(both, fingerprint("u", &route(["h", "g"], [false, true])));
    assert_ne!(both, fingerprint("u", &route(["h", "g"], [true, false])));
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
    let long = Answer { nonce: 1, serves: vec![true; 65] };
    assert_eq!(Answer::decode(&long.encode()), None, "no question has as many objects");
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
    let mut asker = Asker::new([127, 0, 0, 1].into(), port);
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
    let mut asker = Asker::new([127, 0, 0, 1].into(), port);
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

#[tokio::test(start_paused = true)]
async fn work_for_strangers_is_bounded_in_each_window() {
    for most in [WORK, STRANGERS] {
        let (mut pace, began) = (Pace::new(most), Instant::now());
        // As fast as they come: each costs 65, as a question about as many objects as it may hold.
        for _ in 0..10_000 {
            pace.ready().await;
            pace.spend(65);
        }
        let windows = 10_000 * 65 / (most + 65);
        assert!(began.elapsed() >= WINDOW * windows, "{:?}", began.elapsed());
        // Work after a pause does not wait.
        tokio::time::sleep(WINDOW).await;
        let now = Instant::now();
        pace.ready().await;
        assert_eq!(Instant::now(), now);
    }
}

#[tokio::test]
async fn the_leader_has_no_socket_without_questions() {
    let shared = SharedInquiry::default();
    let node = socket([127, 0, 0, 2], 0).await;
    let mut asker = Asker::new([127, 0, 0, 1].into(), node.local_addr().expect("an address").port());
    let judge = |number| shared.ask(|inquiry| inquiry.judge(&id(number), 7, None, Instant::now()).cloned());
    shared.ask(|inquiry| inquiry.set_peers([([127, 0, 0, 2].into(), "a".into())].into(), Instant::now()));
    for number in 0..2 {
        assert_eq!(asker.port(), None);
        assert_eq!(judge(number), None);
        let answer = async {
            let mut buffer = [0; LENGTH];
            let (length, leader) = node.recv_from(&mut buffer).await.expect("a question");
            let nonce = Question::decode(&buffer[..length]).expect("a question").nonce;
            // A stranger's datagrams neither count nor keep it from the answer.
            let stranger = socket([127, 0, 0, 3], 0).await;
            for _ in 0..100 {
                stranger.send_to(&[0; 1500], leader).await.expect("it is sent");
            }
            node.send_to(&Answer { nonce, serves: vec![true] }.encode(), leader).await.expect("it is sent");
            std::future::pending::<()>().await;
        };
        let asked = async {
            while !matches!(judge(number), Some(Verdict::Served { .. })) {
                asker.step(&shared).await;
                tokio::task::yield_now().await;
            }
        };
        let is_asked = async {
            tokio::select! {
                () = answer => false,
                () = asked => true,
            }
        };
        assert_eq!(timeout(Duration::from_secs(60), is_asked).await, Ok(true));
        // Until there is nothing to do.
        while timeout(Duration::from_millis(10), asker.step(&shared)).await.is_ok() {}
    }
    assert_eq!(asker.port(), None);
}
