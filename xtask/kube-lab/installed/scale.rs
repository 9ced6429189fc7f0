//! Behaviour in a large cluster: many Ingresses, each with a host of its own, without and with a Secret of its own for
//! TLS. Only the API server is large; the pods are few. `XDP_INGRESS_SCALE=N` sets the number of hosts (1,000) and
//! `XDP_INGRESS_TLS_SCALE=N` that of hosts with TLS (200), `XDP_INGRESS_BINARY=PATH` another build of the product, such
//! as that of the release profile.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use futures_util::{StreamExt as _, TryStreamExt as _, future::ready, stream};
use ingress_lab::{
    Lab, Process,
    client::{Ask, Connection, Protocol, Trust, block_on},
    credentials::{Authority, Signed},
};
use k8s_openapi::api::{core::v1::Secret, networking::v1::Ingress};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use rcgen::KeyPair;
use serde_json::json;

use crate::stage::{Scope, Stage, ask_from, number, product, quantile, stage, until};

/// Concurrent writes to the API server.
const TOGETHER: usize = 32;
/// Changes that are timed once all Ingresses exist.
const CHANGES: usize = 50;

/// Addresses of the product under test, in the control plane's namespace.
const HTTP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 21080);
const HTTPS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 21443);
/// Hosts with TLS to which a handshake is made.
const HANDSHAKES: usize = 200;

/// Ingresses of one host each, in a namespace and a class of their own.
struct Hosts<'s> {
    scope: &'s Scope<'s>,
    class: &'static str,
    count: usize,
    /// The content of the Secret of each Ingress; without one, hosts have no TLS.
    certificate: Option<Signed>,
}

impl Hosts<'_> {
    fn host(&self, name: &str, number: usize) -> String {
        format!("{name}{number}.{}.test", self.class)
    }

    async fn put(&self, api: &Api<Ingress>, number: usize, host: String) -> kube::Result<Ingress> {
        let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
        let paths = json!([{"path": "/", "pathType": "Prefix", "backend": backend}]);
        let mut spec = json!({"ingressClassName": self.class, "rules": [{"host": host, "http": {"paths": paths}}]});
        if self.certificate.is_some() {
            spec["tls"] = json!([{"hosts": [host], "secretName": format!("s{number}")}]);
        }
        Stage::put(api, &format!("i{number}"), &spec).await
    }

    /// Writes all objects.
    fn write(&self) -> anyhow::Result<()> {
        let Self { scope, class, count, certificate } = self;
        let name = &scope.name;
        scope.share(&format!(
            "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {{name: {class}}}\nspec: {{controller: {class}.test/{class}}}\n"
        ));
        scope.apply(&refusing());
        let began = Instant::now();
        scope.stage.cluster.control()?.run(|| {
            block_on(async {
                if let Some(certificate) = certificate {
                    let secrets: &Api<Secret> = &scope.stage.api(name).await?;
                    let content = json!({"tls.crt": certificate.certificate(), "tls.key": certificate.key()});
                    let write = async |number| {
                        let name = format!("s{number}");
                        let object = json!({
                            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
                            "metadata": {"name": name}, "stringData": content,
                        });
                        secrets.patch(&name, &PatchParams::apply("tests").force(), &Patch::Apply(&object)).await
                    };
                    let writes = stream::iter(0..*count).map(write).buffer_unordered(TOGETHER);
                    writes.try_for_each(|_| ready(Ok(()))).await.context("cannot write the Secrets")?;
                }
                let api = &scope.stage.api(name).await?;
                let writes = stream::iter(0..*count).map(|number| self.put(api, number, self.host("i", number)));
                let writes = writes.buffer_unordered(TOGETHER);
                writes.try_for_each(|_| ready(Ok(()))).await.context("cannot write the Ingresses")
            })
        })?;
        println!("{class}: {count} Ingresses written in {:?}", began.elapsed());
        Ok(())
    }

    /// Starts a product for the class, beside the control plane, and waits until it is ready.
    fn serve(&self, lab: &Lab) -> anyhow::Result<Process> {
        let Self { scope, class, count, certificate: _ } = self;
        let binary = std::env::var_os("XDP_INGRESS_BINARY").map_or_else(|| product().to_path_buf(), PathBuf::from);
        let mut run = Command::new(binary);
        run.args(["run", "--steer", "bind", "--xdp-mode", "off", "--workers", "1"])
            .args(["--controller-class", &format!("{class}.test/{class}"), "--election-id", class])
            .args(["--http-port", &HTTP.port().to_string(), "--https-port", &HTTPS.port().to_string()])
            .args(["--admin-addr", "127.0.0.1:21090", "--update-status=false", "--host-capacity", "65536"])
            .arg("--kubeconfig")
            .arg(scope.stage.cluster.places().kubeconfig())
            .env("POD_NAMESPACE", &scope.name)
            .env("NO_COLOR", "1");
        let began = Instant::now();
        let process = lab.spawn(&scope.stage.cluster.control()?, class, run)?;
        until("it is ready", || if process.log().contains(" ready ") { Ok(()) } else { Err(process.log_tail(3)) });
        let (took, resident) = (began.elapsed(), resident(process.pid()));
        println!("{class}: ready {took:?} after its start with {count} Ingresses, RSS {resident} MB");
        Ok(process)
    }

    /// Measures from the API server's answer to a change of a host until a request sees the change.
    fn change(&self, pid: i32) -> anyhow::Result<()> {
        let Self { scope, class, count, certificate: _ } = self;
        let mut delays: Vec<Duration> = scope.stage.cluster.control()?.run(|| {
            block_on(async {
                let api = &scope.stage.api(&scope.name).await?;
                let mut delays = Vec::new();
                for change in 0..CHANGES {
                    let host = self.host("c", change);
                    let ask = Ask::get(&host, "/");
                    let mut connection = Connection::open(HTTP, Protocol::Http1, &host, &Trust::none()).await?;
                    self.put(api, change, host.clone()).await?;
                    let written = Instant::now();
                    // Without TLS, the endpoint refuses: 502 says that the host is known. With it, plain HTTP is
                    // redirected.
                    while ![502, 308].contains(&connection.send(&ask).await?.status.as_u16()) {
                        anyhow::ensure!(written.elapsed() < Duration::from_secs(30), "`{host}` is not known");
                        tokio::time::sleep(Duration::from_micros(500)).await;
                    }
                    delays.push(written.elapsed());
                }
                Ok(delays)
            })
        })?;
        println!(
            "{class}: with {count} Ingresses, a change is live after its write is answered: median {:?}, p99 {:?}; RSS {} MB",
            quantile(&mut delays, 0.5),
            quantile(&mut delays, 0.99),
            resident(pid),
        );
        Ok(())
    }
}

#[test]
fn many_ingresses_are_read_soon_and_changed_soon() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let scope = stage.scope("scale");
    let lab = Lab::open("scale").expect("a place for logs");
    let count = number("XDP_INGRESS_SCALE", 1_000);
    let hosts = Hosts { scope: &scope, class: "scale", count, certificate: None };
    hosts.write().expect("all are written");
    let process = hosts.serve(&lab).expect("it starts");
    hosts.change(process.pid()).expect("changes are seen");
}

/// The limit of Secrets that one object may name does not bound how many hosts have certificates of their own.
#[test]
fn many_hosts_have_a_certificate_each() {
    let Some(stage) = stage() else { return };
    let _alone = stage.alone();
    let scope = stage.scope("tls-scale");
    let lab = Lab::open("tls-scale").expect("a place for logs");
    let authority = Authority::generate().expect("an authority");
    let key = KeyPair::generate().expect("a key");
    let certificate = Some(authority.sign(&["*.tlsscale.test"], &key).expect("a certificate"));
    let count = number("XDP_INGRESS_TLS_SCALE", 200);
    let hosts = Hosts { scope: &scope, class: "tlsscale", count, certificate };
    hosts.write().expect("all are written");
    let process = hosts.serve(&lab).expect("it starts");
    let (trust, began) = (authority.trust().expect("a trust store"), Instant::now());
    let control = stage.cluster.control().expect("the control plane's namespace");
    for number in (0..count).step_by(count.div_ceil(HANDSHAKES).max(1)) {
        let host = hosts.host("i", number);
        // A host without its certificate fails the handshake: the default one is not trusted.
        until(&format!("{host} has its certificate"), || {
            match ask_from(&control, HTTPS, Protocol::Https1, &trust, &Ask::get(&host, "/")) {
                Ok(answer) if answer.status == 502 => Ok(()),
                Ok(answer) => Err(answer.status.to_string()),
                Err(error) => Err(format!("{error:#}")),
            }
        });
    }
    println!("tlsscale: every tested host has its certificate {:?} after the process is ready", began.elapsed());
    hosts.change(process.pid()).expect("changes are seen");
}

/// Returns the Service `web` with an endpoint that refuses connections. A missing one would be a problem to report, 10,000
/// times.
pub(crate) fn refusing() -> String {
    crate::objects::service("web", "{port: 80}").replace("selector: {app: web}, ", "")
        + "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web, labels: {kubernetes.io/service-name: web}}\n\
           addressType: IPv4\nports: [{port: 1, protocol: TCP}]\nendpoints: [{addresses: [10.99.0.100]}]\n"
}

/// Returns the resident memory of a process in MB.
pub(crate) fn resident(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number") / 1024
}
