//! Tests the part of statuses about other nodes, and the time of their writes.

use std::net::IpAddr;

use super::*;

const SERVED: &str = "xdp-ingress.io/Served";

fn address(number: u8) -> IpAddr {
    [10, 0, 0, number].into()
}

impl Leader {
    /// Returns a leader that asks this number of other nodes, which are called `n1`, `n2` and so on.
    fn among(kind: Kind, others: u8) -> Self {
        let mut leader = Self { inquiry: Some(Inquiry::default()), ..Self::new(kind) };
        leader.set_nodes(1..=others);
        leader
    }

    fn inquiry(&mut self) -> &mut Inquiry {
        self.inquiry.as_mut().expect("it asks")
    }

    fn set_nodes(&mut self, numbers: impl Iterator<Item = u8>) {
        let now = self.now;
        let nodes = numbers.map(|number| (address(number), format!("n{number}").into())).collect();
        self.inquiry().set_peers(nodes, now);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// Sends what is due; these nodes answer.
    fn answer(&mut self, answers: &[(u8, bool)]) {
        let now = self.now;
        let due = self.inquiry().take_due(now);
        for (number, serves) in answers {
            let items = due.get(&address(*number)).map(Vec::as_slice).unwrap_or_default();
            self.inquiry().hear(address(*number), items, &vec![*serves; items.len()], now);
        }
    }

    /// Returns the only write, without noting it.
    fn would_write(&mut self, present: &Value, wanted: &Arc<ObjectStatus>) -> Option<Value> {
        let plan = self.plan("1", present, Some(wanted));
        let write = plan.writes.into_iter().next()?;
        match write.patch {
            StatusPatch::Apply(status) => status,
            StatusPatch::Replace(status) => Some(status),
        }
    }
}

/// Returns status, reason and message of a condition.
fn told(conditions: &Value, kind: &str) -> Option<(String, String, String)> {
    let found = conditions.as_array()?.iter().find(|condition| condition["type"] == kind)?;
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason"), text("message")))
}

fn texts(status: &str, reason: &str, message: &str) -> Option<(String, String, String)> {
    Some((status.into(), reason.into(), message.into()))
}

#[test]
fn a_gateway_is_programmed_once_every_node_serves_it() {
    let (mut leader, wanted) = (Leader::among(Kind::Gateway, 2), gateway(1));
    assert_eq!(leader.would_write(&json!({}), &wanted), None, "it waits");
    leader.pass(Duration::from_millis(1));
    leader.answer(&[(1, true), (2, false)]);
    assert_eq!(leader.would_write(&json!({}), &wanted), None, "one node lacks it");
    leader.pass(Duration::from_millis(6));
    leader.answer(&[(2, true)]);
    let written = leader.would_write(&json!({}), &wanted).expect("a write");
    assert_eq!(told(&written["conditions"], "Programmed"), texts("True", "Programmed", ""));
    assert_eq!(told(&written["conditions"], SERVED), texts("True", "Served", "3 of 3 nodes, 7 ms"));
}

#[test]
fn routes_tell_at_each_parent_that_accepts_them() {
    let mut wanted = route(&["g", "h"]);
    let StatusBody::Route { parents } = &mut Arc::make_mut(&mut wanted).body else { panic!("a route") };
    parents[1].conditions = vec![Condition::unmet("Accepted", "NotAllowedByListeners", "no".into())];
    let mut leader = Leader::among(Kind::HttpRoute, 1);
    assert_eq!(leader.would_write(&json!({"parents": []}), &wanted), None);
    leader.answer(&[(1, true)]);
    let written = leader.would_write(&json!({"parents": []}), &wanted).expect("a write");
    assert_eq!(told(&written["parents"][0]["conditions"], SERVED), texts("True", "Served", "2 of 2 nodes, 0 ms"));
    assert_eq!(told(&written["parents"][1]["conditions"], SERVED), None);
}

#[test]
fn objects_that_are_not_served_do_not_wait() {
    let mut refused = gateway(1);
    let StatusBody::Gateway { conditions, .. } = &mut Arc::make_mut(&mut refused).body else { panic!("a Gateway") };
    conditions[1] = Condition::unmet("Programmed", "Invalid", "no".into());
    let mut leader = Leader::among(Kind::Gateway, 1);
    let written = leader.would_write(&json!({}), &refused).expect("a write at once");
    assert_eq!(told(&written["conditions"], SERVED), None);
    let class = Arc::new(ObjectStatus {
        generation: 1,
        body: StatusBody::GatewayClass {
            conditions: vec![Condition::met("Accepted", "Accepted")],
            supported_features: vec![],
        },
    });
    assert!(Leader::among(Kind::GatewayClass, 1).would_write(&json!({}), &class).is_some());
}

#[test]
fn a_gateway_without_an_address_is_not_served() {
    let mut wanted = gateway(1);
    let StatusBody::Gateway { addresses, .. } = &mut Arc::make_mut(&mut wanted).body else { panic!("a Gateway") };
    addresses.clear();
    let mut leader = Leader::among(Kind::Gateway, 1);
    leader.addresses = Some(Vec::new());
    let written = leader.written("1", &json!({}), &wanted).expect("a write at once");
    assert_eq!(told(&written["conditions"], SERVED), None);
    let reason = told(&written["conditions"], "Programmed").map(|(status, reason, _)| (status, reason));
    assert_eq!(reason, Some(("False".into(), "AddressNotAssigned".into())));
    // Once there is one, other nodes are asked.
    leader.addresses = Some(vec![GatewayAddress::Ip([192, 0, 2, 7].into())]);
    assert_eq!(leader.would_write(&written, &wanted), None);
    leader.answer(&[(1, true)]);
    let served = leader.would_write(&written, &wanted).expect("a write");
    assert_eq!(told(&served["conditions"], SERVED), texts("True", "Served", "2 of 2 nodes, 0 ms"));
    // A Gateway that loses its last address is served no longer.
    leader.addresses = Some(Vec::new());
    leader.pass(INTERVAL);
    let written = leader.would_write(&served, &wanted).expect("a write");
    assert_eq!(told(&written["conditions"], SERVED), None);
}

#[test]
fn one_node_needs_no_answer() {
    let written = Leader::among(Kind::Gateway, 0).would_write(&json!({}), &gateway(1)).expect("a write at once");
    assert_eq!(told(&written["conditions"], SERVED), texts("True", "Served", "1 of 1 node, 0 ms"));
}

#[test]
fn a_process_that_does_not_ask_tells_nothing_of_nodes() {
    let written = Leader::new(Kind::Gateway).would_write(&json!({}), &gateway(1)).expect("a write");
    assert_eq!(told(&written["conditions"], SERVED), None);
    assert_eq!(told(&written["conditions"], "Programmed"), texts("True", "Programmed", ""));
}

#[test]
fn a_node_that_does_not_answer_blocks_once_and_is_named() {
    let (mut leader, wanted) = (Leader::among(Kind::Gateway, 2), gateway(1));
    leader.would_write(&json!({}), &wanted);
    leader.answer(&[(1, true)]);
    leader.pass(BOUND - Duration::from_millis(1));
    leader.answer(&[]);
    assert_eq!(leader.would_write(&json!({}), &wanted), None);
    leader.pass(Duration::from_millis(1));
    leader.answer(&[]);
    let written = leader.written("1", &json!({}), &wanted).expect("a write");
    let message = "2 of 3 nodes; `n2` does not answer on UDP port 9111; let it in from other nodes \
                   (firewalls, network policies)";
    assert_eq!(told(&written["conditions"], "Programmed"), texts("True", "Programmed", message));
    assert_eq!(told(&written["conditions"], SERVED), texts("False", "NodesSilent", message));
    // The status stays as it is, also over many rounds.
    for _ in 0..100 {
        leader.pass(Duration::from_secs(6));
        leader.answer(&[]);
        assert_eq!(leader.would_write(&written, &wanted), None);
    }
    // It answers again.
    leader.pass(Duration::from_secs(31));
    leader.answer(&[(2, true)]);
    let written = leader.would_write(&written, &wanted).expect("a write");
    assert_eq!(told(&written["conditions"], SERVED).map(|(status, ..)| status).as_deref(), Some("True"));
    assert_eq!(told(&written["conditions"], "Programmed"), texts("True", "Programmed", ""));
}

#[test]
fn a_node_that_answers_with_another_state_keeps_a_gateway_pending() {
    let (mut leader, wanted) = (Leader::among(Kind::Gateway, 1), gateway(1));
    leader.would_write(&json!({}), &wanted);
    leader.answer(&[(1, false)]);
    leader.pass(BOUND);
    leader.answer(&[(1, false)]);
    let written = leader.written("1", &json!({}), &wanted).expect("a write");
    let message = "1 of 2 nodes; `n1` serves another state of this object; look at the log there";
    assert_eq!(told(&written["conditions"], "Programmed"), texts("False", "Pending", message));
    assert_eq!(told(&written["conditions"], SERVED), texts("False", "NodesBehind", message));
    for _ in 0..100 {
        leader.pass(Duration::from_secs(6));
        leader.answer(&[(1, false)]);
        assert_eq!(leader.would_write(&written, &wanted), None);
    }
    // A route stays accepted meanwhile, and a node that goes is not waited for.
    leader.set_nodes(5..5);
    let written = leader.would_write(&written, &wanted).expect("a write");
    assert_eq!(told(&written["conditions"], "Programmed"), texts("True", "Programmed", ""));
}

#[test]
fn a_served_generation_is_not_asked_about_again() {
    let (mut leader, wanted) = (Leader::among(Kind::Gateway, 1), gateway(1));
    leader.would_write(&json!({}), &wanted);
    leader.answer(&[(1, true)]);
    let shown = leader.written("1", &json!({}), &wanted).expect("a write");
    // Also not by the next leader, which does not know the time it took.
    for leader in [&mut leader, &mut Leader::among(Kind::Gateway, 3)] {
        assert_eq!(leader.would_write(&shown, &wanted), None);
        let now = leader.now;
        assert!(leader.inquiry().take_due(now).is_empty());
        // Other writes keep the message.
        leader.pass(INTERVAL);
        let written = leader.would_write(&shown, &gateway(2)).expect("a write");
        assert_eq!(told(&written["conditions"], SERVED), told(&shown["conditions"], SERVED));
    }
    // The next generation is.
    let mut next = gateway(1);
    Arc::make_mut(&mut next).generation = 4;
    let mut leader = Leader::among(Kind::Gateway, 1);
    assert_eq!(leader.would_write(&shown, &next), None);
    let now = leader.now;
    assert!(!leader.inquiry().take_due(now).is_empty());
}

#[test]
fn answers_about_an_earlier_generation_do_not_count() {
    let mut leader = Leader::among(Kind::HttpRoute, 1);
    let (present, now) = (json!({"parents": []}), leader.now);
    assert_eq!(leader.would_write(&present, &route(&["g"])), None);
    let old = leader.inquiry().take_due(now);
    let mut next = route(&["g"]);
    Arc::make_mut(&mut next).generation = 4;
    assert_eq!(leader.would_write(&present, &next), None);
    leader.inquiry().hear(address(1), &old[&address(1)], &[true], now);
    assert_eq!(leader.would_write(&present, &next), None, "the answer is about generation 3");
    leader.answer(&[(1, true)]);
    let written = leader.would_write(&present, &next).expect("a write");
    assert_eq!(written["parents"][0]["conditions"][0]["observedGeneration"], 4);
}
