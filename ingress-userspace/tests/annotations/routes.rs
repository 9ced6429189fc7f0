//! Annotations of routes, and ConfigMaps that their filters name: from the text of a route to bytes on sockets.

use std::{collections::BTreeSet, fmt::Write as _, path::Path, sync::Arc};

use ingress_control::{
    Origin as Source,
    change::Change,
    cluster::Cluster,
    source::manifests::parse,
    translate::{Options, translate},
};

use super::Site;
use ingress_proxy_testing::{Origin, Proxy, Response, Table};

/// `ann` with "secret", by bcrypt.
const USERS: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: users, namespace: default}\nstringData:\n  auth: |\n\
                     \x20   ann:$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";

/// `ann:secret`.
const ANN: &str = "Authorization: Basic YW5uOnNlY3JldA==\r\n";

/// Returns a proxy with a Gateway's listener at its port for HTTP, without routes.
fn empty() -> Site {
    let proxy = Proxy::start_empty(&ingress_proxy::Options::default());
    Site { proxy, outcomes: String::new() }
}

impl Site {
    /// Serves `objects` beside the Gateway, and Services with these pods.
    fn serve_objects(&mut self, services: &[(&str, &[&Origin])], objects: &str) {
        let port = self.proxy.http.port();
        let mut text = format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {{name: xdp}}\n\
             spec: {{controllerName: xdp-ingress.io/gateway-controller}}\n---\n\
             apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {{name: g, namespace: default}}\n\
             spec: {{gatewayClassName: xdp, listeners: [{{name: http, port: {port}, protocol: HTTP}}]}}\n---\n{objects}\n"
        );
        for (name, pods) in services {
            writeln!(
                text,
                "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: default}}\n\
                 spec: {{ports: [{{port: 80}}]}}"
            )
            .expect("a string takes all");
            for (number, pod) in pods.iter().enumerate() {
                let (ip, port) = (pod.address.ip(), pod.address.port());
                writeln!(
                    text,
                    "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
                     metadata: {{name: {name}-{number}, namespace: default, labels: {{kubernetes.io/service-name: {name}}}}}\n\
                     ports: [{{port: {port}}}]\nendpoints: [{{addresses: [{ip}]}}]"
                )
                .expect("a string takes all");
            }
        }
        let path: Arc<Path> = Path::new("in.yaml").into();
        let parsed = parse(&path, &text);
        assert!(parsed.remarks.is_empty(), "{:?}", parsed.remarks);
        let mut cluster = Cluster::default();
        for object in parsed.objects {
            cluster.apply(Change::Apply { object, origin: Source::File(Arc::clone(&path)) });
        }
        let options = Options { http_port: port, reserved_ports: [port].into(), ..Options::for_manifests() };
        let translation = translate(&cluster, &options);
        self.outcomes = translation.outcomes.keys().map(|outcome| format!("{outcome}\n")).collect();
        self.proxy.publish(&Table(translation.table));
    }
}

/// Returns a response's cookie in the form in which the client sends it back; heads are read in lower case here.
fn cookie(response: &Response) -> Option<String> {
    Some(format!("Cookie: {}\r\n", response.header("set-cookie")?.split_once(';')?.0))
}

#[test]
fn annotations_hold_for_all_rules_and_keys_of_a_config_map_for_one() {
    let pod = Origin::answering("pod");
    let route = "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata:\n  name: shop\n  namespace: default\n  \
                 annotations: {xdp-ingress.io/response-headers: 'X-Route: all', xdp-ingress.io/deny-paths: /secret}\n\
                 spec:\n  parentRefs: [{name: g}]\n  hostnames: [a.test]\n  rules:\n  \
                 - backendRefs: [{name: web, port: 80}]\n  \
                 - matches: [{path: {value: /login}}]\n    \
                   filters: [{type: ExtensionRef, extensionRef: {group: '', kind: ConfigMap, name: login}}]\n    \
                   backendRefs: [{name: web, port: 80}]\n---\n\
                 apiVersion: v1\nkind: ConfigMap\nmetadata: {name: login, namespace: default}\n\
                 data: {auth-type: basic, auth-secret: users}";
    let mut site = empty();
    // While the Secret is missing, nothing is served without its protection; while the ConfigMap is missing, neither.
    let without_keys = route.split_once("---").expect("two objects").0;
    for (objects, status) in [(without_keys, 500), (route, 503)] {
        site.serve_objects(&[("web", &[&pod])], objects);
        assert_eq!((site.ask("/login", ANN).status, pod.connections()), (status, 0), "{}", site.outcomes);
    }
    assert!(site.outcomes.contains("rules with ConfigMap `login`: secret `default/users`"), "{}", site.outcomes);
    site.serve_objects(&[("web", &[&pod])], &format!("{route}\n---\n{USERS}"));
    assert_eq!(site.outcomes, "");
    let answer = site.get("/");
    assert_eq!((answer.status, answer.header("x-route")), (200, Some("all")));
    assert_eq!(site.get("/secret").status, 403);
    assert_eq!(site.get("/login").status, 401);
    let answer = site.ask("/login", ANN);
    assert_eq!((answer.status, answer.text(), answer.header("x-route")), (200, "pod", Some("all")));
}

#[test]
fn a_client_stays_with_its_pod_among_backends_with_weights() {
    let [a, b, c, d] = ["a", "b", "c", "d"].map(Origin::answering);
    for mode in ["balanced", "persistent"] {
        let route = format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata:\n  name: shop\n  namespace: default\n  \
             annotations: {{xdp-ingress.io/affinity: cookie, xdp-ingress.io/affinity-mode: {mode}, xdp-ingress.io/session-cookie-name: sid}}\n\
             spec:\n  parentRefs: [{{name: g}}]\n  hostnames: [a.test]\n  rules:\n  \
             - backendRefs: [{{name: old, port: 80, weight: 3}}, {{name: new, port: 80, weight: 1}}]"
        );
        let mut site = empty();
        site.serve_objects(&[("old", &[&a, &b]), ("new", &[&c, &d])], &route);
        assert_eq!(site.outcomes, "");
        let mut seen = BTreeSet::new();
        let mut of_new = None;
        for _ in 0..60 {
            let first = site.get("/");
            let cookie = cookie(&first).expect("a cookie");
            for _ in 0..4 {
                let again = site.ask("/", &cookie);
                assert_eq!((again.text(), again.header("set-cookie")), (first.text(), None), "{mode}");
            }
            seen.insert(first.text().to_owned());
            of_new = of_new.or(Some(cookie).filter(|_| matches!(first.text(), "c" | "d")));
        }
        assert_eq!(seen.len(), 4, "{mode}: {seen:?}");
        // Without pods of its backend, a client gets a new session.
        site.serve_objects(&[("old", &[&a, &b]), ("new", &[])], &route.replace("weight: 1", "weight: 0"));
        let moved = site.ask("/", &of_new.expect("a client of the new backend"));
        assert!(matches!(moved.text(), "a" | "b") && moved.header("set-cookie").is_some(), "{mode}");
    }
}
