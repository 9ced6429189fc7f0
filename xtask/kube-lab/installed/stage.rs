//! The tests' view of the cluster: applying objects, sending requests to nodes, waiting. It creates and removes only
//! namespaces, and the objects that tests create outside of them.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use ingress_lab::{
    Namespace,
    capability::skipped,
    client::{Answer, Ask, Connection, Protocol, Trust, block_on},
    load::{Clients, Connections, Load, Target},
};
use k8s_openapi::{NamespaceResourceScope, api::networking::v1::Ingress};
use kube::{
    Api, Client, Config, Resource,
    api::{Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use xtask_kube_lab::{Cluster, NodePlan};
use xtask_setup::build::{self, Profile};
use xtask_tools::process::is_required;

use crate::objects::pods;

/// Longest wait for any state of the cluster: pods start and end in seconds, and machines may be busy.
const LIMIT: Duration = Duration::from_secs(120);
/// Default admin address of the product, which only its node reaches.
const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9110);
/// Pause between two looks at something that kubectl shows.
const LOOK: Duration = Duration::from_millis(100);
/// Pause of each client of the usual load between two requests.
const PAUSE: Duration = Duration::from_millis(2);
/// Label of the objects that a scope has created outside of its namespace.
pub(crate) const SCOPE: &str = "xdp-ingress.test/scope";

/// The cluster under test and its client.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) client: Namespace,
    shared: RwLock<()>,
}

/// The Kubernetes namespace of one test. At the end of the test it is deleted, without waiting, along with the test's
/// objects outside of it.
pub(crate) struct Scope<'s> {
    pub(crate) stage: &'s Stage,
    pub(crate) name: String,
}

/// Returns the program that is in the image.
pub(crate) fn product() -> &'static Path {
    static PRODUCT: OnceLock<PathBuf> = OnceLock::new();
    PRODUCT.get_or_init(|| build::userspace(Profile::Dev).expect("the product"))
}

/// Returns the stage, or `None` where there is no cluster to test in.
pub(crate) fn stage() -> Option<&'static Stage> {
    static STAGE: OnceLock<Option<Stage>> = OnceLock::new();
    STAGE.get_or_init(Stage::find).as_ref()
}

impl Stage {
    fn find() -> Option<Self> {
        // The cluster's namespaces can only be entered as root.
        let cluster =
            if xtask_tools::process::is_root() { Cluster::running().expect("the cluster's state") } else { None };
        let Some(cluster) = cluster else {
            assert!(
                !is_required("REQUIRE_KUBE"),
                "there is no cluster, and REQUIRE_KUBE=1; run `cargo xtask test cluster` as root"
            );
            skipped("the installed product", "there is no cluster; run `cargo xtask test cluster` as root");
            return None;
        };
        let client = cluster.client().expect("the client's namespace");
        Some(Self { cluster, client, shared: RwLock::new(()) })
    }

    /// Lock for tests that may run beside others.
    pub(crate) fn beside_others(&self) -> RwLockReadGuard<'_, ()> {
        // A test that failed while it was alone has reported that itself.
        self.shared.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Lock for tests that change shared state.
    pub(crate) fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.shared.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Creates a namespace for the test of this name.
    pub(crate) fn scope(&self, name: &str) -> Scope<'_> {
        // Objects left by an interrupted run would be mistaken for this test's.
        let name = format!("t-{name}");
        self.kubectl(&["delete", "namespace", &name, "--ignore-not-found"]);
        self.unshare(&name).unwrap_or_else(|error| panic!("{error:#}"));
        self.apply(&format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n"));
        // After another test has stopped the API server, controllers come back late.
        let limit = format!("--timeout={}s", LIMIT.as_secs());
        let account = ["wait", "--for=create", "serviceaccount/default", &limit, "--namespace", &name];
        self.kubectl(&account);
        Scope { stage: self, name }
    }

    /// Deletes the objects that a scope has shared.
    fn unshare(&self, scope: &str) -> anyhow::Result<()> {
        let kinds = "ingressclasses,clusterroles,clusterrolebindings";
        self.cluster.kubectl(&["delete", kinds, &format!("--selector={SCOPE}={scope}")]).map(drop)
    }

    pub(crate) fn kubectl(&self, args: &[&str]) -> String {
        self.cluster.kubectl(args).unwrap_or_else(|error| panic!("kubectl {}: {error:#}", args.join(" ")))
    }

    /// Returns an object as JSON.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let text = self.kubectl(&[args, &["--output=json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("kubectl {}: {error}", args.join(" ")))
    }

    pub(crate) fn apply(&self, manifests: &str) {
        self.cluster.apply(manifests).unwrap_or_else(|error| panic!("{error:#}\n{manifests}"));
    }

    /// Objects of one kind in a namespace, for more writes than kubectl could do in time. To be used inside of the
    /// control plane's namespace.
    pub(crate) async fn api<K>(&self, namespace: &str) -> anyhow::Result<Api<K>>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Ok(Api::namespaced(self.connect().await?, namespace))
    }

    /// Returns a client of the API server, to be used as [`Self::api`] is.
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        let file = Kubeconfig::read_from(self.cluster.places().kubeconfig())?;
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }

    /// Writes an Ingress by server-side apply: an annotation with all of the object, as kubectl has it, would be too large
    /// for some.
    pub(crate) async fn put(api: &Api<Ingress>, name: &str, spec: &Value) -> kube::Result<Ingress> {
        let object =
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": name}, "spec": spec});
        api.patch(name, &PatchParams::apply("tests").force(), &Patch::Apply(&object)).await
    }

    pub(crate) fn nodes(&self) -> Vec<NodePlan> {
        self.cluster.nodes()
    }

    /// Returns the metrics of the product on a node.
    pub(crate) fn metrics(&self, node: NodePlan) -> String {
        let namespace = Namespace::open(&node.namespace()).expect("the node's namespace");
        let ask = Ask::get("127.0.0.1", "/metrics");
        let answer = ask_from(&namespace, ADMIN, Protocol::Http1, &Trust::none(), &ask).expect("metrics");
        assert_eq!(answer.status, 200, "{answer:?}");
        String::from_utf8(answer.text).expect("UTF-8")
    }

    /// Sends one request over a new connection.
    pub(crate) fn try_ask(
        &self,
        to: SocketAddr,
        protocol: Protocol,
        trust: &Trust,
        ask: &Ask,
    ) -> anyhow::Result<Answer> {
        ask_from(&self.client, to, protocol, trust, ask)
    }

    /// Sends `GET http://host/path` to a node.
    pub(crate) fn get(&self, node: NodePlan, host: &str, path: &str) -> anyhow::Result<Answer> {
        self.try_ask(http(node), Protocol::Http1, &Trust::none(), &Ask::get(host, path))
    }

    /// Waits until every node answers `GET http://host/path` as `wanted`.
    pub(crate) fn await_answer(&self, host: &str, path: &str, wanted: impl Fn(&Answer) -> bool) {
        for node in self.nodes() {
            until(&format!("{} answers {host}{path} as expected", node.name()), || match self.get(node, host, path) {
                Ok(answer) if wanted(&answer) => Ok(()),
                Ok(answer) => Err(format!("{} from {:?}", answer.status, answer.pod())),
                Err(error) => Err(format!("{error:#}")),
            });
        }
    }

    pub(crate) fn await_status(&self, host: &str, path: &str, status: u16) {
        self.await_answer(host, path, |answer| answer.status == status);
    }

    /// Waits until each node runs the DaemonSet's current pod, and it is ready. Previous pods may still drain.
    pub(crate) fn await_rollout(&self) {
        self.kubectl(&["--namespace=xdp-ingress", "rollout", "status", "daemonset/xdp-ingress", "--timeout=600s"]);
    }

    /// Waits until the product's previous pods are gone, and not only outnumbered.
    pub(crate) fn await_drained(&self) {
        until("the old pods have drained", || {
            let pods = self.json(&["--namespace=xdp-ingress", "get", "pods"]);
            let count = pods["items"].as_array().map_or(0, Vec::len);
            if count == self.nodes().len() { Ok(()) } else { Err(format!("{count} pods")) }
        });
    }

    /// Starts the usual load on a node: that of [`Self::loads_at`], and, where `trust` is given, HTTP/2.
    pub(crate) fn loads(&self, node: NodePlan, host: &str, trust: Option<&Trust>) -> Vec<(String, Load)> {
        let mut loads = self.loads_at(http(node), host, &node.name());
        if let Some(trust) = trust {
            let target = Target { addr: https(node), protocol: Protocol::Https2, trust: trust.clone() };
            let name = format!("http/2 by {}", node.name());
            loads.push(self.load(name, target, host, Connections::Kept));
        }
        loads
    }

    /// Starts the usual load without TLS on an address: kept connections, new ones, and WebSockets. `by` names it in reports.
    pub(crate) fn loads_at(&self, to: SocketAddr, host: &str, by: &str) -> Vec<(String, Load)> {
        let kinds = [("kept", Connections::Kept), ("new", Connections::New), ("websockets", Connections::WebSockets)];
        kinds.map(|(name, connections)| self.load(format!("{name} by {by}"), to.into(), host, connections)).into()
    }

    fn load(&self, name: String, target: Target, host: &str, connections: Connections) -> (String, Load) {
        let pause = if matches!(connections, Connections::WebSockets) { Duration::ZERO } else { PAUSE };
        let clients = Clients { target, ask: Ask::get(host, "/"), count: 2, from: Vec::new(), connections, pause };
        let load = Load::of(&self.client, clients).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        (name, load)
    }
}

impl Scope<'_> {
    /// Applies manifests of namespaced objects that name no namespace.
    pub(crate) fn apply(&self, manifests: &str) {
        let placed: String = manifests.replace("\nmetadata: {", &format!("\nmetadata: {{namespace: {}, ", self.name));
        self.stage.apply(&placed);
    }

    /// Applies manifests of objects that have no namespace (IngressClasses, ClusterRoles and their bindings).
    pub(crate) fn share(&self, manifests: &str) {
        let label = format!("\nmetadata: {{labels: {{{SCOPE}: {}}}, ", self.name);
        self.stage.apply(&manifests.replace("\nmetadata: {", &label));
    }

    pub(crate) fn kubectl(&self, args: &[&str]) -> String {
        self.stage.kubectl(&[&["--namespace", self.name.as_str()], args].concat())
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        self.stage.json(&[&["--namespace", self.name.as_str()], args].concat())
    }

    /// Runs the given number of test pods behind a Service of each name, and waits until they are ready.
    pub(crate) fn run(&self, services: &[(&str, usize)]) {
        self.apply(&services.iter().map(|(name, replicas)| pods(name, *replicas)).collect::<String>());
        self.await_pods(&services.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    }

    /// Waits until every pod of these Deployments is ready.
    pub(crate) fn await_pods(&self, deployments: &[&str]) {
        for name in deployments {
            self.kubectl(&["rollout", "status", &format!("deployment/{name}"), "--timeout=120s"]);
        }
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        let namespace = self.stage.cluster.kubectl(&["delete", "namespace", &self.name, "--wait=false"]).map(drop);
        mended(&format!("deleting `{}`", self.name), namespace.and(self.stage.unshare(&self.name)));
    }
}

/// Reports the result of restoring state in a test's guard. A failure fails the test, unless the test has failed
/// already.
pub(crate) fn mended(what: &str, result: anyhow::Result<()>) {
    match result {
        Ok(()) => {}
        Err(error) if std::thread::panicking() => println!("{what} failed as well: {error:#}"),
        Err(error) => panic!("{what} failed: {error:#}"),
    }
}

/// Returns the number in this variable of the environment, or the default.
pub(crate) fn number<N: std::str::FromStr>(variable: &str, usual: N) -> N {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("`{variable}={text}` is no number; correct it or unset it")),
        Err(_) => usual,
    }
}

/// Sends one request over a new connection from this namespace.
pub(crate) fn ask_from(
    namespace: &Namespace,
    to: SocketAddr,
    protocol: Protocol,
    trust: &Trust,
    ask: &Ask,
) -> anyhow::Result<Answer> {
    namespace.run(|| {
        block_on(async {
            let mut connection = Connection::open(to, protocol, &ask.host, trust).await?;
            connection.send(ask).await
        })
    })
}

pub(crate) fn http(node: NodePlan) -> SocketAddr {
    (node.v4(), 80).into()
}

pub(crate) fn https(node: NodePlan) -> SocketAddr {
    (node.v4(), 443).into()
}

/// Waits until `look` succeeds; panics with its last complaint.
pub(crate) fn until<T>(what: &str, look: impl FnMut() -> Result<T, String>) -> T {
    until_within(LIMIT, what, look)
}

/// Waits at most for `limit`, as [`until`].
pub(crate) fn until_within<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let began = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(complaint) if began.elapsed() > limit => panic!("waited {limit:?} until {what}: {complaint}"),
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

/// Ends loads and demands that nothing failed.
pub(crate) fn demand_no_failure(what: &str, loads: Vec<(String, Load)>) {
    let mut failures = Vec::new();
    for (name, load) in loads {
        let report = load.stop().with_context(|| name.clone()).expect("load ends");
        println!("{what}: {name}: {} answered, {} failed", report.answered, report.failed);
        if report.failed > 0 {
            failures.push(format!("{name}: {} failed, as {:?}", report.failed, report.reasons));
        }
    }
    assert!(failures.is_empty(), "{what}: {failures:#?}");
}

/// Returns the quantile `share` of `values`.
pub(crate) fn quantile(values: &mut [Duration], share: f64) -> Duration {
    values.sort_unstable();
    #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "a share of a small length")]
    let index = ((values.len() as f64 - 1.0) * share).round() as usize;
    values[index]
}
