//! Writes several slices to a socket at once, by the cheaper of two methods.

use std::{
    io::{self, IoSlice},
    mem::MaybeUninit,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncWrite, ReadBuf};

/// Up to this number of bytes, copying and `send` take less time than `writev` (ADR 0034).
const COPIED_MAX: usize = 2 * 1024;

/// Writes `slices` to a socket, in order, as far as it accepts them. Returns the number of bytes.
pub(crate) fn poll_write<S: AsyncWrite + Unpin>(
    socket: &mut S,
    cx: &mut Context<'_>,
    slices: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    let socket = Pin::new(socket);
    if let [one] = slices {
        return socket.poll_write(cx, one);
    }
    if slices.iter().map(|slice| slice.len()).sum::<usize>() > COPIED_MAX {
        return socket.poll_write_vectored(cx, slices);
    }
    let mut bytes = [MaybeUninit::uninit(); COPIED_MAX];
    let mut all = ReadBuf::uninit(&mut bytes);
    for slice in slices {
        all.put_slice(slice);
    }
    socket.poll_write(cx, all.filled())
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    /// Stores the bytes, and the method by which they were written.
    #[derive(Default)]
    struct Sink {
        took: Vec<u8>,
        by_slices: bool,
    }

    impl AsyncWrite for Sink {
        fn poll_write(mut self: Pin<&mut Self>, _cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.took.extend_from_slice(bytes);
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _cx: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            self.by_slices = true;
            for slice in slices {
                self.took.extend_from_slice(slice);
            }
            Poll::Ready(Ok(self.took.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn bytes_are_written_in_order_by_copy_or_slices() {
        for (lengths, by_slices) in [
            (&[][..], false),
            (&[0], false),
            (&[3], false),
            (&[COPIED_MAX + 1], false),
            (&[3, 0, 4], false),
            (&[1, COPIED_MAX - 1], false),
            (&[1, COPIED_MAX], true),
            (&[COPIED_MAX, COPIED_MAX, 0], true),
        ] {
            let parts: Vec<Vec<u8>> = lengths.iter().zip(1..).map(|(length, byte)| vec![byte; *length]).collect();
            let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
            let mut sink = Sink::default();
            let written = poll_write(&mut sink, &mut Context::from_waker(Waker::noop()), &slices);
            assert!(matches!(written, Poll::Ready(Ok(count)) if count == sink.took.len()), "{lengths:?}");
            assert_eq!((sink.took, sink.by_slices), (parts.concat(), by_slices), "{lengths:?}");
        }
    }
}
