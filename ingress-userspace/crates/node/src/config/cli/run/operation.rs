//! Options of the heading "Operation": health, metrics and the log.

use std::{net::SocketAddr, path::PathBuf};

use clap::{ArgAction, Args, ValueEnum};
use ingress_cli::options::boolean;

#[derive(Debug, Args)]
#[command(next_help_heading = "Operation")]
pub(crate) struct OperationArgs {
    /// Address for health, metrics and counters; do not expose it. During an update the new process takes it over.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9110")]
    pub(crate) admin_addr: SocketAddr,

    /// Port of the admin address on 127.0.0.1; replaces --admin-addr.
    #[arg(long, value_name = "PORT", conflicts_with = "admin_addr")]
    pub(crate) healthz_port: Option<u16>,

    /// Unix socket on which this process answers `xdp-ingress probe`. Default: no socket.
    #[arg(long, value_name = "PATH")]
    pub(crate) probe_socket: Option<PathBuf>,

    /// Serve `/metrics`.
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set, value_parser = boolean)]
    pub(crate) enable_metrics: bool,

    /// Export metric series for each host; their number grows with the number of hosts.
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set, value_parser = boolean)]
    pub(crate) metrics_per_host: bool,

    /// Count the time to the head of responses for each upstream: a histogram of 14 series each. Off, requests read
    /// no clock for it.
    #[arg(long, value_name = "BOOL", default_value_t = false, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set, value_parser = boolean)]
    pub(crate) metrics_upstream_latency: bool,

    /// Serve the dashboard at `/dashboard`: on loopback of --admin-addr, on --probe-socket and on --api-addr.
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set, value_parser = boolean)]
    pub(crate) dashboard: bool,

    /// Log filter: a level for our own modules, at most `debug`, or directives such as
    /// `info,ingress_proxy=debug`. Libraries that talk to clients, pods and name servers log nothing, and
    /// other libraries only errors, unless a directive names them (`info,h2=debug`).
    #[arg(long, value_name = "FILTER", env = "XDP_INGRESS_LOG", default_value = "info")]
    pub(crate) log: String,

    /// Format of the log.
    #[arg(long, value_enum, default_value_t = LogFormatArg::Text)]
    pub(crate) log_format: LogFormatArg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormatArg {
    Text,
    Json,
}
