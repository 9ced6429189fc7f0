//! Checks of the Helm chart alone: the chart lints and renders with the files of `ci/`, mistakes are refused with a
//! message that helps, and each value has its effect.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::effects;
use super::objects::{self, Objects};
use super::pod_monitor;
use super::values::{Values, directory};
use xtask_setup::Packagers;
use xtask_tools::{process, published, workspace};

/// Mistakes in values, each with a part of the message that the user gets.
const MISTAKES: [(&str, &str); 38] = [
    // The schema's
    ("controller.steer=rewritten", "steer"),
    ("controller.drainTimeout=-1", "drainTimeout"),
    ("controller.defaultSslCertificate=no-namespace", "defaultSslCertificate"),
    ("controller.image.pullPolicy=Sometimes", "pullPolicy"),
    ("controller.image.digest=sha256:short", "digest"),
    ("controller.metrics.service.type=LoadBalancer", "type"),
    ("privileged=maybe", "privileged"),
    ("tcp.http=shop/web:80", "http"),
    // Unknown names
    ("kontroller.steer=bind", "unknown value `kontroller.steer`; did you mean `controller.steer`?"),
    ("controller.stear=bind", "unknown value `controller.stear`; did you mean `controller.steer`?"),
    ("controller.electionId=a", "did you mean `controller.electionID`?"),
    ("controller.watchNamespace=a", "did you mean `controller.scope.namespace`?"),
    ("controller.service.loadbalancerSourceRange=a", "did you mean `controller.service.loadBalancerSourceRanges`?"),
    ("image.repository=a", "did you mean `controller.image.repository`?"),
    ("ingressClass.name=a", "did you mean `controller.ingressClassResource.name`?"),
    ("nodeSelector.a=b", "did you mean `controller.nodeSelector`?"),
    ("xyz=1", "unknown value `xyz`; `helm show values` lists all"),
    // Values of ingress-nginx that would change what is served
    ("defaultBackend.enabled=true", "`controller.defaultBackendService`"),
    ("controller.customTemplate.configMapName=a", "`controller.config`"),
    ("rbac.scope=true", "`controller.scope`"),
    ("controller.image.image=ingress-nginx/controller", "the image of ingress-nginx"),
    ("global.image.registry=registry.k8s.io", "the image of ingress-nginx"),
    ("controller.lifecycle.preStop.exec.command={/wait-shutdown}", "`/wait-shutdown`"),
    // Contradictions
    ("controller.scope.enabled=true,controller.scope.namespaceSelector=b", "namespaceSelector"),
    ("controller.service.enabled=true,controller.publishStatusAddress={192.0.2.1}", "publishStatusAddress"),
    ("controller.terminationGracePeriodSeconds=240", "drainTimeout"),
    ("controller.configMap=a/b,controller.config.a=b", "`controller.configMap`"),
    ("controller.addHeaders.a=b,controller.config.add-headers=a/b", "`controller.addHeaders`"),
    ("tcp.80=a/b:80,controller.tcpServicesConfigMap=a/b", "`controller.tcpServicesConfigMap`"),
    ("controller.metrics.enabled=true,controller.adminAddress=192.0.2.1:1", "`controller.adminAddress`"),
    ("controller.api.enabled=true", "`controller.api.tlsSecret`"),
    (
        "controller.api.enabled=true,controller.api.tlsSecret=a,controller.api.tokenReview=false",
        "to authenticate clients",
    ),
    ("controller.metrics.serviceMonitor.enabled=true", "set `controller.metrics.enabled`"),
    (
        "controller.metrics.enabled=true,controller.metrics.serviceMonitor.enabled=true,controller.metrics.service.enabled=false",
        "set `controller.metrics.service.enabled`",
    ),
    ("controller.metrics.podMonitor.enabled=true", "set `controller.metrics.enabled`"),
    (
        "controller.metrics.enabled=true,controller.metrics.serviceMonitor.enabled=true,controller.metrics.podMonitor.enabled=true",
        "set only one",
    ),
    ("controller.service.enabled=true,controller.service.internal.enabled=true", "would be public"),
    (
        "controller.service.enabled=true,controller.service.enableHttp=false,controller.service.enableHttps=false",
        "`controller.service` has no port",
    ),
];

/// Values, and whether pods with them bind ports below 1024, for which they need a capability.
const BOUND: [(&str, bool); 7] = [
    ("controller.steer=rewrite", false),
    ("controller.extraArgs.steer=bind", true),
    ("controller.extraArgs.udp-services-configmap=a/b", true),
    ("tcp.53=dns/resolver:53", false),
    ("udp.53=dns/resolver:53", true),
    ("controller.http3.enabled=true", true),
    ("controller.extraArgs.http3=on", true),
];

/// Files of `ci/`, each with objects and arguments that the chart must make of it.
const FILES: [(&str, &[&str], &[&str]); 5] = [
    ("default", &["IngressClass /xdp"], &["--election-id=xdp-ingress-leader"]),
    (
        "everything",
        &[
            "RoleBinding shop/xdp-ingress-watch",
            "RoleBinding edge/xdp-ingress-watch",
            "RoleBinding settings/xdp-ingress-watch",
            "RoleBinding streams/xdp-ingress-watch",
            "RoleBinding shop/xdp-ingress-status",
            "RoleBinding shop/xdp-ingress-gateway",
            "ClusterRoleBinding /xdp-ingress-gateway-class",
            "GatewayClass /xdp-ingress",
            "Role shop/xdp-ingress-secrets",
            "ClusterRoleBinding /xdp-ingress-cluster",
            "ConfigMap settings/xdp-ingress-add-headers",
            "ConfigMap settings/xdp-ingress-proxy-set-headers",
            "ConfigMap streams/xdp-ingress-tcp",
            "ConfigMap edge/xdp-ingress-udp",
            "IngressClass /edge-b",
            "Service edge/xdp-ingress-internal",
            "Service edge/xdp-ingress-metrics",
            "ServiceMonitor edge/xdp-ingress",
            "PrometheusRule edge/xdp-ingress",
        ],
        &[
            "--watch-namespace=shop",
            "--publish-status-address=192.0.2.1,2001:db8::1",
            "--admin-addr=192.0.2.1:9111",
            "--http3=on",
            "--http3-advertise-port=8443",
            // Of `extraArgs`: instead of the chart's own, as a whole number, without a value, and repeated.
            "--log=info,ingress_proxy=debug",
            "--host-capacity=1048576",
            "--disable-catch-all",
            "--allow-endpoints-in=198.51.100.0/24",
        ],
    ),
    (
        "ingress-nginx",
        &["ConfigMap xdp-ingress/xdp-ingress-settings", "Service xdp-ingress/xdp-ingress-metrics"],
        &[
            "--ingress-class=nginx",
            "--controller-class=k8s.io/ingress-nginx",
            "--configmap=xdp-ingress/xdp-ingress-settings",
            "--tcp-services-configmap=xdp-ingress/xdp-ingress-tcp",
            "--default-ssl-certificate=default/wildcard-tls",
            "--enable-ssl-passthrough",
            "--admin-addr=$(NODE_IP):9110",
        ],
    ),
    (
        "loadbalancer",
        &["Service xdp-ingress/xdp-ingress", "Service xdp-ingress/xdp-ingress-internal"],
        &["--publish-service=xdp-ingress/xdp-ingress"],
    ),
    ("nodeport", &["Service xdp-ingress/xdp-ingress"], &["--tcp-services-configmap=xdp-ingress/xdp-ingress-tcp"]),
];

/// Runs all checks of the chart.
///
/// # Errors
/// Describes the first fault of the chart.
pub(super) fn run(tools: &Packagers) -> Result<()> {
    metadata()?;
    let values = Values::read()?;
    values.check()?;
    for (name, objects, arguments) in FILES {
        file(tools, name, objects, arguments).with_context(|| format!("with `ci/{name}-values.yaml`"))?;
    }
    for (set, bound) in BOUND {
        let rendered = template(tools, &["--set".as_ref(), set.as_ref()])?;
        let added = rendered["DaemonSet xdp-ingress/xdp-ingress"].to_string().contains("NET_BIND_SERVICE");
        ensure!(added == bound, "with `--set {set}` the pods have NET_BIND_SERVICE: {added}");
    }
    for (mistake, part) in MISTAKES {
        let Err(error) = template(tools, &["--set".as_ref(), mistake.as_ref()]) else {
            anyhow::bail!("the chart lets `--set {mistake}` pass");
        };
        ensure!(
            format!("{error:#}").contains(part),
            "the error for `--set {mistake}` does not say what is wrong: {error:#}"
        );
    }
    misspelled(tools, &values)?;
    ineffective(tools, &values)?;
    pod_monitor::run(tools)?;
    effects::run(tools, &values)
}

/// Renders the chart with these arguments of Helm's, in the namespace and under the name that `deploy/base` uses.
///
/// # Errors
/// Fails if Helm fails or its output is not a set of objects.
pub(super) fn template(tools: &Packagers, arguments: &[&OsStr]) -> Result<Objects> {
    template_of(tools, &directory(), arguments)
}

/// Renders another copy of the chart likewise.
///
/// # Errors
/// Fails if Helm fails or its output is not a set of objects.
pub(super) fn template_of(tools: &Packagers, chart: &Path, arguments: &[&OsStr]) -> Result<Objects> {
    let mut command = helm(tools);
    command.args(["template", "xdp-ingress", "--namespace", "xdp-ingress"]).arg(chart).args(arguments);
    objects::parse(&process::capture(&mut command)?)
}

/// Lints and renders the chart with a file of `ci/`, and looks for the objects and arguments.
fn file(tools: &Packagers, name: &str, expected: &[&str], wanted: &[&str]) -> Result<()> {
    let values = directory().join(format!("ci/{name}-values.yaml"));
    process::capture(helm(tools).args(["lint", "--strict", "--quiet", "--values"]).arg(&values).arg(directory()))?;
    let objects = template(tools, &["--values".as_ref(), values.as_os_str()])?;
    for key in expected {
        ensure!(objects.contains_key(*key), "there is no `{key}`");
    }
    let given = arguments(&objects)?;
    for argument in wanted {
        ensure!(given.contains(argument), "there is no argument `{argument}`");
    }
    let flags: BTreeSet<_> = given.iter().filter_map(|argument| argument.split('=').next()).collect();
    let repeated = given.len() - flags.len();
    ensure!(repeated == usize::from(name == "everything"), "{repeated} arguments are given twice: {given:?}");
    let rules = |role: &str| objects.get(role).map_or_else(String::new, |role| role["rules"].to_string());
    if name == "everything" {
        ensure!(
            !objects.contains_key("ClusterRoleBinding /xdp-ingress-watch"),
            "one namespace binds the whole cluster"
        );
        ensure!(
            !rules("ClusterRole /xdp-ingress-watch").contains("secrets"),
            "a list of Secrets still grants all of them"
        );
        ensure!(!given.contains(&"--allow-svc-external-name=false"), "a switch has a value");
    }
    Ok(())
}

/// Leaves a letter out of the name of each value. The error must name the value itself as the nearest, or nothing for
/// short names.
fn misspelled(tools: &Packagers, values: &Values) -> Result<()> {
    let mut set = Value::Object(serde_json::Map::new());
    let mut expected = Vec::new();
    for path in values.leaves.keys() {
        // Other charts have values there, too.
        if path.starts_with("global.") {
            continue;
        }
        let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
        let mut name = name.to_owned();
        name.remove(name.len() / 2);
        let wrong = format!("{parent}.{name}").trim_start_matches('.').to_owned();
        if values.leaves.contains_key(&wrong) {
            continue;
        }
        *wrong.split('.').fold(&mut set, |place, part| &mut place[part]) = Value::Bool(true);
        expected.push((wrong, path));
    }
    let file = workspace::target_dir().join("misspelled-values.json");
    fs::write(&file, set.to_string()).with_context(|| format!("cannot write `{}`", file.display()))?;
    let Err(error) = template(tools, &["--values".as_ref(), file.as_os_str()]) else {
        anyhow::bail!("the chart accepts misspelled values");
    };
    let error = format!("{error:#}");
    let mut others = Vec::new();
    for (wrong, path) in &expected {
        ensure!(error.contains(&format!("unknown value `{wrong}`")), "the chart accepts `{wrong}`");
        if !error.contains(&format!("unknown value `{wrong}`; did you mean `{path}`?")) {
            others.push(wrong.as_str());
        }
    }
    ensure!(
        others.len() * 20 <= expected.len(),
        "of {} misspelled values, {} do not lead to the right one: {}",
        expected.len(),
        others.len(),
        others.join(", ")
    );
    Ok(())
}

/// Sets all values of ingress-nginx without a meaning here. The chart must accept them, and the notes must name each.
fn ineffective(tools: &Packagers, values: &Values) -> Result<()> {
    let mut set = Value::Object(serde_json::Map::new());
    for path in &values.ineffective {
        *path.split('.').fold(&mut set, |place, part| &mut place[part]) = Value::Bool(false);
    }
    let file = workspace::target_dir().join("ineffective-values.json");
    fs::write(&file, set.to_string()).with_context(|| format!("cannot write `{}`", file.display()))?;
    let mut command = helm(tools);
    command.args(["install", "xdp-ingress", "--dry-run=client", "--values"]).arg(&file).arg(directory());
    let notes = process::capture(command.env("KUBECONFIG", "/dev/null"))?;
    for path in &values.ineffective {
        ensure!(notes.contains(&format!("`{path}` has no effect: ")), "the notes do not name `{path}`");
    }
    Ok(())
}

/// Returns the command-line arguments that the chart passes to the product.
fn arguments(objects: &Objects) -> Result<Vec<&str>> {
    let set = objects.iter().find(|(key, _)| key.starts_with("DaemonSet ")).context("there is no DaemonSet")?.1;
    let arguments = set.pointer("/spec/template/spec/containers/0/args").and_then(Value::as_array);
    Ok(arguments.into_iter().flatten().filter_map(Value::as_str).collect())
}

/// Checks the metadata: the version is the program's, addresses are those at which the project is published, and Artifact
/// Hub finds its fields and the image.
fn metadata() -> Result<()> {
    let chart =
        objects::value(&fs::read_to_string(directory().join("Chart.yaml")).context("cannot read `Chart.yaml`")?)?;
    let own = env!("CARGO_PKG_VERSION");
    for key in ["version", "appVersion"] {
        ensure!(chart[key] == own, "`{key}` in `Chart.yaml` is {}, but this is version `{own}`", chart[key]);
    }
    for pointer in ["/maintainers/0/name", "/keywords/0"] {
        ensure!(chart.pointer(pointer).is_some(), "`Chart.yaml` has no `{pointer}`");
    }
    for (pointer, expected) in
        [("/home", published::HOME), ("/sources/0", published::SOURCES), ("/maintainers/0/url", published::SOURCES)]
    {
        let found = chart.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        ensure!(found == expected, "`{pointer}` in `Chart.yaml` is `{found}`, not `{expected}`");
    }
    let mut addresses = vec![chart["icon"].clone()];
    for name in ["links", "screenshots"] {
        let list = chart["annotations"][format!("artifacthub.io/{name}")].as_str().unwrap_or_default();
        let list = objects::value(list)?;
        addresses.extend(list.as_array().into_iter().flatten().map(|entry| entry["url"].clone()));
    }
    for address in addresses {
        is_published(address.as_str().context("an address in `Chart.yaml` is no text")?)?;
    }
    let images = chart["annotations"]["artifacthub.io/images"].as_str().context("`Chart.yaml` names no images")?;
    let image = objects::value(images)?[0]["image"].clone();
    ensure!(image == format!("localhost/xdp-ingress:{own}"), "the image in `Chart.yaml` is {image}");
    Ok(())
}

/// Checks an address: it is the sources' or the site's, whose pages and pictures are in `docs`.
fn is_published(address: &str) -> Result<()> {
    if address.starts_with(published::SOURCES) || address == published::HOME {
        return Ok(());
    }
    let path = address.strip_prefix(published::HOME).and_then(|path| path.strip_prefix('/'));
    let path =
        path.with_context(|| format!("`{address}` in `Chart.yaml` is neither on the site nor in the sources"))?;
    // mdBook makes `index.html` of each `README.md`.
    let page = path.strip_suffix(".html").map(|page| format!("{page}.md"));
    let file = page.unwrap_or_else(|| path.to_owned()).replace("index.md", "README.md");
    let file = workspace::root().join("docs").join(file);
    ensure!(file.is_file(), "`{address}` in `Chart.yaml` leads nowhere: there is no `{}`", file.display());
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metadata_fits_the_program() {
        metadata().expect("the same version");
    }

    #[test]
    fn addresses_lead_to_pages_and_pictures() {
        for (path, fine) in [
            ("", true),
            ("/images/icon.svg", true),
            ("/start/quick-start.html", true),
            ("/migrate/index.html", true),
            ("/images/missing.png", false),
            ("/start/missing.html", false),
        ] {
            assert_eq!(is_published(&format!("{}{path}", published::HOME)).is_ok(), fine, "{path}");
        }
        assert!(is_published("https://elsewhere.example.com/icon.svg").is_err());
        assert!(is_published(&format!("{}/issues", published::SOURCES)).is_ok());
    }
}
