//! Ingresses that are written as objects of Gateway API do the same there, or their verdict says how they differ. The
//! comparison here is by the text of rules, and so independent of that of the writer.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use ingress_control::{
    Classes, Origin,
    change::{Change, ObjectName},
    cluster::Cluster,
    migration::{Expressed, GatewayMigration, to_gateway},
    source::manifests::parse,
    translate::{GatewayApi, Options, translate},
};
use ingress_model::{Action, Filter, HostRoutes, RouteTable, Rule};
use proptest::prelude::*;

use crate::{case::directory, changes::any_objects};

const CLASS: &str = "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: xdp-ingress}\n\
                     spec: {controllerName: xdp-ingress.io/gateway-controller}\n";

/// Numbers of hosts by verdict.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    fully: usize,
    differs: usize,
    left: usize,
}

fn apply(cluster: &mut Cluster, name: &str, text: &str) {
    for object in parse(&Path::new(name).into(), text).objects {
        cluster.apply(Change::Apply { object, origin: Origin::Api });
    }
}

/// Writes the Ingresses of a cluster, and checks that each host does the same or has a verdict.
fn check(cluster: &Cluster, options: &Options, counts: &mut Counts) -> Result<(), String> {
    let migration = to_gateway(cluster, options, &ObjectName::new("default", "ingress"), None);
    let before = translate(cluster, options).table;
    let mut both = cluster.clone();
    apply(&mut both, "class.yaml", CLASS);
    for object in &migration.objects {
        apply(&mut both, "object.json", &object.to_string());
    }
    let after = translate(&both, &Options { gateway_api: GatewayApi::Serve, ..options.clone() }).table;
    let of_hosts = verdicts(&migration);
    for (pattern, routes) in before.hosts.iter() {
        let name = pattern.to_string();
        match of_hosts.get(&name).map(Vec::as_slice) {
            None | Some([]) => return Err(format!("host {name} has no verdict")),
            Some([Expressed::Fully(_)]) => {
                counts.fully += 1;
                alike(&name, routes, &after)?;
            }
            Some([Expressed::Not { because, .. }]) => {
                counts.left += 1;
                let written =
                    migration.objects.iter().any(|object| object.to_string().contains(&format!("\"{name}\"")));
                if written || because.is_empty() {
                    return Err(format!("host {name} is written in part: {because}"));
                }
            }
            Some(_) => counts.differs += 1,
        }
    }
    Ok(())
}

fn verdicts(migration: &GatewayMigration) -> BTreeMap<String, Vec<Expressed>> {
    let mut of_hosts: BTreeMap<String, Vec<Expressed>> = BTreeMap::new();
    for verdict in &migration.verdicts {
        if let Some(host) = verdict.subject.strip_prefix("host ") {
            of_hosts.entry(host.to_owned()).or_default().push(verdict.expressed.clone());
        }
    }
    of_hosts
}

/// Checks that a listener for HTTPS serves the rules of a host, and one for HTTP serves or redirects them.
fn alike(host: &str, before: &HostRoutes, after: &RouteTable) -> Result<(), String> {
    let has_root = before.rules.iter().any(|rule| rule.path.to_string() == "/");
    let fallback = before.fallback.as_deref().filter(|_| !has_root);
    let expect = deeds(before.rules.iter().chain(fallback));
    for scheme in ["https", "http"] {
        let name = match host.strip_prefix("*.") {
            Some(base) => format!("/{scheme}-wildcard.{base}"),
            None => format!("/{scheme}.{host}"),
        };
        let listener = after.listeners.iter().find(|(listener, _)| listener.to_string().ends_with(&name));
        let Some((_, listener)) = listener else { return Err(format!("no listener {name}")) };
        let found = deeds(listener.hosts.values().flat_map(|routes| &routes.rules));
        let redirects = |targets: &BTreeSet<String>| targets.iter().all(|to| to.contains("https://$host$request_uri"));
        let is_redirect = scheme == "http" && found.len() == expect.len() && found.values().all(redirects);
        if found != expect && !is_redirect {
            return Err(format!("{name} serves {found:#?} instead of {expect:#?}"));
        }
    }
    Ok(())
}

/// Returns where requests go, by path and filters. Names of owners, and filters with another form in routes, do not count.
fn deeds<'r>(rules: impl Iterator<Item = &'r Rule>) -> BTreeMap<String, BTreeSet<String>> {
    let mut deeds: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for rule in rules {
        let path = rule.path.to_string();
        let path = if path.len() > 1 { path.trim_end_matches('/') } else { &path };
        let filters = rule.filters.iter().filter(|filter| match filter {
            Filter::RedirectHttps { .. } | Filter::Limit(_) | Filter::ErrorPages(_) => false,
            Filter::StrictTransportSecurity(_) => false,
            Filter::ResponseHeaders(edits) => !edits.iter().any(|edit| edit.name() == "strict-transport-security"),
            _ => true,
        });
        let filters: String = filters.map(|filter| format!(" {filter}")).collect();
        // The verdict on `metrics-per-path` is that of its Ingress.
        let forwarding = rule.forwarding.to_string().replace(" metered", "");
        let targets = deeds.entry(format!("{path}{filters}{forwarding}")).or_default();
        match &rule.action {
            Action::Redirect(redirect) => {
                let to = redirect.location.to_string();
                targets.insert(if to.starts_with('/') { format!("$scheme://$host{to}") } else { to });
            }
            action => targets.extend(action.upstreams().map(ToString::to_string)),
        }
    }
    deeds
}

fn corpora() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../deploy/examples");
    for folder in [directory(), examples] {
        let mut folders = vec![folder];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a readable directory") {
                let path = entry.expect("a readable entry").path();
                match path.extension().and_then(|extension| extension.to_str()) {
                    _ if path.is_dir() => folders.push(path),
                    Some("yaml") => files.push(path),
                    _ => {}
                }
            }
        }
    }
    files.sort();
    files
}

#[test]
fn hosts_of_the_corpora_do_the_same_or_say_how_they_differ() {
    let mut counts = Counts::default();
    let nginx = Classes { controller: "k8s.io/ingress-nginx".to_owned(), ..Options::for_manifests().classes };
    let other = Options { classes: nginx, ..Options::for_manifests() };
    for path in corpora() {
        let text = fs::read_to_string(&path).expect("a readable case");
        let mut cluster = Cluster::default();
        apply(&mut cluster, "in.yaml", &text);
        for options in [&Options::for_manifests(), &other] {
            if let Err(problem) = check(&cluster, options, &mut counts) {
                panic!("{}: {problem}", path.display());
            }
        }
    }
    let Counts { fully, differs, left } = counts;
    assert!(fully >= 5 && differs >= 50 && left >= 20, "fully {fully}, differs {differs}, left {left}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn random_hosts_do_the_same_or_say_how_they_differ((objects, _) in any_objects()) {
        let mut cluster = Cluster::default();
        for object in objects {
            cluster.apply(Change::Apply { object, origin: Origin::Api });
        }
        let checked = check(&cluster, &Options::for_manifests(), &mut Counts::default());
        prop_assert!(checked.is_ok(), "{checked:?}");
    }
}

/// The whole of a small example: the objects, and the verdict on each annotation and host.
#[test]
fn an_example_is_written_as_expected() {
    let mut cluster = Cluster::default();
    apply(&mut cluster, "in.yaml", include_str!("gateway-migration.yaml"));
    let options = Options {
        classes: Classes { name: "xdp".into(), ..Options::for_manifests().classes },
        ..Options::for_manifests()
    };
    let migration = to_gateway(&cluster, &options, &ObjectName::new("infra", "ingress"), None);
    let mut text = String::new();
    for verdict in &migration.verdicts {
        text += &format!("# {verdict}\n");
    }
    for object in &migration.objects {
        text += &format!("---\n{}", serde_saphyr::to_string(object).expect("YAML"));
    }
    let path = directory().join("gateway-migration.expected.yaml");
    expect_test::expect_file![path].assert_eq(&text);
}
