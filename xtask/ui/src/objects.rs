//! The Kubernetes objects that the product serves for the tests: few hosts as in practice, with troubles and
//! certificates; and many hosts. They are text for the directory that `run --manifests` reads.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::{Value, json};

/// Class of all Ingresses.
const CLASS: &str = "xdp";
/// Hosts that share a service among [`many`].
const HOSTS_OF_A_SERVICE: usize = 100;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A host with requests, a certificate, several rules and a canary.
pub const SHOP: &str = "shop.example.com";
/// A host that only tests send requests to.
pub const QUIET: &str = "quiet.example.com";

/// Returns the IngressClass.
pub fn class() -> String {
    documents(&[json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IngressClass",
        "metadata": {"name": CLASS},
        "spec": {"controller": "xdp-ingress.io/controller"},
    })])
}

/// Returns the objects of a few hosts, served by `pods`. Some have faults that a dashboard should show. Nothing listens
/// at `refusing`.
///
/// # Errors
/// Fails if no certificate can be made.
pub fn few(pods: [SocketAddr; 3], refusing: SocketAddr) -> Result<String> {
    let [one, two, three] = pods;
    let mut objects = Vec::new();
    for (namespace, name, addresses) in [
        ("shop", "web", &[one, two][..]),
        ("shop", "api", &[three]),
        ("shop", "web-next", &[three]),
        ("account", "account", &[one, two, three]),
        ("blog", "blog", &[two]),
        ("preview", "branches", &[two]),
        ("media", "images", &[one, three]),
        ("ops", "grafana", &[one]),
        ("ops", "starting", &[]),
        ("ops", "refusing", &[refusing]),
        ("ops", "quiet", &[two]),
    ] {
        objects.extend(service(namespace, name, addresses));
    }
    let plain = "nginx.ingress.kubernetes.io/ssl-redirect";
    objects.push(ingress(&Rule { tls: Some("shop-tls"), ..Rule::new("shop", "shop", SHOP, "web") }, |object| {
        object["metadata"]["annotations"] = json!({
            plain: "false",
            "nginx.ingress.kubernetes.io/limit-rps": "200",
            "nginx.ingress.kubernetes.io/proxy-read-timeout": "30",
        });
        let paths = &mut object["spec"]["rules"][0]["http"]["paths"];
        let own = paths.take();
        *paths = json!([own[0], path("/api", "Prefix", "api"), path("/healthz", "Exact", "web")]);
    }));
    objects.push(ingress(&Rule::new("shop", "shop-canary", SHOP, "web-next"), |object| {
        object["metadata"]["annotations"] = json!({
            "nginx.ingress.kubernetes.io/canary": "true",
            "nginx.ingress.kubernetes.io/canary-weight": "10",
        });
    }));
    let secure = [
        ("account", "account", "account.example.com", "account", "account-tls"),
        ("media", "images", "images.example.com", "images", "images-tls"),
        ("ops", "grafana", "grafana.example.com", "grafana", "grafana-tls"),
    ];
    for (namespace, name, host, to, secret) in secure {
        objects.push(ingress(&Rule { tls: Some(secret), ..Rule::new(namespace, name, host, to) }, |object| {
            object["metadata"]["annotations"] = json!({plain: "false"});
        }));
    }
    for (namespace, name, host, to) in [
        ("blog", "blog", "blog.example.com", "blog"),
        ("preview", "preview", "*.preview.example.com", "branches"),
        ("ops", "starting", "starting.example.com", "starting"),
        ("ops", "refusing", "refusing.example.com", "refusing"),
        ("ops", "gone", "gone.example.com", "does-not-exist"),
        ("ops", "quiet", QUIET, "quiet"),
    ] {
        objects.push(ingress(&Rule::new(namespace, name, host, to), |_| {}));
    }
    objects.push(ingress(&Rule::new("blog", "old-blog", "old-blog.example.com", "blog"), |object| {
        object["metadata"]["annotations"] = json!({
            "nginx.ingress.kubernetes.io/configuration-snippet": "deny all;",
            "nginx.ingress.kubernetes.io/proxy-read-timeout": "soon",
        });
    }));
    let authority = Authority::new()?;
    // `grafana-tls` is missing.
    for (namespace, name, host, days) in [
        ("shop", "shop-tls", SHOP, 81),
        ("account", "account-tls", "account.example.com", 9),
        ("media", "images-tls", "images.example.com", 52),
    ] {
        let (certificate, key) = authority.sign(host, days)?;
        objects.push(json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"namespace": namespace, "name": name},
            "type": "kubernetes.io/tls",
            "stringData": {"tls.crt": certificate, "tls.key": key},
        }));
    }
    Ok(documents(&objects))
}

/// Returns the objects of `count` hosts. Each has an Ingress of its own; a hundred share a service.
pub fn many(count: usize, pod: SocketAddr) -> String {
    let mut objects = Vec::new();
    for number in 0..count.div_ceil(HOSTS_OF_A_SERVICE) {
        objects.extend(service("many", &format!("s{number}"), &[pod]));
    }
    for number in 0..count {
        let host = nth_host(number);
        let to = format!("s{}", number / HOSTS_OF_A_SERVICE);
        objects.push(ingress(&Rule::new("many", &format!("i{number:05}"), &host, &to), |_| {}));
    }
    documents(&objects)
}

/// Returns the host of this number among [`many`].
pub fn nth_host(number: usize) -> String {
    format!("h{number:05}.example.com")
}

/// Returns an Ingress that sends all of `host` to the service `to`, as text of a manifest.
pub fn whole_host(namespace: &str, name: &str, host: &str, to: &str) -> String {
    documents(&[ingress(&Rule::new(namespace, name, host, to), |_| {})])
}

/// Returns an Ingress whose names and values contain `text` wherever the product takes any text from a directory.
pub fn with_text(name: &str, text: &str, host: &str) -> String {
    documents(&[ingress(&Rule::new("ops", name, host, text), |object| {
        object["metadata"]["annotations"] = json!({
            "nginx.ingress.kubernetes.io/proxy-read-timeout": text,
            "nginx.ingress.kubernetes.io/backend-protocol": text,
        });
        object["spec"]["rules"][0]["http"]["paths"] =
            json!([path("/", "Prefix", text), path(&format!("/{text}"), "ImplementationSpecific", "quiet")]);
    })])
}

/// The parts in which Ingresses of one host differ.
struct Rule<'t> {
    namespace: &'t str,
    name: &'t str,
    host: &'t str,
    to: &'t str,
    tls: Option<&'t str>,
}

impl<'t> Rule<'t> {
    fn new(namespace: &'t str, name: &'t str, host: &'t str, to: &'t str) -> Self {
        Self { namespace, name, host, to, tls: None }
    }
}

fn ingress(rule: &Rule<'_>, change: impl FnOnce(&mut Value)) -> Value {
    let Rule { namespace, name, host, to, tls } = rule;
    let mut object = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"namespace": namespace, "name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "ingressClassName": CLASS,
            "rules": [{"host": host, "http": {"paths": [path("/", "Prefix", to)]}}],
        },
    });
    if let Some(secret) = tls {
        object["spec"]["tls"] = json!([{"hosts": [host], "secretName": secret}]);
    }
    change(&mut object);
    object
}

fn path(path: &str, kind: &str, to: &str) -> Value {
    json!({"path": path, "pathType": kind, "backend": {"service": {"name": to, "port": {"number": 80}}}})
}

/// Returns a service with one EndpointSlice for each address, because slices have one port for all addresses.
fn service(namespace: &str, name: &str, addresses: &[SocketAddr]) -> Vec<Value> {
    let mut objects = vec![json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"ports": [{"port": 80}]},
    })];
    for (number, address) in addresses.iter().enumerate() {
        objects.push(json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "namespace": namespace,
                "name": format!("{name}-{number}"),
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": "IPv4",
            "ports": [{"port": address.port()}],
            "endpoints": [{"addresses": [address.ip()], "conditions": {"ready": true}}],
        }));
    }
    objects
}

/// Formats objects as the text of a manifest: JSON is YAML.
fn documents(objects: &[Value]) -> String {
    objects.iter().map(|object| format!("{object}\n---\n")).collect()
}

/// An authority that signs certificates for a number of days.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "Example Issuing CA");
        let key = KeyPair::generate().context("cannot make a key")?;
        Ok(Self(CertifiedIssuer::self_signed(params, key).context("cannot make an authority")?))
    }

    /// Returns a certificate for `host`, valid for this number of days and an hour, and its key, as PEM.
    fn sign(&self, host: &str, days: u32) -> Result<(String, String)> {
        let key = KeyPair::generate().context("cannot make a key")?;
        let mut params = CertificateParams::new([host.to_owned()]).context("unusable name for a certificate")?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("the clock is before 1970")?;
        params.not_before = rcgen::date_time_ymd(1970, 1, 1) + (now - DAY);
        params.not_after = rcgen::date_time_ymd(1970, 1, 1) + now + DAY * days + DAY / 24;
        let certificate = params.signed_by(&key, &self.0).context("cannot sign a certificate")?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_hosts_have_an_ingress_each() {
        let text = many(250, SocketAddr::from(([127, 0, 0, 1], 80)));
        assert_eq!(text.matches("\"kind\":\"Ingress\"").count(), 250);
        assert_eq!(text.matches("\"kind\":\"Service\"").count(), 3);
        assert!(text.contains(&nth_host(249)) && !text.contains(&nth_host(250)));
    }

    #[test]
    fn hostile_text_stays_inside_of_its_values() {
        let text = with_text("x", "\"><b>", "x.example.com");
        let object: Value = serde_json::from_str(text.trim_end_matches("\n---\n")).expect("JSON");
        assert_eq!(object["spec"]["rules"][0]["http"]["paths"][1]["path"], "/\"><b>");
    }
}
