//! Golden translations: each `translate/<case>/in.yaml` and each file of `deploy/examples` against its expected table and
//! outcomes. `UPDATE_EXPECT=1 cargo test --test translate` rewrites what is expected; read the difference before it is kept.
#![cfg(feature = "control")]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use expect_test::expect_file;
use ingress_userspace::control::{
    Origin,
    change::{Change, Object},
    cluster::Cluster,
    source::manifests::parse,
    translate::{Options, Translation, translate},
};
use proptest::prelude::*;

/// What a case says on its first line if it is to be read as from an API server, where admission has been at work.
const AS_CLUSTER: &str = "# as-cluster";

fn translated(name: &str, text: &str) -> (String, String) {
    let path: Arc<Path> = Path::new(name).into();
    let parsed = parse(&path, text);
    let mut cluster = Cluster::default();
    for object in parsed.objects {
        cluster.apply(Change::Apply { object, origin: Origin::File(Arc::clone(&path)) });
    }
    let options = if text.starts_with(AS_CLUSTER) { Options::default() } else { Options::for_manifests() };
    let Translation { table, outcomes, .. } = translate(&cluster, &options);
    let lines = parsed.remarks.iter().chain(&outcomes).map(|outcome| format!("{outcome}\n"));
    (table.to_string(), lines.collect())
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut entries: Vec<_> = entries.map(|entry| entry.expect("a readable entry").path()).collect();
    entries.sort();
    entries
}

#[test]
fn cases_translate_as_written_down() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/translate");
    let mut count = 0;
    for case in entries(&cases).into_iter().filter(|case| case.join("in.yaml").is_file()) {
        let text = fs::read_to_string(case.join("in.yaml")).expect("a readable case");
        let (table, outcomes) = translated("in.yaml", &text);
        expect_file![case.join("table.txt")].assert_eq(&table);
        expect_file![case.join("outcomes.txt")].assert_eq(&outcomes);
        count += 1;
    }
    assert!(count >= 25, "only {count} cases found");
}

#[test]
fn examples_translate_as_written_down() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let expected = package.join("tests/translate/examples");
    for example in entries(&package.join("../deploy/examples")) {
        if example.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let name = example.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8");
        let text = fs::read_to_string(&example).expect("a readable example");
        let (table, outcomes) = translated(name, &text);
        let text = if outcomes.is_empty() { table } else { format!("{table}\n{outcomes}") };
        expect_file![expected.join(name.replace(".yaml", ".table.txt"))].assert_eq(&text);
    }
}

#[test]
fn what_is_too_large_is_refused_alone() {
    let ingress = |name: &str, annotation: usize, paths: usize| {
        let paths: String = (0..paths)
            .map(|n| {
                format!("{{path: /{n}, pathType: Prefix, backend: {{service: {{name: s, port: {{number: 80}}}}}}}}, ")
            })
            .collect();
        format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: {name}, annotations: {{a/b: \"{}\"}}}}\n\
             spec:\n  ingressClassName: xdp\n  rules:\n  - host: {name}.test\n    http: {{paths: [{paths}]}}\n",
            "x".repeat(annotation)
        )
    };
    let text = ingress("ok", 10, 1) + &ingress("annotated", 1 << 20, 1) + &ingress("many", 10, 10_001);
    let (table, outcomes) = translated("in.yaml", &text);
    assert!(table.contains("host ok.test") && !table.contains("annotated") && !table.contains("many"), "{table}");
    for expect in ["TooLarge Ingress default/annotated (in.yaml): annotations hold 10", "TooLarge Ingress default/many"]
    {
        assert!(outcomes.contains(expect), "{outcomes}");
    }
    assert!(outcomes.len() < 1000, "outcomes do not quote what is too large");
}

// === A small random cluster: few names, so that objects meet. ===

fn any_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "c"])
}

fn any_ingress() -> impl Strategy<Value = String> {
    let path = (prop::sample::select(vec!["/", "/x", "/x/", "bad", "/y"]), any::<bool>(), any_name(), 79..82u16);
    let host = prop::sample::select(vec!["", "a.test", "*.test", "b.test", "bad..host"]);
    let rule = (host, prop::collection::vec(path, 0..3));
    (any_name(), any_name(), prop::option::of(0..3u8), any::<bool>(), prop::collection::vec(rule, 0..3), any::<bool>())
        .prop_map(|(namespace, name, age, has_default, rules, has_tls)| {
            let mut text = format!(
                "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  namespace: {namespace}\n  name: {name}\n"
            );
            if let Some(age) = age {
                text += &format!("  creationTimestamp: 2026-01-0{}T00:00:00Z\n", age + 1);
            }
            text += "spec:\n  ingressClassName: xdp\n";
            if has_default {
                text += "  defaultBackend: {service: {name: a, port: {number: 80}}}\n";
            }
            if has_tls {
                text += "  tls: [{secretName: a}, {hosts: [b.test], secretName: b}]\n";
            }
            text += "  rules:\n";
            for (host, paths) in rules {
                text += &format!("  - host: \"{host}\"\n    http:\n      paths:\n");
                for (path, is_exact, service, port) in paths {
                    let kind = if is_exact { "Exact" } else { "Prefix" };
                    text += &format!(
                        "      - {{path: {path}, pathType: {kind}, backend: {{service: {{name: {service}, port: {{number: {port}}}}}}}}}\n"
                    );
                }
            }
            text
        })
}

fn any_service() -> impl Strategy<Value = String> {
    (any_name(), any_name(), 79..82u16).prop_map(|(namespace, name, port)| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{namespace: {namespace}, name: {name}}}\nspec: {{ports: [{{port: {port}}}]}}\n"
        )
    })
}

fn any_slice() -> impl Strategy<Value = String> {
    (any_name(), any_name(), any_name(), prop::collection::vec((1..4u8, any::<bool>(), any::<bool>()), 0..3)).prop_map(
        |(namespace, name, service, endpoints)| {
            let endpoints: String = endpoints
                .iter()
                .map(|(ip, ready, going)| {
                    format!(
                        "{{addresses: [10.0.0.{ip}], conditions: {{ready: {ready}, serving: true, terminating: {going}}}}}, "
                    )
                })
                .collect();
            format!(
                "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  namespace: {namespace}\n  name: {name}\n  \
                 labels: {{kubernetes.io/service-name: {service}}}\naddressType: IPv4\nports: [{{port: 8080}}]\nendpoints: [{endpoints}]\n"
            )
        },
    )
}

/// Objects, each of a name of its own, in two random orders.
fn any_objects() -> impl Strategy<Value = (Vec<Object>, Vec<Object>)> {
    let object = prop_oneof![3 => any_ingress(), 2 => any_service(), 2 => any_slice()];
    prop::collection::vec(object, 0..14)
        .prop_map(|texts| {
            let path: Arc<Path> = Path::new("in.yaml").into();
            let parsed = parse(&path, &texts.join("---\n"));
            assert!(parsed.remarks.is_empty(), "{:?}", parsed.remarks);
            let mut objects = parsed.objects;
            objects.sort_by_key(Object::id);
            objects.dedup_by_key(|object| object.id());
            objects
        })
        .prop_flat_map(|objects| (Just(objects.clone()).prop_shuffle(), Just(objects).prop_shuffle()))
}

fn apply(cluster: &mut Cluster, objects: &[Object]) {
    for object in objects {
        cluster.apply(Change::Apply { object: object.clone(), origin: Origin::Api });
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
        prop_assert_eq!(translate(&a, &Options::for_manifests()), translate(&b, &Options::for_manifests()));
    }

    #[test]
    fn every_action_names_an_upstream_of_the_table((objects, _) in any_objects()) {
        use ingress_userspace::model::Action;
        let mut cluster = Cluster::default();
        apply(&mut cluster, &objects);
        let table = translate(&cluster, &Options::for_manifests()).table;
        for routes in table.hosts.values() {
            prop_assert!(routes.rules.is_sorted_by(|a, b| a.path < b.path));
            for rule in routes.rules.iter().chain(&routes.fallback) {
                if let Action::Forward(key) = &rule.action {
                    prop_assert!(table.upstreams.contains_key(key));
                }
            }
        }
    }
}
