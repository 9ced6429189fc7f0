//! Writes Gateway API in place of Ingresses: a Gateway, ListenerSets, HTTPRoutes and annotations, with a verdict on each
//! annotation and host.
//!
//! ```text
//! Ingresses ─ translate ─> hosts ─ host, rule ─> plans ─ write ─> objects ─ translate ─> listeners
//!                            └───────────────── compare, path by path ──────────────────────┘
//! ```
//!
//! A host is written as a whole or not at all: without one of its rules, requests would fall to another rule of the
//! host. The rest stays with the Ingresses, which serve beside the routes. The objects are translated again,
//! and a host whose routes would protect less or not serve a path is left out, too. Settings, Services and
//! certificates are not written.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
    sync::Arc,
};

use serde_json::{Value, json};

use crate::{
    change::{Change, ObjectName},
    cluster::Cluster,
    outcome::Origin,
    source::manifests::parse,
    translate::{GatewayApi, Options, owns, translate},
};
use annotations::IngressAnnotations;
use compare::{Difference, compare};
use host::{HostPlan, plan};
use ingress_model::{HostPattern, RouteTable};

mod annotations;
mod compare;
mod host;
mod rule;
mod write;

/// Objects of Gateway API in place of Ingresses.
#[derive(Debug, Default)]
pub struct GatewayMigration {
    /// Objects as JSON: the Gateway first, then ListenerSets and HTTPRoutes.
    pub objects: Vec<Value>,
    /// Verdicts on annotations by Ingress, then on hosts.
    pub verdicts: Vec<RowVerdict>,
}

/// The verdict on an annotation or on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowVerdict {
    /// `Ingress namespace/name`, or `host name`.
    pub subject: String,
    /// The annotation with its whole name, the path, or empty for all of the subject.
    pub row: String,
    pub expressed: Expressed,
}

/// The extent to which Gateway API has words for something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expressed {
    /// The routes have the same effect, in these words.
    Fully(String),
    /// The routes have its effect, with this difference.
    Differs(String),
    /// Gateway API has no words for it. `instead` is a remedy, or empty.
    Not { because: String, instead: String },
}

/// Class for the comparison alone.
const CLASS: &str = "xdp-ingress";

/// Writes the Ingresses of `cluster` that `options` select as objects of Gateway API, with `gateway` as the name of the
/// Gateway. It changes nothing.
#[must_use]
pub fn to_gateway(cluster: &Cluster, options: &Options, gateway: &ObjectName) -> GatewayMigration {
    let table = translate(cluster, options).table;
    let mut annotations = BTreeMap::new();
    for (name, stored) in cluster.ingresses.iter().filter(|(_, stored)| owns(cluster, options, &stored.object)) {
        let read = annotations::read(name, &stored.object, &options.annotations_prefix);
        annotations.insert(name.clone(), read);
    }
    let certificates = certificates(cluster, &annotations);
    let (mut plans, mut left) = (Vec::new(), BTreeMap::new());
    for (pattern, routes) in table.hosts.iter() {
        match plan(pattern, routes, certificate(pattern, &certificates), &annotations) {
            Ok(plan) => plans.push(plan),
            Err(why) => drop(left.insert(pattern.clone(), why)),
        }
    }
    let (objects, differences) = loop {
        leave_broader(&mut plans, &mut left);
        let objects = write::write(gateway, &plans, &annotations);
        let differences = differences(cluster, options, &table, gateway, &plans, &objects);
        let is_unsafe = |(_, found): &(&HostPattern, &Vec<Difference>)| found.iter().any(|found| found.is_unsafe);
        let refused: BTreeMap<HostPattern, String> = differences
            .iter()
            .filter(is_unsafe)
            .map(|(pattern, found)| {
                let first = found.iter().find(|found| found.is_unsafe);
                let text = first.map(|Difference { path, text, .. }| format!("`{path}`: {text}")).unwrap_or_default();
                (pattern.clone(), text)
            })
            .collect();
        if refused.is_empty() {
            break (objects, differences);
        }
        plans.retain(|plan| !refused.contains_key(&plan.pattern));
        left.extend(refused);
    };
    let objects = if plans.is_empty() { Vec::new() } else { objects };
    let mut verdicts: Vec<_> = annotations.into_values().flat_map(|annotations| annotations.verdicts).collect();
    verdicts.extend(plans.iter().flat_map(|plan| of_host(plan, differences.get(&plan.pattern))));
    verdicts.extend(left.into_iter().map(|(pattern, because)| RowVerdict {
        subject: format!("host {pattern}"),
        row: String::new(),
        expressed: Expressed::Not { because, instead: "the host stays with the Ingresses".to_owned() },
    }));
    GatewayMigration { objects, verdicts }
}

// === impl RowVerdict ===

/// Writes a line such as `differs  host *.a.test: the name stands for any number of labels, and not for one alone`.
impl fmt::Display for RowVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, row, expressed } = self;
        let word = match expressed {
            Expressed::Fully(_) => "fully   ",
            Expressed::Differs(_) => "differs ",
            Expressed::Not { .. } => "left out",
        };
        write!(f, "{word} {subject}")?;
        if !row.is_empty() {
            write!(f, ", {row}")?;
        }
        match expressed {
            Expressed::Fully(how) | Expressed::Differs(how) => write!(f, ": {how}"),
            Expressed::Not { because, instead } if instead.is_empty() => write!(f, ": {because}"),
            Expressed::Not { because, instead } => write!(f, ": {because}; {instead}"),
        }
    }
}

/// Returns the Secrets that Ingresses name for hosts; of several, that of the oldest.
fn certificates(
    cluster: &Cluster,
    ours: &BTreeMap<ObjectName, IngressAnnotations>,
) -> BTreeMap<HostPattern, ObjectName> {
    let mut found = BTreeMap::new();
    let mut ingresses: Vec<_> = cluster.ingresses.iter().filter(|(name, _)| ours.contains_key(*name)).collect();
    ingresses.sort_by_key(|(name, stored)| {
        let created = stored.object.metadata.creation_timestamp.clone();
        (created.is_none(), created, (*name).clone())
    });
    for (name, stored) in ingresses {
        for tls in stored.object.spec.iter().flat_map(|spec| spec.tls.iter().flatten()) {
            let Some(secret) = tls.secret_name.as_deref().filter(|secret| !secret.is_empty()) else { continue };
            for host in tls.hosts.iter().flatten().filter_map(|host| HostPattern::parse(host).ok()) {
                found.entry(host).or_insert_with(|| ObjectName::new(&name.namespace, secret));
            }
        }
    }
    found
}

/// Returns the certificate of a host: its own, or that of a wildcard above it.
fn certificate(pattern: &HostPattern, all: &BTreeMap<HostPattern, ObjectName>) -> Option<ObjectName> {
    let above = match pattern {
        HostPattern::Exact(host) => {
            all.iter().find(|(other, _)| matches!(other, HostPattern::Wildcard(_)) && other.matches(host.as_str()))
        }
        _ => None,
    };
    all.get(pattern).or_else(|| above.map(|(_, name)| name)).cloned()
}

/// Leaves out hosts that would take requests of narrower ones that are left.
fn leave_broader(plans: &mut Vec<HostPlan>, left: &mut BTreeMap<HostPattern, String>) {
    loop {
        let taken = plans.iter().find_map(|plan| {
            let narrower = left.keys().find(|narrower| covers(&plan.pattern, narrower))?;
            let why = format!("its routes would take the requests of `{narrower}`, which stays with the Ingresses");
            Some((plan.pattern.clone(), why))
        });
        let Some((pattern, why)) = taken else { return };
        plans.retain(|plan| plan.pattern != pattern);
        left.insert(pattern, why);
    }
}

/// Returns `true` if a listener for `broad` takes requests for hosts of `narrow`.
fn covers(broad: &HostPattern, narrow: &HostPattern) -> bool {
    match (broad, narrow) {
        (HostPattern::Any, _) => true,
        (HostPattern::Wildcard(base), HostPattern::Exact(host) | HostPattern::Wildcard(host)) => {
            host.as_str().strip_suffix(base.as_str()).is_some_and(|rest| rest.ends_with('.'))
        }
        _ => false,
    }
}

/// Translates the objects beside the Ingresses, and compares each host.
fn differences(
    cluster: &Cluster,
    options: &Options,
    table: &RouteTable,
    gateway: &ObjectName,
    plans: &[HostPlan],
    objects: &[Value],
) -> BTreeMap<HostPattern, Vec<Difference>> {
    let class = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": CLASS},
        "spec": {"controllerName": crate::gateway::CONTROLLER_NAME}});
    let path: Arc<Path> = Path::new("gateway.json").into();
    let mut cluster = cluster.clone();
    for object in objects.iter().chain([&class]) {
        for object in parse(&path, &object.to_string()).objects {
            cluster.apply(Change::Apply { object, origin: Origin::Api });
        }
    }
    let options = Options { gateway_api: GatewayApi::Serve, ..options.clone() };
    let written = translate(&cluster, &options).table;
    let mut all = BTreeMap::new();
    for plan in plans {
        let Some(before) = table.hosts.get(&plan.pattern) else { continue };
        let known: BTreeSet<_> = plan.differs.iter().map(|(path, _)| path.as_str()).collect();
        let written_as =
            |path: &str| plan.parts.iter().flat_map(|part| &part.paths).any(|written| written["value"] == *path);
        let is_known =
            |path: &str| known.contains(path) || !known.is_empty() && written_as(path.trim_start_matches("= "));
        let mut found = Vec::new();
        for (scheme, is_secure) in [("http", false), ("https", true)] {
            if is_secure && (plan.certificate.is_none() || plan.pattern == HostPattern::Any) {
                continue;
            }
            let name = write::listener_name(gateway, plan, scheme, objects);
            let listener = name.and_then(|name| written.listeners.get(&name));
            let routes = listener.and_then(|listener| {
                listener.hosts.iter().find(|(pattern, _)| pattern.to_string() == plan.pattern.to_string())
            });
            found.extend(compare(before, routes.map(|(_, routes)| &**routes), is_secure, is_known));
        }
        all.insert(plan.pattern.clone(), found);
    }
    all
}

/// Returns the verdict on a host that is written, and on its paths.
fn of_host(plan: &HostPlan, differences: Option<&Vec<Difference>>) -> Vec<RowVerdict> {
    let subject = format!("host {}", plan.pattern);
    let differs =
        |row: String, text: String| RowVerdict { subject: subject.clone(), row, expressed: Expressed::Differs(text) };
    let mut verdicts = Vec::new();
    if matches!(plan.pattern, HostPattern::Wildcard(_)) {
        let text = "the name stands for any number of labels, and not for one alone";
        verdicts.push(differs(String::new(), text.to_owned()));
    }
    if plan.certificate.is_none() || plan.pattern == HostPattern::Any {
        let text = "no listener has a certificate for HTTPS, so HTTPS stays with the Ingresses";
        verdicts.push(differs(String::new(), text.to_owned()));
    }
    verdicts.extend(plan.differs.iter().map(|(path, how)| differs(format!("path `{path}`"), (*how).to_owned())));
    for Difference { path, text, is_unsafe: _ } in differences.into_iter().flatten() {
        verdicts.push(differs(format!("path `{path}`"), text.clone()));
    }
    if verdicts.is_empty() {
        verdicts.push(RowVerdict { subject, row: String::new(), expressed: Expressed::Fully("as routes".to_owned()) });
    }
    verdicts
}
