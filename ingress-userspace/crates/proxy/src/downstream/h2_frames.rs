//! Tracks the frames of an HTTP/2 connection alongside hyper: checks that the client begins correctly, and that it does
//! not flood the proxy with frames without payload. Pure: bytes in, verdict out; only frame headers are inspected.
//!
//! hyper and h2 answer PING, SETTINGS, WINDOW_UPDATE and PRIORITY without limit. Each is cheap for the sender and costs
//! the proxy more (RFC 9113, section 10.5), so they draw on an *allowance*, which is refilled by time, by requests and
//! by the data sent to the client. A client that reads its responses never comes close to exhausting it. Floods of
//! frames with payload, which are headers, continuations and data, are stopped by h2 itself.

use std::time::Instant;

/// The first bytes of an HTTP/2 client (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const HEADER: usize = 9;
const ACK: u8 = 1;
const PING: u8 = 6;

/// Initial and maximum allowance, in frames without payload…
const ALLOWANCE: u32 = 10_000;
/// …refilled by this number each second…
const PER_SECOND: u32 = 1_000;
/// …for each request, which a client may legitimately cancel…
const PER_REQUEST: u32 = 5;
/// …and for each DATA frame sent: a client may send WINDOW_UPDATE for every few KiB it reads, on the stream and on the
/// connection.
const PER_DATA: u32 = 10;
/// Allowance drawn by a reset stream, which has cost the proxy and a pod as much as a request.
const RESET: u32 = 10;

/// Passed to h2 in place of a frame with an invalid length for its type. h2 answers some of those with PROTOCOL_ERROR.
/// It answers this header, which exceeds the maximum frame size, with FRAME_SIZE_ERROR, which RFC 9113 requires for
/// both.
pub(crate) const OVERSIZED: &[u8; HEADER] = &[0xff, 0xff, 0xff, PING, 0, 0, 0, 0, 0];

/// The reason to stop reading a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameRefusal {
    #[error("the connection does not begin as HTTP/2 does")]
    Preface,
    #[error("too many frames that carry nothing")]
    Flood,
    /// Like [`FrameRefusal::Flood`], but mostly of cancelled requests: a web page can cause these in its visitors' browsers
    /// (`AbortController`).
    #[error("too many requests cancelled by the client")]
    Resets,
    /// The first `good` of the given bytes, before this frame, are valid.
    #[error("a frame is not as long as its kind must be")]
    Size { good: usize },
}

/// The protocol detected from the first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spoken {
    Http1,
    Http2,
    /// More bytes are needed to decide.
    Unclear,
}

/// The state between two reads and writes.
#[derive(Debug)]
pub(crate) struct Frames {
    /// Bytes of the preface received.
    preface: usize,
    begun: bool,
    received: Boundaries,
    sent: Boundaries,
    allowance: u32,
    /// Allowance drawn by stream resets and by all other frames.
    resets: u64,
    others: u64,
    /// Time of the last refill.
    filled: Instant,
}

/// Frame boundaries in one direction.
#[derive(Debug, Default)]
struct Boundaries {
    header: [u8; HEADER],
    /// Bytes of the header received.
    seen: usize,
    /// Bytes of the payload to come.
    left: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameKind {
    Data,
    Headers,
    Reset,
    Settings,
    SettingsAck,
    Other,
}

impl Spoken {
    /// Detects the protocol; `bytes` are the first ones of a connection.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        match bytes.len().min(PREFACE.len()) {
            length if bytes[..length] != PREFACE[..length] => Self::Http1,
            length if length == PREFACE.len() => Self::Http2,
            _ => Self::Unclear,
        }
    }
}

// === impl Frames ===

impl Frames {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            preface: 0,
            begun: false,
            received: Boundaries::default(),
            sent: Boundaries::default(),
            allowance: ALLOWANCE,
            resets: 0,
            others: 0,
            filled: now,
        }
    }

    /// Returns whether the client has sent the preface and its first SETTINGS.
    pub(crate) fn is_begun(&self) -> bool {
        self.begun
    }

    /// Tracks received bytes.
    ///
    /// # Errors
    /// At the first frame that exceeds the allowance, is not the required first one, or has an invalid length for its
    /// type.
    pub(crate) fn receive(&mut self, mut bytes: &[u8], now: Instant) -> Result<(), FrameRefusal> {
        let whole = bytes.len();
        let rest = &PREFACE[self.preface..];
        if !rest.is_empty() {
            let length = rest.len().min(bytes.len());
            if bytes[..length] != rest[..length] {
                return Err(FrameRefusal::Preface);
            }
            self.preface += length;
            bytes = &bytes[length..];
        }
        self.fill(now);
        while let Some(kind) = self.received.next(&mut bytes) {
            if !self.begun && kind != FrameKind::Settings {
                return Err(FrameRefusal::Preface);
            }
            self.begun = true;
            // If a part of the header has been passed to h2 already, the frame is left to h2.
            if !self.received.is_sized()
                && let Some(good) = (whole - bytes.len()).checked_sub(HEADER)
            {
                return Err(FrameRefusal::Size { good });
            }
            match kind {
                FrameKind::Headers => self.earn(PER_REQUEST),
                FrameKind::Data => {}
                FrameKind::Reset => {
                    self.resets += u64::from(RESET);
                    self.draw(RESET)?;
                }
                FrameKind::Settings | FrameKind::SettingsAck | FrameKind::Other => {
                    self.others += 1;
                    self.draw(1)?;
                }
            }
        }
        Ok(())
    }

    /// Tracks bytes sent to the client.
    pub(crate) fn send(&mut self, mut bytes: &[u8]) {
        while let Some(kind) = self.sent.next(&mut bytes) {
            if kind == FrameKind::Data {
                self.earn(PER_DATA);
            }
        }
    }

    fn fill(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.filled).as_secs();
        if seconds > 0 {
            self.filled = now;
            self.earn(u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(PER_SECOND));
        }
    }

    fn earn(&mut self, frames: u32) {
        self.allowance = self.allowance.saturating_add(frames).min(ALLOWANCE);
    }

    fn draw(&mut self, frames: u32) -> Result<(), FrameRefusal> {
        let refusal = if self.resets > self.others { FrameRefusal::Resets } else { FrameRefusal::Flood };
        self.allowance = self.allowance.checked_sub(frames).ok_or(refusal)?;
        Ok(())
    }
}

// === impl Boundaries ===

impl Boundaries {
    /// Returns whether the latest frame has a valid length for its type.
    fn is_sized(&self) -> bool {
        let [.., kind, flags, _, _, _, _] = self.header;
        // See RFC 9113, sections 6.3 to 6.9.
        match kind {
            2 => self.left == 5,
            3 | 8 => self.left == 4,
            4 if flags & ACK != 0 => self.left == 0,
            4 => self.left.is_multiple_of(6),
            PING => self.left == 8,
            7 => self.left >= 8,
            _ => true,
        }
    }

    /// Advances `bytes` to the end of the next frame header, and returns the type of that frame if the header is
    /// complete.
    fn next(&mut self, bytes: &mut &[u8]) -> Option<FrameKind> {
        let skipped = self.left.min(bytes.len());
        self.left -= skipped;
        *bytes = &bytes[skipped..];
        let taken = (HEADER - self.seen).min(bytes.len());
        self.header[self.seen..self.seen + taken].copy_from_slice(&bytes[..taken]);
        self.seen += taken;
        *bytes = &bytes[taken..];
        if self.seen < HEADER {
            return None;
        }
        self.seen = 0;
        let [high, middle, low, kind, flags, ..] = self.header;
        self.left = u32::from_be_bytes([0, high, middle, low]) as usize;
        // See RFC 9113, section 6.
        Some(match kind {
            0 => FrameKind::Data,
            1 => FrameKind::Headers,
            3 => FrameKind::Reset,
            4 if flags & ACK == 0 => FrameKind::Settings,
            4 => FrameKind::SettingsAck,
            _ => FrameKind::Other,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const SETTINGS: u8 = 4;

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        // Fills the payload with bytes that look like frame headers.
        frame.extend([PING].iter().cycle().take(length.into()));
        frame
    }

    fn begun(now: Instant) -> Frames {
        let mut frames = Frames::new(now);
        frames.receive(&[PREFACE, &frame(SETTINGS, 0, 0)].concat(), now).expect("as it must begin");
        frames
    }

    /// Returns how often `bytes` are accepted before they exceed the allowance, up to a number far beyond it.
    fn endures(frames: &mut Frames, now: Instant, bytes: &[u8]) -> Option<u32> {
        let is_flood = |refused| matches!(refused, Err(FrameRefusal::Flood | FrameRefusal::Resets));
        (0..ALLOWANCE * 5).find(|_| is_flood(frames.receive(bytes, now)))
    }

    #[test]
    fn the_first_bytes_determine_the_protocol() {
        for (bytes, expect) in [
            (&b""[..], Spoken::Unclear),
            (b"P", Spoken::Unclear),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r", Spoken::Unclear),
            (PREFACE, Spoken::Http2),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0", Spoken::Http2),
            (b"POST", Spoken::Http1),
            (b"PRI * HTTP/1.1\r\n", Spoken::Http1),
            (b"GET / HTTP/1.1\r\n\r\n", Spoken::Http1),
        ] {
            assert_eq!(Spoken::of(bytes), expect, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_connection_begins_with_the_preface_and_settings() {
        let now = Instant::now();
        let settings = frame(SETTINGS, 0, 6);
        for (bytes, expect) in [
            ([PREFACE, &settings].concat(), Ok(true)),
            (PREFACE.to_vec(), Ok(false)),
            ([PREFACE, &frame(SETTINGS, ACK, 0)].concat(), Err(FrameRefusal::Preface)),
            ([PREFACE, &frame(PING, 0, 8)].concat(), Err(FrameRefusal::Preface)),
            (b"GET / HTTP/1.1\r\n\r\n".to_vec(), Err(FrameRefusal::Preface)),
            (b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n".to_vec(), Err(FrameRefusal::Preface)),
        ] {
            let whole = &mut Frames::new(now);
            assert_eq!(whole.receive(&bytes, now).map(|()| whole.is_begun()), expect, "{}", bytes.escape_ascii());
            let single = &mut Frames::new(now);
            let verdict = bytes.iter().try_for_each(|byte| single.receive(&[*byte], now));
            assert_eq!(verdict.map(|()| single.is_begun()), expect, "byte by byte {}", bytes.escape_ascii());
        }
    }

    #[test]
    fn frames_of_a_wrong_length_are_refused() {
        let now = Instant::now();
        for (kind, flags, right, wrong) in [
            (RST_STREAM, 0, &[4][..], &[0, 3, 5][..]),
            (SETTINGS, 0, &[0, 6, 12], &[1, 5, 7]),
            (SETTINGS, ACK, &[0], &[6]),
            (PING, 0, &[8], &[0, 7, 9]),
            (7, 0, &[8, 9], &[0, 7]),
            (8, 0, &[4], &[0, 3, 5]),
            (DATA, 0, &[0, 1, 200], &[]),
            (2, 0, &[5], &[4, 6]),
        ] {
            for length in right {
                assert_eq!(begun(now).receive(&frame(kind, flags, *length), now), Ok(()), "{kind} {length}");
            }
            for length in wrong {
                let (before, frame) = (frame(PING, 0, 8), frame(kind, flags, *length));
                let verdict = begun(now).receive(&[&before[..], &frame].concat(), now);
                assert_eq!(verdict, Err(FrameRefusal::Size { good: before.len() }), "{kind} {length}");
                // A header that h2 has received in part cannot be replaced.
                let mut split = begun(now);
                assert_eq!(split.receive(&frame[..5], now).and_then(|()| split.receive(&frame[5..], now)), Ok(()));
            }
        }
    }

    #[test]
    fn frames_without_data_are_counted_for_any_split() {
        let now = Instant::now();
        for (kind, length) in [(2, 5), (SETTINGS, 6), (PING, 8), (8, 4), (99, 8)] {
            assert_eq!(endures(&mut begun(now), now, &frame(kind, 0, length)), Some(ALLOWANCE - 1), "{kind}");
        }
        assert_eq!(endures(&mut begun(now), now, &frame(RST_STREAM, 0, 4)), Some((ALLOWANCE - 1) / RESET));
        let flood = frame(PING, 0, 8).repeat(ALLOWANCE as usize);
        for length in [1, 7, 9, 100, flood.len()] {
            let mut frames = begun(now);
            let refused = flood.chunks(length).try_for_each(|piece| frames.receive(piece, now));
            assert_eq!(refused, Err(FrameRefusal::Flood), "{length}");
        }
    }

    #[test]
    fn rapid_resets_are_distinguished_from_other_floods() {
        let now = Instant::now();
        let refused = |pieces: &[Vec<u8>]| begun(now).receive(&pieces.concat().repeat(ALLOWANCE as usize), now);
        let given_up = [frame(HEADERS, 0, 20), frame(RST_STREAM, 0, 4)].concat();
        assert_eq!(refused(&[given_up.clone(), frame(8, 0, 4)]), Err(FrameRefusal::Resets));
        assert_eq!(refused(&[given_up, frame(PING, 0, 8).repeat(11)]), Err(FrameRefusal::Flood));
    }

    #[test]
    fn requests_data_and_time_refill_the_allowance() {
        let now = Instant::now();
        let busy = [frame(HEADERS, 0, 20), frame(8, 0, 4).repeat(PER_REQUEST as usize), frame(DATA, 0, 200)].concat();
        assert_eq!(endures(&mut begun(now), now, &busy), None);
        let given_up = [frame(HEADERS, 0, 20), frame(RST_STREAM, 0, 4)].concat();
        assert!(endures(&mut begun(now), now, &given_up).is_some());
        let mut frames = begun(now);
        let updates = frame(8, 0, 4).repeat(PER_DATA as usize);
        for _ in 0..ALLOWANCE {
            frames.send(&frame(DATA, 0, 200));
            frames.receive(&updates, now).expect("allowed");
        }
        for (seconds, expect) in [(0, 0), (1, PER_SECOND), (3, 3 * PER_SECOND), (1000, ALLOWANCE)] {
            let mut frames = begun(now);
            for _ in 1..ALLOWANCE {
                frames.receive(&frame(PING, 0, 8), now).expect("allowed");
            }
            let later = now + Duration::from_secs(seconds);
            assert_eq!(endures(&mut frames, later, &frame(PING, 0, 8)), Some(expect), "{seconds}");
        }
    }
}
