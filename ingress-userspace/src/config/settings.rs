//! The command line made definite: defaults that depend on the machine are filled in, contradictions are refused.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use ingress_userspace::{control, datapath};

use super::cli::{LogFormat, RunArgs, Steer, XdpMode};

/// What [`crate::app::run`] needs to know.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) source: control::SourceConfig,
    pub(crate) classes: control::Classes,
    /// `None`: no kernel part at all.
    pub(crate) kernel: Option<Kernel>,
    pub(crate) http_port: u16,
    pub(crate) https_port: u16,
    pub(crate) workers: u32,
    pub(crate) drain_timeout: Duration,
    pub(crate) admin_addr: SocketAddr,
    pub(crate) host_capacity: u32,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
}

#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) bpffs: PathBuf,
    /// Empty: those with a default route.
    pub(crate) interfaces: Vec<String>,
    pub(crate) xdp_mode: datapath::XdpMode,
    /// Whether sk_lookup delivers; otherwise listeners are bound to the ports.
    pub(crate) lookup: bool,
    pub(crate) log: bool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error("`--http-port` and `--https-port` are both {0}; give them different ports")]
    SamePort(u16),
    #[error("`--interface` names an interface for XDP, but `--xdp-mode off` attaches none; drop one of the two")]
    InterfaceWithoutXdp,
}

impl Settings {
    /// # Errors
    /// If two options contradict each other.
    pub(crate) fn resolve(args: RunArgs) -> Result<Self, SettingsError> {
        let RunArgs {
            manifests,
            kubeconfig,
            ingress_class,
            watch_ingress_without_class,
            interface,
            steer,
            xdp_mode,
            bpffs,
            host_capacity,
            bpf_log,
            http_port,
            https_port,
            workers,
            drain_timeout,
            admin_addr,
            log,
            log_format,
        } = args;
        if http_port == https_port {
            return Err(SettingsError::SamePort(http_port));
        }
        if xdp_mode == XdpMode::Off && !interface.is_empty() {
            return Err(SettingsError::InterfaceWithoutXdp);
        }
        let classes = if manifests.is_some() { control::Classes::for_manifests() } else { control::Classes::default() };
        let kernel = (steer == Steer::Auto || xdp_mode != XdpMode::Off).then_some(Kernel {
            bpffs,
            interfaces: interface,
            xdp_mode: match xdp_mode {
                XdpMode::Auto => datapath::XdpMode::Auto,
                XdpMode::Native => datapath::XdpMode::Native,
                XdpMode::Generic => datapath::XdpMode::Generic,
                XdpMode::Off => datapath::XdpMode::Off,
            },
            lookup: steer == Steer::Auto,
            log: bpf_log,
        });
        Ok(Self {
            source: match manifests {
                Some(directory) => control::SourceConfig::Manifests(directory),
                None => control::SourceConfig::Kubernetes(control::KubernetesConfig { kubeconfig, namespace: None }),
            },
            classes: control::Classes {
                name: ingress_class,
                watch_without_class: watch_ingress_without_class,
                ..classes
            },
            kernel,
            http_port,
            https_port,
            workers: workers.map_or_else(available_workers, u32::from),
            drain_timeout,
            admin_addr,
            host_capacity,
            log,
            log_format,
        })
    }
}

/// One worker per CPU that this process may run on, as many as have listener slots.
fn available_workers() -> u32 {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(cpus).unwrap_or(u32::MAX).min(ingress_common::steer::SLOTS_PER_PORT)
}
