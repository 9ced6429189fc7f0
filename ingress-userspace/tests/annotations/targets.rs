//! Allowed targets of the proxy's own requests, and their effect on the health of the pods involved.

use std::net::SocketAddr;

use ingress_control::translate::{Options, ServicePattern};

use super::{Ingress, ext_authz};
use ingress_proxy_testing::Origin;

const VICTIM: &str = "http://web.victim.svc.cluster.local/admin";

/// Service `web` of another namespace, at `address`.
fn victim(address: SocketAddr) -> String {
    ext_authz::service(address).replace("sso", "web").replace("namespace: auth", "namespace: victim")
}

#[test]
fn services_of_other_namespaces_need_permission_of_the_operator() {
    let (pod, asked) = (Origin::answering("pod"), Origin::answering("asked"));
    for (annotation, status) in [("auth-url", 503), ("jwt-jwks-url", 503), ("mirror-target", 200)] {
        let ingress = Ingress::with(&[(annotation, VICTIM)]).beside(&victim(asked.address));
        let site = ingress.serve(&pod);
        assert_eq!(site.get("/").status, status, "{annotation}: {}", site.outcomes);
        let expect = format!("`{annotation}` leads to service `victim/web` of another namespace");
        assert!(site.outcomes.contains(&expect), "{annotation}: {}", site.outcomes);
        assert!(site.outcomes.contains("--allow-cross-namespace-services"), "{annotation}: {}", site.outcomes);
    }
    assert_eq!(asked.heads(), [""; 0]);
    for (allowed, status) in [("victim", 200), ("victim/web", 200), ("victim/other", 503), ("evil", 503)] {
        let allowed = vec![ServicePattern::parse(allowed).expect("a namespace, or a service of one")];
        let options = Options { cross_namespace: allowed, ..Options::for_manifests() };
        let ingress = Ingress::with(&[("auth-url", VICTIM)]).beside(&victim(asked.address));
        assert_eq!(ingress.serve_with(&[pod.address], &options).get("/").status, status, "{options:?}");
    }
    assert_eq!(asked.heads().len(), 2);
}

/// Only the owner of the Service can grant it, in its namespace; a grant for others, or of other Services, does not
/// count.
#[test]
fn a_reference_grant_permits_services_of_another_namespace() {
    let (pod, asked) = (Origin::answering("pod"), Origin::answering("asked"));
    let grant = |namespace: &str, from: &str, to: &str| {
        format!(
            "---\napiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\nmetadata: {{name: may, namespace: {namespace}}}\n\
             spec:\n  from: [{{group: networking.k8s.io, kind: Ingress, namespace: {from}}}]\n  to: [{{group: \"\", kind: Service{to}}}]\n"
        )
    };
    for (namespace, from, to, status) in [
        ("victim", "default", "", 200),
        ("victim", "default", ", name: web", 200),
        ("victim", "default", ", name: other", 503),
        ("victim", "other", "", 503),
        ("default", "default", "", 503),
    ] {
        let beside = victim(asked.address) + &grant(namespace, from, to);
        let site = Ingress::with(&[("auth-url", VICTIM)]).beside(&beside).serve(&pod);
        assert_eq!(site.get("/").status, status, "{namespace} {from} {to}: {}", site.outcomes);
    }
    assert_eq!(asked.heads().len(), 2, "nobody was asked but where that was granted");
}

#[test]
fn the_api_server_is_never_a_target() {
    let (pod, api_server) = (Origin::answering("pod"), Origin::answering("secrets"));
    let service = ext_authz::service(api_server.address).replace("sso", "kubernetes").replace("auth", "default");
    for allowed in ["evil", "default"] {
        let allowed = vec![ServicePattern::parse(allowed).expect("a namespace")];
        let options = Options { cross_namespace: allowed, ..Options::for_manifests() };
        let annotations = [("mirror-target", "http://kubernetes.default.svc.cluster.local:80/api")];
        let site = Ingress::with(&annotations).beside(&service).serve_with(&[pod.address], &options);
        assert_eq!(site.get("/").status, 200);
        assert!(site.outcomes.contains("the API server"), "{}", site.outcomes);
    }
    assert_eq!(api_server.heads(), [""; 0]);
}

/// Two pods that answer all paths except `/slow`. Returns the ejections of the rule's upstream and of all others, after
/// requests that were authorized at `url`.
fn ejections_after_slow_questions(url: &str) -> (u64, u64) {
    let pod = || {
        Origin::start(|peer| {
            while let Some(head) = peer.head() {
                if !head.starts_with("get /slow") {
                    peer.answer("pod");
                }
            }
        })
    };
    let pods = [pod(), pod()];
    let open = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: open, namespace: default}\nspec:\n  \
                ingressClassName: xdp\n  rules:\n  - host: a.test\n    http:\n      paths:\n      \
                - {path: /slow, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}\n";
    let annotations = [("auth-url", url), ("proxy-read-timeout", "1")];
    let site = Ingress::with(&annotations).beside(open).serve_from(&pods.each_ref().map(|pod| pod.address)).in_order();
    for _ in 0..3 {
        assert_eq!(site.get("/").status, 500);
    }
    let asked = pods.iter().map(|pod| pod.heads().len()).sum::<usize>();
    assert!(asked >= 3, "the question was not asked");
    let views = site.proxy.shared.upstreams();
    let of = |is_rule: bool| {
        let views = views.iter().filter(|view| (view.key.to_string() == "default/web:80") == is_rule);
        views.map(|view| view.ejections).sum()
    };
    (of(true), of(false))
}

#[test]
fn authorization_requests_eject_no_pod_for_rules() {
    let (of_rules, of_questions) = ejections_after_slow_questions("http://web.default.svc.cluster.local/slow");
    assert_eq!(of_rules, 0);
    assert!(of_questions > 0, "they are judged by themselves");
    assert_eq!(ejections_after_slow_questions("http://$host/slow"), (0, 0));
}

#[test]
fn a_rule_that_refuses_all_sends_no_authorization_requests() {
    let (pod, asked) = (Origin::answering("pod"), Origin::answering("asked"));
    let url = ("auth-url", "http://sso.auth.svc.cluster.local/verify");
    let missing = Ingress::with(&[url]).leading_to("nowhere", 80);
    let unprotected = Ingress::with(&[url, ("auth-tls-secret", "default/nothing")]);
    for ingress in [missing, unprotected] {
        let site = ingress.beside(&ext_authz::service(asked.address)).serve(&pod);
        assert_eq!(site.get("/").status, 503, "{}", site.outcomes);
    }
    assert_eq!((asked.heads(), pod.heads()), (vec![], vec![]));
    // A default backend that replaces missing pods serves clients, so authorization is required.
    let replaced = Ingress::with(&[url, ("default-backend", "web")]).leading_to("nowhere", 80);
    let site = replaced.beside(&ext_authz::service(asked.address)).serve(&pod);
    assert_eq!(site.get("/").status, 200, "{}", site.outcomes);
    assert_eq!((asked.heads().len(), pod.heads().len()), (1, 1));
}
