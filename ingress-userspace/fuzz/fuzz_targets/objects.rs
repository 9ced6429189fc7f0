//! Objects from an API server, one change after another, with valid field names and hostile values. The target checks
//! that nothing panics, that an incremental update equals a fresh translation, and that the output is at most a
//! multiple of the input.
#![no_main]

use std::{collections::BTreeMap, path::Path, sync::Arc};

use arbitrary::{Arbitrary, Result, Unstructured};
use ingress_control::{
    Origin,
    change::{Change, Object},
    cluster::Cluster,
    source::manifests::parse,
    translate::{Options, Translator},
};
use ingress_model::HostId;
use ingress_proxy::Snapshot;
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value, json};

/// Maximum number of changes per run.
const MAX_CHANGES: usize = 12;
/// Maximum number of output bytes per input byte: messages, which name objects and limits, and the table, which has a
/// policy per rule.
const MAX_GROWTH: usize = 256;
const NAMESPACES: [&str; 2] = ["a", "b"];
const NAMES: [&str; 3] = ["x", "y", "z"];
const HOSTS: [&str; 8] = ["a.test", "b.test", "*.test", "*.a.test", "A.test.", "", "*", "192.0.2.1"];
const PATHS: [&str; 9] = ["/", "/a", "/a/", "/a/b", "/a/[0-9]+", "/%61", "a", "", "/../a"];
const TYPES: [&str; 4] = ["Exact", "Prefix", "ImplementationSpecific", "Regex"];
const PORTS: [i64; 6] = [80, 443, 8080, 0, 65_536, -1];
const PORT_NAMES: [&str; 3] = ["http", "https", "x"];
const ADDRESSES: [&str; 8] =
    ["10.0.0.1", "10.0.0.2", "2001:db8::1", "127.0.0.1", "169.254.169.254", "fe80::1", "pods.test", "10.0.0.1 "];
const KEYS: [&str; 10] = [
    "xdp-ingress.io/use-regex",
    "xdp-ingress.io/rewrite-target",
    "xdp-ingress.io/server-alias",
    "xdp-ingress.io/ssl-passthrough",
    "xdp-ingress.io/canary",
    "xdp-ingress.io/canary-weight",
    "xdp-ingress.io/auth-tls-secret",
    "xdp-ingress.io/backend-protocol",
    "xdp-ingress.io/default-backend",
    "kubernetes.io/ingress.class",
];
const VALUES: [&str; 9] = ["true", "false", "a/x", "50", "/$1", "a.test,b.test", "GRPC", "xdp", "x"];

/// Objects that exist before the first change.
const WHOLE: &str = r#"{"kind": "List", "items": [
    {"apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": {"name": "xdp"},
        "spec": {"controller": "xdp-ingress.io/controller"}},
    {"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "a", "name": "x"}, "spec": {"ports": [{"port": 80}]}},
    {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"namespace": "a", "name": "x", "labels": {"kubernetes.io/service-name": "x"}},
        "ports": [{"port": 8080}], "endpoints": [{"addresses": ["10.0.0.1"]}]},
    {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"namespace": "a", "name": "x", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"ingressClassName": "xdp", "rules": [{"host": "a.test", "http": {"paths": [
            {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "x", "port": {"number": 80}}}}]}}]}}
]}"#;

/// Changes as a script; each line contains an object in JSON or removes one.
#[derive(Debug)]
struct Script(Vec<Line>);

#[derive(Debug)]
enum Line {
    Apply(Value),
    Remove(usize),
}

type Source<'a, 'b> = &'a mut Unstructured<'b>;

impl<'b> Arbitrary<'b> for Script {
    fn arbitrary(u: Source<'_, 'b>) -> Result<Self> {
        let mut lines = Vec::new();
        while !u.is_empty() && lines.len() < MAX_CHANGES {
            lines.push(if one_in(u, 6)? { Line::Remove(u.arbitrary()?) } else { Line::Apply(object(u)?) });
        }
        Ok(Self(lines))
    }
}

// === parts of objects ===

/// Returns `true` once in `of` calls, but never at the end of the input: the remaining values are common ones.
fn one_in(u: Source<'_, '_>, of: u8) -> Result<bool> {
    Ok(u.int_in_range(1..=of)? == of)
}

/// Returns one of `from`, or occasionally any text.
fn text(u: Source<'_, '_>, from: &[&str]) -> Result<Value> {
    Ok(if one_in(u, 200)? { json!(u.arbitrary::<String>()?) } else { json!(u.choose(from)?) })
}

/// Sets a field, but occasionally omits it or uses another type.
fn field(u: Source<'_, '_>, of: &mut Map<String, Value>, name: &str, value: Value) -> Result<()> {
    let value = match u.int_in_range(0..=255)? {
        254 => return Ok(()),
        255 => junk(u)?,
        _ => value,
    };
    of.insert(name.to_owned(), value);
    Ok(())
}

fn junk(u: Source<'_, '_>) -> Result<Value> {
    Ok(match u.int_in_range(0..=5)? {
        0 => Value::Null,
        1 => json!(u.arbitrary::<i64>()?),
        2 => json!(u.arbitrary::<String>()?),
        3 => json!([]),
        4 => json!({}),
        _ => json!([{}]),
    })
}

/// Returns an array with up to `max` elements.
fn some(u: Source<'_, '_>, max: usize, mut each: impl FnMut(Source<'_, '_>) -> Result<Value>) -> Result<Value> {
    let count = u.int_in_range(0..=max)?;
    (0..count).map(|_| each(u)).collect::<Result<Vec<_>>>().map(Value::Array)
}

fn record(u: Source<'_, '_>, fields: Vec<(&str, Value)>) -> Result<Value> {
    let mut record = Map::new();
    for (name, value) in fields {
        field(u, &mut record, name, value)?;
    }
    Ok(Value::Object(record))
}

fn metadata(u: Source<'_, '_>, is_namespaced: bool) -> Result<Value> {
    let mut annotations = BTreeMap::new();
    for _ in 0..u.int_in_range(0..=3)? {
        annotations.insert(*u.choose(&KEYS)?, text(u, &VALUES)?);
    }
    let labels = json!({"kubernetes.io/service-name": text(u, &NAMES)?});
    let second = u.int_in_range(0..=9)?;
    let created = json!(format!("2026-01-01T00:00:0{second}Z"));
    let name = json!(u.choose(&NAMES)?);
    let uid = json!(u.int_in_range(0..=3)?.to_string());
    let mut fields =
        vec![("annotations", json!(annotations)), ("labels", labels), ("creationTimestamp", created), ("uid", uid)];
    if is_namespaced {
        fields.push(("namespace", json!(u.choose(&NAMESPACES)?)));
    }
    let mut record = record(u, fields)?;
    record["name"] = name;
    Ok(record)
}

fn port(u: Source<'_, '_>) -> Result<Value> {
    let (number, name) = (json!(u.choose(&PORTS)?), text(u, &PORT_NAMES)?);
    Ok(if u.arbitrary()? { json!({"number": number}) } else { json!({"name": name}) })
}

fn backend(u: Source<'_, '_>) -> Result<Value> {
    let (name, port) = (text(u, &NAMES)?, port(u)?);
    let service = record(u, vec![("name", name), ("port", port)])?;
    record(u, vec![("service", service)])
}

fn ingress(u: Source<'_, '_>) -> Result<Value> {
    let rules = some(u, 3, |u| {
        let paths = some(u, 4, |u| {
            let (path, kind, backend) = (text(u, &PATHS)?, text(u, &TYPES)?, backend(u)?);
            record(u, vec![("path", path), ("pathType", kind), ("backend", backend)])
        })?;
        let host = text(u, &HOSTS)?;
        record(u, vec![("host", host), ("http", json!({"paths": paths}))])
    })?;
    let tls = some(u, 2, |u| {
        let (hosts, secret) = (some(u, 2, |u| text(u, &HOSTS))?, text(u, &NAMES)?);
        record(u, vec![("hosts", hosts), ("secretName", secret)])
    })?;
    let class = text(u, &["xdp", "other"])?;
    let mut fields = vec![("rules", rules), ("tls", tls), ("ingressClassName", class)];
    if one_in(u, 4)? {
        fields.push(("defaultBackend", backend(u)?));
    }
    record(u, fields)
}

fn slice(u: Source<'_, '_>, object: &mut Map<String, Value>) -> Result<()> {
    let endpoints = some(u, 4, |u| {
        let addresses = some(u, 2, |u| text(u, &ADDRESSES))?;
        let conditions = json!({"ready": u.arbitrary::<Option<bool>>()?, "serving": u.arbitrary::<Option<bool>>()?,
            "terminating": u.arbitrary::<Option<bool>>()?});
        let hints = json!({"forZones": [{"name": text(u, &NAMES)?}], "forNodes": [{"name": text(u, &NAMES)?}]});
        let (node, zone) = (text(u, &NAMES)?, text(u, &NAMES)?);
        record(
            u,
            vec![
                ("addresses", addresses),
                ("conditions", conditions),
                ("hints", hints),
                ("nodeName", node),
                ("zone", zone),
            ],
        )
    })?;
    let ports = some(u, 3, |u| {
        let (name, port, protocol) =
            (text(u, &PORT_NAMES)?, json!(u.choose(&PORTS)?), text(u, &["TCP", "UDP", "SCTP"])?);
        let app = text(u, &["http", "https", "kubernetes.io/h2c", "kubernetes.io/ws", "grpc"])?;
        record(u, vec![("name", name), ("port", port), ("protocol", protocol), ("appProtocol", app)])
    })?;
    let family = text(u, &["IPv4", "IPv6", "FQDN"])?;
    for (name, value) in [("endpoints", endpoints), ("ports", ports), ("addressType", family)] {
        field(u, object, name, value)?;
    }
    Ok(())
}

fn service(u: Source<'_, '_>) -> Result<Value> {
    let ports = some(u, 3, |u| {
        let (name, port) = (text(u, &PORT_NAMES)?, json!(u.choose(&PORTS)?));
        let target = if u.arbitrary()? { json!(u.choose(&PORTS)?) } else { text(u, &PORT_NAMES)? };
        record(u, vec![("name", name), ("port", port), ("targetPort", target)])
    })?;
    let kind = text(u, &["ClusterIP", "ExternalName", "LoadBalancer"])?;
    let (ip, name) = (
        text(u, &["10.96.0.1", "None", ""])?,
        text(u, &["pods.test", "localhost", "10.0.0.1", "x.a.svc.cluster.local"])?,
    );
    record(u, vec![("ports", ports), ("type", kind), ("clusterIP", ip), ("externalName", name)])
}

fn object(u: Source<'_, '_>) -> Result<Value> {
    let kinds = [
        "Ingress",
        "Ingress",
        "EndpointSlice",
        "EndpointSlice",
        "Service",
        "Namespace",
        "IngressClass",
        "ConfigMap",
        "Secret",
    ];
    let kind = *u.choose(&kinds)?;
    let version = match kind {
        "Ingress" | "IngressClass" => "networking.k8s.io/v1",
        "EndpointSlice" => "discovery.k8s.io/v1",
        _ => "v1",
    };
    let metadata = metadata(u, !matches!(kind, "Namespace" | "IngressClass"))?;
    let mut object = Map::from_iter([
        ("apiVersion".to_owned(), json!(version)),
        ("kind".to_owned(), json!(kind)),
        ("metadata".to_owned(), metadata),
    ]);
    match kind {
        "Ingress" => object.extend([("spec".to_owned(), ingress(u)?)]),
        "EndpointSlice" => slice(u, &mut object)?,
        "Service" => object.extend([("spec".to_owned(), service(u)?)]),
        "IngressClass" => {
            object["metadata"]["name"] = text(u, &["xdp", "other"])?;
            object.insert("spec".to_owned(), json!({"controller": text(u, &["xdp-ingress.io/controller", "x"])?}));
        }
        "Namespace" => {
            object["metadata"]["name"] = json!(u.choose(&NAMESPACES)?);
            if u.arbitrary()? {
                object["metadata"]["deletionTimestamp"] =
                    json!(format!("2026-01-01T00:00:0{}Z", u.int_in_range(0..=9)?));
            }
        }
        _ => {
            let data = json!({"ca.crt": text(u, &VALUES)?, "auth": text(u, &VALUES)?, "host-sharing": text(u, &["open", "owner", "paths"])?});
            object.insert(if kind == "Secret" { "stringData" } else { "data" }.to_owned(), data);
        }
    }
    Ok(Value::Object(object))
}

// === results ===

fn check(cluster: &Cluster, kept: &mut Translator, read: usize) {
    let translation = kept.translate(cluster);
    let anew = Translator::new(Options::default()).translate(cluster);
    assert_eq!(translation.table, anew.table);
    assert_eq!(translation.outcomes, anew.outcomes);
    assert_eq!(translation.served, anew.served);
    let said: usize = translation.outcomes.keys().map(|outcome| outcome.message.len()).sum();
    assert!(said <= read * MAX_GROWTH, "{said} bytes are said of {read}");
    let rules: usize = translation.table.hosts.values().map(|host| host.rules.len()).sum();
    let endpoints: usize = translation.table.upstreams.values().map(|upstream| upstream.endpoints.len()).sum();
    assert!(
        (rules + endpoints) * 8 <= read * MAX_GROWTH,
        "{rules} rules and {endpoints} endpoints are made of {read} bytes"
    );
}

fuzz_target!(|script: Script| {
    let path: Arc<Path> = Path::new("fuzz.json").into();
    let (mut cluster, mut kept) = (Cluster::default(), Translator::new(Options::default()));
    let mut told: Vec<Object> = parse(&path, WHOLE).objects;
    for object in &told {
        cluster.apply(Change::Apply { object: object.clone(), origin: Origin::Api });
    }
    assert_eq!(kept.translate(&cluster).table.hosts.len(), 1);
    let mut read = WHOLE.len();
    let mut snapshot = None;
    for line in script.0 {
        match line {
            Line::Apply(object) => {
                let text = object.to_string();
                read += text.len();
                let Some(object) = parse(&path, &text).objects.pop() else { continue };
                told.push(object.clone());
                cluster.apply(Change::Apply { object, origin: Origin::Api });
            }
            Line::Remove(index) => {
                cluster.apply(Change::Remove(told[index % told.len()].id()));
            }
        }
        let table = kept.translate(&cluster).table;
        snapshot = Some(Snapshot::compile(snapshot.as_ref(), &table, |_| Some(HostId(1))).0);
    }
    check(&cluster, &mut kept, read);
});
