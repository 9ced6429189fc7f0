//! The desk of an operator: an API server without nodes, ingress-nginx as a release of Helm, and a shell.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use ingress_lab::{Lab, Namespace, Process};
use rcgen::KeyPair;
use serde_json::Value;
use xtask_kube_lab::programs;
use xtask_setup::build::{self, Profile};
use xtask_tools::{process, workspace};

/// Longest wait for the API server.
const LIMIT: Duration = Duration::from_secs(120);
/// Names that a reader replaces.
const CHART: &str = "oci://registry.example.com/xdp-ingress/charts/xdp-ingress";
const REPOSITORY: &str = "ingress-nginx --repo https://kubernetes.github.io/ingress-nginx";
const REVISION: &str =
    "$(helm history ingress-nginx --namespace ingress-nginx | awk '/superseded/ {n = $1} END {print n}')";

/// Before the commands: each that fails is named.
const TRAP: &str = "trap 'echo \"failed: $? $BASH_COMMAND\"' ERR\n";

const KUBECONFIG: &str = "\
apiVersion: v1
kind: Config
current-context: production
clusters: [{name: c, cluster: {server: 'https://127.0.0.1:6443', insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: admin}}]
contexts: [{name: production, context: {cluster: c, user: u}}]
";

const SITE: &str = "\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: web
  namespace: default
  annotations: {nginx.ingress.kubernetes.io/configuration-snippet: 'add_header X-Frame-Options DENY always;'}
spec:
  ingressClassName: nginx
  rules: [{host: web.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
";

/// Objects of the folder alone: what the page of Gateway API reads.
const OWN: &str = "\
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: xdp}
spec: {controller: xdp-ingress.io/controller}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: xdp-ingress, namespace: xdp-ingress}
data: {}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: own, namespace: default}
spec:
  ingressClassName: xdp
  rules: [{host: own.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
";

/// A pod of xdp-ingress: there is no controller that would make it.
const POD: &str = "\
apiVersion: v1
kind: Pod
metadata: {namespace: xdp-ingress, name: n1, labels: {app.kubernetes.io/name: xdp-ingress}}
spec: {nodeName: n1, containers: [{name: xdp-ingress, image: none}]}
";

const ADDRESS: &str = "kubectl --namespace xdp-ingress patch pod/n1 --subresource=status --type=merge --patch \
                       '{\"status\":{\"podIP\":\"192.0.2.11\",\"podIPs\":[{\"ip\":\"192.0.2.11\"}]}}'";

const LOG: &str = "192.0.2.1 - - [27/Nov/2026:20:00:00 +0000] \"GET / HTTP/1.1\" 200 2 \"-\" \"curl\" 80 0.001 \
                   [default-web-80] [] 10.0.0.1:8080 2 0.001 200 0123456789abcdef https \"web.test\"\n";

/// Stands in for the chart of ingress-nginx, with its names.
const STAND_IN: &str = r#"
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata:
  name: nginx
  labels: {helm.sh/chart: ingress-nginx-4.13.3}
  annotations:
    {{- toYaml .Values.controller.ingressClassResource.annotations | nindent 4 }}
spec: {controller: k8s.io/ingress-nginx}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: ingress-nginx-controller, labels: {helm.sh/chart: ingress-nginx-4.13.3}}
data:
  hsts: "false"
  # With the host, as shadow.md says.
  log-format-upstream: >-
    $remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent"
    $request_length $request_time [$proxy_upstream_name] [$proxy_alternative_upstream_name] $upstream_addr
    $upstream_response_length $upstream_response_time $upstream_status $req_id $pass_access_scheme "$host"
---
apiVersion: v1
kind: Service
metadata: {name: ingress-nginx-controller, labels: {helm.sh/chart: ingress-nginx-4.13.3}}
spec:
  type: {{ if .Values.controller.hostNetwork }}ClusterIP{{ else }}LoadBalancer{{ end }}
  selector: {app: nginx}
  ports: [{name: http, port: 80}, {name: https, port: 443}]
---
apiVersion: apps/v1
kind: {{ .Values.controller.kind }}
metadata:
  name: ingress-nginx-controller
  labels: {helm.sh/chart: ingress-nginx-4.13.3, app.kubernetes.io/name: ingress-nginx, app.kubernetes.io/component: controller}
spec:
  selector: {matchLabels: {app: nginx}}
  template:
    metadata: {labels: {app: nginx, app.kubernetes.io/instance: ingress-nginx}}
    spec:
      hostNetwork: {{ .Values.controller.hostNetwork }}
      containers:
      - name: controller
        image: registry.test/ingress-nginx/controller:v1.13.3
        args:
        - /nginx-ingress-controller
        - --configmap=$(POD_NAMESPACE)/ingress-nginx-controller
        {{- range $name, $value := .Values.controller.extraArgs }}
        - --{{ $name }}={{ $value }}
        {{- end }}
        ports: [{{ if .Values.controller.hostNetwork }}{containerPort: 80, hostPort: 80}{{ end }}]
{{- if .Values.controller.admissionWebhooks.enabled }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: ingress-nginx-admission, labels: {helm.sh/chart: ingress-nginx-4.13.3}}
webhooks:
- name: validate.nginx.ingress.kubernetes.io
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Fail
  clientConfig: {service: {namespace: ingress-nginx, name: ingress-nginx-controller-admission}}
  rules: [{apiGroups: [networking.k8s.io], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [ingresses]}]
{{- end }}
"#;

/// A shell beside an API server. Dropping it ends all.
pub(super) struct Desk {
    lab: Lab,
    network: Namespace,
    _server: [Process; 2],
}

// === impl Desk ===

impl Desk {
    /// Starts the API server, with ingress-nginx as a workload of this kind, on the network of the host or behind a Service.
    pub(super) fn open(name: &str, kind: &str, is_on_host: bool) -> Result<Self> {
        let lab = Lab::open(name)?;
        let network = lab.namespace("api")?;
        network.ip("link set lo up\n")?;
        let server = start(&lab, &network)?;
        let desk = Self { lab, network, _server: server };
        desk.tools()?;
        for (path, text) in [
            ("manifests/web.yaml", SITE),
            ("manifests/own.yaml", OWN),
            ("pod.yaml", POD),
            ("nginx.log", LOG),
            ("access.log", LOG),
            ("executed", ""),
            ("ingress-nginx/Chart.yaml", "apiVersion: v2\nname: ingress-nginx\nversion: 4.13.3\n"),
            ("ingress-nginx/templates/all.yaml", STAND_IN),
            (
                "ingress-nginx/values.yaml",
                &format!(
                    "controller: {{kind: {kind}, hostNetwork: true, extraArgs: {{}}, ingressClassResource: {{annotations: {{}}}}, \
                     admissionWebhooks: {{enabled: true}}}}\n"
                ),
            ),
            ("nginx-values.yaml", &format!("controller: {{hostNetwork: {is_on_host}, config: {{hsts: \"false\"}}}}\n")),
        ] {
            let path = desk.home().join(path);
            fs::create_dir_all(path.parent().context("a directory")?)?;
            fs::write(path, text)?;
        }
        desk.follow("kubectl create --filename manifests/web.yaml\n")?;
        let install = "helm install ingress-nginx ./ingress-nginx --namespace ingress-nginx --create-namespace";
        desk.follow(&format!("{install} --values nginx-values.yaml\n"))?;
        desk.follow("helm template ingress-nginx ./ingress-nginx >manifests/ingress-nginx.yaml\n")?;
        Ok(desk)
    }

    fn home(&self) -> &Path {
        self.lab.home()
    }

    /// Lays the programs of the shell.
    fn tools(&self) -> Result<()> {
        let tools = self.home().join("bin");
        fs::create_dir_all(&tools)?;
        symlink(xtask_setup::packagers()?.helm, tools.join("helm"))?;
        symlink(build::userspace(Profile::Dev)?, tools.join("xdp-ingress"))?;
        let wrapper = format!(
            "#!/bin/bash\nwords=\"$*\"\ncase \" $words \" in\n*' exec '*) echo \"${{words#*-- }}\" >>executed; exit ;;\n\
             *' logs '*) cat nginx.log; exit ;;\n*' rollout status '*) set -- ${{words/rollout status/get}} ;;\nesac\n\
             exec {} \"$@\"\n",
            programs::ensure()?.kubectl.display()
        );
        fs::write(tools.join("kubectl"), wrapper)?;
        Ok(fs::set_permissions(tools.join("kubectl"), fs::Permissions::from_mode(0o755))?)
    }

    /// Runs commands as a reader would, and returns them with their output.
    ///
    /// # Errors
    /// Names each command that fails. An exit code of 3 is a finding, and `grep --count` has 1 for none.
    pub(super) fn follow(&self, script: &str) -> Result<String> {
        let chart = workspace::root().join("deploy/chart").display().to_string();
        let replaced =
            script.replace(CHART, &chart).replace(REPOSITORY, "./ingress-nginx").replace("REVISION", REVISION);
        let said = self.shell(&format!("set -E\n{TRAP}set -v\n{replaced}"))?;
        let is_finding = |failure: &str| failure.starts_with("3 xdp-ingress ") || failure == "1 grep --count ' HTTP/'";
        // The address is a placeholder.
        let is_finding = |failure: &str| is_finding(failure) || failure.contains(" curl --include ");
        let failures: Vec<_> = said.lines().filter_map(|line| line.strip_prefix("failed: ")).collect();
        let failures: Vec<_> = failures.into_iter().filter(|failure| !is_finding(failure)).collect();
        ensure!(failures.is_empty(), "{failures:?}\n{said}");
        Ok(said)
    }

    /// Runs a script, and returns all of its output.
    pub(super) fn shell(&self, script: &str) -> Result<String> {
        let home = self.home();
        let path = format!("{}:{}", home.join("bin").display(), std::env::var("PATH").unwrap_or_default());
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("exec 2>&1\n{script}\ntrue")]).current_dir(home).env("HOME", home).env("PATH", path);
        shell.env("KUBECONFIG", home.join("kubeconfig")).env("NO_COLOR", "1");
        self.network.run(|| process::capture(&mut shell))
    }

    /// Returns the plan for the cluster.
    pub(super) fn plan(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.shell("xdp-ingress migrate plan -A -o json 2>/dev/null")?)?)
    }

    /// Changes the Ingress.
    ///
    /// # Errors
    /// Fails if the API server refuses the change.
    pub(super) fn edit(&self) -> Result<()> {
        let said = self.shell("kubectl annotate --overwrite ingress/web edited=\"$(date +%N)\"")?;
        if said.contains("annotated") { Ok(()) } else { bail!("{said}") }
    }

    /// Makes a pod of xdp-ingress.
    pub(super) fn start_pod(&self) -> Result<()> {
        self.follow(&format!("kubectl create --filename pod.yaml\n{ADDRESS}\n")).map(drop)
    }

    /// Returns the commands that pods were to execute.
    pub(super) fn executed(&self) -> Result<Vec<String>> {
        Ok(fs::read_to_string(self.home().join("executed"))?.lines().map(str::to_owned).collect())
    }
}

/// Starts etcd and the API server.
fn start(lab: &Lab, network: &Namespace) -> Result<[Process; 2]> {
    let (home, programs) = (lab.home(), programs::ensure()?);
    let key = KeyPair::generate()?;
    fs::write(home.join("service-accounts.key"), key.serialize_pem())?;
    fs::write(home.join("service-accounts.pub"), key.public_key_pem())?;
    fs::write(home.join("tokens.csv"), "admin,admin,admin,system:masters\n")?;
    fs::write(home.join("kubeconfig"), KUBECONFIG)?;
    let mut etcd = Command::new(&programs.etcd);
    etcd.args(["--name", "default", "--unsafe-no-fsync", "--log-level", "warn"]);
    etcd.args(["--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379"]);
    etcd.args(["--listen-peer-urls", "http://127.0.0.1:0", "--data-dir"]).arg(home.join("etcd"));
    let etcd = lab.spawn(network, "etcd", etcd)?;
    let mut server = Command::new(&programs.kube_apiserver);
    server.args(["--etcd-servers=http://127.0.0.1:2379", "--bind-address=127.0.0.1", "--secure-port=6443"]);
    server.args(["--advertise-address=192.0.2.1", "--service-cluster-ip-range=10.96.0.0/16"]);
    server.args(["--authorization-mode=RBAC", "--allow-privileged=true", "--disable-admission-plugins=ServiceAccount"]);
    server.arg("--service-account-issuer=https://kubernetes.default.svc");
    for (flag, path) in [
        ("token-auth-file", "tokens.csv"),
        ("cert-dir", "certificates"),
        ("service-account-key-file", "service-accounts.pub"),
        ("service-account-signing-key-file", "service-accounts.key"),
    ] {
        server.arg(format!("--{flag}={}", home.join(path).display()));
    }
    let mut server = lab.spawn(network, "kube-apiserver", server)?;
    let ready = || {
        let mut ask = Command::new(&programs.kubectl);
        ask.arg("--kubeconfig").arg(home.join("kubeconfig")).args(["--request-timeout=5s", "get", "namespace/default"]);
        network.run(|| process::capture(&mut ask)).is_ok()
    };
    server.wait_until(LIMIT, "the API server", ready)?;
    Ok([etcd, server])
}
