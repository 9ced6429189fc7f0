//! The options of `xdp-ingress run` as typed, with one file for each heading of the help. Their meaning and validation
//! are in `settings`. The headings "Source" and "Routing" are in `ingress_cli::options`, because other commands have
//! them, too.

use clap::Args;
use ingress_cli::options::{RoutingArgs, SourceArgs};

mod api;
mod kernel;
mod operation;
mod proxy;
mod status;

pub(crate) use api::ApiArgs;
pub(crate) use kernel::{KernelArgs, Steer, SynCookiesArg, XdpModeArg};
pub(crate) use operation::{LogFormatArg, OperationArgs};
pub(crate) use proxy::{Http3Arg, ProxyArgs, WorkerSeccomp};
pub(crate) use status::StatusArgs;

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
    #[command(flatten)]
    pub(crate) api: ApiArgs,
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
    fn syn_cookies_are_off_by_default_and_need_xdp() {
        use std::num::NonZeroU32;

        use ingress_datapath::SynThreshold;

        use crate::config::settings::{RunSettings, SettingsError};

        let resolve = |typed: &[&str]| RunSettings::resolve(parse(typed).expect("valid"));
        let options = |typed: &[&str]| resolve(typed).expect("valid").kernel.expect("on").syn_cookies;
        assert_eq!(options(&[]), None);
        let on = options(&["--syn-cookies", "on"]).expect("on");
        assert_eq!((on.threshold, on.is_dry_run), (SynThreshold::Learned, false));
        let tried = options(&["--syn-cookies=dry-run", "--syn-cookies-threshold=1000"]).expect("on");
        let thousand = SynThreshold::PerSecond(NonZeroU32::new(1000).expect("positive"));
        assert_eq!((tried.threshold, tried.is_dry_run), (thousand, true));
        assert!(parse(&["--syn-cookies", "on", "--syn-cookies-threshold", "999"]).is_err());
        for without in [&["--steer", "bind"][..], &["--xdp-mode", "tcx"], &["--xdp-mode", "off"]] {
            let refused = resolve(&[&["--syn-cookies", "on"], without].concat()).expect_err("refused");
            assert!(matches!(refused, SettingsError::SynCookiesWithoutXdp), "{without:?}: {refused}");
        }
        let refused = resolve(&["--syn-cookies-threshold", "1000"]).expect_err("refused");
        assert!(matches!(refused, SettingsError::ThresholdWithoutSynCookies), "{refused}");
    }

    #[test]
    fn gateway_addresses_are_a_pool_and_need_the_kernel_part() {
        use crate::config::settings::{RunSettings, SettingsError};

        let resolve = |typed: &[&str]| RunSettings::resolve(parse(typed).expect("valid"));
        let pool = |typed: &[&str]| resolve(typed).expect("valid").kernel.expect("on").gateway_addresses;
        assert!(pool(&[]).is_empty());
        let both = ["--gateway-addresses", "192.0.2.0/30,192.0.2.8", "--gateway-addresses=2001:db8::/126"];
        assert_eq!(pool(&both).addresses().count(), 6);
        assert!(parse(&["--gateway-addresses", "192.0.2.0/33"]).is_err());
        let large = resolve(&["--gateway-addresses", "10.0.0.0/8"]);
        assert!(matches!(large, Err(SettingsError::GatewayAddresses(_))));
        let off = resolve(&["--gateway-addresses=192.0.2.8", "--steer=bind", "--xdp-mode=off"]);
        assert!(matches!(off, Err(SettingsError::GatewayAddressesWithoutKernel)));
    }

    #[test]
    fn forwarding_is_off_unless_asked_for_with_addresses() {
        const POOL: &str = "--gateway-addresses=192.0.2.8";
        const FORWARDING: &str = "--gateway-address-forwarding";
        assert!(!parse(&[POOL]).expect("valid").kernel.gateway_address_forwarding);
        assert!(parse(&[POOL, FORWARDING]).expect("valid").kernel.gateway_address_forwarding);
        assert!(parse(&[FORWARDING]).is_err());
        assert!(parse(&[POOL, "--gateway-address-key-file=/keys"]).is_ok());
        assert!(parse(&["--gateway-address-key-file=/keys"]).is_err());
    }

    #[test]
    fn services_of_gateways_are_claimed_only_while_they_are_written() {
        use crate::config::settings::RunSettings;

        for (typed, expected) in [(&[][..], false), (&["--gateway-services"], true)] {
            let options = RunSettings::resolve(parse(typed).expect("valid")).expect("valid").options;
            let written = options.status.is_some_and(|status| status.gateway_services);
            assert_eq!((options.translate.gateway_services, written), (expected, expected), "{typed:?}");
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
        let dashboard = |typed: &[&str]| parse(typed).expect("valid").operation.dashboard;
        assert!(dashboard(&[]) && dashboard(&["--dashboard"]) && !dashboard(&["--dashboard=false"]));
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
        assert!(parse(&["--manifests", "a", "--context", "b"]).is_err());
    }

    #[test]
    fn the_api_is_opened_only_with_a_certificate_and_a_means_to_authenticate() {
        use crate::config::settings::{RunSettings, SettingsError};

        let tls = ["--api-addr=192.0.2.1:9443", "--api-tls-cert-file=a.crt", "--api-tls-key-file=a.key"];
        let resolve = |more: &[&str]| RunSettings::resolve(parse(&[&tls[..], more].concat()).expect("valid"));
        let opened = |more: &[&str]| resolve(more).expect("valid").remote_api.expect("opened");
        assert!(matches!(resolve(&[]), Err(SettingsError::ApiWithoutAuthentication)));
        assert!(opened(&["--api-token-review"]).reviews.is_some());
        let certificates = opened(&["--api-client-ca-file=ca.crt", "--manifests=a"]);
        assert_eq!((certificates.reviews, certificates.files.client_authorities), (None, Some("ca.crt".into())));
        assert!(RunSettings::resolve(parse(&[]).expect("valid")).expect("valid").remote_api.is_none());
        for wrong in [
            &tls[..1],
            &tls[1..],
            &["--api-token-review"],
            &["--api-client-ca-file=ca.crt"],
            &[&tls[..], &["--api-token-review", "--manifests=a"]].concat(),
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
