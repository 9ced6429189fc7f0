//! The objects that `check` judges, wherever they come from. It reads neither files nor clusters.

use std::collections::{BTreeMap, BTreeSet};

use ingress_control::{
    Origin, Outcome, Reason,
    change::{Change, Kind, Object, ObjectId, ObjectName},
    cluster::Cluster,
};
use serde_json::Value;

/// Objects of the cluster that ingress-nginx serves.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) cluster: Cluster,
    known: BTreeSet<ObjectId>,
    /// Problems of reading, such as a broken file.
    pub(super) remarks: Vec<Outcome>,
    pub(super) workloads: Vec<Workload>,
    pub(crate) webhooks: Vec<Webhook>,
    /// Services by which clients outside of the cluster reach pods.
    pub(crate) entrances: Vec<Entrance>,
}

/// A Deployment or DaemonSet that runs ingress-nginx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Workload {
    pub(crate) kind: String,
    pub(crate) name: ObjectName,
    pub(super) image: String,
    pub(super) arguments: Vec<String>,
    /// Wanted number of pods; `None` for a DaemonSet, or if the manifest leaves it to the default.
    pub(crate) replicas: Option<u64>,
    /// Whether the pods use the network of their node.
    pub(crate) host_network: bool,
    /// Ports of the nodes that lead to the pods by DNAT.
    pub(crate) host_ports: Vec<u64>,
    /// Labels of the pods.
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) release: Option<Release>,
}

/// The release of Helm that an object belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Release {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Version of the chart, such as `4.13.3`.
    pub(crate) version: Option<String>,
}

/// A Service with the type `LoadBalancer` or `NodePort`, or with external IPs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entrance {
    pub(crate) name: ObjectName,
    /// Its `type`.
    pub(crate) kind: String,
    pub(crate) selector: BTreeMap<String, String>,
}

/// A ValidatingWebhookConfiguration that asks about Ingresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Webhook {
    pub(crate) name: String,
    /// Whether the API server refuses changes while the webhook does not answer.
    pub(crate) fails_closed: bool,
    /// Namespaces and names of the Services that are asked.
    pub(super) services: Vec<ObjectName>,
}

// === impl Objects ===

impl Objects {
    /// Adds an object. One with the same name is kept, which is reported.
    pub(crate) fn add(&mut self, object: Object, origin: &Origin) {
        let id = object.id();
        if self.known.contains(&id) {
            let object = id.name.refer(id.kind, origin);
            let message = "another file already defines it; remove one of them, the first is checked".to_owned();
            return self.remarks.push(Outcome::new(object, Reason::DuplicateObject, message));
        }
        self.known.insert(id);
        self.cluster.apply(Change::Apply { object, origin: origin.clone() });
    }

    /// Returns whether a ConfigMap is there.
    pub(super) fn has_config_map(&self, name: &ObjectName) -> bool {
        self.known.contains(&ObjectId { kind: Kind::ConfigMap, name: name.clone() })
    }

    /// Adds what `check` reads of an object that no translation reads.
    pub(super) fn add_other(&mut self, object: &Value) {
        match object["kind"].as_str() {
            Some("Deployment" | "DaemonSet") => self.workloads.extend(Workload::of(object)),
            Some("ValidatingWebhookConfiguration") => self.webhooks.extend(Webhook::of(object)),
            Some("Service") => self.add_entrance(object),
            Some("List") => object["items"].as_array().into_iter().flatten().for_each(|item| self.add_other(item)),
            _ => {}
        }
    }

    fn add_entrance(&mut self, object: &Value) {
        let entrance = Entrance::of(object).filter(|new| self.entrances.iter().all(|known| known.name != new.name));
        self.entrances.extend(entrance);
    }
}

// === impl Workload ===

impl Workload {
    /// Returns the workload if one of its containers is the controller of ingress-nginx.
    fn of(object: &Value) -> Option<Self> {
        let template = &object["spec"]["template"];
        let containers = template["spec"]["containers"].as_array()?;
        let texts = |value: &Value| -> Vec<String> {
            value.as_array().into_iter().flatten().filter_map(|text| Some(text.as_str()?.to_owned())).collect()
        };
        let host_network = template["spec"]["hostNetwork"] == true;
        containers.iter().find_map(|container| {
            let arguments = [texts(&container["command"]), texts(&container["args"])].concat();
            let image = container["image"].as_str().unwrap_or_default();
            let is_controller = image.contains("ingress-nginx/controller")
                || image.contains("nginx-ingress-controller")
                || arguments.iter().any(|argument| argument.ends_with("nginx-ingress-controller"));
            is_controller.then(|| Self {
                kind: object["kind"].as_str().unwrap_or_default().to_owned(),
                name: name_of(object),
                image: image.to_owned(),
                arguments,
                replicas: object["spec"]["replicas"].as_u64(),
                host_network,
                // The API server also writes the ports of pods that use the network of their node.
                host_ports: if host_network { Vec::new() } else { host_ports(container) },
                labels: texts_of(&template["metadata"]["labels"]),
                release: Release::of(
                    &texts_of(&object["metadata"]["annotations"]),
                    &texts_of(&object["metadata"]["labels"]),
                ),
            })
        })
    }
}

// === impl Release ===

impl Release {
    /// Returns the release that Helm has written into an object.
    pub(crate) fn of(annotations: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> Option<Self> {
        let name = annotations.get("meta.helm.sh/release-name")?.clone();
        let namespace = annotations.get("meta.helm.sh/release-namespace")?.clone();
        // The chart's name may have dashes; a version begins with a digit.
        let chart = labels.get("helm.sh/chart");
        let version = chart.and_then(|chart| {
            let starts = chart.match_indices('-').map(|(at, _)| at + 1);
            let mut versions = starts.filter(|at| chart[*at..].starts_with(|first: char| first.is_ascii_digit()));
            versions.next().map(|at| chart[at..].to_owned())
        });
        Some(Self { namespace, name, version })
    }
}

// === impl Entrance ===

impl Entrance {
    fn of(object: &Value) -> Option<Self> {
        let spec = &object["spec"];
        let kind = spec["type"].as_str().unwrap_or("ClusterIP");
        let is_external = spec["externalIPs"].as_array().is_some_and(|addresses| !addresses.is_empty());
        let is_entrance = is_external || ["LoadBalancer", "NodePort"].contains(&kind);
        is_entrance.then(|| Self {
            name: name_of(object),
            kind: kind.to_owned(),
            selector: texts_of(&spec["selector"]),
        })
    }

    /// Returns whether the Service leads to pods of a workload.
    pub(crate) fn leads_to(&self, workload: &Workload) -> bool {
        let Self { name, kind: _, selector } = self;
        name.namespace == workload.name.namespace
            && !selector.is_empty()
            && selector.iter().all(|(key, value)| workload.labels.get(key) == Some(value))
    }
}

// === impl Webhook ===

impl Webhook {
    fn of(object: &Value) -> Option<Self> {
        let webhooks = object["webhooks"].as_array()?;
        let asks =
            |webhook: &&Value| {
                webhook["rules"].as_array().into_iter().flatten().any(|rule| {
                    rule["resources"].as_array().into_iter().flatten().any(|resource| resource == "ingresses")
                })
            };
        let about: Vec<_> = webhooks.iter().filter(asks).collect();
        let service = |webhook: &&Value| {
            let service = &webhook["clientConfig"]["service"];
            Some(ObjectName::new(service["namespace"].as_str()?, service["name"].as_str()?))
        };
        (!about.is_empty()).then(|| Self {
            name: object["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
            // `Fail` is the default of the API server.
            fails_closed: about.iter().any(|webhook| webhook["failurePolicy"].as_str() != Some("Ignore")),
            services: about.iter().filter_map(service).collect(),
        })
    }
}

fn host_ports(container: &Value) -> Vec<u64> {
    container["ports"].as_array().into_iter().flatten().filter_map(|port| port["hostPort"].as_u64()).collect()
}

/// Returns a map of texts, such as labels.
fn texts_of(map: &Value) -> BTreeMap<String, String> {
    let entries = map.as_object().into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

fn name_of(object: &Value) -> ObjectName {
    let text = |field: &str| object["metadata"][field].as_str();
    ObjectName::new(text("namespace").unwrap_or("default"), text("name").unwrap_or_default())
}
