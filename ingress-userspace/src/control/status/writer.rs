//! Writes statuses as planned, several at a time, and clears them when the last replica leaves. It does not decide
//! which.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use k8s_openapi::api::networking::v1::Ingress;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use crate::control::expiry;

use super::{
    Options, Updates, WriteResult,
    access::{Access, Failure, Trouble, ask},
    addresses::Address,
    facts::{Bearer, Facts, Standing},
    manager,
    plan::{Entry, Ledger, Plan, Write, plan, wanted},
    replicas, request_timeout,
};

/// Maximum number of concurrent writes: one client must not keep an API server busy.
const CONCURRENT: usize = 8;
/// Maximum number of writes before the plan is made again.
const ROUND: usize = 64;

const PATCH: Access = Access {
    verb: "patch",
    resource: "ingresses.networking.k8s.io/status",
    lost: "Ingresses do not show where they are served (`--update-status=false` ends the attempts)",
};

/// Writes of one round that may be forbidden before the rest is given up for now.
pub(super) const REFUSED_MAX: usize = 8;

/// Keeps statuses as planned, until the future is dropped.
pub(super) async fn keep(
    client: &Client,
    options: &Options,
    mut facts: watch::Receiver<Arc<Facts>>,
    mut addresses: watch::Receiver<Option<Vec<Address>>>,
) {
    let mut ledger = Ledger::default();
    let mut trouble = Trouble::new(PATCH);
    let (mut before, mut shown): (Option<Arc<Facts>>, Option<Arc<[Entry]>>) = (None, None);
    let mut due = BTreeSet::new();
    loop {
        let entries = addresses.borrow_and_update().as_deref().map(|addresses| wanted(addresses, &options.ports));
        let known = Arc::clone(&facts.borrow_and_update());
        let bearers: Vec<Bearer> = match &before {
            Some(before) if shown == entries => {
                due.append(&mut known.changed_since(before));
                due.iter().filter_map(|name| known.bearer(name)).collect()
            }
            _ => known.bearers().collect(),
        };
        let Plan { mut writes, next, again } =
            plan(&bearers, entries.as_ref(), &mut ledger, options.interval, Instant::now());
        (before, shown, due) = (Some(known), entries, again);
        if writes.is_empty() {
            ledger.prune(options.interval, Instant::now());
            tokio::select! {
                changed = facts.changed() => if changed.is_err() { return },
                changed = addresses.changed() => if changed.is_err() { return },
                () = expiry(next) => {}
            }
            continue;
        }
        writes.truncate(ROUND);
        if let Some(pause) = write_all(client, options, writes, &mut ledger, &mut trouble).await {
            sleep(pause).await;
        }
    }
}

/// Sends all writes. Returns how long to pause if the server refuses them in general. A failure of one object alone is
/// recorded like a success, so that it is tried again after the interval.
async fn write_all(
    client: &Client,
    options: &Options,
    writes: Vec<Write>,
    ledger: &mut Ledger,
    trouble: &mut Trouble,
) -> Option<Duration> {
    let limit = request_timeout(options);
    let manager = &manager(&options.controller);
    let attempts = writes.into_iter().map(|write| async move {
        let result = send(client, manager, &write, limit).await;
        (write, result)
    });
    let mut attempts = stream::iter(attempts).buffer_unordered(CONCURRENT);
    let (mut failed, mut refusal, mut refused, mut succeeded) = (None, None, 0, false);
    while let Some((write, result)) = attempts.next().await {
        let stats = options.handle.stats();
        match result {
            Ok(()) => {
                stats.count_status(WriteResult::Written);
                tracing::debug!(ingress = %write.name, addresses = write.entries.len(), "status written");
                trouble.succeeded();
                succeeded = true;
                ledger.note(write, Instant::now());
            }
            Err(failure) if failure.is_particular() => {
                stats.count_status(failure.result());
                tracing::debug!(ingress = %write.name, %failure, "status not written");
                ledger.note(write, Instant::now());
            }
            // Policies of a namespace answer with 403, too. Only if no write succeeds is the role the likely cause.
            Err(failure @ Failure::Forbidden(_)) if refused < REFUSED_MAX => {
                stats.count_status(failure.result());
                refused += 1;
                tracing::debug!(ingress = %write.name, %failure, "status not written");
                ledger.note(write, Instant::now());
                refusal = Some(failure);
            }
            Err(failure) => {
                stats.count_status(failure.result());
                failed = Some(failure);
                // The rest would fail as well; requests in progress are dropped with the stream.
                break;
            }
        }
    }
    let failed = failed.or(refusal.filter(|_| !succeeded));
    failed.map(|failure| trouble.failed(&failure))
}

async fn send(client: &Client, manager: &str, write: &Write, limit: Duration) -> Result<(), Failure> {
    let api: Api<Ingress> = Api::namespaced(client.clone(), &write.name.namespace);
    // Forced: the Ingress is of this controller's class, so a former writer of its status, most often an earlier
    // controller, does not keep ownership.
    let params = PatchParams::apply(manager).force();
    ask(limit, api.patch_status(&write.name.name, &params, &Patch::Apply(write.body()))).await.map(drop)
}

/// Clears the statuses that show this controller, if no replica remains to serve them.
pub(super) async fn farewell(client: &Client, options: &Options, facts: &watch::Receiver<Arc<Facts>>) {
    if options.updates != Updates::Cleared || !replicas::is_last(client, options).await {
        return;
    }
    let nothing: Arc<[Entry]> = Arc::default();
    // Nothing is served from now on, and there is no time for the delay of Ingresses out of effect.
    let known = Arc::clone(&facts.borrow());
    let bearers: Vec<Bearer> =
        known.bearers().map(|bearer| Bearer { standing: Standing::InEffect, ..bearer }).collect();
    let writes = plan(&bearers, Some(&nothing), &mut Ledger::default(), options.interval, Instant::now()).writes;
    let number = writes.len();
    let mut trouble = Trouble::new(PATCH);
    if write_all(client, options, writes, &mut Ledger::default(), &mut trouble).await.is_none() {
        tracing::info!(number, "cleared the statuses, as the last replica stops");
    }
}
