//! Writes what `check --fix` is sure of as patches for kustomize. Nothing is applied, and no file is overwritten.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, OpenOptions},
    io::Write as _,
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use ingress_control::change::ObjectName;
use serde_json::{Value, json};

use super::{judge::PREFIX, snippet::Conversion};

/// Files to write, by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Files(pub(super) BTreeMap<String, String>);

// === impl Files ===

impl Files {
    /// Returns the patches for these Ingresses.
    ///
    /// # Errors
    /// Fails if an object has no form in YAML.
    pub(super) fn of(conversions: &BTreeMap<ObjectName, Conversion>, snippets: &Snippets) -> Result<Self> {
        let (mut files, mut patches, mut resources) = (BTreeMap::new(), Vec::new(), Vec::new());
        let mut settings = BTreeMap::new();
        for (name, conversion) in conversions {
            let stem = format!("{}.{}", name.namespace, name.name);
            let patch = patch(name, conversion, snippets.get(name).map(Vec::as_slice).unwrap_or_default());
            if let Some(patch) = patch {
                let file = format!("ingress.{stem}.yaml");
                files.insert(file.clone(), rest(conversion) + &serde_saphyr::to_string(&patch)?);
                patches.push(json!({ "path": file }));
            }
            if !conversion.auth_fields.is_empty() {
                let file = format!("configmap.{stem}.yaml");
                let metadata = json!({ "namespace": &*name.namespace, "name": auth_fields(name) });
                let object = json!({
                    "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": conversion.auth_fields,
                });
                files.insert(file.clone(), serde_saphyr::to_string(&object)?);
                resources.push(Value::from(file));
            }
            for (key, value) in &conversion.settings {
                settings.entry(key.as_str()).or_insert_with(BTreeMap::new).entry(value.as_str()).or_insert(name);
            }
        }
        if !settings.is_empty() {
            files.insert("settings.yaml".to_owned(), self::settings(&settings)?);
        }
        if !patches.is_empty() {
            let component = json!({
                "apiVersion": "kustomize.config.k8s.io/v1alpha1",
                "kind": "Component",
                "resources": resources,
                "patches": patches,
            });
            files.insert("kustomization.yaml".to_owned(), serde_saphyr::to_string(&component)?);
        }
        Ok(Self(files))
    }

    /// Writes the files into `directory`, which is made if it is missing.
    ///
    /// # Errors
    /// Fails if a file exists already, in which case none is written, or if one cannot be written.
    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory).with_context(|| format!("cannot make `{}`", directory.display()))?;
        for name in self.0.keys() {
            // Names of objects in a directory are what its author wrote.
            ensure!(!name.contains('/'), "`{name}` is no name of a file; correct the name of the object");
            let path = directory.join(name);
            ensure!(!path.exists(), "`{}` exists already; use another directory", path.display());
        }
        for (name, text) in &self.0 {
            let path = directory.join(name);
            let file = OpenOptions::new().write(true).create_new(true).open(&path);
            file.and_then(|mut file| file.write_all(text.as_bytes()))
                .with_context(|| format!("cannot write `{}`; use another directory", path.display()))?;
        }
        Ok(())
    }
}

/// Snippet annotations of Ingresses, by names without prefix.
pub(super) type Snippets = BTreeMap<ObjectName, Vec<&'static str>>;

/// Returns the patch of an Ingress. ingress-nginx goes on to read its own annotations, and an empty annotation of this
/// controller takes the place of a snippet that is converted as a whole.
fn patch(name: &ObjectName, conversion: &Conversion, snippets: &[&str]) -> Option<Value> {
    let mut annotations: BTreeMap<String, String> =
        conversion.annotations.iter().map(|(key, value)| (format!("{PREFIX}/{key}"), value.clone())).collect();
    if !conversion.auth_fields.is_empty() {
        annotations.insert(format!("{PREFIX}/auth-proxy-set-headers"), auth_fields(name));
    }
    if conversion.is_whole() {
        annotations.extend(snippets.iter().map(|key| (format!("{PREFIX}/{key}"), String::new())));
    }
    let metadata = json!({ "namespace": &*name.namespace, "name": &*name.name, "annotations": annotations });
    (!annotations.is_empty())
        .then(|| json!({ "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": metadata }))
}

/// Returns the name of the ConfigMap with the fields for `auth-url`.
fn auth_fields(name: &ObjectName) -> String {
    format!("{}-auth-fields", name.name)
}

/// Returns the file of settings, of which each has its values with an Ingress that asks for it. Networks are joined; of other
/// settings with several values, none is chosen.
fn settings(settings: &BTreeMap<&str, BTreeMap<&str, &ObjectName>>) -> Result<String> {
    let mut text = "# Settings hold for all hosts: add them to the ConfigMap that `--configmap` names.\n".to_owned();
    let mut sure = BTreeMap::new();
    // Without the field, `X-Forwarded-For` would name clients, which no snippet asks for.
    let has_field = settings.get("forwarded-for-header").is_none_or(|values| values.len() == 1);
    for (key, values) in settings {
        if *key == "enable-real-ip" && !has_field {
            text +=
                "# not converted: enable-real-ip, because forwarded-for-header has several values; choose one first\n";
        } else if *key == "proxy-real-ip-cidr" {
            let networks: BTreeSet<_> = values.keys().flat_map(|value| value.split(", ")).collect();
            sure.insert(*key, networks.into_iter().collect::<Vec<_>>().join(", "));
        } else if let Some(value) = values.keys().next().filter(|_| values.len() == 1) {
            sure.insert(*key, (*value).to_owned());
        } else {
            let asked: Vec<_> = values.iter().map(|(value, name)| format!("{value} by {name}")).collect();
            text += &format!("# not converted: {key} has several values: {}\n", asked.join(", "));
        }
    }
    Ok(if sure.is_empty() { text } else { text + &serde_saphyr::to_string(&sure)? })
}

/// Returns comments about what is not converted.
fn rest(conversion: &Conversion) -> String {
    let line = |remark: &super::snippet::Remark| {
        let place = remark.place.annotation();
        let text = format!("{place}, line {}: {}: {}", remark.line, remark.subject, remark.text);
        format!("# not converted: {}\n", text.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    conversion.rest.iter().map(line).collect()
}
