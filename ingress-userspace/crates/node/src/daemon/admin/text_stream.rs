//! Texts that are made on another thread while the client reads them, so that a long one is never whole in memory.

use std::{
    fmt::{self, Write},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use tokio::{
    runtime::Handle,
    sync::{Semaphore, mpsc},
    task::spawn_blocking,
    time::{Instant, timeout_at},
};

/// Size of the pieces that are sent. Two of them wait for the client, and one is being written.
const CHUNK: usize = 64 * 1024;
/// Time limits for a text. Prometheus gives up earlier.
const LIMITS: Limits = Limits { whole: Duration::from_secs(60), chunk: Duration::from_secs(10) };

/// A text as pieces. Nothing is made before it is polled, such as for HEAD.
pub(crate) struct TextStream(Pin<Box<dyn Stream<Item = Result<Bytes, Unfinished>> + Send>>);

/// Time limits for the client.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// For the whole text.
    whole: Duration,
    /// For each piece, so that a client that reads nothing leaves its place to others.
    chunk: Duration,
}

/// The text was not made to its end, because that failed or because the client read too slowly.
#[derive(Debug, thiserror::Error)]
#[error("the text is not complete")]
pub(crate) struct Unfinished;

/// Sends a text piece by piece, and waits until the client has read the ones before.
#[derive(Debug)]
pub(super) struct ChunkWriter {
    chunk: String,
    /// `None` is the end of the text.
    chunks: mpsc::Sender<Option<Bytes>>,
    deadline: Instant,
    patience: Duration,
}

impl TextStream {
    /// Returns the text that `write` writes on another thread. It waits for one of the `places` first.
    pub(super) fn new(
        places: Arc<Semaphore>,
        write: impl FnOnce(&mut ChunkWriter) -> fmt::Result + Send + 'static,
    ) -> Self {
        Self::limited(places, LIMITS, write)
    }

    fn limited(
        places: Arc<Semaphore>,
        limits: Limits,
        write: impl FnOnce(&mut ChunkWriter) -> fmt::Result + Send + 'static,
    ) -> Self {
        let begin = async move {
            let (chunks, received) = mpsc::channel(1);
            // The semaphore is never closed.
            let place = places.acquire_owned().await;
            // A panic is logged, and the text has no end then.
            drop(spawn_blocking(move || {
                let _place = place;
                let deadline = Instant::now() + limits.whole;
                let mut writer = ChunkWriter { chunk: String::new(), chunks, deadline, patience: limits.chunk };
                write(&mut writer)?;
                writer.finish()
            }));
            stream::unfold(Some(received), async |received| {
                let mut received = received?;
                match received.recv().await {
                    Some(Some(chunk)) => Some((Ok(chunk), Some(received))),
                    Some(None) => None,
                    None => Some((Err(Unfinished), None)),
                }
            })
        };
        Self(Box::pin(stream::once(begin).flatten()))
    }

    pub(super) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Unfinished>>> {
        self.0.as_mut().poll_next(cx)
    }
}

impl fmt::Debug for TextStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextStream").finish_non_exhaustive()
    }
}

impl ChunkWriter {
    /// Fails if the client is gone, or has not read the text in time.
    fn send(&self, chunk: Option<Bytes>) -> fmt::Result {
        let deadline = self.deadline.min(Instant::now() + self.patience);
        let sent = Handle::current().block_on(timeout_at(deadline, self.chunks.send(chunk)));
        sent.map_err(|_elapsed| fmt::Error)?.map_err(|_gone| fmt::Error)
    }

    fn finish(mut self) -> fmt::Result {
        let rest = std::mem::take(&mut self.chunk);
        self.send(Some(rest.into()))?;
        self.send(None)
    }
}

impl Write for ChunkWriter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.chunk.len() + text.len() > CHUNK {
            let full = std::mem::replace(&mut self.chunk, String::with_capacity(CHUNK));
            self.send(Some(full.into()))?;
        }
        self.chunk.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::daemon::admin::body::AdminBody;

    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().build().expect("a runtime")
    }

    fn places() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(1))
    }

    #[test]
    fn a_text_of_many_chunks_arrives_whole() {
        let line = "0123456789abcdef".repeat(8) + "\n";
        let lines = 4 * CHUNK / line.len();
        let whole = line.repeat(lines);
        let text = TextStream::new(places(), move |writer| (0..lines).try_for_each(|_| writer.write_str(&line)));
        let read = runtime().block_on(AdminBody::Text(text).collect()).expect("it is complete").to_bytes();
        assert_eq!(read, whole);
    }

    #[test]
    fn a_text_that_fails_is_not_taken_for_a_whole_one() {
        let text = TextStream::new(places(), |writer| {
            writer.write_str(&"x".repeat(2 * CHUNK))?;
            Err(fmt::Error)
        });
        assert!(runtime().block_on(AdminBody::Text(text).collect()).is_err());
        let text = TextStream::new(places(), |_| panic!("by intention"));
        assert!(runtime().block_on(AdminBody::Text(text).collect()).is_err());
    }

    #[test]
    fn a_text_waits_for_its_reader_and_gives_its_place_back_after_a_while() {
        let (soon, late) = (Duration::from_millis(100), Duration::from_hours(1));
        for limits in [Limits { whole: soon, chunk: late }, Limits { whole: late, chunk: soon }] {
            let places = places();
            let (told, tells) = std::sync::mpsc::channel();
            let mut text = TextStream::limited(Arc::clone(&places), limits, move |writer| {
                let mut chunks = 0;
                let endless = loop {
                    match writer.write_str(&"x".repeat(CHUNK)) {
                        Ok(()) => chunks += 1,
                        Err(error) => break Err(error),
                    }
                };
                told.send(chunks).expect("the test waits");
                endless
            });
            runtime().block_on(async {
                let first = std::future::poll_fn(|cx| text.poll_chunk(cx)).await;
                assert!(first.is_some_and(|chunk| chunk.is_ok()));
                assert_eq!(places.available_permits(), 0, "a second text waits");
                drop(places.acquire().await);
            });
            let chunks: usize = tells.recv().expect("the writer has ended");
            assert!(chunks < 6, "{chunks} chunks were made for a client that read one");
        }
    }

    #[test]
    fn a_text_ends_with_its_client() {
        let places = places();
        let text = TextStream::new(Arc::clone(&places), |writer| {
            loop {
                writer.write_str(&"x".repeat(CHUNK))?;
            }
        });
        runtime().block_on(async {
            let mut text = text;
            assert!(std::future::poll_fn(|cx| text.poll_chunk(cx)).await.is_some());
            drop(text);
            drop(places.acquire().await);
        });
    }
}
