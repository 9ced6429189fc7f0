//! Compresses a body on its way to the client. `route/filter/compression.rs` decides whether that is allowed.
//!
//! Bytes of the pod are sent on promptly: as soon as the pod pauses, everything that it has sent so far is flushed, so
//! that events and messages never wait for later ones. Memory is bounded for any body: the windows and tables of each
//! coding are limited here.

use std::{
    io::{self, Write},
    mem,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use flate2::write::GzEncoder;
use http::HeaderMap;
use http_body::{Body as _, Frame};
use zstd::zstd_safe::CParameter;

use crate::{request::response_body::BodySource, upstream::BodyError};
use ingress_model::{Coding, Offer};

/// Windows of zstd and brotli, as powers of two: 128 KiB, a quarter of the window that nginx uses for brotli.
const WINDOW_LOG: u32 = 17;
/// Size of zstd's tables, as a power of two of 4-byte entries, for levels that would otherwise use larger ones.
const TABLE_LOG: u32 = 17;
const TABLE_LEVEL: u8 = 4;

/// Bytes compressed before a flush even if the pod does not pause: a stream of zeros yields no output for megabytes.
const READ_MAX: usize = 64 * 1024;

/// Number of compressed bytes from which they are sent as a frame.
const SEND_MIN: usize = 8 * 1024;

/// A body that is compressed while it passes.
pub(crate) struct Compressed {
    source: BodySource,
    /// `None` once everything was compressed. An error, for lack of memory, ends the body as incomplete.
    encoder: Option<io::Result<Encoder>>,
    /// Bytes read since the last flush.
    unflushed: usize,
    trailers: Option<HeaderMap>,
}

#[expect(clippy::large_enum_variant, reason = "it lives within a box, one for each body")]
enum Encoder {
    Gzip(GzEncoder<Vec<u8>>),
    Brotli(brotli::CompressorWriter<Vec<u8>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

// === impl Compressed ===

impl Compressed {
    /// Sets whether the source is read in small pieces, where that is supported.
    pub(super) fn read_small(&mut self, small: bool) {
        self.source.read_small(small);
    }

    pub(crate) fn new(source: BodySource, offer: &Offer) -> Self {
        Self { source, encoder: Some(Encoder::new(offer)), unflushed: 0, trailers: None }
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let output = loop {
            let encoder = match &mut self.encoder {
                Some(Ok(encoder)) => encoder,
                Some(Err(_)) => break self.finish(),
                None => return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers)))),
            };
            let frame = match Pin::new(&mut self.source).poll_frame(cx) {
                Poll::Pending if mem::take(&mut self.unflushed) > 0 => break encoder.flush(),
                Poll::Pending => return Poll::Pending,
                Poll::Ready(frame) => frame.transpose()?,
            };
            match frame.map(Frame::into_data) {
                Some(Ok(data)) => {
                    self.unflushed += data.len();
                    match encoder.write(&data) {
                        Ok(length) if length >= SEND_MIN => break Ok(encoder.take()),
                        Ok(_) if self.unflushed >= READ_MAX => {
                            self.unflushed = 0;
                            break encoder.flush();
                        }
                        Ok(_) => {}
                        Err(error) => break Err(error),
                    }
                }
                last => {
                    self.trailers = last.and_then(|frame| frame.err()?.into_trailers().ok());
                    break self.finish();
                }
            }
        };
        Poll::Ready(Some(output.map(Frame::data).map_err(BodyError::Io)))
    }

    fn finish(&mut self) -> io::Result<Bytes> {
        self.encoder.take().map_or(Ok(Bytes::new()), |encoder| encoder?.finish())
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.encoder.is_none() && self.trailers.is_none()
    }
}

// === impl Encoder ===

impl Encoder {
    fn new(offer: &Offer) -> io::Result<Self> {
        const BUFFER: usize = 4 * 1024;
        let level = u32::from(offer.level);
        Ok(match offer.coding {
            Coding::Gzip => Self::Gzip(GzEncoder::new(Vec::new(), flate2::Compression::new(level))),
            Coding::Brotli => Self::Brotli(brotli::CompressorWriter::new(Vec::new(), BUFFER, level, WINDOW_LOG)),
            Coding::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), i32::from(offer.level))?;
                encoder.window_log(WINDOW_LOG)?;
                if offer.level >= TABLE_LEVEL {
                    encoder.set_parameter(CParameter::HashLog(TABLE_LOG))?;
                    encoder.set_parameter(CParameter::ChainLog(TABLE_LOG))?;
                }
                Self::Zstd(encoder)
            }
        })
    }

    /// Compresses `data`. Returns the number of bytes ready to be sent.
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.writer().write_all(data)?;
        Ok(self.output().len())
    }

    /// Returns all output so far, flushed so that the client can decode it.
    fn flush(&mut self) -> io::Result<Bytes> {
        self.writer().flush()?;
        Ok(self.take())
    }

    fn finish(self) -> io::Result<Bytes> {
        let output = match self {
            Self::Gzip(encoder) => encoder.finish()?,
            // The only possible errors are those of the underlying writer, a `Vec`.
            Self::Brotli(encoder) => encoder.into_inner(),
            Self::Zstd(encoder) => encoder.finish()?,
        };
        Ok(output.into())
    }

    fn take(&mut self) -> Bytes {
        mem::take(self.output()).into()
    }

    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::Gzip(encoder) => encoder,
            Self::Brotli(encoder) => encoder,
            Self::Zstd(encoder) => encoder,
        }
    }

    fn output(&mut self) -> &mut Vec<u8> {
        match self {
            Self::Gzip(encoder) => encoder.get_mut(),
            Self::Brotli(encoder) => encoder.get_mut(),
            Self::Zstd(encoder) => encoder.get_mut(),
        }
    }
}
