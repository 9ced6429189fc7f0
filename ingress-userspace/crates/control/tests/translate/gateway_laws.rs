//! Laws of the translation for clusters that are full of objects of the Gateway API, and the proof that the cases of
//! interest occur among them.

use std::{cell::RefCell, collections::BTreeMap, fmt::Write as _, path::Path};

use ingress_control::{
    AddressPool, Origin,
    change::{Change, Kind, Object, ObjectId},
    cluster::Cluster,
    source::manifests::parse,
    translate::{Options, Translation, Translator, translate},
};
use proptest::{
    prelude::*,
    test_runner::{TestCaseResult, TestRunner},
};

use crate::{
    changes::{change, events_of, objects_of},
    gateway_objects::{CLASS, any_gateway_object, foundation},
};

/// Words of statuses, tables and outcomes, each the mark of a case that must occur.
const CASES: [&str; 23] = [
    "routes 2",
    "Conflicted=True HostnameConflict",
    "Conflicted=True ProtocolConflict",
    // A route of one kind that yields to one of the other kind, at all listeners and at some.
    "Accepted=False HostnameConflict",
    "not attached to",
    "Accepted=False NotAllowedByListeners",
    "Accepted=False NoMatchingListenerHostname",
    "Accepted=False NoMatchingParent",
    "Accepted=False UnsupportedValue",
    "ResolvedRefs=False RefNotPermitted",
    "ResolvedRefs=False BackendNotFound",
    "Accepted=False InvalidParameters",
    "Accepted=False NotAllowed:",
    "such as SSH or Kubernetes",
    "port `443` of the nodes has protocols",
    "is one too many",
    "Programmed=False AddressNotAssigned",
    "ResolvedRefs=False ConfigMapNotFound",
    "limit(HTTPRoute ",
    "+policy(",
    "+certificate(",
    "Accepted=False Conflicted",
    "warning RouteConflict HTTPRoute",
];

/// Number of runs with each case.
struct Seen(RefCell<BTreeMap<&'static str, usize>>);

impl Seen {
    fn new() -> Self {
        Self(RefCell::new(CASES.map(|case| (case, 0)).into()))
    }

    /// Counts the cases that occur in the translations of one run.
    fn count(&self, run: &[Translation]) {
        let mut text = String::new();
        for Translation { table, statuses, outcomes, .. } in run {
            text += &table.to_string();
            for outcome in outcomes.keys() {
                writeln!(text, "{outcome}").expect("room");
            }
            for status in statuses.values() {
                write!(text, "{status}").expect("room");
            }
        }
        for (case, count) in &mut *self.0.borrow_mut() {
            *count += usize::from(text.contains(case));
        }
    }

    /// Returns the cases that never occurred, with the numbers of all.
    fn missing(self) -> Option<String> {
        let seen = self.0.into_inner();
        seen.values().any(|count| *count == 0).then(|| format!("cases that never occur: {seen:#?}"))
    }
}

fn options(has_pool: bool) -> Options {
    let mut options = Options { max_ports: 1 + usize::from(has_pool), ..Options::default() };
    if has_pool {
        let networks = ["192.0.2.1", "192.0.2.2"].map(|text| AddressPool::parse_network(text).expect("an address"));
        options.gateway_addresses = AddressPool::new(networks).expect("a pool");
    }
    options
}

/// Returns a cluster with objects that those of the events meet, and those of its objects that events remove.
fn founded() -> (Cluster, Vec<ObjectId>) {
    let (mut cluster, mut known) = (Cluster::default(), Vec::new());
    for object in parse(&Path::new("in.yaml").into(), &foundation()).objects {
        if object.id().kind != Kind::GatewayClass {
            known.push(object.id());
        }
        cluster.apply(Change::Apply { object, origin: Origin::Api });
    }
    (cluster, known)
}

fn run<S: Strategy>(strategy: &S, test: impl Fn(S::Value) -> TestCaseResult) {
    let config = ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() };
    if let Err(error) = TestRunner::new(config).run(strategy, test) {
        panic!("{error}");
    }
}

#[test]
fn gateways_do_not_depend_on_previous_translations() {
    let seen = Seen::new();
    let event = || events_of(any_gateway_object());
    let batches = prop::collection::vec(prop::collection::vec(event(), 1..4), 1..30);
    run(&(batches, any::<bool>()), |(batches, has_pool)| {
        let options = options(has_pool);
        let ((mut cluster, mut known), mut translator) = (founded(), Translator::new(options.clone()));
        let mut run = Vec::new();
        for batch in &batches {
            for change in batch.iter().filter_map(|event| change(event, &mut known)) {
                cluster.apply(change);
            }
            let translation = translator.translate(&cluster);
            let alone = translate(&cluster, &options);
            prop_assert_eq!(&translation, &alone, "{}\n{}", translation.table, alone.table);
            run.push(translation);
        }
        seen.count(&run);
        Ok(())
    });
    assert_eq!(seen.missing(), None);
}

/// Routes of a listener's protocol do not stay when it gets another one.
#[test]
fn a_listener_with_another_protocol_starts_without_routes() {
    let parsed = |text: &str| parse(&Path::new("in.yaml").into(), text).objects;
    let mut cluster = Cluster::default();
    let mut translator = Translator::new(Options::default());
    let route = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {namespace: a, name: r}\n\
                 spec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: s, port: 80}]}]}\n---\n\
                 apiVersion: v1\nkind: Service\nmetadata: {namespace: a, name: s}\nspec: {ports: [{port: 80}]}\n";
    let gateway = |protocol: &str| {
        format!(
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{namespace: a, name: g}}\n\
             spec: {{gatewayClassName: xdp, listeners: [{{name: l, port: 81, protocol: {protocol}}}]}}\n"
        )
    };
    for (text, upstreams) in [([CLASS, &gateway("HTTP"), route].concat(), 1), (gateway("TCP"), 0), (gateway("HTTP"), 1)]
    {
        for object in parsed(&text) {
            cluster.apply(Change::Apply { object, origin: Origin::Api });
        }
        let translation = translator.translate(&cluster);
        assert_eq!(translation.table.upstreams.len(), upstreams, "{}", translation.table);
        assert_eq!(translation, translate(&cluster, &Options::default()), "{text}");
    }
}

#[test]
fn gateways_do_not_depend_on_the_order_of_input() {
    run(&(objects_of(any_gateway_object(), 30), any::<bool>()), |((one, other), has_pool)| {
        let options = options(has_pool);
        let ((mut a, _), (mut b, _), mut translator) = (founded(), founded(), Translator::new(options.clone()));
        let apply = |cluster: &mut Cluster, object: &Object| {
            cluster.apply(Change::Apply { object: object.clone(), origin: Origin::Api });
        };
        one.iter().for_each(|object| apply(&mut a, object));
        for object in &other {
            apply(&mut b, object);
            drop(translator.translate(&b));
        }
        let translation = translate(&a, &options);
        prop_assert_eq!(&translation, &translator.translate(&b));
        Ok(())
    });
}
