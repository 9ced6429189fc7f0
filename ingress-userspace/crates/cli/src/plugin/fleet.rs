//! Requests to the API of each pod, through a port that the API server forwards.
//!
//! A pod without an answer is told on standard error, and makes the command fail in the end. The others are shown.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    fmt::Display,
    pin::Pin,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Config,
    api::{ListParams, Portforwarder},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::Value;
use tokio::{io::DuplexStream, runtime::Runtime, task::JoinHandle};

use super::{
    arguments::{ClusterArgs, InstallationArgs, OtherInstallationArgs},
    pods::{ControllerPod, one_per_node},
};
use crate::{
    configuration::{PAGE, target},
    palette::{Palette, Tone},
};

/// Maximum size of an answer; a page of a list is far smaller, metrics of 10,000 hosts have 18 MB.
const ANSWER_MAX: usize = 64 << 20;
/// Time for which the reason of a failure is waited for, which comes by a way of its own.
const REASON: Duration = Duration::from_secs(1);
/// Number of pods that are asked at once.
const AT_ONCE: usize = 16;

/// The pods of an installation.
pub(super) struct Fleet {
    runtime: Runtime,
    api: Api<Pod>,
    namespace: String,
    cluster: ClusterArgs,
    /// Whether a pod gave no answer.
    has_failed: Cell<bool>,
    /// Messages about such pods, while a screen is drawn.
    held: RefCell<Option<BTreeSet<String>>>,
}

/// The API of a pod, over one connection.
pub(super) struct Connection {
    requests: SendRequest<Empty<Bytes>>,
    /// Moves the bytes of requests and answers.
    driver: JoinHandle<()>,
    carrier: Carrier,
}

/// Carries bytes between a stream and a port of a pod until it is dropped.
pub(super) struct Carrier {
    forwarder: Portforwarder,
    /// The reason why the pod cannot be reached.
    error: Option<Pin<Box<dyn Future<Output = Option<String>> + Send>>>,
}

/// A pod, and its answer.
pub(super) type Answered<T> = (ControllerPod, T);

impl From<OtherInstallationArgs> for InstallationArgs {
    fn from(OtherInstallationArgs { controller_namespace, cluster }: OtherInstallationArgs) -> Self {
        Self { namespace: controller_namespace, cluster }
    }
}

// === impl Fleet ===

impl Fleet {
    /// Returns the pods of the installation. None is asked yet.
    ///
    /// # Errors
    /// Fails if the kubeconfig cannot be read or used.
    pub(super) fn of(installation: impl Into<InstallationArgs>) -> Result<Self> {
        let InstallationArgs { namespace, cluster } = installation.into();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
        let api = Api::namespaced(runtime.block_on(client(&cluster))?, &namespace);
        Ok(Self { runtime, api, namespace, cluster, has_failed: Cell::new(false), held: RefCell::default() })
    }

    /// Returns whether each pod has answered so far.
    pub(super) fn is_complete(&self) -> bool {
        !self.has_failed.get()
    }

    pub(super) fn api(&self) -> &Api<Pod> {
        &self.api
    }

    /// Waits for `work`, in which connections to pods go on.
    pub(super) fn wait_for<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Returns the pod that answers for each node, in the order of the nodes.
    ///
    /// # Errors
    /// Fails if the API server does not answer, or there is no such pod.
    pub(super) fn pods(&self) -> Result<Vec<ControllerPod>> {
        let ClusterArgs { selector, node, admin_port, .. } = &self.cluster;
        let parameters = ListParams::default().labels(selector);
        let list = self.wait_for(self.api.list(&parameters));
        let list = list.with_context(|| format!("cannot list the pods of namespace `{}`", self.namespace))?;
        ensure!(
            !list.items.is_empty(),
            "no pod of namespace `{}` has the labels `{selector}`; name the namespace and the labels of the controller",
            self.namespace
        );
        let mut pods = one_per_node(list.items.iter().map(ControllerPod::of).collect());
        if let Some(node) = node {
            pods.retain(|pod| pod.node == *node);
            ensure!(!pods.is_empty(), "no pod of the controller is on node `{node}`");
        }
        for pod in &mut pods {
            pod.admin_port = admin_port.unwrap_or(pod.admin_port);
        }
        Ok(pods)
    }

    /// Returns the answers of all pods to `ask`, in the order of the nodes.
    ///
    /// # Errors
    /// Fails if no pod answers.
    pub(super) fn ask<T>(&self, ask: impl AsyncFn(Connection) -> Result<T>) -> Result<Vec<Answered<T>>> {
        let pods = self.pods()?;
        let (ask, timeout) = (&ask, self.cluster.timeout);
        let answer = |pod: ControllerPod| async move {
            let answer = async { ask(Connection::to(&self.api, &pod).await?).await };
            let answer = tokio::time::timeout(timeout, answer).await.unwrap_or_else(|_late| Err(late(timeout)));
            (pod, answer)
        };
        let all = stream::iter(pods.into_iter().map(answer)).buffered(AT_ONCE).collect::<Vec<_>>();
        let mut answered = Vec::new();
        for (pod, answer) in self.wait_for(all) {
            match answer {
                Ok(answer) => answered.push((pod, answer)),
                Err(error) => self.tell(&pod, &error),
            }
        }
        ensure!(!answered.is_empty(), "no pod has answered");
        Ok(answered)
    }

    /// Returns all items of a list of the API, by pod.
    ///
    /// # Errors
    /// Fails like [`Fleet::ask`].
    pub(super) fn list<T: serde::de::DeserializeOwned>(
        &self,
        name: &str,
        parameters: &[(&str, &str)],
    ) -> Result<Vec<Answered<Vec<T>>>> {
        self.ask(async |mut connection| {
            let items = connection.list(name, parameters).await?;
            items.into_iter().map(|item| Ok(serde_json::from_value(item)?)).collect()
        })
    }

    /// Tells that a pod gave no answer.
    pub(super) fn tell(&self, pod: &ControllerPod, error: &anyhow::Error) {
        self.has_failed.set(true);
        let message = format!("node {}, pod {}: {error:#}", pod.node, pod.name);
        match &mut *self.held.borrow_mut() {
            Some(held) => {
                held.insert(message);
            }
            None => warn(message, Tone::Error),
        }
    }

    /// Runs `draw`, which has the terminal for itself. Messages about pods come after it, each once.
    pub(super) fn on_screen<T>(&self, draw: impl FnOnce() -> T) -> T {
        self.held.replace(Some(BTreeSet::new()));
        let result = draw();
        for message in self.held.take().into_iter().flatten() {
            warn(message, Tone::Error);
        }
        result
    }
}

/// Prints a line on standard error.
pub(super) fn warn(text: impl Display, tone: Tone) {
    eprintln!("{}", Palette::of_stderr().paint(tone, &text.to_string()));
}

fn late(timeout: Duration) -> anyhow::Error {
    anyhow::anyhow!("no answer within {timeout:?}; see `--timeout`")
}

async fn client(ClusterArgs { kubeconfig, context, .. }: &ClusterArgs) -> Result<Client> {
    let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
    let config = match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).with_context(|| format!("cannot read `{}`", path.display()))?;
            Config::from_custom_kubeconfig(file, &options).await
        }
        None => Config::from_kubeconfig(&options).await,
    };
    let config = config.context("cannot use the kubeconfig; see `--kubeconfig` and `--context`")?;
    Client::try_from(config).context("cannot make a client of the API server")
}

// === impl Connection ===

impl Connection {
    /// Connects to the admin address of a pod.
    pub(super) async fn to(api: &Api<Pod>, pod: &ControllerPod) -> Result<Self> {
        let (stream, carrier) = forward(api, pod).await?;
        let (requests, connection) = http1::handshake(TokioIo::new(stream)).await.context("cannot speak HTTP")?;
        let driver = tokio::spawn(async {
            // The failure is that of a request, too.
            let _failed = connection.await.is_err();
        });
        Ok(Self { requests, driver, carrier })
    }

    /// Returns the answer for one resource of the API.
    pub(super) async fn one(&mut self, name: &str, parameters: &[(&str, &str)]) -> Result<Value> {
        let (status, body) = self.fetch(&target(name, parameters)).await?;
        let body: Value =
            serde_json::from_str(&body).with_context(|| format!("the pod answers {status} without JSON"))?;
        match status {
            StatusCode::OK => Ok(body),
            _ => bail!("{}", body["error"].as_str().unwrap_or("the process gives no reason")),
        }
    }

    /// Returns all items of a list of the API.
    pub(super) async fn list(&mut self, name: &str, parameters: &[(&str, &str)]) -> Result<Vec<Value>> {
        let mut items = Vec::new();
        loop {
            let (offset, limit) = (items.len().to_string(), PAGE.to_string());
            let page = [("offset", &*offset), ("limit", &*limit)];
            let mut answer = self.one(name, &[parameters, &page].concat()).await?;
            let Value::Array(part) = answer["items"].take() else { bail!("`{name}` is no list") };
            let is_last = part.is_empty();
            items.extend(part);
            if is_last || items.len() as u64 >= answer["total"].as_u64().unwrap_or_default() {
                return Ok(items);
            }
        }
    }

    /// Returns the metrics.
    pub(super) async fn metrics(&mut self) -> Result<String> {
        match self.fetch("/metrics").await? {
            (StatusCode::OK, body) => Ok(body),
            (status, _) => bail!("the pod answers {status} to `/metrics`"),
        }
    }

    async fn fetch(&mut self, target: &str) -> Result<(StatusCode, String)> {
        // The API answers on loopback to requests for an IP address or `localhost` only.
        let request = Request::get(target).header(header::HOST, "localhost").body(Empty::new())?;
        let response = match self.requests.send_request(request).await {
            Ok(response) => response,
            Err(error) => return Err(self.carrier.failure(error.into()).await),
        };
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("the answer breaks off: {error}"))?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Returns a stream to the admin address of a pod, and what carries its bytes.
///
/// # Errors
/// Fails if the pod does not run, or the API server refuses.
pub(super) async fn forward(api: &Api<Pod>, pod: &ControllerPod) -> Result<(DuplexStream, Carrier)> {
    let ControllerPod { name, phase, admin_port, .. } = pod;
    ensure!(phase == "Running", "the pod is {phase}");
    let mut forwarder = api.portforward(name, &[*admin_port]).await.with_context(|| {
        format!("cannot forward port {admin_port}; you need the right to `create` pods/portforward")
    })?;
    let stream = forwarder.take_stream(*admin_port).context("the API server forwards no stream")?;
    let error = forwarder.take_error(*admin_port).map(|error| Box::pin(error) as _);
    Ok((stream, Carrier { forwarder, error }))
}

// === impl Carrier ===

impl Carrier {
    /// Returns the failure of a connection, with the reason that the node gives.
    pub(super) async fn failure(&mut self, error: anyhow::Error) -> anyhow::Error {
        let reason = match self.error.take() {
            Some(reason) => tokio::time::timeout(REASON, reason).await.ok().flatten(),
            None => None,
        };
        let advice = "no answer on the admin address, which must be on loopback or on all addresses (`--admin-addr`)";
        match reason {
            Some(reason) => anyhow::anyhow!("{advice}: {}", reason.trim()),
            None => error.context(advice),
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.forwarder.abort();
    }
}
