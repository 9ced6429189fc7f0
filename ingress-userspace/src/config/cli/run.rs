//! The options of `xdp-ingress run` as typed. Their meaning and validation are in `settings`.

use std::{net::SocketAddr, num::NonZeroU16, path::PathBuf, time::Duration};

use clap::{ArgAction, Args, ValueEnum};
use ingress_control::{
    change::ObjectName,
    status::Address,
    translate::{HostSharing, ServicePattern},
};
use ingress_datapath::BPFFS;
use ipnet::IpNet;

use super::selector;

// The options by the headings of the help. These are not doc comments, because clap would show them as the description
// of the command.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) routing: RoutingArgs,
    #[command(flatten)]
    pub(crate) status: StatusArgs,
    #[command(flatten)]
    pub(crate) kernel: KernelArgs,
    #[command(flatten)]
    pub(crate) proxy: ProxyArgs,
    #[command(flatten)]
    pub(crate) operation: OperationArgs,
}

// Where objects come from, and which of them are served.
#[derive(Debug, Args)]
#[command(next_help_heading = "Source")]
pub(crate) struct SourceArgs {
    /// Read Kubernetes YAML or JSON from this directory instead of an API server, and watch it for changes.
    #[arg(long, value_name = "DIR", conflicts_with = "kubeconfig")]
    pub(crate) manifests: Option<PathBuf>,

    /// Path of the kubeconfig. Default: $KUBECONFIG or ~/.kube/config if present, else the pod's service account.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Name of the class to serve, as used in the annotation `kubernetes.io/ingress.class`. With manifests that hold no
    /// IngressClass, the name also counts in `ingressClassName`. Otherwise an IngressClass is selected by its
    /// controller, see --controller-class.
    #[arg(long, value_name = "NAME", default_value = "xdp")]
    pub(crate) ingress_class: String,

    /// Serve IngressClasses with this `spec.controller`. With `k8s.io/ingress-nginx`, settings get the defaults of
    /// ingress-nginx.
    #[arg(long, value_name = "NAME", default_value = "xdp-ingress.io/controller")]
    pub(crate) controller_class: String,

    /// Serve Ingresses with the `--ingress-class` name in `ingressClassName` while the cluster has no IngressClass at
    /// all.
    #[arg(long)]
    pub(crate) ingress_class_by_name: bool,

    /// Also serve Ingresses that name no class.
    #[arg(long)]
    pub(crate) watch_ingress_without_class: bool,

    /// Read objects of this namespace only. Default: all namespaces.
    #[arg(long, value_name = "NAMESPACE", conflicts_with = "manifests")]
    pub(crate) watch_namespace: Option<String>,

    /// Serve only Ingresses of namespaces that match this label selector, such as `team=shop,env!=test`. A change of a
    /// namespace's labels takes effect at once. Default: all namespaces.
    #[arg(
        long,
        value_name = "SELECTOR",
        value_parser = selector::label_selector,
        conflicts_with_all = ["manifests", "watch_namespace"]
    )]
    pub(crate) watch_namespace_selector: Option<String>,

    /// Save the served configuration in this file. The next start serves it if the API server has not delivered
    /// everything within 3 s. Prefer a tmpfs of the node, in an existing directory. Default: such a start waits.
    #[arg(long, value_name = "FILE", conflicts_with = "manifests")]
    pub(crate) snapshot_file: Option<PathBuf>,

    /// Also save private keys of certificates and hashes of passwords there. Read access to the file gives access to
    /// them. Default: until the API server is back, such hosts get the default certificate and such rules answer 503.
    #[arg(long, requires = "snapshot_file")]
    pub(crate) snapshot_private_keys: bool,
}

// What routes and certificates are made from, and limits of what a namespace may claim.
#[derive(Debug, Args)]
#[command(next_help_heading = "Routing")]
pub(crate) struct RoutingArgs {
    /// ConfigMap with the settings of all hosts. The parameters of an IngressClass override it.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name)]
    pub(crate) configmap: Option<ObjectName>,

    /// Service that answers requests that no rule matches, on its first port. Default: answer 404.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name)]
    pub(crate) default_backend_service: Option<ObjectName>,

    /// TLS Secret for names without their own certificate. Default: a self-signed certificate.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name)]
    pub(crate) default_ssl_certificate: Option<ObjectName>,

    /// ConfigMap of TCP services. Each row opens a port of the node: `port: "namespace/service:port"`. Append `:PROXY`
    /// if clients send a PROXY protocol header, and another `:PROXY` (or `:PROXY-V2`) if pods expect one.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name)]
    pub(crate) tcp_services_configmap: Option<ObjectName>,

    /// ConfigMap of UDP services. Each row opens a port of the node: `port: "namespace/service:port"`. Ports below 1024
    /// need CAP_NET_BIND_SERVICE.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name)]
    pub(crate) udp_services_configmap: Option<ObjectName>,

    /// Accepted for compatibility with ingress-nginx. Hosts with the annotation `ssl-passthrough` are always passed
    /// through, at no cost to others.
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set)]
    pub(crate) enable_ssl_passthrough: bool,

    /// Secret with the keys that encrypt TLS session tickets, so that every node and every process can resume the
    /// sessions (docs/tls.md). Default: keys of this process alone.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name)]
    pub(crate) tls_ticket_secret: Option<ObjectName>,

    /// Allow Services of type ExternalName. They can lead to any address except those of the node, of the cluster and
    /// of its cloud. Hosts in URLs of annotations (`auth-url`, `mirror-target`, `jwt-jwks-url`) do not need this
    /// option.
    #[arg(long, conflicts_with = "disable_svc_external_name")]
    pub(crate) allow_svc_external_name: bool,

    /// Services that Ingresses of any namespace may name in `auth-url`, `mirror-target` and `jwt-jwks-url`:
    /// `namespace/name`, or `namespace` for all its Services; repeatable, or separated by commas. Default: Services of
    /// the Ingress's own namespace, and those that ReferenceGrants allow.
    #[arg(long, value_name = "NAMESPACE[/NAME]", value_delimiter = ',', value_parser = ServicePattern::parse)]
    pub(crate) allow_cross_namespace_services: Vec<ServicePattern>,

    /// Networks that EndpointSlices of the API server may lead to without restriction. This includes loopback,
    /// link-local and metadata addresses, and those of Services, of the API server and of nodes
    /// (docs/cross-namespace.md). Repeatable, or separated by commas. Default: none. Manifests may lead to any address.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub(crate) allow_endpoints_in: Vec<IpNet>,

    /// Private networks that Services of type ExternalName, and hosts in URLs of annotations, may lead to; repeatable,
    /// or separated by commas. Default: none, and all with `--manifests`.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub(crate) allow_external_addresses_in: Vec<IpNet>,

    /// Accepted for compatibility with ingress-nginx. Services of type ExternalName are refused unless explicitly
    /// allowed.
    #[arg(long)]
    pub(crate) disable_svc_external_name: bool,

    /// Refuse Ingresses that claim all hosts.
    #[arg(long)]
    pub(crate) disable_catch_all: bool,

    /// Maximum number of Secrets and ConfigMaps per Ingress. An Ingress that names more is not served. Each reference
    /// needs its own watch, on every node.
    #[arg(long, value_name = "COUNT", default_value_t = 256)]
    pub(crate) max_references: usize,

    /// Maximum number of hosts that all Ingresses of a namespace may claim, by rules, `tls` and aliases. Ingresses
    /// are admitted by age, the oldest first. One that does not fit beside those admitted before it is not served.
    #[arg(long, value_name = "COUNT", default_value_t = 100_000)]
    pub(crate) max_hosts_per_namespace: usize,

    /// Maximum number of paths that all Ingresses of a namespace may claim, summed over hosts. Ingresses are
    /// admitted by age, the oldest first. One that does not fit beside those admitted before it is not served.
    #[arg(long, value_name = "COUNT", default_value_t = 200_000)]
    pub(crate) max_paths_per_namespace: usize,

    /// Maximum number of rules with their own metrics, about six series each, over all Ingresses with
    /// `metrics-per-path`. Rules of younger Ingresses are counted by host only.
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    pub(crate) max_metered_rules: usize,

    /// The same limit for the Ingresses of one namespace.
    #[arg(long, value_name = "COUNT", default_value_t = 2_000)]
    pub(crate) max_metered_rules_per_namespace: usize,

    /// Permissions of an Ingress on a host that another namespace owns (by its oldest Ingress): `paths`, only further
    /// paths; `owner`, nothing; `granted`, paths where the owner grants them; `open`, anything not yet claimed, as with
    /// ingress-nginx (docs/sharing-hosts.md).
    #[arg(long, value_name = "MODE", default_value = "paths")]
    pub(crate) host_sharing: HostSharing,

    /// Additional prefix of annotations, besides `xdp-ingress.io/`.
    #[arg(long, value_name = "PREFIX", default_value = "nginx.ingress.kubernetes.io")]
    pub(crate) annotations_prefix: String,

    /// Name of the node of this process, for topology hints. Default: hints are ignored.
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    pub(crate) node_name: Option<String>,
}

// What is written to Ingresses, and by which replica.
#[derive(Debug, Args)]
#[command(next_help_heading = "Status")]
pub(crate) struct StatusArgs {
    /// Write addresses to the status of served Ingresses. Events and leader election do not depend on this option. It
    /// has no effect with manifests.
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set)]
    pub(crate) update_status: bool,

    /// Clear the statuses when the last replica stops.
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set)]
    pub(crate) update_status_on_shutdown: bool,

    /// Service with the addresses to show in statuses. Default: addresses of the nodes that run this controller.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name, conflicts_with = "publish_status_address")]
    pub(crate) publish_service: Option<ObjectName>,

    /// Addresses to show in statuses: IPs or names; repeatable, or separated by commas.
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    pub(crate) publish_status_address: Vec<Address>,

    /// Prefer internal IPs of nodes to external ones in statuses. External IPs are shown only for nodes without
    /// internal ones.
    #[arg(long)]
    pub(crate) report_node_internal_ip_address: bool,

    /// Minimum time before a status that another writer changed is written again.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = positive_seconds)]
    pub(crate) status_update_interval: Duration,

    /// Name of the Lease for the election of the replica that writes statuses and events.
    #[arg(long, value_name = "NAME", default_value = "xdp-ingress-leader")]
    pub(crate) election_id: String,

    /// Time that the Lease of a lost leader blocks other replicas, at least 3s.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = election_ttl)]
    pub(crate) election_ttl: Duration,

    /// Write statuses and events without leader election; for a single replica.
    #[arg(long)]
    pub(crate) disable_leader_election: bool,

    /// Name of this pod; shown in the Lease and in events.
    #[arg(long, value_name = "NAME", env = "POD_NAME", hide = true)]
    pub(crate) pod_name: Option<String>,

    /// Namespace of this pod and of the Lease.
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", default_value = "xdp-ingress", hide = true)]
    pub(crate) pod_namespace: String,
}

// The kernel programs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Kernel")]
pub(crate) struct KernelArgs {
    /// Network interface to attach XDP to, as soon as it exists; repeatable. Default: interfaces with a default route.
    /// For a bond or VLAN, XDP is attached to the interfaces below it.
    #[arg(long, value_name = "NAME")]
    pub(crate) interface: Vec<String>,

    /// Delivery of connections to the proxy.
    #[arg(long, value_enum, default_value_t = Steer::Auto)]
    pub(crate) steer: Steer,

    /// Number added to ports with --steer rewrite: to 80, 443 and the ports of TCP services. Firewalls of the node must
    /// allow the resulting ports, and no other program may use them.
    #[arg(long, value_name = "N", default_value = "10000")]
    pub(crate) rewrite_offset: NonZeroU16,

    /// Attachment of the XDP program to each interface.
    #[arg(long, value_enum, default_value_t = XdpModeArg::Auto)]
    pub(crate) xdp_mode: XdpModeArg,

    /// Directory of the pinned programs and maps; its parent must be on a BPF file system.
    #[arg(long, value_name = "DIR", default_value = BPFFS)]
    pub(crate) bpffs: PathBuf,

    /// Number of hosts with their own counters (64 bytes each, and 32 per CPU); further hosts share one set.
    #[arg(long, value_name = "N", default_value_t = ingress_common::map::HOSTS_DEFAULT,
          value_parser = clap::value_parser!(u32).range(2..=1_048_576))]
    pub(crate) host_capacity: u32,

    /// Log the decision of the kernel programs on each connection (slow; for debugging).
    #[arg(long)]
    pub(crate) bpf_log: bool,
}

// Ports, workers and the end of the proxy.
#[derive(Debug, Args)]
#[command(next_help_heading = "Proxy")]
pub(crate) struct ProxyArgs {
    /// Port for HTTP.
    #[arg(long, value_name = "PORT", default_value_t = 80)]
    pub(crate) http_port: u16,

    /// Port for HTTPS.
    #[arg(long, value_name = "PORT", default_value_t = 443)]
    pub(crate) https_port: u16,

    /// Number of worker threads, at most 64. Default: one per CPU available to this process.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) workers: Option<u16>,

    /// Action on a worker thread that makes an unexpected system call, for example after an attacker has taken it over.
    /// With `kill` or `log`, the process does not start if the seccomp filter cannot be installed. Default: `kill`, or
    /// a warning if it cannot.
    #[arg(long, value_enum)]
    pub(crate) worker_seccomp: Option<WorkerSeccomp>,

    /// Maximum time for open connections to end, after SIGTERM and --shutdown-grace-period.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) drain_timeout: Duration,

    /// Time to keep serving after SIGTERM, reported as not ready, before the drain begins. Load balancers that notice
    /// late need it. It precedes `--drain-timeout`; the sum must stay below the pod's terminationGracePeriodSeconds.
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    pub(crate) shutdown_grace_period: Duration,
}

// Health, metrics and the log.
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
          require_equals = true, action = ArgAction::Set)]
    pub(crate) enable_metrics: bool,

    /// Export metric series for each host; their number grows with the number of hosts.
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set)]
    pub(crate) metrics_per_host: bool,

    /// Count the time to the head of responses for each upstream: a histogram of 14 series each. Off, requests read
    /// no clock for it.
    #[arg(long, value_name = "BOOL", default_value_t = false, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set)]
    pub(crate) metrics_upstream_latency: bool,

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
pub(crate) enum Steer {
    /// XDP chooses the worker and sk_lookup delivers; no socket is bound to the ports.
    Auto,
    /// Like `auto`, for nodes where a DNAT rule takes the ports (a pod's `hostPort`): XDP changes the port of packets
    /// before netfilter sees them, and responses get the original port back. Needs programs on the interfaces.
    Rewrite,
    /// Ordinary listeners on the ports; XDP, if attached, only counts.
    Bind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum XdpModeArg {
    /// Try the driver, then the generic hook, then `tcx`; also use `tcx` next to a foreign XDP program.
    Auto,
    /// The driver only; otherwise no XDP.
    Native,
    /// The generic hook of the network stack.
    Generic,
    /// No XDP: a program at tcx ingress (clsact before Linux 6.6) does the same, later in the path.
    Tcx,
    /// No program on any interface; sk_lookup still delivers with `--steer auto`.
    Off,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormatArg {
    Text,
    Json,
}

fn seconds(text: &str) -> Result<Duration, String> {
    text.parse().map(Duration::from_secs).map_err(|error| format!("`{text}` is not a number of seconds: {error}"))
}

fn positive_seconds(text: &str) -> Result<Duration, String> {
    let duration = seconds(text)?;
    if duration.is_zero() { Err("give at least 1 second".into()) } else { Ok(duration) }
}

/// Parses a whole number of seconds or minutes, such as `30s`, `1m` or `45`. A Lease counts in seconds.
fn election_ttl(text: &str) -> Result<Duration, String> {
    let (number, unit) = match (text.strip_suffix('s'), text.strip_suffix('m')) {
        (Some(number), _) => (number, 1),
        (_, Some(number)) => (number, 60),
        _ => (text, 1),
    };
    let number: u32 = number.parse().map_err(|error| format!("`{text}` is not of the form `30s`: {error}"))?;
    let duration = Duration::from_secs(u64::from(number) * unit);
    if duration < Duration::from_secs(3) {
        return Err(format!("`{text}` is too short for a renewal to fail once; give at least `3s`"));
    }
    Ok(duration)
}

fn object_name(text: &str) -> Result<ObjectName, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok(ObjectName::new(namespace, name))
        }
        _ => Err(format!("`{text}` is not of the form `namespace/name`")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::config::cli::{Cli, Command};

    fn parse(arguments: &[&str]) -> Result<RunArgs, clap::Error> {
        let Cli { command } = Cli::try_parse_from([&["xdp-ingress", "run"], arguments].concat())?;
        let Command::Run(args) = command else { panic!("run expected") };
        Ok(*args)
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let args = parse(&[]).expect("valid");
        assert_eq!((args.proxy.http_port, args.proxy.https_port, args.source.ingress_class.as_str()), (80, 443, "xdp"));
        assert_eq!(
            (args.kernel.steer, args.kernel.xdp_mode, args.kernel.host_capacity),
            (Steer::Auto, XdpModeArg::Auto, 16_384)
        );
        assert_eq!(args.kernel.rewrite_offset.get(), 10_000);
    }

    #[test]
    fn the_rewrite_offset_is_between_1_and_65535() {
        let args = parse(&["--steer", "rewrite", "--rewrite-offset", "20000"]).expect("valid");
        assert_eq!((args.kernel.steer, args.kernel.rewrite_offset.get()), (Steer::Rewrite, 20_000));
        for wrong in ["0", "65536", "-1"] {
            assert!(parse(&["--steer", "rewrite", &format!("--rewrite-offset={wrong}")]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn switches_are_written_as_for_ingress_nginx() {
        for (typed, expected) in [
            (&[][..], (true, true, None)),
            (&["--enable-metrics=false", "--healthz-port=10254"], (false, true, Some(10254))),
            (&["--enable-metrics", "--metrics-per-host=false"], (true, false, None)),
        ] {
            let args = parse(typed).expect("valid");
            assert_eq!(
                (args.operation.enable_metrics, args.operation.metrics_per_host, args.operation.healthz_port),
                expected,
                "{typed:?}"
            );
        }
        let latency = |typed: &[&str]| parse(typed).expect("valid").operation.metrics_upstream_latency;
        assert!(!latency(&[]) && latency(&["--metrics-upstream-latency"]));
        assert!(!latency(&["--metrics-upstream-latency=false"]));
        assert!(parse(&["--healthz-port", "1", "--admin-addr", "127.0.0.1:2"]).is_err(), "which of the two?");
    }

    #[test]
    fn status_flags_are_those_of_ingress_nginx() {
        let args = parse(&[]).expect("defaults");
        assert!(
            args.status.update_status && args.status.update_status_on_shutdown && !args.status.disable_leader_election
        );
        assert_eq!((args.status.election_id.as_str(), args.status.election_ttl.as_secs()), ("xdp-ingress-leader", 30));
        assert!(!parse(&["--update-status=false"]).expect("valid").status.update_status);
        assert!(parse(&["--update-status"]).expect("valid").status.update_status);
        let both = ["--publish-status-address", "192.0.2.1,edge.test", "--publish-status-address=2001:db8::1"];
        assert_eq!(parse(&both).expect("valid").status.publish_status_address.len(), 3);
        for (text, expect) in
            [("30s", Some(30)), ("2m", Some(120)), ("45", Some(45)), ("2s", None), ("1h", None), ("", None)]
        {
            assert_eq!(election_ttl(text).ok().map(|ttl| ttl.as_secs()), expect, "{text}");
        }
        for wrong in [
            &["--publish-service", "a/b", "--publish-status-address", "192.0.2.1"][..],
            &["--publish-service", "b"],
            &["--publish-status-address", "192.0.2.1:80"],
            &["--status-update-interval", "0"],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn sources_exclude_each_other() {
        assert!(parse(&["--manifests", "a", "--kubeconfig", "b"]).is_err());
    }
}
