//! Tells the cluster about itself: addresses in the status of the Ingresses that are served, and Warning events about
//! what is wrong with objects. It decides nothing about routes, and nothing waits for it.
//!
//! ```text
//! watch ──Facts──┬─> plan ──────> writer ──> ingresses/status     one leader among
//!  addresses ────┘                                                all replicas, by
//!       └──────────> events ────> recorder ─> events              a Lease
//! ```
//!
//! `Task` is the whole of it as the control loop sees it. Each part has a pure core (`election`, `plan`, `events`,
//! and the reading of addresses) and a thin edge that talks to the API server. What is handed in replaces what was
//! handed in before, so nothing piles up however slow the API server is.

use std::{sync::Arc, time::Duration};

use kube::Client;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout_at},
};

use super::{
    Contact, Error, SourceConfig, Translation,
    change::{Change, Kind, Object, ObjectName},
    cluster::Cluster,
    source,
};
use crate::panics::vital;

mod access;
mod addresses;
mod election;
mod events;
mod facts;
mod handle;
mod lease;
mod lookout;
mod plan;
mod recorder;
mod replicas;
mod writer;

pub use addresses::{Address, InvalidAddress, NodeAddresses, Publish};
pub use handle::{Handle, Results, Stats, WriteResult};

use election::{Tenure, Terms};
use facts::Facts;
pub(super) use facts::reduce;

/// The field manager under which statuses are applied, and by which they are known as ours.
const MANAGER: &str = "xdp-ingress";

/// Longest name of a field manager (apimachinery, `FieldManagerMaxLength`).
const MANAGER_MAX: usize = 128;

/// All that a process does to leave, once told to: an API server that does not answer must not hold a shutdown up.
pub const FAREWELL: Duration = Duration::from_secs(8);

/// What the operator tells about status and events.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether statuses are written. Events are written, and a leader elected, in either case. Default on.
    pub updates: Updates,
    pub publish: Publish,
    /// The ports that statuses name, with protocol TCP. Default 80 and 443.
    pub ports: Vec<u16>,
    /// How long a status that another writer changed stays as it is, and how long one that could not be written is left
    /// alone. Changes of our own are written at once. Default 60 s.
    pub interval: Duration,
    pub leadership: Leadership,
    /// Where the Lease and the pods of this controller are. Default `xdp-ingress`.
    pub namespace: String,
    /// The name of this replica in the Lease and in events; that of its pod. At most 128 bytes are shown in events.
    pub identity: String,
    /// `spec.controller` of our classes, which events carry as the reporter. Default `xdp-ingress.io/controller`.
    pub controller: String,
    /// What this process shares with the task.
    pub handle: Arc<Handle>,
}

/// Which statuses are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Updates {
    /// None.
    Never,
    /// Those of the Ingresses served, and they stay when the last replica leaves.
    Kept,
    /// Those of the Ingresses served, and they are cleared when the last replica leaves.
    #[default]
    Cleared,
}

/// Who writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// The holder of the Lease of this name. Default `xdp-ingress-leader`, 30 s.
    Elected { lease: String, ttl: Duration },
    /// This process, whatever others do.
    Always,
}

/// The task and what it is fed by. Owned by the control loop; without options or an API server it does nothing.
#[derive(Debug)]
pub(super) struct Task {
    /// The field manager of what is ours.
    manager: Arc<str>,
    facts: Option<watch::Sender<Arc<Facts>>>,
    running: JoinSet<()>,
}

/// The field manager of the installations with this controller. Others may be in the cluster, with classes of their
/// own, and what they wrote is theirs.
fn manager(controller: &str) -> String {
    if controller == Options::default().controller {
        return MANAGER.into();
    }
    // What controllers have in common is in front, so the end is what counts.
    let name = format!("{MANAGER}:{controller}");
    if name.len() <= MANAGER_MAX {
        return name;
    }
    let start = name.ceil_char_boundary(name.len() - (MANAGER_MAX - MANAGER.len() - 1));
    format!("{MANAGER}:{}", &name[start..])
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Self {
            updates: Updates::default(),
            publish: Publish::default(),
            ports: vec![80, 443],
            interval: Duration::from_secs(60),
            leadership: Leadership::default(),
            namespace: "xdp-ingress".into(),
            identity: "xdp-ingress".into(),
            controller: "xdp-ingress.io/controller".into(),
            handle: Arc::default(),
        }
    }
}

impl Default for Leadership {
    fn default() -> Self {
        Self::Elected { lease: "xdp-ingress-leader".into(), ttl: Duration::from_secs(30) }
    }
}

// === impl Task ===

impl Task {
    /// Begins, if there are options and `source` is an API server.
    ///
    /// # Errors
    /// If no client can be made for the API server.
    pub(super) async fn begin(source: &SourceConfig, options: Option<&Options>) -> Result<Self, Error> {
        match (source, options) {
            (SourceConfig::Kubernetes(config), Some(options)) => {
                let client = source::kube::connect(config.kubeconfig.as_deref(), &Contact::default()).await?;
                Ok(Self::with_client(client, options.clone()))
            }
            _ => Ok(Self { manager: Arc::default(), facts: None, running: JoinSet::new() }),
        }
    }

    fn with_client(client: Client, options: Options) -> Self {
        let (facts, receiver) = watch::channel(Arc::default());
        let manager = manager(&options.controller).into();
        let mut running = JoinSet::new();
        running.spawn(vital(run(client, options, receiver)));
        Self { manager, facts: Some(facts), running }
    }

    /// Hands over what is served now, in place of what was handed over before.
    pub(super) fn tell(&self, cluster: &Cluster, translation: &Translation) {
        if let Some(facts) = &self.facts {
            facts.send_replace(Arc::new(Facts::new(cluster, translation, &self.manager)));
        }
    }

    /// Lets the task leave: clear statuses if this is the last replica, and give the Lease back.
    pub(super) async fn end(mut self) {
        drop(self.facts.take());
        // It bounds what it does itself; were that wrong, it would end here all the same.
        let deadline = Instant::now() + FAREWELL + Duration::from_secs(1);
        if timeout_at(deadline, self.running.join_next()).await.is_err() {
            tracing::warn!("status and leadership are left as they are; the API server did not answer in time");
        }
    }
}

/// Whether `change` may matter to statuses although it leaves the translation as it is.
pub(super) fn concerns(change: &Change) -> bool {
    match change {
        Change::Apply { object: Object::Ingress(_), origin: _ } => true,
        Change::Remove(id) => id.kind == Kind::Ingress,
        _ => false,
    }
}

/// Stands for election and, while elected, writes; until the facts end or the handle says to leave.
async fn run(client: Client, options: Options, facts: watch::Receiver<Arc<Facts>>) {
    let handle = Arc::clone(&options.handle);
    let (sender, tenure) = watch::channel(Tenure::Out);
    let mut campaign = lease::Campaign::new(&client, &options, sender);
    tokio::select! {
        biased;
        () = handle.left() => {}
        () = ended(facts.clone()) => {}
        () = campaign.run() => {}
        () = serve_terms(&client, &options, &facts, tenure.clone()) => {}
    }
    handle.stats().set_leader(false);
    let deadline = Instant::now() + FAREWELL;
    let office = *tenure.borrow();
    if office.is_held(Instant::now()) {
        let until = office.end().map_or(deadline, |end| end.min(deadline));
        if timeout_at(until, writer::farewell(&client, &options, &facts)).await.is_err() {
            tracing::warn!("statuses are not all cleared; the API server did not answer in time");
        }
    }
    if timeout_at(deadline, campaign.resign()).await.is_err() {
        tracing::debug!("the Lease is not given back; it expires by itself");
    }
}

/// Resolves when nobody hands facts over any more.
async fn ended(mut facts: watch::Receiver<Arc<Facts>>) {
    while facts.changed().await.is_ok() {}
}

/// Writes while in office, again and again.
async fn serve_terms(
    client: &Client,
    options: &Options,
    facts: &watch::Receiver<Arc<Facts>>,
    mut tenure: watch::Receiver<Tenure>,
) {
    // The sender lives as long as the campaign, which outlives this.
    while tenure.wait_for(|tenure| tenure.is_held(Instant::now())).await.is_ok() {
        options.handle.stats().set_leader(true);
        tokio::select! {
            // Asked first at every step, so that nothing begins after the end of the term.
            biased;
            () = election::out_of_office(&mut tenure) => {}
            () = serve_term(client, options, facts) => {}
        }
        options.handle.stats().set_leader(false);
    }
}

/// Writes until it is dropped.
async fn serve_term(client: &Client, options: &Options, facts: &watch::Receiver<Arc<Facts>>) {
    let (sender, addresses) = watch::channel(None);
    let statuses = async {
        if options.updates == Updates::Never {
            std::future::pending::<()>().await;
        }
        tokio::join!(
            lookout::follow(client, options, &sender),
            writer::keep(client, options, facts.clone(), addresses)
        );
    };
    tokio::join!(statuses, recorder::keep(client, options, facts.clone()));
}

/// How long one request may take. A request that was sent before a term ended is done with before another's can begin.
fn request_timeout(options: &Options) -> Duration {
    match &options.leadership {
        Leadership::Elected { lease: _, ttl } => Terms::of(*ttl).request,
        Leadership::Always => Terms::LONGEST_REQUEST,
    }
}

#[cfg(test)]
mod tests;
