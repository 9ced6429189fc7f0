//! Tests of the tracker without a server.

use super::*;
use crate::gateway::GatewayApiObject;

fn tracker(fixed: BTreeSet<ObjectId>) -> Tracker {
    Tracker::new(&options(), fixed)
}

#[test]
fn a_secret_is_removed_with_the_last_ingress_that_names_it() {
    let version = Version::default();
    let without = object("Ingress", "a", "");
    let mut tracker = tracker([].into());
    let (ingresses, secrets) = (tracker.open(Need::Required), tracker.open(Need::Optional));
    let secret = strip::secret(serde_json::from_str(&object("Secret", "s", "")).expect("a Secret"));
    let id = secret.id();
    tracker.on(secrets, TrackerEvent::Listed(secret, version));
    let with = object("Ingress", "a", r#","spec":{"tls":[{"secretName":"s"}]}"#);
    tracker.on(ingresses, TrackerEvent::Applied(parse(&with), version));
    assert_eq!((tracker.take_changed_references(), tracker.is_named(&id)), (BTreeSet::from([id.clone()]), true));
    tracker.on(ingresses, TrackerEvent::Applied(parse(&without), version));
    assert!(tracker.take_changed_references().is_empty() && tracker.is_named(&id), "until it is told");
    tracker.release(&parse(&without).id());
    assert_eq!((tracker.take_changed_references(), tracker.is_named(&id)), (BTreeSet::from([id.clone()]), false));
    let annotated = r#"{"metadata":{"name":"a","namespace":"NS","annotations":{"xdp-ingress.io/proxy-ssl-secret":"NS/s"}},"spec":{}}"#;
    let annotated = annotated.replace("NS", &id.name.namespace);
    tracker.on(ingresses, TrackerEvent::Applied(parse(&annotated), version));
    assert_eq!((tracker.take_changed_references(), tracker.is_named(&id)), (BTreeSet::from([id.clone()]), true));
    let gone = tracker.close(secrets);
    assert!(matches!(gone.as_slice(), [Change::Remove(id)] if id.kind == Kind::Secret), "{gone:?}");
    assert!(tracker.on(secrets, TrackerEvent::ListEnds).is_empty(), "events of a closed watch are dropped");
}

#[test]
fn a_secret_stays_while_anything_names_it() {
    let version = Version::default();
    let naming = |ingress: &str, secret: &str| {
        let text = object("Ingress", ingress, &format!(r#","spec":{{"tls":[{{"secretName":"{secret}"}}]}}"#));
        TrackerEvent::Applied(parse(&text), version)
    };
    let id = |name| ObjectId { kind: Kind::Secret, name: ObjectName::new("n", name) };
    let mut tracker = tracker([id("fixed")].into());
    let ingresses = tracker.open(Need::Required);
    assert_eq!(tracker.take_changed_references(), BTreeSet::from([id("fixed")]));
    for (ingress, secret, changed) in [
        ("a", "s", &["s"][..]),
        ("b", "s", &[]),
        ("a", "fixed", &[]),
        ("a", "t", &["t"]),
        ("b", "t", &["s"]),
        ("b", "t", &[]),
    ] {
        tracker.on(ingresses, naming(ingress, secret));
        tracker.release_all();
        let expect: BTreeSet<_> = changed.iter().copied().map(id).collect();
        assert_eq!(tracker.take_changed_references(), expect, "{ingress} {secret}");
    }
    let named = ["fixed", "s", "t"].map(|name| tracker.is_named(&id(name)));
    assert_eq!(named, [true, false, true]);
}

#[test]
fn a_config_map_names_nothing_once_its_watch_is_closed() {
    let id = |name| ObjectId { kind: Kind::ConfigMap, name: ObjectName::new("n", name) };
    let settings = object("ConfigMap", "settings", r#","data":{"add-headers":"n/h"}"#);
    let settings = strip::config_map(serde_json::from_str(&settings).expect("a ConfigMap"));
    let mut tracker = tracker([].into());
    let watch = tracker.open_by_name(id("settings"));
    tracker.on(watch, TrackerEvent::ListBegins);
    tracker.on(watch, TrackerEvent::Listed(settings, Version::default()));
    tracker.on(watch, TrackerEvent::ListEnds);
    assert_eq!((tracker.take_changed_references(), tracker.is_named(&id("h"))), (BTreeSet::from([id("h")]), true));
    let gone = tracker.close(watch);
    assert!(matches!(gone.as_slice(), [Change::Remove(gone)] if *gone == id("settings")), "{gone:?}");
    assert_eq!((tracker.take_changed_references(), tracker.is_named(&id("h"))), (BTreeSet::from([id("h")]), false));
}

#[test]
fn the_tracker_is_unsettled_while_a_required_list_is_refused() {
    let mut tracker = tracker([].into());
    let (services, secret) = (tracker.open(Need::Required), tracker.open(Need::Optional));
    tracker.on(secret, TrackerEvent::Refused);
    tracker.on(services, TrackerEvent::Refused);
    assert!(!tracker.is_settled());
    tracker.on(services, TrackerEvent::ListBegins);
    tracker.on(services, TrackerEvent::ListEnds);
    assert!(tracker.is_settled());
    // A repeated list of the same watch is not waited for, and neither is a closed watch.
    tracker.on(services, TrackerEvent::ListBegins);
    tracker.on(services, TrackerEvent::ListEnds);
    let another = tracker.open(Need::Optional);
    assert!(!tracker.is_settled() && tracker.has_what_is_required());
    tracker.close(another);
    assert!(tracker.is_settled());
}

#[test]
fn foreign_classes_and_excess_references_are_not_watched() {
    let version = Version::default();
    let ours = translate::Classes::default().controller;
    let mut tracker = Tracker::new(&translate::Options::default(), BTreeSet::new());
    let (ingresses, classes) = (tracker.open(Need::Required), tracker.open(Need::Required));
    let apply_class = |tracker: &mut Tracker, name: &str, controller: &str| {
        let class = serde_json::from_str(&class(name, controller)).expect("an IngressClass");
        tracker.on(classes, TrackerEvent::Applied(strip::ingress_class(class), version));
        tracker.take_changed_references()
    };
    let apply = |tracker: &mut Tracker, name: &str, class: &str, count| {
        tracker.on(ingresses, TrackerEvent::Applied(parse(&naming_secrets(name, class, count)), version));
        tracker.release_all();
        tracker.take_changed_references().len()
    };
    assert_eq!(apply(&mut tracker, "early", "ours", 2), 0, "whose it is, its class has not said");
    apply_class(&mut tracker, "other", "another");
    assert_eq!(apply_class(&mut tracker, "ours", &ours).len(), 2);
    assert_eq!(apply(&mut tracker, "foreign", "other", 20_000), 0);
    assert_eq!(apply(&mut tracker, "large", "ours", 20_000), 0);
    assert_eq!(apply(&mut tracker, "over", "ours", 257), 0);
    assert_eq!(apply(&mut tracker, "most", "ours", 256), 256);
    for number in 0..10_000 {
        assert_eq!(apply(&mut tracker, &format!("host{number}-"), "ours", 1), 1);
    }
    // Ingresses of a class lose their effect here when the class gets another controller.
    assert_eq!(apply_class(&mut tracker, "ours", "another").len(), 2 + 256 + 10_000);
}

/// Returns the watch of an object that has become named.
fn open_named(tracker: &mut Tracker, id: &ObjectId) -> WatchId {
    let changed = tracker.take_changed_references();
    assert!(changed.contains(id) && tracker.is_named(id), "{changed:?}");
    tracker.open_by_name(id.clone())
}

#[test]
fn a_config_map_of_a_route_waits_for_the_secrets_that_it_newly_names() {
    let version = Version::default();
    let api = |object: &str, kind| {
        let object: serde_json::Value = serde_json::from_str(object).expect("JSON");
        let object = GatewayApiObject::read(kind, object).expect("of the Gateway API").expect("an object");
        TrackerEvent::Applied(Object::GatewayApi(object), version)
    };
    let config_map = |secret: &str| {
        let text = object("ConfigMap", "keys", &format!(r#","data":{{"auth-secret":"{secret}"}}"#));
        strip::config_map(serde_json::from_str(&text).expect("a ConfigMap"))
    };
    let secret = |name: &str| strip::secret(serde_json::from_str(&object("Secret", name, "")).expect("a Secret"));
    let id = |kind, name| ObjectId { kind, name: ObjectName::new("n", name) };
    let list = |tracker: &mut Tracker, watch, object| {
        let events = [TrackerEvent::ListBegins, TrackerEvent::Listed(object, version), TrackerEvent::ListEnds];
        events.into_iter().flat_map(|event| tracker.on(watch, event)).collect::<Vec<_>>()
    };
    let mut tracker = tracker([].into());
    let (mut held, now) = (HeldChanges::default(), Instant::now());
    let all = tracker.open(Need::Answered);
    tracker.on(all, TrackerEvent::ListEnds);
    let class = r#","spec":{"controllerName":"xdp-ingress.io/gateway-controller"}"#;
    tracker.on(all, api(&object("GatewayClass", "xdp", class), Kind::GatewayClass));
    tracker.on(all, api(&object("Gateway", "g", r#","spec":{"gatewayClassName":"xdp"}"#), Kind::Gateway));
    let filter = r#"{"type":"ExtensionRef","extensionRef":{"group":"","kind":"ConfigMap","name":"keys"}}"#;
    let route = format!(r#","spec":{{"parentRefs":[{{"name":"g"}}],"rules":[{{"filters":[{filter}]}}]}}"#);
    let mut pass = |tracker: &mut Tracker, changes| {
        let mut batch = Batch::default();
        held.pass(changes, tracker, now, &mut batch);
        batch.changes.len()
    };
    // The route waits for the ConfigMap, and both for the Secret.
    let changes = tracker.on(all, api(&object("HTTPRoute", "r", &route), Kind::HttpRoute));
    let keys = open_named(&mut tracker, &id(Kind::ConfigMap, "keys"));
    assert_eq!(pass(&mut tracker, changes), 0);
    let changes = list(&mut tracker, keys, config_map("a"));
    let a = open_named(&mut tracker, &id(Kind::Secret, "a"));
    assert_eq!(pass(&mut tracker, changes), 0);
    let changes = list(&mut tracker, a, secret("a"));
    assert_eq!(pass(&mut tracker, changes), 3);
    // The ConfigMap names another Secret. What it named before stays until its change is told.
    let changes = tracker.on(keys, TrackerEvent::Applied(config_map("b"), version));
    let b = open_named(&mut tracker, &id(Kind::Secret, "b"));
    assert_eq!(pass(&mut tracker, changes), 0);
    assert!(tracker.is_named(&id(Kind::Secret, "a")));
    let changes = list(&mut tracker, b, secret("b"));
    assert_eq!(pass(&mut tracker, changes), 2);
    assert!(!tracker.is_named(&id(Kind::Secret, "a")) && tracker.is_named(&id(Kind::Secret, "b")));
}
