//! Facts about an Ingress on which the conversion of its snippets depends.

use std::collections::{BTreeMap, BTreeSet};

use ingress_control::{
    change::ObjectName,
    translate::{Options, owns},
};
use k8s_openapi::api::networking::v1::Ingress;

use super::{
    judge::{PREFIX, annotation},
    objects::Objects,
    snippet::{Facts, HostPath},
};

/// Returns the facts about an Ingress among `objects`.
pub(super) fn of_ingress(name: &ObjectName, ingress: &Ingress, objects: &Objects, options: &Options) -> Facts {
    let mut hosts: Vec<_> = hosts(ingress).into_iter().map(str::to_owned).collect();
    if hosts.is_empty() {
        hosts.push(String::new());
    }
    let settings = options.config_map.as_ref().and_then(|name| objects.cluster.config_maps.get(name));
    let settings = settings.and_then(|stored| stored.object.data.clone()).unwrap_or_default();
    let value = |key: &str| annotation(ingress, key, options);
    let speaks_grpc = matches!(value("backend-protocol"), Some("GRPC" | "GRPCS"));
    let (paths, has_expressions) = paths(name, &hosts, objects, options);
    Facts {
        namespace: name.namespace.to_string(),
        name: name.name.to_string(),
        service: service(ingress),
        hosts: hosts.into_iter().collect::<BTreeSet<_>>().into_iter().collect(),
        paths,
        has_expressions,
        speaks_grpc: Some(speaks_grpc),
        annotations: annotations(ingress, options),
        settings,
    }
}

/// Returns the annotations by their names without prefix. This controller's own prefix takes precedence.
fn annotations(ingress: &Ingress, options: &Options) -> BTreeMap<String, String> {
    let all = || ingress.metadata.annotations.iter().flatten();
    let prefixes = [options.annotations_prefix.trim_end_matches('/'), PREFIX];
    prefixes
        .into_iter()
        .flat_map(|prefix| {
            all().filter_map(move |(name, value)| {
                let key = name.strip_prefix(prefix)?.strip_prefix('/')?;
                Some((key.to_owned(), value.trim().to_owned()))
            })
        })
        .collect()
}

/// Returns the paths of these hosts, of all Ingresses, and whether ingress-nginx makes regular expressions of them.
fn paths(own: &ObjectName, hosts: &[String], objects: &Objects, options: &Options) -> (Vec<HostPath>, bool) {
    let (mut paths, mut has_expressions) = (BTreeSet::new(), false);
    for (name, stored) in objects.cluster.ingresses.iter() {
        let ingress = &*stored.object;
        let is_true =
            |key: &str| matches!(annotation(ingress, key, options), Some("1" | "t" | "T" | "TRUE" | "true" | "True"));
        let shares = self::hosts(ingress).iter().any(|host| hosts.iter().any(|own| own == host));
        if !shares || is_true("canary") || !owns(&objects.cluster, options, ingress) {
            continue;
        }
        let target = annotation(ingress, "rewrite-target", options).filter(|target| !target.is_empty());
        has_expressions |= is_true("use-regex");
        for rule in ingress.spec.iter().flat_map(|spec| spec.rules.iter().flatten()) {
            let host = rule.host.as_deref().unwrap_or_default();
            for path in rule.http.iter().flat_map(|http| &http.paths).filter(|_| hosts.iter().any(|own| own == host)) {
                let text = path.path.as_deref().filter(|text| !text.is_empty()).unwrap_or("/");
                has_expressions |= target.is_some_and(|target| target != text);
                let is_exact = path.path_type == "Exact";
                paths.insert(HostPath { path: text.to_owned(), is_exact, is_own: name == own });
            }
        }
    }
    (paths.into_iter().collect(), has_expressions)
}

/// Returns the names of other Ingresses with a host of this one.
pub(super) fn neighbours(name: &ObjectName, ingress: &Ingress, objects: &Objects) -> Option<String> {
    let hosts = hosts(ingress);
    let others = objects.cluster.ingresses.iter().filter(|(other, stored)| {
        *other != name && self::hosts(&stored.object).iter().any(|host| hosts.contains(host))
    });
    let names: Vec<_> = others.map(|(other, _)| format!("`{other}`")).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

fn hosts(ingress: &Ingress) -> Vec<&str> {
    let rules = ingress.spec.iter().flat_map(|spec| spec.rules.iter().flatten());
    rules.map(|rule| rule.host.as_deref().unwrap_or_default()).collect()
}

/// Returns the Service and its port, if all paths lead to the same.
fn service(ingress: &Ingress) -> Option<(String, String)> {
    let spec = ingress.spec.as_ref();
    let rules = spec.and_then(|spec| spec.rules.as_deref()).unwrap_or_default();
    let paths = rules.iter().filter_map(|rule| rule.http.as_ref()).flat_map(|http| &http.paths);
    let default = spec.and_then(|spec| spec.default_backend.as_ref());
    let mut services: Vec<_> = paths
        .map(|path| &path.backend)
        .chain(default)
        .map(|backend| {
            let service = backend.service.as_ref()?;
            // The variable is a number, which the name of a port does not tell.
            let port = service.port.as_ref()?.number?;
            Some((service.name.clone(), port.to_string()))
        })
        .collect();
    services.dedup();
    match &mut *services {
        [one] => one.take(),
        _ => None,
    }
}
