//! Tests the content of writes.

use super::*;

#[test]
fn a_gateway_is_written_only_if_it_differs() {
    let base = shown_gateway(1);
    assert_eq!(first(Kind::Gateway, &base, &gateway(1)), None);
    // What other writers add does not matter, nor does the order …
    let mut more = base.clone();
    more["conditions"] = json!([base["conditions"][1], seeded(), base["conditions"][0]]);
    more["listeners"][0]["conditions"].as_array_mut().expect("a list").insert(0, seeded());
    more["listeners"]
        .as_array_mut()
        .expect("a list")
        .push(json!({"name": "x", "attachedRoutes": 0, "conditions": [seeded()]}));
    assert_eq!(first(Kind::Gateway, &more, &gateway(1)), None);
    // … and everything else does.
    for (pointer, value) in [
        ("/conditions/0/observedGeneration", json!(2)),
        ("/conditions/0/reason", json!("Pending")),
        ("/conditions/0/message", json!("other")),
        ("/conditions/0/status", json!("Unknown")),
        ("/conditions/1", seeded()),
        ("/conditions", json!([])),
        ("/addresses", json!([])),
        ("/addresses/0/value", json!("192.0.2.2")),
        ("/addresses/0/type", json!("Hostname")),
        ("/listeners", json!([])),
        ("/listeners", json!([shown_listener("http", 1), shown_listener("gone", 0)])),
        ("/listeners/0/attachedRoutes", json!(2)),
        ("/listeners/0/supportedKinds", json!([])),
        ("/listeners/0/conditions/0/observedGeneration", json!(2)),
        ("/listeners/0/conditions/0", shown("Conflicted", "True", "HostnameConflict")),
    ] {
        let mut present = base.clone();
        *present.pointer_mut(pointer).expect("a field") = value.clone();
        let written = first(Kind::Gateway, &present, &gateway(1));
        assert!(written.is_some(), "{pointer} {value}");
    }
    let mut stale = base.clone();
    stale["attachedListenerSets"] = 1.into();
    assert!(first(Kind::Gateway, &stale, &gateway(1)).is_some(), "a count that is not wanted any more");
    stale = base;
    let ready = shown("xdp-ingress.io/Served", "True", "Served");
    stale["conditions"].as_array_mut().expect("a list").push(ready);
    assert!(first(Kind::Gateway, &stale, &gateway(1)).is_some(), "a condition that is not wanted any more");
}

#[test]
fn an_applied_status_has_nothing_of_other_writers() {
    let mut present = shown_gateway(1);
    present["conditions"].as_array_mut().expect("a list").push(seeded());
    present["listeners"][0]["conditions"].as_array_mut().expect("a list").push(seeded());
    assert_eq!(first(Kind::Gateway, &present, &gateway(2)), Some(shown_gateway(2)));
}

#[test]
fn the_time_of_a_transition_moves_only_with_the_status() {
    let mut present = shown_gateway(1);
    present["conditions"][0]["reason"] = "Pending".into();
    present["conditions"][0]["observedGeneration"] = 2.into();
    present["conditions"][1]["status"] = "False".into();
    let mut expect = shown_gateway(1);
    expect["conditions"][1]["lastTransitionTime"] = NOW.into();
    assert_eq!(first(Kind::Gateway, &present, &gateway(1)), Some(expect));
}

#[test]
fn classes_and_listener_sets_are_written_only_if_they_differ() {
    let features = |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>();
    let conditions = vec![Condition::met("Accepted", "Accepted")];
    let body = StatusBody::GatewayClass { conditions: conditions.clone(), supported_features: vec!["A", "B"] };
    let class = Arc::new(ObjectStatus { generation: 3, body });
    let accepted = shown("Accepted", "True", "Accepted");
    for (names, is_written) in [(&["B", "A"][..], false), (&["A"], true), (&["A", "B", "C"], true)] {
        let present = json!({"conditions": [accepted, seeded()], "supportedFeatures": features(names)});
        let expect = json!({"conditions": [accepted], "supportedFeatures": features(&["A", "B"])});
        assert_eq!(first(Kind::GatewayClass, &present, &class), is_written.then_some(expect), "{names:?}");
    }
    let body = StatusBody::ListenerSet { conditions, listeners: vec![listener(1)] };
    let set = Arc::new(ObjectStatus { generation: 3, body });
    for routes in [1, 2] {
        let present = json!({"conditions": [accepted, seeded()], "listeners": [shown_listener("http", routes)]});
        let expect = json!({"conditions": [accepted], "listeners": [shown_listener("http", 1)]});
        assert_eq!(first(Kind::ListenerSet, &present, &set), (routes != 1).then_some(expect));
    }
}

#[test]
fn entries_of_others_keep_content_and_place() {
    let (a, b) = (theirs("a.test/c", "x"), theirs("b.test/c", "g"));
    let mut late = ours("h");
    late["conditions"][0]["lastTransitionTime"] = NOW.into();
    let mut stale = ours("g");
    stale["conditions"][0]["observedGeneration"] = 2.into();
    let mut commented = ours("g");
    commented["conditions"].as_array_mut().expect("a list").push(seeded());
    let mut stale_comment = commented.clone();
    stale_comment["conditions"][0]["observedGeneration"] = 2.into();
    for (present, wanted, expect) in [
        // Ours is new, unchanged, changed, or gone …
        (vec![&a, &b], &["h"][..], Some(vec![&a, &b, &late])),
        (vec![&a, &ours("g"), &b], &["g"], None),
        (vec![&a, &stale, &b], &["g"], Some(vec![&a, &ours("g"), &b])),
        (vec![&a, &ours("g"), &b], &[], Some(vec![&a, &b])),
        (vec![&a, &ours("x"), &b, &ours("g"), &a], &["g"], Some(vec![&a, &b, &ours("g"), &a])),
        (vec![&ours("g"), &b, &ours("x"), &a], &["h", "g"], Some(vec![&ours("g"), &b, &a, &late])),
        // … or there twice.
        (vec![&ours("g"), &a, &ours("g")], &["g"], Some(vec![&ours("g"), &a])),
        (vec![&ours("x"), &ours("g")], &["g", "x"], None),
        (vec![&a, &b], &[], None),
        (vec![], &[], None),
        // Another writer commented on an entry of ours.
        (vec![&commented], &["g"], None),
        (vec![&stale_comment, &a], &["g"], Some(vec![&commented, &a])),
    ] {
        let present = json!({ "parents": present });
        let expect = expect.map(|parents| json!({ "parents": parents }));
        assert_eq!(first(Kind::HttpRoute, &present, &route(wanted)), expect, "{present} {wanted:?}");
    }
}

#[test]
fn ancestors_of_a_policy_are_shared_as_parents_of_a_route_are() {
    let ancestor = |mut entry: Value| {
        let fields = entry.as_object_mut().expect("an entry");
        let reference = fields.remove("parentRef").expect("a reference");
        fields.insert("ancestorRef".to_owned(), reference);
        entry
    };
    let body = StatusBody::Policy { ancestors: vec![parent("g")] };
    let wanted = Arc::new(ObjectStatus { generation: 3, body });
    let (a, x, g) = (ancestor(theirs("a.test/c", "g")), ancestor(ours("x")), ancestor(ours("g")));
    let present = json!({"ancestors": [x, a, g]});
    let expect = json!({"ancestors": [a, g]});
    assert_eq!(first(Kind::BackendTlsPolicy, &present, &wanted), Some(expect.clone()));
    assert_eq!(first(Kind::BackendTlsPolicy, &expect, &wanted), None);
}

#[test]
fn a_full_list_takes_no_further_entry() {
    let full: Vec<_> = (0..31).map(|number| theirs("a.test/c", &number.to_string())).collect();
    let written = first(Kind::HttpRoute, &json!({ "parents": full }), &route(&["g", "h"])).expect("a write");
    assert_eq!(
        (written["parents"].as_array().map(Vec::len), &written["parents"][31]["parentRef"]["name"]),
        (Some(32), &json!("g"))
    );
    let mut list = full;
    list.push(ours("g"));
    assert_eq!(first(Kind::HttpRoute, &json!({ "parents": list }), &route(&["g", "h"])), None);
}

/// Returns the status of a Gateway that has no addresses of its own.
fn unaddressed(conditions: Vec<Condition>) -> Arc<ObjectStatus> {
    let body =
        StatusBody::Gateway { conditions, listeners: Vec::new(), addresses: Vec::new(), attached_listener_sets: None };
    Arc::new(ObjectStatus { generation: 3, body })
}

#[test]
fn a_gateway_without_addresses_shows_those_of_ingresses() {
    let programmed = || vec![Condition::met("Accepted", "Accepted"), Condition::met("Programmed", "Programmed")];
    let refused = || {
        let unmet = |kind, reason| Condition::unmet(kind, reason, String::new());
        vec![unmet("Accepted", "InvalidParameters"), unmet("Programmed", "Invalid")]
    };
    let lacking = || {
        let unusable = Condition::unmet("Programmed", "AddressNotUsable", String::new());
        vec![Condition::met("Accepted", "Accepted"), unusable]
    };
    let known: Vec<_> = (1..=20).map(|part| GatewayAddress::Ip([192, 0, 2, part].into())).collect();
    let name = GatewayAddress::Name("edge.test".into());
    let present = json!({"addresses": [{"type": "IPAddress", "value": "192.0.2.7"}]});
    for (conditions, addresses, present, expect, reason) in [
        (programmed(), Some(vec![known[0].clone(), name]), json!({}), vec!["192.0.2.1", "edge.test"], "Programmed"),
        (programmed(), Some(Vec::new()), present.clone(), vec![], "AddressNotAssigned"),
        // Not known yet, as after a change of leader: it stays as it is.
        (programmed(), None, present.clone(), vec!["192.0.2.7"], "Programmed"),
        (programmed(), None, json!({}), vec![], "AddressNotAssigned"),
        (refused(), Some(known.clone()), present.clone(), vec![], "Invalid"),
        // It asks for an address that it cannot have.
        (lacking(), Some(known.clone()), present, vec![], "AddressNotUsable"),
    ] {
        let mut leader = Leader::new(Kind::Gateway);
        leader.addresses = addresses;
        let written = leader.written("1", &present, &unaddressed(conditions)).expect("a write");
        let shown = written["addresses"].as_array().into_iter().flatten();
        assert_eq!(shown.filter_map(|address| address["value"].as_str()).collect::<Vec<_>>(), expect);
        assert_eq!(written["conditions"][1]["reason"], reason);
        let is_programmed = if reason == "Programmed" { "True" } else { "False" };
        assert_eq!(written["conditions"][1]["status"], is_programmed);
        let text = written["conditions"][1]["message"].as_str().unwrap_or_default();
        assert_eq!(text.contains("--publish-status-address"), reason == "AddressNotAssigned", "{text}");
    }
    let many: Vec<_> = (1..=20).map(|part| crate::status::Address::Ip([192, 0, 2, part].into())).collect();
    assert_eq!(super::super::addresses::shown(&many), known[..16]);
}

#[test]
fn a_write_is_bound_to_its_object() {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use kube::api::ApiResource;

    let write = |patch| Write { id: id(Kind::Gateway), uid: "u".into(), version: "7".into(), target: None, patch };
    let resource = ApiResource::erase::<gateway::Gateway<ObjectMeta>>(&());
    let metadata = json!({"name": "a", "namespace": "n"});
    let head = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": metadata});
    assert_eq!(write(StatusPatch::Apply(None)).body(&resource), head, "without a status, fields are given up");
    let mut with_status = head;
    with_status["status"] = json!({"addresses": []});
    assert_eq!(write(StatusPatch::Apply(Some(json!({"addresses": []})))).body(&resource), with_status);
    assert_eq!(
        write(StatusPatch::Replace(json!({"parents": []}))).body(&resource),
        json!({"metadata": {"resourceVersion": "7"}, "status": {"parents": []}})
    );
}
