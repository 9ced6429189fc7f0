//! The window of concurrent requests on one HTTP/2 connection: small at first, and one larger for each response that
//! its client has taken, like TCP's slow start (RFC 5681) and Apache's mod_http2. It starts no request itself.
//!
//! ```text
//! stream ─▶ [Start: its turn] ─▶ rule ─▶ filters ─▶ pod
//! ```
//!
//! A client may send requests on all its streams at once and read nothing. Each request that has begun costs a
//! connection to a pod, the bytes that the pod sends, and worker time that other clients wait for. A client therefore
//! has to read before it gets more concurrency. Requests beyond the window begin one after another: soon while the
//! client leaves little unread, seldom while it leaves much.

use std::{
    cell::{Cell, OnceCell},
    pin::pin,
    time::Duration,
};

use tokio::{
    sync::{Mutex, Notify},
    time::{sleep, timeout},
};

use crate::server::eviction;

/// Concurrent requests on a new connection: about what a page asks for at once. Below the streams that clients usually
/// use, requests would lose step with each other, and each response would have writes of its own.
const FIRST: u32 = 24;
/// Interval at which a worker starts requests beyond their connections' windows, for clients that read: their pods may
/// be slow, or their responses may never end.
const STEP: Duration = Duration::from_millis(1);
/// Interval for one connection with as many unread bytes as a connection may buffer.
const STEP_UNREAD: Duration = eviction::PERIOD;
/// Interval at which one connection with a full socket as well is looked at. It starts none: no response would get to
/// the client, and each would hold flow-control windows and memory of a pod's connection.
const STEP_BLOCKED: Duration = Duration::from_secs(1);

/// Queue of a worker's requests beyond the windows of their connections, which take turns.
#[derive(Debug, Default)]
pub(crate) struct Pacer(Mutex<()>);

/// Unread bytes of a client's responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UnreadBytes {
    Little,
    /// The most that a connection may buffer. HTTP/3: a response waits for the client.
    Much,
    /// The most that a connection may buffer, and the socket accepts nothing. HTTP/3: the client takes nothing.
    All,
}

/// The window of one connection.
#[derive(Debug, Default)]
pub(crate) struct SlowStartWindow {
    /// Complete responses that are with the client or with h2.
    whole: Cell<u32>,
    /// Responses among them that h2 has not fully sent.
    left: Cell<u32>,
    /// Requests that wait for their turn.
    waiting: Cell<u32>,
    line: OnceCell<Box<Line>>,
}

/// The waiting requests.
#[derive(Debug, Default)]
struct Line {
    /// Held by the first in line.
    first: Mutex<()>,
    /// Notified when a request has ended.
    ended: Notify,
}

/// Counts a request as waiting for as long as it lives.
struct WaitingGuard<'s>(&'s Cell<u32>);

impl SlowStartWindow {
    /// Returns whether one more request may begin beside `active` ones and those that wait. If there is room for all of
    /// them, it need not wait behind the others: each begins with its own wake-up, so that a queue that every request
    /// joins would never end.
    #[inline]
    pub(crate) fn is_open(&self, active: u32) -> bool {
        self.has_room(active.saturating_add(self.waiting.get()))
    }

    /// Returns the number of waiting requests.
    pub(crate) fn waiting(&self) -> u32 {
        self.waiting.get()
    }

    fn has_room(&self, active: u32) -> bool {
        let left = self.left.get();
        active.saturating_add(left) < FIRST.saturating_add(self.whole.get().saturating_sub(left))
    }

    /// Records the end of a request; `whole` means with a complete response.
    #[inline]
    pub(crate) fn ended(&self, whole: bool) {
        self.whole.set(self.whole.get().saturating_add(u32::from(whole)));
        self.update();
    }

    /// Records the end of a response that h2 has not fully sent.
    #[inline]
    pub(crate) fn leave(&self) {
        self.left.set(self.left.get() + 1);
    }

    /// Records that the client has taken the rest of a response.
    #[inline]
    pub(crate) fn taken(&self) {
        self.left.set(self.left.get().saturating_sub(1));
        self.update();
    }

    fn update(&self) {
        if self.waiting.get() > 0
            && let Some(line) = self.line.get()
        {
            line.ended.notify_one();
        }
    }

    /// Waits until a request may begin beside those that are `active`.
    pub(crate) async fn turn(&self, pacer: &Pacer, active: impl Fn() -> u32, unread: impl Fn() -> UnreadBytes) {
        let _waiting = WaitingGuard::of(&self.waiting);
        let line = self.line.get_or_init(Box::default);
        let _first = line.first.lock().await;
        let mut room = pin!(async {
            while !self.has_room(active()) {
                line.ended.notified().await;
            }
        });
        // After a long enough wait the request begins, regardless of the others.
        loop {
            let before = unread();
            let is_room = match before {
                UnreadBytes::Little => {
                    tokio::select! {
                        biased;
                        () = room.as_mut() => true,
                        () = pacer.pass() => false,
                    }
                }
                UnreadBytes::Much => timeout(STEP_UNREAD, room.as_mut()).await.is_ok(),
                UnreadBytes::All => timeout(STEP_BLOCKED, room.as_mut()).await.is_ok(),
            };
            if is_room || unread() <= before && before != UnreadBytes::All {
                return;
            }
        }
    }
}

impl<'s> WaitingGuard<'s> {
    fn of(count: &'s Cell<u32>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

impl Pacer {
    async fn pass(&self) {
        let _turn = self.0.lock().await;
        sleep(STEP).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn the_window_grows_with_each_response_that_is_read() {
        let start = SlowStartWindow::default();
        let room = || (0..100).find(|active| !start.is_open(*active)).expect("a bound");
        assert_eq!(room(), FIRST);
        start.ended(false);
        assert_eq!(room(), FIRST, "it broke off");
        start.ended(true);
        assert_eq!(room(), FIRST + 1);
        // A complete response that is not taken uses the window and does not enlarge it.
        start.leave();
        start.ended(true);
        assert_eq!(room(), FIRST);
        start.taken();
        assert_eq!(room(), FIRST + 2);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_beyond_the_window_start_one_by_one() {
        for (unread, step) in [(UnreadBytes::Little, STEP), (UnreadBytes::Much, STEP_UNREAD)] {
            let (start, pacer, begun) = (SlowStartWindow::default(), Pacer::default(), Instant::now());
            let turn = || start.turn(&pacer, || FIRST, || unread);
            tokio::join!(turn(), turn(), turn());
            assert_eq!(begun.elapsed(), 3 * step);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_several_connections_start_in_turn() {
        let (starts, pacer, begun) =
            ([SlowStartWindow::default(), SlowStartWindow::default()], Pacer::default(), Instant::now());
        let ended = Cell::new([Duration::ZERO; 2]);
        let wait = async |number: usize, times| {
            for _ in 0..times {
                starts[number].turn(&pacer, || FIRST, || UnreadBytes::Little).await;
            }
            let mut all = ended.get();
            all[number] = begun.elapsed();
            ended.set(all);
        };
        tokio::join!(wait(0, 10), wait(1, 1));
        assert_eq!(ended.get(), [STEP * 11, STEP * 2], "nobody waits for more than one of each other connection");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_wait_while_their_client_does_not_read() {
        const STOPPED: Duration = Duration::from_secs(100);
        let (start, pacer, begun) = (SlowStartWindow::default(), Pacer::default(), Instant::now());
        let unread = || match begun.elapsed() {
            elapsed if elapsed < STEP => UnreadBytes::Little,
            elapsed if elapsed < STOPPED => UnreadBytes::All,
            _ => UnreadBytes::Much,
        };
        start.turn(&pacer, || FIRST, unread).await;
        let waited = begun.elapsed();
        assert!(waited >= STOPPED + STEP_UNREAD && waited <= STOPPED + STEP_BLOCKED + STEP_UNREAD, "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_finished_request_admits_the_next() {
        let (start, pacer, begun, active) =
            (SlowStartWindow::default(), Pacer::default(), Instant::now(), Cell::new(FIRST));
        let end = async {
            sleep(STEP * 2).await;
            start.ended(true);
        };
        tokio::join!(start.turn(&pacer, || active.get(), || UnreadBytes::All), end);
        assert_eq!(begun.elapsed(), STEP * 2);
        // A cancelled wait leaves its place to others.
        active.set(100);
        let mut first = Box::pin(start.turn(&pacer, || active.get(), || UnreadBytes::Much));
        assert!(timeout(STEP, first.as_mut()).await.is_err());
        // One was read, so there is room for FIRST + 1.
        assert!(start.is_open(FIRST - 1), "for it and for the one that waits");
        assert!(!start.is_open(FIRST), "the one that waits is first");
        drop(first);
        assert!(start.is_open(FIRST));
    }
}
