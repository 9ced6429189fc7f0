//! What the source keeps of what its watches tell, without a server.

use super::*;

#[test]
fn a_secret_goes_with_the_last_ingress_that_names_it() {
    let version = Version::default();
    let without = object("Ingress", "a", "");
    let mut tracker = Tracker::default();
    let (ingresses, secrets) = (tracker.open(Need::Required), tracker.open(Need::Optional));
    let secret = strip::secret(serde_json::from_str(&object("Secret", "s", "")).expect("a Secret"));
    let id = secret.id();
    tracker.on(secrets, Event::Listed(secret, version));
    let with = object("Ingress", "a", r#","spec":{"tls":[{"secretName":"s"}]}"#);
    tracker.on(ingresses, Event::Applied(parse(&with), version));
    assert_eq!((tracker.take_changed_references(), tracker.is_named(&id)), (BTreeSet::from([id.clone()]), true));
    tracker.on(ingresses, Event::Applied(parse(&without), version));
    assert_eq!((tracker.take_changed_references(), tracker.is_named(&id)), (BTreeSet::from([id.clone()]), false));
    let annotated =
        r#"{"metadata":{"name":"a","namespace":"NS","annotations":{"xdp-ingress.io/proxy-ssl-secret":"NS/s"}}}"#;
    let annotated = annotated.replace("NS", &id.name.namespace);
    tracker.on(ingresses, Event::Applied(parse(&annotated), version));
    assert_eq!((tracker.take_changed_references(), tracker.is_named(&id)), (BTreeSet::from([id.clone()]), true));
    let gone = tracker.close(secrets);
    assert!(matches!(gone.as_slice(), [Change::Remove(id)] if id.kind == Kind::Secret), "{gone:?}");
    assert!(tracker.on(secrets, Event::ListEnds).is_empty(), "events of a closed watch are dropped");
}

#[test]
fn a_secret_stays_while_anything_names_it() {
    let version = Version::default();
    let naming = |ingress: &str, secret: &str| {
        let text = object("Ingress", ingress, &format!(r#","spec":{{"tls":[{{"secretName":"{secret}"}}]}}"#));
        Event::Applied(parse(&text), version)
    };
    let id = |name| ObjectId { kind: Kind::Secret, name: ObjectName::new("n", name) };
    let mut tracker = Tracker::new("", "", [id("fixed")].into());
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
    let mut tracker = Tracker::default();
    let watch = tracker.open_by_name(id("settings"));
    tracker.on(watch, Event::ListBegins);
    tracker.on(watch, Event::Listed(settings, Version::default()));
    tracker.on(watch, Event::ListEnds);
    assert_eq!((tracker.take_changed_references(), tracker.is_named(&id("h"))), (BTreeSet::from([id("h")]), true));
    let gone = tracker.close(watch);
    assert!(matches!(gone.as_slice(), [Change::Remove(gone)] if *gone == id("settings")), "{gone:?}");
    assert_eq!((tracker.take_changed_references(), tracker.is_named(&id("h"))), (BTreeSet::from([id("h")]), false));
}

#[test]
fn nothing_is_told_while_a_required_list_is_refused() {
    let mut tracker = Tracker::default();
    let (services, secret) = (tracker.open(Need::Required), tracker.open(Need::Optional));
    tracker.on(secret, Event::Refused);
    tracker.on(services, Event::Refused);
    assert!(!tracker.is_settled());
    tracker.on(services, Event::ListBegins);
    tracker.on(services, Event::ListEnds);
    assert!(tracker.is_settled());
    // Another list of the same watch is nothing to wait for, and a watch that is closed is not waited for.
    tracker.on(services, Event::ListBegins);
    tracker.on(services, Event::ListEnds);
    let another = tracker.open(Need::Optional);
    assert!(!tracker.is_settled() && tracker.has_what_is_required());
    tracker.close(another);
    assert!(tracker.is_settled());
}
