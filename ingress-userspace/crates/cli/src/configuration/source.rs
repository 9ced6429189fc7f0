//! Where the commands read a configuration from.

use std::{
    cell::RefCell,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, anyhow, bail};
use ingress_control::{Options, SourceConfig, Translation};
use ingress_inspect::{
    CertificateDocument, Explanation, ProblemDocument, RouteDocument, RouteFilter, certificates, explain, routes,
};
use tokio::{runtime::Runtime, sync::Notify};

use super::{Configuration, arguments::ReadArgs, node_client::NodeClient};
use crate::options::read_only;

/// Time for which addresses of external names may come after the first translation.
const NAMES: Duration = Duration::from_secs(2);

/// A configuration of this machine, or of a cluster.
pub(super) enum Source {
    /// The configuration of a process on this node.
    Node(NodeClient),
    /// The configuration that a process with the same options would serve.
    Read(Box<Translation>),
    /// The same, as it changes.
    Followed(Box<Follower>),
}

impl Source {
    /// Returns the source that the options name.
    ///
    /// # Errors
    /// Fails if a directory or cluster cannot be read in time.
    pub(super) fn of(args: ReadArgs) -> Result<Self> {
        let ReadArgs { output, socket, timeout, source, routing } = args;
        let is_named = source.manifests.is_some() || source.kubeconfig.is_some() || source.context.is_some();
        if !is_named && NodeClient::is_there(&socket) {
            return Ok(Self::Node(NodeClient::new(socket, timeout)));
        }
        let (source, options) = read_only(source, routing);
        let what = match &source {
            SourceConfig::Manifests(directory) => format!("the manifests in `{}`", directory.display()),
            SourceConfig::Kubernetes(_) => "the cluster".to_owned(),
        };
        if output.watch {
            let follower = Follower::start(source, options, timeout).with_context(|| format!("cannot read {what}"))?;
            return Ok(Self::Followed(Box::new(follower)));
        }
        let runtime = runtime()?;
        let translation =
            runtime.block_on(read(source, &options, timeout)).with_context(|| format!("cannot read {what}"))?;
        Ok(Self::Read(Box::new(translation)))
    }

    /// Returns what has been read, or a client for the process that has.
    fn translation(&self) -> Result<Reading<'_>> {
        Ok(match self {
            Self::Node(client) => Reading::Node(client),
            Self::Read(translation) => Reading::Here(translation.clone()),
            Self::Followed(follower) => Reading::Here(Box::new(follower.latest()?)),
        })
    }
}

/// What answers a question.
enum Reading<'s> {
    Node(&'s NodeClient),
    Here(Box<Translation>),
}

impl Configuration for Source {
    fn routes(&self, filter: &RouteFilter) -> Result<Vec<RouteDocument>> {
        match self.translation()? {
            Reading::Node(client) => client.list("routes", &parameters(filter)),
            Reading::Here(translation) => {
                Ok(routes(&translation.table, filter).map(|entry| entry.document()).collect())
            }
        }
    }

    fn problems(&self) -> Result<Vec<ProblemDocument>> {
        match self.translation()? {
            Reading::Node(client) => client.list("problems", &[]),
            Reading::Here(translation) => {
                Ok(translation.outcomes.keys().map(|outcome| ProblemDocument::of(outcome, None)).collect())
            }
        }
    }

    fn certificates(&self) -> Result<Vec<CertificateDocument>> {
        match self.translation()? {
            Reading::Node(client) => client.list("certificates", &[]),
            Reading::Here(translation) => {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
                Ok(certificates(&translation.table, i64::try_from(now).unwrap_or(i64::MAX)))
            }
        }
    }

    fn explain(&self, url: &str) -> Result<Explanation> {
        match self.translation()? {
            Reading::Node(client) => Ok(serde_json::from_value(client.get("explain", &[("url", url)])?)?),
            Reading::Here(translation) => Ok(explain(&translation.table, url)?),
        }
    }
}

/// Returns the parameters of the API that select these routes.
pub(crate) fn parameters(filter: &RouteFilter) -> Vec<(&'static str, &str)> {
    let RouteFilter { host, namespace, ingress } = filter;
    let given = [("host", host), ("namespace", namespace), ("ingress", ingress)];
    given.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?))).collect()
}

/// A configuration that another thread reads for as long as the command runs.
pub(super) struct Follower {
    translations: Receiver<Result<Translation>>,
    latest: RefCell<Translation>,
}

impl Follower {
    fn start(source: SourceConfig, options: Options, timeout: Duration) -> Result<Self> {
        let (sender, translations) = mpsc::channel();
        let runtime = runtime()?;
        let work = move || {
            let publish = {
                let sender = sender.clone();
                // An error means that the command has ended.
                move |translation, _received| sender.send(Ok(translation)).unwrap_or_default()
            };
            let ended = runtime.block_on(ingress_control::run(source, &options, publish, std::future::pending()));
            let error = ended.err().map_or_else(|| anyhow!("it ended"), Into::into);
            sender.send(Err(error)).unwrap_or_default();
        };
        thread::Builder::new().name("configuration".to_owned()).spawn(work).context("cannot start a thread")?;
        let late = |_late| anyhow!("no complete answer within {timeout:?}; see `--timeout`");
        let first = translations.recv_timeout(timeout).map_err(late)??;
        if !first.external_names.is_empty() {
            thread::sleep(NAMES);
        }
        Ok(Self { translations, latest: RefCell::new(first) })
    }

    /// Returns the latest translation.
    fn latest(&self) -> Result<Translation> {
        for translation in self.translations.try_iter() {
            self.latest.replace(translation?);
        }
        Ok(self.latest.borrow().clone())
    }
}

fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")
}

/// Returns the first translation of everything that `source` holds. If it names external names, later translations
/// with their addresses are waited for, for a short time.
async fn read(source: SourceConfig, options: &Options, timeout: Duration) -> Result<Translation> {
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
