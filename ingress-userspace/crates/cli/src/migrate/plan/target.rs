//! Where this controller goes, and the words of commands that read what a plan has read.

use super::shell::quoted;
use crate::{check::InstallationArgs, migrate::arguments::PlanArgs};

/// Where this controller goes, and the words of commands that read what the plan has read.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) namespace: String,
    pub(super) chart: String,
    /// Options of `check` and `shadow`.
    pub(super) reads: String,
    /// The same for all namespaces.
    pub(super) reads_all: String,
    pub(super) values: Option<String>,
    /// The only namespace that the plan has read.
    pub(super) only: Option<String>,
}

// === impl Target ===

impl Target {
    pub(super) fn of(args: &PlanArgs) -> Self {
        let PlanArgs { installation, controller_namespace, chart, .. } = args;
        let InstallationArgs { from_dir, kubeconfig, context, namespace, deployment, configmap, values, timeout: _ } =
            installation;
        let path = |path: &std::path::PathBuf| quoted(&path.display().to_string());
        let mut reads = Vec::new();
        let all = || vec!["-A".to_owned()];
        let place = match (from_dir, &namespace.namespace) {
            (Some(directory), _) => vec!["--from-dir".to_owned(), path(directory)],
            (None, Some(namespace)) => vec!["--namespace".to_owned(), quoted(namespace)],
            (None, None) => all(),
        };
        let place_of_all = if from_dir.is_some() { place.clone() } else { all() };
        for (option, value) in [
            ("--kubeconfig", kubeconfig.as_ref().map(path)),
            ("--context", context.as_deref().map(quoted)),
            ("--deployment", deployment.as_ref().map(|name| quoted(&name.to_string()))),
            ("--configmap", configmap.as_ref().map(|name| quoted(&name.to_string()))),
            ("--values", values.as_ref().map(path)),
        ] {
            reads.extend(value.into_iter().flat_map(|value| [option.to_owned(), value]));
        }
        Self {
            namespace: controller_namespace.clone(),
            chart: chart.clone(),
            reads: [place, reads.clone()].concat().join(" "),
            reads_all: [place_of_all, reads].concat().join(" "),
            values: values.as_ref().map(|file| file.display().to_string()),
            only: namespace.namespace.clone(),
        }
    }
}
