//! Checks of the Helm chart alone: the chart lints and renders with everything switched on, its values and their schema
//! have the same keys, and mistakes are refused.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::objects::{self, Objects};
use xtask_setup::Packagers;
use xtask_tools::{process, workspace};

/// Mistakes in values, each with a word of the message that the user gets.
const MISTAKES: [(&str, &str); 9] = [
    ("kontroller.steer=bind", "kontroller"),
    ("controller.stear=bind", "stear"),
    ("controller.steer=rewritten", "steer"),
    ("controller.drainTimeout=-1", "drainTimeout"),
    ("controller.defaultSslCertificate=no-namespace", "defaultSslCertificate"),
    ("image.pullPolicy=Sometimes", "pullPolicy"),
    ("image.digest=sha256:short", "digest"),
    ("privileged=maybe", "privileged"),
    ("controller.watchNamespace=a,controller.watchNamespaceSelector=b", "watchNamespaceSelector"),
];

/// Runs all checks of the chart.
///
/// # Errors
/// Describes the first fault of the chart.
pub(super) fn run(tools: &Packagers) -> Result<()> {
    process::capture(helm(tools).args(["lint", "--strict", "--quiet"]).arg(directory()))?;
    version()?;
    same_keys()?;
    for (mistake, word) in MISTAKES {
        let Err(error) = template(tools, &["--set".as_ref(), mistake.as_ref()]) else {
            anyhow::bail!("the chart's schema lets `--set {mistake}` pass");
        };
        ensure!(
            format!("{error:#}").contains(word),
            "the error for `--set {mistake}` does not say what is wrong: {error:#}"
        );
    }
    everything(tools)
}

/// Renders the chart with these arguments of Helm's, in the namespace and under the name that `deploy/base` uses.
///
/// # Errors
/// Fails if Helm fails or its output is not a set of objects.
pub(super) fn template(tools: &Packagers, arguments: &[&OsStr]) -> Result<Objects> {
    let mut command = helm(tools);
    command.args(["template", "xdp-ingress", "--namespace", "xdp-ingress"]).arg(directory()).args(arguments);
    objects::parse(&process::capture(&mut command)?)
}

/// Checks that rarely used values all have their effect.
fn everything(tools: &Packagers) -> Result<()> {
    let values = directory().join("ci/everything-values.yaml");
    let objects = template(tools, &["--values".as_ref(), values.as_os_str()])?;
    let expected = [
        "RoleBinding shop/xdp-ingress-watch",
        "RoleBinding xdp-ingress/xdp-ingress-watch",
        "RoleBinding shop/xdp-ingress-status",
        "Role shop/xdp-ingress-secrets",
        "ClusterRoleBinding /xdp-ingress-cluster",
    ];
    for key in expected {
        ensure!(objects.contains_key(key), "`{}` does not make `{key}`", values.display());
    }
    ensure!(!objects.contains_key("ClusterRoleBinding /xdp-ingress-watch"), "one namespace binds the whole cluster");
    let rules = objects["ClusterRole /xdp-ingress-watch"]["rules"].to_string();
    ensure!(!rules.contains("secrets"), "a list of Secrets still grants all of them");
    let given = arguments(&objects)?;
    for value in
        ["--watch-namespace=shop", "--publish-status-address=192.0.2.1,2001:db8::1", "--workers=2", "--interface=eth1"]
    {
        ensure!(given.contains(&value), "`{}` does not give `{value}`", values.display());
    }
    let selected = template(tools, &["--set".as_ref(), "controller.watchNamespaceSelector=team in (shop)".as_ref()])?;
    let value = "--watch-namespace-selector=team in (shop)";
    ensure!(arguments(&selected)?.contains(&value), "`controller.watchNamespaceSelector` does not give `{value}`");
    Ok(())
}

/// Returns the command-line arguments that the chart passes to the product.
fn arguments(objects: &Objects) -> Result<Vec<&str>> {
    let set = objects.get("DaemonSet xdp-ingress/xdp-ingress").context("there is no DaemonSet")?;
    let arguments = set.pointer("/spec/template/spec/containers/0/args").and_then(Value::as_array);
    Ok(arguments.into_iter().flatten().filter_map(Value::as_str).collect())
}

fn version() -> Result<()> {
    let chart =
        objects::value(&fs::read_to_string(directory().join("Chart.yaml")).context("cannot read `Chart.yaml`")?)?;
    for key in ["version", "appVersion"] {
        let own = env!("CARGO_PKG_VERSION");
        ensure!(chart[key] == own, "`{key}` in `Chart.yaml` is {}, but this is version `{own}`", chart[key]);
    }
    Ok(())
}

/// Checks that values and schema have the same keys. A value outside the schema could not be set, and a value without a
/// default would not be documented.
fn same_keys() -> Result<()> {
    let read = |name: &str| fs::read_to_string(directory().join(name)).with_context(|| format!("cannot read `{name}`"));
    let text = read("values.yaml")?;
    let schema = serde_json::from_str(&read("values.schema.json")?).context("`values.schema.json` is no JSON")?;
    let mut known = BTreeSet::new();
    properties(&schema, "", &mut known);
    // Helm defines this key itself.
    known.remove(".global");
    let mut present = BTreeSet::new();
    keys(&objects::value(&text)?, "", &known, &mut present);
    let odd: Vec<_> = known.symmetric_difference(&present).cloned().collect();
    ensure!(odd.is_empty(), "in only one of `values.yaml` and `values.schema.json`: {}", odd.join(", "));
    let documented = text.lines().filter(|line| line.trim_start().starts_with("# -- ")).count();
    let leaves = known.iter().filter(|key| !known.iter().any(|other| other.starts_with(&format!("{key}.")))).count();
    ensure!(documented == leaves, "{leaves} values in `values.yaml`, but {documented} of them have a comment `# -- …`");
    Ok(())
}

/// Collects the paths that `values.yaml` must show. The contents of a value that is empty by default occur in the
/// schema only.
fn properties(schema: &Value, path: &str, known: &mut BTreeSet<String>) {
    const OPEN: [&str; 4] = [".ingressClass.parameters", ".affinity", ".resources", ".tolerations"];
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        if !OPEN.contains(&path.as_str()) {
            properties(schema, &path, known);
        }
        known.insert(path);
    }
}

fn keys(values: &Value, path: &str, known: &BTreeSet<String>, present: &mut BTreeSet<String>) {
    for (name, value) in values.as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        // Only below a key that the schema describes are further keys defined by this chart.
        if known.iter().any(|other| other.starts_with(&format!("{path}."))) {
            keys(value, &path, known, present);
        }
        present.insert(path);
    }
}

/// Returns a Helm command that ignores the user's own configuration and repositories.
fn helm(tools: &Packagers) -> Command {
    let home = workspace::target_dir().join("helm");
    let mut command = Command::new(&tools.helm);
    for (variable, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("HELM_")) {
        command.env_remove(variable);
    }
    for (variable, part) in [("HELM_CACHE_HOME", "cache"), ("HELM_CONFIG_HOME", "config"), ("HELM_DATA_HOME", "data")] {
        command.env(variable, home.join(part));
    }
    command
}

fn directory() -> PathBuf {
    workspace::root().join("deploy/chart")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_the_schema_and_documented() {
        same_keys().expect("the same keys");
    }

    #[test]
    fn the_chart_has_the_version_of_the_program() {
        version().expect("the same version");
    }
}
