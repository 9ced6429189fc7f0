//! The rows of a ConfigMap of stream services, as they are written. Services are not looked up here.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ConfigMap;

use super::{lookup::Lookup, text::shorten};
use crate::change::ObjectName;
use ingress_model::{ProxyVersion, StreamPort, Transport};

/// The content of one row.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StreamRow<'r> {
    pub(crate) number: u16,
    pub(crate) service: ObjectName,
    pub(crate) port: &'r str,
    pub(crate) accepts_proxy_protocol: bool,
    pub(crate) proxy_header: Option<ProxyVersion>,
}

/// Returns the ports that rows of the operator's ConfigMaps take, regardless of problems with their destinations.
pub(crate) fn ports(lookup: &Lookup<'_>) -> BTreeSet<StreamPort> {
    let options = lookup.options;
    let mut ports = BTreeSet::new();
    for (transport, name) in [(Transport::Tcp, &options.tcp_services), (Transport::Udp, &options.udp_services)] {
        let stored = name.as_ref().and_then(|name| lookup.config_map(name));
        let rows = stored.into_iter().flat_map(|stored| stored.object.data.iter().flatten());
        let numbers = rows.filter_map(|(key, value)| Some(parse(key, value).ok()?.number));
        ports.extend(numbers.map(|number| StreamPort { transport, number }));
    }
    ports
}

pub(crate) fn parse<'r>(key: &str, value: &'r str) -> Result<StreamRow<'r>, String> {
    // A different spelling could be the same port twice.
    let number = key.parse::<u16>().ok().filter(|number| *number != 0 && number.to_string() == key);
    let number = number.ok_or("the key is not a port; write a number from 1 to 65535")?;
    let unreadable = || {
        let value = shorten(value);
        format!(
            "`{value}` is not a service; write `NAMESPACE/SERVICE:PORT`, then `:PROXY` if clients send a header of the PROXY protocol, `::PROXY` or `::PROXY-V2` if pods get one, or both as `:PROXY:PROXY-V2`"
        )
    };
    let mut parts = value.trim().split(':').map(str::trim);
    let (service, port) = (parts.next(), parts.next());
    let (accepts, sends) = (parts.next(), parts.next());
    let (namespace, name) = service.and_then(|service| service.split_once('/')).ok_or_else(unreadable)?;
    let port = port.filter(|port| !port.is_empty()).ok_or_else(unreadable)?;
    if namespace.is_empty() || name.is_empty() || name.contains('/') || parts.next().is_some() {
        return Err(unreadable());
    }
    let accepts_proxy_protocol = match accepts {
        None | Some("") => false,
        Some(word) if word.eq_ignore_ascii_case("PROXY") => true,
        Some(_) => return Err(unreadable()),
    };
    // As in ingress-nginx, the second may be set without the first.
    let proxy_header = match sends {
        None | Some("") => None,
        Some(word) if word.eq_ignore_ascii_case("PROXY") => Some(ProxyVersion::V1),
        Some(word) if word.eq_ignore_ascii_case("PROXY-V2") => Some(ProxyVersion::V2),
        Some(_) => return Err(unreadable()),
    };
    let service = ObjectName::new(namespace, name);
    Ok(StreamRow { number, service, port, accepts_proxy_protocol, proxy_header })
}

/// Returns the Services that rows of `config_map` name, if it is one of stream services.
pub(crate) fn references(config_map: &ConfigMap) -> impl Iterator<Item = ObjectName> {
    config_map.data.iter().flatten().filter_map(|(key, value)| Some(parse(key, value).ok()?.service))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_rows_name_a_port_a_service_and_proxy_protocol() {
        let (v1, v2) = (Some(ProxyVersion::V1), Some(ProxyVersion::V2));
        for (key, value, expect) in [
            ("5432", "n/s:5432", Some((5432, "5432", false, None))),
            ("65535", " n/s:sql ", Some((65535, "sql", false, None))),
            ("1", "n/s:1:PROXY", Some((1, "1", true, None))),
            ("1", "n/s:1:proxy:PROXY", Some((1, "1", true, v1))),
            ("1", "n/s:1::PROXY", Some((1, "1", false, v1))),
            ("1", "n/s:1::PROXY-V2", Some((1, "1", false, v2))),
            ("1", "n/s:1:PROXY:proxy-v2", Some((1, "1", true, v2))),
            ("1", "n/s:1:", Some((1, "1", false, None))),
            ("0", "n/s:1", None),
            ("01", "n/s:1", None),
            ("+1", "n/s:1", None),
            ("65536", "n/s:1", None),
            ("dns", "n/s:1", None),
            ("1", "", None),
            ("1", "s:1", None),
            ("1", "/s:1", None),
            ("1", "n/:1", None),
            ("1", "n/s", None),
            ("1", "n/s:", None),
            ("1", "n/s/t:1", None),
            ("1", "n/s:1:TLS", None),
            // Clients may use either version.
            ("1", "n/s:1:PROXY-V2", None),
            ("1", "n/s:1::PROXY-V3", None),
            ("1", "n/s:1:PROXY:PROXY:PROXY", None),
        ] {
            let row = parse(key, value);
            let found = row.as_ref().ok().map(|row| {
                assert_eq!(row.service, ObjectName::new("n", "s"), "{key} {value}");
                (row.number, row.port, row.accepts_proxy_protocol, row.proxy_header)
            });
            assert_eq!(found, expect, "{key} {value}: {row:?}");
        }
    }

    #[test]
    fn references_are_the_services_of_valid_rows() {
        let rows = [("1", "n/a:1"), ("2", " n/b : sql :PROXY"), ("3", "n/c"), ("dns", "n/d:53"), ("4", "n/e/f:1")];
        let data = rows.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let config_map = ConfigMap { data: Some(data), ..ConfigMap::default() };
        let names: Vec<_> = references(&config_map).collect();
        assert_eq!(names, ["a", "b"].map(|name| ObjectName::new("n", name)));
    }
}
