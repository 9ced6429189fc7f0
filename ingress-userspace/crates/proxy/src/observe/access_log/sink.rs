//! Moves lines from the workers to the writer. A worker collects lines in a *block* and queues it when it is full, or
//! 10 ms after its first line. A dedicated thread writes the blocks in the order of the queue. No request waits for the
//! writer: lines that exceed the queue are dropped and counted.

use std::{
    cell::RefCell,
    collections::VecDeque,
    convert::Infallible,
    io::{self, ErrorKind, Write},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use tokio::sync::Notify;

/// Size in bytes at which a block is full. Each block wakes the writer thread, which takes CPU time from a worker.
const FULL: usize = 128 * 1024;
/// Longest time that a line waits in a block before the block is queued.
const PAUSE: Duration = Duration::from_millis(10);
/// While more bytes than this are queued, no further block is accepted.
const QUEUE_MAX: usize = 16 * 1024 * 1024;
/// Longest time that the exit of the process waits for the queue to be written.
const END: Duration = Duration::from_secs(1);

/// The destination of access log lines.
#[derive(Clone)]
pub struct Sink(Arc<BlockQueue>);

/// Writes the remaining queue when it is dropped, which takes one second at most.
pub struct SinkGuard(Arc<BlockQueue>);

/// Lines of one worker that are not queued yet.
pub(crate) struct WorkerLines {
    /// Set once, when the log is opened.
    sink: Arc<OnceLock<Sink>>,
    /// Complete lines only.
    block: RefCell<String>,
    /// Notified when the block gets its first line.
    begun: Notify,
}

/// The queue of blocks to be written. It does not implement `Debug`, because lines may contain secrets of clients.
#[derive(Default)]
struct BlockQueue {
    state: Mutex<SinkState>,
    changed: Condvar,
    /// The count that [`Sink::dropped`] returns, in lines.
    dropped: AtomicU64,
}

#[derive(Default)]
struct SinkState {
    blocks: VecDeque<String>,
    /// Capacity of all blocks together.
    bytes: usize,
    stage: SinkStage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SinkStage {
    #[default]
    Writing,
    /// The remaining blocks are written; no further block is accepted.
    Ending,
    Ended,
}

/// Writes blocks, and remembers whether the output ends within a line.
struct Writer<W> {
    to: W,
    /// Whether an error has cut off the previous line.
    is_torn: bool,
}

// === impl Sink ===

impl Sink {
    /// Creates a sink, with a thread that writes its queue to `writer`, many lines at a time.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn new(writer: impl Write + Send + 'static) -> io::Result<(Self, SinkGuard)> {
        let queue = Arc::new(BlockQueue::default());
        // The thread is never joined: `writer` may block for ever if its reader has stopped reading.
        thread::Builder::new().name("access-log".to_owned()).spawn({
            let queue = Arc::clone(&queue);
            move || queue.write_to(writer)
        })?;
        Ok((Self(Arc::clone(&queue)), SinkGuard(queue)))
    }

    /// Returns the number of lines dropped so far, because the queue was full or because of a write error.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Relaxed)
    }
}

// === impl SinkGuard ===

impl Drop for SinkGuard {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.stage = SinkStage::Ending;
        self.0.changed.notify_all();
        let ended = self.0.changed.wait_timeout_while(state, END, |state| state.stage != SinkStage::Ended);
        let (state, _) = ended.unwrap_or_else(PoisonError::into_inner);
        let left: u64 = state.blocks.iter().map(|block| lines(block.as_bytes())).sum();
        if left > 0 {
            tracing::warn!(left, "access log lines are lost: their reader is gone or too slow");
        }
    }
}

// === impl BlockQueue ===

impl BlockQueue {
    fn state(&self) -> MutexGuard<'_, SinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, block: String) {
        let mut state = self.state();
        if state.bytes > QUEUE_MAX || state.stage != SinkStage::Writing {
            drop(state);
            self.dropped.fetch_add(lines(block.as_bytes()), Relaxed);
            return;
        }
        state.bytes += block.capacity();
        state.blocks.push_back(block);
        // Unlock first, or a thread woken on the same CPU finds the lock taken and must be woken again.
        drop(state);
        self.changed.notify_all();
    }

    /// Returns the next block, or `None` when no further block will come.
    fn next(&self) -> Option<String> {
        let waits = |state: &mut SinkState| state.blocks.is_empty() && state.stage == SinkStage::Writing;
        let mut state = self.changed.wait_while(self.state(), waits).unwrap_or_else(PoisonError::into_inner);
        let block = state.blocks.pop_front()?;
        state.bytes -= block.capacity();
        Some(block)
    }

    fn write_to(&self, to: impl Write) {
        let mut writer = Writer { to, is_torn: false };
        while let Some(block) = self.next() {
            self.dropped.fetch_add(writer.write(block.as_bytes()), Relaxed);
        }
        self.state().stage = SinkStage::Ended;
        self.changed.notify_all();
    }
}

// === impl Writer ===

impl<W: Write> Writer<W> {
    /// Writes a block up to the first error. Returns the number of its lines that were lost.
    fn write(&mut self, block: &[u8]) -> u64 {
        if self.is_torn && self.try_write(b"\n").is_empty() {
            self.is_torn = false;
        }
        let rest = if self.is_torn { block } else { self.try_write(block) };
        let written = &block[..block.len() - rest.len()];
        self.is_torn |= written.last().is_some_and(|last| *last != b'\n');
        lines(rest)
    }

    /// Writes as much as possible and returns the rest after an error.
    fn try_write<'t>(&mut self, mut text: &'t [u8]) -> &'t [u8] {
        while !text.is_empty() {
            match self.to.write(text) {
                Ok(count @ 1..) => text = &text[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The writer is a pipe which its other end has made non-blocking, and the reader is slow.
                Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(PAUSE),
                Ok(0) | Err(_) => return text,
            }
        }
        // A failed flush is reported by the next write.
        self.to.flush().unwrap_or_default();
        text
    }
}

fn lines(text: &[u8]) -> u64 {
    text.iter().filter(|byte| **byte == b'\n').count() as u64
}

// === impl WorkerLines ===

impl WorkerLines {
    pub(crate) fn new(sink: Arc<OnceLock<Sink>>) -> Self {
        Self { sink, block: RefCell::default(), begun: Notify::new() }
    }

    /// Adds the line that `write` appends, including its line feed.
    pub(super) fn add(&self, write: impl FnOnce(&mut String)) {
        let mut block = self.block.borrow_mut();
        let begins = block.is_empty();
        write(&mut block);
        if block.len() >= FULL {
            drop(block);
            self.hand_over();
        } else if begins {
            self.begun.notify_one();
        }
    }

    /// Queues the current block.
    pub(crate) fn hand_over(&self) {
        let Some(Sink(queue)) = self.sink.get() else { return };
        // The next block is probably about as large, or slightly larger.
        let block = self.block.replace_with(|block| String::with_capacity(block.len() / 8 * 9));
        if !block.is_empty() {
            queue.add(block);
        }
    }

    /// Queues blocks that do not fill up in time, for as long as it is polled.
    pub(crate) async fn hand_over_in_time(&self) -> Infallible {
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

    /// Takes a block for each `Ok` from `gate`, fails for each `Err`, and takes all once it is closed. Sends blocks to
    /// `wrote`.
    struct Gated {
        gate: mpsc::Receiver<io::Result<()>>,
        wrote: mpsc::Sender<String>,
    }

    impl Write for Gated {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.gate.recv().unwrap_or(Ok(()))?;
            self.wrote.send(String::from_utf8_lossy(bytes).into_owned()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Takes as many bytes as each of these numbers, or fails.
    struct Fitful {
        fits: VecDeque<io::Result<usize>>,
        took: String,
    }

    impl Write for &mut Fitful {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = self.fits.pop_front().unwrap_or(Ok(bytes.len()))?.min(bytes.len());
            self.took.push_str(&String::from_utf8_lossy(&bytes[..count]));
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_write_error_loses_one_line_and_is_counted() {
        let full = || Err(ErrorKind::StorageFull.into());
        let (again, slow) = (|| Err(ErrorKind::Interrupted.into()), || Err(ErrorKind::WouldBlock.into()));
        for (fits, took, lost) in [
            (vec![], "1\n2\n3\n4\n", 0),
            (vec![Ok(1), again(), Ok(2), slow()], "1\n2\n3\n4\n", 0),
            // Fails in the middle of the second line.
            (vec![Ok(3), full()], "1\n2\n3\n4\n", 1),
            // Fails between two lines, and before the first line.
            (vec![Ok(2), full()], "1\n3\n4\n", 1),
            (vec![full()], "3\n4\n", 2),
            // The line feed after the torn line cannot be written either.
            (vec![Ok(3), full(), full()], "1\n2", 3),
        ] {
            let mut to = Fitful { fits: fits.into(), took: String::new() };
            let mut writer = Writer { to: &mut to, is_torn: false };
            let counted = writer.write(b"1\n2\n") + writer.write(b"3\n4\n");
            assert_eq!((to.took.as_str(), counted), (took, lost));
        }
    }

    #[test]
    fn queued_lines_are_written_in_order_at_shutdown() {
        let ((open, gate), (wrote, writes)) = (mpsc::channel(), mpsc::channel());
        let (sink, guard) = Sink::new(Gated { gate, wrote }).expect("a thread");
        let blocks = ["1\n2\n", "3\n", "4\n5\n6\n"];
        for text in blocks {
            sink.0.add(text.to_owned());
        }
        drop(open);
        drop(guard);
        assert_eq!(writes.into_iter().collect::<Vec<_>>(), blocks);
        assert_eq!(sink.dropped(), 0);
        sink.0.add("7\n8\n".to_owned());
        assert_eq!(sink.dropped(), 2, "what comes after the end is nobody's");
    }

    #[test]
    fn dropped_and_unwritable_lines_are_counted() {
        let ((open, gate), (wrote, writes)) = (mpsc::channel(), mpsc::channel());
        let (sink, guard) = Sink::new(Gated { gate, wrote }).expect("a thread");
        let line = format!("{}\n", "x".repeat(QUEUE_MAX));
        // The writer holds the first block, and the second one fills the queue.
        sink.0.add("held\n".to_owned());
        while !sink.0.state().blocks.is_empty() {
            thread::yield_now();
        }
        sink.0.add(line.clone());
        sink.0.add("no\nroom\n".to_owned());
        assert_eq!(sink.dropped(), 2);
        open.send(Err(ErrorKind::StorageFull.into())).expect("it is asked");
        drop(open);
        drop(guard);
        assert_eq!(writes.into_iter().map(|text| text.len()).collect::<Vec<_>>(), [line.len()]);
        assert_eq!(sink.dropped(), 3);
    }

    #[test]
    fn a_blocked_writer_does_not_block_shutdown() {
        let ((open, gate), (wrote, _writes)) = (mpsc::channel(), mpsc::channel());
        let (sink, guard) = Sink::new(Gated { gate, wrote }).expect("a thread");
        sink.0.add("1\n".to_owned());
        drop(guard);
        assert_eq!(sink.0.state().stage, SinkStage::Ending);
        drop(open);
    }
}
