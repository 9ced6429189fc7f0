//! Renders the chart with the example of each value, which must change an object and occur in the change. A value that a
//! template forgets is found here.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::chart::template_of;
use super::objects::{Objects, differences};
use super::values::{Values, directory};
use xtask_setup::Packagers;
use xtask_tools::workspace;

/// Values that others need to have an effect, by their path, or by its beginning, which ends with a dot. All fitting rows
/// apply.
const CONTEXTS: [(&str, &[&str]); 21] = [
    (
        "controller.api.",
        &[
            "controller.api.enabled=true",
            "controller.api.tlsSecret=\"tls\"",
            "controller.api.clientCaSecret=\"authorities\"",
        ],
    ),
    ("controller.scope.namespace", &["controller.scope.enabled=true"]),
    ("controller.configAnnotations", &["controller.config={\"ssl-redirect\":\"true\"}"]),
    ("controller.configMapNamespace", &["controller.config={\"ssl-redirect\":\"true\"}"]),
    ("controller.publishService.enabled", &["controller.service.enabled=true"]),
    ("controller.tcp.", &["tcp={\"5432\":\"shop/database:5432\"}"]),
    ("controller.udp.", &["udp={\"53\":\"dns/resolver:53\"}"]),
    ("portNamePrefix", &["controller.service.enabled=true", "tcp={\"5432\":\"shop/database:5432\"}"]),
    ("controller.service.", &["controller.service.enabled=true", "tcp={\"5432\":\"shop/database:5432\"}"]),
    ("controller.service.nodePorts.udp", &["udp={\"53\":\"dns/resolver:53\"}"]),
    (
        "controller.service.internal.",
        &["controller.service.internal.enabled=true", "controller.service.internal.annotations={\"a\":\"b\"}"],
    ),
    ("controller.service.internal.nodePorts.udp", &["udp={\"53\":\"dns/resolver:53\"}"]),
    ("controller.http3.", &["controller.http3.enabled=true"]),
    ("controller.service.nodePorts.http3", &["controller.http3.enabled=true"]),
    ("controller.service.internal.nodePorts.http3", &["controller.http3.enabled=true"]),
    ("gatewayAPI.services", &["gatewayAPI.enabled=true"]),
    ("controller.metrics.", &["controller.metrics.enabled=true"]),
    ("controller.metrics.serviceMonitor.", &["controller.metrics.serviceMonitor.enabled=true"]),
    ("controller.metrics.podMonitor.", &["controller.metrics.podMonitor.enabled=true"]),
    ("controller.metrics.prometheusRule.", &["controller.metrics.prometheusRule.enabled=true"]),
    ("controller.metrics.dashboards.", &["controller.metrics.dashboards.enabled=true"]),
];
/// Values with an effect that does not contain their text.
const TRANSLATED: [&str; 4] = [
    "controller.service.targetPorts.https",
    "controller.service.internal.targetPorts.https",
    "controller.extraArgs",
    "controller.metrics.service.type",
];

/// Renders every value.
///
/// # Errors
/// Names the values without an effect.
pub(super) fn run(tools: &Packagers, values: &Values) -> Result<()> {
    let chart = with_files()?;
    let todo: Mutex<Vec<(&String, &Value)>> =
        Mutex::new(values.leaves.iter().filter(|(_, schema)| schema.get("examples").is_some()).collect());
    let faults = Mutex::new(Vec::new());
    let plain: Mutex<BTreeMap<Vec<String>, Objects>> = Mutex::new(BTreeMap::new());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    // A poisoned lock belongs to a thread that panicked; the scope passes the panic on.
                    let next = todo.lock().ok().and_then(|mut todo| todo.pop());
                    let Some((path, schema)) = next else { return };
                    let fault = effect(tools, &chart, path, &schema["examples"][0], &plain);
                    if let (Err(error), Ok(mut faults)) = (fault, faults.lock()) {
                        faults.push(format!("`{path}`: {error:#}"));
                    }
                }
            });
        }
    });
    let faults = faults.into_inner().unwrap_or_default();
    ensure!(faults.is_empty(), "values of the chart without their effect:\n  {}", faults.join("\n  "));
    Ok(())
}

fn effect(
    tools: &Packagers,
    chart: &Path,
    path: &str,
    example: &Value,
    plain: &Mutex<BTreeMap<Vec<String>, Objects>>,
) -> Result<()> {
    let context = context(path);
    let known = plain.lock().ok().and_then(|plain| plain.get(&context).cloned());
    let without = match known {
        Some(objects) => objects,
        None => render(tools, chart, &context)?,
    };
    // The keys of node ports are those of services, which the context has.
    let is_new = |text: &String| !context.iter().any(|value| value.contains(&**text));
    let expected: Vec<_> = texts(example).into_iter().filter(is_new).collect();
    let mut values = context.clone();
    values.push(format!("{path}={example}"));
    let changes = differences(&without, &render(tools, chart, &values)?);
    if let Ok(mut plain) = plain.lock() {
        plain.insert(context, without);
    }
    ensure!(!changes.is_empty(), "its example `{example}` changes nothing");
    if !TRANSLATED.contains(&path) {
        for text in expected {
            ensure!(changes.iter().any(|change| change.contains(&text)), "`{text}` is not in the changes: {changes:?}");
        }
    }
    Ok(())
}

/// Returns the values that apply in addition; a switch is off in its own context.
fn context(path: &str) -> Vec<String> {
    let fits = |row: &str| row == path || (row.ends_with('.') && path.starts_with(row));
    let values = CONTEXTS.iter().filter(|(row, _)| fits(row)).flat_map(|(_, values)| *values);
    values.filter(|value| value.strip_suffix("=true") != Some(path)).map(|value| (*value).to_owned()).collect()
}

/// Returns the texts that an example adds to objects; the keys and values of maps, and no booleans.
fn texts(example: &Value) -> Vec<String> {
    match example {
        Value::Null | Value::Bool(_) => Vec::new(),
        Value::Number(number) => vec![number.to_string()],
        // Objects are shown as JSON.
        Value::String(text) => vec![text.replace('"', "\\\"")],
        Value::Array(list) => list.iter().flat_map(texts).collect(),
        Value::Object(map) => map.iter().flat_map(|(key, value)| [vec![key.clone()], texts(value)].concat()).collect(),
    }
}

fn render(tools: &Packagers, chart: &Path, values: &[String]) -> Result<Objects> {
    let arguments: Vec<String> = values.iter().map(|value| format!("--set-json={value}")).collect();
    let arguments: Vec<_> = arguments.iter().map(AsRef::as_ref).collect();
    template_of(tools, chart, &arguments)
}

/// Copies the chart, and adds a file of rules and a board, so that the result does not depend on those of the chart.
fn with_files() -> Result<PathBuf> {
    let copy = workspace::target_dir().join("chart");
    if copy.exists() {
        fs::remove_dir_all(&copy).context("cannot remove the old copy of the chart")?;
    }
    copy_tree(&directory(), &copy)?;
    let rule = "groups:\n  - name: test\n    rules:\n      - {alert: Test, expr: vector(1), annotations: {text: '{{ $value }}'}}\n";
    for (name, text) in [("rules/test.yaml", rule), ("dashboards/test.json", "{\"title\": \"{{ test }}\"}\n")] {
        let path = copy.join("files").join(name);
        fs::create_dir_all(path.parent().unwrap_or(&copy)).context("cannot make a directory of the copy")?;
        fs::write(&path, text).with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    Ok(copy)
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make `{}`", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot list `{}`", from.display()))? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy_tree(&source, &target)?;
        } else {
            fs::copy(&source, &target).with_context(|| format!("cannot copy `{}`", source.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_off_in_their_own_context() {
        assert!(context("controller.metrics.enabled").is_empty());
        assert_eq!(context("controller.metrics.port"), ["controller.metrics.enabled=true"]);
        assert!(context("controller.log").is_empty());
    }

    #[test]
    fn texts_of_an_example_are_keys_and_values() {
        assert_eq!(texts(&serde_json::json!({"a": ["b\"", 1, true]})), ["a", "b\\\"", "1"]);
    }
}
