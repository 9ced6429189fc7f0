//! The command line of `xdp-ingress migrate`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use ingress_cli::{
    duration,
    gateway::GatewayArgs,
    migrate::{PLAN_HELP, PlanArgs, VALUES_HELP, ValuesArgs},
    print::OutputArgs,
};
use ingress_datapath::ClientShare;

use super::{condition::AbortConditions, latency::Source};
use crate::commands::arguments::PinArgs;

/// Help text of `shift` behind the options.
const SHIFT_HELP: &str = "\
The share applies to all TCP ports that xdp-ingress steers on this node. The other listener is bound to the same ports in
the network of the host (docs/migrate/shift.md).

Examples:
  # a tenth of the clients come to xdp-ingress
  xdp-ingress migrate shift 10%

  # half of them, and back to none if a host answers more than 1 % of its requests with 5xx within 15 minutes
  xdp-ingress migrate shift 50% --abort-on '5xx>1%' --for 15m

  # the same, also if the slowest percent takes more than twice as long as with ingress-nginx
  xdp-ingress migrate shift 50% --abort-on '5xx>1%,p99>2x' --other-metrics http://127.0.0.1:10254/metrics --for 15m

  # the current share, for scripts
  xdp-ingress migrate shift -o json

  # all clients go back to the other controller
  xdp-ingress migrate shift 0";

#[derive(Debug, Subcommand)]
pub(crate) enum MigrateCommand {
    /// Write the steps of the migration for this cluster, with the commands and the way back. None of them is run.
    #[command(after_help = PLAN_HELP)]
    Plan(Box<PlanArgs>),
    /// Convert values of ingress-nginx' chart into values of the chart of xdp-ingress, with a verdict on each.
    #[command(after_help = VALUES_HELP)]
    Values(ValuesArgs),
    /// Set the share of the clients whose new connections this node takes, or show it.
    ///
    /// The other clients reach another listener of the same ports, such as that of ingress-nginx. A client stays on its
    /// side at the same share, and open connections stay where they are. The change takes effect at once, and needs no
    /// running process. Other nodes are not affected.
    ///
    /// A share of some clients ends after five minutes without a running process: then all clients are left. `0` and
    /// `100%` last until you change them, or until the node starts again.
    #[command(after_help = SHIFT_HELP)]
    Shift(Box<ShiftArgs>),
    /// Write Gateway API in place of Ingresses: a Gateway, ListenerSets and HTTPRoutes, as YAML on standard output.
    ///
    /// Standard error gets a verdict on each annotation and each host: whether the routes do the same, how they differ, or
    /// what you do instead. A host is written as a whole or not at all. The command reads no Secret of a cluster, and
    /// changes nothing.
    #[command(after_help = GATEWAY_HELP)]
    Gateway(Box<GatewayArgs>),
}

const GATEWAY_HELP: &str = "\
Examples:
  # what ingress-nginx serves, as objects of Gateway API
  xdp-ingress migrate gateway --context production > gateway.yaml

  # the Ingresses of this controller, from files
  xdp-ingress migrate gateway --from-dir ./manifests --ingress-class xdp --controller-class xdp-ingress.io/controller

Exit codes: 0 all is the same; 1 failure, with the reason on standard error; 2 wrong usage; 3 a verdict says otherwise.";

#[derive(Debug, Args)]
pub(crate) struct ShiftArgs {
    /// Share of the clients to take: `10%`, `12.5%`, `0`, `100%`. Default: show the current share.
    #[arg(value_name = "PERCENT")]
    pub(crate) share: Option<ClientShare>,

    /// Go back to 0 if one of these conditions holds, separated by commas. `5xx>1%`: more than this part of the responses
    /// of a host, or of all hosts, have 5xx; at least 20 responses within a minute are needed. `p99>2x`: the 99th percentile of
    /// the response times is above so many times that of the other controller; `p99>500ms`: above this time. For both, at
    /// least 100 responses within a minute are needed. The command runs for the time of `--for`. The share also goes back
    /// if the command is interrupted, or cannot read what a condition needs.
    #[arg(long, value_name = "CONDITIONS", requires_all = ["share", "lasts"])]
    pub(crate) abort_on: Option<AbortConditions>,

    /// Metrics of xdp-ingress on this node, for `p99`.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9110/metrics")]
    pub(crate) metrics: Source,

    /// Metrics of the other controller on this node, for `p99>2x`: `http://127.0.0.1:10254/metrics` for ingress-nginx with
    /// `--enable-metrics`.
    #[arg(long, value_name = "URL", requires = "abort_on")]
    pub(crate) other_metrics: Option<Source>,

    /// Time to watch the share: `15m`. Afterwards the running process renews it.
    #[arg(long = "for", value_name = "DURATION", requires = "abort_on", value_parser = duration::positive)]
    pub(crate) lasts: Option<Duration>,

    /// Also leave clients to a port without another listener, where they are refused.
    #[arg(long, requires = "share")]
    pub(crate) no_listener_check: bool,

    /// Path of the kubeconfig that identifies you. Default: the service account of the pod, if there is one. Without
    /// either, no right is checked and no event is written.
    #[arg(long, value_name = "PATH", requires = "share")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig. Default: its current one.
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    pub(crate) context: Option<String>,

    /// Name of this node in the cluster, for the right and the event. Default: the name of the host.
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    pub(crate) node: Option<String>,

    #[command(flatten)]
    pub(crate) pins: PinArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}
