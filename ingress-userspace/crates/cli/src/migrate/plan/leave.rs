//! The last steps: names and statuses move, and ingress-nginx goes. At each of them, one of the two serves all clients.

use super::{
    Step, service,
    shell::quoted,
    situation::Situation,
    steps::{OURS, SHARE, STATUS, upgrade_theirs, webhooks, workload},
    target::Target,
};
use crate::check::{Entrance, Release};

/// Returns the steps behind those that move clients on the nodes.
pub(super) fn steps(situation: &Situation, target: &Target) -> Vec<Step> {
    let mut steps = Vec::new();
    steps.extend(situation.writes_status.then(|| leave_statuses(situation)));
    steps.push(take_over(situation, target));
    steps.extend((!situation.services.is_empty()).then(|| names(&situation.services, target)));
    steps.push(stop(situation, target));
    steps.push(remove(situation));
    steps
}

/// Keeps ingress-nginx from statuses. Otherwise the two would write in turn, and ingress-nginx empties the statuses when its
/// last pod ends, upon which external-dns deletes the names.
fn leave_statuses(situation: &Situation) -> Step {
    let mut text = vec![
        "With this flag, ingress-nginx writes no statuses, and does not empty them at its end. The pods start again. The last \
         pod without the flag may still empty the statuses, so suspend external-dns until the next step is done."
            .to_owned(),
    ];
    let (namespace, name) = (quoted(&situation.workload.namespace), workload(situation));
    let ready = format!("kubectl --namespace {namespace} rollout status {name}");
    // An upgrade makes the deleted webhook again, unless its values say otherwise.
    let webhook = if situation.webhooks.is_empty() { "" } else { " --set controller.admissionWebhooks.enabled=false" };
    let (change, undo) = match &situation.release {
        Some(release) => {
            let change = format!("--set-string controller.extraArgs.update-status=false{webhook}");
            let undo = format!("--set controller.extraArgs.update-status=null{webhook}");
            (upgrade_theirs(release, &change), upgrade_theirs(release, &undo))
        }
        None => {
            text.push("Add `--update-status=false` to the arguments of the controller.".to_owned());
            let undo = format!("kubectl --namespace {namespace} rollout undo {name}");
            (format!("kubectl --namespace {namespace} edit {name}"), undo)
        }
    };
    let title = "Keep ingress-nginx from statuses".to_owned();
    Step { title, text, commands: vec![change, ready.clone()], back: vec![undo, ready] }
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
        "xdp-ingress now writes the statuses of the class. external-dns follows them, and ingress-nginx serves the clients that \
         still have the old addresses."
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

fn names(services: &[Entrance], target: &Target) -> Step {
    let shown = services.iter().map(|service| format!("`{}`", service.name)).collect::<Vec<_>>().join(", ");
    let mut text = vec![format!(
        "Clients come by Service {shown}, which goes with ingress-nginx. xdp-ingress has a Service of its own \
         with another address. Point the DNS names there, some at a time or by weight, and wait until their \
         time to live is over."
    )];
    if services.iter().any(|service| service.kind == "NodePort") {
        text.push(
            "A Service of type NodePort has no address. Point the balancer before the nodes to the node ports of the new \
             Service, or to ports 80 and 443 of the nodes."
                .to_owned(),
        );
    }
    text.push(
        "external-dns has moved the names of statuses already, but not those of the annotation \
         `external-dns.alpha.kubernetes.io/hostname` of the old Service."
            .to_owned(),
    );
    let namespace = quoted(&target.namespace);
    let mut commands: Vec<_> = services.iter().map(|service| service_command("get", service)).collect();
    commands.push(format!("kubectl --namespace {namespace} get service {OURS}"));
    commands.push("curl --include --resolve HOST:80:ADDRESS http://HOST/".to_owned());
    let back = services.iter().map(|service| service_command("get", service)).collect();
    text.push("The way back is the old address in each name: `get` shows it.".to_owned());
    Step { title: "Move the DNS names".to_owned(), text, commands, back }
}

/// Returns a command of kubectl about a Service.
fn service_command(verb: &str, Entrance { name, .. }: &Entrance) -> String {
    format!("kubectl --namespace {} {verb} {}", quoted(&name.namespace), quoted(&format!("service/{}", name.name)))
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
    let text = vec![
        "The first command counts requests that still reach ingress-nginx. Go on only if it prints 0, apart from your own \
         checks. It reads one pod; repeat it for each."
            .to_owned(),
        "Its objects stay, so it is back as soon as its pods are. Wait some days with the removal.".to_owned(),
    ];
    let mut text = text;
    if situation.shares_ports() {
        text.push("`shift_clients` is the function of the step that moves clients.".to_owned());
        back.push("shift_clients 0".to_owned());
    }
    back.extend(take_over(situation, target).back);
    let count = format!("kubectl --namespace {namespace} logs {workload} --since=10m | grep --count ' HTTP/'");
    Step { title: "Stop ingress-nginx".to_owned(), text, commands: vec![count, stop], back }
}

fn remove(situation: &Situation) -> Step {
    let title = "Remove ingress-nginx".to_owned();
    let namespace = quoted(&situation.workload.namespace);
    let mut text = Vec::new();
    if !situation.services.is_empty() {
        text.push("The addresses of its Services go with them.".to_owned());
    }
    let (mut commands, back) = match (&situation.release, &situation.other_release) {
        (Some(Release { namespace, name, .. }), _) => {
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
        (None, Some(Release { name, .. })) => {
            text.push(format!(
                "ingress-nginx is a part of release `{name}`. Switch it off by the values of that chart, and do not uninstall \
                 the release."
            ));
            (Vec::new(), Vec::new())
        }
        (None, None) => {
            text.push(
                "Delete what was applied, but no IngressClass: xdp-ingress serves it. `spec.controller` is immutable, and \
                 Ingresses without their class are not served."
                    .to_owned(),
            );
            let workload = workload(situation);
            let mut commands =
                vec![format!("kubectl --namespace {namespace} get {workload} --output yaml > workload.yaml")];
            let mut back = vec!["kubectl apply --filename workload.yaml".to_owned()];
            for (number, service) in situation.services.iter().enumerate() {
                let file = format!("service-{}.yaml", number + 1);
                commands.push(format!("{} --output yaml > {file}", service_command("get", service)));
                back.push(format!("kubectl apply --filename {file}"));
            }
            commands.push(format!("kubectl --namespace {namespace} delete {workload}"));
            commands.extend(situation.services.iter().map(|service| service_command("delete", service)));
            (commands, back)
        }
    };
    let kept: Vec<_> = situation.classes.iter().filter(|class| class.goes_with_release).collect();
    for class in kept.iter().filter(|_| situation.release.is_some()) {
        text.push(format!("Class `{}` stays, as the release keeps it.", class.name));
    }
    if !situation.shares_ports() {
        commands.extend(service::removal(situation));
    }
    Step { title, text, commands, back }
}
