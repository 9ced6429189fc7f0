//! Options of the commands about a configuration.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use crate::options::{RoutingArgs, SourceArgs, fraction};

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Columns that fit a terminal.
    Table,
    /// All columns.
    Wide,
    Json,
    Yaml,
}

// The structs of options have no doc comment: clap would show it in place of the description of each command.
#[derive(Debug, Args)]
pub struct ReadArgs {
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    pub output: Format,

    /// Socket of a running process. Without --manifests, --kubeconfig and --context, the command asks the process
    /// there; if there is none, it reads the cluster of the default kubeconfig.
    #[arg(long, value_name = "PATH", default_value = "/run/xdp-ingress-pod/probe.sock")]
    pub socket: PathBuf,

    /// Maximum time to read the configuration; fractions are allowed.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = fraction)]
    pub timeout: Duration,

    // The options of `run`, so that a command reads what a process with them would serve.
    #[command(flatten)]
    pub source: SourceArgs,
    #[command(flatten)]
    pub routing: RoutingArgs,
}

#[derive(Debug, Args)]
pub struct RoutesArgs {
    /// Show only hosts with this text in their name.
    #[arg(long, value_name = "TEXT")]
    pub host: Option<String>,

    /// Show only rules of Ingresses in this namespace.
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,

    /// Show only rules of this Ingress.
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub ingress: Option<String>,

    #[command(flatten)]
    pub read: ReadArgs,
}

#[derive(Debug, Args)]
pub struct ProblemsArgs {
    /// Show only objects of this namespace.
    #[arg(short, long, value_name = "NAME")]
    pub namespace: Option<String>,

    /// Show only warnings: requested functions that are not in effect.
    #[arg(long)]
    pub warnings: bool,

    /// Exit with 3 if a shown problem is a warning.
    #[arg(long)]
    pub exit_code: bool,

    #[command(flatten)]
    pub read: ReadArgs,
}

#[derive(Debug, Args)]
pub struct CertsArgs {
    /// Show only certificates that expire within this number of days, and server names without a certificate.
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(i64).range(0..=36500))]
    pub expire_within: Option<i64>,

    /// Exit with 3 if a certificate expires within --expire-within (by default: has expired), or is missing.
    #[arg(long)]
    pub exit_code: bool,

    #[command(flatten)]
    pub read: ReadArgs,
}

#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// URL of a GET request, such as `https://shop.example.com/cart`. Without a scheme, `https` is assumed.
    #[arg(value_name = "URL")]
    pub url: String,

    #[command(flatten)]
    pub read: ReadArgs,
}
