//! The names of the chart's values: `values.yaml`, its schema, the list of known names for templates and the chart's
//! README agree. It renders nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::objects;
use xtask_tools::workspace;

/// Text of the chart's README before the values.
const README: &str = "\
# xdp-ingress

A Kubernetes ingress controller with an XDP data path, on every node. Kubernetes 1.25 and Linux 5.9 or later are required
([kernels](../../docs/kernels.md)).

```sh
helm install xdp-ingress deploy/chart --namespace xdp-ingress --create-namespace
```

[deploy/README.md](../README.md) has the preparations and the privileges of the pods. Values have the paths of the chart
of ingress-nginx where the meaning is the same. The chart refuses unknown names, and names the nearest one it knows. It
accepts values of ingress-nginx without a meaning here, and tells you after the installation why each has no effect.

To take over from ingress-nginx, use your file with values, and add `compat: ingress-nginx`.

## Values
";

/// The values of the chart as files have them.
#[derive(Debug)]
pub(super) struct Values {
    text: String,
    defaults: Value,
    /// The schema of each value, by its path.
    pub(super) leaves: BTreeMap<String, Value>,
    /// Objects that take names of others.
    open: BTreeSet<String>,
    /// Values of ingress-nginx that have no effect; all below them is accepted, too.
    pub(super) ineffective: Vec<String>,
    /// Values of ingress-nginx that are refused unless they are empty or false.
    refused: Vec<String>,
}

/// A value with its comment.
#[derive(Debug)]
struct Row {
    section: String,
    path: String,
    meaning: String,
}

impl Values {
    /// # Errors
    /// Fails if a file cannot be read or parsed.
    pub(super) fn read() -> Result<Self> {
        let text = read("values.yaml")?;
        let schema: Value =
            serde_json::from_str(&read("values.schema.json")?).context("`values.schema.json` is no JSON")?;
        let others = objects::value(&read("files/ingress-nginx-values.yaml")?)?;
        let names = |part: &str| others[part].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
        let mut values = Self {
            defaults: objects::value(&text)?,
            text,
            leaves: BTreeMap::new(),
            open: BTreeSet::new(),
            ineffective: names("ineffective"),
            refused: names("refused"),
        };
        values.collect(&schema, "");
        Ok(values)
    }

    /// Collects the paths below an object. An object with `properties` has further values, unless it is one of
    /// Kubernetes', which `additionalProperties` marks.
    fn collect(&mut self, schema: &Value, parent: &str) {
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{parent}{name}");
            let others = &schema["additionalProperties"];
            if schema["properties"].is_object() && (others.is_null() || *others == true) {
                if *others == true {
                    self.open.insert(path.clone());
                }
                self.collect(schema, &format!("{path}."));
            } else {
                self.leaves.insert(path, schema.clone());
            }
        }
    }

    /// Checks that all files have the same names.
    ///
    /// # Errors
    /// Names the values that differ, or the generated file that is not up to date.
    pub(super) fn check(&self) -> Result<()> {
        let rows = self.rows()?;
        let documented: BTreeSet<_> = rows.iter().map(|row| row.path.clone()).collect();
        ensure!(documented.len() == rows.len(), "a value of `values.yaml` occurs twice");
        let known: BTreeSet<_> = self.leaves.keys().cloned().collect();
        let odd: Vec<_> = known.symmetric_difference(&documented).cloned().collect();
        ensure!(
            odd.is_empty(),
            "with a comment `# -- …` in `values.yaml` or in `values.schema.json`, but not both: {}",
            odd.join(", ")
        );
        let mut present = BTreeSet::new();
        self.present(&self.defaults, "", &mut present);
        let odd: Vec<_> = known.symmetric_difference(&present).cloned().collect();
        ensure!(odd.is_empty(), "in only one of `values.yaml` and `values.schema.json`: {}", odd.join(", "));
        let twice = |path: &&String| self.leaves.contains_key(*path);
        if let Some(path) = self.ineffective.iter().chain(&self.refused).find(twice) {
            bail!("`{path}` is a value of the chart, and in `files/ingress-nginx-values.yaml`");
        }
        for (name, text) in [("files/known-values.txt", self.known()), ("README.md", self.readme()?)] {
            ensure!(
                read(name)? == text,
                "`deploy/chart/{name}` does not fit the values; `UPDATE_EXPECT=1 cargo test -p xtask-check` writes it"
            );
        }
        Ok(())
    }

    fn present(&self, values: &Value, parent: &str, present: &mut BTreeSet<String>) {
        for (name, value) in values.as_object().into_iter().flatten() {
            let path = format!("{parent}{name}");
            let below = format!("{path}.");
            if self.leaves.range(below.clone()..).next().is_some_and(|(other, _)| other.starts_with(&below)) {
                self.present(value, &below, present);
            } else {
                present.insert(path);
            }
        }
    }

    /// Returns the names for the templates, one per line.
    pub(super) fn known(&self) -> String {
        let all: BTreeSet<_> = self.leaves.keys().chain(&self.open).collect();
        all.into_iter().map(|path| format!("{path}\n")).collect()
    }

    /// Returns the chart's README.
    ///
    /// # Errors
    /// Fails if a comment has no value.
    pub(super) fn readme(&self) -> Result<String> {
        let rows = self.rows()?;
        let mut page = README.to_owned();
        let mut sections: Vec<&str> = Vec::new();
        for row in &rows {
            if !sections.contains(&row.section.as_str()) {
                sections.push(&row.section);
            }
        }
        for section in sections {
            write!(page, "\n### {section}\n\n| value | default | meaning |\n|---|---|---|\n")?;
            for Row { path, meaning, .. } in rows.iter().filter(|row| row.section == section) {
                let pointer = format!("/{}", path.replace('.', "/"));
                let default = self.defaults.pointer(&pointer).with_context(|| format!("`{path}` has no default"))?;
                let default = match default {
                    Value::String(text) if text.is_empty() => "none".to_owned(),
                    Value::String(text) => format!("`{text}`"),
                    Value::Array(list) if list.is_empty() => "none".to_owned(),
                    Value::Object(map) if map.is_empty() => "none".to_owned(),
                    other => format!("`{other}`"),
                };
                writeln!(page, "| `{path}` | {default} | {} |", meaning.replace('|', "\\|"))?;
            }
        }
        Ok(page)
    }

    /// Reads the comments `# -- …` and the sections `# @section -- …`. The indentation gives the path.
    fn rows(&self) -> Result<Vec<Row>> {
        let mut rows: Vec<Row> = Vec::new();
        let (mut section, mut meaning) = (String::new(), None::<String>);
        let mut parents: Vec<(usize, &str)> = Vec::new();
        for line in self.text.lines() {
            let trimmed = line.trim_start();
            let indentation = line.len() - trimmed.len();
            if let Some(name) = trimmed.strip_prefix("# @section -- ") {
                name.clone_into(&mut section);
            } else if let Some(text) = trimmed.strip_prefix("# -- ") {
                if let Some(lost) = meaning.replace(text.to_owned()) {
                    bail!("the comment `{lost}` in `values.yaml` has no value");
                }
            } else if let Some(text) = trimmed.strip_prefix("# ") {
                if let Some(meaning) = &mut meaning {
                    meaning.push(' ');
                    meaning.push_str(text);
                }
            } else if let Some((key, _)) = trimmed.split_once(':').filter(|_| !trimmed.starts_with('-')) {
                parents.retain(|(column, _)| *column < indentation);
                parents.push((indentation, key));
                if let Some(meaning) = meaning.take() {
                    let path: Vec<_> = parents.iter().map(|(_, key)| *key).collect();
                    rows.push(Row { section: section.clone(), path: path.join("."), meaning });
                }
            }
        }
        Ok(rows)
    }
}

/// Reads a file of the chart.
fn read(name: &str) -> Result<String> {
    fs::read_to_string(directory().join(name)).with_context(|| format!("cannot read `deploy/chart/{name}`"))
}

/// Returns the directory of the chart.
pub(super) fn directory() -> PathBuf {
    workspace::root().join("deploy/chart")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The meaning of a value of ingress-nginx here.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Meaning {
        Same,
        Ineffective,
        Refused,
    }

    /// Returns `None` if the chart would call the value unknown.
    fn meaning(values: &Values, path: &str) -> Option<Meaning> {
        let is_in = |parent: &String| path == parent || path.starts_with(&format!("{parent}."));
        let is_parent = |leaf: &String| leaf == path || leaf.starts_with(&format!("{path}."));
        // Objects of Kubernetes, such as `controller.resources`, are leaves with further names below them.
        if values.leaves.keys().any(|leaf| is_parent(leaf) || is_in(leaf)) {
            Some(Meaning::Same)
        } else if values.refused.iter().any(|refused| refused == path) {
            Some(Meaning::Refused)
        } else if values.ineffective.iter().any(is_in) {
            Some(Meaning::Ineffective)
        } else {
            None
        }
    }

    /// `UPDATE_EXPECT=1` rewrites both files.
    #[test]
    fn every_value_is_in_the_schema_and_documented() {
        let values = Values::read().expect("values");
        expect_test::expect_file!["../../../../deploy/chart/files/known-values.txt"].assert_eq(&values.known());
        expect_test::expect_file!["../../../../deploy/chart/README.md"].assert_eq(&values.readme().expect("a page"));
        values.check().expect("the same names");
    }

    /// Names of values of ingress-nginx' chart; the pages of migration list them, too.
    const INGRESS_NGINX: &str =
        include_str!("../../../../ingress-userspace/crates/control/src/migration/names/values.txt");

    #[test]
    fn every_value_of_ingress_nginx_has_a_meaning_or_a_reason() {
        let values = Values::read().expect("values");
        let mut counts = BTreeMap::new();
        for path in INGRESS_NGINX.lines().filter(|line| !line.starts_with('#')) {
            let meaning = meaning(&values, path).unwrap_or_else(|| panic!("`{path}` is unknown to the chart"));
            *counts.entry(meaning).or_insert(0) += 1;
        }
        let expected = [(Meaning::Same, 142), (Meaning::Ineffective, 196), (Meaning::Refused, 3)];
        assert_eq!(counts.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn every_value_has_an_example_unless_there_is_no_choice() {
        for (path, schema) in Values::read().expect("values").leaves {
            let choices = schema["enum"].as_array().map_or(2, Vec::len);
            assert!(choices == 1 || schema["examples"][0] != Value::Null, "`{path}` has no example");
        }
    }
}
