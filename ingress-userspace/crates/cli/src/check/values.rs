//! Values of ingress-nginx' chart, as far as they become settings and flags of the controller. `names` judges the others.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use anyhow::{Context as _, Result};
use ingress_control::{
    Origin,
    change::{Object, ObjectName},
};
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde_json::Value;

use super::{finding::Finding, names, objects::Objects};
use crate::migrate::without_source;

/// Namespace of the ConfigMaps that stand for values; no namespace can have this name.
pub(super) const NAMESPACE: &str = "*values";
/// Kind that findings about values have in place of an object's.
pub(super) const KIND: &str = "Values";
/// Values that are maps of settings or services, and the flags that name their ConfigMaps.
const MAPS: [(&str, &str); 3] =
    [("/controller/config", "configmap"), ("/tcp", "tcp-services-configmap"), ("/udp", "udp-services-configmap")];

/// Values with the form of flags and ConfigMaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Values {
    pub(super) flags: BTreeMap<String, String>,
    /// Content of ConfigMaps, by the path of the value, such as `controller.config`.
    maps: BTreeMap<String, BTreeMap<String, String>>,
    /// Findings about their names.
    pub(super) findings: Vec<Finding>,
}

// === impl Values ===

impl Values {
    /// Reads a file of values.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or is no YAML.
    pub(super) fn read(file: &Path) -> Result<Self> {
        let what = || format!("cannot read the values in `{}`", file.display());
        let text = fs::read_to_string(file).with_context(what)?;
        Self::parse(&text).with_context(what)
    }

    fn parse(text: &str) -> Result<Self> {
        let values: Value = serde_saphyr::from_str(text).map_err(without_source)?;
        let mut read = Self::default();
        let of = |map: &Value| -> BTreeMap<String, String> {
            map.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), scalar(value))).collect()
        };
        for (pointer, flag) in MAPS {
            let content = values.pointer(pointer).map(of).unwrap_or_default();
            if !content.is_empty() {
                let path = pointer.trim_start_matches('/').replace('/', ".");
                read.flags.insert(flag.to_owned(), format!("{NAMESPACE}/{path}"));
                read.maps.insert(path, content);
            }
        }
        let controller = &values["controller"];
        for (value, flag) in [
            (&controller["watchIngressWithoutClass"], "watch-ingress-without-class"),
            (&controller["ingressClassByName"], "ingress-class-by-name"),
            (&controller["ingressClassResource"]["controllerValue"], "controller-class"),
            (&controller["ingressClass"], "ingress-class"),
        ] {
            if !value.is_null() {
                read.flags.insert(flag.to_owned(), scalar(value));
            }
        }
        read.flags.extend(of(&controller["extraArgs"]));
        read.findings = names::of_values(&values);
        Ok(read)
    }

    /// Adds the ConfigMaps that the chart would make.
    pub(super) fn add_to(&self, objects: &mut Objects) {
        for (path, data) in &self.maps {
            let ObjectName { namespace, name } = ObjectName::new(NAMESPACE, path);
            let metadata = ObjectMeta {
                namespace: Some((*namespace).to_owned()),
                name: Some((*name).to_owned()),
                ..ObjectMeta::default()
            };
            let object = ConfigMap { metadata, data: Some(data.clone()), ..ConfigMap::default() };
            objects.add(Object::ConfigMap(Arc::new(object)), &Origin::Api);
        }
    }
}

/// Returns a value as the chart's templates write it.
fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
