//! Random objects, as manifests. They have few names, so that they collide.

use std::{fs, sync::LazyLock};

use proptest::prelude::*;

use crate::case::directory;

/// An object of any kind, mostly of those that affect routing.
pub(crate) fn any_object() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => any_ingress(),
        4 => any_service(),
        4 => any_slice(),
        2 => any_secret(),
        1 => any_config_map(),
        2 => any_streams(),
        1 => any_class(),
        1 => any_node(),
        1 => any_grant(),
        1 => any_gateway_class(),
        3 => any_gateway(),
        5 => any_http_route(),
        3 => any_stream_route(),
        2 => any_listener_set(),
        1 => any_policy(),
        1 => any_namespace(),
    ]
}

fn any_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "c"])
}

/// A label or an annotation, or none.
fn any_labels() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "",
        "",
        "  labels: {acme.cert-manager.io/http01-solver: \"true\"}\n",
        "  annotations: {nginx.ingress.kubernetes.io/backend-protocol: HTTPS}\n",
        "  annotations: {xdp-ingress.io/ssl-redirect: \"false\"}\n",
        "  annotations: {nginx.ingress.kubernetes.io/canary: \"true\"}\n",
        "  annotations: {nginx.ingress.kubernetes.io/auth-url: \"http://a.test\"}\n",
        "  annotations: {xdp-ingress.io/jwt-jwks-url: \"http://a.a.svc/\"}\n",
        "  annotations: {xdp-ingress.io/jwt-jwks-url: \"https://a.test/\", xdp-ingress.io/jwt-jwks-ca-secret: a}\n",
        "  annotations: {kubernetes.io/ingress.class: a}\n",
        "  annotations: {nginx.ingress.kubernetes.io/custom-headers: a/b, nginx.ingress.kubernetes.io/app-root: /app}\n",
        "  annotations: {nginx.ingress.kubernetes.io/use-regex: \"true\"}\n",
        "  annotations: {nginx.ingress.kubernetes.io/ssl-passthrough: \"true\"}\n",
        "  annotations: {nginx.ingress.kubernetes.io/canary: \"true\", nginx.ingress.kubernetes.io/canary-weight: \"10\"}\n",
    ])
}

fn any_ingress() -> impl Strategy<Value = String> {
    let path = (
        prop::sample::select(vec!["/", "/x", "/x/", "bad", "/y", "/.well-known/acme-challenge/t"]),
        any::<bool>(),
        any_name(),
        79..82u16,
    );
    let host = prop::sample::select(vec!["", "a.test", "*.test", "b.test", "*.wild.test", "bad..host"]);
    let rule = (host, prop::collection::vec(path, 0..3));
    let class = prop::sample::select(vec!["xdp", "a", ""]);
    let metadata = (any_name(), any_name(), prop::option::of(0..3u8), any_labels(), class);
    (metadata, any::<bool>(), prop::collection::vec(rule, 0..3), any::<bool>())
        .prop_map(|((namespace, name, age, labels, class), has_default, rules, has_tls)| {
            let mut text = format!(
                "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  namespace: {namespace}\n  name: {name}\n{labels}"
            );
            if let Some(age) = age {
                text += &format!("  creationTimestamp: 2026-01-0{}T00:00:00Z\n", age + 1);
            }
            text += "spec:\n";
            if !class.is_empty() {
                text += &format!("  ingressClassName: {class}\n");
            }
            if has_default {
                text += "  defaultBackend: {service: {name: a, port: {number: 80}}}\n";
            }
            if has_tls {
                text += "  tls: [{secretName: a}, {hosts: [b.test, \"*.wild.test\"], secretName: b}, {hosts: [\"*.test\"]}]\n";
            }
            text += "  rules:\n";
            for (host, paths) in rules {
                text += &format!("  - host: \"{host}\"\n    http:\n      paths:\n");
                for (path, is_exact, service, port) in paths {
                    let kind = if is_exact { "Exact" } else { "Prefix" };
                    text += &format!(
                        "      - {{path: {path}, pathType: {kind}, backend: {{service: {{name: {service}, port: {{number: {port}}}}}}}}}\n"
                    );
                }
            }
            text
        })
}

fn any_service() -> impl Strategy<Value = String> {
    let kind = prop::sample::select(vec![
        "",
        ", type: ExternalName, externalName: a.example",
        ", type: ExternalName, externalName: 10.9.0.1",
        // One address that pods have, too, and one that a name resolves to.
        ", clusterIP: 10.0.0.1",
        ", clusterIP: 10.9.0.2",
    ]);
    let protocol = prop::sample::select(vec!["", ", appProtocol: kubernetes.io/h2c", ", appProtocol: x"]);
    let transport = prop::sample::select(vec!["", "", ", protocol: UDP"]);
    let protocol = (protocol, transport).prop_map(|(protocol, transport)| format!("{protocol}{transport}"));
    (any_name(), any_name(), 79..82u16, kind, protocol).prop_map(|(namespace, name, port, kind, protocol)| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{namespace: {namespace}, name: {name}}}\nspec: {{ports: [{{port: {port}{protocol}}}]{kind}}}\n"
        )
    })
}

/// A Secret with one of three certificates, two of which are for the same names, or without a usable one.
pub(crate) fn any_secret() -> impl Strategy<Value = String> {
    let data = ["tls", "default-certificate"].map(|case| {
        let text = fs::read_to_string(directory().join(case).join("in.yaml")).expect("a readable case");
        let at = text.find("stringData:").expect("a Secret");
        let end = text[at..].find("\n---\n").map_or(text.len() - at, |end| end + 1);
        text[at..at + end].to_owned()
    });
    let broken = "stringData: {tls.crt: none, tls.key: none}\n".to_owned();
    let data = prop::sample::select(data.into_iter().chain([rotated(), broken]).collect::<Vec<_>>());
    (any_name(), any_name(), data).prop_map(|(namespace, name, data)| {
        format!("apiVersion: v1\nkind: Secret\nmetadata: {{namespace: {namespace}, name: {name}}}\n{data}")
    })
}

/// Another certificate for the names of the one in the case `tls`; the same each time in one process.
pub(crate) fn rotated() -> String {
    static MADE: LazyLock<String> = LazyLock::new(|| {
        let names = ["a.test", "*.wild.test"].map(str::to_owned);
        let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        format!("stringData: {{tls.crt: {certificate:?}, tls.key: {key:?}}}\n")
    });
    MADE.clone()
}

fn any_config_map() -> impl Strategy<Value = String> {
    let key = prop::sample::select(vec![
        "keep-alive",
        "http-redirect-code",
        "ssl-redirect",
        "no-tls-redirect-locations",
        "host-sharing",
        "bogus",
    ]);
    let value = prop::sample::select(vec!["301", "false", "/a", "owner"]);
    (any_name(), prop::collection::btree_map(key, value, 0..4)).prop_map(|(name, data)| {
        let data: String = data.iter().map(|(key, value)| format!("{key}: \"{value}\", ")).collect();
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{namespace: a, name: {name}}}\ndata: {{{data}}}\n")
    })
}

/// Rows of stream services, of TCP in `a/b` and of UDP in `a/c`, which are the names of other ConfigMaps, too.
fn any_streams() -> impl Strategy<Value = String> {
    let port = prop::sample::select(vec!["80", "81", "5353", "bad"]);
    let service =
        (any_name(), any_name(), 79..82u16, prop::sample::select(vec!["", ":PROXY", ":PROXY:PROXY-V2", ":x"]));
    let name = prop::sample::select(vec!["b", "c"]);
    (name, prop::collection::btree_map(port, service, 0..4)).prop_map(|(name, rows)| {
        let rows: String = rows
            .iter()
            .map(|(key, (namespace, service, port, proxy))| {
                format!("\"{key}\": \"{namespace}/{service}:{port}{proxy}\", ")
            })
            .collect();
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{namespace: a, name: {name}}}\ndata: {{{rows}}}\n")
    })
}

fn any_class() -> impl Strategy<Value = String> {
    let controller = prop::sample::select(vec!["xdp-ingress.io/controller", "another.io/controller"]);
    let name = prop::sample::select(vec!["a", "b", "xdp"]);
    let metadata = (name, prop::option::of(0..2u8), any::<bool>());
    (metadata, controller, any_name()).prop_map(|((name, age, is_default), controller, parameters)| {
        let default = if is_default { ", annotations: {ingressclass.kubernetes.io/is-default-class: \"true\"}" } else { "" };
        let age = age.map_or_else(String::new, |age| format!(", creationTimestamp: 2026-01-0{}T00:00:00Z", age + 1));
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {{name: {name}{age}{default}}}\nspec: {{controller: {controller}, \
             parameters: {{kind: ConfigMap, name: {parameters}, namespace: a, scope: Namespace}}}}\n"
        )
    })
}

fn any_node() -> impl Strategy<Value = String> {
    let address = prop::sample::select(vec!["10.9.0.1", "10.0.0.2", "10.9.0.2"]);
    (any_name(), any_name(), address).prop_map(|(name, zone, address)| {
        format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {{topology.kubernetes.io/zone: {zone}}}}}\n\
             status: {{addresses: [{{type: InternalIP, address: {address}}}]}}\n"
        )
    })
}

/// Grants mostly for Service `a/a`, which some Ingresses use for keys.
pub(crate) fn any_grant() -> impl Strategy<Value = String> {
    let kind = prop::sample::select(vec![
        "networking.k8s.io, kind: Ingress",
        "gateway.networking.k8s.io, kind: HTTPRoute",
        "gateway.networking.k8s.io, kind: Gateway",
    ]);
    let namespace = prop::sample::select(vec!["a", "a", "b"]);
    let to = prop::sample::select(vec!["", ", name: a", ", name: b"]);
    (namespace, any_name(), kind, any_name(), to).prop_map(|(namespace, name, kind, from, to)| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\nmetadata: {{namespace: {namespace}, name: {name}}}\n\
             spec: {{from: [{{group: {kind}, namespace: {from}}}], to: [{{group: \"\", kind: Service{to}}}, {{group: \"\", kind: Secret{to}}}]}}\n"
        )
    })
}

pub(crate) fn any_namespace() -> impl Strategy<Value = String> {
    (any_name(), any_name()).prop_map(|(name, team)| {
        format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {{team: {team}}}}}\n")
    })
}

fn any_gateway_class() -> impl Strategy<Value = String> {
    let controller = prop::sample::select(vec!["xdp-ingress.io/gateway-controller", "another.io/controller"]);
    let parameters =
        prop::sample::select(vec!["", "", ", parametersRef: {group: \"\", kind: ConfigMap, name: a, namespace: a}"]);
    (any_name(), controller, parameters).prop_map(|(name, controller, parameters)| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {{name: {name}}}\n\
             spec: {{controllerName: {controller}{parameters}}}\n"
        )
    })
}

/// Listeners at two ports, which conflict often.
fn any_gateway() -> impl Strategy<Value = String> {
    let protocol = prop::sample::select(vec!["HTTP", "HTTP", "HTTPS", "TLS", "TCP", "UDP", "OTHER"]);
    let hostname = prop::sample::select(vec!["", ", hostname: a.test", ", hostname: \"*.test\""]);
    let allowed = prop::sample::select(vec![
        "",
        ", allowedRoutes: {namespaces: {from: All}}",
        ", allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {team: a}}}}",
        ", allowedRoutes: {kinds: [{kind: TCPRoute}]}",
    ]);
    let listener = (any_name(), 80..82u16, protocol, hostname, allowed, any_name(), any_name());
    let address = prop::sample::select(vec!["192.0.2.1", "192.0.2.2", "198.51.100.1"]);
    let addresses = (prop::option::of(address.clone()), prop::option::of(address));
    let metadata = (any_name(), any_name(), prop::option::of(0..3u8), any_name());
    let sets = prop::sample::select(vec!["None", "Same", "All"]);
    let clients = prop::option::of((any_name(), any_name()));
    let own = prop::option::of((any_name(), any_name()));
    let sets = (sets, clients, own);
    (metadata, prop::collection::vec(listener, 0..4), addresses, sets).prop_map(
        |((namespace, name, age, class), listeners, (wanted, shown), (sets, clients, own))| {
            let age = age.map_or_else(String::new, |age| format!(", creationTimestamp: 2026-01-0{}T00:00:00Z", age + 1));
            let mut text = format!(
                "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{namespace: {namespace}, name: {name}{age}}}\n\
                 spec:\n  gatewayClassName: {class}\n  allowedListeners: {{namespaces: {{from: {sets}}}}}\n"
            );
            if let Some(address) = wanted {
                text += &format!("  addresses: [{{value: {address}}}]\n");
            }
            if clients.is_some() || own.is_some() {
                text += "  tls:\n";
            }
            if let Some((namespace, name)) = clients {
                text += &format!(
                    "    frontend: {{default: {{validation: {{caCertificateRefs: [{{group: \"\", kind: ConfigMap, \
                     namespace: {namespace}, name: {name}}}]}}}}}}\n"
                );
            }
            if let Some((namespace, name)) = own {
                text += &format!(
                    "    backend: {{clientCertificateRef: {{group: \"\", kind: Secret, namespace: {namespace}, name: {name}}}}}\n"
                );
            }
            text += "  listeners:\n";
            for (name, port, protocol, hostname, allowed, secret, secret_namespace) in listeners {
                let tls = if protocol == "TLS" && port == 80 {
                    ", tls: {mode: Passthrough}".to_owned()
                } else if matches!(protocol, "HTTPS" | "TLS") {
                    format!(", tls: {{certificateRefs: [{{name: {secret}, namespace: {secret_namespace}}}]}}")
                } else {
                    String::new()
                };
                text += &format!("  - {{name: {name}, port: {port}, protocol: {protocol}{hostname}{allowed}{tls}}}\n");
            }
            if let Some(address) = shown {
                text += &format!("status: {{addresses: [{{type: IPAddress, value: {address}}}]}}\n");
            }
            text
        },
    )
}

fn any_stream_route() -> impl Strategy<Value = String> {
    let kind = prop::sample::select(vec!["TLSRoute", "TCPRoute", "UDPRoute", "GRPCRoute"]);
    let parent = prop::sample::select(vec!["Gateway", "ListenerSet"]);
    let backend = (any_name(), any_name(), 79..82u16, 0..3u8);
    let metadata = (any_name(), any_name(), prop::option::of(0..3u8));
    let hostnames = prop::sample::select(vec!["[]", "[a.test]", "[\"*.test\", b.test]"]);
    let parent = (parent, any_name(), any_name(), hostnames);
    (metadata, kind, parent, prop::collection::vec(backend, 0..3)).prop_map(
        |((namespace, name, age), kind, (parent, of, parent_name, hostnames), backends)| {
            let age = age.map_or_else(String::new, |age| format!(", creationTimestamp: 2026-01-0{}T00:00:00Z", age + 1));
            let hostnames = match kind {
                "TLSRoute" => "[a.test]",
                "GRPCRoute" => hostnames,
                _ => "[]",
            };
            let backends: String = backends
                .iter()
                .map(|(namespace, name, port, weight)| {
                    format!("{{namespace: {namespace}, name: {name}, port: {port}, weight: {weight}}}, ")
                })
                .collect();
            format!(
                "apiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\nmetadata: {{namespace: {namespace}, name: {name}{age}}}\n\
                 spec:\n  parentRefs: [{{kind: {parent}, namespace: {of}, name: {parent_name}}}]\n  hostnames: {hostnames}\n  \
                 rules: [{{backendRefs: [{backends}]}}]\n"
            )
        },
    )
}

fn any_policy() -> impl Strategy<Value = String> {
    let authorities = prop::sample::select(vec!["", ", wellKnownCACertificates: System"]);
    (any_name(), any_name(), any_name(), authorities).prop_map(|(namespace, name, service, authorities)| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\nmetadata: {{namespace: {namespace}, name: {name}}}\n\
             spec: {{targetRefs: [{{group: \"\", kind: Service, name: {service}}}], validation: {{hostname: a.test{authorities}}}}}\n"
        )
    })
}

fn any_listener_set() -> impl Strategy<Value = String> {
    let protocol = prop::sample::select(vec!["HTTP", "TCP", "UDP"]);
    let hostname = prop::sample::select(vec!["", ", hostname: a.test"]);
    let listener = (any_name(), 80..82u16, protocol, hostname);
    let metadata = (any_name(), any_name(), prop::option::of(0..3u8));
    (metadata, any_name(), any_name(), prop::collection::vec(listener, 0..3)).prop_map(
        |((namespace, name, age), of, gateway, listeners)| {
            let age = age.map_or_else(String::new, |age| format!(", creationTimestamp: 2026-01-0{}T00:00:00Z", age + 1));
            let listeners: String = listeners
                .iter()
                .map(|(name, port, protocol, hostname)| {
                    format!("{{name: {name}, port: {port}, protocol: {protocol}{hostname}, allowedRoutes: {{namespaces: {{from: All}}}}}}, ")
                })
                .collect();
            format!(
                "apiVersion: gateway.networking.k8s.io/v1\nkind: ListenerSet\nmetadata: {{namespace: {namespace}, name: {name}{age}}}\n\
                 spec: {{parentRef: {{namespace: {of}, name: {gateway}}}, listeners: [{listeners}]}}\n"
            )
        },
    )
}

fn any_http_route() -> impl Strategy<Value = String> {
    let hostnames =
        prop::sample::select(vec!["[]", "[a.test]", "[\"*.test\", b.test]", "[\"*.a.test\"]", "[\"bad..host\"]"]);
    let section = prop::sample::select(vec!["", ", sectionName: a", ", port: 80"]);
    let kind = prop::sample::select(vec!["Gateway", "Gateway", "ListenerSet"]);
    let parent = (any_name(), any_name(), section, kind);
    let demand = prop::sample::select(vec![
        "",
        "{path: {value: /x}}",
        "{path: {value: /x/}}, {path: {type: Exact, value: /x}, method: GET}",
        "{headers: [{name: a, value: b}]}, {headers: [{name: A, value: b}], queryParams: [{name: q, value: r}]}",
        "{path: {type: RegularExpression, value: x}}",
    ]);
    let filter = prop::sample::select(vec![
        "",
        "",
        "{type: RequestRedirect, requestRedirect: {hostname: a.test}}",
        "{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: b}]}}",
        "{type: RequestMirror, requestMirror: {backendRef: {name: a, port: 80}}}",
        "{type: Other}",
    ]);
    let backend = (any_name(), any_name(), 79..82u16, 0..3u8);
    let rule = (demand, filter, prop::collection::vec(backend, 0..3));
    let metadata = (any_name(), any_name(), prop::option::of(0..3u8));
    (metadata, prop::collection::vec(parent, 0..3), hostnames, prop::collection::vec(rule, 0..3)).prop_map(
        |((namespace, name, age), parents, hostnames, rules)| {
            let age = age.map_or_else(String::new, |age| format!(", creationTimestamp: 2026-01-0{}T00:00:00Z", age + 1));
            let parents: String = parents
                .iter()
                .map(|(namespace, name, section, kind)| {
                    format!("{{kind: {kind}, namespace: {namespace}, name: {name}{section}}}, ")
                })
                .collect();
            let mut text = format!(
                "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {{namespace: {namespace}, name: {name}{age}}}\n\
                 spec:\n  parentRefs: [{parents}]\n  hostnames: {hostnames}\n  rules:\n"
            );
            for (demand, filter, backends) in rules {
                let backends: String = backends
                    .iter()
                    .map(|(namespace, name, port, weight)| {
                        format!("{{namespace: {namespace}, name: {name}, port: {port}, weight: {weight}}}, ")
                    })
                    .collect();
                text += &format!("  - {{matches: [{demand}], filters: [{filter}], backendRefs: [{backends}]}}\n");
            }
            text
        },
    )
}

pub(crate) fn any_slice() -> impl Strategy<Value = String> {
    (any_name(), any_name(), any_name(), prop::collection::vec((1..4u8, any::<bool>(), any::<bool>()), 0..3)).prop_map(
        |(namespace, name, service, endpoints)| {
            let endpoints: String = endpoints
                .iter()
                .map(|(ip, ready, going)| {
                    format!(
                        "{{addresses: [10.0.0.{ip}], conditions: {{ready: {ready}, serving: true, terminating: {going}}}, \
                         hints: {{forNodes: [{{name: a}}], forZones: [{{name: {}}}]}}}}, ",
                        if *going { "a" } else { "b" }
                    )
                })
                .collect();
            format!(
                "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  namespace: {namespace}\n  name: {name}\n  \
                 labels: {{kubernetes.io/service-name: {service}}}\naddressType: IPv4\nports: [{{port: 8080}}, {{port: 8081, protocol: UDP}}]\nendpoints: [{endpoints}]\n"
            )
        },
    )
}
