//! Tests when something is written.

use super::*;

#[test]
fn an_object_of_another_controller_loses_entries_after_a_delay() {
    let a = theirs("a.test/c", "x");
    for (kind, present, expect) in [
        (Kind::HttpRoute, json!({"parents": [ours("g"), a]}), Some(json!({"parents": [a]}))),
        (Kind::HttpRoute, json!({"parents": [ours("g")]}), Some(json!({"parents": []}))),
        (Kind::HttpRoute, json!({"parents": [a]}), None),
        (Kind::Gateway, shown_gateway(1), Some(Value::Null)),
        (Kind::Gateway, json!({"conditions": [seeded()]}), None),
    ] {
        let mut leader = Leader::new(kind);
        let plan = leader.plan("1", &present, None);
        let until = leader.now + LEFT_FOR;
        assert_eq!((plan.writes.len(), plan.next, plan.again.len()), (0, Some(until), 1), "{present}");
        leader.now = until;
        let cleared = leader.write("1", &present, None, Effect::Written("2".into()));
        assert_eq!(cleared, expect, "{present}");
    }
    // It is ours again in between, so the delay begins anew.
    let present = json!({"parents": [ours("g")]});
    let mut leader = Leader::new(Kind::HttpRoute);
    leader.plan("1", &present, None);
    leader.now += LEFT_FOR / 2;
    assert_eq!(leader.written("1", &present, &route(&["g"])), None);
    leader.now += LEFT_FOR / 2;
    assert_eq!(leader.plan("1", &present, None).next, Some(leader.now + LEFT_FOR));
}

#[test]
fn a_conflict_waits_for_the_watch() {
    let (present, wanted) = (json!({"parents": []}), route(&["g"]));
    let mut leader = Leader::new(Kind::HttpRoute);
    assert!(leader.write("1", &present, Some(&wanted), Effect::Conflict).is_some());
    let plan = leader.plan("1", &present, Some(&wanted));
    assert_eq!((plan.writes.len(), plan.next), (0, Some(leader.now + INTERVAL)), "not seen yet");
    let foreign = theirs("a.test/c", "x");
    let seen = leader.written("2", &json!({"parents": [foreign]}), &wanted).expect("a write at once");
    assert_eq!(seen["parents"][0], foreign);
    assert_eq!(seen["parents"][1]["controllerName"], CONTROLLER_NAME);
}

#[test]
fn a_list_is_not_written_from_a_version_that_is_known_to_be_old() {
    let present = json!({"parents": []});
    let mut leader = Leader::new(Kind::HttpRoute);
    assert!(leader.written("1", &present, &route(&["g"])).is_some());
    let plan = leader.plan("1", &present, Some(&route(&["g", "h"])));
    assert_eq!((plan.writes.len(), plan.next), (0, Some(leader.now + Duration::from_secs(1))));
    assert!(leader.written("2", &json!({"parents": [ours("g")]}), &route(&["g", "h"])).is_some());
    // Applied statuses do not depend on a version.
    let mut leader = Leader::new(Kind::Gateway);
    assert!(leader.written("1", &json!({}), &gateway(1)).is_some());
    let mut next = gateway(1);
    Arc::make_mut(&mut next).generation = 4;
    assert!(leader.written("1", &json!({}), &next).is_some());
}

#[test]
fn counts_are_written_at_once_and_then_once_a_second() {
    let mut leader = Leader::new(Kind::Gateway);
    assert!(leader.written("1", &json!({}), &gateway(0)).is_some());
    let plan = leader.plan("2", &shown_gateway(0), Some(&gateway(1)));
    assert_eq!((plan.writes.len(), plan.next), (0, Some(leader.now + COUNTS)));
    leader.now += COUNTS;
    assert!(leader.written("2", &shown_gateway(0), &gateway(9)).is_some());
    // Anything else does not wait.
    let mut next = gateway(10);
    Arc::make_mut(&mut next).generation = 4;
    assert!(leader.written("3", &shown_gateway(9), &next).is_some());
}

#[test]
fn a_status_is_not_fought_over() {
    let (foreign, wanted) = (json!({"parents": []}), route(&["g"]));
    let mut leader = Leader::new(Kind::HttpRoute);
    let start = leader.now;
    let mut written = Vec::new();
    // Another controller erases the entry right after each write.
    for second in 0..300_u64 {
        leader.now = start + Duration::from_secs(second);
        let version = (2 * written.len()).to_string();
        let result = Effect::Written((2 * written.len() + 1).to_string().into());
        if leader.write(&version, &foreign, Some(&wanted), result).is_some() {
            written.push(second);
        }
        leader.ledger.attempts.prune(INTERVAL, leader.now);
    }
    assert_eq!(written, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]);
}

#[test]
fn a_field_that_the_server_drops_is_not_written_again() {
    let mut wanted = gateway(1);
    let StatusBody::Gateway { attached_listener_sets, .. } = &mut Arc::make_mut(&mut wanted).body else {
        panic!("a Gateway");
    };
    *attached_listener_sets = Some(1);
    let mut leader = Leader::new(Kind::Gateway);
    assert!(leader.write("1", &json!({}), Some(&wanted), Effect::Written("2".into())).is_some());
    let plan = leader.plan("2", &shown_gateway(1), Some(&wanted));
    assert_eq!((plan.writes.len(), plan.next, plan.again.len()), (0, None, 0));
}

#[test]
fn a_failed_write_is_repeated_after_the_interval() {
    for (effect, pauses) in
        [(Effect::Forbidden, [1, 1, 1, 1, 1, 1, 1, 1]), (Effect::Refused, [1, 2, 4, 8, 16, 32, 32, 32])]
    {
        let mut leader = Leader::new(Kind::Gateway);
        for pause in pauses {
            assert!(leader.write("1", &json!({}), Some(&gateway(1)), effect.clone()).is_some());
            let plan = leader.plan("1", &json!({}), Some(&gateway(1)));
            assert_eq!((plan.writes.len(), plan.next), (0, Some(leader.now + pause * INTERVAL)), "{effect:?}");
            leader.now += pause * INTERVAL;
            leader.ledger.attempts.prune(INTERVAL, leader.now);
        }
        // A change of the object is a reason to try again soon.
        assert_eq!(leader.plan("2", &json!({}), Some(&gateway(1))).writes.len(), 1);
    }
}

#[test]
fn a_round_and_a_pause_leave_the_rest_for_later() {
    let wanted = route(&["g"]);
    let status = Status::read(Kind::HttpRoute, &json!({"parents": []}));
    let find = |_: &ObjectId| Some(Bearer { uid: "u", version: "1", present: status.present(), wanted: Some(&wanted) });
    let named = |kind, number: u32| ObjectId { kind, name: ObjectName::new("n", &number.to_string()) };
    let due: BTreeSet<_> =
        (0..10).flat_map(|number| [named(Kind::HttpRoute, number), named(Kind::TcpRoute, number)]).collect();
    let now = Instant::now();
    let paused = BTreeMap::from([(Kind::HttpRoute, now + INTERVAL)]);
    let circumstances = circumstances(&paused, now);
    let Plan { writes, next, again } =
        plan(due.clone(), find, &mut Ledger::default(), &mut Knowledge::Nothing, &circumstances);
    assert!(writes.iter().all(|write| write.id.kind == Kind::TcpRoute));
    assert_eq!((writes.len(), next, again), (4, Some(now + INTERVAL), due));
}

#[test]
fn objects_that_are_always_due_leave_others_their_turn() {
    let (routes, gateways) = (route(&["g"]), gateway(1));
    let (no_parents, nothing) = (json!({"parents": []}), json!({}));
    let (of_route, of_gateway) = (Status::read(Kind::HttpRoute, &no_parents), Status::read(Kind::Gateway, &nothing));
    let find = |id: &ObjectId| {
        let is_route = id.kind == Kind::HttpRoute;
        let (status, wanted) = if is_route { (&of_route, &routes) } else { (&of_gateway, &gateways) };
        Some(Bearer { uid: "u", version: "1", present: status.present(), wanted: Some(wanted) })
    };
    let named = |kind, number: u32| ObjectId { kind, name: ObjectName::new("n", &number.to_string()) };
    let due: BTreeSet<_> =
        (0..3).flat_map(|number| [named(Kind::HttpRoute, number), named(Kind::Gateway, number)]).collect();
    let (paused, mut ledger) = (BTreeMap::new(), Ledger::default());
    let churn = Circumstances { round: 1, ..circumstances(&paused, Instant::now()) };
    let mut turns = Vec::new();
    for _ in 0..4 {
        let Plan { writes, again, .. } = plan(due.clone(), find, &mut ledger, &mut Knowledge::Nothing, &churn);
        assert_eq!(again, due, "the others stay due");
        turns.extend(writes.into_iter().map(|write| write.id));
    }
    let expected = [0, 1, 2, 0].map(|number| [named(Kind::Gateway, number), named(Kind::HttpRoute, number)]);
    assert_eq!(turns, expected.concat());
}

#[test]
fn objects_of_a_paused_kind_are_not_compared() {
    // The status is the wanted one, which is found out after the pause.
    let status = Status::read(Kind::Gateway, &shown_gateway(1));
    let wanted = gateway(1);
    let find = |_: &ObjectId| Some(Bearer { uid: "u", version: "1", present: status.present(), wanted: Some(&wanted) });
    let due = BTreeSet::from([id(Kind::Gateway)]);
    let now = Instant::now();
    let mut ledger = Ledger::default();
    for (paused, expect) in [(now + INTERVAL, (Some(now + INTERVAL), due.clone())), (now, (None, BTreeSet::new()))] {
        let paused = BTreeMap::from([(Kind::Gateway, paused)]);
        let circumstances = circumstances(&paused, now);
        let Plan { writes, next, again } =
            plan(due.clone(), find, &mut ledger, &mut Knowledge::Nothing, &circumstances);
        assert_eq!((writes.len(), (next, again)), (0, expect));
    }
}
