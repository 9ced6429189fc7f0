//! Carries out the steps of an [`Election`] at the API server, and publishes the leader state. It does not decide who
//! leads.

use std::time::Duration;

use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::{Api, Client, api::PostParams};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{
    Leadership, Options,
    access::{Permission, RequestFailure, RetryLog, ask},
    election::{Election, LeaderState, LeaseStep, LeaseTimings},
};
use crate::hash::fnv;

/// This process as a candidate in the leader election.
pub(super) struct LeaderElector {
    /// `None` if this process leads without an election.
    candidate: Option<Candidate>,
    leader_state: watch::Sender<LeaderState>,
}

struct Candidate {
    api: Api<Lease>,
    name: String,
    election: Election,
    timings: LeaseTimings,
    get: RetryLog,
    create: RetryLog,
    update: RetryLog,
}

const LOST: &str = "no leader is elected and this process writes neither statuses nor events";

// === impl LeaderElector ===

impl LeaderElector {
    pub(super) fn new(client: &Client, options: &Options, leader_state: watch::Sender<LeaderState>) -> Self {
        let retry_log = |verb| RetryLog::new(Permission { verb, resource: "leases.coordination.k8s.io", lost: LOST });
        let candidate = match &options.leadership {
            Leadership::Always => None,
            Leadership::Elected { lease, ttl } => Some(Candidate {
                api: Api::namespaced(client.clone(), &options.namespace),
                name: lease.clone(),
                election: Election::new(lease, &options.identity, LeaseTimings::of(*ttl)),
                timings: LeaseTimings::of(*ttl),
                get: retry_log("get"),
                create: retry_log("create"),
                update: retry_log("update"),
            }),
        };
        Self { candidate, leader_state }
    }

    /// Takes the Lease when it is free, and keeps it renewed. Never returns.
    pub(super) async fn run(&mut self) {
        let Self { candidate, leader_state } = self;
        let Some(candidate) = candidate else {
            leader_state.send_replace(LeaderState::Always);
            return std::future::pending().await;
        };
        loop {
            let pause = candidate.step().await;
            leader_state.send_if_modified(|leader_state| {
                std::mem::replace(leader_state, candidate.election.leader_state()) != *leader_state
            });
            sleep(pause).await;
        }
    }

    /// Gives the Lease back if this process holds it, so that no candidate has to wait for its expiry.
    pub(super) async fn resign(&mut self) {
        self.leader_state.send_replace(LeaderState::Out);
        let Some(Candidate { api, name, election, timings, .. }) = &mut self.candidate else { return };
        let Some(lease) = election.release(Instant::now(), Timestamp::now()) else { return };
        match ask(timings.request, api.replace(name, &PostParams::default(), &lease)).await {
            Ok(_) => tracing::info!(lease = name, "gave up leadership"),
            Err(failure) => tracing::debug!(lease = name, %failure, "the Lease expires by itself"),
        }
    }
}

// === impl Candidate ===

impl Candidate {
    /// Renews the Lease or tries to take it. Returns how long to pause.
    async fn step(&mut self) -> Duration {
        let limit = self.timings.request;
        let sent = Instant::now();
        if let Some(lease) = self.election.renewal(sent, Timestamp::now()) {
            match ask(limit, self.api.replace(&self.name, &PostParams::default(), &lease)).await {
                Ok(lease) => {
                    self.update.succeeded();
                    return self.written(lease, sent);
                }
                // Another client wrote to the Lease; read the result.
                Err(RequestFailure::Conflict | RequestFailure::Gone(_)) => {}
                Err(failure) => {
                    let pause = self.update.failed(&failure);
                    return self.pause(pause);
                }
            }
        }
        let read = match ask(limit, self.api.get(&self.name)).await {
            Ok(lease) => Some(lease),
            Err(RequestFailure::Gone(_)) => None,
            Err(failure) => {
                let pause = self.get.failed(&failure);
                return self.pause(pause);
            }
        };
        self.get.succeeded();
        let sent = Instant::now();
        let (result, retry_log) = match self.election.read(read, sent, Timestamp::now()) {
            LeaseStep::Wait => return self.stagger(),
            LeaseStep::Create(lease) => {
                (ask(limit, self.api.create(&PostParams::default(), &lease)).await, &mut self.create)
            }
            LeaseStep::Replace(lease) => {
                (ask(limit, self.api.replace(&self.name, &PostParams::default(), &lease)).await, &mut self.update)
            }
        };
        match result {
            Ok(lease) => {
                retry_log.succeeded();
                self.written(lease, sent)
            }
            // Another candidate was faster. The next step reads which one.
            Err(RequestFailure::Conflict) => self.stagger(),
            Err(failure) => {
                let pause = retry_log.failed(&failure);
                self.pause(pause)
            }
        }
    }

    fn written(&mut self, lease: Lease, sent: Instant) -> Duration {
        self.election.written(lease, sent, Instant::now());
        self.timings.retry
    }

    /// Caps a pause after an error. A leader has no time for long pauses, and while this process does not lead, another
    /// one may not lead either.
    fn pause(&self, pause: Duration) -> Duration {
        let is_held = self.election.leader_state().is_held(Instant::now());
        pause.min(if is_held { self.timings.ttl / 15 } else { self.timings.ttl })
    }

    /// Returns the pause of waiting candidates, spread by identity so that they do not all write at once.
    fn stagger(&self) -> Duration {
        let hash = fnv(self.election.identity().as_bytes());
        let spread = u32::try_from(hash % 256).unwrap_or_default();
        self.timings.retry + self.timings.retry * spread / 1024
    }
}
