//! The options of the command line as the options of the translation.

use std::collections::BTreeSet;

use ingress_control::translate::{self, CatchAll, ExternalNames, GatewayApi};

use super::{RoutingArgs, SourceArgs};

/// Returns what commands read that only look at a configuration: the same objects as `run` with these options, and
/// nothing is written to a cluster.
#[must_use]
pub fn read_only(
    source: SourceArgs,
    routing: RoutingArgs,
) -> (ingress_control::SourceConfig, ingress_control::Options) {
    let translate = translate_options(&source, routing, BTreeSet::from([80, 443]));
    let contact = ingress_control::Contact::default();
    (source_config(source), ingress_control::Options { translate, saved: None, contact, status: None })
}

/// Returns the source that the options name.
#[must_use]
pub fn source_config(source: SourceArgs) -> ingress_control::SourceConfig {
    let SourceArgs { manifests, kubeconfig, context, watch_namespace, watch_namespace_selector, .. } = source;
    match manifests {
        Some(directory) => ingress_control::SourceConfig::Manifests(directory),
        None => ingress_control::SourceConfig::Kubernetes(ingress_control::KubernetesConfig {
            kubeconfig,
            context,
            namespace: watch_namespace,
            namespace_selector: watch_namespace_selector,
        }),
    }
}

/// Returns the options of the translation. No TCP or UDP service gets one of the `reserved_ports`.
#[must_use]
pub fn translate_options(source: &SourceArgs, args: RoutingArgs, reserved_ports: BTreeSet<u16>) -> translate::Options {
    let RoutingArgs {
        configmap,
        default_backend_service,
        default_ssl_certificate,
        tcp_services_configmap,
        udp_services_configmap,
        enable_ssl_passthrough: _,
        tls_ticket_secret,
        allow_svc_external_name,
        allow_cross_namespace_services,
        allow_endpoints_in,
        allow_external_addresses_in,
        disable_svc_external_name: _,
        disable_catch_all,
        max_references,
        max_hosts_per_namespace,
        max_paths_per_namespace,
        max_metered_rules,
        max_metered_rules_per_namespace,
        host_sharing,
        gateway_ports,
        annotations_prefix,
        node_name,
    } = args;
    let defaults = match source.manifests {
        Some(_) => translate::Options::for_manifests(),
        None => translate::Options::default(),
    };
    translate::Options {
        classes: ingress_control::Classes {
            controller: source.controller_class.clone(),
            name: source.ingress_class.clone(),
            watch_without_class: source.watch_ingress_without_class,
            by_name: source.ingress_class_by_name || defaults.classes.by_name,
            ..defaults.classes
        },
        node: node_name,
        config_map: configmap,
        default_backend: default_backend_service,
        default_certificate: default_ssl_certificate,
        tcp_services: tcp_services_configmap,
        udp_services: udp_services_configmap,
        reserved_ports,
        http_port: defaults.http_port,
        https_port: defaults.https_port,
        http3_port: defaults.http3_port,
        gateway_ports: gateway_ports.into_iter().collect(),
        max_ports: defaults.max_ports,
        ticket_secret: tls_ticket_secret,
        external_names: if allow_svc_external_name { ExternalNames::Allow } else { ExternalNames::Refuse },
        cross_namespace: allow_cross_namespace_services,
        endpoint_networks: allow_endpoints_in,
        external_networks: match allow_external_addresses_in.is_empty() {
            true => defaults.external_networks,
            false => allow_external_addresses_in,
        },
        catch_all: if disable_catch_all { CatchAll::Refuse } else { CatchAll::Allow },
        max_references,
        max_hosts_per_namespace,
        max_paths_per_namespace,
        max_metered_rules,
        max_metered_rules_per_namespace,
        host_sharing,
        gateway_api: if source.gateway_api { GatewayApi::Serve } else { GatewayApi::Ignore },
        gateway_addresses: defaults.gateway_addresses,
        gateway_services: defaults.gateway_services,
        selects_namespaces: source.watch_namespace_selector.is_some(),
        annotations_prefix,
    }
}
