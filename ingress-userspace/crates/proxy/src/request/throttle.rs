//! Slows the body of a response down to a rate. It closes no connection, and a client that reads slowly is not its
//! concern.

use std::{
    future::Future as _,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep, sleep};

use ingress_model::ResponseRate;

/// The bytes of one response, and the time since it began.
pub(crate) struct Throttle {
    rate: ResponseRate,
    begun: Instant,
    sent: u64,
    /// The wait for the next bytes; made for the first one.
    wait: Option<Pin<Box<Sleep>>>,
}

// === impl Throttle ===

impl Throttle {
    pub(crate) fn new(rate: ResponseRate) -> Self {
        Self { rate, begun: Instant::now(), sent: 0, wait: None }
    }

    /// Returns ready when the client may get more bytes.
    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(wait) = &mut self.wait {
                std::task::ready!(wait.as_mut().poll(cx));
                self.wait = None;
            }
            match delay(self.rate, self.sent, self.begun.elapsed()) {
                None => return Poll::Ready(()),
                Some(delay) => self.wait = Some(Box::pin(sleep(delay))),
            }
        }
    }

    pub(crate) fn add(&mut self, bytes: usize) {
        self.sent = self.sent.saturating_add(bytes as u64);
    }
}

/// Returns the time until more bytes may follow, as in nginx: those of the first second come at once.
fn delay(ResponseRate { bytes_per_second, after }: ResponseRate, sent: u64, elapsed: Duration) -> Option<Duration> {
    let due_ms = u128::from(sent.saturating_sub(after)) * 1000 / u128::from(bytes_per_second.get());
    let now_ms = elapsed.as_millis() + 1000;
    let wait_ms = due_ms.checked_sub(now_ms)? + 1;
    Some(Duration::from_millis(u64::try_from(wait_ms).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    #[test]
    fn the_rate_applies_after_the_first_bytes() {
        let rate = |bytes, after| ResponseRate { bytes_per_second: NonZeroU64::new(bytes).expect("a rate"), after };
        for (rate, sent, elapsed_ms, expect_ms) in [
            (rate(1000, 0), 0, 0, None),
            (rate(1000, 0), 999, 0, None),
            (rate(1000, 0), 1000, 0, Some(1)),
            (rate(1000, 0), 1500, 0, Some(501)),
            (rate(1000, 0), 1500, 400, Some(101)),
            (rate(1000, 0), 1500, 501, None),
            (rate(1000, 0), 60_000, 0, Some(59_001)),
            (rate(1000, 10_000), 10_999, 0, None),
            (rate(1000, 10_000), 13_000, 1000, Some(1001)),
            (rate(u64::MAX, 0), u64::MAX, 10, None),
            (rate(1, 0), u64::MAX, 0, Some(u64::MAX)),
        ] {
            let expect = expect_ms.map(Duration::from_millis);
            assert_eq!(delay(rate, sent, Duration::from_millis(elapsed_ms)), expect, "{rate:?} {sent} {elapsed_ms}");
        }
    }
}
