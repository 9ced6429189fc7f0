//! Kubernetes objects as text, compared one by one. It treats all kinds alike and applies nothing.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Objects by kind, namespace and name.
pub(super) type Objects = BTreeMap<String, Value>;

/// Labels that Helm adds to its objects; kustomize writes none of them.
const HELM_LABELS: [&str; 3] = ["app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart"];

/// Parses the objects in a stream of YAML documents.
///
/// # Errors
/// Fails if a document is not YAML or not an object, or if two objects have the same name.
pub(super) fn parse(yaml: &str) -> Result<Objects> {
    let mut objects = Objects::new();
    for document in format!("\n{yaml}").split("\n---") {
        let mut object: Value = value(document)?;
        if object.is_null() {
            continue;
        }
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let key = format!("{} {}/{}", text("/kind"), text("/metadata/namespace"), text("/metadata/name"));
        ensure!(!text("/kind").is_empty(), "a document without `kind`: {document}");
        if let Some(labels) = object.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
            labels.retain(|name, _| !HELM_LABELS.contains(&name.as_str()));
        }
        ensure!(objects.insert(key.clone(), object).is_none(), "`{key}` occurs twice");
    }
    Ok(objects)
}

/// Parses one YAML document.
///
/// # Errors
/// Fails if the document is not YAML.
pub(super) fn value(yaml: &str) -> Result<Value> {
    if yaml.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(Value::Null);
    }
    serde_saphyr::from_str(yaml).with_context(|| format!("no YAML: {yaml}"))
}

/// Returns the differences between two sets of objects, by object and path; empty if there are none.
pub(super) fn differences(left: &Objects, right: &Objects) -> Vec<String> {
    let mut all = Vec::new();
    let keys: std::collections::BTreeSet<_> = left.keys().chain(right.keys()).collect();
    for key in keys {
        compare(key, left.get(key), right.get(key), &mut all);
    }
    all
}

fn compare(path: &str, left: Option<&Value>, right: Option<&Value>, all: &mut Vec<String>) {
    match (left, right) {
        (Some(Value::Object(left)), Some(Value::Object(right))) => {
            let keys: std::collections::BTreeSet<_> = left.keys().chain(right.keys()).collect();
            for key in keys {
                compare(&format!("{path} .{key}"), left.get(key), right.get(key), all);
            }
        }
        (Some(Value::Array(left)), Some(Value::Array(right))) if left.len() == right.len() => {
            for (index, (left, right)) in left.iter().zip(right).enumerate() {
                compare(&format!("{path} [{index}]"), Some(left), Some(right), all);
            }
        }
        (left, right) if left != right => {
            let show = |value: Option<&Value>| value.map_or_else(|| "nothing".to_owned(), Value::to_string);
            all.push(format!("{path}: {} and {}", show(left), show(right)));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str =
        "# a comment\n---\nkind: A\nmetadata:\n  name: a\n  labels:\n    helm.sh/chart: x\nspec: [1, {b: c}]\n";

    #[test]
    fn labels_of_helm_and_order_are_ignored() {
        let two = "kind: B\nmetadata: {name: b, namespace: ns}\n---\nspec: [1, {b: c}]\nkind: A\nmetadata: {labels: {}, name: a}\n";
        let (one, two) = (parse(ONE).expect("objects"), parse(two).expect("objects"));
        assert_eq!(two.keys().collect::<Vec<_>>(), ["A /a", "B ns/b"]);
        let differences = differences(&one, &two);
        assert_eq!(differences.len(), 1, "{differences:?}");
        assert!(differences[0].starts_with("B ns/b: nothing and {"), "{differences:?}");
    }

    #[test]
    fn a_difference_is_named_by_its_path() {
        let other = ONE.replace("b: c", "b: d");
        let differences = differences(&parse(ONE).expect("objects"), &parse(&other).expect("objects"));
        assert_eq!(differences, [r#"A /a .spec [1] .b: "c" and "d""#]);
    }

    #[test]
    fn invalid_sets_of_objects_are_refused() {
        for bad in ["a: b", "kind: A\n---\nkind: A", "kind: [", "kind: A\nkind: B"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse("# nothing\n---\n").expect("objects").is_empty());
    }
}
