//! The purpose of each permission: the product runs beside the cluster with an account that lacks one permission, and
//! logs its name and the function lost. It serves no port that other tests use.

use std::process::Command;

use ingress_lab::Lab;
use serde_json::{Value, json};

use crate::{
    objects::{ingress, rule},
    stage::{SCOPE, Scope, Stage, product, stage, until},
};

/// Resource, its API group, and the log's text without it.
const PERMISSIONS: [(&str, &str, &str); 13] = [
    ("ingresses", "networking.k8s.io", "do not reach the proxy"),
    ("ingressclasses", "networking.k8s.io", "do not reach the proxy"),
    ("services", "", "do not reach the proxy"),
    ("endpointslices", "discovery.k8s.io", "do not reach the proxy"),
    ("nodes", "", "zones"),
    ("namespaces", "", "keep their hosts"),
    ("referencegrants", "gateway.networking.k8s.io", "grants"),
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
    // Each permission needs an object: a Secret, a ConfigMap, a status to write, an event. A class of its own keeps it
    // from writing the statuses of other controllers' Ingresses.
    scope.share(
        "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: rbac}\nspec: {controller: rbac.test/rbac}\n",
    );
    let tls =
        "  tls: [{hosts: [rbac.test], secretName: tls}]\n".to_owned() + &rule("rbac.test", &[("Prefix", "/", "web")]);
    scope.apply(&ingress("web", &tls).replace("ingressClassName: xdp", "ingressClassName: rbac"));
    let binary = product();
    let processes: Vec<_> = PERMISSIONS
        .iter()
        .enumerate()
        .map(|(number, (resource, group, _))| {
            let account = format!("without-{}", resource.replace('/', "-"));
            let without = without(&rules, resource, group);
            bind(&scope, &account, &without);
            let kubeconfig = lab.home().join(format!("{account}.kubeconfig"));
            std::fs::write(&kubeconfig, config(stage, &scope, &account)).expect("a kubeconfig");
            let port = 20_000 + 10 * u16::try_from(number).expect("a small number");
            let mut run = Command::new(&binary);
            run.args(["run", "--steer", "bind", "--xdp-mode", "off", "--workers", "1", "--kubeconfig"])
                .arg(&kubeconfig)
                .args(["--http-port", &port.to_string(), "--https-port", &(port + 1).to_string()])
                .args([
                    "--admin-addr",
                    &format!("127.0.0.1:{}", port + 2),
                    "--configmap",
                    &format!("{}/none", scope.name),
                ])
                .args(["--election-id", &account, "--controller-class", "rbac.test/rbac"])
                .env("POD_NAMESPACE", &scope.name)
                .env("POD_NAME", &account)
                .env("NO_COLOR", "1");
            if *resource != "pods" {
                // The default is the addresses of the nodes of its pods, and it has no pods.
                run.args(["--publish-status-address", "192.0.2.1"]);
            }
            lab.spawn(&control, &account, run).expect("it starts")
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

/// Returns the rules that `deploy/base` grants.
fn granted(stage: &Stage) -> Vec<Value> {
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

fn bind(scope: &Scope<'_>, account: &str, rules: &[Value]) {
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
