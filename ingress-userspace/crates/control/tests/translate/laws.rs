//! Laws of the translation, for any cluster, any history and any order of its objects.

use std::{fs, path::Path, sync::Arc};

use ingress_control::{
    AddressPool, Origin, Reason,
    change::{Change, Kind, Object, ObjectName},
    cluster::Cluster,
    source::manifests::parse,
    translate::{Options, Translation, Translator, translate},
};
use ingress_model::{Action, RouteTable, Rule};
use proptest::prelude::*;

use crate::{
    case::directory,
    changes::{any_event, any_objects, change},
    objects::rotated,
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// An incremental translation through all previous states equals a fresh one of the last state.
    #[test]
    fn a_translation_does_not_depend_on_previous_ones(
        batches in prop::collection::vec(prop::collection::vec(any_event(), 1..4), 1..40),
        has_default_certificate: bool,
        has_pool: bool,
    ) {
        let mut options = options();
        options.default_certificate = options.default_certificate.filter(|_| has_default_certificate);
        if has_pool {
            let networks = ["192.0.2.1", "192.0.2.2"].map(|text| AddressPool::parse_network(text).expect("an address"));
            options.gateway_addresses = AddressPool::new(networks).expect("a pool");
        }
        let (mut cluster, mut translator) = (Cluster::default(), Translator::new(options.clone()));
        let (mut known, mut before) = (Vec::new(), Translation::default());
        for batch in &batches {
            for change in batch.iter().filter_map(|event| change(event, &mut known)) {
                cluster.apply(change);
            }
            let translation = translator.translate(&cluster);
            let alone = translate(&cluster, &options);
            prop_assert_eq!(&translation, &alone, "{}\n{}", translation.table, alone.table);
            // Hosts and upstreams that stay the same are the same objects.
            for (pattern, routes) in &translation.table.hosts {
                if let Some(old) = before.table.hosts.get(pattern).filter(|old| *old == routes) {
                    prop_assert!(Arc::ptr_eq(old, routes), "{}", pattern);
                }
            }
            for (key, upstream) in &translation.table.upstreams {
                if let Some(old) = before.table.upstreams.get(key).filter(|old| *old == upstream) {
                    prop_assert!(Arc::ptr_eq(old, upstream), "{}", key);
                }
            }
            for (name, listener) in &translation.table.listeners {
                if let Some(old) = before.table.listeners.get(name).filter(|old| *old == listener) {
                    prop_assert!(Arc::ptr_eq(old, listener), "{}", name);
                }
            }
            for (id, status) in &translation.statuses {
                if let Some(old) = before.statuses.get(id).filter(|old| *old == status) {
                    prop_assert!(Arc::ptr_eq(old, status), "{:?}", id);
                }
            }
            before = translation;
        }
    }
}

proptest! {
    #[test]
    fn translation_ignores_the_order_of_input((one, other) in any_objects()) {
        let (mut a, mut b) = (Cluster::default(), Cluster::default());
        apply(&mut a, &one);
        // The second cluster saw everything, forgot it and saw it again in between.
        apply(&mut b, &one);
        for object in &one {
            b.apply(Change::Remove(object.id()));
        }
        prop_assert_eq!(&b, &Cluster::default());
        apply(&mut b, &other);
        for cluster in [&mut a, &mut b] {
            let addresses = vec!["192.0.2.1".parse().expect("an address"), "127.0.0.1".parse().expect("an address")];
            cluster.apply(Change::Resolve { name: "a.example".into(), addresses });
        }
        prop_assert_eq!(translate(&a, &options()), translate(&b, &options()));
    }

    #[test]
    fn references_of_the_table_resolve((objects, _) in any_objects()) {
        let mut cluster = Cluster::default();
        apply(&mut cluster, &objects);
        let table = translate(&cluster, &options()).table;
        for key in table.default.iter().flat_map(Action::upstreams) {
            prop_assert!(table.upstreams.contains_key(key));
        }
        for origin in table.server_names.values().flatten().chain(&table.fallback_certificate) {
            prop_assert!(table.certificates.contains_key(origin), "{}", origin);
        }
        for service in table.streams.values() {
            prop_assert!(table.upstreams.contains_key(&service.upstream));
        }
        for bound in table.binds.values() {
            let listeners = bound.http.values().chain(bound.tls.values()).chain(&bound.stream);
            for name in listeners {
                prop_assert!(table.listeners.contains_key(name), "{}", name);
            }
        }
        for listener in table.listeners.values() {
            for origin in &listener.certificates {
                prop_assert!(table.certificates.contains_key(origin), "{}", origin);
            }
            for backend in listener.streams.values().flatten().flat_map(|backends| backends.as_slice()) {
                prop_assert!(backend.target.as_ref().map_or(true, |key| table.upstreams.contains_key(key)));
            }
            for routes in listener.hosts.values() {
                prop_assert!(routes.rules.is_sorted_by(|a, b| a.path <= b.path));
                for key in routes.rules.iter().flat_map(Rule::upstreams) {
                    prop_assert!(table.upstreams.contains_key(key));
                }
            }
        }
        for routes in table.hosts.values() {
            prop_assert!(routes.rules.is_sorted_by(|a, b| a.path < b.path));
            for key in routes.rules.iter().chain(routes.fallback.as_deref()).flat_map(Rule::upstreams) {
                prop_assert!(table.upstreams.contains_key(key));
            }
        }
    }
}

/// Hosts name a certificate and do not hold it.
#[test]
fn a_rotation_changes_only_the_certificate() {
    let parse = |text: &str| parse(&Path::new("in.yaml").into(), text).objects;
    let mut cluster = Cluster::default();
    let case = fs::read_to_string(directory().join("tls/in.yaml")).expect("a readable case");
    apply(&mut cluster, &parse(&case));
    let mut translator = Translator::new(options());
    let before = translator.translate(&cluster);
    let rotated = rotated();
    apply(
        &mut cluster,
        &parse(&format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{namespace: default, name: cert}}\ntype: kubernetes.io/tls\n{rotated}"
        )),
    );
    let after = translator.translate(&cluster);
    let differences = before.table.certificates.differences(&after.table.certificates);
    let differing: Vec<&str> = differences.iter().map(|difference| &**difference.key).collect();
    assert_eq!(differing, ["default/cert"]);
    let table = RouteTable { certificates: before.table.certificates.clone(), ..after.table.clone() };
    assert_eq!(Translation { table, ..after.clone() }, before);
}

/// A wildcard does not use the certificate that a younger Ingress of another namespace has for all hosts. Whether that
/// Ingress has one depends on the owner of all hosts, so a claim without a certificate matters, too.
#[test]
fn an_owner_of_all_hosts_without_certificate_affects_wildcards() {
    let options = Options { default_certificate: None, ..options() };
    let (mut cluster, mut translator) = (Cluster::default(), Translator::new(options.clone()));
    let ingress = |name: &str, second: u8, host: &str, tls: &str| {
        let text = format!(
            "apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {{namespace: {name}, name: {name}, creationTimestamp: \"2026-01-01T00:00:0{second}Z\", annotations: {{kubernetes.io/ingress.class: xdp}}}}
spec: {{rules: [{{{host} http: {{paths: [{{path: /, pathType: Prefix, backend: {{service: {{name: x, port: {{number: 80}}}}}}}}]}}}}]{tls}}}"
        );
        let mut objects = parse(&Path::new("in.yaml").into(), &text).objects;
        objects.pop().expect("an Ingress")
    };
    let wildcard = ingress("wildcard", 1, "host: \"*.test\",", "");
    let owner = ingress("owner", 2, "", "");
    let certified = ingress("certified", 3, "", ", tls: [{secretName: cert}]");
    let apply = |object: &Object| Change::Apply { object: object.clone(), origin: Origin::Api };
    let steps = [
        (apply(&wildcard), false),
        (apply(&certified), true),
        (apply(&owner), false),
        (Change::Remove(owner.id()), true),
        (Change::Remove(certified.id()), false),
    ];
    for (change, is_kept_from_it) in steps {
        cluster.apply(change);
        let translation = translator.translate(&cluster);
        assert_eq!(translation, translate(&cluster, &options));
        assert_eq!(translation.table.server_names.values().any(|origin| origin.is_none()), is_kept_from_it);
    }
}

/// A change of the node's addresses, of Services or of nodes affects endpoints at once.
#[test]
fn endpoints_are_checked_against_the_current_cluster() {
    let parse = |text: &str| parse(&Path::new("in.yaml").into(), text).objects;
    let case = fs::read_to_string(directory().join("endpoints-of-machinery/in.yaml")).expect("a readable case");
    let mut cluster = Cluster::default();
    let options = Options { node: Some("n1".into()), ..Options::for_manifests() };
    let mut translator = Translator::new(options.clone());
    let mut refused = |cluster: &Cluster| {
        let translation = translator.translate(cluster);
        assert_eq!(translation, translate(cluster, &options));
        translation.outcomes.keys().filter(|outcome| outcome.reason == Reason::EndpointRefused).count()
    };
    let objects = parse(&case);
    let is_context = |object: &&Object| {
        let id = object.id();
        matches!(id.kind, Kind::Node) || id.name.to_string().contains("kubernetes") || &*id.name.name == "other"
    };
    let (context, users): (Vec<_>, Vec<_>) = objects.iter().partition(is_context);
    apply(&mut cluster, &users.into_iter().cloned().collect::<Vec<_>>());
    assert_eq!(refused(&cluster), 0, "nothing is known yet");
    let context: Vec<Object> = context.into_iter().cloned().collect();
    let mut before = 0;
    for object in &context {
        apply(&mut cluster, std::slice::from_ref(object));
        let now = refused(&cluster);
        assert!(now >= before, "{object:?}");
        before = now;
    }
    assert!(before > 0);
    cluster.own_addresses = Arc::new([[192, 0, 2, 1].into(), [10, 244, 0, 1].into()].into());
    assert_eq!(refused(&cluster), before + 1, "the bridge of this node");
    cluster.own_addresses = Arc::default();
    for object in &context {
        cluster.apply(Change::Remove(object.id()));
        refused(&cluster);
    }
    assert_eq!(refused(&cluster), 0);
}

/// An Ingress is translated and reported anew when a grant of its target's namespace comes, changes or goes.
#[test]
fn a_grant_counts_while_it_exists() {
    let parse = |text: &str| parse(&Path::new("in.yaml").into(), text).objects;
    let mut cluster = Cluster::default();
    let case = fs::read_to_string(directory().join("reference-grants/in.yaml")).expect("a readable case");
    let mut objects = parse(&case);
    let grants: Vec<_> = objects.extract_if(.., |object| matches!(object, Object::ReferenceGrant(_))).collect();
    assert!(!grants.is_empty());
    apply(&mut cluster, &objects);
    let mut translator = Translator::new(options());
    let refused = |translation: &Translation| {
        translation.outcomes.keys().filter(|outcome| outcome.reason == Reason::RefNotPermitted).count()
    };
    let without = translator.translate(&cluster);
    apply(&mut cluster, &grants);
    let with = translator.translate(&cluster);
    assert!(refused(&with) < refused(&without), "{} of {}", refused(&with), refused(&without));
    assert_eq!(with, translate(&cluster, &options()));
    for grant in &grants {
        cluster.apply(Change::Remove(grant.id()));
    }
    assert_eq!(translator.translate(&cluster), without);
}

fn apply(cluster: &mut Cluster, objects: &[Object]) {
    for object in objects {
        cluster.apply(Change::Apply { object: object.clone(), origin: Origin::Api });
    }
}

/// Options with every input set.
fn options() -> Options {
    Options {
        node: Some("a".into()),
        config_map: Some(ObjectName::new("a", "a")),
        default_backend: Some(ObjectName::new("a", "b")),
        default_certificate: Some(ObjectName::new("a", "c")),
        tcp_services: Some(ObjectName::new("a", "b")),
        udp_services: Some(ObjectName::new("a", "c")),
        ticket_secret: Some(ObjectName::new("a", "b")),
        // The port of random pods is among them, so that pods on a node's address are refused.
        reserved_ports: [80, 443, 8080].into(),
        ..Options::for_manifests()
    }
}
