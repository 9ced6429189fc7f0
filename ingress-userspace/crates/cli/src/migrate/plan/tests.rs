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
spec:
  type: LoadBalancer
  selector: { app.kubernetes.io/instance: edge }
  ports: [{ name: http, port: 80 }, { name: quic, port: 443, protocol: UDP }, { name: db, port: 5432 }]
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
    // Its pods become endpoints of the Service instead.
    let shares: Vec<_> = plan.steps.iter().filter(|step| step.title == "Move clients of the Service").collect();
    let [share] = &*shares else { panic!("{titles:?}") };
    assert!(share.commands[0].contains("ports: [{name: \"http\", port: 80}]"), "{}", share.commands[0]);
    assert!(share.commands[0].contains("kubernetes.io/service-name: \"edge-controller\""), "{}", share.commands[0]);
    assert_eq!(
        share.back,
        ["kubectl --namespace ingress delete endpointslice/xdp-ingress-share-edge-controller --ignore-not-found"]
    );
}

#[test]
fn what_is_done_is_no_step() {
    let done = HELM.replace("resources: [ingresses]", "resources: [pods]");
    let titles =
        |text: &str| -> Vec<String> { plan_of(text, &["-A"]).steps.into_iter().map(|step| step.title).collect() };
    let (before, after) = (titles(HELM), titles(&done));
    let title = "Delete the webhook";
    assert!(before.iter().any(|step| step == title) && after.iter().all(|step| step != title), "{after:?}");
    assert!(!after.iter().any(|step| step == "Repair what would differ"), "{after:?}");
}

/// Returns all commands of a plan, with those of the way back.
fn commands(plan: &Plan) -> Vec<&str> {
    plan.steps.iter().flat_map(|step| step.commands.iter().chain(&step.back)).map(String::as_str).collect()
}

/// Helm keeps what its manifest says, whoever has annotated the object.
#[test]
fn a_mark_on_a_class_is_checked_in_the_release() {
    let marked = HELM.replace(
        "release-namespace: ingress }\nspec: { controller",
        "release-namespace: ingress, helm.sh/resource-policy: keep }\nspec: { controller",
    );
    let plan = plan_of(&marked, &["-A"]);
    let step = plan.steps.iter().find(|step| step.title == "Keep the class").expect("a step");
    assert!(step.commands[0].starts_with("helm get manifest edge ") && step.commands[0].contains("|| helm upgrade"));
}

/// The way back takes the one annotation, and leaves others.
#[test]
fn the_way_back_from_the_class_leaves_other_annotations() {
    let plan = plan_of(HELM, &["-A"]);
    let step = plan.steps.iter().find(|step| step.title == "Keep the class").expect("a step");
    assert!(step.back.iter().all(|command| !command.contains("annotations=null")), "{:?}", step.back);
}

/// Other products ask about Ingresses, too, and outlive ingress-nginx.
#[test]
fn only_webhooks_of_ingress_nginx_are_deleted() {
    let webhook = |name: &str, namespace: &str, entries: &[&str]| {
        let entries: String = entries
            .iter()
            .map(|entry| {
                format!(
                    "  - name: {entry}\n    clientConfig: {{ service: {{ namespace: {namespace}, name: ingress-policy }} }}\n    \
                     rules: [{{ resources: [ingresses] }}]\n"
                )
            })
            .collect();
        format!("---\nkind: ValidatingWebhookConfiguration\nmetadata: {{ name: {name} }}\nwebhooks:\n{entries}")
    };
    let own = "validate.nginx.ingress.kubernetes.io";
    let text = [
        HELM.to_owned(),
        webhook("policy", "ingress", &["ingress.policy.test"]),
        webhook("second", "other", &[own]),
        webhook("shared", "ingress", &[own, "ingress.policy.test"]),
    ]
    .concat();
    let plan = plan_of(&text, &["-A"]);
    assert_eq!(plan.situation.webhooks, ["edge-admission"]);
    let told: Vec<_> = plan.findings.iter().filter(|finding| finding.key == "webhook").collect();
    assert_eq!(told.len(), 1, "{told:?}");
}

#[test]
fn commands_of_helm_are_for_its_own_chart() {
    for (label, is_own) in [
        ("ingress-nginx-4.13.3", true),
        ("platform-1.0.0", false),
        ("my-ingress-nginx-4.13.3", false),
        ("ingress-nginx", false),
    ] {
        let text = HELM.replace("helm.sh/chart: ingress-nginx-4.13.3", &format!("helm.sh/chart: {label}"));
        let plan = plan_of(&text, &["-A"]);
        let helm = commands(&plan).iter().filter(|command| command.contains(" edge ")).count();
        assert_eq!(helm > 0, is_own, "{label}: {:#?}", commands(&plan));
        assert!(
            is_own || plan.steps.iter().all(|step| !step.commands.iter().any(|line| line.contains("uninstall edge")))
        );
    }
}

/// A class of another release stays whatever happens to that of ingress-nginx.
#[test]
fn classes_of_other_releases_are_left_alone() {
    let other = "---\napiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata:\n  name: internal\n  labels: { \
                 helm.sh/chart: classes-1.0.0 }\n  annotations: { meta.helm.sh/release-name: classes, \
                 meta.helm.sh/release-namespace: infra }\nspec: { controller: k8s.io/ingress-nginx }\n";
    let plan = plan_of(&[HELM, other].concat(), &["-A"]);
    let text = render::text(&plan, Palette::NONE);
    assert!(!text.contains("`internal`") && !commands(&plan).iter().any(|command| command.contains("infra")), "{text}");
}

/// Words from objects never become options or commands, and never move the cursor.
#[test]
fn hostile_names_stay_words() {
    let hostile = HELM
        .replace("release-name: edge", "release-name: --post-renderer=/tmp/x")
        .replace("name: edge-controller", "name: \"--all\"")
        .replace("name: edge-admission }", "name: \"a\\n\\e[2J```\" }");
    let plan = plan_of(&with_ingresses(&hostile), &["-A"]);
    for command in commands(&plan) {
        assert!(!command.contains("post-renderer") && !command.contains(" --all"), "{command}");
        let output = Command::new("bash").args(["-nc", command]).output().expect("bash starts");
        assert!(output.status.success(), "{command}");
    }
    for form in [PlanFormat::Text, PlanFormat::Markdown, PlanFormat::Json, PlanFormat::Yaml] {
        let text = shown(&plan, form, Palette::NONE).expect("a text");
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{form:?}: {text:?}");
    }
}

/// Names of namespaces may look like numbers.
#[test]
fn a_namespace_is_a_text_in_yaml() {
    let plan = plan_of(HELM, &["-A", "--controller-namespace", "123"]);
    let right = plan.steps.iter().find(|step| step.title == "Grant the right to shift").expect("a step");
    assert!(right.commands[0].contains("namespace: \"123\""), "{}", right.commands[0]);
    for wrong in ["", "-x", "a b", "A", "x}; y"] {
        assert!(Line::try_parse_from(["plan", "--controller-namespace", wrong]).is_err(), "{wrong}");
    }
}

/// Each step that changes something can be undone, and names what serves meanwhile.
#[test]
fn each_change_has_a_way_back() {
    for (text, line) in [(HELM, &["-A"][..]), (PLAIN, &["--from-dir", "."])] {
        let plan = plan_of(&with_ingresses(text), line);
        for Step { title, commands, back, .. } in &plan.steps {
            let changes =
                ["helm install", "helm upgrade", "helm uninstall", " edit ", " patch ", " delete ", " scale ", "apply"];
            let has_change = commands.iter().any(|command| changes.iter().any(|change| command.contains(change)));
            assert!(!has_change || !back.is_empty(), "{title}");
        }
    }
}

/// ingress-nginx empties the statuses at its end, unless it writes none.
#[test]
fn statuses_are_never_empty() {
    let plan = plan_of(HELM, &["-A"]);
    let place = |title: &str| plan.steps.iter().position(|step| step.title == title).expect(title);
    let (leaves, takes) = (place("Keep ingress-nginx from statuses"), place("Take over the statuses"));
    assert!(
        leaves < takes
            && takes < place("Move the DNS names")
            && place("Move the DNS names") < place("Stop ingress-nginx")
    );
    assert!(plan.steps[leaves].commands[0].contains("update-status=false"));
    // No later upgrade makes the deleted webhook again.
    let deleted = place("Delete the webhook");
    let later = plan.steps[deleted + 1..].iter().flat_map(|step| step.commands.iter().chain(&step.back));
    let mut upgrades = later.filter(|command| command.starts_with("helm upgrade edge"));
    assert!(upgrades.all(|command| command.contains("admissionWebhooks.enabled=false")));
}

#[test]
fn a_plan_for_one_namespace_says_so() {
    let plan = plan_of(HELM, &["-n", "shop"]);
    assert_eq!(plan.steps[0].title, "Read all namespaces");
    assert!(plan.steps[0].commands[0].ends_with(" -A"), "{:?}", plan.steps[0].commands);
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
    let name = "'validatingwebhookconfiguration/x; touch /tmp/owned'";
    assert!(commands.iter().any(|command| command.ends_with(name)), "{commands:#?}");
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

/// Each command of these pages is one of a plan with the names of the chart, so that the two cannot drift apart.
#[test]
fn the_commands_of_removal_and_return_are_those_of_a_plan() {
    let usual = HELM
        .replace("edge-controller", "ingress-nginx-controller")
        .replace("edge-admission", "ingress-nginx-admission")
        .replace("edge", "ingress-nginx")
        .replace("namespace: ingress,", "namespace: ingress-nginx,")
        .replace("namespace: ingress }", "namespace: ingress-nginx }")
        .replace("namespace: ingress\n", "namespace: ingress-nginx\n");
    let deployment = usual
        .replace("kind: DaemonSet", "kind: Deployment")
        .replace("spec:\n  template", "spec:\n  replicas: 2\n  template");
    let plans = [plan_of(&usual, &["-A"]), plan_of(&deployment, &["-A"])];
    let known: Vec<&str> = plans.iter().flat_map(commands).collect();
    for (page, text) in [
        ("remove.md", include_str!("../../../../../../docs/migrate/remove.md")),
        ("back.md", include_str!("../../../../../../docs/migrate/back.md")),
    ] {
        let commands = commands_of(text);
        assert!(commands.len() >= 6, "{page}: {commands:?}");
        for command in commands {
            let is_plan = command.starts_with("xdp-ingress migrate plan ")
                && Line::try_parse_from(command.split_whitespace().skip(2)).is_ok();
            assert!(is_plan || known.contains(&&*command), "{page}: {command}\n{known:#?}");
        }
    }
}

#[derive(Debug, clap::Parser)]
struct ValuesLine {
    #[command(flatten)]
    args: crate::migrate::ValuesArgs,
}
