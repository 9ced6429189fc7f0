//! The installed ingress-nginx: its arguments, and the options of a translation that serves the same classes with the same
//! ConfigMaps.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use ingress_control::{
    Classes,
    change::{Kind, ObjectName},
    translate::{CatchAll, Options, annotation_references},
};

use super::{
    finding::Finding,
    names,
    objects::{Objects, Workload},
    values::Values,
};
use crate::options::object_name;

/// Value of `spec.controller` in the classes of ingress-nginx.
const CONTROLLER: &str = "k8s.io/ingress-nginx";
/// Default prefix of annotations.
const PREFIX: &str = "nginx.ingress.kubernetes.io";
/// Settings that name a ConfigMap, as `namespace/name`.
const NAMING: [&str; 2] = ["add-headers", "proxy-set-headers"];

/// An installation of ingress-nginx, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Controller {
    pub(crate) workload: Option<Workload>,
    /// Flags by name, without dashes; a flag without a value has an empty one.
    pub(crate) flags: BTreeMap<String, String>,
    /// Findings about the names of its flags and of the values.
    pub(super) findings: Vec<Finding>,
}

// === impl Controller ===

impl Controller {
    /// Returns the installation among `objects`, with the flags of `values` over its own.
    ///
    /// # Errors
    /// Fails if the named workload is not there, or several could be meant.
    pub(super) fn of(objects: &Objects, deployment: Option<&ObjectName>, values: Option<&Values>) -> Result<Self> {
        let workload = match (deployment, &*objects.workloads) {
            (Some(name), all) => match all.iter().find(|workload| workload.name == *name) {
                Some(workload) => Some(workload.clone()),
                None => bail!("no Deployment or DaemonSet `{name}` runs ingress-nginx"),
            },
            (None, []) => None,
            (None, [one]) => Some(one.clone()),
            (None, several) => {
                let names: Vec<_> = several.iter().map(|workload| workload.name.to_string()).collect();
                bail!("several workloads run ingress-nginx: {}; name one with `--deployment`", names.join(", "))
            }
        };
        let mut flags = workload.as_ref().map(flags).unwrap_or_default();
        let mut findings =
            workload.as_ref().map(|workload| names::of_workload(workload, flags.keys())).unwrap_or_default();
        if let Some(values) = values {
            flags.extend(values.flags.clone());
            findings.extend(values.findings.iter().cloned());
        }
        Ok(Self { workload, flags, findings })
    }

    /// Replaces the ConfigMap of settings, if one is named.
    pub(crate) fn with_settings(mut self, config_map: Option<&ObjectName>) -> Self {
        self.flags.extend(config_map.map(|name| ("configmap".to_owned(), name.to_string())));
        self
    }

    /// Returns the options with which a translation serves what this installation does.
    pub(crate) fn options(&self, objects: &Objects, is_directory: bool) -> Options {
        let text = |name: &str, default: &str| self.flags.get(name).cloned().unwrap_or_else(|| default.to_owned());
        let is_on = |name: &str| self.flags.get(name).is_some_and(|value| is_true(value));
        let named = |name: &str| self.flags.get(name).and_then(|value| object_name(value).ok());
        let config_map = named("configmap").filter(|name| objects.has_config_map(name) || !is_directory);
        Options {
            classes: Classes {
                controller: text("controller-class", CONTROLLER),
                name: text("ingress-class", "nginx"),
                watch_without_class: is_on("watch-ingress-without-class"),
                // A directory has no admission, and often no IngressClass.
                apply_default_class: is_directory,
                by_name: is_directory || is_on("ingress-class-by-name"),
            },
            config_map,
            default_backend: named("default-backend-service"),
            tcp_services: named("tcp-services-configmap"),
            udp_services: named("udp-services-configmap"),
            catch_all: if is_on("disable-catch-all") { CatchAll::Refuse } else { CatchAll::Allow },
            annotations_prefix: text("annotations-prefix", PREFIX),
            ..Options::default()
        }
    }

    /// Returns the ConfigMaps that flags, classes, Ingresses and settings name.
    pub(super) fn config_maps(&self, objects: &Objects) -> Vec<ObjectName> {
        let cluster = &objects.cluster;
        let flags = ["configmap", "tcp-services-configmap", "udp-services-configmap"];
        let mut names: Vec<_> = flags.into_iter().filter_map(|flag| object_name(self.flags.get(flag)?).ok()).collect();
        for stored in cluster.classes.values() {
            let parameters = stored.object.spec.as_ref().and_then(|spec| spec.parameters.as_ref());
            if let Some(parameters) = parameters.filter(|parameters| parameters.kind == "ConfigMap") {
                let namespace = parameters.namespace.as_deref().unwrap_or_default();
                names.push(ObjectName::new(namespace, &parameters.name));
            }
        }
        let prefix = self.flags.get("annotations-prefix").map_or(PREFIX, String::as_str);
        for (_, stored) in cluster.ingresses.iter() {
            let named = annotation_references(&stored.object, prefix).into_iter();
            names.extend(named.filter(|id| id.kind == Kind::ConfigMap).map(|id| id.name));
        }
        for stored in cluster.config_maps.values() {
            let data = stored.object.data.as_ref();
            let value =
                |key: &str| data.and_then(|data| data.get(key)).and_then(|value| object_name(value.trim()).ok());
            names.extend(NAMING.into_iter().filter_map(value));
        }
        names.retain(|name| !name.namespace.is_empty());
        names.sort();
        names.dedup();
        names
    }

    /// Returns the tag of the image, which is the version.
    pub(super) fn version(&self) -> Option<String> {
        let image = self.workload.as_ref()?.image.split('@').next()?;
        let (_, tag) = image.rsplit('/').next()?.split_once(':')?;
        Some(tag.to_owned())
    }

    /// Returns the ConfigMap of settings, as the flag names it.
    pub(crate) fn settings(&self) -> Option<ObjectName> {
        object_name(self.flags.get("configmap")?).ok()
    }
}

/// Returns the flags among the arguments of a workload, with the namespace of its pods filled in.
fn flags(workload: &Workload) -> BTreeMap<String, String> {
    let mut flags = BTreeMap::new();
    let mut arguments = workload.arguments.iter().peekable();
    while let Some(argument) = arguments.next() {
        let Some(flag) = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-')) else { continue };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            // The value of a flag that is no switch may be the next argument.
            None => {
                let next = arguments.next_if(|next| !next.starts_with('-'));
                (flag, next.cloned().unwrap_or_default())
            }
        };
        flags.insert(name.to_owned(), value.replace("$(POD_NAMESPACE)", &workload.name.namespace));
    }
    flags
}

/// Returns the meaning of a switch of ingress-nginx, which reads Go's booleans; without a value, it is on.
fn is_true(value: &str) -> bool {
    matches!(value, "" | "1" | "t" | "T" | "true" | "TRUE" | "True")
}
