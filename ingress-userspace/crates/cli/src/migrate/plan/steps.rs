//! The steps in their order: each is undone by the commands behind it.

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::{
    Step, leave, render, service,
    shell::{quoted, yaml},
    situation::{Class, Situation},
    target::Target,
};
use crate::{
    check::{Finding, Installation, Release},
    migrate::values::convert,
};

/// Chart of ingress-nginx, and the repository that its documentation names.
const THEIR_CHART: &str = "ingress-nginx --repo https://kubernetes.github.io/ingress-nginx";
/// Name of the release of this controller.
pub(super) const OURS: &str = "xdp-ingress";
/// Options of Helm while both controllers serve: no status is written, and no client is taken.
pub(super) const STATUS: &str = "--set controller.updateStatus=false";
pub(super) const SHARE: &str = "--set-string controller.extraArgs.initial-share=0%";
/// Flags that the chart of ingress-nginx makes of values, or that concern its installation alone.
const OF_CHART: &[&str] = &[
    "configmap",
    "controller-class",
    "election-id",
    "ingress-class",
    "publish-service",
    "tcp-services-configmap",
    "udp-services-configmap",
    "validating-webhook",
    "validating-webhook-certificate",
    "validating-webhook-key",
];
/// Sets the share of every node; `migrate shift` acts on one.
const SHIFT: &str = "shift_clients() { kubectl --namespace NAMESPACE get pods --selector app.kubernetes.io/name=xdp-ingress --output name |
  while read -r pod; do kubectl --namespace NAMESPACE exec \"$pod\" -- xdp-ingress migrate shift \"$1\" </dev/null; done; }";
const RIGHT: &str = "kubectl apply --filename - <<'END'
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: xdp-ingress-shift}
rules:
  - {apiGroups: [xdp-ingress.io], resources: [shifts], verbs: [update]}
  - {apiGroups: [events.k8s.io], resources: [events], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: xdp-ingress-shift}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: xdp-ingress-shift}
subjects: [{kind: ServiceAccount, name: xdp-ingress, namespace: NAMESPACE}]
END";

/// Returns the steps for an installation.
///
/// # Errors
/// Fails if the values of this controller have no form in YAML.
pub(super) fn steps(
    installation: &Installation,
    situation: &Situation,
    findings: &[Finding],
    target: &Target,
) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = target.only.iter().map(|namespace| whole(namespace, target)).collect();
    // The webhook has a step of its own.
    let findings: Vec<_> = findings.iter().filter(|finding| finding.key != "webhook").cloned().collect();
    steps.extend((!findings.is_empty()).then(|| repair(&findings, target)));
    steps.push(replay(situation, target));
    steps.push(values(installation, situation, target)?);
    steps.extend((!situation.host_ports.is_empty()).then(|| network(situation)));
    steps.extend(keep_classes(situation));
    steps.extend(webhooks(situation));
    steps.push(install(situation, target));
    if situation.shares_ports() {
        steps.push(grant(target));
        steps.push(shift(target));
    } else {
        steps.extend(service::steps(situation, target));
    }
    steps.extend(leave::steps(situation, target));
    Ok(steps)
}

/// Tells that other namespaces move with the one that was read.
fn whole(namespace: &str, target: &Target) -> Step {
    let text = format!(
        "This plan has read the Ingresses of namespace `{namespace}` alone, but its steps move the clients of all \
         namespaces. Write it again for all of them."
    );
    let commands = vec![format!("xdp-ingress migrate plan {}", target.reads_all)];
    Step { title: "Read all namespaces".to_owned(), text: vec![text], commands, back: Vec::new() }
}

fn repair(findings: &[Finding], target: &Target) -> Step {
    let mut text = render::findings(findings);
    text.push("Both controllers serve the repaired objects, so apply them now.".to_owned());
    let reads = &target.reads;
    let mut commands = vec![format!("xdp-ingress check {reads} -o wide")];
    if findings.iter().any(|finding| finding.fix.contains("`--fix`")) {
        commands.push(format!("xdp-ingress check {reads} --fix ./fix"));
    }
    Step { title: "Repair what would differ".to_owned(), text, commands, back: Vec::new() }
}

fn replay(situation: &Situation, target: &Target) -> Step {
    let (mut commands, mut back) = (Vec::new(), Vec::new());
    let namespace = quoted(&situation.workload.namespace);
    let workload = workload(situation);
    if let Some(settings) = &situation.settings {
        let (namespace, name) = (quoted(&settings.namespace), quoted(&format!("configmap/{}", settings.name)));
        commands.push("xdp-ingress shadow --print-format > patch.yaml".to_owned());
        commands.push(format!("kubectl --namespace {namespace} patch {name} --patch-file patch.yaml"));
        let before = json!({"data": {"log-format-upstream": situation.log_format}}).to_string();
        back.push(format!("kubectl --namespace {namespace} patch {name} --type merge --patch {}", quoted(&before)));
    }
    commands.push(format!("kubectl --namespace {namespace} logs {workload} --since=24h > access.log"));
    commands.push(format!("xdp-ingress shadow --log access.log {}", target.reads));
    let text = "The patch adds the host to the access log. Wait a day before you take the log, so that it has all forms of \
                your traffic. `kubectl logs` reads one pod; repeat it for each.";
    Step { title: "Replay an access log".to_owned(), text: vec![text.to_owned()], commands, back }
}

/// Writes the values of this controller's chart.
fn values(installation: &Installation, situation: &Situation, target: &Target) -> Result<Step> {
    let mut commands = Vec::new();
    let text = match (&target.values, &situation.release) {
        (Some(file), _) => {
            commands.push(format!("xdp-ingress migrate values {} > xdp-values.yaml", quoted(file)));
            "Comments in the new file name what is left out or differs."
        }
        (None, Some(Release { namespace, name, .. })) => {
            let (namespace, name) = (quoted(namespace), quoted(name));
            commands.push(format!("helm list --namespace {namespace} --filter '^{name}$'"));
            commands.push(format!("helm get values {name} --namespace {namespace} --output yaml > nginx-values.yaml"));
            commands.push("xdp-ingress migrate values nginx-values.yaml > xdp-values.yaml".to_owned());
            "The first command must show a chart `ingress-nginx-…`. If it shows another, ingress-nginx is a part of that chart: \
             change its values there, and run no further `helm` command on that release. Comments in the new file name what \
             is left out or differs."
        }
        (None, None) => {
            let own = serde_saphyr::to_string(&convert(&without_chart(installation, situation)).values)?;
            commands.push(format!("cat > xdp-values.yaml <<'END'\n{}\nEND", own.trim_end()));
            "ingress-nginx has no release of its own chart here. These values follow its arguments and its ConfigMap."
        }
    };
    Ok(Step {
        title: "Write the values of the chart".to_owned(),
        text: vec![text.to_owned()],
        commands,
        back: Vec::new(),
    })
}

/// Returns the values with which ingress-nginx' chart would install what is there.
fn without_chart(installation: &Installation, situation: &Situation) -> Value {
    let Installation { objects, controller, .. } = installation;
    let data = |flag: &str| -> Value {
        let named = controller.flags.get(flag).and_then(|value| crate::options::object_name(value).ok());
        let stored = named.and_then(|name| objects.cluster.config_maps.get(&name));
        json!(stored.and_then(|stored| stored.object.data.clone()).unwrap_or_default())
    };
    let flags = controller.flags.iter().filter(|(name, _)| !OF_CHART.contains(&name.as_str()));
    let flags: Map<String, Value> = flags.map(|(name, value)| (name.clone(), json!(value))).collect();
    let class = json!({ "controllerValue": controller.flags.get("controller-class"), "name": controller.flags.get("ingress-class") });
    json!({
        "controller": {
            "config": data("configmap"),
            "extraArgs": flags,
            "hostNetwork": situation.host_network,
            "ingressClassResource": class,
            "service": { "enabled": !situation.services.is_empty() },
        },
        "tcp": data("tcp-services-configmap"),
        "udp": data("udp-services-configmap"),
    })
}

fn network(situation: &Situation) -> Step {
    let mut text = vec![
        "A `hostPort` is a DNAT rule, which takes the packets before xdp-ingress can share them. The change replaces the pods of \
         ingress-nginx."
            .to_owned(),
        "From the end of its old pod until the new one listens, a node serves no client. Before a pod of a node is replaced, take \
         that node out of your DNS names or load balancer."
            .to_owned(),
    ];
    let (on, off) = (
        "--set controller.hostPort.enabled=false --set controller.hostNetwork=true --set controller.dnsPolicy=ClusterFirstWithHostNet",
        "--set controller.hostPort.enabled=true --set controller.hostNetwork=false --set controller.dnsPolicy=ClusterFirst",
    );
    let (namespace, name) = (quoted(&situation.workload.namespace), workload(situation));
    let ready = format!("kubectl --namespace {namespace} rollout status {name}");
    let (change, undo) = match &situation.release {
        Some(release) => (upgrade_theirs(release, on), upgrade_theirs(release, off)),
        None => {
            text.push(
                "Set `hostNetwork: true` and `dnsPolicy: ClusterFirstWithHostNet` in `spec.template.spec`, and make each \
                 `hostPort` the same as its `containerPort`."
                    .to_owned(),
            );
            let undo = format!("kubectl --namespace {namespace} rollout undo {name}");
            (format!("kubectl --namespace {namespace} edit {name}"), undo)
        }
    };
    let title = "Give ingress-nginx the network of the nodes".to_owned();
    Step { title, text, commands: vec![change, ready.clone()], back: vec![undo, ready] }
}

/// Keeps the classes that go with the release. `spec.controller` is immutable, so a class cannot change its controller.
fn keep_classes(situation: &Situation) -> Option<Step> {
    let going: Vec<&Class> = situation.classes.iter().filter(|class| class.goes_with_release).collect();
    if going.is_empty() {
        return None;
    }
    let names = going.iter().map(|class| format!("`{}`", class.name)).collect::<Vec<_>>().join(", ");
    let title = "Keep the class".to_owned();
    let mut text = vec![format!(
        "`spec.controller` of a class is immutable, so xdp-ingress serves {names} as it is. The removal of the release \
         would delete it, and its Ingresses would have no class. Helm keeps an object only if the manifest of the release \
         says so; `kubectl annotate` is not enough. No pod starts again."
    )];
    let Some(release) = &situation.release else {
        let other = situation.other_release.as_ref().map(|release| release.name.as_str()).unwrap_or_default();
        text.push(format!(
            "The class is of release `{other}`, whose chart is not that of ingress-nginx. Give the class the annotation \
             `helm.sh/resource-policy: keep` by the values of that chart."
        ));
        return Some(Step { title, text, commands: Vec::new(), back: Vec::new() });
    };
    text.push(format!(
        "The last command counts what the release keeps. Go on only if the number is {} or more: versions of the chart differ.",
        going.len()
    ));
    let keep = r"--set 'controller.ingressClassResource.annotations.helm\.sh/resource-policy=keep'";
    let undo = r"--set 'controller.ingressClassResource.annotations.helm\.sh/resource-policy=null'";
    let (name, namespace) = (quoted(&release.name), quoted(&release.namespace));
    let kept =
        format!("helm get manifest {name} --namespace {namespace} | grep --count 'helm.sh/resource-policy: keep'");
    // A mark that `kubectl` has written needs the upgrade, too.
    let is_done = going.iter().all(|class| class.is_marked);
    let change = upgrade_theirs(release, keep);
    let change = if is_done { format!("{kept} || {change}") } else { change };
    Some(Step { title, text, commands: vec![change, kept], back: vec![upgrade_theirs(release, undo)] })
}

pub(super) fn webhooks(situation: &Situation) -> Option<Step> {
    if situation.webhooks.is_empty() {
        return None;
    }
    let names: Vec<_> =
        situation.webhooks.iter().map(|name| quoted(&format!("validatingwebhookconfiguration/{name}"))).collect();
    let names = names.join(" ");
    let mut text = vec![
        "The webhook outlives the pods that answer it. Without them, the API server refuses every change of an Ingress. \
         From here on, ingress-nginx no longer checks them."
            .to_owned(),
    ];
    if let Some(release) = &situation.release {
        text.push(format!(
            "A later `helm upgrade {}` makes it again, unless you set `controller.admissionWebhooks.enabled` to false.",
            release.name
        ));
    }
    let save = format!("kubectl get {names} --output yaml > webhook.yaml");
    let commands = vec![save, format!("kubectl delete {names}")];
    let back = vec!["kubectl apply --filename webhook.yaml".to_owned()];
    Some(Step { title: "Delete the webhook".to_owned(), text, commands, back })
}

fn install(situation: &Situation, target: &Target) -> Step {
    let Target { namespace, chart, .. } = target;
    let (namespace, chart) = (quoted(namespace), quoted(chart));
    let share = if situation.shares_ports() { format!(" {SHARE}") } else { String::new() };
    let how = if situation.shares_ports() {
        "Both controllers then have the ports of the nodes. With the share of 0 %, every client stays with ingress-nginx."
    } else {
        "xdp-ingress takes ports 80 and 443 of the nodes, which ingress-nginx does not use here. Its clients come by its \
         Service, and stay there."
    };
    let text = vec![
        how.to_owned(),
        "xdp-ingress serves the same class and writes no status, so the two do not fight over addresses. Events on Ingresses \
         tell you what it reads."
            .to_owned(),
    ];
    let commands = vec![
        format!(
            "helm install {OURS} {chart} --namespace {namespace} --create-namespace --values xdp-values.yaml {STATUS}{share}"
        ),
        format!("kubectl --namespace {namespace} rollout status daemonset/{OURS}"),
    ];
    // Programs that stay would go on to apply the deny list.
    let unload = format!(
        "kubectl --namespace {namespace} get pods --selector app.kubernetes.io/name=xdp-ingress --output name |\n  \
         while read -r pod; do kubectl --namespace {namespace} exec \"$pod\" -- xdp-ingress unload </dev/null; done"
    );
    let back = vec![unload, format!("helm uninstall {OURS} --namespace {namespace}")];
    Step { title: "Install xdp-ingress beside ingress-nginx".to_owned(), text, commands, back }
}

fn grant(target: &Target) -> Step {
    let text = "`migrate shift` needs a right of its own. In a pod it has the identity of the ServiceAccount, so everyone who \
                may `exec` there can shift clients from here on. If your values set `serviceAccount.name`, name that account.";
    let commands = vec![RIGHT.replace("NAMESPACE", &yaml(&target.namespace))];
    let back = vec!["kubectl delete clusterrolebinding,clusterrole xdp-ingress-shift".to_owned()];
    Step { title: "Grant the right to shift".to_owned(), text: vec![text.to_owned()], commands, back }
}

fn shift(target: &Target) -> Step {
    let text = "A client stays on its side, and open connections stay where they are. Look at both controllers before each \
                larger share. The way back takes effect at once on each node.";
    let mut commands = vec![SHIFT.replace("NAMESPACE", &quoted(&target.namespace))];
    commands.extend(["1%", "10%", "50%", "100%"].map(|share| format!("shift_clients {share}")));
    Step {
        title: "Move clients".to_owned(),
        text: vec![text.to_owned()],
        commands,
        back: vec!["shift_clients 0".to_owned()],
    }
}

/// Returns the name of the Deployment or DaemonSet for kubectl.
pub(super) fn workload(situation: &Situation) -> String {
    quoted(&format!("{}/{}", situation.kind.to_lowercase(), situation.workload.name))
}

/// Returns the command that changes values of ingress-nginx' release and nothing else.
pub(super) fn upgrade_theirs(release: &Release, set: &str) -> String {
    let Release { namespace, name, version, chart: _ } = release;
    let version = version.as_ref().map(|version| format!(" --version {}", quoted(version))).unwrap_or_default();
    format!(
        "helm upgrade {} {THEIR_CHART} --namespace {}{version} --reuse-values {set}",
        quoted(name),
        quoted(namespace)
    )
}
