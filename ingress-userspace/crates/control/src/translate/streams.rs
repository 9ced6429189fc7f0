//! Reads the ConfigMaps of TCP and UDP services: a row for each port of the node. A problem of one row is reported on
//! that row, and does not affect others.
//!
//! ```text
//! "5432": "default/postgres:5432"              a port by its number …
//! "5433": "default/postgres:sql:PROXY:PROXY"   … or by its name; PROXY protocol from clients, and to pods
//! "5434": "default/postgres:5432::PROXY-V2"    to pods alone, in version 2
//! ```

use std::collections::BTreeMap;

use super::{
    Context,
    destination::Finding,
    lookup::Lookup,
    port::PortReference,
    service,
    stream_rows::{StreamRow, parse},
    text::shorten,
};
use crate::{
    NODES_PORT,
    change::Kind,
    outcome::{Origin, Reason},
};
use ingress_model::{StreamPort, StreamService, Transport};

/// Maximum number of services of one ConfigMap; each port is a socket in each worker.
const MAX_SERVICES: usize = 1_000;

/// Returns the services of `transport` in the operator's ConfigMap.
pub(super) fn services(transport: Transport, context: &mut Context<'_, '_>) -> BTreeMap<StreamPort, StreamService> {
    let mut services = BTreeMap::new();
    let options = context.options;
    let (flag, name) = match transport {
        Transport::Tcp => ("--tcp-services-configmap", &options.tcp_services),
        Transport::Udp => ("--udp-services-configmap", &options.udp_services),
    };
    let Some(name) = name else { return services };
    let Some(stored) = context.config_map(name) else {
        let message = format!("`{flag}` names it, but it does not exist; create it, there are no {transport} services");
        context.report(&name.refer(Kind::ConfigMap, &Origin::Api), Reason::ConfigMapNotFound, message);
        return services;
    };
    let object = stored.refer(Kind::ConfigMap, name);
    let rows = stored.object.data.iter().flatten();
    let mut findings = Vec::new();
    for (key, value) in rows {
        if let Some(row) = read(key, value, transport, context.lookup, &mut findings) {
            if services.len() == MAX_SERVICES {
                let message = format!("more than {MAX_SERVICES} services; this port is closed, remove rows");
                findings.push(Finding { reason: Reason::TooLarge, message });
            } else {
                services.extend(service(&row, transport, context.lookup, &mut findings));
            }
        }
        for Finding { reason, message } in findings.drain(..) {
            context.report(&object, reason, format!("`{}`: {message}", shorten(key)));
        }
    }
    services
}

/// Resolves the destination of a row.
fn service(
    row: &StreamRow<'_>,
    transport: Transport,
    lookup: &Lookup<'_>,
    findings: &mut Vec<Finding>,
) -> Option<(StreamPort, StreamService)> {
    let StreamRow { number, service: name, port, accepts_proxy_protocol, proxy_header } = row;
    let port = port.parse::<u16>().map_or(PortReference::Name(port), |number| PortReference::Number(number.into()));
    let upstream = service::stream(name, port, transport, findings, lookup)?;
    let (accepts_proxy_protocol, proxy_header) = (*accepts_proxy_protocol, *proxy_header);
    let service = StreamService { upstream, accepts_proxy_protocol, proxy_header };
    Some((StreamPort { transport, number: *number }, service))
}

/// Reads a row that may have its port, or adds its problem to `findings`.
fn read<'r>(
    key: &str,
    value: &'r str,
    transport: Transport,
    lookup: &Lookup<'_>,
    findings: &mut Vec<Finding>,
) -> Option<StreamRow<'r>> {
    let row = parse(key, value).and_then(|row| match transport {
        Transport::Tcp if lookup.options.reserved_ports.contains(&row.number) => {
            Err("HTTP, HTTPS or the metrics of this process use it, or `--steer rewrite` assigns it to them; choose \
             another port"
                .to_owned())
        }
        Transport::Udp if lookup.options.http3_port == Some(row.number) => {
            Err("HTTP/3 uses it; choose another port, or turn HTTP/3 off (`--http3 off`)".to_owned())
        }
        Transport::Udp if row.number == NODES_PORT => {
            Err("the replicas of this controller use it among themselves; choose another port".to_owned())
        }
        Transport::Udp if row.accepts_proxy_protocol || row.proxy_header.is_some() => {
            Err("the PROXY protocol works with TCP only; write `NAMESPACE/SERVICE:PORT`".to_owned())
        }
        Transport::Tcp | Transport::Udp => Ok(row),
    });
    match row {
        Ok(row) => Some(row),
        Err(message) => {
            findings.push(Finding { reason: Reason::InvalidStreamService, message });
            None
        }
    }
}
