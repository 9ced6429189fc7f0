//! Reports to the cluster: addresses in the status of the Ingresses served, statuses of the Gateway API, and Warning
//! events about problems of objects. This module decides nothing about routes, and no other part waits for it.
//!
//! ```text
//! watch ──input──┬─> plan ──────> writer ──> ingresses/status          one leader among
//!  addresses ────┼─> gateway ──────────────> gateways/status, …        all replicas, by
//!                └─> events ────> recorder ─> events                   a Lease
//! ```
//!
//! `StatusTask` is the whole of it as the control loop sees it. Each part has a pure core (`election`, `plan`, `events`, and
//! the reading of addresses) and a thin edge that talks to the API server. New input replaces the previous input, so
//! nothing piles up behind a slow API server.

use std::{sync::Arc, time::Duration};

use kube::Client;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, timeout_at},
};

use super::{
    Contact, SourceConfig, SourceError, Translation,
    change::{Change, Kind, Object, ObjectName},
    cluster::Cluster,
    source,
};
use ingress_panics::vital;
use options::manager;

mod access;
mod address_watcher;
mod addresses;
mod batch;
mod budget;
mod election;
mod events;
pub(crate) mod field_owners;
mod gateway;
mod handle;
mod input;
mod lease;
mod options;
mod plan;
mod recorder;
mod replicas;
mod writer;

pub use addresses::{Address, InvalidAddress, NodeAddresses, Publish};
pub use handle::{Results, StatusCounters, StatusHandle, WriteResult};
pub use options::{Leadership, Options, Updates};

use budget::{Churn, WriteBudget};
use election::LeaderState;
use input::StatusInput;

/// Time limit for all steps of leaving after the signal: an API server that does not answer must not delay a shutdown.
pub const FAREWELL: Duration = Duration::from_secs(8);

/// The task and the sender of its input. Owned by the control loop; without options or an API server it does nothing.
#[derive(Debug)]
pub(super) struct StatusTask {
    /// The field manager of this controller's entries.
    manager: Arc<str>,
    input: Option<watch::Sender<Arc<StatusInput>>>,
    churn: Arc<Churn>,
    running: JoinSet<()>,
}

// === impl StatusTask ===

impl StatusTask {
    /// Starts the task if there are options and `source` is an API server.
    ///
    /// # Errors
    /// If no client can be made for the API server.
    pub(super) async fn begin(source: &SourceConfig, options: Option<&Options>) -> Result<Self, SourceError> {
        match (source, options) {
            (SourceConfig::Kubernetes(config), Some(options)) => {
                let client = source::kube::connect(config, &Contact::default()).await?;
                Ok(Self::with_client(client, options.clone()))
            }
            _ => Ok(Self { manager: Arc::default(), input: None, churn: Arc::default(), running: JoinSet::new() }),
        }
    }

    fn with_client(client: Client, options: Options) -> Self {
        let (input, receiver) = watch::channel(Arc::default());
        let (manager, churn) = (manager(&options.controller).into(), Arc::default());
        let mut running = JoinSet::new();
        running.spawn(vital(run(client, options, receiver, Arc::clone(&churn))));
        Self { manager, input: Some(input), churn, running }
    }

    /// Hands over the state served now, which replaces any earlier input. `received` is the time at which this process
    /// received the first change of it, if the translation has changed.
    pub(super) fn update(&self, cluster: &Cluster, translation: &Translation, received: Option<Instant>) {
        if let Some(sender) = &self.input {
            if received.is_some() {
                self.churn.note(Instant::now());
            }
            let input = StatusInput::new(cluster, translation, &self.manager).received_at(received);
            sender.send_replace(Arc::new(input));
        }
    }

    /// Lets the task leave: it clears statuses if this is the last replica, and gives the Lease back.
    pub(super) async fn end(mut self) {
        drop(self.input.take());
        // The task has its own time limit; this one ends the wait even if that should fail.
        let deadline = Instant::now() + FAREWELL + Duration::from_secs(1);
        if timeout_at(deadline, self.running.join_next()).await.is_err() {
            tracing::warn!("the API server did not answer in time; status and leadership stay as they are");
        }
    }
}

/// Returns `true` if `change` may matter to statuses although the translation stays the same.
pub(super) fn concerns(change: &Change) -> bool {
    match change {
        Change::Apply { object: Object::Ingress(_) | Object::GatewayApi(_), origin: _ } => true,
        Change::Remove(id) => id.kind == Kind::Ingress || gateway::bears_status(id.kind),
        _ => false,
    }
}

/// Runs the leader election; writes statuses and events while leading. Returns when the input ends or the handle
/// signals to leave.
async fn run(client: Client, options: Options, input: watch::Receiver<Arc<StatusInput>>, churn: Arc<Churn>) {
    let handle = Arc::clone(&options.handle);
    let (sender, leader_state) = watch::channel(LeaderState::Out);
    let mut elector = lease::LeaderElector::new(&client, &options, sender);
    tokio::select! {
        biased;
        () = handle.left() => {}
        () = ended(input.clone()) => {}
        () = elector.run() => {}
        () = serve_terms(&client, &options, &input, &churn, leader_state.clone()) => {}
        () = gateway::answer(options::asked_at(&options), input.clone()) => {}
    }
    handle.stats().set_leader(false);
    let deadline = Instant::now() + FAREWELL;
    let office = *leader_state.borrow();
    if office.is_held(Instant::now()) {
        let until = office.end().map_or(deadline, |end| end.min(deadline));
        let known = Arc::clone(&input.borrow());
        if timeout_at(until, farewell(&client, &options, &known)).await.is_err() {
            tracing::warn!("the API server did not answer in time; some statuses are not cleared");
        }
    }
    if timeout_at(deadline, elector.resign()).await.is_err() {
        tracing::debug!("the Lease was not released; it expires by itself");
    }
}

/// Clears the statuses that show this controller, if no replica remains to serve them.
async fn farewell(client: &Client, options: &Options, known: &StatusInput) {
    if options.updates != Updates::Cleared || !replicas::is_last(client, options).await {
        return;
    }
    // In a hurry.
    let budget = &WriteBudget::new(&Arc::default());
    tokio::join!(writer::clear(client, options, budget, known), gateway::clear(client, options, budget, known));
}

/// Resolves when the sender of the input is dropped.
async fn ended(mut input: watch::Receiver<Arc<StatusInput>>) {
    while input.changed().await.is_ok() {}
}

/// Writes during each term, one term after the other.
async fn serve_terms(
    client: &Client,
    options: &Options,
    input: &watch::Receiver<Arc<StatusInput>>,
    churn: &Arc<Churn>,
    mut leader_state: watch::Receiver<LeaderState>,
) {
    // The sender belongs to the elector, which outlives this future.
    while leader_state.wait_for(|leader_state| leader_state.is_held(Instant::now())).await.is_ok() {
        options.handle.stats().set_leader(true);
        tokio::select! {
            // Polled first at every step, so that no write begins after the end of the term.
            biased;
            () = election::out_of_office(&mut leader_state) => {}
            () = serve_term(client, options, input, churn) => {}
        }
        options.handle.stats().set_leader(false);
    }
}

/// Writes until the future is dropped.
async fn serve_term(client: &Client, options: &Options, input: &watch::Receiver<Arc<StatusInput>>, churn: &Arc<Churn>) {
    let (sender, addresses) = watch::channel(None);
    let budget = &WriteBudget::new(churn);
    let statuses = async {
        if options.updates == Updates::Never {
            std::future::pending::<()>().await;
        }
        tokio::join!(
            address_watcher::watch(client, options, &sender),
            writer::keep(client, options, budget, input.clone(), addresses.clone()),
            gateway::keep(client, options, budget, input.clone(), addresses)
        );
    };
    let services = gateway::keep_services(client, options, budget, input.clone());
    tokio::join!(statuses, services, recorder::keep(client, options, input.clone()));
}

#[cfg(test)]
mod tests;
