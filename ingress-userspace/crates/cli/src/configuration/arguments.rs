//! Options of the commands about a configuration.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use crate::{
    duration,
    options::{RoutingArgs, SourceArgs},
    print::OutputArgs,
};

// The structs of options have no doc comment: clap would show it in place of the description of each command.
#[derive(Debug, Args)]
pub struct ReadArgs {
    #[command(flatten)]
    pub output: OutputArgs,

    /// Socket of a running process. Without --manifests, --kubeconfig and --context, the command asks the process
    /// there; if there is none, it reads the cluster of the default kubeconfig.
    #[arg(long, value_name = "PATH", default_value = "/run/xdp-ingress-pod/probe.sock")]
    pub socket: PathBuf,

    /// Maximum time to read the configuration.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::any)]
    pub timeout: Duration,

    // The options of `run`, so that a command reads what a process with them would serve.
    #[command(flatten)]
    pub source: SourceArgs,
    #[command(flatten)]
    pub routing: RoutingArgs,
}

#[derive(Debug, Args)]
pub struct NamespaceArgs {
    /// Show only objects of this namespace. Default: all namespaces.
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,

    /// Show objects of all namespaces, as without --namespace.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
}

#[derive(Debug, Args)]
pub struct RouteSelection {
    /// Show only hosts with this text in their name.
    #[arg(long, value_name = "TEXT")]
    pub host: Option<String>,

    /// Show only rules of this Ingress.
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub ingress: Option<String>,

    #[command(flatten)]
    pub namespace: NamespaceArgs,
}

#[derive(Debug, Args)]
pub struct ProblemSelection {
    /// Show only warnings: requested functions that are not in effect.
    #[arg(long)]
    pub warnings: bool,

    /// Exit with 3 if a shown problem is a warning.
    #[arg(long, conflicts_with = "watch")]
    pub exit_code: bool,

    #[command(flatten)]
    pub namespace: NamespaceArgs,
}

#[derive(Debug, Args)]
pub struct CertificateSelection {
    /// Show only certificates that expire within this number of days, and server names without a certificate.
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(i64).range(0..=36500))]
    pub expire_within: Option<i64>,

    /// Exit with 3 if a certificate expires within --expire-within (by default: has expired), or is missing.
    #[arg(long, conflicts_with = "watch")]
    pub exit_code: bool,
}

#[derive(Debug, Args)]
pub struct UrlArgs {
    /// URL of a GET request, such as `https://shop.example.com/cart`. Without a scheme, `https` is assumed.
    #[arg(value_name = "URL")]
    pub url: String,
}

#[derive(Debug, Args)]
pub struct RoutesArgs {
    #[command(flatten)]
    pub selection: RouteSelection,
    #[command(flatten)]
    pub read: ReadArgs,
}

#[derive(Debug, Args)]
pub struct ProblemsArgs {
    #[command(flatten)]
    pub selection: ProblemSelection,
    #[command(flatten)]
    pub read: ReadArgs,
}

#[derive(Debug, Args)]
pub struct CertsArgs {
    #[command(flatten)]
    pub selection: CertificateSelection,
    #[command(flatten)]
    pub read: ReadArgs,
}

#[derive(Debug, Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    pub url: UrlArgs,
    #[command(flatten)]
    pub read: ReadArgs,
}
