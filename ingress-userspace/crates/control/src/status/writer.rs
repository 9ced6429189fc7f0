//! Writes statuses of Ingresses as planned, and clears them when the last replica leaves. It does not decide which.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::FutureExt;
use k8s_openapi::api::networking::v1::Ingress;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{
    Options,
    access::{Permission, RequestFailure, RetryLog, ask},
    addresses::Address,
    batch::send_all,
    budget::{WriteBudget, in_turn},
    input::{ManagedIngress, ManagedState, StatusInput},
    options::{manager, request_timeout},
    plan::{RecentWrites, StatusEntry, StatusPlan, Write, plan, wanted},
};
use crate::clock::expiry;

const PATCH: Permission = Permission {
    verb: "patch",
    resource: "ingresses.networking.k8s.io/status",
    lost: "Ingresses do not show where they are served (`--update-status=false` ends the attempts)",
};

/// Keeps statuses as planned, until the future is dropped.
pub(super) async fn keep(
    client: &Client,
    options: &Options,
    budget: &WriteBudget,
    mut input: watch::Receiver<Arc<StatusInput>>,
    mut addresses: watch::Receiver<Option<Vec<Address>>>,
) {
    let mut ledger = RecentWrites::default();
    let mut retry_log = RetryLog::new(PATCH);
    let (mut before, mut shown): (Option<Arc<StatusInput>>, Option<Arc<[StatusEntry]>>) = (None, None);
    let (mut due, mut latest) = (BTreeSet::new(), None);
    loop {
        let entries = addresses.borrow_and_update().as_deref().map(|addresses| wanted(addresses, &options.ports));
        let known = Arc::clone(&input.borrow_and_update());
        let managed_ingresses: Vec<ManagedIngress> = match &before {
            Some(before) if shown == entries => {
                due.append(&mut known.changed_since(before));
                due.iter().filter_map(|name| known.managed(name)).collect()
            }
            _ => known.managed_ingresses().collect(),
        };
        let StatusPlan { writes, next, again } =
            plan(&managed_ingresses, entries.as_ref(), &mut ledger, options.interval, Instant::now());
        (before, shown, due) = (Some(known), entries, again);
        if writes.is_empty() {
            ledger.prune(options.interval, Instant::now());
            tokio::select! {
                changed = input.changed() => if changed.is_err() { return },
                changed = addresses.changed() => if changed.is_err() { return },
                () = expiry(next) => {}
            }
            continue;
        }
        let writes = in_turn(writes, |write| &write.name, latest.as_ref(), budget.round());
        latest = writes.last().map(|write| write.name.clone());
        if let Some(pause) = write_all(client, options, budget, writes, &mut ledger, &mut retry_log).await {
            sleep(pause).await;
        }
    }
}

/// Sends all writes. Returns how long to pause if the server refuses them in general. A failure of one object alone is
/// recorded like a success, so that it is tried again after the interval.
async fn write_all(
    client: &Client,
    options: &Options,
    budget: &WriteBudget,
    writes: Vec<Write>,
    ledger: &mut RecentWrites,
    retry_log: &mut RetryLog,
) -> Option<Duration> {
    let limit = request_timeout(options);
    let manager = &manager(&options.controller);
    let attempt = |write: Write| {
        let attempt = async move {
            let result = send(client, manager, &write, limit).await;
            (write, result)
        };
        attempt.boxed()
    };
    let attempts = writes.into_iter().map(attempt).collect();
    let note = |write: Write, result: Result<(), RequestFailure>| {
        match result {
            Ok(()) => tracing::debug!(ingress = %write.name, addresses = write.entries.len(), "status written"),
            Err(failure) => tracing::debug!(ingress = %write.name, %failure, "status not written"),
        }
        ledger.note(write, Instant::now());
    };
    let failure = send_all(attempts, budget, options.handle.stats(), retry_log, note).await;
    failure.map(|failure| retry_log.failed(&failure))
}

async fn send(client: &Client, manager: &str, write: &Write, limit: Duration) -> Result<(), RequestFailure> {
    let api: Api<Ingress> = Api::namespaced(client.clone(), &write.name.namespace);
    // Forced: the Ingress is of this controller's class, so a former writer of its status, most often an earlier
    // controller, does not keep ownership.
    let params = PatchParams::apply(manager).force();
    ask(limit, api.patch_status(&write.name.name, &params, &Patch::Apply(write.body()))).await.map(drop)
}

/// Clears the statuses that show this controller, when no replica remains to serve them.
pub(super) async fn clear(client: &Client, options: &Options, budget: &WriteBudget, known: &StatusInput) {
    let nothing: Arc<[StatusEntry]> = Arc::default();
    // Nothing is served from now on, and there is no time for the delay of Ingresses out of effect.
    let managed_ingresses: Vec<ManagedIngress> = known
        .managed_ingresses()
        .map(|managed| ManagedIngress { managed_state: ManagedState::InEffect, ..managed })
        .collect();
    let writes =
        plan(&managed_ingresses, Some(&nothing), &mut RecentWrites::default(), options.interval, Instant::now()).writes;
    let number = writes.len();
    let mut retry_log = RetryLog::new(PATCH);
    if write_all(client, options, budget, writes, &mut RecentWrites::default(), &mut retry_log).await.is_none() {
        tracing::info!(number, "cleared the statuses of Ingresses, as the last replica stops");
    }
}
