//! Resolves the command line: fills in defaults that depend on the machine, and refuses contradictory options.

use std::{collections::BTreeSet, net::SocketAddr, num::NonZeroU32, path::PathBuf, sync::Arc, time::Duration};

use ingress_cli::options::{source_config, translate_options};
use ingress_common::map::PORTS_MAX;
use ingress_control::{
    AddressPool, InvalidPool,
    saved::PrivateKeys,
    status::{self, Leadership, NodeAddresses, Publish, Updates},
};
use ingress_datapath::{ClientShare, SynCookieOptions, SynThreshold};
use ingress_proxy::Seccomp;

use crate::daemon::{
    admin::{CertificateFiles, Metrics, RemoteSettings},
    port_rewrite::{PortRewrite, Unfit, local_ports},
};

use super::cli::{
    ApiArgs, Http3Arg, KernelArgs, LogFormatArg, OperationArgs, ProxyArgs, RunArgs, StatusArgs, Steer, SynCookiesArg,
    WorkerSeccomp, XdpModeArg,
};

/// The input of [`crate::daemon::run`].
#[derive(Debug)]
pub(crate) struct RunSettings {
    pub(crate) source: ingress_control::SourceConfig,
    pub(crate) options: ingress_control::Options,
    /// `None` runs without any kernel program.
    pub(crate) kernel: Option<KernelSettings>,
    pub(crate) http_port: u16,
    pub(crate) https_port: u16,
    /// `None` without HTTP/3.
    pub(crate) http3: Option<Http3Settings>,
    pub(crate) workers: u32,
    pub(crate) seccomp: Seccomp,
    /// Whether `--worker-seccomp` was given, so that a missing filter is an error.
    pub(crate) needs_seccomp: bool,
    pub(crate) drain_timeout: Duration,
    /// Time to keep serving before the drain, see `--shutdown-grace-period`.
    pub(crate) shutdown_grace: Duration,
    pub(crate) admin_addr: SocketAddr,
    pub(crate) probe_socket: Option<PathBuf>,
    /// Access to the API over TLS; `None` without `--api-addr`.
    pub(crate) remote_api: Option<RemoteSettings>,
    pub(crate) metrics: Metrics,
    /// Whether the admin address serves the dashboard.
    pub(crate) dashboard: bool,
    /// Whether the time to the head of responses is counted by upstream.
    pub(crate) upstream_latency: bool,
    pub(crate) host_capacity: u32,
    pub(crate) log: String,
    pub(crate) log_format: LogFormatArg,
}

/// Settings of HTTP/3, at the port of HTTPS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Http3Settings {
    /// Name of the node, which sets its keys apart from those of other nodes.
    pub(crate) node: String,
    /// UDP port, that of HTTPS.
    pub(crate) port: u16,
    /// Port that clients are told to use.
    pub(crate) advertised_port: u16,
    /// Whether the user expects HTTP/3 (`on`), so that its absence is worth a warning. Otherwise it is used if it works.
    pub(crate) is_expected: bool,
}

#[derive(Debug)]
pub(crate) struct KernelSettings {
    pub(crate) bpffs: PathBuf,
    /// Empty for the interfaces with a default route.
    pub(crate) interfaces: Vec<String>,
    pub(crate) xdp_mode: ingress_datapath::XdpMode,
    /// Whether sk_lookup delivers; otherwise listeners are bound to the ports.
    pub(crate) lookup: bool,
    /// Rewritten ports of packets, with `--steer rewrite`.
    pub(crate) port_rewrite: Option<PortRewrite>,
    /// Share of the clients whose connections are taken until one is set.
    pub(crate) initial_share: ClientShare,
    /// SYN cookies of XDP; `None` for off.
    pub(crate) syn_cookies: Option<SynCookieOptions>,
    /// Addresses that every node holds and one of them announces.
    pub(crate) gateway_addresses: AddressPool,
    /// The keys by which nodes know each other's datagrams about these addresses.
    pub(crate) gateway_address_key_file: Option<PathBuf>,
    /// Whether packets of connections go to the node that has them, after an address has moved.
    pub(crate) gateway_address_forwarding: bool,
    pub(crate) log: bool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error("`--http-port` and `--https-port` are both {0}; give them different ports")]
    SamePort(u16),
    #[error(
        "`--http3-advertise-port` names a port of HTTP/3, which is off; add `--http3 on` or `auto`, or drop the option"
    )]
    AdvertisedPortWithoutHttp3,
    #[error("`--interface` names an interface for XDP, but `--xdp-mode off` attaches none; drop one of the two")]
    InterfaceWithoutXdp,
    #[error(
        "`--steer rewrite` needs programs on the interfaces, but `--xdp-mode off` attaches none; drop one of the two"
    )]
    RewriteWithoutXdp,
    #[error(
        "`--initial-share` below 100% needs `--steer auto`: with `rewrite` every packet gets another port, and with `bind` \
         the ports are ours alone"
    )]
    ShareWithoutLookup,
    #[error(
        "`--syn-cookies` needs `--steer auto` or `rewrite` and XDP, but `--steer bind` steers no port, and `--xdp-mode tcx` or \
         `off` attaches no XDP; drop one of the two"
    )]
    SynCookiesWithoutXdp,
    #[error(
        "`--syn-cookies-threshold` has no effect without `--syn-cookies on` or `dry-run`; add it, or drop the option"
    )]
    ThresholdWithoutSynCookies,
    #[error(
        "`--gateway-addresses` needs the kernel part, but `--steer bind` with `--xdp-mode off` has none; drop one of the two"
    )]
    GatewayAddressesWithoutKernel,
    #[error("`--gateway-addresses`: {0}")]
    GatewayAddresses(#[from] InvalidPool),
    #[error("`--api-addr` has no means to authenticate clients; give `--api-token-review` or `--api-client-ca-file`")]
    ApiWithoutAuthentication,
    #[error(transparent)]
    Unfit(#[from] Unfit),
}

impl RunSettings {
    /// # Errors
    /// Fails if two options contradict each other.
    pub(crate) fn resolve(args: RunArgs) -> Result<Self, SettingsError> {
        let RunArgs { source, routing, status, kernel, proxy, mut operation, api } = args;
        let ProxyArgs {
            http_port,
            https_port,
            http3,
            http3_advertise_port,
            workers,
            worker_seccomp,
            drain_timeout,
            shutdown_grace_period,
        } = proxy;
        let (has_http3, is_expected) = (http3 != Http3Arg::Off, http3 == Http3Arg::On);
        if !has_http3 && http3_advertise_port.is_some() {
            return Err(SettingsError::AdvertisedPortWithoutHttp3);
        }
        if http_port == https_port {
            return Err(SettingsError::SamePort(http_port));
        }
        if let Some(port) = operation.healthz_port {
            operation.admin_addr.set_port(port);
        }
        let metrics = metrics(&operation);
        let OperationArgs { admin_addr, probe_socket, dashboard, log, log_format, metrics_upstream_latency, .. } =
            operation;
        let own_ports = [http_port, https_port, admin_addr.port()];
        let api_port = api.api_addr.map(|address| address.port());
        let host_capacity = kernel.host_capacity;
        let kernel = kernel_settings(kernel, own_ports)?;
        let mut reserved_ports: BTreeSet<_> = own_ports.into_iter().chain(api_port).collect();
        if let Some(port_rewrite) = kernel.as_ref().and_then(|kernel| kernel.port_rewrite.as_ref()) {
            for port in [http_port, https_port] {
                reserved_ports.insert(port_rewrite.of(port, |_| false)?);
            }
        }
        let gateway_services = status.gateway_services && source.manifests.is_none();
        let status = source
            .manifests
            .is_none()
            .then(|| status_options(status, vec![http_port, https_port], source.controller_class.clone()));
        let gateway_addresses = kernel.as_ref().map(|kernel| kernel.gateway_addresses.clone()).unwrap_or_default();
        let translate = ingress_control::translate::Options {
            gateway_addresses,
            gateway_services,
            http_port,
            https_port,
            http3_port: has_http3.then_some(https_port),
            max_ports: max_ports(kernel.as_ref(), has_http3),
            ..translate_options(&source, routing, reserved_ports)
        };
        let http3 = has_http3.then(|| Http3Settings {
            node: translate.node.clone().unwrap_or_else(host_name),
            port: https_port,
            advertised_port: http3_advertise_port.unwrap_or(https_port),
            is_expected,
        });
        let private_keys = if source.snapshot_private_keys { PrivateKeys::Keep } else { PrivateKeys::Leave };
        let saved = source.snapshot_file.clone().map(|path| ingress_control::saved::File { path, private_keys });
        let source = source_config(source);
        Ok(Self {
            remote_api: remote_api(api, &source)?,
            source,
            options: ingress_control::Options {
                translate,
                saved,
                contact: ingress_control::Contact::default(),
                status,
            },
            kernel,
            http_port,
            https_port,
            http3,
            workers: workers.map_or_else(available_workers, u32::from),
            seccomp: match worker_seccomp {
                None | Some(WorkerSeccomp::Kill) => Seccomp::Kill,
                Some(WorkerSeccomp::Log) => Seccomp::Log,
                Some(WorkerSeccomp::Off) => Seccomp::Off,
            },
            needs_seccomp: worker_seccomp.is_some(),
            drain_timeout,
            shutdown_grace: shutdown_grace_period,
            admin_addr,
            probe_socket,
            metrics,
            dashboard,
            upstream_latency: metrics_upstream_latency,
            host_capacity,
            log,
            log_format,
        })
    }
}

/// Returns the number of ports beside those for HTTP, HTTPS and HTTP/3. The kernel part bounds it, and a rewritten port
/// counts twice.
fn max_ports(kernel: Option<&KernelSettings>, has_http3: bool) -> usize {
    let room = match kernel {
        None => return usize::MAX,
        Some(KernelSettings { port_rewrite: Some(_), .. }) => PORTS_MAX / 2,
        Some(_) => PORTS_MAX,
    };
    room.saturating_sub(2 + u32::from(has_http3)) as usize
}

fn remote_api(args: ApiArgs, source: &ingress_control::SourceConfig) -> Result<Option<RemoteSettings>, SettingsError> {
    let ApiArgs { api_addr, api_tls_cert_file, api_tls_key_file, api_client_ca_file, api_token_review } = args;
    let (Some(address), Some(certificate), Some(key)) = (api_addr, api_tls_cert_file, api_tls_key_file) else {
        // The command line demands all three or none.
        return Ok(None);
    };
    let reviews = match source {
        ingress_control::SourceConfig::Kubernetes(config) if api_token_review => Some(config.clone()),
        _ => None,
    };
    if reviews.is_none() && api_client_ca_file.is_none() {
        return Err(SettingsError::ApiWithoutAuthentication);
    }
    let files = CertificateFiles { certificate, key, client_authorities: api_client_ca_file };
    Ok(Some(RemoteSettings { address, files, reviews }))
}

fn metrics(operation: &OperationArgs) -> Metrics {
    match (operation.enable_metrics, operation.metrics_per_host) {
        (false, _) => Metrics::Off,
        (true, false) => Metrics::WithoutHosts,
        (true, true) => Metrics::All,
    }
}

/// Returns `None` if no kernel program is needed.
fn kernel_settings(args: KernelArgs, own_ports: [u16; 3]) -> Result<Option<KernelSettings>, SettingsError> {
    let KernelArgs {
        interface,
        gateway_addresses,
        gateway_address_key_file,
        gateway_address_forwarding,
        steer,
        initial_share,
        rewrite_offset,
        xdp_mode,
        syn_cookies,
        syn_cookies_threshold,
        bpffs,
        host_capacity: _,
        bpf_log,
    } = args;
    let gateway_addresses = AddressPool::new(gateway_addresses)?;
    if xdp_mode == XdpModeArg::Off && !interface.is_empty() {
        return Err(SettingsError::InterfaceWithoutXdp);
    }
    if steer == Steer::Rewrite && xdp_mode == XdpModeArg::Off {
        return Err(SettingsError::RewriteWithoutXdp);
    }
    if steer != Steer::Auto && initial_share != ClientShare::ALL {
        return Err(SettingsError::ShareWithoutLookup);
    }
    let syn_cookies = syn_cookie_options(syn_cookies, syn_cookies_threshold)?;
    let has_xdp = steer != Steer::Bind && !matches!(xdp_mode, XdpModeArg::Tcx | XdpModeArg::Off);
    if syn_cookies.is_some() && !has_xdp {
        return Err(SettingsError::SynCookiesWithoutXdp);
    }
    let is_needed = steer != Steer::Bind || xdp_mode != XdpModeArg::Off;
    if !is_needed && !gateway_addresses.is_empty() {
        return Err(SettingsError::GatewayAddressesWithoutKernel);
    }
    Ok(is_needed.then(|| KernelSettings {
        bpffs,
        interfaces: interface,
        xdp_mode: match xdp_mode {
            XdpModeArg::Auto => ingress_datapath::XdpMode::Auto,
            XdpModeArg::Native => ingress_datapath::XdpMode::Native,
            XdpModeArg::Generic => ingress_datapath::XdpMode::Generic,
            XdpModeArg::Tcx => ingress_datapath::XdpMode::Tcx,
            XdpModeArg::Off => ingress_datapath::XdpMode::Off,
        },
        lookup: steer != Steer::Bind,
        port_rewrite: (steer == Steer::Rewrite).then(|| PortRewrite::new(rewrite_offset, local_ports(), own_ports)),
        initial_share,
        syn_cookies,
        gateway_addresses,
        gateway_address_key_file,
        gateway_address_forwarding,
        log: bpf_log,
    }))
}

fn syn_cookie_options(
    wanted: SynCookiesArg,
    threshold: Option<u32>,
) -> Result<Option<SynCookieOptions>, SettingsError> {
    let is_dry_run = match wanted {
        SynCookiesArg::Off if threshold.is_some() => return Err(SettingsError::ThresholdWithoutSynCookies),
        SynCookiesArg::Off => return Ok(None),
        SynCookiesArg::DryRun => true,
        SynCookiesArg::On => false,
    };
    let threshold = threshold.and_then(NonZeroU32::new).map_or(SynThreshold::Learned, SynThreshold::PerSecond);
    Ok(Some(SynCookieOptions { threshold, is_dry_run }))
}

fn status_options(args: StatusArgs, ports: Vec<u16>, controller: String) -> status::Options {
    let StatusArgs {
        update_status,
        update_status_on_shutdown,
        publish_service,
        publish_status_address,
        report_node_internal_ip_address,
        gateway_services,
        status_update_interval,
        election_id,
        election_ttl,
        disable_leader_election,
        pod_name,
        pod_namespace,
        pod_ip,
    } = args;
    status::Options {
        updates: match (update_status, update_status_on_shutdown) {
            (false, _) => Updates::Never,
            (true, false) => Updates::Kept,
            (true, true) => Updates::Cleared,
        },
        publish: match publish_service {
            Some(service) => Publish::Service(service),
            None if !publish_status_address.is_empty() => Publish::Addresses(publish_status_address),
            None if report_node_internal_ip_address => Publish::Nodes(NodeAddresses::Internal),
            None => Publish::Nodes(NodeAddresses::External),
        },
        ports,
        interval: status_update_interval,
        leadership: if disable_leader_election {
            Leadership::Always
        } else {
            Leadership::Elected { lease: election_id, ttl: election_ttl }
        },
        gateway_services,
        namespace: pod_namespace,
        identity: pod_name.unwrap_or_else(anonymous),
        // Without one, statuses do not tell about other nodes; serving does not depend on it.
        address: pod_ip.and_then(|address| address.parse().ok()),
        controller,
        handle: Arc::default(),
    }
}

/// Returns a name for a process outside of a pod. No other process has the same name at the same time.
fn anonymous() -> String {
    let host = host_name();
    let started = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos());
    format!("{host}-{}-{started:x}", std::process::id())
}

/// Returns the name of this machine.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}

/// Returns one worker per CPU available to this process, limited by the number of listener slots.
fn available_workers() -> u32 {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(cpus).unwrap_or(u32::MAX).min(ingress_common::steer::SLOTS_PER_PORT)
}
