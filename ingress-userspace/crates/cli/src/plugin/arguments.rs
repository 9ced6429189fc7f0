//! The command line of `kubectl xdp-ingress`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};

use crate::{
    bundle::BundleArgs,
    check::{self, CheckArgs},
    configuration::{CertificateSelection, ProblemSelection, RouteSelection, UrlArgs},
    duration,
    gateway::GatewayArgs,
    migrate::{self, PlanArgs, ValuesArgs},
    print::OutputArgs,
    program::{CompletionArgs, ManArgs},
    shadow::{self, ShadowArgs},
    top::TopColumn,
};

const EXAMPLES: &str = "\
Examples:
  # a line for each node; traffic of the cluster by host
  kubectl xdp-ingress status
  kubectl xdp-ingress top --all

  # why a URL is served as it is; problems of the objects of a namespace
  kubectl xdp-ingress explain https://shop.example.com/cart
  kubectl xdp-ingress problems --namespace shop --warnings

  # the dashboard of a node in your browser
  kubectl xdp-ingress dashboard --node worker-1 --open

The plugin reads the API of each pod of the controller through a forwarded port. You need the rights `list` and `get` on
pods, and `create` on pods/portforward, in the namespace of the controller. `logs` and `debug bundle` also need `get` on
pods/log.

Exit codes: 0 success; 1 failure, or a pod without an answer; 2 wrong usage; 3 findings, with --exit-code.";

/// Shows what xdp-ingress does on the nodes of a cluster.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-xdp_ingress",
    bin_name = "kubectl xdp-ingress",
    version,
    after_help = EXAMPLES,
    max_term_width = 110
)]
pub struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Show a line for each node: readiness, version, configuration and connections.
    Status(StatusArgs),
    /// Show hosts by requests, errors, packets and bytes, summed over nodes.
    ///
    /// A terminal is drawn again after each interval, unless you give --once. Keys: q quit, s sort by the next column, r reverse,
    /// / filter, t rates or totals, p pause.
    Top(TopArgs),
    /// Show the rules of the configuration in order of precedence.
    ///
    /// All nodes should have the same rules. Where they differ, a message on standard error says so.
    Routes(RoutesArgs),
    /// Show problems of objects, each once, with the remedy.
    Problems(ProblemsArgs),
    /// Show certificates with their names and validity; the first to expire comes first.
    Certs(CertsArgs),
    /// Show why a URL is served as it is: host, rule, filters, pods, certificate, and the rules that are not chosen.
    Explain(ExplainArgs),
    /// Check what ingress-nginx serves: which Ingresses and settings would behave differently here, and what to change.
    #[command(after_help = check::HELP)]
    Check(CheckArgs),
    /// Replay an access log of ingress-nginx: which of its requests would be answered otherwise here. No request is sent.
    #[command(after_help = shadow::HELP)]
    Shadow(ShadowArgs),
    /// Plan the way from ingress-nginx to xdp-ingress.
    #[command(subcommand)]
    Migrate(MigrateCommand),
    /// Forward a local port to the dashboard of a node, until you interrupt the command.
    Dashboard(DashboardArgs),
    /// Print the logs of the pods.
    Logs(LogsArgs),
    /// Collect what a bug report needs.
    #[command(subcommand)]
    Debug(DebugCommand),
    /// Show the version of this program, and of the process on each node.
    Version(StatusLikeArgs),
    /// Print a completion script for a shell.
    Completion(CompletionArgs),
    /// Write a manual page for each command into a directory.
    Man(ManArgs),
}

#[derive(Debug, Subcommand)]
pub(super) enum MigrateCommand {
    /// Write the steps of the migration for this cluster, with the commands and the way back. None of them is run.
    #[command(after_help = migrate::PLAN_HELP)]
    Plan(Box<PlanArgs>),
    /// Convert values of ingress-nginx' chart into values of the chart of xdp-ingress, with a verdict on each.
    #[command(after_help = migrate::VALUES_HELP)]
    Values(ValuesArgs),
    /// Write Gateway API in place of Ingresses: a Gateway, ListenerSets and HTTPRoutes, as YAML on standard output.
    ///
    /// Standard error gets a verdict on each annotation and each host: whether the routes do the same, how they differ, or
    /// what you do instead. A host is written as a whole or not at all. The command reads no Secret of a cluster, and
    /// changes nothing.
    Gateway(Box<GatewayArgs>),
}

// The structs of options have no doc comment: clap would show it in place of the description of each command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct ClusterArgs {
    /// Path of the kubeconfig. Default: $KUBECONFIG or ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig. Default: its current one.
    #[arg(long, value_name = "NAME")]
    pub(super) context: Option<String>,

    /// Label selector of the pods of the controller.
    #[arg(short = 'l', long, value_name = "SELECTOR", default_value = "app.kubernetes.io/name=xdp-ingress")]
    pub(super) selector: String,

    /// Ask the pod of this node only. Default: all nodes.
    #[arg(long, value_name = "NAME")]
    pub(super) node: Option<String>,

    /// Port of the admin address in the pods. Default: that of the pod's arguments, or 9110.
    #[arg(long, value_name = "PORT")]
    pub(super) admin_port: Option<u16>,

    /// Maximum time for the answers of a pod.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::positive)]
    pub(super) timeout: Duration,
}

/// The installation, for commands without objects of other namespaces.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct InstallationArgs {
    /// Namespace of the controller.
    #[arg(short, long, visible_alias = "controller-namespace", value_name = "NAME", default_value = NAMESPACE)]
    pub(super) namespace: String,

    #[command(flatten)]
    pub(super) cluster: ClusterArgs,
}

/// The installation, for commands that filter objects by `--namespace`.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct OtherInstallationArgs {
    /// Namespace of the controller.
    #[arg(long, value_name = "NAME", default_value = NAMESPACE)]
    pub(super) controller_namespace: String,

    #[command(flatten)]
    pub(super) cluster: ClusterArgs,
}

/// Namespace of the manifests, and of the chart in its documentation.
const NAMESPACE: &str = "xdp-ingress";

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    pub(super) output: OutputArgs,

    /// Exit with 3 if a node is not ready, hangs, or serves the saved configuration.
    #[arg(long, conflicts_with = "watch")]
    pub(super) exit_code: bool,

    #[command(flatten)]
    pub(super) installation: InstallationArgs,
}

#[derive(Debug, Args)]
pub(super) struct StatusLikeArgs {
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) installation: InstallationArgs,
}

#[derive(Debug, Args)]
pub(super) struct TopArgs {
    /// Sum over all nodes, as without --node.
    #[arg(long, conflicts_with = "node")]
    pub(super) all: bool,

    /// Print one table and exit: totals since the counters began, or with --interval the rates over that time.
    #[arg(long)]
    pub(super) once: bool,

    /// Time between two readings, at least 1s. Default: 2s.
    #[arg(long, value_name = "DURATION", value_parser = interval)]
    pub(super) interval: Option<Duration>,

    /// Column to sort by, in descending order.
    #[arg(long, value_name = "COLUMN", value_enum, default_value_t = TopColumn::Requests)]
    pub(super) sort: TopColumn,

    /// Show only hosts with this text in their name.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(super) filter: String,

    /// Maximum number of hosts to show. Default: all, or on a terminal as many as fit.
    #[arg(long, value_name = "N")]
    pub(super) limit: Option<usize>,

    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) installation: InstallationArgs,
}

#[derive(Debug, Args)]
pub(super) struct RoutesArgs {
    #[command(flatten)]
    pub(super) selection: RouteSelection,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) installation: OtherInstallationArgs,
}

#[derive(Debug, Args)]
pub(super) struct ProblemsArgs {
    #[command(flatten)]
    pub(super) selection: ProblemSelection,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) installation: OtherInstallationArgs,
}

#[derive(Debug, Args)]
pub(super) struct CertsArgs {
    #[command(flatten)]
    pub(super) selection: CertificateSelection,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) installation: InstallationArgs,
}

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    #[command(flatten)]
    pub(super) url: UrlArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
    #[command(flatten)]
    pub(super) installation: InstallationArgs,
}

#[derive(Debug, Args)]
pub(super) struct DashboardArgs {
    /// Local port; 0 takes a free one.
    #[arg(short, long, value_name = "PORT", default_value_t = 9110)]
    pub(super) port: u16,

    /// Also open the address in a browser.
    #[arg(long)]
    pub(super) open: bool,

    #[command(flatten)]
    pub(super) installation: InstallationArgs,
}

#[derive(Debug, Args)]
pub(super) struct LogsArgs {
    /// Go on with new lines, until you interrupt the command.
    #[arg(short, long)]
    pub(super) follow: bool,

    /// Number of lines from the end of each log. Default: all.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32))]
    pub(super) tail: Option<u32>,

    /// Print only lines of the last time, at least 1s.
    #[arg(long, value_name = "DURATION", value_parser = since)]
    pub(super) since: Option<Duration>,

    /// Print the logs of the containers that ended before the present ones.
    #[arg(short, long, conflicts_with = "follow")]
    pub(super) previous: bool,

    #[command(flatten)]
    pub(super) installation: InstallationArgs,
}

#[derive(Debug, Subcommand)]
pub(super) enum DebugCommand {
    /// Write an archive for a bug report: versions, states, routes, problems, certificates, counters, changes, metrics and
    /// logs of each node.
    ///
    /// The bundle has no private keys, passwords, values of header fields or queries of URLs, no lines of the access log,
    /// and by default no addresses of clients.
    Bundle(DebugBundleArgs),
}

#[derive(Debug, Args)]
pub(super) struct DebugBundleArgs {
    #[command(flatten)]
    pub(super) bundle: BundleArgs,

    /// Number of lines from the end of each log.
    #[arg(long, value_name = "N", default_value_t = 5000)]
    pub(super) tail: u32,

    #[command(flatten)]
    pub(super) installation: InstallationArgs,
}

fn interval(text: &str) -> Result<Duration, String> {
    duration::at_least(text, Duration::from_secs(1))
}

fn since(text: &str) -> Result<Duration, String> {
    duration::at_least(text, Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(line: &[&str]) -> Result<Command, clap::Error> {
        Cli::try_parse_from([&["kubectl-xdp_ingress"], line].concat()).map(|cli| cli.command)
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_namespace_filters_where_objects_have_one() {
        let Ok(Command::Problems(args)) = parse(&["problems", "-n", "shop"]) else { panic!("valid") };
        assert_eq!(args.selection.namespace.namespace.as_deref(), Some("shop"));
        assert_eq!(args.installation.controller_namespace, "xdp-ingress");
        assert!(matches!(parse(&["routes", "-A", "--controller-namespace", "ingress"]), Ok(Command::Routes(_))));
        for flag in ["-n", "--namespace", "--controller-namespace"] {
            let Ok(Command::Status(args)) = parse(&["status", flag, "ingress"]) else { panic!("valid: {flag}") };
            assert_eq!(args.installation.namespace, "ingress");
        }
    }

    #[test]
    fn contradictions_are_refused() {
        for wrong in [
            &["routes", "-A", "-n", "shop"][..],
            &["top", "--all", "--node", "a"],
            &["top", "--interval", "100ms"],
            &["status", "--watch", "--exit-code"],
            &["logs", "--follow", "--previous"],
            &["status", "--timeout", "0"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
