//! Options of `check`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use ingress_control::change::ObjectName;

use super::finding::Verdict;
use crate::{configuration::NamespaceArgs, duration, options::object_name};

/// Form of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// Columns that fit a terminal, with shortened texts.
    #[value(alias = "text")]
    Table,
    /// The same columns with the whole texts.
    Wide,
    Json,
    Yaml,
    /// A table for a page or a pull request.
    Markdown,
    /// SARIF 2.1.0, for code scanning.
    Sarif,
}

// The structs of options have no doc comment: clap would show it in place of the description of each command.
#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub installation: InstallationArgs,

    /// Also compare which rules serve requests, with a model of ingress-nginx: a finding for each difference, with a URL
    /// that shows it.
    #[arg(long)]
    pub diff: bool,

    /// Form of the report.
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    pub output: ReportFormat,

    /// Write patches for kustomize into this directory: annotations for snippets of nginx, where their effect is sure.
    /// Nothing is applied, and no file is overwritten.
    #[arg(long, value_name = "DIR")]
    pub fix: Option<PathBuf>,

    /// Exit with 3 if a finding has this verdict, or a more serious one.
    #[arg(long, value_enum, value_name = "VERDICT", default_value_t = Verdict::Differs)]
    pub fail_on: Verdict,

    /// Print without colours. Colours are for terminals only, and the environment variable NO_COLOR turns them off, too.
    #[arg(long)]
    pub no_color: bool,
}

#[derive(Debug, Args)]
pub struct InstallationArgs {
    /// Read Kubernetes YAML or JSON from this directory instead of an API server.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kubeconfig", "context"])]
    pub from_dir: Option<PathBuf>,

    /// Path of the kubeconfig. Default: $KUBECONFIG or ~/.kube/config if present, else the pod's service account.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig. Default: its current one.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,

    #[command(flatten)]
    pub namespace: NamespaceArgs,

    /// Deployment or DaemonSet of ingress-nginx, whose arguments name its class and its ConfigMaps. Default: the only
    /// one that runs its controller.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name)]
    pub deployment: Option<ObjectName>,

    /// ConfigMap of settings. Default: the one that the arguments of ingress-nginx name.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name)]
    pub configmap: Option<ObjectName>,

    /// Values of ingress-nginx' chart. Their settings and arguments are checked instead of those that are installed.
    #[arg(long, value_name = "FILE")]
    pub values: Option<PathBuf>,

    /// Maximum time to read a cluster.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::any)]
    pub timeout: Duration,
}
