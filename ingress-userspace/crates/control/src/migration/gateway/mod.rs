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
    translate::{GatewayApi, Options, translate},
};
use compare::{Difference, compare};
use host::{HostPlan, plan};
use ingress_model::{HostPattern, RouteTable};
use ingresses::Ingresses;

mod annotations;
mod compare;
mod guard;
mod host;
mod ingresses;
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
/// Gateway. With `namespace`, hosts of other namespaces are left out. It changes nothing.
#[must_use]
pub fn to_gateway(
    cluster: &Cluster,
    options: &Options,
    gateway: &ObjectName,
    namespace: Option<&str>,
) -> GatewayMigration {
    let translation = translate(cluster, options);
    let ingresses = Ingresses::of(cluster, options, &translation, namespace);
    let table = translation.table;
    let (mut plans, mut left) = (Vec::new(), BTreeMap::new());
    let mut elsewhere: BTreeSet<HostPattern> = ingresses.foreign.keys().cloned().collect();
    for (pattern, routes) in table.hosts.iter() {
        if ingresses.is_unwanted(routes) {
            elsewhere.insert(pattern.clone());
            continue;
        }
        match plan(pattern, routes, &ingresses) {
            Ok(plan) => plans.push(plan),
            Err(why) => drop(left.insert(pattern.clone(), why)),
        }
    }
    let (objects, differences) = loop {
        leave_broader(&mut plans, &mut left, &elsewhere);
        let objects = write::write(gateway, &plans, &ingresses.annotations);
        let differences = differences(cluster, options, &table, gateway, &plans, &objects);
        let is_unsafe = |(_, found): &(&HostPattern, &Vec<Difference>)| found.iter().any(|found| found.is_unsafe);
        let refused: BTreeMap<HostPattern, String> = differences
            .iter()
            .filter(is_unsafe)
            .map(|(pattern, found)| {
                let first = found.iter().find(|found| found.is_unsafe);
                (pattern.clone(), first.map(|first| because(first, &ingresses)).unwrap_or_default())
            })
            .collect();
        if refused.is_empty() {
            break (objects, differences);
        }
        plans.retain(|plan| !refused.contains_key(&plan.pattern));
        left.extend(refused);
    };
    let objects = if plans.is_empty() { Vec::new() } else { objects };
    let mut verdicts = Vec::new();
    for plan in &plans {
        let mut others = Vec::new();
        others.extend(ingresses.foreign.get(&plan.pattern).map(|other| {
            format!(
                "Ingress `{other}` of another class has rules for it; where one process serves both, routes go first"
            )
        }));
        if table.default.is_some() && !plan.words.contains_key("/") {
            others.push("requests that no path matches get 404, and not the default backend".to_owned());
        }
        verdicts.extend(of_host(plan, differences.get(&plan.pattern), others));
    }
    verdicts.extend(left.into_iter().map(|(pattern, because)| RowVerdict {
        subject: format!("host {pattern}"),
        row: String::new(),
        expressed: Expressed::Not { because, instead: "the host stays with the Ingresses".to_owned() },
    }));
    let wanted = ingresses.annotations.iter().filter(|(name, _)| ingresses.is_wanted(&name.namespace));
    let verdicts = wanted.flat_map(|(_, read)| read.verdicts.iter().cloned()).chain(verdicts).collect();
    GatewayMigration { objects, verdicts }
}

/// Returns why a host with a difference stays.
fn because(Difference { path, text, guards, owner, .. }: &Difference, ingresses: &Ingresses<'_>) -> String {
    let asked_by = owner.as_ref().map(|owner| ingresses.asked_by(owner, guards)).unwrap_or_default();
    format!("`{path}`: {text}{asked_by}")
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

/// Leaves out hosts that would take requests of narrower ones that are left, or that are `elsewhere`.
fn leave_broader(
    plans: &mut Vec<HostPlan>,
    left: &mut BTreeMap<HostPattern, String>,
    elsewhere: &BTreeSet<HostPattern>,
) {
    loop {
        let taken = plans.iter().find_map(|plan| {
            let narrower = left.keys().chain(elsewhere).find(|narrower| covers(&plan.pattern, narrower))?;
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
            found.extend(compare(before, routes.map(|(_, routes)| &**routes), is_secure, &plan.words));
        }
        all.insert(plan.pattern.clone(), found);
    }
    all
}

/// Returns the verdict on a host that is written, and on its paths.
fn of_host(plan: &HostPlan, differences: Option<&Vec<Difference>>, others: Vec<String>) -> Vec<RowVerdict> {
    let subject = format!("host {}", plan.pattern);
    let differs =
        |row: String, text: String| RowVerdict { subject: subject.clone(), row, expressed: Expressed::Differs(text) };
    let mut verdicts: Vec<_> = others.into_iter().map(|text| differs(String::new(), text)).collect();
    if matches!(plan.pattern, HostPattern::Wildcard(_)) {
        let text = "the name stands for any number of labels, and not for one alone";
        verdicts.push(differs(String::new(), text.to_owned()));
    }
    if plan.certificate.is_none() || plan.pattern == HostPattern::Any {
        let text = "no listener has a certificate for HTTPS, so HTTPS stays with the Ingresses";
        verdicts.push(differs(String::new(), text.to_owned()));
    }
    verdicts.extend(plan.differs.iter().map(|(path, how)| differs(format!("path `{path}`"), (*how).to_owned())));
    for Difference { path, text, .. } in differences.into_iter().flatten() {
        verdicts.push(differs(format!("path `{path}`"), text.clone()));
    }
    if verdicts.is_empty() {
        verdicts.push(RowVerdict { subject, row: String::new(), expressed: Expressed::Fully("as routes".to_owned()) });
    }
    verdicts
}
