//! From the workers to where lines go. A worker gathers lines in a *block* and hands that over when it is full, or 10 ms
//! after its first line; a thread of its own writes blocks in the order in which they come. No request waits for that:
//! what there is no room for is dropped and counted.

use std::{
    cell::RefCell,
    collections::VecDeque,
    convert::Infallible,
    io::{self, Write},
    mem,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use tokio::sync::Notify;

use crate::proxy::shared::Shared;

/// Bytes of a block from which on it is full. To write one wakes a thread, which takes the CPU from a worker.
const FULL: usize = 128 * 1024;
/// How long the lines of a block wait for others.
const PAUSE: Duration = Duration::from_millis(10);
/// Bytes that wait to be written, beyond which no block is taken.
const QUEUE_MAX: usize = 16 * 1024 * 1024;
/// How long the end of the process waits until what is left is written.
const END: Duration = Duration::from_secs(1);

/// Where lines go.
#[derive(Clone, Debug)]
pub struct Sink(Arc<Queue>);

/// Has what is left written when it is dropped, which takes a second at most.
#[derive(Debug)]
pub struct SinkGuard(Arc<Queue>);

/// Lines of a worker that are not handed over yet.
pub(in crate::proxy) struct Lines {
    shared: Arc<Shared>,
    block: RefCell<Block>,
    /// A block has its first line.
    begun: Notify,
}

/// Blocks that wait to be written.
#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    /// Lines, as [`Sink::dropped`] tells.
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    blocks: VecDeque<Block>,
    /// Of all of them.
    bytes: usize,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Writing,
    /// What is left is written.
    Ending,
    Ended,
}

/// Whole lines.
#[derive(Debug, Default)]
struct Block {
    text: String,
    lines: u64,
}

// === impl Sink ===

impl Sink {
    /// A sink that a thread of its own empties into `writer`, many lines at a time.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn new(writer: impl Write + Send + 'static) -> io::Result<(Self, SinkGuard)> {
        let queue = Arc::new(Queue::default());
        // Never joined: it may wait for somebody who reads nothing any more.
        thread::Builder::new().name("access-log".to_owned()).spawn({
            let queue = Arc::clone(&queue);
            move || queue.write_to(writer)
        })?;
        Ok((Self(Arc::clone(&queue)), SinkGuard(queue)))
    }

    /// Lines that were dropped so far: because those before them were not taken in time, or because of an error.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Relaxed)
    }
}

// === impl SinkGuard ===

impl Drop for SinkGuard {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if state.stage == Stage::Writing {
            state.stage = Stage::Ending;
        }
        self.0.changed.notify_all();
        let ended = self.0.changed.wait_timeout_while(state, END, |state| state.stage != Stage::Ended);
        drop(ended.unwrap_or_else(PoisonError::into_inner));
    }
}

// === impl Queue ===

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, block: Block) {
        let mut state = self.state();
        if state.bytes > QUEUE_MAX || state.stage != Stage::Writing {
            self.dropped.fetch_add(block.lines, Relaxed);
            return;
        }
        state.bytes += block.text.len();
        state.blocks.push_back(block);
        // First, or whoever is woken up on the same CPU finds it locked and has to be woken up again.
        drop(state);
        self.changed.notify_all();
    }

    /// The next block; `None` when there will be no other.
    fn next(&self) -> Option<Block> {
        let waits = |state: &mut State| state.blocks.is_empty() && state.stage == Stage::Writing;
        let mut state = self.changed.wait_while(self.state(), waits).unwrap_or_else(PoisonError::into_inner);
        let block = state.blocks.pop_front()?;
        state.bytes -= block.text.len();
        Some(block)
    }

    fn write_to(&self, mut writer: impl Write) {
        while let Some(block) = self.next() {
            let written = writer.write_all(block.text.as_bytes()).and_then(|()| writer.flush());
            if written.is_err() {
                self.dropped.fetch_add(block.lines, Relaxed);
            }
        }
        self.state().stage = Stage::Ended;
        self.changed.notify_all();
    }
}

// === impl Lines ===

impl Lines {
    pub(in crate::proxy) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, block: RefCell::default(), begun: Notify::new() }
    }

    /// Adds the line that `write` appends, its end included.
    pub(super) fn add(&self, write: impl FnOnce(&mut String)) {
        let mut block = self.block.borrow_mut();
        write(&mut block.text);
        block.lines += 1;
        if block.text.len() >= FULL {
            drop(block);
            self.hand_over();
        } else if block.lines == 1 {
            self.begun.notify_one();
        }
    }

    /// Hands over what there is.
    pub(in crate::proxy) fn hand_over(&self) {
        let mut block = self.block.borrow_mut();
        // The next one will be about as large.
        let next = Block { text: String::with_capacity(block.text.len()), lines: 0 };
        let block = mem::replace(&mut *block, next);
        if let Some(Sink(queue)) = self.shared.sink.get()
            && block.lines > 0
        {
            queue.add(block);
        }
    }

    /// Hands over blocks that do not become full, for as long as it is polled.
    pub(in crate::proxy) async fn follow(&self) -> Infallible {
        loop {
            self.begun.notified().await;
            tokio::time::sleep(PAUSE).await;
            self.hand_over();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Takes a block when `gate` says so, or fails when it says that; all once it is closed. Tells what it took.
    struct Gated {
        gate: mpsc::Receiver<io::Result<()>>,
        told: mpsc::Sender<String>,
    }

    impl Write for Gated {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.gate.recv().unwrap_or(Ok(()))?;
            self.told.send(String::from_utf8_lossy(bytes).into_owned()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn block(text: &str) -> Block {
        Block { text: text.to_owned(), lines: text.lines().count() as u64 }
    }

    #[test]
    fn what_is_left_is_written_in_order_at_the_end() {
        let ((open, gate), (told, tells)) = (mpsc::channel(), mpsc::channel());
        let (sink, guard) = Sink::new(Gated { gate, told }).expect("a thread");
        let blocks = ["1\n2\n", "3\n", "4\n5\n6\n"];
        for text in blocks {
            sink.0.add(block(text));
        }
        drop(open);
        drop(guard);
        assert_eq!(tells.into_iter().collect::<Vec<_>>(), blocks);
        assert_eq!(sink.dropped(), 0);
        sink.0.add(block("7\n8\n"));
        assert_eq!(sink.dropped(), 2, "what comes after the end is nobody's");
    }

    #[test]
    fn what_there_is_no_room_for_is_counted_and_what_cannot_be_written() {
        let ((open, gate), (told, tells)) = (mpsc::channel(), mpsc::channel());
        let (sink, guard) = Sink::new(Gated { gate, told }).expect("a thread");
        let line = format!("{}\n", "x".repeat(QUEUE_MAX));
        // The writer holds the first one, and the second fills the queue.
        sink.0.add(block("held\n"));
        while !sink.0.state().blocks.is_empty() {
            thread::yield_now();
        }
        sink.0.add(block(&line));
        sink.0.add(block("no\nroom\n"));
        assert_eq!(sink.dropped(), 2);
        open.send(Err(io::ErrorKind::StorageFull.into())).expect("it is asked");
        drop(open);
        drop(guard);
        assert_eq!(tells.into_iter().map(|text| text.len()).collect::<Vec<_>>(), [line.len()]);
        assert_eq!(sink.dropped(), 3);
    }

    #[test]
    fn a_writer_that_waits_for_ever_keeps_nobody_from_ending() {
        let ((open, gate), (told, _tells)) = (mpsc::channel(), mpsc::channel());
        let (sink, guard) = Sink::new(Gated { gate, told }).expect("a thread");
        sink.0.add(block("1\n"));
        drop(guard);
        assert_eq!(sink.0.state().stage, Stage::Ending);
        drop(open);
    }
}
