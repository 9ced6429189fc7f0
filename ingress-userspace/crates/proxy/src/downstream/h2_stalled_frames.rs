//! Response frames that HTTP/2 flow control holds back from the client, with their times. It polls no body.
//!
//! When a client grants a stream no window, the stalled write is invisible on the connection: no bytes are left
//! unwritten, and the body is not polled again. Each frame handed to hyper therefore counts as an offer until hyper
//! asks for the next one. An offer that expires resets that stream alone, because the client may be reading others on
//! the same connection.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use tokio::task::AbortHandle;

/// The offers of one connection. Slots are reused, so that a long-lived connection stops allocating.
#[derive(Debug, Default)]
pub(crate) struct StalledFrames(RefCell<Vec<Option<StalledFrame>>>);

#[derive(Debug)]
struct StalledFrame {
    since: Instant,
    stream: AbortHandle,
}

/// A request's stream, with the state of its latest frame.
#[derive(Debug)]
pub(crate) enum StalledStream {
    /// HTTP/1: the connection itself shows whether its client reads.
    None,
    /// The response's next frame has not been produced yet.
    Open(AbortHandle),
    /// The client was offered a frame; the value is the slot in [`StalledFrames`].
    HandedOver(usize),
}

impl StalledFrames {
    /// Resets the streams with an offer as old as `limit`. Returns their number.
    pub(crate) fn expire(&self, now: Instant, limit: Duration) -> u64 {
        let mut expired = 0;
        for offer in self.0.borrow_mut().iter_mut().flatten() {
            if now.saturating_duration_since(offer.since) >= limit {
                // The reset happens when the aborted task ends, which also frees the slot. Until then the stream is not
                // counted again.
                offer.stream.abort();
                offer.since = now;
                expired += 1;
            }
        }
        expired
    }

    fn put(&self, offer: StalledFrame) -> usize {
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

impl StalledStream {
    pub(crate) fn is_http2(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Returns the stream's task unless the client has an offer outstanding.
    pub(crate) fn task(&self) -> Option<AbortHandle> {
        match self {
            Self::Open(stream) => Some(stream.clone()),
            Self::None | Self::HandedOver(_) => None,
        }
    }

    /// Records that a frame was handed over.
    pub(crate) fn offer(&mut self, stalled_frames: &StalledFrames, now: Instant) {
        *self = match std::mem::replace(self, Self::None) {
            Self::Open(stream) => Self::HandedOver(stalled_frames.put(StalledFrame { since: now, stream })),
            other => other,
        };
    }

    /// Clears the offer: hyper asks for the next frame, or the body is dropped.
    pub(crate) fn resume(&mut self, stalled_frames: &StalledFrames) {
        if let Self::HandedOver(place) = *self {
            *self = stalled_frames.take(place).map_or(Self::None, Self::Open);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_stalled_streams_expire() {
        let tasks: Vec<_> = (0..3).map(|_| tokio::spawn(std::future::pending::<()>())).collect();
        let (stalled_frames, start) = (StalledFrames::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let limit = Duration::from_secs(60);
        let mut streams: Vec<_> = tasks.iter().map(|task| StalledStream::Open(task.abort_handle())).collect();
        streams.iter_mut().for_each(|stream| stream.offer(&stalled_frames, at(0)));
        streams[0].resume(&stalled_frames);
        streams[2].resume(&stalled_frames);
        streams[2].offer(&stalled_frames, at(30));
        assert_eq!(
            (
                stalled_frames.expire(at(59), limit),
                stalled_frames.expire(at(60), limit),
                stalled_frames.expire(at(61), limit)
            ),
            (0, 1, 0)
        );
        for (number, mut task) in tasks.into_iter().enumerate() {
            if number == 1 {
                assert!((&mut task).await.expect_err("ended").is_cancelled());
            } else {
                assert!(!task.is_finished(), "{number}");
            }
        }
        assert_eq!(stalled_frames.expire(at(90), limit), 1);
        assert_eq!(stalled_frames.0.borrow().len(), 3, "places are used again");
    }
}
