//! The command line: the commands and their help texts.

pub(crate) mod foreign;
mod run;

use std::{path::PathBuf, time::Duration};

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use ingress_cli::{
    check::CheckArgs,
    configuration::{CertsArgs, ExplainArgs, ProblemsArgs, RoutesArgs},
    duration,
    program::{CompletionArgs, ManArgs, VersionArgs},
    shadow::ShadowArgs,
};

pub(crate) use self::run::{
    ApiArgs, Http3Arg, KernelArgs, LogFormatArg, OperationArgs, ProxyArgs, RunArgs, StatusArgs, Steer, SynCookiesArg,
    WorkerSeccomp, XdpModeArg,
};
use crate::commands::{
    arguments::{ClientsArgs, DebugCommand, DenyCommand, PinArgs, StateArgs, TopArgs},
    migrate::arguments::MigrateCommand,
};

const EXAMPLES: &str = "\
Examples:
  # in a cluster (the DaemonSet of deploy/ runs this, with more options)
  xdp-ingress run

  # on one machine, without a cluster: ordinary Kubernetes YAML from a directory, watched
  xdp-ingress run --manifests ./deploy/examples --interface eth0

  # without any kernel program, on high ports, as any user
  xdp-ingress run --manifests ./deploy/examples --steer bind --xdp-mode off --http-port 8080 --https-port 8443

  # traffic of this node's hosts, each second or once, for a script; and the state of the node
  xdp-ingress top
  xdp-ingress top --once -o json
  xdp-ingress status

  # why a URL is served as it is; problems and certificates of the configuration
  xdp-ingress explain https://shop.example.com/cart
  xdp-ingress problems --warnings
  xdp-ingress certs --expire-within 14

  # remove everything that `run` left in the kernel
  xdp-ingress unload

Exit codes: 0 success; 1 failure, with the reason on standard error; 2 wrong usage; 3 findings, with --exit-code.";

const READS: &str = "\
Inside a pod of the controller, the command asks the process over its socket. With --manifests it reads a directory, and
with --kubeconfig or --context a cluster, as `run` with the same options would, and writes nothing.

Examples:
  xdp-ingress routes --host shop.example.com
  xdp-ingress explain http://shop.example.com/cart --manifests ./deploy/examples
  xdp-ingress problems --warnings --exit-code --manifests ./deploy/examples
  xdp-ingress certs --expire-within 14 --kubeconfig ~/.kube/config -o wide";

const PROBES: &str = "\
For exec probes of Kubernetes. `run --probe-socket` creates the socket, one per process, so that during an update a probe
never reaches the other pod of the node:
  live      the main thread and each worker have made progress within 10 s. The API server, pods and
            configuration have no influence: a restart would not repair them.
  started   programs are loaded and listeners open. The API server need not answer, because a restart would not help.
  ready     a snapshot is served, the node's new connections come to this process, and it has not been asked to end. A pod
            with a successor that took the node over is not ready; it still serves its accepted connections.
Give Kubernetes' `timeoutSeconds` more than `--timeout`, or its own message takes the place of the reason.";

const DENY: &str = "\
The list holds the networks of `block-cidrs` in the settings, those of `deny add` on this node, and clients that the
proxy refused too often (`escalate-after`), as the kernel programs of this node apply it. It is pinned, and can be
read and changed whether or not a process serves; its counters live as long as its prefixes are listed.

Examples:
  # denied networks, with their rules and dropped traffic
  xdp-ingress deny list

  # the same for scripts
  xdp-ingress deny list -o json

  # the verdict for packets from an address
  xdp-ingress deny test 192.0.2.7

  # drop a network for an hour, and let it in again
  xdp-ingress deny add 192.0.2.0/24 --for 1h --reason \"ticket 4711\"
  xdp-ingress deny remove 192.0.2.0/24";

const CLIENTS: &str = "\
The settings `client-syns-per-second`, `client-packets-per-second` and their bursts define the limits
(docs/clients.md). A client is an IPv4 address or a /64 of IPv6. `PACKETS` counts packets above the packet limit, including
SYNs within the SYN limit; `AGO` is the time since the latest of either. The kernel remembers the 65536
clients that sent packets most recently, and starts again when the limits change.

Examples:
  # the twenty clients with the most dropped packets
  xdp-ingress clients

  # all of them, for scripts
  xdp-ingress clients --limit 65536 -o json";

const TOP: &str = "\
The command reads the pinned maps, so it works even if the process hangs or has died. The columns
(docs/counters.md):
  requests, 4xx, errors   finished requests; errors are responses with 5xx and aborted ones
  active                  requests being served now
  packets, bytes          received on the wire, as XDP counted them
  in, out                 bytes of request and response bodies
Dropped packets belong to no host; the line above the table counts them. Keys: q quit, s sort by the next column,
r reverse, / filter, t rates or totals, p pause.";

/// A Kubernetes ingress controller with a data path that begins in the kernel.
#[derive(Debug, Parser)]
#[command(name = "xdp-ingress", version, after_help = EXAMPLES, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Returns the command line with what `run` accepts for the sake of a migration.
pub(crate) fn command() -> clap::Command {
    Cli::command().mut_subcommand("run", foreign::accept)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Watch Ingresses, steer the node's ports to the proxy, and serve.
    #[command(after_help = EXAMPLES)]
    Run(Box<RunArgs>),
    /// Probe a running process: exit code 0 for yes, 1 for no, with one line that gives the reason.
    #[command(after_help = PROBES)]
    Probe(ProbeArgs),
    /// Show and change the list of networks that the kernel programs of this node drop.
    #[command(subcommand, after_help = DENY)]
    Deny(DenyCommand),
    /// Leave another ingress controller step by step.
    #[command(subcommand)]
    Migrate(MigrateCommand),
    /// Show the limits of each client on this node, and the clients that exceeded them.
    #[command(after_help = CLIENTS)]
    Clients(ClientsArgs),
    /// Show hosts by requests, errors, packets and bytes, as counted in the kernel.
    #[command(after_help = TOP)]
    Top(TopArgs),
    /// Show the state of the node: processes, links, ports, addresses, maps, totals, and problems.
    ///
    /// The command reads the pinned maps and asks no process, so it also works if the process hangs or has died.
    Status(StateArgs),
    /// Show the rules of the configuration in order of precedence.
    #[command(after_help = READS)]
    Routes(Box<RoutesArgs>),
    /// Show problems of objects: requested functions that are not in effect, with the remedy of each.
    #[command(after_help = READS)]
    Problems(Box<ProblemsArgs>),
    /// Show certificates with their names and validity; the first to expire comes first.
    #[command(after_help = READS)]
    Certs(Box<CertsArgs>),
    /// Show why a URL is served as it is: host, rule, filters, pods, certificate, and the rules that are not chosen.
    #[command(after_help = READS)]
    Explain(Box<ExplainArgs>),
    /// Check what ingress-nginx serves: which Ingresses and settings would behave differently here, and what to change.
    #[command(after_help = ingress_cli::check::HELP)]
    Check(Box<CheckArgs>),
    /// Replay an access log of ingress-nginx: which of its requests would be answered otherwise here. No request is sent.
    #[command(after_help = ingress_cli::shadow::HELP)]
    Shadow(Box<ShadowArgs>),
    /// Collect what a bug report needs.
    #[command(subcommand)]
    Debug(DebugCommand),
    /// Show the version of this program, and of a running process.
    Version(VersionArgs),
    /// Print a completion script for a shell.
    Completion(CompletionArgs),
    /// Write a manual page for each command into a directory.
    Man(ManArgs),
    /// Detach the kernel programs and remove their pins; this deletes the counters.
    ///
    /// A running process keeps its accepted connections. New connections are refused until the process is restarted.
    Unload(PinArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ProbeArgs {
    /// The probe to run.
    #[arg(value_enum)]
    pub(crate) probe: Probe,

    /// Socket of the process, as given to `run --probe-socket`.
    #[arg(long, value_name = "PATH", default_value = "/run/xdp-ingress-pod/probe.sock")]
    pub(crate) socket: PathBuf,

    /// Maximum time to wait for the answer.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration::positive)]
    pub(crate) timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Probe {
    /// Check that all threads make progress.
    Live,
    /// Check that everything except the configuration is ready.
    Started,
    /// Check that this process should receive new connections.
    Ready,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        command().debug_assert();
    }

    #[test]
    fn networks_are_written_with_the_length_of_their_prefix() {
        for flag in ["--allow-endpoints-in", "--allow-external-addresses-in"] {
            let is_read = |value: &str| Cli::try_parse_from(["xdp-ingress", "run", flag, value]).is_ok();
            assert!(is_read("10.20.0.0/16,fd00:20::/32"), "{flag}");
            for wrong in ["", "10.20.0.0", "10.20.0.0/33", "fd00:20::/129", "corp.test", "10.20.0.0/16,"] {
                assert!(!is_read(wrong), "{flag} {wrong}");
            }
        }
    }

    #[test]
    fn probes_time_out_after_one_second_by_default() {
        let probe = |line: &[&str]| match Cli::try_parse_from([&["xdp-ingress", "probe"], line].concat()) {
            Ok(Cli { command: Command::Probe(ProbeArgs { probe, timeout, .. }) }) => Some((probe, timeout.as_millis())),
            _ => None,
        };
        assert_eq!(probe(&["live"]), Some((Probe::Live, 1000)));
        assert_eq!(probe(&["ready", "--timeout", "0.25"]), Some((Probe::Ready, 250)));
        assert_eq!(probe(&["ready", "--timeout", "250ms"]), Some((Probe::Ready, 250)));
        for wrong in [&["ready", "--timeout", "-1"][..], &["ready", "--timeout", "0"], &["alive"], &[]] {
            assert_eq!(probe(wrong), None, "{wrong:?}");
        }
    }
}
