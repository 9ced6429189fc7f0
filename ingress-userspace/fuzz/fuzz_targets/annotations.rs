//! Hostile values for every documented annotation. The target checks that parsing never panics, that the result
//! compiles, and that another Ingress beside them is served unchanged.
#![no_main]

use std::{collections::BTreeMap, path::Path, sync::Arc};

use arbitrary::Arbitrary;
use ingress_control::{
    Origin,
    change::{Change, Object},
    cluster::Cluster,
    source::manifests::parse,
    translate::{Options, Translator},
};
use ingress_model::{HostId, RequestHead};
use ingress_model::route::{Matched, RouteTarget};
use ingress_proxy::Snapshot;
use libfuzzer_sys::fuzz_target;

/// The documentation, with a row for each key that begins with the key in backticks.
const DOCUMENTED: &str = include_str!("../../../docs/annotations.md");

const OBJECTS: &str = "apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: xdp}
spec: {controller: xdp-ingress.io/controller}
---
apiVersion: v1
kind: Service
metadata: {namespace: n, name: s}
spec: {ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: n, name: s-a, labels: {kubernetes.io/service-name: s}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.0.0.1]}]
---
apiVersion: v1
kind: Secret
metadata: {namespace: n, name: s}
stringData: {auth: 'a:$apr1$x$x'}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: n, name: plain}
spec:
  ingressClassName: xdp
  rules: [{host: plain.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: s, port: {number: 80}}}}]}}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: n, name: fuzzed}
spec:
  ingressClassName: xdp
  rules: [{host: fuzzed.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: s, port: {number: 80}}}}]}}]
";

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    annotations: Vec<(u8, bool, &'a str)>,
}

fn keys() -> Vec<&'static str> {
    let rows = DOCUMENTED.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    rows.map(|(key, _)| key).collect()
}

fuzz_target!(|input: Input<'_>| {
    let keys = keys();
    assert!(keys.len() > 50, "the documentation has another form");
    let annotations: BTreeMap<String, String> = input
        .annotations
        .iter()
        .take(8)
        .map(|&(key, own, value)| {
            let key = keys[usize::from(key) % keys.len()];
            let key = key.rsplit_once('/').map_or(key, |(_, key)| key);
            let prefix = if own { "xdp-ingress.io" } else { "nginx.ingress.kubernetes.io" };
            (format!("{prefix}/{key}"), value.to_owned())
        })
        .collect();
    let path: Arc<Path> = Path::new("fuzz.yaml").into();
    let mut cluster = Cluster::default();
    for object in parse(&path, OBJECTS).objects {
        let object = match object {
            Object::Ingress(mut ingress) if ingress.metadata.name.as_deref() == Some("fuzzed") => {
                Arc::make_mut(&mut ingress).metadata.annotations = Some(annotations.clone());
                Object::Ingress(ingress)
            }
            other => other,
        };
        cluster.apply(Change::Apply { object, origin: Origin::Api });
    }
    let translation = Translator::new(Options::default()).translate(&cluster);
    let (snapshot, _problems) = Snapshot::compile(None, &translation.table, |_| Some(HostId(1)));
    let found = snapshot.routes.find("plain.test", "/", &RequestHead::bare());
    assert!(
        matches!(found.matched, Matched::Route(route) if matches!(route.target, RouteTarget::Forward(_))),
        "{annotations:?}"
    );
});
