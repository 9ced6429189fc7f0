//! Two namespaces and one host: the older Ingress is `victim`'s, the younger ones are `evil`'s. Each test shows that
//! its attack works where the operator chose `open`, or without the protection, and that the default refuses it.

use std::{net::SocketAddr, sync::Arc};

use ingress_control::{
    Origin as Source,
    change::{Change, ObjectName},
    cluster::Cluster,
    source::manifests::parse,
    translate::{HostSharing, Options, translate},
};
use rustls_pki_types::CertificateDer;

use ingress_proxy_testing::tls::{config, connect};
use ingress_proxy_testing::{Origin, Proxy, Table};

/// The Ingress of `victim`: `/` of two hosts, one of them with TLS, and a path of a third.
const VICTIM: &str = "  tls: [{hosts: [victim.test]}]\n  rules:\n\
    \x20 - {host: victim.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}\n\
    \x20 - {host: plain.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}\n\
    \x20 - {host: app.test, http: {paths: [{path: /app, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}\n";

/// Both namespaces, each with a pod that answers its name.
struct Quarrel {
    victim: Origin,
    evil: Origin,
    /// The operator's certificate, and one of `evil` for `victim.test`.
    operators: rcgen::CertifiedKey<rcgen::KeyPair>,
    evils: rcgen::CertifiedKey<rcgen::KeyPair>,
}

/// An Ingress with a `spec` and annotations in flow style.
fn ingress(namespace: &str, year: u16, annotations: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: web\n  namespace: {namespace}\n  \
         creationTimestamp: {year}-01-01T00:00:00Z\n  annotations: {{{annotations}}}\nspec:\n  ingressClassName: xdp\n{spec}"
    )
}

/// A rule of `evil` for `plain.test`.
fn rule(path: &str, kind: &str) -> String {
    format!(
        "  rules: [{{host: plain.test, http: {{paths: [{{path: {path:?}, pathType: {kind}, backend: {{service: {{name: web, port: {{number: 80}}}}}}}}]}}}}]\n"
    )
}

fn service(namespace: &str, pod: SocketAddr) -> String {
    let (ip, port) = (pod.ip(), pod.port());
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: {namespace}}}\nspec: {{ports: [{{port: 80}}]}}\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: web, namespace: {namespace}, \
         labels: {{kubernetes.io/service-name: web}}}}\naddressType: IPv4\nports: [{{port: {port}}}]\nendpoints: [{{addresses: [{ip}]}}]\n"
    )
}

fn secret(namespace: &str, name: &str, made: &rcgen::CertifiedKey<rcgen::KeyPair>) -> String {
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    format!(
        "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         stringData: {{tls.crt: {certificate:?}, tls.key: {key:?}}}\n"
    )
}

/// Returns the certificate that `proxy` presents for `name`.
async fn shown(proxy: &Proxy, name: &str) -> CertificateDer<'static> {
    let stream = connect(proxy, &config(&[]), name).await;
    stream.get_ref().1.peer_certificates().expect("a chain")[0].clone()
}

impl Quarrel {
    fn new() -> Self {
        let made = |name: &str| rcgen::generate_simple_self_signed(vec![name.to_owned()]).expect("a certificate");
        Self {
            victim: Origin::answering("victim"),
            evil: Origin::answering("evil"),
            operators: made("operator.test"),
            evils: made("victim.test"),
        }
    }

    /// Serves the objects of both, and those of `evil` in `spec` with `annotations`.
    fn serve(&self, sharing: HostSharing, annotations: &str, spec: &str) -> Proxy {
        self.serve_with(
            &Options {
                host_sharing: sharing,
                default_certificate: Some(ObjectName::new("xdp", "default")),
                ..Options::for_manifests()
            },
            annotations,
            spec,
        )
    }

    fn serve_with(&self, options: &Options, annotations: &str, spec: &str) -> Proxy {
        let text = [
            service("victim", self.victim.address),
            service("evil", self.evil.address),
            secret("xdp", "default", &self.operators),
            secret("evil", "own", &self.evils),
            ingress("victim", 2026, "", VICTIM),
            ingress("evil", 2027, annotations, spec),
        ];
        let parsed = parse(&std::path::Path::new("in.yaml").into(), &text.concat());
        assert!(parsed.remarks.is_empty(), "{:?}", parsed.remarks);
        let mut cluster = Cluster::default();
        for object in parsed.objects {
            cluster.apply(Change::Apply { object, origin: Source::File(Arc::from(std::path::Path::new("in.yaml"))) });
        }
        Proxy::start(&Table(translate(&cluster, options).table))
    }
}

/// Returns the statuses of `GET` for these paths of `plain.test`, and the pods that answer.
fn answers<const N: usize>(proxy: &Proxy, paths: [&str; N]) -> [(u16, String); N] {
    paths.map(|path| {
        let response = proxy.client().get("plain.test", path);
        (response.status, response.text().to_owned())
    })
}

fn answer(status: u16, text: &str) -> (u16, String) {
    (status, text.to_owned())
}

/// Client certificates for another namespace's host (row 4 of docs/security.md).
#[test]
fn other_namespaces_cannot_require_client_certificates() {
    let quarrel = Quarrel::new();
    let ask = |sharing| {
        let annotations = "nginx.ingress.kubernetes.io/auth-tls-secret: evil/none";
        let proxy = quarrel.serve(sharing, annotations, &rule("/zzz", "Exact"));
        answers(&proxy, ["/login", "/zzz"])
    };
    let refused = answer(503, "503 Service Unavailable: the backend of this route is not available\n");
    assert_eq!(ask(HostSharing::Open), [refused.clone(), refused.clone()], "the attack");
    assert_eq!(ask(HostSharing::Paths), [answer(200, "victim"), refused], "its own path is not served unprotected");
    assert_eq!(ask(HostSharing::Owner), [answer(200, "victim"), answer(200, "victim")]);
}

/// Certificates for another namespace's host (row 5 of docs/security.md).
#[tokio::test]
async fn other_namespaces_cannot_set_the_certificate_of_a_host() {
    let quarrel = Quarrel::new();
    let (operators, evils) = (quarrel.operators.cert.der(), quarrel.evils.cert.der());
    let spec = "  tls: [{hosts: [victim.test], secretName: own}]\n  rules: []\n";
    for (sharing, expect) in [
        (HostSharing::Open, evils),
        (HostSharing::Paths, operators),
        (HostSharing::Granted, operators),
        (HostSharing::Owner, operators),
    ] {
        assert_eq!(&shown(&quarrel.serve(sharing, "", spec), "victim.test").await, expect, "{sharing:?}");
    }
}

/// A certificate for all hosts by an Ingress without one (row 6 of docs/security.md).
#[tokio::test]
async fn an_ingress_without_a_host_cannot_replace_the_default_certificate() {
    let quarrel = Quarrel::new();
    let backend = "{service: {name: web, port: {number: 80}}}";
    let spec = format!(
        "  tls: [{{secretName: own}}]\n  rules: [{{http: {{paths: [{{path: /, pathType: Prefix, backend: {backend}}}]}}}}]\n"
    );
    for sharing in [HostSharing::Open, HostSharing::Paths, HostSharing::Granted, HostSharing::Owner] {
        let proxy = quarrel.serve(sharing, "", &spec);
        for name in ["victim.test", "plain.test", "other.test"] {
            assert_eq!(&shown(&proxy, name).await, quarrel.operators.cert.der(), "{sharing:?} {name}");
        }
    }
    // Without a certificate of the operator, evil's certificate for all hosts applies where no other Ingress names
    // them.
    let proxy = quarrel.serve_with(&Options::for_manifests(), "", &spec);
    assert_eq!(&shown(&proxy, "other.test").await, quarrel.evils.cert.der());
    for name in ["victim.test", "plain.test"] {
        assert_ne!(&shown(&proxy, name).await, quarrel.evils.cert.der(), "{name}");
    }
}

/// A regular expression takes another namespace's paths (row 7 of docs/security.md).
#[test]
fn expressions_of_other_namespaces_cannot_take_paths() {
    let quarrel = Quarrel::new();
    let annotations =
        "nginx.ingress.kubernetes.io/use-regex: 'true', nginx.ingress.kubernetes.io/ssl-redirect: 'false'";
    let long = format!("/{}.*{}", "(".repeat(20), ")".repeat(20));
    let ask = |sharing| {
        answers(&quarrel.serve(sharing, annotations, &rule(&long, "ImplementationSpecific")), ["/", "/login"])
    };
    assert_eq!(ask(HostSharing::Open), [answer(200, "evil"), answer(200, "evil")], "the attack");
    for sharing in [HostSharing::Paths, HostSharing::Granted, HostSharing::Owner] {
        assert_eq!(ask(sharing), [answer(200, "victim"), answer(200, "victim")], "{sharing:?}");
    }
}

/// Challenges of ACME for another namespace's host (row 21 of docs/security.md).
#[test]
fn other_namespaces_cannot_answer_acme_challenges() {
    const CHALLENGE: &str = "/.well-known/acme-challenge/token";
    let quarrel = Quarrel::new();
    let ask = |sharing| {
        let proxy = quarrel.serve(sharing, "", &rule("/", "Prefix").replace("plain.test", "app.test"));
        ["/app", "/", CHALLENGE].map(|path| {
            let response = proxy.client().get("app.test", path);
            (response.status, response.text().to_owned())
        })
    };
    let (victims, evils) = (answer(200, "victim"), answer(200, "evil"));
    assert_eq!(ask(HostSharing::Open), [victims.clone(), evils.clone(), evils.clone()], "the attack");
    let nobody = answer(404, "404 Not Found: no route for this host and path\n");
    assert_eq!(ask(HostSharing::Paths), [victims.clone(), evils, nobody.clone()]);
    assert_eq!(ask(HostSharing::Owner), [victims, nobody.clone(), nobody]);
}

/// Redirects to HTTPS for another namespace's host (row 8 of docs/security.md).
#[test]
fn other_namespaces_cannot_redirect_a_host_to_https() {
    let quarrel = Quarrel::new();
    let spec = "  tls: [{hosts: [plain.test]}]\n  rules: []\n";
    let status = |sharing| quarrel.serve(sharing, "", spec).client().get("plain.test", "/").status;
    assert_eq!(status(HostSharing::Open), 308, "the attack");
    for sharing in [HostSharing::Paths, HostSharing::Granted, HostSharing::Owner] {
        assert_eq!(status(sharing), 200, "{sharing:?}");
    }
}
