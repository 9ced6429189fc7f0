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
    pub(crate) remarks: Vec<Outcome>,
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
    /// Name of the chart, or of the part of one that made the object.
    pub(crate) chart: String,
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
    /// Names and numbers of its TCP ports. A name is empty if the Service gives none.
    pub(crate) ports: Vec<(String, u64)>,
}

/// A ValidatingWebhookConfiguration that asks about Ingresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Webhook {
    pub(crate) name: String,
    /// Whether the API server refuses changes while the webhook does not answer.
    pub(crate) fails_closed: bool,
    /// Namespaces and names of the Services that are asked.
    pub(super) services: Vec<ObjectName>,
    /// Whether ingress-nginx answers all of it, as the names tell.
    is_of_nginx: bool,
    release: Option<Release>,
}

/// Name of the webhook in the chart and the manifests of ingress-nginx.
const WEBHOOK: &str = "validate.nginx.ingress.kubernetes.io";
/// Name of ingress-nginx' chart.
const CHART: &str = "ingress-nginx";

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
    pub(crate) fn has_config_map(&self, name: &ObjectName) -> bool {
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
    /// Returns the release that Helm has written into an object. The texts become words of commands, so names that no
    /// release can have count as none.
    pub(crate) fn of(annotations: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> Option<Self> {
        let name = annotations.get("meta.helm.sh/release-name")?.clone();
        let namespace = annotations.get("meta.helm.sh/release-namespace")?.clone();
        // The chart's name may have dashes; a version begins with a digit.
        let chart = labels.get("helm.sh/chart").map(String::as_str).unwrap_or_default();
        let dashes = chart.match_indices('-').map(|(at, _)| at);
        let mut versions = dashes.filter(|at| chart[at + 1..].starts_with(|first: char| first.is_ascii_digit()));
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._+".contains(&byte));
        let (chart, version) = match versions.next().map(|at| chart.split_at(at)) {
            // Labels hold no plus sign, and Helm writes `_` for it.
            Some((name, version)) => (name, Some(version[1..].replace('_', "+"))),
            None => (chart, None),
        };
        let chart = chart.to_owned();
        let is_name = is_subdomain(&namespace) && is_subdomain(&name) && version.as_deref().is_none_or(is_plain);
        is_name.then_some(Self { namespace, name, chart, version })
    }

    /// Returns whether its chart is that of ingress-nginx, in a known version. A chart that contains it has the same label.
    pub(crate) fn is_of_nginx(&self) -> bool {
        self.chart == CHART && self.version.is_some()
    }

    /// Returns whether two objects are of the same release.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (&self.namespace, &self.name) == (&other.namespace, &other.name)
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
            ports: spec["ports"].as_array().into_iter().flatten().filter_map(tcp_port).collect(),
        })
    }

    /// Returns whether the Service leads to pods of a workload.
    pub(crate) fn leads_to(&self, workload: &Workload) -> bool {
        let Self { name, kind: _, selector, ports: _ } = self;
        name.namespace == workload.name.namespace
            && !selector.is_empty()
            && selector.iter().all(|(key, value)| workload.labels.get(key) == Some(value))
    }
}

/// Returns name and number of a port of a Service, unless it has another protocol than TCP.
fn tcp_port(port: &Value) -> Option<(String, u64)> {
    let is_tcp = port["protocol"].as_str().is_none_or(|protocol| protocol == "TCP");
    let number = port["port"].as_u64().filter(|_| is_tcp)?;
    Some((port["name"].as_str().unwrap_or_default().to_owned(), number))
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
            is_of_nginx: webhooks.iter().all(|webhook| webhook["name"] == WEBHOOK),
            release: Release::of(
                &texts_of(&object["metadata"]["annotations"]),
                &texts_of(&object["metadata"]["labels"]),
            ),
        })
    }

    /// Returns whether pods of a workload answer it, and nothing else does. Without a known workload, the names decide.
    pub(crate) fn is_of(&self, workload: Option<&Workload>) -> bool {
        let is_answered_by = |workload: &Workload| {
            let is_other = |theirs: &Release| workload.release.as_ref().is_some_and(|own| !own.is_same(theirs));
            !self.services.is_empty()
                && self.services.iter().all(|service| service.namespace == workload.name.namespace)
                && !self.release.as_ref().is_some_and(is_other)
        };
        self.is_of_nginx && workload.is_none_or(is_answered_by)
    }
}

/// Returns whether a text is a DNS subdomain (RFC 1123), as names of namespaces and releases are.
fn is_subdomain(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let edges = [label.bytes().next(), label.bytes().next_back()];
        edges.iter().all(|byte| byte.is_some_and(is_plain)) && label.bytes().all(|byte| is_plain(byte) || byte == b'-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
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
