//! Compresses a body on its way through. Whether it may be is decided elsewhere (`route/filter/compression.rs`).
//!
//! What the pod has sent goes on at once: as soon as it pauses, everything that it has sent until then is flushed, so
//! that events and messages never wait for those that come after them. Memory is bounded whatever passes: the windows
//! and tables of each coding are limited here.

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

use super::{body::Source, upstream::BodyError};
use crate::model::{Coding, Offer};

/// Windows of zstd and brotli, as powers of two: 128 KiB, a quarter of what nginx takes for brotli.
const WINDOW_LOG: u32 = 17;
/// Tables of zstd, as powers of two of entries of 4 bytes, from the level on at which they would be longer.
const TABLE_LOG: u32 = 17;
const TABLE_LEVEL: u8 = 4;

/// What is compressed before anything is sent, even if the pod does not pause: a stream of zeros yields nothing for
/// megabytes.
const READ_MAX: usize = 64 * 1024;

/// As many compressed bytes are worth a frame of their own.
const SEND_MIN: usize = 8 * 1024;

/// A body that is compressed as it passes.
pub(super) struct Compressed {
    source: Source,
    /// `None` once everything was compressed. What it could not be made for, as memory is lacking, ends as broken
    /// bodies do.
    encoder: Option<io::Result<Encoder>>,
    /// What was read since the last flush, in bytes.
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
    pub(super) fn new(source: Source, offer: &Offer) -> Self {
        Self { source, encoder: Some(Encoder::new(offer)), unflushed: 0, trailers: None }
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
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

    pub(super) fn is_end_stream(&self) -> bool {
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

    /// Compresses `data`; returns how many bytes there are to send.
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.writer().write_all(data)?;
        Ok(self.output().len())
    }

    /// Everything up to here, so that the client can read all of it.
    fn flush(&mut self) -> io::Result<Bytes> {
        self.writer().flush()?;
        Ok(self.take())
    }

    fn finish(self) -> io::Result<Bytes> {
        let output = match self {
            Self::Gzip(encoder) => encoder.finish()?,
            // Errors of the writer below, a `Vec`, are all that it has to tell.
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
