//! Finds the endpoints of a Service of type ExternalName among the known addresses of its name. It sends no DNS
//! queries: the names in use are listed, and their addresses arrive with a later change of the cluster.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use super::{
    ExternalNames, address,
    destination::Finding,
    lookup::Lookup,
    text::{shorten, shorten_error},
};
use crate::{change::ObjectName, outcome::Reason};
use ingress_model::Endpoint;

/// Result of resolving an external name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lead {
    /// Sorted; empty while the name is not resolved, or if it has no allowed address.
    Endpoints(Vec<Endpoint>),
    /// The name is refused, regardless of its addresses.
    Refused,
}

/// Returns the endpoints that `external_name` of `service` leads to, at `port`. Problems are added to `findings`.
pub(super) fn resolve(
    service: &ObjectName,
    external_name: &str,
    port: u16,
    findings: &mut Vec<Finding>,
    lookup: &Lookup<'_>,
) -> Lead {
    let mut find = |reason, message| findings.push(Finding { reason, message });
    let shown = shorten(external_name);
    if lookup.options.external_names == ExternalNames::Refuse {
        let message = format!(
            "service `{service}` is of type ExternalName, which is refused without `--allow-svc-external-name`; use one with endpoints, or ask the operator"
        );
        find(Reason::ExternalNameRefused, message);
        return Lead::Refused;
    }
    if let Ok(address) = external_name.parse::<IpAddr>() {
        let (allowed, refused) = judge(&[address], lookup);
        if let Some((_, why)) = refused {
            let message = format!("service `{service}` leads to `{shown}`, {why}, which is refused; name another");
            find(Reason::ExternalNameRefused, message);
            return Lead::Refused;
        }
        return Lead::Endpoints(endpoints(allowed, port));
    }
    let name: Arc<str> = match address::check_name(external_name) {
        Ok(host) => host.as_str().into(),
        Err(why) => {
            let why = shorten_error(&why);
            let message =
                format!("service `{service}` has an external name that is refused: {why}; give a fully qualified name");
            find(Reason::ExternalNameRefused, message);
            return Lead::Refused;
        }
    };
    let Some(addresses) = lookup.addresses(&name) else { return Lead::Endpoints(Vec::new()) };
    if addresses.is_empty() {
        let message =
            format!("external name `{shown}` of service `{service}` has no address; correct it or its DNS records");
        find(Reason::NoReadyEndpoints, message);
    }
    let (allowed, refused) = judge(addresses, lookup);
    if let Some((address, why)) = refused {
        let message = format!(
            "external name `{shown}` of service `{service}` has address `{address}`, {why}, which is not used; correct its DNS records"
        );
        find(Reason::ExternalNameRefused, message);
    }
    Lead::Endpoints(endpoints(allowed, port))
}

/// Returns the endpoints of `host`, a name or an address from an annotation; `None` if it is refused. Problems are
/// added to `findings`.
pub(super) fn reach(host: &str, port: u16, findings: &mut Vec<Finding>, lookup: &Lookup<'_>) -> Option<Vec<Endpoint>> {
    let mut find = |reason, message| findings.push(Finding { reason, message });
    let shown = shorten(host);
    let refused = |why: &str| {
        format!("`{shown}` is refused: {why}; name a Service as `NAME.NAMESPACE.svc.cluster.local`, or another host")
    };
    if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
        let (allowed, bad) = judge(&[address], lookup);
        if let Some((_, why)) = bad {
            find(Reason::ExternalNameRefused, refused(&format!("it is {why}")));
            return None;
        }
        return Some(endpoints(allowed, port));
    }
    let name: Arc<str> = match address::check_name(host) {
        Ok(host) => host.as_str().into(),
        Err(why) => {
            find(Reason::ExternalNameRefused, refused(&shorten_error(&why)));
            return None;
        }
    };
    let Some(addresses) = lookup.addresses(&name) else { return Some(Vec::new()) };
    if addresses.is_empty() {
        find(Reason::NoReadyEndpoints, format!("`{shown}` has no address; correct it or its DNS records"));
    }
    let (allowed, bad) = judge(addresses, lookup);
    if let Some((address, why)) = bad {
        let message = format!("`{shown}` has address `{address}`, {why}, which is not used; correct its DNS records");
        find(Reason::ExternalNameRefused, message);
    }
    Some(endpoints(allowed, port))
}

/// Returns the allowed addresses, and the first refused one with its kind.
fn judge(addresses: &[IpAddr], lookup: &Lookup<'_>) -> (BTreeSet<IpAddr>, Option<(IpAddr, &'static str)>) {
    let (mut allowed, mut refused) = (BTreeSet::new(), None);
    for address in addresses.iter().copied().collect::<BTreeSet<_>>() {
        match address::check_outside(address, lookup) {
            Ok(()) => drop(allowed.insert(address)),
            Err(why) => refused = refused.or(Some((address, why))),
        }
    }
    (allowed, refused)
}

fn endpoints(addresses: BTreeSet<IpAddr>, port: u16) -> Vec<Endpoint> {
    addresses.into_iter().map(|ip| Endpoint { address: SocketAddr::new(ip, port) }).collect()
}
