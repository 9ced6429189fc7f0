//! Writes the objects: a Gateway, ListenerSets with two listeners for each host, and HTTPRoutes. Each host has listeners of
//! its own, so that its requests never fall to a wildcard, as among Ingresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::{Value, json};

use super::{
    annotations::IngressAnnotations,
    host::{HostPlan, RoutePart},
};
use crate::change::ObjectName;
use ingress_model::{HostPattern, ListenerName};

/// The class that the manifests and the chart install.
const CLASS: &str = "xdp-ingress";
const API_VERSION: &str = "gateway.networking.k8s.io/v1";

// Limits of the custom resources.
const MAX_LISTENERS: usize = 64;
const MAX_RULES: usize = 16;
const MAX_MATCHES: usize = 64;
const MAX_HOSTNAMES: usize = 16;
/// Length of a name that leaves place for a number within the limit of Kubernetes, which is 253.
const MAX_NAME: usize = 240;

/// Writes the objects for all hosts.
pub(super) fn write(
    gateway: &ObjectName,
    plans: &[HostPlan],
    annotations: &BTreeMap<ObjectName, IngressAnnotations>,
) -> Vec<Value> {
    let mut sets: BTreeMap<&Arc<str>, Vec<(&HostPlan, Vec<Value>)>> = BTreeMap::new();
    let mut everyone = json!({"name": "http", "port": 80, "protocol": "HTTP"});
    for plan in plans {
        if plan.pattern == HostPattern::Any {
            everyone["allowedRoutes"] = allowed(plan, &gateway.namespace);
        } else {
            sets.entry(&plan.namespace).or_default().push((plan, listeners(plan)));
        }
    }
    let mut objects = vec![json!({
        "apiVersion": API_VERSION,
        "kind": "Gateway",
        "metadata": {"namespace": &*gateway.namespace, "name": &*gateway.name},
        "spec": {
            "gatewayClassName": CLASS,
            "allowedListeners": {"namespaces": {"from": "All"}},
            "listeners": [everyone],
        },
    })];
    // The ListenerSet of each host.
    let mut names: BTreeMap<&HostPattern, String> = BTreeMap::new();
    for (namespace, hosts) in &sets {
        for (number, chunk) in hosts.chunks(MAX_LISTENERS / 2).enumerate() {
            let name = numbered(&gateway.name, number);
            names.extend(chunk.iter().map(|(plan, _)| (&plan.pattern, name.clone())));
            let listeners: Vec<_> = chunk.iter().flat_map(|(_, listeners)| listeners).collect();
            objects.push(json!({
                "apiVersion": API_VERSION,
                "kind": "ListenerSet",
                "metadata": {"namespace": &***namespace, "name": name},
                "spec": {
                    "parentRef": {"namespace": &*gateway.namespace, "name": &*gateway.name},
                    "listeners": listeners,
                },
            }));
        }
    }
    routes(gateway, plans, &names, annotations, &mut objects);
    objects
}

/// Hosts with the same rules of one Ingress share its HTTPRoute.
fn routes(
    gateway: &ObjectName,
    plans: &[HostPlan],
    sets: &BTreeMap<&HostPattern, String>,
    annotations: &BTreeMap<ObjectName, IngressAnnotations>,
    objects: &mut Vec<Value>,
) {
    let mut alike: BTreeMap<(&ObjectName, String), Vec<(&HostPlan, &RoutePart)>> = BTreeMap::new();
    for plan in plans {
        for part in &plan.parts {
            let rules = Value::from(part.rules.clone());
            let key = format!("{:?} {} {rules}", part.https_redirect, plan.pattern == HostPattern::Any);
            alike.entry((&part.ingress, key)).or_default().push((plan, part));
        }
    }
    let mut names = Names::default();
    for ((ingress, _), hosts) in alike {
        let Some((_, RoutePart { https_redirect, rules, paths, .. })) = hosts.first() else { continue };
        let copied = annotations.get(ingress).map(|annotations| &annotations.copied);
        for hosts in hosts.chunks(MAX_HOSTNAMES) {
            let hostnames: Vec<_> = hosts.iter().filter(|(plan, _)| plan.pattern != HostPattern::Any).collect();
            let hostnames: Vec<_> = hostnames.iter().map(|(plan, _)| plan.pattern.to_string()).collect();
            let parents = |scheme: &str| -> Vec<Value> {
                let hosts = hosts.iter().filter(|(plan, _)| scheme == "http" || plan.certificate.is_some());
                hosts.map(|(plan, _)| parent(gateway, plan, scheme, sets)).collect()
            };
            let (http, https) = (parents("http"), parents("https"));
            let route =
                |name: String, parents: &[Value], rules: &[Value], annotations: Option<&BTreeMap<String, String>>| {
                    let mut route = json!({
                        "apiVersion": API_VERSION,
                        "kind": "HTTPRoute",
                        "metadata": {"namespace": &*ingress.namespace, "name": name},
                        "spec": {"parentRefs": parents, "rules": rules},
                    });
                    if !hostnames.is_empty() {
                        route["spec"]["hostnames"] = hostnames.clone().into();
                    }
                    if let Some(annotations) = annotations.filter(|annotations| !annotations.is_empty()) {
                        route["metadata"]["annotations"] = json!(annotations);
                    }
                    route
                };
            let serving = if https_redirect.is_some() { https } else { [http.clone(), https].concat() };
            for rules in rules.chunks(MAX_RULES) {
                objects.push(route(names.of_route(ingress, ""), &serving, rules, copied));
            }
            if let Some(status) = https_redirect {
                let filter =
                    json!({"type": "RequestRedirect", "requestRedirect": {"scheme": "https", "statusCode": status}});
                for paths in paths.chunks(MAX_MATCHES) {
                    let matches: Vec<_> = paths.iter().map(|path| json!({"path": path})).collect();
                    let rule = json!({"matches": matches, "filters": [filter]});
                    objects.push(route(names.of_route(ingress, "-https"), &http, &[rule], None));
                }
            }
        }
    }
}

/// Names of routes, each given once.
#[derive(Default)]
struct Names(BTreeSet<ObjectName>);

impl Names {
    /// Returns a name for a route of an Ingress: its own with `suffix`, and a number if that is given already.
    fn of_route(&mut self, ingress: &ObjectName, suffix: &str) -> String {
        let mut base = format!("{}{suffix}", ingress.name);
        base.truncate(base.floor_char_boundary(MAX_NAME));
        let base = base.trim_end_matches(['.', '-']);
        let mut number = 0;
        loop {
            let name = numbered(base, number);
            if self.0.insert(ObjectName::new(&ingress.namespace, &name)) {
                return name;
            }
            number += 1;
        }
    }
}

fn numbered(name: &str, number: usize) -> String {
    if number == 0 { name.to_owned() } else { format!("{name}-{}", number + 1) }
}

fn parent(gateway: &ObjectName, plan: &HostPlan, scheme: &str, sets: &BTreeMap<&HostPattern, String>) -> Value {
    match sets.get(&plan.pattern) {
        Some(set) => json!({
            "group": "gateway.networking.k8s.io",
            "kind": "ListenerSet",
            "namespace": &*plan.namespace,
            "name": set,
            "sectionName": section(scheme, &plan.pattern),
        }),
        None => json!({"namespace": &*gateway.namespace, "name": &*gateway.name, "sectionName": scheme}),
    }
}

fn listeners(plan: &HostPlan) -> Vec<Value> {
    let listener = |scheme: &str, port: u16, protocol: &str| {
        json!({
            "name": section(scheme, &plan.pattern),
            "hostname": plan.pattern.to_string(),
            "port": port,
            "protocol": protocol,
            "allowedRoutes": allowed(plan, &plan.namespace),
        })
    };
    let mut listeners = vec![listener("http", 80, "HTTP")];
    if let Some(certificate) = &plan.certificate {
        let mut https = listener("https", 443, "HTTPS");
        https["tls"] = json!({"certificateRefs": [{"name": &*certificate.name}]});
        listeners.push(https);
    }
    listeners
}

/// Returns the name of a listener.
pub(super) fn section(scheme: &str, pattern: &HostPattern) -> String {
    match pattern {
        HostPattern::Any => scheme.to_owned(),
        HostPattern::Exact(host) => format!("{scheme}.{host}"),
        // No name of a host begins like this, since no scheme has a dash.
        HostPattern::Wildcard(base) | HostPattern::Suffix(base) => format!("{scheme}-wildcard.{base}"),
    }
}

/// Returns the namespaces whose routes may attach: those of the Ingresses.
fn allowed(plan: &HostPlan, own: &Arc<str>) -> Value {
    let namespaces: BTreeSet<&str> = plan.parts.iter().map(|part| &*part.ingress.namespace).collect();
    if namespaces.iter().all(|namespace| **namespace == **own) {
        return json!({"namespaces": {"from": "Same"}});
    }
    let expression = json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces});
    json!({"namespaces": {"from": "Selector", "selector": {"matchExpressions": [expression]}}})
}

/// Returns the name of the listener of a host in the route table.
pub(super) fn listener_name(
    gateway: &ObjectName,
    plan: &HostPlan,
    scheme: &str,
    objects: &[Value],
) -> Option<ListenerName> {
    let section = section(scheme, &plan.pattern);
    if plan.pattern == HostPattern::Any {
        return (scheme == "http").then(|| ListenerName::of_gateway(&gateway.namespace, &gateway.name, &section));
    }
    let has = |object: &&Value| {
        let listeners = object["spec"]["listeners"].as_array();
        object["kind"] == "ListenerSet"
            && object["metadata"]["namespace"] == *plan.namespace
            && listeners.into_iter().flatten().any(|listener| listener["name"] == *section)
    };
    let set = objects.iter().find(has)?["metadata"]["name"].as_str()?;
    Some(ListenerName::of_set(&plan.namespace, set, &section))
}
