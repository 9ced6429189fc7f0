use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    route::{Filter, Fraction, HttpRoute, MatchKind, PathMatch, PathMatchKind, PathModifier, TcpRoute, TlsRoute},
    *,
};

/// Reads an object, and demands that it is the same after it was written and read again.
fn read<K: GatewayObject + Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(text: &str) -> K {
    let object: K = serde_saphyr::from_str(text).expect("an object");
    let written = serde_json::to_value(&object).expect("JSON");
    assert_eq!((&written["kind"], &written["apiVersion"]), (&json!(K::KIND), &json!(K::API_VERSION)));
    assert_eq!(serde_json::from_value::<K>(written).expect("an object"), object);
    object
}

/// Returns the JSON of a value without empty fields.
fn json_of<K: Serialize>(object: &K) -> Value {
    serde_json::to_value(object).expect("JSON")
}

#[test]
fn a_gateway_keeps_what_is_read() {
    let text = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: infra, generation: 4, uid: u, creationTimestamp: 2026-01-01T00:00:00Z}
spec:
  gatewayClassName: xdp
  addresses: [{type: IPAddress, value: 192.0.2.7}, {type: acme.test/pool}]
  infrastructure: {labels: {team: a}, annotations: {a.test/b: c}, parametersRef: {group: '', kind: ConfigMap, name: p}}
  allowedListeners: {namespaces: {from: Selector, selector: {matchLabels: {team: a}}}}
  tls:
    backend: {clientCertificateRef: {name: us, namespace: certs}}
    frontend:
      default: {validation: {caCertificateRefs: [{group: '', kind: ConfigMap, name: ca, namespace: certs}]}}
      perPort: [{port: 8443, tls: {validation: {caCertificateRefs: [], mode: AllowInsecureFallback}}}]
  listeners:
  - name: https
    hostname: '*.example.com'
    port: 443
    protocol: HTTPS
    tls: {certificateRefs: [{name: wild}, {group: acme.test, kind: Vault, name: v}], options: {a.test/o: x}}
    allowedRoutes: {namespaces: {from: All}, kinds: [{kind: HTTPRoute}, {group: acme.test, kind: FooRoute}]}
  - {name: pass, port: 6443, protocol: TLS, tls: {mode: Passthrough}}
  - {name: tcp, port: 9000, protocol: TCP}
status:
  addresses: [{type: IPAddress, value: 192.0.2.7}]
  attachedListenerSets: 2
  listeners:
  - name: https
    attachedRoutes: 3
    supportedKinds: [{group: gateway.networking.k8s.io, kind: HTTPRoute}]
    conditions:
    - {type: Accepted, status: 'True', reason: Accepted, message: '', observedGeneration: 4, lastTransitionTime: 2026-01-01T00:00:01Z}
";
    let Gateway { metadata, spec, status } = &read(text);
    assert_eq!((metadata.generation, metadata.creation_timestamp.is_some()), (Some(4), true));
    let [asked, pool] = &*spec.addresses else { panic!("{:?}", spec.addresses) };
    assert_eq!((&asked.kind, &*asked.value), (&AddressKind::Ip, "192.0.2.7"));
    assert_eq!((pool.kind.as_str(), &*pool.value), ("acme.test/pool", ""));
    let parameters = spec.infrastructure.as_ref().and_then(|of| of.parameters_ref.as_ref()).expect("parameters");
    assert_eq!((&parameters.group, &parameters.kind, &*parameters.name), (&Group::Core, &ReferentKind::ConfigMap, "p"));
    assert_eq!(spec.allowed_listeners.namespaces.from, NamespacesFrom::Selector);
    let certificate = spec.tls.backend.client_certificate_ref.as_ref().expect("a certificate");
    assert_eq!((&certificate.kind, certificate.namespace.as_deref()), (&ReferentKind::Secret, Some("certs")));
    let frontend = spec.tls.frontend.default.validation.as_ref().expect("a validation");
    assert_eq!((&frontend.mode, frontend.ca_certificate_refs.len()), (&FrontendValidationMode::ValidOnly, 1));
    let port = &spec.tls.frontend.per_port[0];
    let mode = port.tls.validation.as_ref().map(|validation| &validation.mode);
    assert_eq!((port.port, mode), (8443, Some(&FrontendValidationMode::InsecureFallback)));
    let [https, pass, tcp] = &*spec.listeners else { panic!("{:?}", spec.listeners) };
    assert_eq!((&https.protocol, https.hostname.as_deref()), (&Protocol::Https, Some("*.example.com")));
    assert_eq!(https.allowed_routes.namespaces.from, NamespacesFrom::All);
    assert_eq!(https.allowed_routes.kinds[0], RouteKind { group: Group::Gateway, kind: ReferentKind::HttpRoute });
    assert_eq!(https.allowed_routes.kinds[1].kind, ReferentKind::Other("FooRoute".into()));
    let tls = https.tls.as_ref().expect("TLS");
    assert_eq!((&tls.mode, &tls.certificate_refs[0].kind), (&TlsMode::Terminate, &ReferentKind::Secret));
    assert_eq!((&*tls.certificate_refs[1].group.to_string(), tls.options.len()), ("acme.test", 1));
    assert_eq!(pass.tls.as_ref().map(|tls| &tls.mode), Some(&TlsMode::Passthrough));
    assert_eq!((&tcp.protocol, &tcp.allowed_routes.namespaces.from), (&Protocol::Tcp, &NamespacesFrom::Same));
    assert_eq!((&*status.addresses[0].value, status.attached_listener_sets), ("192.0.2.7", Some(2)));
    let listener = &status.listeners[0];
    assert_eq!((listener.attached_routes, &*listener.supported_kinds), (3, &[RouteKind::default()][..]));
    let condition = &listener.conditions[0];
    assert_eq!((&condition.status, condition.observed_generation), (&ConditionStatus::True, Some(4)));
}

#[test]
fn an_http_route_keeps_what_is_read() {
    let text = "
metadata: {name: shop, namespace: apps}
spec:
  parentRefs: [{name: edge, namespace: infra, sectionName: https, port: 443}, {group: '', kind: Service, name: mesh}]
  hostnames: [shop.example.com, '*.example.com']
  rules:
  - name: main
    matches:
    - path: {type: Exact, value: /a}
      method: POST
      headers: [{name: X-A, value: '1'}, {type: RegularExpression, name: X-B, value: '.*'}]
      queryParams: [{name: q, value: z}]
    - path: {value: /b}
    filters:
    - {type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: A, value: b}], add: [{name: C, value: d}], remove: [E]}}
    - {type: ResponseHeaderModifier, responseHeaderModifier: {remove: [Server]}}
    - {type: RequestMirror, requestMirror: {backendRef: {name: copy, port: 80}, percent: 5}}
    - {type: RequestMirror, requestMirror: {backendRef: {name: copy, port: 81}, fraction: {numerator: 1, denominator: 3}}}
    - type: CORS
      cors: {allowOrigins: ['https://*.a.test'], allowCredentials: true, allowMethods: ['*'], allowHeaders: [X], exposeHeaders: [Y]}
    - {type: URLRewrite, urlRewrite: {hostname: b.test, path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}}
    - {type: ExtensionRef, extensionRef: {group: '', kind: ConfigMap, name: keys}}
    backendRefs:
    - {name: s, port: 8080, weight: 0}
    - {name: t, namespace: other, port: 80, filters: [{type: RequestRedirect}]}
    - {group: acme.test, kind: Bucket, name: u}
    timeouts: {request: 10s, backendRequest: 2s}
    retry: {codes: [500, 503], attempts: 3, backoff: 50ms}
  - filters:
    - type: RequestRedirect
      requestRedirect: {scheme: https, hostname: c.test, port: 8443, statusCode: 308, path: {type: ReplaceFullPath, replaceFullPath: /n}}
";
    let HttpRoute { spec, .. } = &read(text);
    let [edge, mesh] = &*spec.parent_refs else { panic!("{:?}", spec.parent_refs) };
    assert_eq!((&edge.group, &edge.kind, edge.port), (&Group::Gateway, &ReferentKind::Gateway, Some(443)));
    assert_eq!((edge.namespace.as_deref(), edge.section_name.as_deref()), (Some("infra"), Some("https")));
    assert_eq!((&mesh.group, &mesh.kind), (&Group::Core, &ReferentKind::Service));
    assert_eq!(spec.hostnames.len(), 2);
    let [main, redirect] = &*spec.rules else { panic!("{:?}", spec.rules) };
    let [first, second] = &*main.matches else { panic!("{:?}", main.matches) };
    assert_eq!((first.path.kind.as_str(), &*first.path.value, first.method.as_deref()), ("Exact", "/a", Some("POST")));
    let kinds: Vec<_> = first.headers.iter().map(|header| &header.kind).collect();
    assert_eq!((kinds, &*first.query_params[0].name), (vec![&MatchKind::Exact, &MatchKind::RegularExpression], "q"));
    assert_eq!(second.path, PathMatch { kind: PathMatchKind::Prefix, value: "/b".into() });
    let [request, response, percent, fraction, cors, rewrite, extension] = &*main.filters else {
        panic!("{:?}", main.filters)
    };
    let Filter::RequestHeaderModifier(request) = request else { panic!("{request:?}") };
    assert_eq!((&*request.set[0].value, &*request.add[0].name, &*request.remove[0]), ("b", "C", "E"));
    assert!(matches!(response, Filter::ResponseHeaderModifier(changes) if changes.set.is_empty()));
    let Filter::RequestMirror(percent) = percent else { panic!("{percent:?}") };
    assert_eq!((percent.percent, percent.backend_ref.port, percent.fraction), (Some(5), Some(80), None));
    let Filter::RequestMirror(fraction) = fraction else { panic!("{fraction:?}") };
    assert_eq!(fraction.fraction, Some(Fraction { numerator: 1, denominator: 3 }));
    let Filter::Cors(cors) = cors else { panic!("{cors:?}") };
    assert_eq!((cors.allow_credentials, cors.max_age, &*cors.allow_methods), (true, 5, &["*".into()][..]));
    let Filter::UrlRewrite(rewrite) = rewrite else { panic!("{rewrite:?}") };
    assert_eq!((rewrite.hostname.as_deref(), &rewrite.path), (Some("b.test"), &Some(PathModifier::Prefix("/".into()))));
    assert!(matches!(extension, Filter::ExtensionRef(object) if object.kind == ReferentKind::ConfigMap));
    let [s, t, u] = &*main.backend_refs else { panic!("{:?}", main.backend_refs) };
    assert_eq!((s.weight, s.port, &s.kind), (0, Some(8080), &ReferentKind::Service));
    assert_eq!((t.weight, t.namespace.as_deref(), t.filters[0].kind()), (1, Some("other"), "RequestRedirect"));
    assert_eq!((u.group.as_str(), u.kind.as_str(), u.port), ("acme.test", "Bucket", None));
    let time =
        |text: &Option<GatewayDuration>| text.as_ref().and_then(GatewayDuration::parse).map(|time| time.as_millis());
    assert_eq!((time(&main.timeouts.request), time(&main.timeouts.backend_request)), (Some(10_000), Some(2_000)));
    let retry = main.retry.as_ref().expect("a retry");
    assert_eq!((&*retry.codes, retry.attempts, time(&retry.backoff)), (&[500, 503][..], 3, Some(50)));
    let [Filter::RequestRedirect(to)] = &*redirect.filters else { panic!("{redirect:?}") };
    assert_eq!((to.scheme.as_deref(), to.port, to.status_code), (Some("https"), Some(8443), 308));
    assert_eq!(to.path, Some(PathModifier::Full("/n".into())));
}

#[test]
fn other_kinds_keep_what_is_read() {
    let class: GatewayClass = read(
        "spec: {controllerName: xdp-ingress.io/gateway-controller, parametersRef: {group: '', kind: ConfigMap, name: p, namespace: n}}
status: {supportedFeatures: [{name: Gateway}]}",
    );
    assert!(class.is_ours());
    assert_eq!(class.spec.parameters_ref.and_then(|reference| reference.namespace).as_deref(), Some("n"));
    assert_eq!(&*class.status.supported_features[0].name, "Gateway");
    assert!(!read::<GatewayClass>("spec: {controllerName: acme.test/c}").is_ours());

    let set: ListenerSet = read(
        "spec: {parentRef: {name: edge, namespace: infra}, listeners: [{name: a, port: 80, protocol: HTTP}]}
status: {listeners: [{name: a, attachedRoutes: 1, conditions: []}]}",
    );
    assert_eq!((&set.spec.parent_ref.kind, set.spec.listeners[0].port), (&ReferentKind::Gateway, 80));
    assert_eq!(set.status.listeners[0].attached_routes, 1);

    let grpc: route::GrpcRoute = read(
        "spec: {hostnames: [g.test], rules: [{name: r, matches: [{method: {service: a.B, method: C}, headers: [{name: x, value: y}]}],
  filters: [{type: RequestMirror, requestMirror: {backendRef: {name: m, port: 1}}}], backendRefs: [{name: s, port: 2}]}]}",
    );
    let method = grpc.spec.rules[0].matches[0].method.as_ref().expect("a method");
    assert_eq!(
        (method.service.as_deref(), method.method.as_deref(), &method.kind),
        (Some("a.B"), Some("C"), &MatchKind::Exact)
    );

    let tls: TlsRoute = read("spec: {hostnames: [t.test], rules: [{backendRefs: [{name: s, port: 443, weight: 7}]}]}");
    assert_eq!((&*tls.spec.hostnames[0], tls.spec.rules[0].backend_refs[0].weight), ("t.test", 7));
    let tcp: TcpRoute =
        read("spec: {parentRefs: [{name: g}], rules: [{name: r, backendRefs: [{name: s, port: 443}]}]}");
    assert_eq!((tcp.spec.rules[0].name.as_deref(), &*tcp.spec.parent_refs[0].name), (Some("r"), "g"));
    let udp: route::UdpRoute = read("spec: {rules: [{backendRefs: [{name: dns, port: 53}]}]}");
    assert_eq!(&*udp.spec.rules[0].backend_refs[0].name, "dns");

    let policy: BackendTlsPolicy = read(
        "spec: {targetRefs: [{group: '', kind: Service, name: s, sectionName: https}], options: {a: b}, validation: {hostname: s.test,
  caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}], wellKnownCACertificates: System,
  subjectAltNames: [{type: Hostname, hostname: a.test}, {type: URI, uri: 'spiffe://a'}, {type: Mail, mail: x}]}}
status: {ancestors: [{ancestorRef: {name: g}, controllerName: a.test/c, conditions: []}]}",
    );
    let BackendTlsPolicySpec { target_refs, validation, options } = &policy.spec;
    assert_eq!((target_refs[0].section_name.as_deref(), options.len()), (Some("https"), 1));
    assert_eq!((&*validation.hostname, validation.ca_certificate_refs.len()), ("s.test", 1));
    assert_eq!(validation.well_known_ca_certificates, Some(WellKnownCertificates::System));
    let names = ["a.test".into(), "spiffe://a".into(), "Mail".into()];
    let [dns, uri, other] = names;
    let names = [SubjectAltName::Hostname(dns), SubjectAltName::Uri(uri), SubjectAltName::Other(other)];
    assert_eq!(&*validation.subject_alt_names, names);
    assert_eq!(&*policy.status.ancestors[0].ancestor_ref.name, "g");
}

#[test]
fn unknown_values_are_kept() {
    let text = "
spec:
  useDefaultGateways: All
  parentRefs: [{group: a.test, kind: Fleet, name: f}]
  rules:
  - matches: [{path: {type: Glob, value: '/*'}, headers: [{type: Present, name: h}], method: BREW}]
    filters: [{type: ExternalAuth, externalAuth: {protocol: GRPC}}, {type: URLRewrite, urlRewrite: {path: {type: Regex, regex: x}}}]
    sessionPersistence: {type: Cookie}
    backendRefs: [{kind: XBackend, group: gateway.networking.x-k8s.io, name: b}]
    timeouts: {request: soon}
";
    let HttpRoute { spec, .. } = read(text);
    assert_eq!(spec.parent_refs[0].kind, ReferentKind::Other("Fleet".into()));
    let rule = &spec.rules[0];
    assert_eq!(rule.matches[0].path.kind, PathMatchKind::Other("Glob".into()));
    assert_eq!(rule.matches[0].headers[0].kind, MatchKind::Other("Present".into()));
    assert_eq!(rule.filters[0], Filter::Other("ExternalAuth".into()));
    assert!(
        matches!(&rule.filters[1], Filter::UrlRewrite(rewrite) if rewrite.path == Some(PathModifier::Other("Regex".into())))
    );
    assert_eq!(rule.timeouts.request.as_ref().map(GatewayDuration::parse), Some(None));

    let gateway: Gateway = read(
        "spec: {gatewayClassName: x, tls: {frontend: {default: {validation: {mode: Never}}}}, listeners: [{name: a, port: 1, protocol: acme.test/quic,
  tls: {mode: Half}, allowedRoutes: {namespaces: {from: Friends}}}], addresses: [{type: Moon, value: x}]}
status: {conditions: [{type: Accepted, status: Maybe, reason: x, message: y}]}",
    );
    let listener = &gateway.spec.listeners[0];
    assert_eq!(listener.protocol, Protocol::Other("acme.test/quic".into()));
    assert_eq!(listener.tls.as_ref().map(|tls| tls.mode.as_str()), Some("Half"));
    assert_eq!(listener.allowed_routes.namespaces.from.as_str(), "Friends");
    assert_eq!(gateway.spec.tls.frontend.default.validation.as_ref().map(|of| of.mode.as_str()), Some("Never"));
    assert_eq!(gateway.status.conditions[0].status.as_str(), "Maybe");
}

#[test]
fn absent_fields_have_the_defaults_of_the_definitions() {
    let route: HttpRoute =
        read("spec: {rules: [{matches: [{}], retry: {}, filters: [{type: RequestRedirect}, {type: CORS, cors: {}}]}]}");
    let rule = &route.spec.rules[0];
    assert_eq!(rule.matches[0].path, PathMatch { kind: PathMatchKind::Prefix, value: "/".into() });
    assert_eq!(rule.retry.as_ref().map(|retry| retry.attempts), Some(1));
    assert!(matches!(&rule.filters[0], Filter::RequestRedirect(redirect) if redirect.status_code == 302));
    assert_eq!(rule.filters[1], Filter::Cors(Box::default()));
    let gateway: Gateway = read("metadata: {name: g}");
    assert_eq!(gateway.spec.allowed_listeners.namespaces.from, NamespacesFrom::None);
    assert_eq!(gateway.spec.tls.frontend.default.validation, None);
}

#[test]
fn absent_fields_are_not_written() {
    let route: HttpRoute =
        read("metadata: {name: r}\nspec: {hostnames: [a.test], rules: [{backendRefs: [{name: s, port: 80}]}]}");
    let backend = json!({"group": "", "kind": "Service", "name": "s", "port": 80, "weight": 1});
    assert_eq!(
        json_of(&route)["spec"],
        json!({"hostnames": ["a.test"], "rules": [{"backendRefs": [backend], "timeouts": {}}]})
    );
}

#[test]
fn a_status_or_a_version_is_no_difference() {
    let route: HttpRoute =
        read("metadata: {name: r, uid: u, generation: 1, resourceVersion: '7'}\nspec: {hostnames: [a.test]}");
    let mut other = route.clone();
    other.metadata.resource_version = Some("8".into());
    other.status.parents = [Verbatim::from(ParentStatus::default())].into();
    assert!(other != route && route.differs_in_status(&other));
    for change in [
        (|route| route.metadata.generation = Some(2)) as fn(&mut HttpRoute),
        |route| route.metadata.uid = None,
        |route| route.metadata.annotations = Some(Box::new([("a".to_owned(), "b".to_owned())].into())),
        |route| route.spec.hostnames = ["b.test".into()].into(),
    ] {
        let mut changed = other.clone();
        change(&mut changed);
        assert!(!route.differs_in_status(&changed), "{changed:?}");
    }
}
