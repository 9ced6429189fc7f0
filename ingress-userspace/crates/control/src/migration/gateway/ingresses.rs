//! The Ingresses to write, as far as their rules do not tell: annotations, ages, certificates, and claims that are not
//! served.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    annotations::{self, IngressAnnotations},
    guard::Guard,
};
use crate::{
    change::ObjectName,
    cluster::Cluster,
    outcome::Reason,
    translate::{Options, Translation, owns},
};
use ingress_model::{HostPattern, HostRoutes, Rule};
use k8s_openapi::api::networking::v1::Ingress;

/// The Ingresses that options select, and the hosts of the others.
pub(super) struct Ingresses<'n> {
    pub(super) annotations: BTreeMap<ObjectName, IngressAnnotations>,
    /// Hosts of other Ingresses, with one of them.
    pub(super) foreign: BTreeMap<HostPattern, ObjectName>,
    /// Places in the order of creation, the oldest first.
    ages: BTreeMap<ObjectName, usize>,
    /// Secrets that `spec.tls` names, those of the oldest Ingress first.
    certificates: BTreeMap<HostPattern, Vec<ObjectName>>,
    /// Why rules of an Ingress answer 503.
    refusals: BTreeMap<ObjectName, String>,
    /// Why claims on a host are not served.
    unserved: BTreeMap<HostPattern, String>,
    /// Names of the settings in ConfigMaps.
    settings: BTreeSet<String>,
    /// The only namespace to write; all if `None`.
    namespace: Option<&'n str>,
}

// === impl Ingresses ===

impl<'n> Ingresses<'n> {
    pub(super) fn of(
        cluster: &Cluster,
        options: &Options,
        translation: &Translation,
        namespace: Option<&'n str>,
    ) -> Self {
        let (mut annotations, mut foreign, mut order) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        for (name, stored) in cluster.ingresses.iter() {
            let ingress = &*stored.object;
            if owns(cluster, options, ingress) {
                annotations.insert(name.clone(), annotations::read(name, ingress, &options.annotations_prefix));
                let created = ingress.metadata.creation_timestamp.clone();
                order.push(((created.is_none(), created, name.clone()), ingress));
            } else {
                foreign.extend(hosts(ingress).map(|host| (host, name.clone())));
            }
        }
        order.sort_by(|a, b| a.0.cmp(&b.0));
        let mut certificates: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let mut ages = BTreeMap::new();
        for (age, ((_, _, name), ingress)) in order.into_iter().enumerate() {
            let is_canary = annotations.get(&name).is_some_and(|annotations| annotations.is_canary);
            for (host, secret) in secrets(ingress).filter(|_| !is_canary) {
                certificates.entry(host).or_default().push(ObjectName::new(&name.namespace, secret));
            }
            ages.insert(name, age);
        }
        let (refusals, unserved) = problems(cluster, translation, &annotations);
        let settings = settings(cluster, options);
        Self { annotations, foreign, ages, certificates, refusals, unserved, settings, namespace }
    }

    /// Returns whether a namespace is to be written.
    pub(super) fn is_wanted(&self, namespace: &str) -> bool {
        self.namespace.is_none_or(|wanted| wanted == namespace)
    }

    /// Returns whether all rules of a host are of other namespaces than the wanted one.
    pub(super) fn is_unwanted(&self, HostRoutes { rules, fallback, .. }: &HostRoutes) -> bool {
        let mut rules = rules.iter().chain(fallback.as_deref());
        self.namespace.is_some() && rules.all(|rule| !self.is_wanted(&owner(rule).namespace))
    }

    /// Returns the owner of a host: the oldest Ingress with rules there.
    pub(super) fn oldest(&self, rules: &[&Rule]) -> Option<ObjectName> {
        rules.iter().map(|rule| owner(rule)).min_by_key(|name| self.ages.get(name).copied().unwrap_or(usize::MAX))
    }

    /// Returns the Secret that Ingresses of `namespace` name for a host, or for a wildcard above it; of several, that of
    /// the oldest.
    pub(super) fn certificate(&self, pattern: &HostPattern, namespace: &str) -> Option<&ObjectName> {
        let own = |all: &'_ Vec<ObjectName>| all.iter().position(|secret| *secret.namespace == *namespace);
        let of = |pattern: &HostPattern| {
            let all = self.certificates.get(pattern)?;
            all.get(own(all)?)
        };
        let above = || match pattern {
            HostPattern::Exact(host) => {
                let is_above =
                    |other: &&HostPattern| matches!(other, HostPattern::Wildcard(_)) && other.matches(host.as_str());
                self.certificates.keys().find(is_above).and_then(of)
            }
            _ => None,
        };
        of(pattern).or_else(above)
    }

    /// Returns why a host stays although its rules have words.
    pub(super) fn reason_to_stay(&self, pattern: &HostPattern, rules: &[&Rule]) -> Option<String> {
        if let Some(why) = self.unserved.get(pattern) {
            return Some(why.clone());
        }
        let other = rules.iter().map(|rule| owner(rule)).find(|owner| !self.is_wanted(&owner.namespace))?;
        Some(format!("Ingress `{other}` of another namespace has rules for it; select all namespaces"))
    }

    /// Returns why rules of an Ingress answer 503.
    pub(super) fn refusal(&self, ingress: &ObjectName) -> &str {
        let unknown = "its rules answer 503, because a protection that they ask for is missing";
        self.refusals.get(ingress).map_or(unknown, String::as_str)
    }

    /// Returns the names that ask for protections of an Ingress' rules, as an end of a sentence.
    pub(super) fn asked_by(&self, ingress: &ObjectName, lost: &BTreeSet<Guard>) -> String {
        let asks = |key: &str| lost.iter().any(|guard| guard.is_asked_by(key));
        let written = self.annotations.get(ingress).map(|annotations| &annotations.written);
        let of_ingress: Vec<_> = written.into_iter().flatten().filter(|(key, _)| asks(key)).collect();
        let quoted = |names: Vec<&str>| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        if !of_ingress.is_empty() {
            let names = quoted(of_ingress.into_iter().map(|(_, name)| name.as_str()).collect());
            return format!("; Ingress `{ingress}` asks for it by {names}");
        }
        let settings: Vec<_> = self.settings.iter().map(String::as_str).filter(|key| asks(key)).collect();
        if settings.is_empty() {
            return String::new();
        }
        format!(
            "; the settings {} ask for it, which do not hold for routes: set annotations of Ingress `{ingress}`",
            quoted(settings)
        )
    }
}

/// Returns the Ingress of a rule.
pub(super) fn owner(rule: &Rule) -> ObjectName {
    let (namespace, name) = rule.owner.split_once('/').unwrap_or_default();
    ObjectName::new(namespace, name)
}

/// Returns the hosts of an Ingress' rules.
fn hosts(ingress: &Ingress) -> impl Iterator<Item = HostPattern> {
    let spec = ingress.spec.as_ref();
    let rules = spec.into_iter().flat_map(|spec| spec.rules.iter().flatten());
    let named = rules.filter_map(|rule| HostPattern::parse(rule.host.as_deref().unwrap_or_default()).ok());
    named.chain(spec.filter(|spec| spec.default_backend.is_some()).map(|_| HostPattern::Any))
}

/// Returns the hosts of an Ingress' certificates, each with the name of the Secret.
fn secrets(ingress: &Ingress) -> impl Iterator<Item = (HostPattern, &str)> {
    let all = ingress.spec.iter().flat_map(|spec| spec.tls.iter().flatten());
    let named = all.filter_map(|tls| Some((tls, tls.secret_name.as_deref().filter(|secret| !secret.is_empty())?)));
    named.flat_map(|(tls, secret)| {
        let hosts = tls.hosts.iter().flatten().filter_map(|host| HostPattern::parse(host).ok());
        hosts.map(move |host| (host, secret))
    })
}

type Problems = (BTreeMap<ObjectName, String>, BTreeMap<HostPattern, String>);

/// Returns why rules of Ingresses answer 503, and why claims on hosts are not served.
fn problems(cluster: &Cluster, translation: &Translation, ours: &BTreeMap<ObjectName, IngressAnnotations>) -> Problems {
    let (mut refusals, mut unserved) = Problems::default();
    for outcome in translation.outcomes.keys().filter(|outcome| &*outcome.object.kind == "Ingress") {
        let name = ObjectName::new(&outcome.object.namespace, &outcome.object.name);
        if outcome.refuses {
            refusals.entry(name.clone()).or_insert_with(|| outcome.message.clone());
        }
        let message = &outcome.message;
        let is_lost = |host: &HostPattern| match outcome.reason {
            Reason::InvalidObject | Reason::InvalidPath | Reason::TooLarge => true,
            // Only the owner of a host decides on TLS, and the routes have what the owner decides.
            Reason::HostOwnedByOther => {
                message.contains(&format!(" of host `{host}` is refused")) && !message.starts_with("TLS ")
            }
            _ => false,
        };
        let stored = cluster.ingresses.get(&name).filter(|_| ours.contains_key(&name));
        for host in stored.into_iter().flat_map(|stored| hosts(&stored.object)).filter(is_lost) {
            unserved.entry(host).or_insert_with(|| format!("Ingress `{name}` is not served as a whole: {message}"));
        }
    }
    (refusals, unserved)
}

/// Returns the names of settings: those of the process, and those of its classes.
fn settings(cluster: &Cluster, options: &Options) -> BTreeSet<String> {
    let classes = cluster.classes.values().filter_map(|stored| stored.object.spec.as_ref());
    let parameters = classes
        .filter(|spec| spec.controller.as_deref() == Some(&*options.classes.controller))
        .filter_map(|spec| spec.parameters.as_ref())
        .map(|parameters| ObjectName::new(parameters.namespace.as_deref().unwrap_or_default(), &parameters.name));
    let stored = parameters.chain(options.config_map.clone()).filter_map(|name| cluster.config_maps.get(&name));
    stored.flat_map(|stored| stored.object.data.iter().flatten().map(|(key, _)| key.clone())).collect()
}
