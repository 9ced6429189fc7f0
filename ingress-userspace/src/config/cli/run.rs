//! The options of `xdp-ingress run` as they are typed. Meaning and validation are in `settings`.

use std::{net::SocketAddr, num::NonZeroU16, path::PathBuf, time::Duration};

use clap::{ArgAction, Args, ValueEnum};
use ingress_userspace::{
    control::{
        change::ObjectName,
        status::Address,
        translate::{HostSharing, ServicePattern},
    },
    datapath::BPFFS,
};
use ipnet::IpNet;

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Read Kubernetes YAML or JSON from this directory, and watch it, instead of an API server.
    #[arg(long, value_name = "DIR", conflicts_with = "kubeconfig", help_heading = "Source")]
    pub(crate) manifests: Option<PathBuf>,

    /// Use this kubeconfig; the default is $KUBECONFIG or ~/.kube/config if there is one, else the pod's service
    /// account.
    #[arg(long, value_name = "FILE", help_heading = "Source")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Class that is ours by its name in the annotation `kubernetes.io/ingress.class`, and, with manifests that hold no
    /// IngressClass, in `ingressClassName`. Otherwise an IngressClass is ours by its controller,
    /// see --controller-class.
    #[arg(long, value_name = "NAME", default_value = "xdp", help_heading = "Source")]
    pub(crate) ingress_class: String,

    /// An IngressClass with this `spec.controller` is ours. With `k8s.io/ingress-nginx`, settings have the defaults of
    /// ingress-nginx.
    #[arg(long, value_name = "NAME", default_value = "xdp-ingress.io/controller", help_heading = "Source")]
    pub(crate) controller_class: String,

    /// Serve Ingresses whose `ingressClassName` is that of `--ingress-class` while there is no IngressClass at all.
    #[arg(long, help_heading = "Source")]
    pub(crate) ingress_class_by_name: bool,

    /// Serve Ingresses that name no class, too.
    #[arg(long, help_heading = "Source")]
    pub(crate) watch_ingress_without_class: bool,

    /// Read only objects of this namespace. Default: all.
    #[arg(long, value_name = "NAMESPACE", conflicts_with = "manifests", help_heading = "Source")]
    pub(crate) watch_namespace: Option<String>,

    /// Save the configuration that is served in this file, and serve it if the API server has not told all of it 3 s
    /// after the next start. Best on a tmpfs of the node, in a directory that exists. Default: such a start waits.
    #[arg(long, value_name = "FILE", conflicts_with = "manifests", help_heading = "Source")]
    pub(crate) snapshot_file: Option<PathBuf>,

    /// Keep private keys of certificates and hashes of passwords there, too: whoever can read the file has them.
    /// Default: until the API server is back, their hosts get the default certificate and their rules answer 503.
    #[arg(long, requires = "snapshot_file", help_heading = "Source")]
    pub(crate) snapshot_private_keys: bool,

    /// ConfigMap of settings for all hosts; what the parameters of an IngressClass name goes before it.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name, help_heading = "Routing")]
    pub(crate) configmap: Option<ObjectName>,

    /// Service that answers what no rule matches, by its first port. Default: 404.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name, help_heading = "Routing")]
    pub(crate) default_backend_service: Option<ObjectName>,

    /// TLS Secret for names without a certificate of their own. Default: a self-signed certificate.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name, help_heading = "Routing")]
    pub(crate) default_ssl_certificate: Option<ObjectName>,

    /// ConfigMap of TCP services: each row opens a port of the node, `port: "namespace/service:port"`, with `:PROXY`
    /// behind it where clients begin with a header of the PROXY protocol, and another `:PROXY` (or `:PROXY-V2`) where
    /// pods want one.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name, help_heading = "Routing")]
    pub(crate) tcp_services_configmap: Option<ObjectName>,

    /// ConfigMap of UDP services: each row opens a port of the node, `port: "namespace/service:port"`. Ports below 1024
    /// need CAP_NET_BIND_SERVICE.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name, help_heading = "Routing")]
    pub(crate) udp_services_configmap: Option<ObjectName>,

    /// Accepted for ingress-nginx' sake: hosts with the annotation `ssl-passthrough` are always passed through, and
    /// others pay nothing for it.
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set, help_heading = "Routing")]
    pub(crate) enable_ssl_passthrough: bool,

    /// Secret whose keys seal tickets of TLS sessions, so that every node and every process resumes them (docs/tls.md).
    /// Default: keys of this process alone.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name, help_heading = "Routing")]
    pub(crate) tls_ticket_secret: Option<ObjectName>,

    /// Allow Services of type ExternalName, which lead wherever their owner says, but for addresses of the node, of the
    /// cluster and of its cloud. Hosts in URLs of annotations (`auth-url`, `mirror-target`, `jwt-jwks-url`) are not
    /// meant.
    #[arg(long, conflicts_with = "disable_svc_external_name", help_heading = "Routing")]
    pub(crate) allow_svc_external_name: bool,

    /// Services that Ingresses of any namespace may name in `auth-url`, `mirror-target` and `jwt-jwks-url`: one as
    /// `namespace/name`, or `namespace` for all of its Services; repeatable, or separated by commas. Default: those of
    /// their own namespace alone.
    #[arg(long, value_name = "NAMESPACE[/NAME]", value_delimiter = ',', value_parser = ServicePattern::parse,
          help_heading = "Routing")]
    pub(crate) allow_cross_namespace_services: Vec<ServicePattern>,

    /// Loopback, link-local and metadata networks that EndpointSlices of the API server may lead to; repeatable, or
    /// separated by commas. Default: none. Manifests may lead to any.
    #[arg(long, value_name = "CIDR", value_delimiter = ',', help_heading = "Routing")]
    pub(crate) allow_endpoints_in: Vec<IpNet>,

    /// Accepted for ingress-nginx' sake: Services of type ExternalName are refused unless they are allowed.
    #[arg(long, help_heading = "Routing")]
    pub(crate) disable_svc_external_name: bool,

    /// Refuse Ingresses that claim all hosts.
    #[arg(long, help_heading = "Routing")]
    pub(crate) disable_catch_all: bool,

    /// Secrets and ConfigMaps that one Ingress may name; it is not served if it names more. Each is followed by a watch
    /// of its own, on every node.
    #[arg(long, value_name = "COUNT", default_value_t = 256, help_heading = "Routing")]
    pub(crate) max_references: usize,

    /// What an Ingress may ask for a host whose oldest Ingress is of another namespace: `paths`, further paths alone;
    /// `owner`, nothing; `granted`, paths where that is granted; `open`, whatever nobody asked for before, as with
    /// ingress-nginx (docs/sharing-hosts.md).
    #[arg(long, value_name = "MODE", default_value = "paths", help_heading = "Routing")]
    pub(crate) host_sharing: HostSharing,

    /// Prefix of annotations that are understood besides `xdp-ingress.io/`.
    #[arg(long, value_name = "PREFIX", default_value = "nginx.ingress.kubernetes.io", help_heading = "Routing")]
    pub(crate) annotations_prefix: String,

    /// The node this process runs on, for topology hints. Default: they are ignored.
    #[arg(long, value_name = "NAME", env = "NODE_NAME", help_heading = "Routing")]
    pub(crate) node_name: Option<String>,

    /// Write addresses to the status of the Ingresses served. Events are written, and a leader is elected, in either
    /// case. Of no effect with manifests.
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set, help_heading = "Status")]
    pub(crate) update_status: bool,

    /// Clear the statuses when the last replica leaves.
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set, help_heading = "Status")]
    pub(crate) update_status_on_shutdown: bool,

    /// Service whose addresses statuses show. Default: those of the nodes that run this controller.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = object_name, conflicts_with = "publish_status_address",
          help_heading = "Status")]
    pub(crate) publish_service: Option<ObjectName>,

    /// Addresses that statuses show: IPs or names; repeatable, or separated by commas.
    #[arg(long, value_name = "ADDR", value_delimiter = ',', help_heading = "Status")]
    pub(crate) publish_status_address: Vec<Address>,

    /// Show the internal IPs of nodes even if they have external ones, and the external ones only of nodes without
    /// internal ones.
    #[arg(long, help_heading = "Status")]
    pub(crate) report_node_internal_ip_address: bool,

    /// How long a status that something else changed stays so before it is written again.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = positive_seconds, help_heading = "Status")]
    pub(crate) status_update_interval: Duration,

    /// Lease by which the replicas agree who writes statuses and events.
    #[arg(long, value_name = "NAME", default_value = "xdp-ingress-leader", help_heading = "Status")]
    pub(crate) election_id: String,

    /// How long the Lease of a leader that is gone keeps others from taking it, at least 3s.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = election_ttl, help_heading = "Status")]
    pub(crate) election_ttl: Duration,

    /// Write statuses and events without asking who leads; for a single replica.
    #[arg(long, help_heading = "Status")]
    pub(crate) disable_leader_election: bool,

    /// The pod this process is; its name is what the Lease and events show.
    #[arg(long, value_name = "NAME", env = "POD_NAME", hide = true)]
    pub(crate) pod_name: Option<String>,

    /// The namespace of that pod, and of the Lease.
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", default_value = "xdp-ingress", hide = true)]
    pub(crate) pod_namespace: String,

    /// Network interface whose packets XDP sees, whenever it is there; repeatable. Default: those with a default route.
    /// Of a bond or VLAN it is attached to the interfaces below.
    #[arg(long, value_name = "NAME", help_heading = "Kernel")]
    pub(crate) interface: Vec<String>,

    /// How connections reach the proxy.
    #[arg(long, value_enum, default_value_t = Steer::Auto, help_heading = "Kernel")]
    pub(crate) steer: Steer,

    /// With --steer rewrite: port 80 becomes 80 and so much, likewise 443 and those of TCP services. Firewalls of the
    /// node have to let these ports in; nothing else may use them.
    #[arg(long, value_name = "N", default_value = "10000", help_heading = "Kernel")]
    pub(crate) rewrite_offset: NonZeroU16,

    /// How the XDP program is attached to each interface.
    #[arg(long, value_enum, default_value_t = XdpMode::Auto, help_heading = "Kernel")]
    pub(crate) xdp_mode: XdpMode,

    /// Where programs and maps are pinned; its parent must be on a BPF file system.
    #[arg(long, value_name = "DIR", default_value = BPFFS, help_heading = "Kernel")]
    pub(crate) bpffs: PathBuf,

    /// Hosts with counters of their own (64 bytes each, and 32 per CPU); further hosts are counted as one.
    #[arg(long, value_name = "N", default_value_t = ingress_common::map::HOSTS_DEFAULT, help_heading = "Kernel",
          value_parser = clap::value_parser!(u32).range(2..=1_048_576))]
    pub(crate) host_capacity: u32,

    /// Log what the kernel programs decide for each connection (slow; for debugging).
    #[arg(long, help_heading = "Kernel")]
    pub(crate) bpf_log: bool,

    /// Port for HTTP.
    #[arg(long, value_name = "PORT", default_value_t = 80, help_heading = "Proxy")]
    pub(crate) http_port: u16,

    /// Port for HTTPS.
    #[arg(long, value_name = "PORT", default_value_t = 443, help_heading = "Proxy")]
    pub(crate) https_port: u16,

    /// Worker threads, at most 64. Default: one per CPU this process may use.
    #[arg(long, value_name = "N", help_heading = "Proxy", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) workers: Option<u16>,

    /// How long open connections may take to end, after SIGTERM and --shutdown-grace-period.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds, help_heading = "Proxy")]
    pub(crate) drain_timeout: Duration,

    /// How long to go on serving after SIGTERM, unready, before the drain begins: for load balancers that learn of it
    /// late. It comes before `--drain-timeout`; together they must stay below the pod's terminationGracePeriodSeconds.
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds, help_heading = "Proxy")]
    pub(crate) shutdown_grace_period: Duration,

    /// Address for health, metrics and counters. Not for the public. During an update it goes over to the new process.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9110", help_heading = "Operation")]
    pub(crate) admin_addr: SocketAddr,

    /// Port of the admin address, on 127.0.0.1, in place of --admin-addr.
    #[arg(long, value_name = "PORT", conflicts_with = "admin_addr", help_heading = "Operation")]
    pub(crate) healthz_port: Option<u16>,

    /// Unix socket on which this process alone answers `xdp-ingress probe`. Default: none.
    #[arg(long, value_name = "PATH", help_heading = "Operation")]
    pub(crate) probe_socket: Option<PathBuf>,

    /// Whether there is `/metrics`.
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set, help_heading = "Operation")]
    pub(crate) enable_metrics: bool,

    /// Whether the metrics have series for each host; they grow with the number of hosts.
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true", num_args = 0..=1,
          require_equals = true, action = ArgAction::Set, help_heading = "Operation")]
    pub(crate) metrics_per_host: bool,

    /// What to log: a level of our own parts, at most `debug`, or directives such as `info,ingress_userspace::proxy=debug`.
    /// Libraries that speak with clients, pods and name servers log nothing, others only errors, unless a directive
    /// names them (`info,h2=debug`).
    #[arg(long, value_name = "FILTER", env = "XDP_INGRESS_LOG", default_value = "info", help_heading = "Operation")]
    pub(crate) log: String,

    /// Format of the log.
    #[arg(long, value_enum, default_value_t = LogFormat::Text, help_heading = "Operation")]
    pub(crate) log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Steer {
    /// XDP chooses the worker, sk_lookup delivers; nothing is bound to the ports.
    Auto,
    /// As `auto`, on nodes where a DNAT rule has the ports (a pod's `hostPort`): packets get another port before
    /// netfilter sees them, and answers their own again. Needs programs on the interfaces.
    Rewrite,
    /// Ordinary listeners on the ports; XDP, if on, only counts.
    Bind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum XdpMode {
    /// In the driver where it can, else in the generic hook, else as with `tcx`, as where somebody else's program is.
    Auto,
    /// In the driver, or not at all.
    Native,
    /// In the generic hook of the network stack.
    Generic,
    /// No XDP: a program at tcx ingress (before Linux 6.6 clsact) does the same, later.
    Tcx,
    /// No program on any interface; with `--steer auto` sk_lookup still delivers.
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
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

/// A whole number of seconds or minutes, such as `30s`, `1m` or `45`. A Lease counts in seconds.
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
        assert_eq!((args.http_port, args.https_port, args.ingress_class.as_str()), (80, 443, "xdp"));
        assert_eq!((args.steer, args.xdp_mode, args.host_capacity), (Steer::Auto, XdpMode::Auto, 16_384));
        assert_eq!(args.rewrite_offset.get(), 10_000);
    }

    #[test]
    fn ports_grow_by_something() {
        let args = parse(&["--steer", "rewrite", "--rewrite-offset", "20000"]).expect("valid");
        assert_eq!((args.steer, args.rewrite_offset.get()), (Steer::Rewrite, 20_000));
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
            assert_eq!((args.enable_metrics, args.metrics_per_host, args.healthz_port), expected, "{typed:?}");
        }
        assert!(parse(&["--healthz-port", "1", "--admin-addr", "127.0.0.1:2"]).is_err(), "which of the two?");
    }

    #[test]
    fn status_flags_are_those_of_ingress_nginx() {
        let args = parse(&[]).expect("defaults");
        assert!(args.update_status && args.update_status_on_shutdown && !args.disable_leader_election);
        assert_eq!((args.election_id.as_str(), args.election_ttl.as_secs()), ("xdp-ingress-leader", 30));
        assert!(!parse(&["--update-status=false"]).expect("valid").update_status);
        assert!(parse(&["--update-status"]).expect("valid").update_status);
        let both = ["--publish-status-address", "192.0.2.1,edge.test", "--publish-status-address=2001:db8::1"];
        assert_eq!(parse(&both).expect("valid").publish_status_address.len(), 3);
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
