//! Frames of responses that HTTP/2 flow control keeps from their client, and since when. It polls no body.
//!
//! A client that grants a stream no window stops it where no byte stream shows it: nothing is left unwritten, and no
//! body is polled again. So each frame that is handed over counts as an offer until the next one is asked for. One that
//! stays for too long costs the client that stream alone: on the same connection it may be reading others.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use tokio::task::AbortHandle;

/// The offers of one connection. Places are used again, so that in the long run there is no allocation.
#[derive(Debug, Default)]
pub(super) struct Offers(RefCell<Vec<Option<Offer>>>);

#[derive(Debug)]
struct Offer {
    since: Instant,
    stream: AbortHandle,
}

/// The stream of a request, and whether the client owes it anything.
#[derive(Debug)]
pub(super) enum Stream {
    /// HTTP/1: the connection itself shows what its client does not take.
    None,
    /// More of the response is being waited for.
    Open(AbortHandle),
    /// The client has been given a frame; its place in [`Offers`].
    Offered(usize),
}

impl Offers {
    /// Ends the streams whose client has taken nothing for `limit`. Returns how many.
    pub(super) fn expire(&self, now: Instant, limit: Duration) -> u64 {
        let mut expired = 0;
        for offer in self.0.borrow_mut().iter_mut().flatten() {
            if now.saturating_duration_since(offer.since) >= limit {
                // The end of its task resets the stream and takes the offer back; until then it is not counted again.
                offer.stream.abort();
                offer.since = now;
                expired += 1;
            }
        }
        expired
    }

    fn put(&self, offer: Offer) -> usize {
        let mut places = self.0.borrow_mut();
        let free = places.iter().position(Option::is_none).unwrap_or_else(|| {
            places.push(None);
            places.len() - 1
        });
        places[free] = Some(offer);
        free
    }

    fn take(&self, place: usize) -> Option<AbortHandle> {
        self.0.borrow_mut().get_mut(place)?.take().map(|offer| offer.stream)
    }
}

impl Stream {
    pub(super) fn is_http2(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// A frame is handed over.
    pub(super) fn offer(&mut self, offers: &Offers, now: Instant) {
        *self = match std::mem::replace(self, Self::None) {
            Self::Open(stream) => Self::Offered(offers.put(Offer { since: now, stream })),
            other => other,
        };
    }

    /// The next frame is asked for, or none ever will be.
    pub(super) fn resume(&mut self, offers: &Offers) {
        if let Self::Offered(place) = *self {
            *self = offers.take(place).map_or(Self::None, Self::Open);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_stream_that_is_not_taken_expires() {
        let tasks: Vec<_> = (0..3).map(|_| tokio::spawn(std::future::pending::<()>())).collect();
        let (offers, start) = (Offers::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let limit = Duration::from_secs(60);
        let mut streams: Vec<_> = tasks.iter().map(|task| Stream::Open(task.abort_handle())).collect();
        streams.iter_mut().for_each(|stream| stream.offer(&offers, at(0)));
        streams[0].resume(&offers);
        streams[2].resume(&offers);
        streams[2].offer(&offers, at(30));
        assert_eq!(
            (offers.expire(at(59), limit), offers.expire(at(60), limit), offers.expire(at(61), limit)),
            (0, 1, 0)
        );
        for (number, mut task) in tasks.into_iter().enumerate() {
            if number == 1 {
                assert!((&mut task).await.expect_err("ended").is_cancelled());
            } else {
                assert!(!task.is_finished(), "{number}");
            }
        }
        assert_eq!(offers.expire(at(90), limit), 1);
        assert_eq!(offers.0.borrow().len(), 3, "places are used again");
    }
}
