//! Generated Ingresses or HTTPRoutes, each with its own host, Service and EndpointSlice, and the path of their changes to the
//! snapshot, for benches with many hosts. No API server is contacted, and nothing is served.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use ingress_control::{
    Origin,
    change::{Change, Object},
    cluster::Cluster,
    source::manifests::parse,
    translate::{Options, Translator},
};
use ingress_model::{HostId, RouteTable};
use ingress_proxy::Snapshot;

/// Number of different certificates, each valid for all hosts.
pub(crate) const CERTIFICATES: usize = 4;

const CLASS: &str = "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: xdp}\nspec: {controller: xdp-ingress.io/controller}\n";

const GATEWAY_CLASS: &str = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: xdp-ingress}\nspec: {controllerName: xdp-ingress.io/gateway-controller}\n";
const GATEWAY: &str = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {namespace: bench, name: web, creationTimestamp: 2026-01-01T00:00:00Z}\n\
                       spec: {gatewayClassName: xdp-ingress, listeners: [{name: http, port: 80, protocol: HTTP}]}\n";

/// The control path without its source, and its results.
pub(crate) struct Pipeline {
    cluster: Cluster,
    translator: Translator,
    table: RouteTable,
    snapshot: Option<Arc<Snapshot>>,
    hosts: u32,
}

/// Durations of the two steps from changes to a snapshot.
pub(crate) struct Times {
    pub(crate) translated: Duration,
    pub(crate) compiled: Duration,
}

impl Pipeline {
    /// Creates the pipeline of an empty cluster.
    pub(crate) fn new() -> Self {
        let translator = Translator::new(Options::default());
        Self { cluster: Cluster::default(), translator, table: RouteTable::default(), snapshot: None, hosts: 0 }
    }

    /// Applies `changes`, which must affect served objects.
    pub(crate) fn step(&mut self, changes: Vec<Change>) -> Times {
        let began = Instant::now();
        for change in changes {
            self.cluster.apply(change);
        }
        let translation = self.translator.translate(&self.cluster);
        let translated = began.elapsed();
        let began = Instant::now();
        let (snapshot, problems) = Snapshot::compile(self.snapshot.as_deref(), &translation.table, |_| {
            self.hosts += 1;
            Some(HostId(self.hosts))
        });
        self.snapshot = Some(Arc::new(snapshot));
        let compiled = began.elapsed();
        assert!(problems.is_empty(), "{problems:?}");
        assert!(translation.table != self.table, "nothing has changed");
        self.table = translation.table;
        Times { translated, compiled }
    }
}

/// Returns all objects for `count` HTTPRoutes of one Gateway, without TLS.
pub(crate) fn routes(count: usize) -> Vec<Change> {
    let mut changes = vec![apply(GATEWAY_CLASS), apply(GATEWAY)];
    for number in 0..count {
        changes.extend(route_texts(number).iter().map(|text| apply(text)));
    }
    changes
}

/// Returns the Service, the EndpointSlice and the HTTPRoute with this number.
pub(crate) fn route_texts(number: usize) -> [String; 3] {
    let [service, slice, _] = texts(number, None);
    [service, slice, route(number)]
}

pub(crate) fn route(number: usize) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{namespace: bench, name: i{number}, creationTimestamp: 2026-01-01T00:00:00Z}}\n\
         spec:\n  parentRefs: [{{name: web}}]\n  hostnames: [h{number}.bench.test]\n  rules:\n  - matches: [{{path: {{type: PathPrefix, value: /}}}}]\n    \
         backendRefs: [{{name: s{number}, port: 80}}]\n"
    )
}

/// Returns all objects for `count` Ingresses. `certificate` selects the certificate of each Ingress with TLS.
pub(crate) fn objects(count: usize, certificate: impl Fn(usize) -> Option<usize>) -> Vec<Change> {
    let mut changes = vec![apply(CLASS)];
    for number in 0..count {
        changes.extend(texts(number, certificate(number)).iter().map(|text| apply(text)));
    }
    changes.extend((0..CERTIFICATES).map(secret));
    changes
}

/// Gives TLS to one Ingress in ten, with each certificate in turn.
pub(crate) fn one_in_ten(number: usize) -> Option<usize> {
    number.is_multiple_of(10).then_some(number / 10 % CERTIFICATES)
}

/// Returns the Service, the EndpointSlice and the Ingress with this number.
pub(crate) fn texts(number: usize, certificate: Option<usize>) -> [String; 3] {
    let service = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{namespace: bench, name: s{number}}}\nspec: {{ports: [{{port: 80}}]}}\n"
    );
    [service, slice(number, 1), ingress(number, certificate)]
}

/// Returns a slice of two endpoints with different addresses for each of 64 versions.
pub(crate) fn slice(number: usize, version: usize) -> String {
    let (high, low) = (number >> 8 & 255, number & 255);
    let endpoints =
        [1, 2].map(|pod| format!("{{addresses: [10.{}.{high}.{low}]}}, ", pod * 64 + version % 64)).concat();
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{namespace: bench, name: s{number}-a, labels: {{kubernetes.io/service-name: s{number}}}}}\n\
         addressType: IPv4\nports: [{{port: 8080}}]\nendpoints: [{endpoints}]\n"
    )
}

pub(crate) fn ingress(number: usize, certificate: Option<usize>) -> String {
    let tls = certificate
        .map(|certificate| format!("  tls: [{{hosts: [h{number}.bench.test], secretName: c{certificate}}}]\n"));
    let tls = tls.unwrap_or_default();
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{namespace: bench, name: i{number}, creationTimestamp: 2026-01-01T00:00:00Z}}\n\
         spec:\n  ingressClassName: xdp\n{tls}  rules:\n  - host: h{number}.bench.test\n    http: {{paths: [{{path: /, pathType: Prefix, backend: {{service: {{name: s{number}, port: {{number: 80}}}}}}}}]}}\n"
    )
}

/// Returns a Secret with a new certificate under this number.
pub(crate) fn secret(number: usize) -> Change {
    let made = rcgen::generate_simple_self_signed(vec!["*.bench.test".to_owned()]).expect("a certificate");
    let indent = |pem: &str| pem.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let (certificate, key) = (indent(&made.cert.pem()), indent(&made.signing_key.serialize_pem()));
    apply(&format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{namespace: bench, name: c{number}}}\nstringData:\n  tls.crt: |\n{certificate}  tls.key: |\n{key}"
    ))
}

pub(crate) fn apply(text: &str) -> Change {
    Change::Apply { object: object(text), origin: Origin::Api }
}

pub(crate) fn object(text: &str) -> Object {
    let path: Arc<Path> = Path::new("bench.yaml").into();
    let parsed = parse(&path, text);
    assert!(parsed.remarks.is_empty(), "{:?}", parsed.remarks);
    parsed.objects.into_iter().next().expect("an object")
}
