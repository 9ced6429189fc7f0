//! Options of the heading "Proxy": ports, workers and the end of the proxy.

use std::time::Duration;

use clap::{Args, ValueEnum};
use ingress_cli::duration;

#[derive(Debug, Args)]
#[command(next_help_heading = "Proxy")]
pub(crate) struct ProxyArgs {
    /// Port for HTTP.
    #[arg(long, value_name = "PORT", default_value_t = 80)]
    pub(crate) http_port: u16,

    /// Port for HTTPS.
    #[arg(long, value_name = "PORT", default_value_t = 443)]
    pub(crate) https_port: u16,

    /// Whether HTTP/3 is served, over UDP at the port of HTTPS. Browsers learn of it from the responses of HTTP/1 and
    /// HTTP/2, while the port answers the process itself. Ports below 1024 need CAP_NET_BIND_SERVICE, and firewalls and
    /// Services must let UDP through. Without HTTP/3, TCP serves on: with `on` the log warns and the metrics show it,
    /// with `auto` the log notes the reason.
    #[arg(long, value_enum, default_value_t = Http3Arg::Off)]
    pub(crate) http3: Http3Arg,

    /// Port for HTTP/3 that clients learn, where a Service or a load balancer has another one than this process. Default:
    /// --https-port.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) http3_advertise_port: Option<u16>,

    /// Number of worker threads, at most 64. Default: one per CPU available to this process.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) workers: Option<u16>,

    /// Action on a worker thread that makes an unexpected system call, for example after an attacker has taken it over.
    /// With `kill` or `log`, the process does not start if the seccomp filter cannot be installed. Default: `kill`, or
    /// a warning if it cannot.
    #[arg(long, value_enum)]
    pub(crate) worker_seccomp: Option<WorkerSeccomp>,

    /// Maximum time for open connections to end, after SIGTERM and --shutdown-grace-period.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::any)]
    pub(crate) drain_timeout: Duration,

    /// Time to keep serving after SIGTERM, reported as not ready, before the drain begins. Load balancers that notice
    /// late need it. It precedes `--drain-timeout`; the sum must stay below the pod's terminationGracePeriodSeconds.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration::any)]
    pub(crate) shutdown_grace_period: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Http3Arg {
    Off,
    On,
    Auto,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WorkerSeccomp {
    /// End the process at once, with SIGSYS.
    Kill,
    /// Allow the call and write a line to the kernel log.
    Log,
    /// Install no seccomp filter.
    Off,
}
