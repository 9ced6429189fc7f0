//! Annotations by their effect on requests: from the text of an Ingress to bytes on sockets.

use std::{fmt::Write as _, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use ingress_control::{
    Origin as Source,
    change::{Change, ObjectName},
    cluster::Cluster,
    source::manifests::parse,
    translate::{Options, ServicePattern, translate},
};

use ingress_proxy_testing::{Client, Origin, Proxy, Response, Table};

mod access;
mod authentication;
mod balance;
mod canary;
mod client;
mod client_certificates;
mod compression;
mod datagrams;
mod error_pages;
mod ext_authz;
mod handshakes;
mod headers;
mod health_policy;
mod hosts;
mod http3;
mod key_servers;
mod limits;
mod log;
mod metrics;
mod mirror;
mod passthrough;
mod pods_tls;
mod proxy_headers;
mod redirects;
mod rewrites;
mod routes;
mod services;
mod sharing;
mod sizes;
mod staples;
mod targets;
mod tickets;
mod tokens;
mod traces;
mod urls;
mod violations;

/// Builder of an Ingress, by default for `a.test`, with the objects it refers to.
#[derive(Clone)]
struct Ingress {
    host: &'static str,
    annotations: String,
    paths: String,
    tls: &'static str,
    others: String,
    /// Time of the translation, since 1970, in whole hours.
    hour: Duration,
}

/// An Ingress that is served.
struct Site {
    proxy: Proxy,
    /// Messages of the translation.
    outcomes: String,
}

impl Ingress {
    /// An Ingress with these annotations, each written `key: value` without prefix, and `/` as its path.
    fn with(annotations: &[(&str, &str)]) -> Self {
        let mut text = String::new();
        for (key, value) in annotations {
            let prefix = if key.contains('/') { "" } else { "nginx.ingress.kubernetes.io/" };
            writeln!(text, "    {prefix}{key}: {value:?}").expect("a string takes all");
        }
        let ingress = Self {
            host: "a.test",
            annotations: text,
            paths: String::new(),
            tls: "",
            others: String::new(),
            hour: Duration::ZERO,
        };
        ingress.path("/", "Prefix")
    }

    /// Changes the host.
    fn on(self, host: &'static str) -> Self {
        Self { host, ..self }
    }

    /// Adds a path, or replaces `/` by the first one.
    fn path(mut self, path: &str, kind: &str) -> Self {
        if self.paths.lines().count() == 1 && self.paths.contains("path: \"/\"") {
            self.paths.clear();
        }
        self.paths += &format!(
            "      - {{path: {path:?}, pathType: {kind}, backend: {{service: {{name: web, port: {{number: 80}}}}}}}}\n"
        );
        self
    }

    /// Points its paths to this port of a service instead of `web`.
    fn leading_to(mut self, service: &str, port: u16) -> Self {
        self.paths =
            self.paths.replace("name: web, port: {number: 80}", &format!("name: {service}, port: {{number: {port}}}"));
        self
    }

    /// Gives its host TLS, with the fallback certificate.
    fn with_tls(mut self) -> Self {
        self.tls = "  tls: [{hosts: [a.test]}]\n";
        self
    }

    /// Adds objects, as YAML.
    fn beside(mut self, objects: &str) -> Self {
        self.others += &format!("---\n{objects}\n");
        self
    }

    /// Serves it from `origin`.
    fn serve(&self, origin: &Origin) -> Site {
        self.serve_from(&[origin.address])
    }

    /// Serves it from several pods.
    fn serve_from(&self, endpoints: &[SocketAddr]) -> Site {
        self.serve_with(endpoints, &Options::for_manifests())
    }

    fn serve_with(&self, endpoints: &[SocketAddr], options: &Options) -> Site {
        let (table, outcomes) = self.translated(endpoints, options);
        Site { proxy: Proxy::start(&table), outcomes }
    }

    /// Returns its table, and the messages of the translation.
    fn translated(&self, endpoints: &[SocketAddr], options: &Options) -> (Table, String) {
        let Self { host, annotations, paths, tls, others, hour } = self;
        // Pods of one machine differ by their port, and a slice has only one port.
        let slices: String = (0..).zip(endpoints).map(|(n, endpoint)| slice(n, *endpoint)).collect();
        let text = format!(
            "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: web\n  namespace: default\n  annotations:\n{annotations}\
             spec:\n  ingressClassName: xdp\n{tls}  rules:\n  - host: {host}\n    http:\n      paths:\n{paths}\
             ---\napiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: default}}\nspec: {{ports: [{{port: 80}}]}}\n\
             {slices}{others}"
        );
        let path: Arc<Path> = Path::new("in.yaml").into();
        let parsed = parse(&path, &text);
        assert!(parsed.remarks.is_empty(), "{:?}", parsed.remarks);
        let mut cluster = Cluster::default();
        cluster.hour = *hour;
        for object in parsed.objects {
            cluster.apply(Change::Apply { object, origin: Source::File(Arc::clone(&path)) });
        }
        let mut options = options.clone();
        if options.cross_namespace.is_empty() {
            // Namespaces of the services that the tests' proxies call.
            let allowed = ["auth", "other"].map(|namespace| ServicePattern::parse(namespace).expect("a namespace"));
            options.cross_namespace.extend(allowed);
        }
        let translation = translate(&cluster, &options);
        let outcomes = translation.outcomes.keys().map(|outcome| format!("{outcome}\n")).collect();
        (Table(translation.table), outcomes)
    }
}

fn slice(number: usize, endpoint: SocketAddr) -> String {
    let (ip, port) = (endpoint.ip(), endpoint.port());
    format!(
        "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: web-{number}\n  namespace: default\n  \
         labels: {{kubernetes.io/service-name: web}}\naddressType: IPv4\nports: [{{port: {port}}}]\nendpoints: [{{addresses: [{ip}]}}]\n"
    )
}

/// Options with ConfigMap `default/settings` as the settings.
fn configured() -> Options {
    Options { config_map: Some(ObjectName::new("default", "settings")), ..Options::for_manifests() }
}

impl Site {
    /// Starts a site from a table, without messages.
    fn started(table: &Table) -> Self {
        Self { proxy: Proxy::start(table), outcomes: String::new() }
    }

    /// Returns the site after checking that there were no messages.
    fn in_order(self) -> Self {
        assert_eq!(self.outcomes, "");
        self
    }

    fn client(&self) -> Client {
        self.proxy.client()
    }

    fn get(&self, path: &str) -> Response {
        self.client().get("a.test", path)
    }

    /// Returns the answer to `GET path` with more fields, each with its line end.
    fn ask(&self, path: &str, fields: &str) -> Response {
        self.client().send(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n")).response()
    }

    /// Returns the status and the location of the answer to `GET path`.
    fn location(&self, path: &str) -> (u16, String) {
        let response = self.get(path);
        (response.status, response.header("location").unwrap_or_default().to_owned())
    }
}
