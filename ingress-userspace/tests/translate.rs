//! Golden translations: each `translate/<case>/in.yaml` and each file of `deploy/examples` against its expected table and
//! outcomes. `UPDATE_EXPECT=1 cargo test --test translate` rewrites what is expected; read the difference before it is kept.
#![cfg(feature = "control")]
#![allow(clippy::panic, reason = "helpers of tests may fail a test")]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use expect_test::expect_file;
use ingress_userspace::control::{
    Origin,
    change::{Change, Object, ObjectId, ObjectName},
    cluster::Cluster,
    source::manifests::parse,
    translate::{CatchAll, ExternalNames, Options, Translation, Translator, translate},
};
use proptest::prelude::*;

/// What a case says on its first lines: how its objects are to be read, and what is known besides them.
struct Setup {
    options: Options,
    resolved: Vec<Change>,
}

/// Reads the comments at the head of a case.
///
/// - `# as-cluster`: as from an API server, where admission has been at work
/// - `# node: n1`: the node that it is translated for
/// - `# option: configmap=ns/name`, and other flags by their names, without `--`
/// - `# resolved: a.example=192.0.2.1,2001:db8::1`: the addresses of a name; none after `=` if it has none
fn setup(text: &str) -> Setup {
    let head = || text.lines().map_while(|line| line.strip_prefix("# "));
    let is_cluster = head().any(|line| line == "as-cluster");
    let mut options = if is_cluster { Options::default() } else { Options::for_manifests() };
    let mut resolved = Vec::new();
    for line in head() {
        if let Some(node) = line.strip_prefix("node: ") {
            options.node = Some(node.into());
        } else if let Some(option) = line.strip_prefix("option: ") {
            set(&mut options, option);
        } else if let Some((name, addresses)) = line.strip_prefix("resolved: ").and_then(|line| line.split_once('=')) {
            let addresses = addresses.split(',').filter(|text| !text.is_empty());
            let addresses = addresses.map(|text| text.parse().expect("an address")).collect();
            resolved.push(Change::Resolve { name: name.into(), addresses });
        }
    }
    Setup { options, resolved }
}

fn set(options: &mut Options, option: &str) {
    let (flag, value) = option.split_once('=').unwrap_or((option, ""));
    let object = || {
        let (namespace, name) = value.split_once('/').expect("namespace/name");
        Some(ObjectName::new(namespace, name))
    };
    match flag {
        "annotations-prefix" => options.annotations_prefix = value.into(),
        "configmap" => options.config_map = object(),
        "controller-class" => options.classes.controller = value.into(),
        "default-backend-service" => options.default_backend = object(),
        "default-ssl-certificate" => options.default_certificate = object(),
        "tls-ticket-secret" => options.ticket_secret = object(),
        "disable-catch-all" => options.catch_all = CatchAll::Refuse,
        "disable-svc-external-name" => options.external_names = ExternalNames::Refuse,
        "tcp-services-configmap" => options.tcp_services = object(),
        "udp-services-configmap" => options.udp_services = object(),
        "ingress-class" => options.classes.name = value.into(),
        "ingress-class-by-name" => options.classes.by_name = true,
        "watch-ingress-without-class" => options.classes.watch_without_class = true,
        other => panic!("no option `{other}`"),
    }
}

fn translated(name: &str, text: &str) -> (String, String) {
    let path: Arc<Path> = Path::new(name).into();
    let parsed = parse(&path, text);
    let mut cluster = Cluster::default();
    for object in parsed.objects {
        cluster.apply(Change::Apply { object, origin: Origin::File(Arc::clone(&path)) });
    }
    let Setup { options, resolved } = setup(text);
    for change in resolved {
        cluster.apply(change);
    }
    let Translation { table, outcomes, served: _, external_names } = translate(&cluster, &options);
    let names = external_names.keys().map(|name| format!("external name {name}\n"));
    let lines = parsed.remarks.iter().chain(outcomes.keys().map(AsRef::as_ref)).map(|outcome| format!("{outcome}\n"));
    (table.to_string() + &names.collect::<String>(), lines.collect())
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
    assert!(count >= 60, "only {count} cases found");
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

#[test]
fn what_is_lent_to_solvers_is_bounded() {
    let path = |n: usize| {
        format!("{{path: /p{n}, pathType: Prefix, backend: {{service: {{name: s, port: {{number: 80}}}}}}}}, ")
    };
    let solver = |n: usize| {
        format!(
            "  - host: h{n}.test\n    http: {{paths: [{{path: /.well-known/acme-challenge/t, pathType: Exact, backend: {{service: {{name: s, port: {{number: 80}}}}}}}}]}}\n"
        )
    };
    let text = format!(
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: lender}}\nspec:\n  ingressClassName: xdp\n  rules:\n  - host: '*.test'\n    http: {{paths: [{}]}}\n\
         ---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: solver, labels: {{acme.cert-manager.io/http01-solver: \"true\"}}}}\nspec:\n  ingressClassName: xdp\n  rules:\n{}",
        (0..1_000).map(path).collect::<String>(),
        (0..200).map(solver).collect::<String>(),
    );
    let (table, outcomes) = translated("in.yaml", &text);
    let rules = table.lines().filter(|line| line.trim_start().starts_with("/p")).count();
    assert_eq!(rules, 1_000 + 100_000, "the lender's own, and what is lent");
    assert_eq!(
        outcomes.matches("TooLarge Ingress default/solver").count(),
        100,
        "{}",
        &outcomes[..2000.min(outcomes.len())]
    );
}

// === A small random cluster: few names, so that objects meet. ===

fn any_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "c"])
}

/// A label or an annotation, or none.
fn any_labels() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "",
        "",
        "  labels: {acme.cert-manager.io/http01-solver: \"true\"}\n",
        "  annotations: {nginx.ingress.kubernetes.io/backend-protocol: HTTPS}\n",
        "  annotations: {xdp-ingress.io/ssl-redirect: \"false\"}\n",
        "  annotations: {nginx.ingress.kubernetes.io/canary: \"true\"}\n",
        "  annotations: {nginx.ingress.kubernetes.io/auth-url: \"http://a.test\"}\n",
        "  annotations: {kubernetes.io/ingress.class: a}\n",
        "  annotations: {nginx.ingress.kubernetes.io/custom-headers: a/b, nginx.ingress.kubernetes.io/app-root: /app}\n",
        "  annotations: {nginx.ingress.kubernetes.io/use-regex: \"true\"}\n",
        "  annotations: {nginx.ingress.kubernetes.io/ssl-passthrough: \"true\"}\n",
        "  annotations: {nginx.ingress.kubernetes.io/canary: \"true\", nginx.ingress.kubernetes.io/canary-weight: \"10\"}\n",
    ])
}

fn any_ingress() -> impl Strategy<Value = String> {
    let path = (
        prop::sample::select(vec!["/", "/x", "/x/", "bad", "/y", "/.well-known/acme-challenge/t"]),
        any::<bool>(),
        any_name(),
        79..82u16,
    );
    let host = prop::sample::select(vec!["", "a.test", "*.test", "b.test", "*.wild.test", "bad..host"]);
    let rule = (host, prop::collection::vec(path, 0..3));
    let class = prop::sample::select(vec!["xdp", "a", ""]);
    let metadata = (any_name(), any_name(), prop::option::of(0..3u8), any_labels(), class);
    (metadata, any::<bool>(), prop::collection::vec(rule, 0..3), any::<bool>())
        .prop_map(|((namespace, name, age, labels, class), has_default, rules, has_tls)| {
            let mut text = format!(
                "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  namespace: {namespace}\n  name: {name}\n{labels}"
            );
            if let Some(age) = age {
                text += &format!("  creationTimestamp: 2026-01-0{}T00:00:00Z\n", age + 1);
            }
            text += "spec:\n";
            if !class.is_empty() {
                text += &format!("  ingressClassName: {class}\n");
            }
            if has_default {
                text += "  defaultBackend: {service: {name: a, port: {number: 80}}}\n";
            }
            if has_tls {
                text += "  tls: [{secretName: a}, {hosts: [b.test, \"*.wild.test\"], secretName: b}, {hosts: [\"*.test\"]}]\n";
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
    let kind = prop::sample::select(vec![
        "",
        ", type: ExternalName, externalName: a.example",
        ", type: ExternalName, externalName: 10.9.0.1",
    ]);
    let protocol = prop::sample::select(vec!["", ", appProtocol: kubernetes.io/h2c", ", appProtocol: x"]);
    let transport = prop::sample::select(vec!["", "", ", protocol: UDP"]);
    let protocol = (protocol, transport).prop_map(|(protocol, transport)| format!("{protocol}{transport}"));
    (any_name(), any_name(), 79..82u16, kind, protocol).prop_map(|(namespace, name, port, kind, protocol)| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{namespace: {namespace}, name: {name}}}\nspec: {{ports: [{{port: {port}{protocol}}}]{kind}}}\n"
        )
    })
}

/// A Secret with one of two certificates, or with none that can be used.
fn any_secret() -> impl Strategy<Value = String> {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/translate");
    let data = ["tls", "default-certificate"].map(|case| {
        let text = fs::read_to_string(cases.join(case).join("in.yaml")).expect("a readable case");
        let at = text.find("stringData:").expect("a Secret");
        let end = text[at..].find("\n---\n").map_or(text.len() - at, |end| end + 1);
        text[at..at + end].to_owned()
    });
    let broken = "stringData: {tls.crt: none, tls.key: none}\n".to_owned();
    let data = prop::sample::select(data.into_iter().chain([broken]).collect::<Vec<_>>());
    (any_name(), any_name(), data).prop_map(|(namespace, name, data)| {
        format!("apiVersion: v1\nkind: Secret\nmetadata: {{namespace: {namespace}, name: {name}}}\n{data}")
    })
}

fn any_config_map() -> impl Strategy<Value = String> {
    let key = prop::sample::select(vec![
        "keep-alive",
        "http-redirect-code",
        "ssl-redirect",
        "no-tls-redirect-locations",
        "bogus",
    ]);
    let value = prop::sample::select(vec!["301", "false", "/a"]);
    (any_name(), prop::collection::btree_map(key, value, 0..4)).prop_map(|(name, data)| {
        let data: String = data.iter().map(|(key, value)| format!("{key}: \"{value}\", ")).collect();
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{namespace: a, name: {name}}}\ndata: {{{data}}}\n")
    })
}

/// Rows of stream services, of TCP in `a/b` and of UDP in `a/c`, which are the names of other ConfigMaps, too.
fn any_streams() -> impl Strategy<Value = String> {
    let port = prop::sample::select(vec!["80", "81", "5353", "bad"]);
    let service = (any_name(), any_name(), 79..82u16, prop::sample::select(vec!["", ":PROXY", ":PROXY:PROXY", ":x"]));
    let name = prop::sample::select(vec!["b", "c"]);
    (name, prop::collection::btree_map(port, service, 0..4)).prop_map(|(name, rows)| {
        let rows: String = rows
            .iter()
            .map(|(key, (namespace, service, port, proxy))| {
                format!("\"{key}\": \"{namespace}/{service}:{port}{proxy}\", ")
            })
            .collect();
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{namespace: a, name: {name}}}\ndata: {{{rows}}}\n")
    })
}

fn any_class() -> impl Strategy<Value = String> {
    let controller = prop::sample::select(vec!["xdp-ingress.io/controller", "another.io/controller"]);
    let name = prop::sample::select(vec!["a", "b", "xdp"]);
    let metadata = (name, prop::option::of(0..2u8), any::<bool>());
    (metadata, controller, any_name()).prop_map(|((name, age, is_default), controller, parameters)| {
        let default = if is_default { ", annotations: {ingressclass.kubernetes.io/is-default-class: \"true\"}" } else { "" };
        let age = age.map_or_else(String::new, |age| format!(", creationTimestamp: 2026-01-0{}T00:00:00Z", age + 1));
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {{name: {name}{age}{default}}}\nspec: {{controller: {controller}, \
             parameters: {{kind: ConfigMap, name: {parameters}, namespace: a, scope: Namespace}}}}\n"
        )
    })
}

fn any_node() -> impl Strategy<Value = String> {
    (any_name(), any_name()).prop_map(|(name, zone)| {
        format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {{topology.kubernetes.io/zone: {zone}}}}}\n\
             status: {{addresses: [{{type: InternalIP, address: 10.9.0.1}}]}}\n"
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
                        "{{addresses: [10.0.0.{ip}], conditions: {{ready: {ready}, serving: true, terminating: {going}}}, \
                         hints: {{forNodes: [{{name: a}}], forZones: [{{name: {}}}]}}}}, ",
                        if *going { "a" } else { "b" }
                    )
                })
                .collect();
            format!(
                "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  namespace: {namespace}\n  name: {name}\n  \
                 labels: {{kubernetes.io/service-name: {service}}}\naddressType: IPv4\nports: [{{port: 8080}}, {{port: 8081, protocol: UDP}}]\nendpoints: [{endpoints}]\n"
            )
        },
    )
}

fn any_object() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => any_ingress(),
        4 => any_service(),
        4 => any_slice(),
        2 => any_secret(),
        1 => any_config_map(),
        2 => any_streams(),
        1 => any_class(),
        1 => any_node(),
    ]
}

/// Something that becomes of a cluster: mostly an object that comes or changes.
#[derive(Clone, Debug)]
enum Event {
    Comes(String),
    /// One of the objects that are there.
    Goes(prop::sample::Index),
    Resolves(Vec<u8>),
    Forgets,
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => any_object().prop_map(Event::Comes),
        6 => any::<prop::sample::Index>().prop_map(Event::Goes),
        1 => prop::collection::vec(0..3u8, 0..3).prop_map(Event::Resolves),
        1 => Just(Event::Forgets),
    ]
}

/// Objects, each of a name of its own, in two random orders.
fn any_objects() -> impl Strategy<Value = (Vec<Object>, Vec<Object>)> {
    prop::collection::vec(any_object(), 0..14)
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

/// The change that `event` is; `known` are the objects that are there.
fn change(event: &Event, known: &mut Vec<ObjectId>) -> Option<Change> {
    let name: Arc<str> = "a.example".into();
    Some(match event {
        Event::Comes(text) => {
            let path: Arc<Path> = Path::new("in.yaml").into();
            let parsed = parse(&path, text);
            assert!(parsed.remarks.is_empty(), "{:?}", parsed.remarks);
            let object = parsed.objects.into_iter().next()?;
            known.retain(|id| *id != object.id());
            known.push(object.id());
            Change::Apply { object, origin: Origin::Api }
        }
        Event::Goes(_) if known.is_empty() => return None,
        Event::Goes(index) => Change::Remove(known.remove(index.index(known.len()))),
        Event::Resolves(addresses) => {
            // Among them one of a node.
            let addresses = addresses.iter().map(|last| [10, 9, 0, *last].into()).collect();
            Change::Resolve { name, addresses }
        }
        Event::Forgets => Change::Forget { name },
    })
}

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
        use ingress_userspace::model::Action;
        let mut cluster = Cluster::default();
        apply(&mut cluster, &objects);
        let table = translate(&cluster, &options()).table;
        if let Some(Action::Forward(key)) = &table.default {
            prop_assert!(table.upstreams.contains_key(key));
        }
        for service in table.streams.values() {
            prop_assert!(table.upstreams.contains_key(&service.upstream));
        }
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
