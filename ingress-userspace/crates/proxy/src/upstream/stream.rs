//! The byte stream to an endpoint: TCP, or TLS over it. It has no timeouts.

use std::{
    future::Future,
    io::{self, IoSlice},
    pin::{Pin, pin},
    task::{Context, Poll, Waker, ready},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::client::TlsStream;

use super::buffer::ReadBuffer;
use crate::downstream::vectored_write;

/// A plain or a TLS stream. For plain connections, the branch between the two is well predicted.
pub(super) enum TransportStream {
    Plain(TcpStream),
    /// Boxed so that plain connections do not carry its size.
    Tls(Box<TlsStream<TcpStream>>),
}

impl TransportStream {
    /// Returns whether the stream is open and has nothing to read, as far as the reactor knows. Makes no system call
    /// unless the reactor has seen an event.
    pub(super) fn is_silent(&mut self) -> bool {
        match self {
            Self::Plain(tcp) => {
                matches!(tcp.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
            }
            // Tickets and key updates are not data: the session processes them and still waits.
            Self::Tls(tls) => {
                let mut byte = [0];
                let mut cx = Context::from_waker(Waker::noop());
                Pin::new(tls).poll_read(&mut cx, &mut ReadBuf::new(&mut byte)).is_pending()
            }
        }
    }

    /// Reads available bytes into `buffer`, which allocates memory only if there are any. 0 is the end of the stream.
    pub(super) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuffer,
        large: bool,
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(tcp) => {
                ready!(tcp.poll_read_ready(cx))?;
                buffer.prepare(large);
                rest(pin!(tcp.read_buf(&mut **buffer)).poll(cx), buffer)
            }
            Self::Tls(tls) => read_into(&mut **tls, cx, buffer, large),
        }
    }

    pub(super) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(tls) => tls.get_ref().0,
        }
    }
}

impl AsyncRead for TransportStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for TransportStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(cx, bytes),
            Self::Tls(tls) => Pin::new(tls).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(tcp) => vectored_write::poll_write(tcp, cx, parts),
            Self::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Ready once the kernel has accepted all written bytes.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(_) => Poll::Ready(Ok(())),
            Self::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}

/// Reads from any stream into `buffer`, which holds no memory while no bytes are available. 0 is the end of the stream.
pub(super) fn read_into<S: AsyncRead + Unpin>(
    stream: &mut S,
    cx: &mut Context<'_>,
    buffer: &mut ReadBuffer,
    large: bool,
) -> Poll<io::Result<usize>> {
    buffer.prepare(large);
    rest(pin!(stream.read_buf(&mut **buffer)).poll(cx), buffer)
}

fn rest(read: Poll<io::Result<usize>>, buffer: &mut ReadBuffer) -> Poll<io::Result<usize>> {
    if read.is_pending() {
        buffer.rest();
    }
    read
}
