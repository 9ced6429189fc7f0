//! Hosts of Ingresses that stay with their Ingresses, because routes would protect them less or serve other requests, and
//! the verdict that says so.

use std::{collections::BTreeSet, path::Path};

use ingress_control::{
    Classes, Origin,
    change::{Change, ObjectName},
    cluster::Cluster,
    migration::{Expressed, GatewayMigration, to_gateway},
    source::manifests::parse,
    translate::{HostSharing, Options},
};

/// Objects that each case needs.
const COMMON: &str = "
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: nginx}
spec: {controller: k8s.io/ingress-nginx}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: other}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: blog, name: web}
spec: {ports: [{port: 80}]}
";

/// An Ingress of a case.
#[derive(Clone, Copy, Default)]
struct Written<'c> {
    /// `namespace/name`.
    name: &'c str,
    /// The creation, as an hour.
    hour: u8,
    /// Annotations of ingress-nginx with their values, as YAML.
    annotations: &'c [(&'c str, &'c str)],
    host: &'c str,
    /// Paths as `Exact /a web`.
    paths: &'c [&'c str],
    /// Further fields of `spec`, as YAML.
    more: &'c str,
}

impl Written<'_> {
    fn yaml(&self) -> String {
        let Self { name, hour, annotations, host, paths, more } = self;
        let (namespace, name) = name.split_once('/').expect("a name");
        let annotations: String = annotations
            .iter()
            .map(|(key, value)| format!("    nginx.ingress.kubernetes.io/{key}: {value}\n"))
            .collect();
        let path = |text: &&str| {
            let words: Vec<_> = text.split(' ').collect();
            let [kind, path, service] = words[..] else { panic!("a path: {text}") };
            format!(
                "      - {{path: '{path}', pathType: {kind}, backend: {{service: {{name: {service}, port: {{number: 80}}}}}}}}\n"
            )
        };
        let paths: String = paths.iter().map(path).collect();
        let rules = match paths.is_empty() {
            true => String::new(),
            false => format!("  rules:\n  - host: '{host}'\n    http:\n      paths:\n{paths}"),
        };
        format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  namespace: {namespace}\n  name: {name}\n  \
             creationTimestamp: 2024-01-01T{hour:02}:00:00Z\n  annotations:\n    note: x\n{annotations}spec:\n  \
             ingressClassName: nginx\n{rules}{more}"
        )
    }
}

fn options() -> Options {
    let classes = Classes { controller: "k8s.io/ingress-nginx".to_owned(), ..Options::for_manifests().classes };
    let config_map = Some(ObjectName::new("ingress-nginx", "settings"));
    Options { classes, config_map, ..Options::for_manifests() }
}

fn cluster(ingresses: &[Written<'_>], settings: &[(&str, &str)], more: &str) -> Cluster {
    let mut text = COMMON.to_owned();
    text += "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: ingress-nginx, name: settings}\ndata:\n  x-none: \"\"\n";
    text.extend(settings.iter().map(|(key, value)| format!("  {key}: {value}\n")));
    text.extend(ingresses.iter().map(Written::yaml));
    text += more;
    let mut cluster = Cluster::default();
    let parsed = parse(&Path::new("in.yaml").into(), &text);
    assert!(parsed.remarks.is_empty(), "{:?}\n{text}", parsed.remarks);
    for object in parsed.objects {
        cluster.apply(Change::Apply { object, origin: Origin::Api });
    }
    cluster
}

fn migrate(cluster: &Cluster, options: &Options) -> GatewayMigration {
    to_gateway(cluster, options, &ObjectName::new("infra", "ingress"), None)
}

/// Returns the reason for which a host stays with the Ingresses; `None` if it is written.
fn stays(migration: &GatewayMigration, host: &str) -> Option<String> {
    let subject = format!("host {host}");
    let reason = migration.verdicts.iter().find_map(|verdict| match &verdict.expressed {
        Expressed::Not { because, .. } if verdict.subject == subject => Some(because.clone()),
        _ => None,
    });
    let name = format!("\"{host}\"");
    let is_written = migration.objects.iter().any(|object| object.to_string().contains(&name));
    assert_eq!(reason.is_none(), is_written, "{host} is written in part: {reason:?}");
    reason
}

const WEB: Written<'_> =
    Written { name: "shop/web", hour: 1, annotations: &[], host: "a.test", paths: &["Prefix / web"], more: "" };
const EXPRESSION: Written<'_> = Written {
    annotations: &[("rewrite-target", "/$2"), ("ssl-redirect", "\"false\"")],
    paths: &["ImplementationSpecific /api(/|$)(.*) web", "ImplementationSpecific /b(/|$)(.*) web"],
    ..WEB
};

/// Name, Ingresses, settings, and the name in the verdict.
type ProtectedCase<'c> = (&'c str, &'c [Written<'c>], &'c [(&'c str, &'c str)], &'c str);

/// A protection without words for routes keeps its host with the Ingresses, and the verdict names what asks for it.
#[test]
fn a_host_stays_if_a_protection_has_no_words() {
    let auth = [("global-auth-url", "https://login.example.com/check")];
    let allow = [("whitelist-source-range", "10.0.0.0/8")];
    let deny = [("denylist-source-range", "10.0.0.0/8")];
    let cases: &[ProtectedCase<'_>] = &[
        ("a setting for all", &[WEB], &allow, "whitelist-source-range"),
        ("a list of denied networks", &[WEB], &deny, "denylist-source-range"),
        ("authentication by a setting", &[WEB], &auth, "global-auth-url"),
        ("a setting and expressions", &[EXPRESSION], &allow, "whitelist-source-range"),
        ("authentication and expressions", &[EXPRESSION], &auth, "global-auth-url"),
        (
            "a plain path beside an expression",
            &[Written {
                annotations: &[("use-regex", "\"true\"")],
                paths: &["ImplementationSpecific /a web", "Prefix /b web"],
                ..WEB
            }],
            &deny,
            "denylist-source-range",
        ),
        (
            "a snippet",
            &[Written { annotations: &[("configuration-snippet", "'deny all;'")], ..WEB }],
            &[],
            "configuration-snippet",
        ),
        (
            "a firewall",
            &[Written { annotations: &[("enable-modsecurity", "\"true\"")], ..WEB }],
            &[],
            "enable-modsecurity",
        ),
        (
            "a list that cannot be read",
            &[Written { annotations: &[("whitelist-source-range", "everyone")], ..WEB }],
            &[],
            "whitelist-source-range",
        ),
        (
            "client certificates",
            &[Written { annotations: &[("auth-tls-secret", "shop/clients")], ..WEB }],
            &[],
            "auth-tls-secret",
        ),
        (
            "passed TLS",
            &[Written {
                annotations: &[("ssl-passthrough", "\"true\"")],
                more: "  tls: [{hosts: [a.test], secretName: a}]\n",
                ..WEB
            }],
            &[],
            "ssl-passthrough",
        ),
        ("TLS to pods", &[Written { annotations: &[("backend-protocol", "HTTPS")], ..WEB }], &[], "backend-protocol"),
    ];
    let mut problems = Vec::new();
    for (name, ingresses, settings, expect) in cases {
        let reason = stays(&migrate(&cluster(ingresses, settings, ""), &options()), "a.test");
        if !reason.as_ref().is_some_and(|reason| reason.contains(expect)) {
            problems.push(format!("{name}: {reason:?}"));
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

/// Protections with words for routes are written, on each path.
#[test]
fn protections_with_words_are_written() {
    let cases: &[(&str, &[(&str, &str)])] = &[
        ("allowed networks", &[("whitelist-source-range", "10.0.0.0/8")]),
        ("a limit", &[("limit-rps", "\"5\"")]),
        ("denied paths", &[("deny-paths", "/metrics")]),
        ("external authorization", &[("auth-url", "https://login.example.com/check")]),
    ];
    for (name, annotations) in cases {
        let migration = migrate(&cluster(&[Written { annotations, ..WEB }], &[], ""), &options());
        assert_eq!(stays(&migration, "a.test"), None, "{name}");
        let routes = migration.objects.iter().filter(|object| object["kind"] == "HTTPRoute");
        let key = format!("xdp-ingress.io/{}", annotations[0].0);
        assert!(routes.clone().count() > 0, "{name}");
        for route in routes {
            assert!(route["metadata"]["annotations"][&key].is_string(), "{name}: {route}");
        }
    }
}

/// Requests would meet another rule, or lose their session.
#[test]
fn a_host_stays_if_routes_would_serve_other_requests() {
    let canary = Written {
        name: "shop/canary",
        hour: 2,
        annotations: &[("canary", "\"true\""), ("canary-weight", "\"10\"")],
        paths: &["Prefix / other"],
        ..WEB
    };
    let long = format!("{0}.{0}.{0}.{1}.test", "a".repeat(63), "b".repeat(55));
    let cases: &[(&str, &[Written<'_>], &str, &str)] = &[
        (
            "sessions and a canary",
            &[Written { annotations: &[("affinity", "cookie")], ..WEB }, canary],
            "a.test",
            "affinity",
        ),
        (
            "an expression goes before a longer path",
            &[
                Written { paths: &["ImplementationSpecific /a(/|$)(.*) web"], ..EXPRESSION },
                Written { name: "shop/b", hour: 2, paths: &["Prefix /a/b other"], ..WEB },
            ],
            "a.test",
            "/a/b",
        ),
        (
            "two paths with the same words",
            &[
                Written { paths: &["ImplementationSpecific /a(/|$)(.*) web"], ..EXPRESSION },
                Written { name: "shop/b", hour: 2, paths: &["Prefix /a other"], ..WEB },
            ],
            "a.test",
            "the same words",
        ),
        (
            "a path with characters that routes do not have",
            &[Written { paths: &["Prefix /a{b} web"], ..WEB }],
            "a.test",
            "/a{b}",
        ),
        (
            "a path of another namespace that is refused here",
            &[WEB, Written { name: "blog/web", hour: 2, paths: &["Prefix /.well-known/acme-challenge/x web"], ..WEB }],
            "a.test",
            "blog/web",
        ),
        ("a name too long for its listener", &[Written { host: &long, ..WEB }], &long, "listener"),
    ];
    let mut problems = Vec::new();
    for (name, ingresses, host, expect) in cases {
        let reason = stays(&migrate(&cluster(ingresses, &[], ""), &options()), host);
        if !reason.as_ref().is_some_and(|reason| reason.contains(expect)) {
            problems.push(format!("{name}: {reason:?}"));
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn only_the_sharing_of_the_process_admits_other_namespaces() {
    let both = [WEB, Written { name: "blog/web", hour: 2, paths: &["Prefix /blog web"], ..WEB }];
    let cluster = cluster(&both, &[], "");
    let paths = migrate(&cluster, &options());
    assert_eq!(stays(&paths, "a.test"), None);
    let owner = migrate(&cluster, &Options { host_sharing: HostSharing::Owner, ..options() });
    let reason = stays(&owner, "a.test").expect("a path would be lost");
    assert!(reason.contains("blog/web"), "{reason}");
}

/// The listeners of a host are in the namespace of its owner, and have that one's certificate.
#[test]
fn listeners_belong_to_the_owner_of_the_host() {
    let guest = Written {
        name: "blog/web",
        hour: 2,
        paths: &["Exact /blog web"],
        more: "  tls: [{hosts: [a.test], secretName: guest}]\n",
        ..WEB
    };
    let owner = Written { more: "  tls: [{hosts: [a.test], secretName: own}]\n", ..WEB };
    for (ingresses, certificate) in [([owner, guest], Some("own")), ([WEB, guest], None)] {
        let migration = migrate(&cluster(&ingresses, &[], ""), &options());
        assert_eq!(stays(&migration, "a.test"), None, "{:?}", migration.verdicts);
        let sets: Vec<_> = migration.objects.iter().filter(|object| object["kind"] == "ListenerSet").collect();
        assert_eq!(sets.len(), 1, "{sets:?}");
        assert_eq!(sets[0]["metadata"]["namespace"], "shop");
        let named = sets[0]["spec"]["listeners"][1]["tls"]["certificateRefs"][0]["name"].as_str();
        assert_eq!(named, certificate);
    }
}

#[test]
fn a_wildcard_leaves_hosts_of_other_classes_alone() {
    let more = "---\napiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: other}\nspec: {controller: \
                example.com/other}\n---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {namespace: shop, name: \
                foreign}\nspec:\n  ingressClassName: other\n  rules:\n  - host: b.a.test\n    http: {paths: [{path: /, \
                pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}\n";
    let migration = migrate(&cluster(&[Written { host: "*.a.test", ..WEB }], &[], more), &options());
    let reason = stays(&migration, "*.a.test").expect("it would take requests of b.a.test");
    assert!(reason.contains("b.a.test"), "{reason}");
}

/// Each object has a name of its own that Kubernetes accepts, and so has each listener of a set.
#[test]
fn names_of_objects_are_unique_and_valid() {
    let long = format!("shop/{}.{}", "n".repeat(239), "m".repeat(13));
    let redirected = &[("force-ssl-redirect", "\"true\"")];
    let tls = "  tls: [{hosts: [a.test, b.test, wildcard.a.test, '*.a.test'], secretName: a}]\n";
    let ingresses = [
        Written { more: tls, annotations: redirected, ..WEB },
        // The names that further routes of `web` would have.
        Written { name: "shop/web-https", hour: 2, host: "b.test", ..WEB },
        Written { name: "shop/web-2", hour: 2, host: "c.test", ..WEB },
        Written { name: "shop/wild", hour: 2, host: "*.a.test", ..WEB },
        Written { name: "shop/tame", hour: 2, host: "wildcard.a.test", ..WEB },
        Written {
            name: &long,
            hour: 2,
            host: "d.test",
            annotations: redirected,
            more: "  tls: [{hosts: [d.test], secretName: d}]\n",
            ..WEB
        },
    ];
    let mut many = WEB;
    let paths: Vec<String> = (0..40).map(|number| format!("Exact /{number} web")).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    many.name = "shop/many";
    many.host = "e.test";
    many.paths = &paths;
    let migration = migrate(&cluster(&[&ingresses[..], &[many]].concat(), &[], ""), &options());
    let mut names = BTreeSet::new();
    for object in &migration.objects {
        let name = object["metadata"]["name"].as_str().expect("a name");
        let id = format!("{} {} {name}", object["kind"], object["metadata"]["namespace"]);
        assert!(is_subdomain(name), "{name}");
        assert!(names.insert(id.clone()), "two objects: {id}");
        let mut sections = BTreeSet::new();
        for listener in object["spec"]["listeners"].as_array().into_iter().flatten() {
            let name = listener["name"].as_str().expect("a name");
            assert!(is_subdomain(name) && sections.insert(name.to_owned()), "{id}: listener {name}");
        }
    }
    let hosts = ["a.test", "b.test", "c.test", "*.a.test", "wildcard.a.test", "d.test", "e.test"];
    for host in hosts {
        assert_eq!(stays(&migration, host), None, "{host}");
    }
    let routes = migration.objects.iter().filter(|object| object["kind"] == "HTTPRoute");
    let rules: usize = routes.map(|route| route["spec"]["rules"].as_array().map_or(0, Vec::len)).sum();
    assert!(rules >= 40 + hosts.len() - 1, "{rules}");
}

/// Returns whether a text is a DNS subdomain (RFC 1123), as names of objects and listeners are.
fn is_subdomain(name: &str) -> bool {
    let is_edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let is_label = |label: &str| {
        is_edge(label.bytes().next())
            && is_edge(label.bytes().next_back())
            && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

/// With a namespace, hosts of others stay, and so do those that others have rules for.
#[test]
fn a_selected_namespace_keeps_the_hosts_of_others() {
    let ingresses = [
        WEB,
        Written { name: "blog/web", hour: 2, paths: &["Prefix /blog web"], ..WEB },
        Written { name: "shop/own", host: "b.test", ..WEB },
        Written { name: "blog/own", host: "c.test", ..WEB },
    ];
    let cluster = cluster(&ingresses, &[], "");
    let migration = to_gateway(&cluster, &options(), &ObjectName::new("infra", "ingress"), Some("shop"));
    assert!(stays(&migration, "a.test").is_some_and(|reason| reason.contains("blog/web")));
    assert_eq!(stays(&migration, "b.test"), None);
    let of_others = |verdict: &&ingress_control::migration::RowVerdict| verdict.subject.contains("c.test");
    assert_eq!(migration.verdicts.iter().find(of_others), None);
    assert!(migration.objects[1..].iter().all(|object| object["metadata"]["namespace"] == "shop"));
}

/// Sessions have no words as weights, so the annotation that frees canaries of them has none either.
#[test]
fn no_verdict_is_full_for_an_effect_that_is_lost() {
    let canary = Written {
        name: "shop/canary",
        hour: 2,
        annotations: &[("canary", "\"true\""), ("canary-weight", "\"10\""), ("affinity-canary-behavior", "legacy")],
        paths: &["Prefix / other"],
        ..WEB
    };
    let migration = migrate(&cluster(&[WEB, canary], &[], ""), &options());
    let full: Vec<_> =
        migration.verdicts.iter().filter(|verdict| matches!(verdict.expressed, Expressed::Fully(_))).collect();
    assert!(!full.iter().any(|verdict| verdict.row.contains("affinity-canary-behavior")), "{full:?}");
}

/// Requests that no path of a host matches get 404 from routes.
#[test]
fn a_default_backend_of_all_hosts_is_a_difference() {
    let with = Options { default_backend: Some(ObjectName::new("shop", "other")), ..options() };
    let ingress = Written { paths: &["Prefix /a web"], ..WEB };
    let migration = migrate(&cluster(&[ingress], &[], ""), &with);
    let told = migration.verdicts.iter().any(|verdict| verdict.to_string().contains("default backend"));
    assert!(told, "{:?}", migration.verdicts);
}
