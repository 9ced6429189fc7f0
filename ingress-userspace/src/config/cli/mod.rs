//! The commands as they are typed.

mod run;

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};

pub(crate) use self::run::{LogFormat, RunArgs, Steer, XdpMode};
use super::inspect::{ClientsArgs, DenyCommand, PinArgs, ShowArgs, TopArgs};

const EXAMPLES: &str = "\
Examples:
  # in a cluster (the DaemonSet of deploy/ runs this, with more options)
  xdp-ingress run

  # on one machine, without a cluster: ordinary Kubernetes YAML from a directory, watched
  xdp-ingress run --manifests ./deploy/examples --interface eth0

  # without any kernel program, on high ports, as any user
  xdp-ingress run --manifests ./deploy/examples --steer bind --xdp-mode off --http-port 8080 --https-port 8443

  # what the hosts of this node get, each second; once, for a program; and how the node is
  xdp-ingress top
  xdp-ingress top --once --output json
  xdp-ingress status

  # take everything out of the kernel that `run` left there
  xdp-ingress unload

Exit codes: 0 success; 1 failure, with the reason on standard error; 2 wrong usage.";

const PROBES: &str = "\
For exec probes of Kubernetes. `run --probe-socket` makes the socket, one for each process, so that during an update a probe
never reaches the other pod of the node:
  live      the main thread and each worker have made progress within 10 s. Says nothing of the API server, of pods or of
            configuration: a restart would cure none of them.
  started   programs are loaded and listeners open. It waits for no API server, whose absence is no reason to restart either.
  ready     a snapshot is served, the node's new connections come to this process, and it has not been asked to end. A pod whose
            successor has taken the node over is not ready; it serves what it has accepted.
Give Kubernetes' `timeoutSeconds` more than `--timeout`, or its own message takes the place of the reason.";

const DENY: &str = "\
The list is what `block-cidrs` of the settings names, what `deny add` has added on this node, and clients that the
proxy had to refuse too often (`escalate-after`), as the kernel programs of this node have it. It is pinned, and can be
read and changed whether or not a process serves; its counters live as long as its prefixes are listed.

Examples:
  # who is dropped, by which rule, and how much of it
  xdp-ingress deny list

  # the same for scripts
  xdp-ingress deny list --output json

  # what becomes of packets from an address
  xdp-ingress deny test 192.0.2.7

  # drop a network for an hour, and let it in again
  xdp-ingress deny add 192.0.2.0/24 --for 1h --reason \"ticket 4711\"
  xdp-ingress deny remove 192.0.2.0/24";

const CLIENTS: &str = "\
The limits are what `client-syns-per-second`, `client-packets-per-second` and their bursts in the settings say
(docs/clients.md). A client is an IPv4 address or a /64 of IPv6. `PACKETS` has what was above the limit of packets, SYNs
that were not above theirs among it; `AGO` is the time since the latest of either. The kernel remembers the 65536
clients that sent something last, and begins anew when the limits change.

Examples:
  # the twenty clients of whom most was dropped
  xdp-ingress clients

  # all of them, for scripts
  xdp-ingress clients --limit 65536 --output json";

const TOP: &str = "\
It reads the pinned maps and asks no process, so it works with one that hangs or has died. The columns
(docs/counters.md):
  requests, 4xx, errors   requests that have ended; errors are 5xx and those that broke off
  active                  requests being served now
  packets, bytes          received on the wire, as XDP counted them
  in, out                 bytes of bodies of requests and of responses
Packets that are dropped belong to no host; the line above the table has them. Keys: q quit, s sort by the next column,
r reverse, / filter, t rates or totals, p pause.";

/// A Kubernetes ingress controller whose data path begins in the kernel.
#[derive(Debug, Parser)]
#[command(name = "xdp-ingress", version, after_help = EXAMPLES, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Watch Ingresses, steer the node's ports to the proxy, and serve.
    #[command(after_help = EXAMPLES)]
    Run(Box<RunArgs>),
    /// Ask a running process how it is; exit code 0 for yes, 1 for no, with one line that says why.
    #[command(after_help = PROBES)]
    Probe(ProbeArgs),
    /// Show and change whom the kernel programs of this node drop.
    #[command(subcommand, after_help = DENY)]
    Deny(DenyCommand),
    /// Show how much each client may send to this node, and which clients have sent more.
    #[command(after_help = CLIENTS)]
    Clients(ClientsArgs),
    /// Show hosts by requests, errors, packets and bytes, as they are counted in the kernel.
    #[command(after_help = TOP)]
    Top(TopArgs),
    /// Show the state of the node: processes, links, ports, addresses, maps, totals, and what needs attention.
    ///
    /// It reads what is pinned and asks no process, so it works with one that hangs or has died.
    Status(ShowArgs),
    /// Detach the kernel programs and remove their pins; counters are gone afterwards.
    ///
    /// Connections that a running process has accepted go on; new ones are refused until it is restarted.
    Unload(PinArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ProbeArgs {
    /// What to ask.
    #[arg(value_enum)]
    pub(crate) probe: Probe,

    /// The socket of the process, as `run --probe-socket` has it.
    #[arg(long, value_name = "PATH", default_value = "/run/xdp-ingress-pod/probe.sock")]
    pub(crate) socket: PathBuf,

    /// Longest wait for the answer; fractions are allowed.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = patience)]
    pub(crate) timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Probe {
    /// Do all threads make progress?
    Live,
    /// Is everything there but the configuration?
    Started,
    /// Should new connections come?
    Ready,
}

/// A number of seconds, which may have a fraction.
pub(super) fn fraction(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|error| format!("`{text}` is not a number of seconds: {error}"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| format!("`{text}`: {error}"))
}

fn patience(text: &str) -> Result<Duration, String> {
    let time = fraction(text)?;
    if time.is_zero() { Err("no answer comes in no time; give more than 0".to_owned()) } else { Ok(time) }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_probe_waits_for_a_second_or_as_long_as_it_is_told() {
        let probe = |line: &[&str]| match Cli::try_parse_from([&["xdp-ingress", "probe"], line].concat()) {
            Ok(Cli { command: Command::Probe(ProbeArgs { probe, timeout, .. }) }) => Some((probe, timeout.as_millis())),
            _ => None,
        };
        assert_eq!(probe(&["live"]), Some((Probe::Live, 1000)));
        assert_eq!(probe(&["ready", "--timeout", "0.25"]), Some((Probe::Ready, 250)));
        for wrong in [&["ready", "--timeout", "-1"][..], &["ready", "--timeout", "0"], &["alive"], &[]] {
            assert_eq!(probe(wrong), None, "{wrong:?}");
        }
    }
}
