//! The objects that `check` judges, wherever they come from. It reads neither files nor clusters.

use std::collections::BTreeSet;

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
    pub(super) webhooks: Vec<Webhook>,
}

/// A Deployment or DaemonSet that runs ingress-nginx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Workload {
    pub(super) kind: String,
    pub(super) name: ObjectName,
    pub(super) image: String,
    pub(super) arguments: Vec<String>,
}

/// A ValidatingWebhookConfiguration that asks about Ingresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Webhook {
    pub(super) name: String,
    /// Whether the API server refuses changes while the webhook does not answer.
    pub(super) fails_closed: bool,
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
            Some("List") => object["items"].as_array().into_iter().flatten().for_each(|item| self.add_other(item)),
            _ => {}
        }
    }
}

// === impl Workload ===

impl Workload {
    /// Returns the workload if one of its containers is the controller of ingress-nginx.
    fn of(object: &Value) -> Option<Self> {
        let containers = object["spec"]["template"]["spec"]["containers"].as_array()?;
        let texts = |value: &Value| -> Vec<String> {
            value.as_array().into_iter().flatten().filter_map(|text| Some(text.as_str()?.to_owned())).collect()
        };
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
            })
        })
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

fn name_of(object: &Value) -> ObjectName {
    let text = |field: &str| object["metadata"][field].as_str();
    ObjectName::new(text("namespace").unwrap_or("default"), text("name").unwrap_or_default())
}
