//! How many requests an upstream takes at one time, counted exactly for the whole node, and who waits for a place.

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

use crate::model::Caps;

/// Why a request is one too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// Every place is taken, and none may wait.
    Connections,
    /// As many wait as may.
    Pending,
    /// It has waited for as long as it may.
    Waited,
    /// No endpoint has room.
    Requests,
}

/// Places for requests; as many as the cap has it.
#[derive(Debug)]
pub(super) struct Gate {
    places: Arc<Semaphore>,
    waiting: AtomicU32,
    waiting_max: u32,
}

/// One that waits.
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
    pub(super) fn new(caps: Caps) -> Option<Self> {
        let Caps { requests: _, connections, pending } = caps;
        let places = Arc::new(Semaphore::new(connections?.get() as usize));
        Some(Self { places, waiting: AtomicU32::new(0), waiting_max: pending })
    }

    /// A place, for as long as the result is kept.
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
            // Nobody ever closes it.
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
    async fn as_many_come_in_and_wait_as_may() {
        let caps = Caps { connections: NonZeroU32::new(2), pending: 1, requests: None };
        let gate = Gate::new(caps).expect("a cap");
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
        assert!(Gate::new(Caps::default()).is_none());
        let strict = Gate::new(Caps { pending: 0, ..caps }).expect("a cap");
        let _both = (strict.enter(wait).await.expect("a place"), strict.enter(wait).await.expect("a place"));
        assert_eq!(strict.enter(wait).await.expect_err("full"), Full::Connections);
    }
}
