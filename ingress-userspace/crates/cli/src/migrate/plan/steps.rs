//! The steps in their order: each is undone by the commands behind it.

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::{
    Step, render,
    shell::quoted,
    situation::{Class, Situation},
    target::Target,
};
use crate::{
    check::{Entrance, Finding, Installation, Release},
    migrate::values::convert,
};

/// Chart of ingress-nginx, under the name that its documentation gives the repository.
const THEIR_CHART: &str = "ingress-nginx/ingress-nginx";
/// Name of the release of this controller.
const OURS: &str = "xdp-ingress";
/// Options of Helm while both controllers serve: no status is written, and no client is taken.
const STATUS: &str = "--set controller.updateStatus=false";
const SHARE: &str = "--set-string controller.extraArgs.initial-share=0%";
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
    let mut steps = Vec::new();
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
    }
    steps.extend((!situation.services.is_empty()).then(|| names(&situation.services, target)));
    steps.push(take_over(situation, target));
    steps.push(stop(situation, target));
    steps.push(remove(situation));
    Ok(steps)
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
    let mut commands = Vec::new();
    let namespace = quoted(&situation.workload.namespace);
    let workload = workload(situation);
    if let Some(settings) = &situation.settings {
        let (namespace, name) = (quoted(&settings.namespace), quoted(&settings.name));
        commands.push("xdp-ingress shadow --print-format > patch.yaml".to_owned());
        commands.push(format!("kubectl --namespace {namespace} patch configmap {name} --patch-file patch.yaml"));
    }
    commands.push(format!("kubectl --namespace {namespace} logs {workload} --since=24h > access.log"));
    commands.push(format!("xdp-ingress shadow --log access.log {}", target.reads));
    let text = "The patch adds the host to the access log. Wait a day before you take the log, so that it has all forms of \
                your traffic. `kubectl logs` reads one pod; repeat it for each.";
    Step { title: "Replay an access log".to_owned(), text: vec![text.to_owned()], commands, back: Vec::new() }
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
            commands.push(format!("helm get values {name} --namespace {namespace} --output yaml > nginx-values.yaml"));
            commands.push("xdp-ingress migrate values nginx-values.yaml > xdp-values.yaml".to_owned());
            "Comments in the new file name what is left out or differs."
        }
        (None, None) => {
            let own = serde_saphyr::to_string(&convert(&without_chart(installation, situation)).values)?;
            commands.push(format!("cat > xdp-values.yaml <<'END'\n{}\nEND", own.trim_end()));
            "ingress-nginx has no release of Helm here. These values follow its arguments and its ConfigMap."
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
    let text = "A `hostPort` is a DNAT rule, which takes the packets before xdp-ingress can share them. The change replaces the \
                pods of ingress-nginx.";
    let (on, off) = (
        "--set controller.hostPort.enabled=false --set controller.hostNetwork=true --set controller.dnsPolicy=ClusterFirstWithHostNet",
        "--set controller.hostPort.enabled=true --set controller.hostNetwork=false --set controller.dnsPolicy=ClusterFirst",
    );
    let (commands, back) = match &situation.release {
        Some(release) => (vec![upgrade_theirs(release, on)], vec![upgrade_theirs(release, off)]),
        None => {
            let edit =
                format!("kubectl --namespace {} edit {}", quoted(&situation.workload.namespace), workload(situation));
            (vec![edit], Vec::new())
        }
    };
    Step {
        title: "Give ingress-nginx the network of the nodes".to_owned(),
        text: vec![text.to_owned()],
        commands,
        back,
    }
}

/// Keeps the classes that go with a release. `spec.controller` is immutable, so a class cannot change its controller.
fn keep_classes(situation: &Situation) -> Option<Step> {
    let going: Vec<&Class> = situation.classes.iter().filter(|class| class.goes_with_release).collect();
    let release = going.iter().find_map(|class| class.release.as_ref())?;
    let names = going.iter().map(|class| format!("`{}`", class.name)).collect::<Vec<_>>().join(", ");
    let text = format!(
        "`spec.controller` of a class is immutable, so xdp-ingress serves {names} as it is. The removal of the release \
         would delete it, and its Ingresses would have no class. Helm keeps an object only if the release says so; \
         `kubectl annotate` is not enough. No pod starts again."
    );
    let keep = r"--set 'controller.ingressClassResource.annotations.helm\.sh/resource-policy=keep'";
    let undo = "--set controller.ingressClassResource.annotations=null";
    let (commands, back) = (vec![upgrade_theirs(release, keep)], vec![upgrade_theirs(release, undo)]);
    Some(Step { title: "Keep the class".to_owned(), text: vec![text], commands, back })
}

fn webhooks(situation: &Situation) -> Option<Step> {
    if situation.webhooks.is_empty() {
        return None;
    }
    let names = situation.webhooks.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(" ");
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
    let save = format!("kubectl get validatingwebhookconfigurations {names} --output yaml > webhook.yaml");
    let commands = vec![save, format!("kubectl delete validatingwebhookconfigurations {names}")];
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
    let back = vec![format!("helm uninstall {OURS} --namespace {namespace}")];
    Step { title: "Install xdp-ingress beside ingress-nginx".to_owned(), text, commands, back }
}

fn grant(target: &Target) -> Step {
    let text = "`migrate shift` needs a right of its own. In a pod it has the identity of the ServiceAccount, so everyone who \
                may `exec` there can shift clients from here on.";
    let commands = vec![RIGHT.replace("NAMESPACE", &target.namespace)];
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

fn names(services: &[Entrance], target: &Target) -> Step {
    let shown = services.iter().map(|service| format!("`{}`", service.name)).collect::<Vec<_>>().join(", ");
    let text = vec![
        format!(
            "Clients come by Service {shown}, which leads to pods of ingress-nginx alone. xdp-ingress has a Service of its own \
             with another address. Point the DNS names there, some at a time or by weight, and wait until their \
             time to live is over."
        ),
        "If external-dns reads the statuses of Ingresses, the next step moves the names.".to_owned(),
    ];
    let namespace = quoted(&target.namespace);
    let mut commands: Vec<_> = services
        .iter()
        .map(|service| {
            let (namespace, name) = (quoted(&service.name.namespace), quoted(&service.name.name));
            format!("kubectl --namespace {namespace} get service {name}")
        })
        .collect();
    commands.push(format!("kubectl --namespace {namespace} get service {OURS}"));
    commands.push("curl --include --resolve HOST:80:ADDRESS http://HOST/".to_owned());
    Step { title: "Move the DNS names".to_owned(), text, commands, back: Vec::new() }
}

fn take_over(situation: &Situation, target: &Target) -> Step {
    let Target { namespace, chart, .. } = target;
    let upgrade =
        format!("helm upgrade {OURS} {} --namespace {} --values xdp-values.yaml", quoted(chart), quoted(namespace));
    let mut text = Vec::new();
    if situation.shares_ports() {
        text.push("Without `initial-share`, a node that starts again serves all its clients.".to_owned());
    }
    text.push(if situation.writes_status {
        "xdp-ingress now writes the statuses of the class. ingress-nginx writes them, too, until the next step, so do both in \
         a row. At its end, ingress-nginx empties the statuses, and xdp-ingress writes them again."
            .to_owned()
    } else {
        "ingress-nginx writes no statuses, and the values keep that for xdp-ingress.".to_owned()
    });
    let share = if situation.shares_ports() { format!(" {SHARE}") } else { String::new() };
    let commands =
        vec![upgrade.clone(), format!("kubectl --namespace {} rollout status daemonset/{OURS}", quoted(namespace))];
    let back = vec![format!("{upgrade} {STATUS}{share}")];
    Step { title: "Take over the statuses".to_owned(), text, commands, back }
}

fn stop(situation: &Situation, target: &Target) -> Step {
    let namespace = quoted(&situation.workload.namespace);
    let workload = workload(situation);
    let (stop, start) = if situation.kind == "DaemonSet" {
        let patch = |value: &str| {
            let node_selector = format!(
                r#"{{"spec":{{"template":{{"spec":{{"nodeSelector":{{"xdp-ingress.io/stopped":{value}}}}}}}}}}}"#
            );
            format!("kubectl --namespace {namespace} patch {workload} --patch '{node_selector}'")
        };
        (patch("\"true\""), patch("null"))
    } else {
        let scale = |replicas| format!("kubectl --namespace {namespace} scale {workload} --replicas={replicas}");
        (scale(0), scale(situation.replicas.filter(|replicas| *replicas > 0).unwrap_or(1)))
    };
    let mut back = vec![start, format!("kubectl --namespace {namespace} rollout status {workload}")];
    let mut text =
        vec!["Its objects stay, so it is back as soon as its pods are. Wait some days with the removal.".to_owned()];
    if situation.shares_ports() {
        text.push("`shift_clients` is the function of the step that moves clients.".to_owned());
        back.push("shift_clients 0".to_owned());
    }
    back.extend(take_over(situation, target).back);
    Step { title: "Stop ingress-nginx".to_owned(), text, commands: vec![stop], back }
}

fn remove(situation: &Situation) -> Step {
    let namespace = quoted(&situation.workload.namespace);
    let mut text = Vec::new();
    let (commands, back) = match &situation.release {
        Some(Release { namespace, name, .. }) => {
            text.push("The history stays in the cluster, so Helm can bring the release back.".to_owned());
            let (release, namespace) = (quoted(name), quoted(namespace));
            let mut back = vec![
                format!("helm history {release} --namespace {namespace}"),
                format!("helm rollback {release} REVISION --namespace {namespace}"),
            ];
            if let Some(step) = webhooks(situation) {
                // A rollback runs no hook, and so gives the webhook no authority.
                back.extend(step.commands.last().cloned());
            }
            (vec![format!("helm uninstall {release} --namespace {namespace} --keep-history")], back)
        }
        None => {
            text.push(
                "Delete what was applied, but no IngressClass: xdp-ingress serves it. `spec.controller` is immutable, and \
                 Ingresses without their class are not served."
                    .to_owned(),
            );
            let mut commands = vec![format!("kubectl --namespace {namespace} delete {}", workload(situation))];
            commands.extend(situation.services.iter().map(|service| {
                format!(
                    "kubectl --namespace {} delete service {}",
                    quoted(&service.name.namespace),
                    quoted(&service.name.name)
                )
            }));
            (commands, Vec::new())
        }
    };
    if let Some(name) = situation.classes.iter().find(|class| class.release.is_some()).map(|class| &class.name) {
        text.push(format!("Class `{name}` stays. It belongs to no release from here on."));
    }
    Step { title: "Remove ingress-nginx".to_owned(), text, commands, back }
}

/// Returns the name of the Deployment or DaemonSet for kubectl.
fn workload(situation: &Situation) -> String {
    format!("{}/{}", situation.kind.to_lowercase(), quoted(&situation.workload.name))
}

/// Returns the command that changes values of ingress-nginx' release and nothing else.
fn upgrade_theirs(release: &Release, set: &str) -> String {
    let Release { namespace, name, version } = release;
    let version = version.as_ref().map(|version| format!(" --version {}", quoted(version))).unwrap_or_default();
    format!(
        "helm upgrade {} {THEIR_CHART} --namespace {}{version} --reuse-values {set}",
        quoted(name),
        quoted(namespace)
    )
}
