//! The command line of the commands that inspect a node from outside, and of those that change its deny list.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use ingress_cli::{
    bundle::BundleArgs,
    duration,
    print::{Format, OutputArgs},
    top::TopColumn,
};
use ingress_common::{DenialReason, denial::REASON_MAX};
use ingress_datapath::BPFFS;
use ipnet::IpNet;

/// Minimum interval, because each reading covers all hosts.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Where the DaemonSet mounts the directory of the node, so that its pods see nothing else of the bpffs.
const BPFFS_OF_POD: &str = "/bpf/xdp-ingress";

/// Returns the directory of the pins where the command runs: on a node, or inside a pod.
fn pinned_directory() -> PathBuf {
    let found = [BPFFS, BPFFS_OF_POD].map(PathBuf::from).into_iter().find(|path| path.is_dir());
    found.unwrap_or_else(|| BPFFS.into())
}

// The next two structs have no doc comment: clap would show it in place of the description of each command.
#[derive(Debug, Args)]
pub(crate) struct PinArgs {
    /// Directory of the pinned programs and maps. Default: that of the node, or inside a pod that of the pod.
    #[arg(long, value_name = "DIR", default_value_os_t = pinned_directory())]
    pub(crate) bpffs: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) pins: PinArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct StateArgs {
    #[command(flatten)]
    pub(crate) show: ShowArgs,

    /// Exit with 3 if the node has problems.
    #[arg(long, conflicts_with = "watch")]
    pub(crate) exit_code: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) pins: PinArgs,

    /// Print one table and exit: totals since the maps were created, or with --interval the rates over that time.
    /// Without it, a terminal is drawn again after each interval.
    #[arg(long)]
    pub(crate) once: bool,

    /// Form of the output; `json` and `yaml` need --once, and have every counter as an exact number.
    #[arg(
        short,
        long,
        value_enum,
        default_value_t = Format::Table,
        requires_ifs = [("json", "once"), ("yaml", "once")]
    )]
    pub(crate) output: Format,

    /// Time between two readings, at least 100ms. Default: 1s.
    #[arg(long, value_name = "DURATION", value_parser = interval)]
    pub(crate) interval: Option<Duration>,

    /// Column to sort by, in descending order.
    #[arg(long, value_name = "COLUMN", value_enum, default_value_t = TopColumn::Requests)]
    pub(crate) sort: TopColumn,

    /// Show only hosts with this text in their name.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) filter: String,

    /// Maximum number of hosts to show. Default: all, or on a terminal as many as fit.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,

    /// Accepted as for other commands; this one has no colours.
    #[arg(long)]
    pub(crate) no_color: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DenyCommand {
    /// List the prefixes, their rules, the packets and bytes that each has dropped, their source, and their remaining
    /// time.
    ///
    /// `pass` marks a network of trusted proxies: one inside a denied network, or any such network while clients are
    /// limited. `none` marks a denial without effect, because it lies in such a network or the map is full. Prefixes
    /// that did not get their own rule share one, shown as `(others)`.
    List(ShowArgs),
    /// Show the verdict for packets from an address, and the prefix that decides.
    Test(DenyTestArgs),
    /// Drop packets from a network to all served ports of this node, starting now.
    ///
    /// The denial does not depend on a running process. It lasts until `deny remove` or `unload`, or until a process
    /// notices that its time is over. Trusted proxies are never dropped: such a network is refused here, and still
    /// passes as part of a larger one. Other nodes are not affected; use `block-cidrs` in the settings for all nodes.
    Add(DenyAddArgs),
    /// Remove the denials of a network that `deny add` or an escalation has made, at once.
    ///
    /// Violations counted against its clients are reset. Entries from the settings stay.
    Remove(DenyRemoveArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DenyTestArgs {
    /// Source address of the packets.
    #[arg(value_name = "IP")]
    pub(crate) address: IpAddr,

    /// Exit with 3 if the packets are dropped. Default: 0 for either verdict.
    #[arg(long)]
    pub(crate) exit_code: bool,

    #[command(flatten)]
    pub(crate) pins: PinArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DebugCommand {
    /// Write an archive for a bug report: version, state of the node, routes, problems, certificates, counters, changes and
    /// metrics.
    ///
    /// The bundle has no private keys, passwords, values of header fields or queries of URLs, and by default no addresses of
    /// clients. The log is where Kubernetes or your service manager keeps it, so add it yourself.
    Bundle(DebugBundleArgs),
}

#[derive(Debug, Args)]
pub(crate) struct DebugBundleArgs {
    #[command(flatten)]
    pub(crate) bundle: BundleArgs,

    /// Socket of a running process. If there is none, the bundle has only the state of the node.
    #[arg(long, value_name = "PATH", default_value = "/run/xdp-ingress-pod/probe.sock")]
    pub(crate) socket: PathBuf,

    /// Maximum time for each answer of the process.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::positive)]
    pub(crate) timeout: Duration,

    #[command(flatten)]
    pub(crate) pins: PinArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ClientsArgs {
    #[command(flatten)]
    pub(crate) show: ShowArgs,

    /// Maximum number of clients to show.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: usize,
}

#[derive(Debug, Args)]
pub(crate) struct DenyAddArgs {
    /// Network or address.
    #[arg(value_name = "PREFIX", value_parser = network)]
    pub(crate) network: IpNet,

    /// Duration, from a second to a year: `30s`, `1h30m`, `7d`. Default: until removed.
    #[arg(long = "for", value_name = "DURATION", value_parser = lasting)]
    pub(crate) lasts: Option<Duration>,

    /// Reason to show in the list: up to 47 printable ASCII characters.
    #[arg(long, value_name = "TEXT", value_parser = reason, default_value = "", hide_default_value = true)]
    pub(crate) reason: DenialReason,

    #[command(flatten)]
    pub(crate) pins: PinArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DenyRemoveArgs {
    /// Network or address, as shown by `deny list`.
    #[arg(value_name = "PREFIX", value_parser = network)]
    pub(crate) network: IpNet,

    #[command(flatten)]
    pub(crate) pins: PinArgs,
}

fn interval(text: &str) -> Result<Duration, String> {
    duration::at_least(text, INTERVAL_MIN)
}

fn network(text: &str) -> Result<IpNet, String> {
    let network = text.parse().or_else(|_no_network| text.parse::<IpAddr>().map(IpNet::from));
    network.map_err(|_neither| format!("`{text}` is neither an IP address nor a network as `192.0.2.0/24`"))
}

fn lasting(text: &str) -> Result<Duration, String> {
    duration::between(text, Duration::from_secs(1), duration::YEAR)
}

fn reason(text: &str) -> Result<DenialReason, String> {
    DenialReason::new(text).ok_or_else(|| format!("give at most {REASON_MAX} printable ASCII characters"))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::config::cli::{Cli, Command};

    fn top(line: &[&str]) -> Option<TopArgs> {
        match Cli::try_parse_from([&["xdp-ingress", "top"], line].concat()) {
            Ok(Cli { command: Command::Top(args) }) => Some(args),
            _ => None,
        }
    }

    #[test]
    fn top_sorts_by_requests_by_default() {
        let args = top(&[]).expect("valid");
        assert_eq!(
            (args.once, args.output, args.sort, args.interval),
            (false, Format::Table, TopColumn::Requests, None)
        );
        let args = top(&["--sort", "4xx", "--filter", "shop", "--limit", "5", "--interval", "0.5"]).expect("valid");
        assert_eq!((args.sort, args.filter.as_str(), args.limit), (TopColumn::ClientErrors, "shop", Some(5)));
        assert_eq!(args.interval, Some(Duration::from_millis(500)));
        assert_eq!(top(&["--once", "--output", "json"]).map(|args| args.output), Some(Format::Json));
    }

    #[test]
    fn deny_list_and_deny_test_are_parsed() {
        let deny = |line: &[&str]| match Cli::try_parse_from([&["xdp-ingress", "deny"], line].concat()) {
            Ok(Cli { command: Command::Deny(command) }) => Some(command),
            _ => None,
        };
        let list = [
            (&["list"][..], Format::Table),
            (&["list", "--output", "json"], Format::Json),
            (&["list", "-o", "text"], Format::Table),
            (&["list", "-o", "table", "--watch", "--no-color"], Format::Table),
            (&["list", "-o", "yaml"], Format::Yaml),
        ];
        for (line, expect) in list {
            assert!(matches!(deny(line), Some(DenyCommand::List(ShowArgs { output, .. })) if output.output == expect));
        }
        let address: IpAddr = "2001:db8::1".parse().expect("an address");
        let test = deny(&["test", "2001:db8::1"]);
        assert!(matches!(test, Some(DenyCommand::Test(DenyTestArgs { address: found, .. })) if found == address));
        for wrong in [&["test"][..], &["test", "10.0.0.0/8"], &["list", "x"], &["add"], &[]] {
            assert!(deny(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn twenty_clients_are_shown_by_default() {
        let clients = |line: &[&str]| match Cli::try_parse_from([&["xdp-ingress", "clients"], line].concat()) {
            Ok(Cli { command: Command::Clients(args) }) => Some((args.limit, args.show.output.output)),
            _ => None,
        };
        assert_eq!(clients(&[]), Some((20, Format::Table)));
        assert_eq!(clients(&["--limit", "500", "--output", "json"]), Some((500, Format::Json)));
        assert_eq!(clients(&["--limit", "-1"]), None);
    }

    #[test]
    fn a_denial_has_a_network_a_lifetime_and_a_reason() {
        let add = |line: &[&str]| match Cli::try_parse_from([&["xdp-ingress", "deny", "add"], line].concat()) {
            Ok(Cli { command: Command::Deny(DenyCommand::Add(args)) }) => Some(args),
            _ => None,
        };
        let DenyAddArgs { network, lasts, reason, pins: _ } = add(&["192.0.2.7"]).expect("valid");
        assert_eq!((network.to_string(), lasts, reason.to_string()), ("192.0.2.7/32".to_owned(), None, String::new()));
        let typed = add(&["2001:db8::/32", "--for", "2h", "--reason", "ticket 4711"]).expect("valid");
        assert_eq!(
            (typed.network.to_string(), typed.reason.to_string()),
            ("2001:db8::/32".into(), "ticket 4711".into())
        );
        for (text, seconds) in
            [("2h", 7200), ("45", 45), ("30s", 30), ("10m", 600), ("365d", 31_536_000), ("1h30m", 5400)]
        {
            let lasts = add(&["10.0.0.0/8", "--for", text]).and_then(|args| args.lasts);
            assert_eq!(lasts, Some(Duration::from_secs(seconds)), "{text}");
        }
        for wrong in [
            &[][..],
            &["example.com"],
            &["10.0.0.0/33"],
            &["10.0.0.0/8", "--for", "0s"],
            &["10.0.0.0/8", "--for", "366d"],
            &["10.0.0.0/8", "--for", "h"],
            &["10.0.0.0/8", "--for", "2y"],
            &["10.0.0.0/8", "--for", "99999999999999999999d"],
            &["10.0.0.0/8", "--reason", "two\nlines"],
            &["10.0.0.0/8", "--reason", "a text that is far longer than what there is room for"],
        ] {
            assert!(add(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn invalid_options_of_top_are_refused() {
        for wrong in [
            &["--output", "json"][..],
            &["-o", "yaml"],
            &["--interval", "0"],
            &["--interval", "-1"],
            &["--interval", "soon"],
            &["--sort", "beauty"],
            &["--limit", "-1"],
        ] {
            assert!(top(wrong).is_none(), "{wrong:?}");
        }
    }
}
