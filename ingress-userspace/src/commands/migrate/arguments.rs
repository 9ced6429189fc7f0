//! The command line of `xdp-ingress migrate`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use ingress_cli::{duration, print::OutputArgs};
use ingress_datapath::ClientShare;

use super::watch::AbortCondition;
use crate::commands::arguments::PinArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum MigrateCommand {
    /// Set the share of the clients whose new connections this node takes, or show it.
    ///
    /// The other clients reach another listener of the same ports, such as that of ingress-nginx. A client stays on its
    /// side at the same share, and open connections stay where they are. The change takes effect at once, and needs no
    /// running process. Other nodes are not affected.
    ///
    /// A share of some clients ends after five minutes without a running process: then all clients are left. `0` and
    /// `100%` last until you change them, or until the node starts again.
    Shift(ShiftArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ShiftArgs {
    /// Share of the clients to take: `10%`, `12.5%`, `0`, `100%`. Default: show the current share.
    #[arg(value_name = "PERCENT")]
    pub(crate) share: Option<ClientShare>,

    /// Go back to 0 if more than this part of the responses of a host, or of all hosts, have 5xx: `5xx>1%`. At least 20
    /// responses within a minute are needed. The command runs for the time of `--for`. The share also goes back if the
    /// command is interrupted, or cannot read the responses.
    #[arg(long, value_name = "CONDITION", requires_all = ["share", "lasts"])]
    pub(crate) abort_on: Option<AbortCondition>,

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
