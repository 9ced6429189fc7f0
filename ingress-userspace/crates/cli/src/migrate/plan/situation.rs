//! How ingress-nginx is installed and reached, as far as the objects tell.

use std::collections::BTreeMap;

use ingress_control::{change::ObjectName, translate::owns};
use k8s_openapi::api::networking::v1::IngressClass;
use serde::{Serialize, Serializer};

use crate::check::{Entrance, Installation, Release, Report, Verdict, Workload};

/// Names of the chart's objects, for a folder without them.
const USUAL: &str = "ingress-nginx";
const USUAL_CONTROLLER: &str = "ingress-nginx-controller";

/// The installation of ingress-nginx.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Situation {
    /// Whether the Deployment or DaemonSet was among the objects; otherwise the names are those of the chart.
    pub(super) is_known: bool,
    /// `Deployment` or `DaemonSet`.
    pub(super) kind: String,
    #[serde(serialize_with = "name")]
    pub(super) workload: ObjectName,
    pub(super) replicas: Option<u64>,
    /// Whether its pods listen on ports of the nodes by themselves.
    pub(super) host_network: bool,
    /// Ports of the nodes that lead to its pods by DNAT.
    pub(super) host_ports: Vec<u64>,
    /// Services by which clients outside of the cluster reach it.
    #[serde(serialize_with = "names")]
    pub(super) services: Vec<Entrance>,
    /// Its classes.
    pub(super) classes: Vec<Class>,
    /// Names of its ValidatingWebhookConfigurations.
    pub(super) webhooks: Vec<String>,
    /// ConfigMap of its settings.
    #[serde(serialize_with = "optional_name")]
    pub(super) settings: Option<ObjectName>,
    /// Whether it writes addresses into the status of Ingresses.
    pub(super) writes_status: bool,
    /// The value of the setting `log-format-upstream`.
    #[serde(skip)]
    pub(super) log_format: Option<String>,
    /// Its release, if its chart is that of ingress-nginx.
    #[serde(skip)]
    pub(super) release: Option<Release>,
    /// Its release, if that has another chart.
    #[serde(skip)]
    pub(super) other_release: Option<Release>,
}

/// An IngressClass whose controller is ingress-nginx.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Class {
    pub(super) name: String,
    pub(super) controller: String,
    /// Whether the release of ingress-nginx has made it, so that its removal deletes the class, unless the release keeps it.
    pub(super) goes_with_release: bool,
    /// Whether the object says that Helm shall keep it. That does not count if `kubectl` has written it.
    pub(super) is_marked: bool,
}

/// Ingresses by their most serious finding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Ingresses {
    pub(super) ready: Vec<String>,
    pub(super) differs: Vec<String>,
    pub(super) needs_fix: Vec<String>,
    pub(super) refused: Vec<String>,
}

// === impl Situation ===

impl Situation {
    pub(super) fn of(installation: &Installation) -> Self {
        let Installation { objects, controller, is_directory, is_partial: _ } = installation;
        let workload = controller.workload.as_ref();
        let usual = || ObjectName::new(USUAL, USUAL_CONTROLLER);
        let options = controller.options(objects, *is_directory);
        let release = workload.and_then(|workload| workload.release.clone());
        let (release, other_release) = match release {
            Some(release) if !release.is_of_nginx() => (None, Some(release)),
            release => (release, None),
        };
        let all = release.as_ref().or(other_release.as_ref());
        let classes = objects.cluster.classes.values().filter_map(|stored| Class::of(&stored.object, all));
        let settings = controller.settings().filter(|name| !name.namespace.starts_with('*'));
        let stored = settings.as_ref().and_then(|name| objects.cluster.config_maps.get(name));
        let log_format = stored.and_then(|stored| stored.object.data.as_ref()?.get("log-format-upstream").cloned());
        let is_on = |flag: &str| !matches!(controller.flags.get(flag).map(String::as_str), Some("false" | "0" | "f"));
        Self {
            is_known: workload.is_some(),
            kind: workload.map_or_else(|| "Deployment".to_owned(), |workload| workload.kind.clone()),
            workload: workload.map_or_else(usual, |workload| workload.name.clone()),
            replicas: workload.and_then(|workload| workload.replicas),
            host_network: workload.is_some_and(|workload| workload.host_network),
            host_ports: workload.map(|workload| workload.host_ports.clone()).unwrap_or_default(),
            services: entrances(&objects.entrances, workload),
            classes: classes.filter(|class| class.controller == options.classes.controller).collect(),
            webhooks: objects
                .webhooks
                .iter()
                .filter(|webhook| webhook.is_of(workload))
                .map(|webhook| webhook.name.clone())
                .collect(),
            settings,
            log_format,
            writes_status: is_on("update-status"),
            release,
            other_release,
        }
    }

    /// Returns whether clients of a node's own ports can be shared.
    pub(super) fn shares_ports(&self) -> bool {
        self.host_network || !self.host_ports.is_empty()
    }
}

fn entrances(all: &[Entrance], workload: Option<&Workload>) -> Vec<Entrance> {
    let leads = |entrance: &&Entrance| workload.is_some_and(|workload| entrance.leads_to(workload));
    let mut found: Vec<_> = all.iter().filter(leads).cloned().collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

// === impl Class ===

impl Class {
    /// Reads a class. `release` is that of ingress-nginx.
    fn of(class: &IngressClass, release: Option<&Release>) -> Option<Self> {
        let controller = class.spec.as_ref()?.controller.clone()?;
        let none = BTreeMap::new();
        let metadata = &class.metadata;
        let annotations = metadata.annotations.as_ref().unwrap_or(&none);
        let own = Release::of(annotations, metadata.labels.as_ref().unwrap_or(&none));
        let is_marked = annotations.get("helm.sh/resource-policy").is_some_and(|policy| policy.trim() == "keep");
        let name = metadata.name.clone().unwrap_or_default();
        let goes_with_release = own.zip(release).is_some_and(|(own, release)| own.is_same(release));
        Some(Self { name, controller, goes_with_release, is_marked })
    }
}

// === impl Ingresses ===

impl Ingresses {
    pub(super) fn of(installation: &Installation, report: &Report, namespace: Option<&str>) -> Self {
        let Installation { objects, controller, is_directory, is_partial: _ } = installation;
        let options = controller.options(objects, *is_directory);
        let mut verdicts: BTreeMap<&ObjectName, Verdict> = objects
            .cluster
            .ingresses
            .iter()
            .filter(|(name, _)| namespace.is_none_or(|namespace| *name.namespace == *namespace))
            .filter(|(_, stored)| owns(&objects.cluster, &options, &stored.object))
            .map(|(name, _)| (name, Verdict::Note))
            .collect();
        for finding in report.findings.iter().filter(|finding| finding.object.kind == "Ingress") {
            let name = ObjectName::new(&finding.object.namespace, &finding.object.name);
            if let Some(worst) = verdicts.get_mut(&name) {
                *worst = (*worst).max(finding.verdict);
            }
        }
        let mut sorted = Self::default();
        for (name, verdict) in verdicts {
            let list = match verdict {
                Verdict::Note => &mut sorted.ready,
                Verdict::Differs => &mut sorted.differs,
                Verdict::Fix => &mut sorted.needs_fix,
                Verdict::Refused => &mut sorted.refused,
            };
            list.push(name.to_string());
        }
        sorted
    }
}

fn name<S: Serializer>(name: &ObjectName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(name)
}

fn optional_name<S: Serializer>(name: &Option<ObjectName>, serializer: S) -> Result<S::Ok, S::Error> {
    name.as_ref().map(ToString::to_string).serialize(serializer)
}

fn names<S: Serializer>(services: &[Entrance], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(services.iter().map(|service| service.name.to_string()))
}
