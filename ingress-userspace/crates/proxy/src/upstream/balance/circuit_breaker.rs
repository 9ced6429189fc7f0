//! The limit of concurrent requests of an upstream, counted exactly for the whole node, and the queue for a place.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use ingress_model::CircuitBreaker;

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// Every place is taken, and waiting is disabled.
    Connections,
    /// The queue for a place is full.
    Pending,
    /// The request has waited for a place until its timeout.
    Waited,
    /// Every endpoint is at its limit of requests.
    Requests,
}

/// A semaphore with as many places for requests as the limit allows, and a bounded queue.
#[derive(Debug)]
pub(super) struct Gate {
    places: Arc<Semaphore>,
    waiting: AtomicU32,
    waiting_max: u32,
}

/// Guard of one queued request.
struct Waiting<'g>(&'g AtomicU32);

impl Full {
    pub const ALL: [Self; 4] = [Self::Connections, Self::Pending, Self::Waited, Self::Requests];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Pending => "pending",
            Self::Waited => "waited",
            Self::Requests => "requests",
        }
    }
}

impl Gate {
    pub(super) fn new(circuit_breaker: CircuitBreaker) -> Option<Self> {
        let CircuitBreaker { requests: _, connections, pending } = circuit_breaker;
        let places = Arc::new(Semaphore::new(connections?.get() as usize));
        Some(Self { places, waiting: AtomicU32::new(0), waiting_max: pending })
    }

    /// Acquires a place, which is held until the returned permit is dropped.
    pub(super) async fn enter(&self, wait: Duration) -> Result<OwnedSemaphorePermit, Full> {
        if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
            return Ok(place);
        }
        let one_more = |waiting| (waiting < self.waiting_max).then_some(waiting + 1);
        self.waiting
            .fetch_update(Relaxed, Relaxed, one_more)
            .map_err(|_full| if self.waiting_max == 0 { Full::Connections } else { Full::Pending })?;
        let _waiting = Waiting(&self.waiting);
        match timeout(wait, Arc::clone(&self.places).acquire_owned()).await {
            Ok(Ok(place)) => Ok(place),
            // The semaphore is never closed, so that case does not occur.
            Ok(Err(_)) | Err(_) => Err(Full::Waited),
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connections_and_pending_requests_are_limited() {
        let circuit_breaker = CircuitBreaker { connections: NonZeroU32::new(2), pending: 1, requests: None };
        let gate = Gate::new(circuit_breaker).expect("a cap");
        let wait = Duration::from_secs(5);
        let first = gate.enter(wait).await.expect("a place");
        let second = gate.enter(wait).await.expect("a place");
        let (third, fourth) = tokio::join!(gate.enter(wait), async {
            let fourth = gate.enter(wait).await;
            drop(first);
            fourth
        });
        assert!(third.is_ok());
        assert_eq!(fourth.expect_err("one too many"), Full::Pending);
        assert_eq!(gate.enter(wait).await.expect_err("nobody leaves"), Full::Waited);
        drop(second);
        assert!(gate.enter(wait).await.is_ok());
        assert!(Gate::new(CircuitBreaker::default()).is_none());
        let strict = Gate::new(CircuitBreaker { pending: 0, ..circuit_breaker }).expect("a cap");
        let _both = (strict.enter(wait).await.expect("a place"), strict.enter(wait).await.expect("a place"));
        assert_eq!(strict.enter(wait).await.expect_err("full"), Full::Connections);
    }
}
