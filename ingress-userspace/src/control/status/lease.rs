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
    access::{Access, Failure, Trouble, ask},
    election::{Election, Step, Tenure, Terms},
};

/// This process as a candidate in the leader election.
pub(super) struct Campaign {
    /// `None` if this process leads without an election.
    stand: Option<Stand>,
    tenure: watch::Sender<Tenure>,
}

struct Stand {
    api: Api<Lease>,
    name: String,
    election: Election,
    terms: Terms,
    get: Trouble,
    create: Trouble,
    update: Trouble,
}

const LOST: &str = "no leader is elected and this process writes neither statuses nor events";

// === impl Campaign ===

impl Campaign {
    pub(super) fn new(client: &Client, options: &Options, tenure: watch::Sender<Tenure>) -> Self {
        let trouble = |verb| Trouble::new(Access { verb, resource: "leases.coordination.k8s.io", lost: LOST });
        let stand = match &options.leadership {
            Leadership::Always => None,
            Leadership::Elected { lease, ttl } => Some(Stand {
                api: Api::namespaced(client.clone(), &options.namespace),
                name: lease.clone(),
                election: Election::new(lease, &options.identity, Terms::of(*ttl)),
                terms: Terms::of(*ttl),
                get: trouble("get"),
                create: trouble("create"),
                update: trouble("update"),
            }),
        };
        Self { stand, tenure }
    }

    /// Takes the Lease when it is free, and keeps it renewed. Never returns.
    pub(super) async fn run(&mut self) {
        let Self { stand, tenure } = self;
        let Some(stand) = stand else {
            tenure.send_replace(Tenure::Always);
            return std::future::pending().await;
        };
        loop {
            let pause = stand.step().await;
            tenure.send_if_modified(|tenure| std::mem::replace(tenure, stand.election.tenure()) != *tenure);
            sleep(pause).await;
        }
    }

    /// Gives the Lease back if this process holds it, so that no candidate has to wait for its expiry.
    pub(super) async fn resign(&mut self) {
        self.tenure.send_replace(Tenure::Out);
        let Some(Stand { api, name, election, terms, .. }) = &mut self.stand else { return };
        let Some(lease) = election.release(Instant::now(), Timestamp::now()) else { return };
        match ask(terms.request, api.replace(name, &PostParams::default(), &lease)).await {
            Ok(_) => tracing::info!(lease = name, "gave up leadership"),
            Err(failure) => tracing::debug!(lease = name, %failure, "the Lease expires by itself"),
        }
    }
}

// === impl Stand ===

impl Stand {
    /// Renews the Lease or tries to take it. Returns how long to pause.
    async fn step(&mut self) -> Duration {
        let limit = self.terms.request;
        let sent = Instant::now();
        if let Some(lease) = self.election.renewal(sent, Timestamp::now()) {
            match ask(limit, self.api.replace(&self.name, &PostParams::default(), &lease)).await {
                Ok(lease) => {
                    self.update.succeeded();
                    return self.written(lease, sent);
                }
                // Another client wrote to the Lease; read the result.
                Err(Failure::Conflict | Failure::Gone(_)) => {}
                Err(failure) => {
                    let pause = self.update.failed(&failure);
                    return self.pause(pause);
                }
            }
        }
        let read = match ask(limit, self.api.get(&self.name)).await {
            Ok(lease) => Some(lease),
            Err(Failure::Gone(_)) => None,
            Err(failure) => {
                let pause = self.get.failed(&failure);
                return self.pause(pause);
            }
        };
        self.get.succeeded();
        let sent = Instant::now();
        let (result, trouble) = match self.election.read(read, sent, Timestamp::now()) {
            Step::Wait => return self.stagger(),
            Step::Create(lease) => {
                (ask(limit, self.api.create(&PostParams::default(), &lease)).await, &mut self.create)
            }
            Step::Replace(lease) => {
                (ask(limit, self.api.replace(&self.name, &PostParams::default(), &lease)).await, &mut self.update)
            }
        };
        match result {
            Ok(lease) => {
                trouble.succeeded();
                self.written(lease, sent)
            }
            // Another candidate was faster. The next step reads which one.
            Err(Failure::Conflict) => self.stagger(),
            Err(failure) => {
                let pause = trouble.failed(&failure);
                self.pause(pause)
            }
        }
    }

    fn written(&mut self, lease: Lease, sent: Instant) -> Duration {
        self.election.written(lease, sent, Instant::now());
        self.terms.retry
    }

    /// Caps a pause after an error. A leader has no time for long pauses, and while this process does not lead, another
    /// one may not lead either.
    fn pause(&self, pause: Duration) -> Duration {
        let is_held = self.election.tenure().is_held(Instant::now());
        pause.min(if is_held { self.terms.ttl / 15 } else { self.terms.ttl })
    }

    /// Returns the pause of waiting candidates, spread by identity so that they do not all write at once.
    fn stagger(&self) -> Duration {
        let hash = super::events::fnv(self.election.identity().as_bytes());
        let spread = u32::try_from(hash % 256).unwrap_or_default();
        self.terms.retry + self.terms.retry * spread / 1024
    }
}
