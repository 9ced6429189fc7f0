use std::fmt::Write as _;

use expect_test::expect;

use super::*;
use crate::check::{controller::Controller, read_text, values::Values};

fn shown(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let Finding { verdict, key, what, fix, .. } = finding;
        let _written = writeln!(text, "{} {} {key}: {what} | {fix}", verdict.as_str(), finding.subject());
    }
    text
}

#[test]
fn each_flag_has_the_verdict_of_its_row() {
    let text = r#"
apiVersion: apps/v1
kind: DaemonSet
metadata: { namespace: edge, name: nginx }
spec:
  template:
    spec:
      containers:
        - name: controller
          image: registry.test/ingress-nginx/controller:v1.13.3
          args:
            - /nginx-ingress-controller
            - --configmap=edge/settings
            - --election-id=leader
            - --enable-ssl-chain-completion
            - --no-such-flag=1
            - --v=2
            - --validating-webhook=:8443
"#;
    let controller = Controller::of(&read_text(text), None, None).expect("one installation");
    expect![[r#"
        note DaemonSet edge/nginx --election-id: the default is `xdp-ingress-leader`; with another controller's Lease, only one of the two writes statuses | 
        differs DaemonSet edge/nginx --enable-ssl-chain-completion: is refused: chains are served as their Secret has them, and intermediate certificates are not fetched | put the whole chain into the Secret, as cert-manager does
        fix DaemonSet edge/nginx --no-such-flag: is not a flag of ingress-nginx v1.15.1, and the process does not start with it | remove it
        note DaemonSet edge/nginx --v: has no effect: the log has levels with names | `--log=debug`
        note DaemonSet edge/nginx --validating-webhook: has no effect: this controller has no admission webhook; events on an Ingress name its problems | delete the ValidatingWebhookConfiguration of ingress-nginx once no pod of it runs, or it refuses each Ingress
    "#]]
    .assert_eq(&shown(&controller.findings));
}

#[test]
fn each_value_has_the_verdict_of_its_row() {
    let home = tempfile::tempdir().expect("a directory");
    let file = home.path().join("values.yaml");
    let text = r#"
fullnameOverride: edge
nameOverride: nginx
noSuchValue: 1
imagePullSecrets: []
defaultBackend: { enabled: true }
tcp: { "5432": shop/db:5432 }
controller:
  config: { worker-processes: "2" }
  extraArgs: { v: "3", enable-metrics: "true" }
  hostNetwork: true
  replicaCount: 3
  priorityClassName: high
  service: { enabled: true, noSuchValue: x }
"#;
    std::fs::write(&file, text).expect("written");
    let values = Values::read(&file).expect("values");
    expect![[r#"
        note Values controller.hostNetwork hostNetwork: has no effect: the pods always use the network of the node | remove it
        note Values controller.priorityClassName priorityClassName: the default is `system-node-critical` | 
        note Values controller.replicaCount replicaCount: has no effect: a DaemonSet runs one pod on each node | remove it
        note Values controller.service.enabled enabled: the default is false: clients use the nodes' own ports | 
        fix Values controller.service.noSuchValue noSuchValue: is not a known value, and the chart of this controller refuses it | remove it
        note Values defaultBackend defaultBackend: has no effect: the chart deploys no default backend, see `controller.defaultBackendService` | remove it
        fix Values defaultBackend.enabled enabled: is refused: the chart deploys no default backend | name your Service in `controller.defaultBackendService`
        note Values nameOverride nameOverride: has no effect: the label `app.kubernetes.io/name` is fixed, `fullnameOverride` changes the names | remove it
        fix Values noSuchValue noSuchValue: is not a known value, and the chart of this controller refuses it | remove it
        note Values controller.extraArgs --v: has no effect: the log has levels with names | `--log=debug`
    "#]].assert_eq(&shown(&values.findings));
}

/// The table has a row for each flag and value, so each of them is full or a finding.
#[test]
fn each_name_of_ingress_nginx_is_judged() {
    let object = object_of("flags");
    for flag in Surface::Flags.names() {
        let is_full = Surface::Flags.verdict(flag).expect(flag).kind == Kind::Full;
        assert_eq!(of_flag(&object, flag).is_none(), is_full, "{flag}");
    }
    for path in Surface::Values.names() {
        let kind = Surface::Values.verdict(path).expect(path).kind;
        let value = path.rsplit('.').fold(Value::from("x"), |value, name| {
            let mut map = serde_json::Map::new();
            map.insert(name.to_owned(), value);
            Value::Object(map)
        });
        let is_judged = !of_values(&value).is_empty();
        let is_map = MAPS.iter().any(|map| path == *map || path.starts_with(&format!("{map}.")));
        assert!(is_map || is_judged == (kind != Kind::Full), "{path}: {kind:?}");
    }
}
