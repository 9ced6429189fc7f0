use std::{collections::BTreeMap, fs};

use expect_test::expect;
use serde_json::Value;

use super::{
    controller::Controller,
    directory,
    finding::{Report, Verdict},
    judge, objects, read_text, render, sarif,
    values::Values,
};
use crate::palette::Palette;

const CLUSTER: &str = r#"
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: { name: nginx }
spec: { controller: k8s.io/ingress-nginx }
---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: { name: other }
spec: { controller: example.com/other }
---
apiVersion: apps/v1
kind: Deployment
metadata: { namespace: ingress-nginx, name: ingress-nginx-controller }
spec:
  template:
    spec:
      containers:
        - name: controller
          image: registry.k8s.io/ingress-nginx/controller:v1.13.3@sha256:0123
          args: [/nginx-ingress-controller, --configmap=$(POD_NAMESPACE)/settings, --controller-class=k8s.io/ingress-nginx]
---
apiVersion: v1
kind: ConfigMap
metadata: { namespace: ingress-nginx, name: settings }
data: { proxy-body-size: 8m, worker-processes: "4", http-snippet: "map a b { }", no-such-key: "1" }
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: { name: ingress-nginx-admission }
webhooks:
  - name: validate.nginx.ingress.kubernetes.io
    clientConfig: { service: { namespace: ingress-nginx, name: admission } }
    rules: [{ apiGroups: [networking.k8s.io], resources: [ingresses] }]
"#;

fn ingress(name: &str, class: &str, annotations: &str) -> String {
    format!(
        r#"
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {{ namespace: shop, name: {name}, annotations: {{ {annotations} }} }}
spec:
  ingressClassName: {class}
  rules:
    - host: {name}.test
      http:
        paths: [{{ path: /, pathType: Prefix, backend: {{ service: {{ name: web, port: {{ number: 80 }} }} }} }}]
"#
    )
}

fn cluster() -> String {
    let key = |name: &str, value: &str| format!("nginx.ingress.kubernetes.io/{name}: {value:?}");
    let ingresses = [
        ingress("good", "nginx", &key("proxy-body-size", "8m")),
        ingress("foreign", "other", &key("enable-modsecurity", "true")),
        ingress("noted", "nginx", &key("proxy-buffering", "on")),
        ingress("odd", "nginx", &key("no-such-key", "x")),
        ingress("wrong", "nginx", &key("proxy-read-timeout", "soon")),
        ingress("guarded", "nginx", &key("enable-modsecurity", "true")),
    ];
    [CLUSTER.to_owned()].into_iter().chain(ingresses).collect::<Vec<_>>().join("---\n")
}

fn report(text: &str) -> Report {
    let objects = read_text(text);
    let controller = Controller::of(&objects, None, None).expect("one installation");
    judged(&objects, &controller)
}

const DIRECTORY: judge::Extent<'_> = judge::Extent { is_directory: true, namespace: None, with_requests: false };

fn judged(objects: &objects::Objects, controller: &Controller) -> Report {
    let (conversions, _) = judge::conversions(objects, controller, true);
    judge::judge(objects, controller, &conversions, DIRECTORY)
}

#[test]
fn each_object_has_its_verdict() {
    let report = report(&cluster());
    expect![[r#"
        5 Ingresses, 2 classes · 1 Ingress of other controllers · controller v1.13.3 · 4 settings · 2 flags
        READY 2   DIFFERS 1   NEEDS FIX 1   REFUSED 1

        VERDICT  OBJECT                                                  KEY                 WHAT CHANGES                                               FIX
        refused  shop/guarded                                            enable-modsecurity  is not supported; its rules answer 503, because without…   put a web application firewall in front of the services…
        fix      shop/wrong                                              proxy-read-timeout  is `soon`; the default, `60`, applies                      write a number of seconds from 1 to 604800, or a time as…
        fix      ValidatingWebhookConfiguration ingress-nginx-admission  webhook             every change of an Ingress fails once no pod of Service…   delete ValidatingWebhookConfiguration `ingress-nginx-adm…
        differs  ConfigMap ingress-nginx/settings                        http-snippet        is refused and has no effect                               write annotations instead, because snippets of configura…
        differs  shop/odd                                                no-such-key         is not supported and has no effect                         remove it
        note     ConfigMap ingress-nginx/settings                        no-such-key         is not a known setting                                     remove it
        note     ConfigMap ingress-nginx/settings                        worker-processes    is accepted and has no effect; there is one worker threa…  remove it
        note     Deployment ingress-nginx/ingress-nginx-controller       --controller-class  the default is `xdp-ingress.io/controller`; `k8s.io/ingr…
        note     shop/noted                                              proxy-buffering     has no effect, because bodies of responses are streamed…   remove it
    "#]].assert_eq(&render::table(&report, false, Palette::NONE));
    expect![[r#"
        # Migration check

        5 Ingresses, 2 classes · 1 Ingress of other controllers · controller v1.13.3 · 4 settings · 2 flags

        | ready | differs | needs fix | refused |
        |--:|--:|--:|--:|
        | 2 | 1 | 1 | 1 |

        | verdict | object | key | what changes | fix |
        |---|---|---|---|---|
        | refused | shop/guarded | enable-modsecurity | is not supported; its rules answer 503, because without it they would be unprotected | put a web application firewall in front of the services that need one |
        | fix | shop/wrong | proxy-read-timeout | is `soon`; the default, `60`, applies | write a number of seconds from 1 to 604800, or a time as `30s` or `10m` |
        | fix | ValidatingWebhookConfiguration ingress-nginx-admission | webhook | every change of an Ingress fails once no pod of Service `ingress-nginx/admission` runs | delete ValidatingWebhookConfiguration `ingress-nginx-admission` before you scale ingress-nginx down |
        | differs | ConfigMap ingress-nginx/settings | http-snippet | is refused and has no effect | write annotations instead, because snippets of configuration are not supported |
        | differs | shop/odd | no-such-key | is not supported and has no effect | remove it |
        | note | ConfigMap ingress-nginx/settings | no-such-key | is not a known setting | remove it |
        | note | ConfigMap ingress-nginx/settings | worker-processes | is accepted and has no effect; there is one worker thread for each CPU, see `--workers` | remove it |
        | note | Deployment ingress-nginx/ingress-nginx-controller | --controller-class | the default is `xdp-ingress.io/controller`; `k8s.io/ingress-nginx` also selects the defaults of ingress-nginx |  |
        | note | shop/noted | proxy-buffering | has no effect, because bodies of responses are streamed and never buffered, as with `off` | remove it |
    "#]].assert_eq(&render::markdown(&report));
}

#[test]
fn what_nginx_does_too_is_no_finding() {
    // Neither Services nor Secrets are there.
    let report = report(&ingress("good", "nginx", ""));
    assert_eq!((report.findings, report.counts.ready), (Vec::new(), 1));
}

#[test]
fn a_threshold_counts_verdicts_above_it() {
    let report = report(&[CLUSTER, &ingress("odd", "nginx", "nginx.ingress.kubernetes.io/no-such-key: x")].join("---"));
    let only = Report {
        findings: report.findings.into_iter().filter(|finding| finding.object.kind == "Ingress").collect(),
        ..Report::default()
    };
    let has = [Verdict::Note, Verdict::Differs, Verdict::Fix, Verdict::Refused].map(|verdict| only.has(verdict));
    assert_eq!(has, [true, true, false, false]);
}

/// The time is measured in a release; here only the sizes are those of a large cluster.
#[test]
fn a_thousand_ingresses_are_checked_at_once() {
    let ingresses: Vec<_> = (0..1_000)
        .map(|number| {
            let annotations = "nginx.ingress.kubernetes.io/proxy-body-size: 8m, nginx.ingress.kubernetes.io/odd: x";
            ingress(&format!("i{number}"), "nginx", annotations)
        })
        .collect();
    let began = std::time::Instant::now();
    let report = report(&[CLUSTER.to_owned(), ingresses.join("---")].join("---\n"));
    eprintln!("1,000 Ingresses: {:?}", began.elapsed());
    assert_eq!((report.ingresses, report.counts.differs), (1_000, 1_000));
}

#[test]
fn sarif_names_file_rule_and_level() {
    let log = sarif::sarif(&report(&cluster()));
    let results = log["runs"][0]["results"].as_array().expect("results");
    let result = results.iter().find(|result| result["ruleId"] == "enable-modsecurity").expect("the refused one");
    assert_eq!((&log["version"], &result["level"]), (&"2.1.0".into(), &"error".into()));
    let location = &result["locations"][0];
    assert_eq!(location["physicalLocation"]["artifactLocation"]["uri"], "all.yaml");
    assert_eq!(location["logicalLocations"][0]["fullyQualifiedName"], "shop/guarded");
    let rules = log["runs"][0]["tool"]["driver"]["rules"].as_array().expect("rules");
    let is_known = |result: &Value| rules.iter().any(|rule| rule["id"] == result["ruleId"]);
    assert!(results.iter().all(is_known));
}

#[test]
fn values_replace_the_settings_of_the_cluster() {
    let home = tempfile::tempdir().expect("a directory");
    let file = home.path().join("values.yaml");
    let text = "controller:\n  config: { hsts: \"maybe\", worker-processes: 2 }\n  extraArgs: { v: 3 }\ntcp: { 70000: a/b:1 }\n";
    fs::write(&file, text).expect("written");
    let values = Values::read(&file).expect("values");
    let mut objects = read_text(CLUSTER);
    values.add_to(&mut objects);
    let controller = Controller::of(&objects, None, Some(&values)).expect("one installation");
    let report = judged(&objects, &controller);
    let found: Vec<_> = report
        .findings
        .iter()
        .filter(|finding| finding.object.kind == "Values")
        .map(|finding| (finding.verdict, finding.subject(), finding.key.as_str()))
        .collect();
    let subject = |name: &str| format!("Values {name}");
    assert_eq!(
        found,
        [
            (Verdict::Fix, subject("controller.config"), "hsts"),
            (Verdict::Fix, subject("tcp"), "70000"),
            (Verdict::Note, subject("controller.config"), "worker-processes"),
            (Verdict::Note, subject("controller.extraArgs"), "--v"),
        ]
    );
    assert_eq!((report.settings, report.flags), (2, 4));
}

#[test]
fn files_that_cannot_be_read_are_findings() {
    let home = tempfile::tempdir().expect("a directory");
    let write = |name: &str, bytes: &[u8]| fs::write(home.path().join(name), bytes).expect("written");
    write("torn.yaml", b"apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: { name: torn");
    write("binary.yaml", &[0xff, 0xfe, 0]);
    write("good.yml", ingress("good", "nginx", "").as_bytes());
    write("again.yml", ingress("good", "nginx", "").as_bytes());
    write("notes.txt", b"not a manifest");
    let objects = directory::read(home.path()).expect("a directory");
    let report = judged(&objects, &Controller::default());
    let found: Vec<_> = report.findings.iter().map(|finding| (finding.subject(), finding.key.as_str())).collect();
    let file = |name: &str| format!("File {name}");
    let expected = [
        (file("binary.yaml"), "InvalidObject"),
        (file("torn.yaml"), "InvalidObject"),
        ("shop/good".to_owned(), "DuplicateObject"),
    ];
    assert_eq!(found, expected.map(|(subject, key)| (subject, key)));
    assert!(directory::read(&home.path().join("missing")).is_err());
}

#[test]
fn several_installations_need_a_choice() {
    let second = CLUSTER.replace("ingress-nginx-controller", "second").replace("name: settings", "name: more");
    let objects = read_text(&[CLUSTER, &second].join("---\n"));
    let error = Controller::of(&objects, None, None).expect_err("two of them").to_string();
    assert!(error.contains("ingress-nginx/second") && error.contains("--deployment"), "{error}");
    let name = objects.workloads[0].name.clone();
    let chosen = Controller::of(&objects, Some(&name), None).expect("the chosen one");
    assert_eq!(chosen.version().as_deref(), Some("v1.13.3"));
}

#[test]
fn requests_that_ingress_nginx_serves_by_another_rule_are_shown() {
    let text = r#"
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: { name: nginx }
spec: { controller: k8s.io/ingress-nginx }
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: { namespace: shop, name: web, creationTimestamp: "2026-01-01T00:00:00Z" }
spec:
  ingressClassName: nginx
  rules:
    - host: shop.test
      http:
        paths: [{ path: /head, pathType: Exact, backend: { service: { name: web, port: { number: 80 } } } }]
    - host: twice.test
      http:
        paths:
          - { path: /a, pathType: Prefix, backend: { service: { name: web, port: { number: 80 } } } }
          - { path: /a/, pathType: Prefix, backend: { service: { name: web, port: { number: 80 } } } }
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  namespace: blog
  name: guest
  creationTimestamp: "2026-01-02T00:00:00Z"
  annotations: { nginx.ingress.kubernetes.io/use-regex: "true" }
spec:
  ingressClassName: nginx
  rules:
    - host: shop.test
      http:
        paths:
          - { path: "/blog/[0-9]+", pathType: ImplementationSpecific, backend: { service: { name: web, port: { number: 80 } } } }
"#;
    let objects = read_text(text);
    let controller = Controller::of(&objects, None, None).expect("one installation");
    let report =
        judge::judge(&objects, &controller, &BTreeMap::new(), judge::Extent { with_requests: true, ..DIRECTORY });
    let lines: Vec<_> = report
        .findings
        .iter()
        .filter(|finding| finding.key == "request")
        .map(|finding| format!("{} {}: {}", finding.verdict.as_str(), finding.subject(), finding.what))
        .collect();
    expect![[r#"
        differs shop/web: https://shop.test/HEAD: ingress-nginx: `/head` of shop/web, to web:80; here: no rule: 404 (9 more alike)
        note Host twice.test: requests are not compared: nginx refuses the whole configuration, because `location /a/` occurs twice"#]].assert_eq(&lines.join("\n"));
    assert_eq!(report.compared.map(|compared| compared.hosts), Some(1));
    assert!(render::table(&report, false, Palette::NONE).contains("requests compared on 1 host"));
}

#[test]
fn words_of_a_name_are_no_verdict() {
    let report = report(&[CLUSTER, &ingress("odd", "nginx", "nginx.ingress.kubernetes.io/answer 503: x")].join("---"));
    assert_eq!((report.counts.refused, report.counts.differs), (0, 1), "{report:?}");
}

#[test]
fn all_config_maps_that_are_named_are_read() {
    let key = |name: &str, value: &str| format!("nginx.ingress.kubernetes.io/{name}: {value:?}");
    let ingresses = [
        ingress("a", "nginx", &key("custom-headers", "shop/responses")),
        ingress("b", "nginx", &key("auth-proxy-set-headers", "requests")),
        ingress("c", "nginx", &key("auth-proxy-set-headers", "far/requests")),
    ];
    let objects = read_text(&[&[CLUSTER.to_owned()][..], &ingresses].concat().join("---\n"));
    let controller = Controller::of(&objects, None, None).expect("one installation");
    let names: Vec<_> = controller.config_maps(&objects).iter().map(ToString::to_string).collect();
    assert_eq!(names, ["ingress-nginx/settings", "shop/requests", "shop/responses"]);
}

#[test]
fn counts_are_those_of_the_namespace() {
    let objects =
        read_text(&[cluster(), ingress("far", "nginx", "").replace("namespace: shop", "namespace: far")].join("---\n"));
    let controller = Controller::of(&objects, None, None).expect("one installation");
    let of = |namespace| {
        let extent = judge::Extent { namespace: Some(namespace), ..DIRECTORY };
        judge::judge(&objects, &controller, &BTreeMap::new(), extent)
    };
    let (shop, far) = (of("shop"), of("far"));
    assert_eq!((shop.ingresses, shop.others, shop.counts.refused), (5, 1, 1));
    assert_eq!((far.ingresses, far.others, far.counts.ready), (1, 0, 1));
    assert!(far.findings.iter().all(|finding| finding.object.namespace != "shop"));
    assert!(far.findings.iter().any(|finding| finding.key == "webhook"), "objects without a namespace concern all");
}

#[test]
fn settings_of_several_ingresses_are_joined_or_told() {
    let snippet = |text: &str| format!("nginx.ingress.kubernetes.io/server-snippet: {text:?}");
    let texts = [
        ("a", "set_real_ip_from 10.0.0.0/8; real_ip_header X-Real-Ip;"),
        ("b", "set_real_ip_from 192.0.2.0/24; real_ip_header X-Client-Ip;"),
        ("c", "set_real_ip_from 10.0.0.0/8;"),
    ];
    let texts: Vec<_> = texts.iter().map(|(name, text)| ingress(name, "nginx", &snippet(text))).collect();
    let (conversions, places) = judge::conversions(&read_text(&texts.join("---")), &Controller::default(), true);
    let files = super::fix::Files::of(&conversions, &places).expect("files");
    expect![[r##"
        # Settings hold for all hosts: add them to the ConfigMap that `--configmap` names.
        # not converted: enable-real-ip, because forwarded-for-header has several values; choose one first
        # not converted: forwarded-for-header has several values: X-Client-Ip by shop/b, X-Real-Ip by shop/a
        proxy-real-ip-cidr: 10.0.0.0/8, 192.0.2.0/24
    "##]]
    .assert_eq(&files.0["settings.yaml"]);
}

#[test]
fn snippets_become_patches() {
    let key = |name: &str, value: &str| format!("nginx.ingress.kubernetes.io/{name}: {value:?}");
    let snippets = [
        ingress("whole", "nginx", &key("configuration-snippet", "more_set_headers \"X-A: 1\";")),
        ingress("part", "nginx", &key("server-snippet", "location /metrics { deny all; } sub_filter a b;")),
        ingress("torn", "nginx", &key("configuration-snippet", "if ($a")),
        ingress("done", "nginx", &[key("auth-snippet", "x;"), "xdp-ingress.io/auth-snippet: \"\"".into()].join(", ")),
    ];
    let objects = read_text(&snippets.join("---"));
    let controller = Controller::default();
    let (conversions, places) = judge::conversions(&objects, &controller, true);
    let files = super::fix::Files::of(&conversions, &places).expect("files");
    let text: String = files.0.iter().map(|(name, text)| format!("--- {name}\n{text}")).collect();
    expect![[r#"
        --- ingress.shop.part.yaml
        # not converted: server-snippet, line 1: sub_filter a b: bodies are not changed; let the pod write them
        apiVersion: networking.k8s.io/v1
        kind: Ingress
        metadata:
          annotations:
            xdp-ingress.io/deny-paths: /metrics
          name: part
          namespace: shop
        --- ingress.shop.whole.yaml
        apiVersion: networking.k8s.io/v1
        kind: Ingress
        metadata:
          annotations:
            xdp-ingress.io/configuration-snippet: ""
            xdp-ingress.io/response-headers: "X-A: 1"
          name: whole
          namespace: shop
        --- kustomization.yaml
        apiVersion: kustomize.config.k8s.io/v1alpha1
        kind: Component
        patches:
        - path: ingress.shop.part.yaml
        - path: ingress.shop.whole.yaml
        resources: []
    "#]]
    .assert_eq(&text);
    let report = judge::judge(&objects, &controller, &conversions, DIRECTORY);
    expect![[r#"
        4 Ingresses, 0 classes · 0 settings · 0 flags
        READY 1   DIFFERS 0   NEEDS FIX 1   REFUSED 2

        VERDICT  OBJECT      KEY                    WHAT CHANGES                                                                                    FIX
        refused  shop/part   server-snippet         its rules answer 503; line 1, `sub_filter a b`: bodies are not changed; let the pod write them  convert the rest by hand; `--fix` writes what is sure
        refused  shop/torn   configuration-snippet  its rules answer 503; line 1, `text`: it cannot be parsed: the last directive has no `;`        convert the rest by hand; `--fix` writes what is sure
        fix      shop/whole  configuration-snippet  its rules answer 503 until it is converted                                                      `--fix` writes response-headers
    "#]].assert_eq(&render::table(&report, true, Palette::NONE));
    let home = tempfile::tempdir().expect("a directory");
    let directory = home.path().join("fix");
    files.write(&directory).expect("written");
    let error = files.write(&directory).expect_err("the files exist").to_string();
    assert!(error.contains("use another directory"), "{error}");
    // With the patch, nothing is left to fix, and ingress-nginx keeps its own annotation.
    let patched = [
        key("configuration-snippet", "more_set_headers \"X-A: 1\";"),
        "xdp-ingress.io/configuration-snippet: \"\"".into(),
    ];
    let report = self::report(&ingress("whole", "nginx", &patched.join(", ")));
    assert_eq!(report.counts.ready, 1, "{report:?}");
}

/// A command line with the options of `check`.
#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    args: super::CheckArgs,
}

#[test]
fn annotations_of_the_ingress_are_not_replaced() {
    let key = |name: &str, value: &str| format!("nginx.ingress.kubernetes.io/{name}: {value:?}");
    let both = [
        (key("proxy-body-size", "1m"), key("configuration-snippet", "client_max_body_size 2m;")),
        (key("auth-proxy-set-headers", "shop/fields"), key("auth-snippet", "proxy_set_header X-A 1;")),
    ];
    for (old, snippet) in both {
        let objects = read_text(&ingress("a", "nginx", &format!("{old}, {snippet}")));
        let (conversions, _) = judge::conversions(&objects, &Controller::default(), true);
        let conversion = conversions.values().next().expect("a conversion");
        assert!(conversion.annotations.is_empty() && conversion.auth_fields.is_empty(), "{conversion:?}");
        assert!(conversion.rest.iter().any(|remark| remark.text.contains("already")), "{conversion:?}");
    }
}

/// Lists and rules of the Ingress come before those of its snippet, within the limits of one annotation.
#[test]
fn annotations_of_the_ingress_are_joined() {
    let key = |name: &str, value: &str| format!("nginx.ingress.kubernetes.io/{name}: {value:?}");
    let of = |old: &str, snippet: &str| {
        let snippet = key("configuration-snippet", snippet);
        let objects = read_text(&ingress("a", "nginx", &format!("{old}, {snippet}")));
        judge::conversions(&objects, &Controller::default(), true).0.into_values().next().expect("a conversion")
    };
    let denied = of(&key("denylist-source-range", "10.0.0.0/8"), "deny 192.0.2.1;");
    let list = denied.annotations.get("denylist-source-range").map(String::as_str);
    assert_eq!(list, Some("10.0.0.0/8, 192.0.2.1"), "{denied:?}");
    let snippet = "if ($http_x_a = 1) { return 403; }";
    for (rules, is_joined) in [(1, true), (64, false)] {
        let old = vec!["header:X-B = 1 -> 403"; rules].join("\n");
        let rules = of(&key("redirect-rules", &old), snippet);
        let new = rules.annotations.get("redirect-rules").map_or(0, |rules| rules.lines().count());
        assert_eq!(new, if is_joined { 2 } else { 0 }, "{rules:?}");
        assert_eq!(rules.rest.iter().any(|remark| remark.text.contains("already")), !is_joined, "{rules:?}");
    }
}

#[test]
fn files_stay_in_their_directory_and_replace_none() {
    let home = tempfile::tempdir().expect("a directory");
    let files = |name: &str| super::fix::Files([(name.to_owned(), "new".to_owned())].into());
    let error = files("ingress.x/../../a.yaml").write(home.path()).expect_err("a path").to_string();
    assert!(error.contains("no name of a file"), "{error}");
    files("a.yaml").write(home.path()).expect("written");
    let two = super::fix::Files([("a.yaml".to_owned(), String::new()), ("0.yaml".to_owned(), String::new())].into());
    let error = two.write(home.path()).expect_err("a file").to_string();
    assert!(error.contains("exists already") && !home.path().join("0.yaml").exists(), "{error}");
}

#[test]
fn the_commands_of_the_documentation_run() {
    use clap::Parser as _;
    let home = tempfile::tempdir().expect("a directory");
    let key = "nginx.ingress.kubernetes.io/configuration-snippet: 'more_set_headers \"X-A: 1\";'";
    fs::create_dir(home.path().join("manifests")).expect("made");
    fs::write(home.path().join("manifests/all.yaml"), [CLUSTER, &ingress("web", "nginx", key)].join("---"))
        .expect("written");
    fs::write(home.path().join("nginx-values.yaml"), "controller: { config: { proxy-body-size: 8m } }")
        .expect("written");
    let page = include_str!("../../../../../docs/migrate/check.md");
    let commands: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("xdp-ingress check")).collect();
    assert!(commands.len() >= 7, "{commands:?}");
    for command in commands {
        let words = command.split_whitespace().map(|word| match word {
            "./manifests" | "nginx-values.yaml" | "./fix" => home.path().join(word).display().to_string(),
            word => word.to_owned(),
        });
        let Line { args } = Line::try_parse_from(["check".to_owned()].into_iter().chain(words)).expect(command);
        // Without a cluster, its command is only parsed.
        if args.installation.from_dir.is_none() {
            continue;
        }
        let (output, has_fix) = (args.output, args.fix.is_some());
        let report = super::report(args).expect(command);
        assert_eq!((report.ingresses, report.counts.needs_fix), (1, 1), "{command}");
        assert!(!super::shown(&report, output, Palette::NONE).expect(command).is_empty());
        assert!(!has_fix || home.path().join("fix/kustomization.yaml").is_file(), "{command}");
    }
}
