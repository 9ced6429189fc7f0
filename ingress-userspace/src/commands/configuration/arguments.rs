//! Options of the commands about a configuration.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use crate::config::cli::{RoutingArgs, SourceArgs, fraction};

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Columns that fit a terminal.
    Table,
    /// All columns.
    Wide,
    Json,
    Yaml,
}

// The structs of options have no doc comment: clap would show it in place of the description of each command.
#[derive(Debug, Args)]
pub(crate) struct ReadArgs {
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    pub(crate) output: Format,

    /// Socket of a running process. Without --manifests, --kubeconfig and --context, the command asks the process
    /// there; if there is none, it reads the cluster of the default kubeconfig.
    #[arg(long, value_name = "PATH", default_value = "/run/xdp-ingress-pod/probe.sock")]
    pub(crate) socket: PathBuf,

    /// Maximum time to read the configuration; fractions are allowed.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = fraction)]
    pub(crate) timeout: Duration,

    // The options of `run`, so that a command reads what a process with them would serve.
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) routing: RoutingArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RoutesArgs {
    /// Show only hosts with this text in their name.
    #[arg(long, value_name = "TEXT")]
    pub(crate) host: Option<String>,

    /// Show only rules of Ingresses in this namespace.
    #[arg(short, long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,

    /// Show only rules of this Ingress.
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub(crate) ingress: Option<String>,

    #[command(flatten)]
    pub(crate) read: ReadArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ProblemsArgs {
    /// Show only objects of this namespace.
    #[arg(short, long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,

    /// Show only warnings: requested functions that are not in effect.
    #[arg(long)]
    pub(crate) warnings: bool,

    /// Exit with 3 if a shown problem is a warning.
    #[arg(long)]
    pub(crate) exit_code: bool,

    #[command(flatten)]
    pub(crate) read: ReadArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CertsArgs {
    /// Show only certificates that expire within this number of days, and server names without a certificate.
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(i64).range(0..=36500))]
    pub(crate) expire_within: Option<i64>,

    /// Exit with 3 if a certificate expires within --expire-within (by default: has expired), or is missing.
    #[arg(long)]
    pub(crate) exit_code: bool,

    #[command(flatten)]
    pub(crate) read: ReadArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// URL of a GET request, such as `https://shop.example.com/cart`. Without a scheme, `https` is assumed.
    #[arg(value_name = "URL")]
    pub(crate) url: String,

    #[command(flatten)]
    pub(crate) read: ReadArgs,
}
