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
    pub(super) values: Option<String>,
}

// === impl Target ===

impl Target {
    pub(super) fn of(args: &PlanArgs) -> Self {
        let PlanArgs { installation, controller_namespace, chart, .. } = args;
        let InstallationArgs { from_dir, kubeconfig, context, namespace, deployment, values, timeout: _ } =
            installation;
        let path = |path: &std::path::PathBuf| quoted(&path.display().to_string());
        let mut reads = Vec::new();
        match from_dir {
            Some(directory) => reads.extend(["--from-dir".to_owned(), path(directory)]),
            None => match &namespace.namespace {
                Some(namespace) => reads.extend(["--namespace".to_owned(), quoted(namespace)]),
                None => reads.push("-A".to_owned()),
            },
        }
        for (option, value) in [
            ("--kubeconfig", kubeconfig.as_ref().map(path)),
            ("--context", context.as_deref().map(quoted)),
            ("--deployment", deployment.as_ref().map(|name| quoted(&name.to_string()))),
            ("--values", values.as_ref().map(path)),
        ] {
            reads.extend(value.into_iter().flat_map(|value| [option.to_owned(), value]));
        }
        Self {
            namespace: controller_namespace.clone(),
            chart: chart.clone(),
            reads: reads.join(" "),
            values: values.as_ref().map(|file| file.display().to_string()),
        }
    }
}
