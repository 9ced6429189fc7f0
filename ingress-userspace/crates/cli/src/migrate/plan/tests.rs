use std::process::Command;

use clap::Parser as _;
use expect_test::expect_file;

use super::*;
use crate::check::installation_of;

#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    args: PlanArgs,
}

/// As the chart of ingress-nginx installs it with `kind: DaemonSet`, `hostNetwork` and a load balancer.
const HELM: &str = r#"
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata:
  name: nginx
  labels: { helm.sh/chart: ingress-nginx-4.13.3 }
  annotations: { meta.helm.sh/release-name: edge, meta.helm.sh/release-namespace: ingress }
spec: { controller: k8s.io/ingress-nginx }
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  namespace: ingress
  name: edge-controller
  labels: { helm.sh/chart: ingress-nginx-4.13.3 }
  annotations: { meta.helm.sh/release-name: edge, meta.helm.sh/release-namespace: ingress }
spec:
  template:
    metadata: { labels: { app.kubernetes.io/instance: edge } }
    spec:
      hostNetwork: true
      containers:
        - name: controller
          image: registry.test/ingress-nginx/controller:v1.13.3
          args: [/nginx-ingress-controller, --configmap=$(POD_NAMESPACE)/edge-controller]
          ports: [{ containerPort: 80, hostPort: 80 }]
---
apiVersion: v1
kind: Service
metadata: { namespace: ingress, name: edge-controller }
spec: { type: LoadBalancer, selector: { app.kubernetes.io/instance: edge }, ports: [{ port: 80 }] }
---
apiVersion: v1
kind: Service
metadata: { namespace: shop, name: other }
spec: { type: NodePort, selector: { app.kubernetes.io/instance: edge }, ports: [{ port: 80 }] }
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: { name: edge-admission }
webhooks:
  - name: validate.nginx.ingress.kubernetes.io
    clientConfig: { service: { namespace: ingress, name: edge-admission } }
    rules: [{ apiGroups: [networking.k8s.io], resources: [ingresses] }]
"#;

/// From manifests, as a Deployment behind `hostPort`.
const PLAIN: &str = r#"
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: { name: nginx }
spec: { controller: k8s.io/ingress-nginx }
---
apiVersion: apps/v1
kind: Deployment
metadata: { namespace: ingress-nginx, name: controller }
spec:
  replicas: 2
  template:
    spec:
      containers:
        - name: controller
          image: registry.test/ingress-nginx/controller:v1.13.3
          args:
            - /nginx-ingress-controller
            - --configmap=$(POD_NAMESPACE)/settings
            - --default-ssl-certificate=shop/tls
            - --update-status=false
            - --v=2
          ports: [{ containerPort: 80, hostPort: 80 }, { containerPort: 443, hostPort: 443 }]
---
apiVersion: v1
kind: ConfigMap
metadata: { namespace: ingress-nginx, name: settings }
data: { proxy-body-size: 8m, worker-processes: "4" }
"#;

fn ingress(name: &str, annotations: &str) -> String {
    format!(
        r#"---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {{ namespace: shop, name: {name}, annotations: {{ {annotations} }} }}
spec:
  ingressClassName: nginx
  rules:
    - host: {name}.test
      http:
        paths: [{{ path: /, pathType: Prefix, backend: {{ service: {{ name: web, port: {{ number: 80 }} }} }} }}]
"#
    )
}

fn plan_of(text: &str, line: &[&str]) -> Plan {
    let args = Line::try_parse_from([&["plan"], line].concat()).expect("a command line").args;
    let installation = installation_of(text);
    let report = installation.judge(None);
    Plan::of(&installation, report, &args).expect("a plan")
}

fn with_ingresses(text: &str) -> String {
    let snippet = "nginx.ingress.kubernetes.io/configuration-snippet: 'more_set_headers \"X-A: 1\";'";
    [text.to_owned(), ingress("good", ""), ingress("snippet", snippet)].concat()
}

#[test]
fn a_release_of_helm_beside_a_load_balancer() {
    let plan = plan_of(&with_ingresses(HELM), &["-A", "--deployment", "ingress/edge-controller"]);
    expect_file!["release.expected.txt"].assert_eq(&render::text(&plan, Palette::NONE));
}

#[test]
fn manifests_with_host_ports() {
    let plan = plan_of(&with_ingresses(PLAIN), &["--from-dir", "my files", "--chart", "deploy/chart"]);
    expect_file!["manifests.expected.txt"].assert_eq(&render::markdown(&plan));
}

#[test]
fn without_ports_of_nodes_no_share_is_set() {
    let plan = plan_of(&HELM.replace("hostNetwork: true", "hostNetwork: false").replace(", hostPort: 80", ""), &["-A"]);
    let titles: Vec<_> = plan.steps.iter().map(|step| step.title.as_str()).collect();
    assert!(!titles.contains(&"Move clients") && titles.contains(&"Move the DNS names"), "{titles:?}");
    let json = shown(&plan, PlanFormat::Json, Palette::NONE).expect("JSON");
    assert!(!json.contains("initial-share") && !json.contains("shift_clients"), "{json}");
}

#[test]
fn what_is_done_is_no_step() {
    let kept = HELM
        .replace(
            "release-namespace: ingress }\nspec: { controller",
            "release-namespace: ingress, helm.sh/resource-policy: keep }\nspec: { controller",
        )
        .replace("resources: [ingresses]", "resources: [pods]");
    let titles =
        |text: &str| -> Vec<String> { plan_of(text, &["-A"]).steps.into_iter().map(|step| step.title).collect() };
    let (before, after) = (titles(HELM), titles(&kept));
    for title in ["Keep the class", "Delete the webhook"] {
        assert!(
            before.iter().any(|step| step == title) && after.iter().all(|step| step != title),
            "{title}: {after:?}"
        );
    }
    assert!(!after.iter().any(|step| step == "Repair what would differ"), "{after:?}");
}

#[test]
fn a_folder_of_ingresses_has_a_plan_with_usual_names() {
    let plan = plan_of(&ingress("good", ""), &["--from-dir", "."]);
    let text = render::text(&plan, Palette::NONE);
    assert!(text.contains("not found; the commands have the names of its chart"), "{text}");
    assert_eq!(plan.ingresses.ready, ["shop/good"]);
}

/// A shell reads each command as it is meant; none is run.
#[test]
fn commands_are_words_of_a_shell() {
    for (text, line) in [(HELM, &["-A"][..]), (PLAIN, &["--from-dir", "it's here"]), ("", &["-n", "shop"])] {
        let plan = plan_of(&with_ingresses(text), line);
        for command in plan.steps.iter().flat_map(|step| step.commands.iter().chain(&step.back)) {
            let output = Command::new("bash").args(["-nc", command]).output().expect("bash starts");
            assert!(output.status.success(), "{command}\n{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// Names in manifests are what their author wrote.
#[test]
fn names_are_no_commands() {
    let text = HELM.replace("edge-admission", "x; touch /tmp/owned");
    let plan = plan_of(&text, &["-A"]);
    let commands: Vec<_> = plan.steps.iter().flat_map(|step| &step.commands).collect();
    assert!(commands.iter().any(|command| command.ends_with(" 'x; touch /tmp/owned'")), "{commands:#?}");
}

/// Returns the commands of a page, of which some have several lines.
fn commands_of(page: &str) -> Vec<String> {
    let blocks = page.split("```sh\n").skip(1).filter_map(|block| block.split("```").next());
    let mut commands: Vec<String> = Vec::new();
    for line in blocks.flat_map(str::lines) {
        match commands.last_mut().filter(|_| line.starts_with(' ')) {
            Some(command) => *command += &format!("\n{line}"),
            None => commands.push(line.to_owned()),
        }
    }
    commands
}

#[test]
fn the_commands_of_the_page_run() {
    let home = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(home.path().join("manifests")).expect("made");
    std::fs::write(home.path().join("manifests/all.yaml"), with_ingresses(HELM)).expect("written");
    std::fs::write(home.path().join("nginx-values.yaml"), "controller: { hostNetwork: true }").expect("written");
    let commands = commands_of(include_str!("../../../../../../docs/migrate/plan.md"));
    assert!(commands.len() >= 6, "{commands:?}");
    for command in commands {
        let words = command.split_whitespace().skip(2).map(|word| match word {
            "./manifests" | "nginx-values.yaml" => home.path().join(word).display().to_string(),
            word => word.to_owned(),
        });
        if command.starts_with("xdp-ingress migrate values") {
            let line = ValuesLine::try_parse_from(words).expect(&command);
            assert_eq!(super::super::values(&line.args).expect(&command), ExitCode::SUCCESS);
            continue;
        }
        let Line { args } = Line::try_parse_from(words).expect(&command);
        // Without a cluster, its command is only parsed.
        if args.installation.from_dir.is_some() {
            assert_eq!(plan(&args).expect(&command), FINDINGS.into());
        }
    }
}

#[derive(Debug, clap::Parser)]
struct ValuesLine {
    #[command(flatten)]
    args: crate::migrate::ValuesArgs,
}
