//! Where the commands read a configuration from.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, bail};
use ingress_control::{SourceConfig, Translation};
use ingress_inspect::{
    CertificateDocument, Explanation, ProblemDocument, RouteDocument, RouteFilter, certificates, explain, routes,
};
use tokio::sync::Notify;

use super::{arguments::ReadArgs, node_client::NodeClient};
use crate::options::read_only;

/// Time for which addresses of external names may come after the first translation.
const NAMES: Duration = Duration::from_secs(2);

/// A configuration that can be asked about.
pub(super) enum Source {
    /// The configuration of a process on this node.
    Node(NodeClient),
    /// The configuration that a process with the same options would serve.
    Read(Box<Translation>),
}

impl Source {
    /// Returns the source that the options name.
    ///
    /// # Errors
    /// Fails if a directory or cluster cannot be read in time.
    pub(super) fn of(args: ReadArgs) -> Result<Self> {
        let ReadArgs { output: _, socket, timeout, source, routing } = args;
        let is_named = source.manifests.is_some() || source.kubeconfig.is_some() || source.context.is_some();
        if !is_named && NodeClient::is_there(&socket) {
            return Ok(Self::Node(NodeClient::new(socket, timeout)));
        }
        let (source, options) = read_only(source, routing);
        let what = match &source {
            SourceConfig::Manifests(directory) => format!("the manifests in `{}`", directory.display()),
            SourceConfig::Kubernetes(_) => "the cluster".to_owned(),
        };
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
        let translation =
            runtime.block_on(read(source, &options, timeout)).with_context(|| format!("cannot read {what}"))?;
        Ok(Self::Read(Box::new(translation)))
    }

    pub(super) fn routes(&self, filter: &RouteFilter) -> Result<Vec<RouteDocument>> {
        match self {
            Self::Node(client) => {
                let RouteFilter { host, namespace, ingress } = filter;
                let given = [("host", host), ("namespace", namespace), ("ingress", ingress)];
                let given: Vec<_> = given.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))).collect();
                client.list("routes", &given)
            }
            Self::Read(translation) => Ok(routes(&translation.table, filter).map(|entry| entry.document()).collect()),
        }
    }

    pub(super) fn problems(&self) -> Result<Vec<ProblemDocument>> {
        match self {
            Self::Node(client) => client.list("problems", &[]),
            Self::Read(translation) => {
                Ok(translation.outcomes.keys().map(|outcome| ProblemDocument::of(outcome, None)).collect())
            }
        }
    }

    pub(super) fn certificates(&self) -> Result<Vec<CertificateDocument>> {
        match self {
            Self::Node(client) => client.list("certificates", &[]),
            Self::Read(translation) => {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
                Ok(certificates(&translation.table, i64::try_from(now).unwrap_or(i64::MAX)))
            }
        }
    }

    pub(super) fn explain(&self, url: &str) -> Result<Explanation> {
        match self {
            Self::Node(client) => Ok(serde_json::from_value(client.get("explain", &[("url", url)])?)?),
            Self::Read(translation) => Ok(explain(&translation.table, url)?),
        }
    }
}

/// Returns the first translation of everything that `source` holds. If it names external names, later translations
/// with their addresses are waited for, for a short time.
async fn read(source: SourceConfig, options: &ingress_control::Options, timeout: Duration) -> Result<Translation> {
    let latest: Arc<(Mutex<Option<Translation>>, Notify)> = Arc::default();
    let publish = {
        let latest = Arc::clone(&latest);
        move |translation, _received| {
            *latest.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(translation);
            latest.1.notify_one();
        }
    };
    let take = || latest.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let complete = async {
        latest.1.notified().await;
        if take().is_some_and(|translation| !translation.external_names.is_empty()) {
            tokio::time::sleep(NAMES).await;
        }
    };
    let work = ingress_control::run(source, options, publish, complete);
    match tokio::time::timeout(timeout, work).await {
        Ok(ended) => ended?,
        Err(_late) => bail!("no complete answer within {timeout:?}; see `--timeout`"),
    }
    take().context("it ended before everything was read")
}
