//! The purpose of each permission: the product runs beside the cluster with an account that lacks one permission, and
//! logs its name and the function lost. An account that may read Secrets by name only serves these. The processes serve
//! no port that other tests use.

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::Command,
};

use ingress_lab::{
    Lab, Namespace, Process,
    client::{Ask, Protocol, Trust},
    credentials::Authority,
};
use serde_json::{Value, json};

use crate::{
    objects::{ingress, rule},
    stage::{SCOPE, Scope, Stage, ask_from, product, stage, until},
};

/// A class of the tests' own: without it they would write the statuses of the installed controller's Ingresses.
const CLASS: &str = "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: NAME}\nspec: {controller: NAME.test/NAME}\n";

/// Resource, its API group, and the log's text without it.
const PERMISSIONS: [(&str, &str, &str); 14] = [
    ("ingresses", "networking.k8s.io", "do not reach the proxy"),
    ("ingressclasses", "networking.k8s.io", "do not reach the proxy"),
    ("services", "", "do not reach the proxy"),
    ("endpointslices", "discovery.k8s.io", "do not reach the proxy"),
    ("nodes", "", "zones"),
    ("namespaces", "", "keep their hosts"),
    ("referencegrants", "gateway.networking.k8s.io", "grants"),
    ("gatewayclasses", "gateway.networking.k8s.io", "Gateway API"),
    ("secrets", "", "certificate"),
    ("configmaps", "", "settings"),
    ("leases", "coordination.k8s.io", "no leader is elected"),
    ("ingresses/status", "networking.k8s.io", "do not show where they are served"),
    ("pods", "", "addresses of nodes are not known"),
    ("events", "events.k8s.io", "`events"),
];

#[test]
fn every_missing_permission_is_reported_with_its_effect() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let scope = stage.scope("rbac");
    let rules = granted(stage);
    let lab = Lab::open("rbac").expect("a place for logs");
    let control = stage.cluster.control().expect("the control plane's namespace");
    // Each permission needs an object: a Secret, a ConfigMap, a status to write, an event.
    scope.share(&CLASS.replace("NAME", "rbac"));
    scope.apply(&tls("web", "rbac.test", "tls").replace("ingressClassName: xdp", "ingressClassName: rbac"));
    let processes: Vec<_> = (20_000..)
        .step_by(10)
        .zip(PERMISSIONS)
        .map(|(port, (resource, group, _))| {
            let account = format!("without-{}", resource.replace('/', "-"));
            bind(&scope, &account, &without(&rules, resource, group));
            let mut arguments = vec!["--controller-class", "rbac.test/rbac"];
            if resource != "pods" {
                // The default is the addresses of the nodes of its pods, and it has no pods.
                arguments.extend(["--publish-status-address", "192.0.2.1"]);
            }
            start((&lab, &control), &scope, &account, port, &arguments)
        })
        .collect();
    for ((resource, _, lost), process) in PERMISSIONS.iter().zip(&processes) {
        let bare = resource.split('/').next().unwrap_or(resource);
        until(&format!("{resource} is missed"), || {
            let log = process.log();
            let told = log.lines().find(|line| {
                line.contains("WARN") && line.contains("is forbidden") && line.contains(bare) && line.contains(lost)
            });
            told.map(|line| println!("{resource}: {line}")).ok_or_else(|| process.log_tail(12))
        });
    }
}

#[test]
fn secrets_granted_by_name_are_served_and_others_are_named() {
    let Some(stage) = stage() else { return };
    let _beside = stage.beside_others();
    let scope = stage.scope("named");
    let lab = Lab::open("named").expect("a place for logs");
    let control = stage.cluster.control().expect("the control plane's namespace");
    scope.share(&CLASS.replace("NAME", "named"));
    scope.run(&[("web", 1)]);
    let authority = Authority::generate().expect("an authority");
    let hosts = ["granted", "withheld"];
    for name in hosts {
        let host = format!("{name}.test");
        stage.apply(&authority.secret(&scope.name, name, &[&host]).expect("a Secret"));
        scope.apply(&tls(name, &host, name).replace("ingressClassName: xdp", "ingressClassName: named"));
    }
    bind(&scope, "by-name", &without(&granted(stage), "secrets", ""));
    grant(&scope, "by-name", &["granted"]);
    let arguments = ["--controller-class", "named.test/named", "--publish-status-address", "192.0.2.1"];
    let port = 20_200;
    let process = start((&lab, &control), &scope, "by-name", port, &arguments);

    let trust = authority.trust().expect("a root");
    let ask = |name: &str, port: u16, protocol, trust: &Trust| {
        let ask = Ask::get(&format!("{name}.test"), "/");
        match ask_from(&control, SocketAddr::from((Ipv4Addr::LOCALHOST, port)), protocol, trust, &ask) {
            Ok(answer) if answer.status == 200 && answer.pod().is_some() => Ok(()),
            Ok(answer) => Err(format!("{} from {:?}", answer.status, answer.pod())),
            Err(error) => Err(format!("{error:#}")),
        }
    };
    let secure = |name| ask(name, port + 1, Protocol::Https1, &trust);
    until("the granted Secret is served", || secure("granted"));
    let line = until("the other Secret is named in the log", || {
        let log = process.log();
        let line = log.lines().find(|line| line.contains("WARN") && line.contains("is forbidden"));
        line.map(str::to_owned).ok_or_else(|| process.log_tail(12))
    });
    println!("{line}");
    let namespace = format!("in the namespace \\\"{}\\\"", scope.name);
    for part in ["withheld", &namespace, "the default certificate is served", "grant `list` and `watch`"] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    let note = until("the Ingress that names it has an event", || {
        let events = scope.json(&["get", "events.events.k8s.io", "--field-selector=type=Warning"]);
        let events = events["items"].as_array().cloned().unwrap_or_default();
        let of = |event: &&Value| event["regarding"]["name"] == "withheld" && event["reason"] == "SecretNotFound";
        assert!(events.iter().all(|event| event["regarding"]["name"] != "granted"), "{events:#?}");
        events.iter().find(of).map(|event| event["note"].to_string()).ok_or_else(|| format!("{events:#?}"))
    });
    println!("{note}");
    assert!(note.contains(&format!("{}/withheld", scope.name)), "{note}");
    // Only the certificate of one host is missing.
    let refused = secure("withheld").expect_err("it has no certificate of its own");
    assert!(refused.contains("ertificate"), "{refused}");
    secure("granted").expect("still served");
    let warnings = process.log().lines().filter(|line| line.contains("WARN") && line.contains("forbidden")).count();
    assert_eq!(warnings, 1, "{}", process.log_tail(40));

    grant(&scope, "by-name", &hosts);
    until("the Secret is served once it is granted", || secure("withheld"));
    secure("granted").expect("still served");
}

/// An Ingress of a whole host with a certificate.
fn tls(name: &str, host: &str, secret: &str) -> String {
    let tls = format!("  tls: [{{hosts: [{host}], secretName: {secret}}}]\n");
    ingress(name, &(tls + &rule(host, &[("Prefix", "/", "web")])))
}

/// Starts the product as `account` of the scope. It serves HTTP, HTTPS and its administration at `port` and the next
/// two.
pub(crate) fn start(
    (lab, place): (&Lab, &Namespace),
    scope: &Scope<'_>,
    account: &str,
    port: u16,
    arguments: &[&str],
) -> Process {
    let kubeconfig = lab.home().join(format!("{account}.kubeconfig"));
    std::fs::write(&kubeconfig, config(scope.stage, scope, account)).expect("a kubeconfig");
    let mut run = Command::new(product());
    run.args(["run", "--steer", "bind", "--xdp-mode", "off", "--workers", "1", "--kubeconfig"])
        .arg(&kubeconfig)
        .args(["--http-port", &port.to_string(), "--https-port", &(port + 1).to_string()])
        .args(["--admin-addr", &format!("127.0.0.1:{}", port + 2)])
        .args(["--configmap", &format!("{}/none", scope.name), "--election-id", account])
        .args(arguments)
        .env("POD_NAMESPACE", &scope.name)
        .env("POD_NAME", account)
        .env("NO_COLOR", "1");
    lab.spawn(place, account, run).expect("it starts")
}

/// Returns the rules that `deploy/base` grants.
pub(crate) fn granted(stage: &Stage) -> Vec<Value> {
    let roles = ["xdp-ingress-cluster", "xdp-ingress-watch", "xdp-ingress-status"];
    let mut rules: Vec<Value> = roles
        .iter()
        .flat_map(|role| stage.json(&["get", "clusterrole", role])["rules"].as_array().cloned().unwrap_or_default())
        .collect();
    let leader = stage.json(&["--namespace=xdp-ingress", "get", "role", "xdp-ingress-leader"]);
    for mut rule in leader["rules"].as_array().cloned().unwrap_or_default() {
        // The Lease has another name here.
        rule.as_object_mut().expect("a rule").remove("resourceNames");
        rules.push(rule);
    }
    assert!(rules.len() >= 8, "the roles of deploy/base: {rules:?}");
    rules
}

fn without(rules: &[Value], resource: &str, group: &str) -> Vec<Value> {
    let concerns = |rule: &Value, key: &str, value: &str| {
        rule[key].as_array().is_some_and(|values| values.iter().any(|found| found == value))
    };
    let mut left = Vec::new();
    let mut found = false;
    for rule in rules {
        let mut rule = rule.clone();
        if concerns(&rule, "apiGroups", group) && concerns(&rule, "resources", resource) {
            found = true;
            let others: Vec<Value> = rule["resources"]
                .as_array()
                .into_iter()
                .flatten()
                .filter(|other| *other != resource)
                .cloned()
                .collect();
            if others.is_empty() {
                continue;
            }
            rule["resources"] = Value::Array(others);
        }
        left.push(rule);
    }
    assert!(found, "deploy/base grants nothing on {resource}");
    left
}

pub(crate) fn bind(scope: &Scope<'_>, account: &str, rules: &[Value]) {
    let namespace = &scope.name;
    let role = format!("{namespace}-{account}");
    let shared = json!({"name": role, "labels": {SCOPE: namespace}});
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": namespace}},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": shared, "rules": rules},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": shared,
         "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
         "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}]},
    ]});
    scope.stage.apply(&objects.to_string());
}

/// Lets `account` read these Secrets of the scope, and no others, as docs/rbac.md has it.
fn grant(scope: &Scope<'_>, account: &str, secrets: &[&str]) {
    let namespace = &scope.name;
    let metadata = json!({"name": "secrets", "namespace": namespace});
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": [
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": secrets, "verbs": ["list", "watch"]}]},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
         "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "secrets"},
         "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}]},
    ]});
    scope.stage.apply(&objects.to_string());
}

/// Returns the administrator's kubeconfig with the account's token in place of the administrator's certificate.
fn config(stage: &Stage, scope: &Scope<'_>, account: &str) -> String {
    let token = scope.kubectl(&["create", "token", account]);
    let admin = stage.json(&["config", "view", "--raw"]);
    let cluster = &admin["clusters"][0]["cluster"];
    json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "c", "user": {"token": token.trim()}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]})
    .to_string()
}
