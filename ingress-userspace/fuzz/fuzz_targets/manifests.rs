//! Manifests from hostile text, translated and compiled to a snapshot. The target checks that nothing panics, and that
//! an incremental update equals a fresh translation, in any order of objects.
#![no_main]

use std::{path::Path, sync::Arc};

use arbitrary::Arbitrary;
use ingress_control::{
    Origin,
    change::Change,
    cluster::Cluster,
    source::manifests::parse,
    translate::{Options, Translator},
};
use ingress_model::HostId;
use ingress_proxy::Snapshot;
use libfuzzer_sys::fuzz_target;

/// Complete objects as a base for mutations, because a fuzzer would find them only slowly.
const OBJECTS: &[&str] = &[
    "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: xdp}\nspec: {controller: xdp-ingress.io/controller}\n",
    "apiVersion: v1\nkind: Service\nmetadata: {namespace: n, name: s}\nspec: {ports: [{port: 80}]}\n",
    "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {namespace: n, name: s-a, labels: {kubernetes.io/service-name: s}}\n\
     addressType: IPv4\nports: [{port: 8080}]\nendpoints: [{addresses: [10.0.0.1]}]\n",
    "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {namespace: n, name: i}\nspec:\n  ingressClassName: xdp\n  rules:\n\
     \x20 - host: a.test\n    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: s, port: {number: 80}}}}]}\n",
    "apiVersion: v1\nkind: Secret\nmetadata: {namespace: n, name: c}\ntype: kubernetes.io/tls\nstringData: {tls.crt: x, tls.key: y}\n",
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: xdp-ingress, name: xdp-ingress}\ndata: {ssl-redirect: 'false'}\n",
];

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// Index of an object, offset and length of the replaced part, and its replacement.
    broken: Vec<(u8, u16, u8, &'a str)>,
    text: &'a str,
}

fuzz_target!(|input: Input<'_>| {
    let paths: [Arc<Path>; 2] = ["fuzz.yaml", "fuzz.json"].map(|name| Path::new(name).into());
    let mut texts = vec![input.text.to_owned()];
    for (object, at, length, by) in input.broken.iter().take(8) {
        let object = OBJECTS[usize::from(*object) % OBJECTS.len()];
        let at = usize::from(*at) % (object.len() + 1);
        let end = (at + usize::from(*length)).min(object.len());
        texts.push(format!("{}{by}{}", &object[..at], &object[end..]));
    }
    let whole = OBJECTS.iter().map(|text| (*text).to_owned());
    let objects: Vec<_> = whole.chain(texts).flat_map(|text| paths.each_ref().map(|path| parse(path, &text).objects)).flatten().collect();
    let change = |object: &_| Change::Apply { object: Clone::clone(object), origin: Origin::Api };
    let (mut cluster, mut kept) = (Cluster::default(), Translator::new(Options::default()));
    let mut snapshot = None;
    for object in &objects {
        cluster.apply(change(object));
        let table = kept.translate(&cluster).table;
        snapshot = Some(Snapshot::compile(snapshot.as_ref(), &table, |_| Some(HostId(1))).0);
    }
    let anew = Translator::new(Options::default()).translate(&cluster);
    assert_eq!(kept.translate(&cluster).table, anew.table);
});
