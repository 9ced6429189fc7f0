//! Values of the chart of ingress-nginx. The files of this project's own chart say which of them it has, which it accepts
//! without effect, and which it refuses; here are the differences of those that it has.

use crate::verdict::Verdict;

/// The values of this project's chart, one a line.
const KNOWN: &str = include_str!("../../../../../deploy/chart/files/known-values.txt");

/// The values of ingress-nginx' chart that ours accepts without effect, or refuses.
const OTHERS: &str = include_str!("../../../../../deploy/chart/files/ingress-nginx-values.yaml");

pub(super) fn verdict(path: &str) -> Option<Verdict> {
    let found = |part| others(part).find(|(value, _)| contains(value, path)).map(|(_, reason)| reason);
    if let Some(reason) = found("refused:") {
        let (reason, instead) = reason.split_once("; ").unwrap_or((reason, ""));
        return Some(Verdict::refused(reason, instead));
    }
    if let Some(reason) = found("ineffective:") {
        return Some(Verdict::no_effect(reason));
    }
    if let Some((_, differs)) = DIFFERS.iter().find(|(value, _)| contains(value, path)) {
        return Some(Verdict::differs(differs));
    }
    KNOWN.lines().any(|known| contains(known, path) || contains(path, known)).then_some(Verdict::FULL)
}

/// Returns `true` if `value` is `parent`, or below it.
fn contains(parent: &str, value: &str) -> bool {
    value.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns values and reasons below the line `part` of the chart's file, which has a row on each line.
fn others(part: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let rows = OTHERS.lines().skip_while(move |line| *line != part).skip(1);
    rows.take_while(|line| line.starts_with(' ')).filter_map(|line| line.trim().split_once(": "))
}

/// Values with another default or another effect.
const DIFFERS: &[(&str, &str)] = &[
    ("controller.affinity", "of a DaemonSet, which runs a pod on each node"),
    ("controller.config", "a ConfigMap with the verdicts of its own page"),
    ("controller.containerPort", "the ports are those of the nodes"),
    ("controller.extraArgs", "arguments with the verdicts of their own page; your argument replaces the chart's"),
    ("controller.image", "an image of this controller; names of images of ingress-nginx are refused"),
    ("controller.lifecycle", "none by default: the process drains by itself"),
    ("controller.metrics.port", "the default is 9110, on the node's address"),
    ("controller.metrics.service.servicePort", "the default is 9110"),
    ("controller.metrics.service.type", "`ClusterIP` alone"),
    ("controller.nodeSelector", "every node that it selects runs a pod"),
    ("controller.priorityClassName", "the default is `system-node-critical`"),
    ("controller.resources", "the defaults are larger, because each node has one pod"),
    ("controller.service.enabled", "the default is false: clients use the nodes' own ports"),
    ("controller.terminationGracePeriodSeconds", "the default is 270, and `controller.drainTimeout` belongs to it"),
    ("controller.tolerations", "by default, pods stay on nodes in trouble"),
    ("controller.updateStrategy", "of a DaemonSet; by default, the new pod takes over before the old one ends"),
];
