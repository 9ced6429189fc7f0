//! Laws of the translation: whatever the cluster, its history and the order of its objects.

use std::{fs, path::Path, sync::Arc};

use ingress_userspace::{
    control::{
        Origin,
        change::{Change, Object, ObjectName},
        cluster::Cluster,
        source::manifests::parse,
        translate::{Options, Translation, Translator, translate},
    },
    model::{Action, RouteTable, Rule},
};
use proptest::prelude::*;

use crate::{
    case::directory,
    changes::{any_event, any_objects, change},
    objects::rotated,
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// What has seen every state before says of the last one what is said of it alone.
    #[test]
    fn a_translation_does_not_depend_on_those_before(
        batches in prop::collection::vec(prop::collection::vec(any_event(), 1..4), 1..40),
    ) {
        let mut cluster = Cluster::default();
        let mut translator = Translator::new(options());
        let (mut known, mut before) = (Vec::new(), Translation::default());
        for batch in &batches {
            for change in batch.iter().filter_map(|event| change(event, &mut known)) {
                cluster.apply(change);
            }
            let translation = translator.translate(&cluster);
            let alone = translate(&cluster, &options());
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
    fn what_the_table_names_is_in_it((objects, _) in any_objects()) {
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
fn a_rotated_certificate_is_all_that_differs() {
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

fn apply(cluster: &mut Cluster, objects: &[Object]) {
    for object in objects {
        cluster.apply(Change::Apply { object: object.clone(), origin: Origin::Api });
    }
}

/// Every input at once.
fn options() -> Options {
    Options {
        node: Some("a".into()),
        config_map: Some(ObjectName::new("a", "a")),
        default_backend: Some(ObjectName::new("a", "b")),
        default_certificate: Some(ObjectName::new("a", "c")),
        tcp_services: Some(ObjectName::new("a", "b")),
        udp_services: Some(ObjectName::new("a", "c")),
        ticket_secret: Some(ObjectName::new("a", "b")),
        ..Options::for_manifests()
    }
}
