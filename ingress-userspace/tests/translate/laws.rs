//! Laws of the translation: whatever the cluster, its history and the order of its objects.

use std::sync::Arc;

use ingress_userspace::{
    control::{
        Origin,
        change::{Change, Object, ObjectName},
        cluster::Cluster,
        translate::{Options, Translation, Translator, translate},
    },
    model::{Action, Rule},
};
use proptest::prelude::*;

use crate::changes::{any_event, any_objects, change};

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
    fn every_action_names_an_upstream_of_the_table((objects, _) in any_objects()) {
        let mut cluster = Cluster::default();
        apply(&mut cluster, &objects);
        let table = translate(&cluster, &options()).table;
        for key in table.default.iter().flat_map(Action::upstreams) {
            prop_assert!(table.upstreams.contains_key(key));
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
