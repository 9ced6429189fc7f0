//! Reads a case: objects in the format of a file, and the options of the translation in its first lines.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use ingress_control::{
    AddressPool, Origin,
    change::{Change, ObjectName},
    cluster::Cluster,
    source::manifests::parse,
    translate::{CatchAll, ExternalNames, Options, ServicePattern, Translation, translate},
};

/// The folder of the cases.
pub(crate) fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/translate")
}

/// The first lines of a case: options for reading its objects, and further known facts.
struct Setup {
    options: Options,
    resolved: Vec<Change>,
    own_addresses: BTreeSet<IpAddr>,
    origin: Origin,
}

/// Reads the comments at the head of a case.
///
/// - `# as-cluster`: as from an API server, after admission
/// - `# from-api-server`: not from files, which are the operator's own
/// - `# node: n1`: the node that it is translated for
/// - `# option: configmap=ns/name`, and other flags by their names, without `--`
/// - `# own: 10.1.0.1,10.2.0.1`: the addresses of this node's interfaces
/// - `# resolved: a.example=192.0.2.1,2001:db8::1`: the addresses of a name; none after `=` if it has none
fn setup(text: &str, path: &Arc<Path>) -> Setup {
    let head = || text.lines().map_while(|line| line.strip_prefix("# "));
    let is_cluster = head().any(|line| line == "as-cluster");
    let mut options = if is_cluster { Options::default() } else { Options::for_manifests() };
    let is_told = head().any(|line| line == "from-api-server");
    let origin = if is_told { Origin::Api } else { Origin::File(Arc::clone(path)) };
    let (mut resolved, mut own_addresses) = (Vec::new(), BTreeSet::new());
    for line in head() {
        if let Some(node) = line.strip_prefix("node: ") {
            options.node = Some(node.into());
        } else if let Some(option) = line.strip_prefix("option: ") {
            set(&mut options, option);
        } else if let Some(addresses) = line.strip_prefix("own: ") {
            own_addresses.extend(addresses.split(',').map(|text| text.parse::<IpAddr>().expect("an address")));
        } else if let Some((name, addresses)) = line.strip_prefix("resolved: ").and_then(|line| line.split_once('=')) {
            let addresses = addresses.split(',').filter(|text| !text.is_empty());
            let addresses = addresses.map(|text| text.parse().expect("an address")).collect();
            resolved.push(Change::Resolve { name: name.into(), addresses });
        }
    }
    Setup { options, resolved, own_addresses, origin }
}

fn set(options: &mut Options, option: &str) {
    let (flag, value) = option.split_once('=').unwrap_or((option, ""));
    let object = || {
        let (namespace, name) = value.split_once('/').expect("namespace/name");
        Some(ObjectName::new(namespace, name))
    };
    match flag {
        "gateway-addresses" => {
            let networks = value.split(',').map(|text| AddressPool::parse_network(text).expect("a network"));
            options.gateway_addresses = AddressPool::new(networks).expect("a pool");
        }
        "gateway-ports" => {
            options.gateway_ports.extend(value.split(',').map(|text| text.parse::<u16>().expect("a port")))
        }
        "annotations-prefix" => options.annotations_prefix = value.into(),
        "configmap" => options.config_map = object(),
        "controller-class" => options.classes.controller = value.into(),
        "default-backend-service" => options.default_backend = object(),
        "default-ssl-certificate" => options.default_certificate = object(),
        "max-references" => options.max_references = value.parse().expect("a number"),
        "tls-ticket-secret" => options.ticket_secret = object(),
        "disable-catch-all" => options.catch_all = CatchAll::Refuse,
        "allow-svc-external-name" => options.external_names = ExternalNames::Allow,
        "allow-external-addresses-in" => options.external_networks.push(value.parse().expect("a network")),
        "allow-endpoints-in" => options.endpoint_networks.push(value.parse().expect("a network")),
        "allow-cross-namespace-services" => {
            options.cross_namespace.push(ServicePattern::parse(value).expect("a namespace, or a service of one"));
        }
        "host-sharing" => options.host_sharing = value.parse().expect("a mode"),
        "tcp-services-configmap" => options.tcp_services = object(),
        "http3" => options.http3_port = Some(options.https_port),
        "udp-services-configmap" => options.udp_services = object(),
        "ingress-class" => options.classes.name = value.into(),
        "ingress-class-by-name" => options.classes.by_name = true,
        "watch-ingress-without-class" => options.classes.watch_without_class = true,
        other => panic!("no option `{other}`"),
    }
}

/// A translated case, as text.
pub(crate) struct Translated {
    /// The table, including external names and ineffective Ingresses.
    pub(crate) table: String,
    pub(crate) outcomes: String,
    pub(crate) statuses: String,
}

/// Translates a case in the file `name`.
pub(crate) fn translated(name: &str, text: &str) -> Translated {
    let path: Arc<Path> = Path::new(name).into();
    let parsed = parse(&path, text);
    let mut cluster = Cluster::default();
    let Setup { options, resolved, own_addresses, origin } = setup(text, &path);
    cluster.own_addresses = Arc::new(own_addresses);
    for object in parsed.objects {
        cluster.apply(Change::Apply { object, origin: origin.clone() });
    }
    for change in resolved {
        cluster.apply(change);
    }
    let Translation { table, outcomes, served, in_effect, external_names, statuses } = translate(&cluster, &options);
    let names = external_names.keys().map(|name| format!("external name {name}\n"));
    let vain =
        served.keys().filter(|name| !in_effect.contains_key(*name)).map(|name| format!("without effect {name}\n"));
    let names = names.chain(vain);
    let lines = parsed.remarks.iter().chain(outcomes.keys().map(AsRef::as_ref)).map(|outcome| format!("{outcome}\n"));
    let statuses = statuses.iter().map(|(id, status)| format!("{} {}\n{status}", id.kind.as_str(), id.name));
    Translated {
        table: table.to_string() + &names.collect::<String>(),
        outcomes: lines.collect(),
        statuses: statuses.collect(),
    }
}
