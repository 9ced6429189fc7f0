use std::fs;

use expect_test::expect;
use ingress_control::migration::{Kind, Surface};
use serde_json::json;

use super::{convert::Here, *};

const VALUES: &str = r#"
fullnameOverride: edge
noSuchValue: 1
imagePullSecrets: []
defaultBackend: { enabled: true, replicaCount: 2 }
rbac: { scope: false }
tcp: { "5432": shop/db:5432 }
controller:
  image: { registry: registry.k8s.io, tag: v1.13.3 }
  config: { proxy-body-size: 8m, worker-processes: "2", http-snippet: "map a b { }", no-such-key: "1" }
  extraArgs: { default-ssl-certificate: shop/tls, v: "3", enable-ssl-chain-completion: "true", no-such-flag: "1" }
  ingressClassResource: { name: edge, default: true }
  replicaCount: 3
  podAnnotations: { "example.com/a.b": "1" }
  terminationGracePeriodSeconds: 60
  lifecycle: { preStop: { exec: { command: [/wait-shutdown] } } }
  service: { loadBalancerIP: 192.0.2.1, nodePorts: { http: 30080 }, externalTrafficPolicy: Local }
"#;

fn converted(text: &str) -> Converted {
    parse(text).expect("values")
}

#[test]
fn values_become_those_of_the_chart() {
    let converted = converted(VALUES);
    expect![[r##"
        # Values of the chart of xdp-ingress, converted from nginx-values.yaml.
        # refused, left out: controller.config.http-snippet: it is not supported, and will not be; write annotations instead, because snippets of configuration are not supported
        # unknown, left out: controller.config.no-such-key: it is unknown to ingress-nginx and to xdp-ingress; remove it
        # no effect, left out: controller.config.worker-processes: there is one worker thread for each CPU, see `--workers`
        # refused, left out: controller.extraArgs.enable-ssl-chain-completion: chains are served as their Secret has them, and intermediate certificates are not fetched; put the whole chain into the Secret, as cert-manager does
        # unknown, left out: controller.extraArgs.no-such-flag: it is unknown to ingress-nginx and to xdp-ingress; remove it
        # no effect, left out: controller.extraArgs.v: the log has levels with names; `--log=debug`
        # differs, left out: controller.image: it names an image of ingress-nginx; name the image of xdp-ingress
        # no effect, left out: controller.lifecycle: the process drains by itself
        # no effect, left out: controller.replicaCount: a DaemonSet runs one pod on each node
        # differs, changed: controller.service.enabled: clients reach ingress-nginx by its Service, which its chart makes by default
        # differs, left out: controller.service.loadBalancerIP: ingress-nginx holds it until its removal; add it after the removal of ingress-nginx
        # differs, left out: controller.service.nodePorts: ingress-nginx holds it until its removal; add it after the removal of ingress-nginx
        # differs, copied: controller.terminationGracePeriodSeconds: `controller.drainTimeout` is written with it, since it must be shorter
        # no effect, left out: defaultBackend: the chart deploys no default backend, see `controller.defaultBackendService`
        # refused, left out: defaultBackend.enabled: the chart deploys no default backend; name your Service in `controller.defaultBackendService`
        # differs, left out: fullnameOverride: objects of the whole cluster have this name, and belong to ingress-nginx; add it after the removal of ingress-nginx
        # unknown, left out: noSuchValue: neither chart has such a value; remove it
        compat: ingress-nginx
        controller:
          config:
            proxy-body-size: 8m
          drainTimeout: 50
          extraArgs:
            default-ssl-certificate: shop/tls
          ingressClassResource:
            default: true
            enabled: false
            name: edge
          podAnnotations:
            example.com/a.b: "1"
          service:
            enabled: true
            externalTrafficPolicy: Local
          terminationGracePeriodSeconds: 60
        tcp:
          "5432": shop/db:5432
    "##]].assert_eq(&render::values(&converted, "nginx-values.yaml").expect("YAML"));
    expect![[r#"
        8 copied · 1 changed · 15 left out · 6 with a lost effect

        VERDICT    VALUE                                             HERE      WHAT CHANGES                                                  INSTEAD
        refused    controller.config.http-snippet                    left out  it is not supported, and will not be                          write annotations instead, because snippets of…
        unknown    controller.config.no-such-key                     left out  it is unknown to ingress-nginx and to xdp-ingress             remove it
        fully      controller.config.proxy-body-size                 copied
        no effect  controller.config.worker-processes                left out  there is one worker thread for each CPU, see `--workers`
        fully      controller.extraArgs.default-ssl-certificate      copied
        refused    controller.extraArgs.enable-ssl-chain-completion  left out  chains are served as their Secret has them, and…              put the whole chain into the Secret, as cert-manager does
        unknown    controller.extraArgs.no-such-flag                 left out  it is unknown to ingress-nginx and to xdp-ingress             remove it
        no effect  controller.extraArgs.v                            left out  the log has levels with names                                 `--log=debug`
        differs    controller.image                                  left out  it names an image of ingress-nginx                            name the image of xdp-ingress
        fully      controller.ingressClassResource.default           copied
        fully      controller.ingressClassResource.name              copied
        no effect  controller.lifecycle                              left out  the process drains by itself
        fully      controller.podAnnotations                         copied
        no effect  controller.replicaCount                           left out  a DaemonSet runs one pod on each node
        differs    controller.service.enabled                        changed   clients reach ingress-nginx by its Service, which its chart…
        fully      controller.service.externalTrafficPolicy          copied
        differs    controller.service.loadBalancerIP                 left out  ingress-nginx holds it until its removal                      add it after the removal of ingress-nginx
        differs    controller.service.nodePorts                      left out  ingress-nginx holds it until its removal                      add it after the removal of ingress-nginx
        differs    controller.terminationGracePeriodSeconds          copied    `controller.drainTimeout` is written with it, since it must…
        no effect  defaultBackend                                    left out  the chart deploys no default backend, see…
        refused    defaultBackend.enabled                            left out  the chart deploys no default backend                          name your Service in `controller.defaultBackendService`
        differs    fullnameOverride                                  left out  objects of the whole cluster have this name, and belong to…   add it after the removal of ingress-nginx
        unknown    noSuchValue                                       left out  neither chart has such a value                                remove it
        fully      tcp                                               copied
    "#]].assert_eq(&render::table(&converted, false, Palette::NONE));
}

#[test]
fn no_values_serve_the_class_behind_a_service() {
    for text in ["", "null\n", "# USER-SUPPLIED VALUES\n", "{}"] {
        let Converted { values, rows } = converted(text);
        let service = json!({ "ingressClassResource": { "enabled": false }, "service": { "enabled": true } });
        assert_eq!(values, json!({ "compat": "ingress-nginx", "controller": service }), "{text}");
        assert_eq!(rows.len(), 1, "{rows:?}");
    }
    let on_nodes = converted("controller: { hostNetwork: true }").values;
    assert_eq!(on_nodes["controller"]["service"], Value::Null);
}

/// The chart knows each value that is written, and each value that is set has a row.
#[test]
fn each_value_of_ingress_nginx_is_converted_or_told() {
    for name in Surface::Values.names() {
        let value = name.rsplit('.').fold(json!("x"), |value, part| json!({ part: value }));
        let Converted { values, rows } = convert(&value);
        let is_told = |row: &convert::Row| name == row.value || name.starts_with(&format!("{}.", row.value));
        let row = rows.iter().find(|row| is_told(row));
        let is_map = ["controller.config", "controller.extraArgs"].contains(&name);
        assert!(is_map || row.is_some(), "{name}: {rows:?}");
        let kind = Surface::Values.verdict(name).expect(name).kind;
        // The value is a text, which is no map.
        let is_lost = kind == Kind::Refused || is_map || ["tcp", "udp"].contains(&name);
        assert_eq!(rows.iter().any(|row| row.is_lost), is_lost, "{name}");
        let mut leaves = Vec::new();
        leaves_of(&values, String::new(), &mut leaves);
        for leaf in leaves {
            let verdict = Surface::Values.verdict(&leaf).unwrap_or_else(|| panic!("{name} becomes {leaf}"));
            assert!(matches!(verdict.kind, Kind::Full | Kind::Differs), "{name} becomes {leaf}");
        }
    }
}

fn leaves_of(value: &Value, path: String, leaves: &mut Vec<String>) {
    match value.as_object() {
        Some(map) => map.iter().for_each(|(key, value)| {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            leaves_of(value, path, leaves);
        }),
        None => leaves.push(path),
    }
}

#[test]
fn all_names_have_a_row_on_request() {
    let rows = converted(VALUES).with_all().rows;
    let names = Surface::Values.names();
    let is_told = |name: &str| {
        rows.iter().any(|row| {
            row.value == name
                || name.starts_with(&format!("{}.", row.value))
                || row.value.starts_with(&format!("{name}."))
        })
    };
    let missing: Vec<_> = names.filter(|name| !is_told(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(rows.iter().filter(|row| row.here == Here::NotSet).count() > 250);
    assert!(rows.is_sorted_by_key(|row| row.value.clone()));
}

#[test]
fn the_values_of_the_charts_tests_lose_no_effect() {
    let converted = converted(include_str!("../../../../../../deploy/chart/ci/ingress-nginx-values.yaml"));
    let lost: Vec<_> = converted.rows.iter().filter(|row| row.is_lost).collect();
    assert!(lost.is_empty(), "{lost:?}");
    assert_eq!(converted.values["controller"]["extraArgs"]["enable-ssl-passthrough"], "");
}

#[test]
fn files_that_hold_no_values_are_refused() {
    let home = tempfile::tempdir().expect("a directory");
    let file = home.path().join("values.yaml");
    for (text, problem) in [("controller: [", "cannot read"), ("- a", "a map of names"), ("text", "a map of names")] {
        fs::write(&file, text).expect("written");
        let error = format!("{:#}", read(&file).expect_err(text));
        assert!(error.contains(problem) && error.contains("values.yaml"), "{text}: {error}");
    }
    assert!(format!("{:#}", read(&home.path().join("missing")).expect_err("none")).contains("missing"));
}

/// Values with another form than the chart's are told, and are not copied.
#[test]
fn values_of_a_wrong_form_are_lost() {
    for (text, name) in [
        ("controller: 3", "controller"),
        ("controller: { config: text }", "controller.config"),
        ("controller: { config: [a] }", "controller.config"),
        ("controller: { config: { proxy-body-size: [8m] } }", "controller.config.proxy-body-size"),
        ("controller: { extraArgs: { v: { a: 1 } } }", "controller.extraArgs.v"),
        ("controller: { service: [1] }", "controller.service"),
        ("tcp: [a]", "tcp"),
        ("'controller.config': { proxy-body-size: 8m }", "controller.config"),
        ("controller: { 'service.type': NodePort }", "controller.service.type"),
    ] {
        let Converted { values, rows } = converted(text);
        assert!(rows.iter().any(|row| row.value == name && row.is_lost), "{text}: {rows:?}");
        let written = values.to_string();
        for part in ["text", "8m", "[", "NodePort", "\"a\""] {
            assert!(!written.contains(part), "{text}: {written}");
        }
    }
}

/// `null` removes a default of the chart, also in Helm.
#[test]
fn values_without_a_value_are_told() {
    let Converted { values, rows } = converted("controller: { service: { enabled: null, type: null }, config: null }");
    for name in ["controller.service.enabled", "controller.service.type", "controller.config"] {
        assert!(rows.iter().any(|row| row.value == name && row.here == Here::LeftOut), "{name}: {rows:?}");
    }
    assert_eq!(values["controller"]["service"], Value::Null, "no Service was wanted");
}

/// Two Services cannot have one address or name.
#[test]
fn addresses_of_ingress_nginx_are_not_taken() {
    let text = "controller: { service: { externalIPs: [192.0.2.7], annotations: { example.com/a: x, \
                metallb.universe.tf/loadBalancerIPs: 192.0.2.1, external-dns.alpha.kubernetes.io/hostname: a.test } } }";
    let Converted { values, rows } = converted(text);
    assert_eq!(values["controller"]["service"]["annotations"], json!({ "example.com/a": "x" }));
    assert!(!values.to_string().contains("192.0.2"), "{values}");
    let left =
        rows.iter().filter(|row| row.here == Here::LeftOut && row.value.starts_with("controller.service.")).count();
    assert_eq!(left, 3, "{rows:?}");
}

/// Defaults that follow the namespace of the release are another's here.
#[test]
fn a_scope_without_a_name_is_another_namespace() {
    let of = |text: &str| converted(text).rows.into_iter().find(|row| row.value == "controller.scope.namespace");
    assert!(of("controller: { scope: { enabled: true } }").is_some_and(|row| row.is_lost));
    assert!(of("controller: { scope: { enabled: true, namespace: edge } }").is_some_and(|row| !row.is_lost));
}

#[test]
fn the_account_of_ingress_nginx_is_not_taken() {
    let values = converted("serviceAccount: { create: false, name: ingress-nginx }").values;
    assert_eq!(values["serviceAccount"], Value::Null);
}

/// Rows and errors name values, and never show them.
#[test]
fn no_row_and_no_error_shows_a_value() {
    let secret = "hunter2";
    let text = format!(
        "noSuchValue: {secret}\ncontroller:\n  config: {{ http-snippet: {secret}, no-such-key: {secret} }}\n  maxmindLicenseKey: \
         {secret}\n  replicaCount: {secret}\n  service: {{ loadBalancerIP: {secret} }}\n"
    );
    let rows = converted(&text).rows;
    assert!(rows.len() >= 6 && !format!("{rows:?}").contains(secret), "{rows:?}");
    for broken in ["a: [\n", "a: b: c\n", "{\n", "- x\n---\n- y\n", "a: *missing\n", "a: 1\na: 2\n"] {
        let text = format!("password: {secret}\n{broken}password2: {secret}\n");
        let error = format!("{:#}", parse(&text).expect_err(broken));
        assert!(!error.contains(secret) && !error.contains('\n'), "{broken}: {error}");
    }
}

#[test]
fn forms_of_yaml_are_read_as_helm_reads_them() {
    let anchors = "x: &x { proxy-body-size: 8m }\ncontroller: { config: *x }\n";
    assert_eq!(converted(anchors).values["controller"]["config"], json!({ "proxy-body-size": "8m" }));
    let merged = "x: &x { proxy-body-size: 8m }\ncontroller: { config: { <<: *x, keep-alive: \"5\" } }\n";
    let config = json!({ "proxy-body-size": "8m", "keep-alive": "5" });
    assert_eq!(converted(merged).values["controller"]["config"], config);
    assert!(parse("controller: {}\n---\ncontroller: {}\n").is_err(), "which of the two is meant is unknown");
    // A megabyte of settings is no trouble, and deep maps are an error or a row.
    let large: String = (0..20_000).map(|number| format!("    unknown-setting-with-a-number-{number}: x\n")).collect();
    assert_eq!(converted(&format!("controller:\n  config:\n{large}")).rows.len(), 20_001);
    let deep = format!("{}1{}", "{a: ".repeat(50_000), "}".repeat(50_000));
    let _either = parse(&deep);
}

#[test]
fn names_in_values_move_no_cursor() {
    let converted =
        converted("\"a\\e[2J\": 1\ncontroller: { podAnnotations: { \"b\\e[1A\": \"c\\e[2J\" } }\n").with_all();
    for form in [
        ValuesFormat::Values,
        ValuesFormat::Table,
        ValuesFormat::Wide,
        ValuesFormat::Markdown,
        ValuesFormat::Json,
        ValuesFormat::Yaml,
    ] {
        let text = shown(&converted, Path::new("values.yaml"), form, Palette::NONE).expect("a text");
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{form:?}: {text:?}");
    }
}
